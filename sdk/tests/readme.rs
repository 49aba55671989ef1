//! Checks that the README quotes a crate that is built and tested.

const README: &str = include_str!("../README.md");

/// Returns the code blocks of the README in this language.
fn blocks(language: &str) -> Vec<&'static str> {
    let parts = README.split("```").skip(1).step_by(2);
    parts.filter_map(|block| block.strip_prefix(language)?.strip_prefix('\n')).collect()
}

#[test]
fn the_readme_quotes_the_example_to_the_letter() {
    for (language, file) in [
        ("toml", include_str!("../examples/quarantine/Cargo.toml")),
        ("rust,ignore", include_str!("../examples/quarantine/src/lib.rs")),
        ("json", include_str!("../examples/quarantine/manifest.json")),
    ] {
        assert_eq!(blocks(language), [file], "copy the file into the block {language} of sdk/README.md");
    }
}
