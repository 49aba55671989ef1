//! `oarlock plugin new`: creates the folder of a plugin in one of four languages.

mod template;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context as _, bail};
use clap::Args;
use oarlock_core::plugin::grant::Grant;
use oarlock_core::plugin::manifest::{JSON_SCHEMA, Manifest};
use oarlock_core::plugin::names::is_dns_label;

use self::template::Language;
use super::grant;
use crate::commands::output::print;

const MANIFEST: &str = include_str!("../../../../sdk/examples/quarantine/manifest.json");
/// The line of the example's manifest before which `denied` belongs.
const READS: &str = "  \"reads\": [],\n";
/// The line of the manifest of a language with a runtime that imports files and sockets.
const DENIED: &str = "  \"denied\": [\"files\", \"sockets\"],\n";
/// The file that names Oarlock's compiler and the target of plugins.
const TOOLCHAIN: &str = include_str!("../../../../rust-toolchain.toml");
/// A pod and a job on it. The pod has a fixed name, because it belongs to no workload.
const TRY: &str = "\
# A pod, and a job on it, which `oarlock plugin try` applies.
apiVersion: v1
kind: Pod
metadata: {name: try-quarantine}
spec:
  containers:
  - {name: pause, image: registry.k8s.io/pause:3.10}
---
apiVersion: apps.kusionstack.io/v1alpha1
kind: OperationJob
metadata: {name: try-quarantine}
spec:
  action: Quarantine
  targets:
  - name: try-quarantine
";
/// The dependency on the SDK in the example's `Cargo.toml`.
const SDK: &str = "oarlock-sdk = { path = \"../..\" }";
/// The SDK in the checkout that built this binary. A released binary does not find it.
const CHECKOUT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../sdk");

pub(super) const EXAMPLES: &str = "\
Examples:
  oarlock plugin new restart-it
  oarlock plugin new restart-it --language python
  oarlock plugin new restart-it --sdk ~/src/oarlock/sdk
  oarlock plugin new restart-it --sdk https://git.example.com/oarlock.git

Then `oarlock plugin try` in the new folder builds the plugin and runs a job with it.";

/// Arguments of `oarlock plugin new`.
#[derive(Debug, Args)]
pub(crate) struct NewArgs {
    /// Name of the plugin and of its new folder, such as restart-it
    name: String,
    /// Language of the plugin
    #[arg(long, value_enum, default_value = "rust")]
    language: Language,
    /// For Rust: the folder `sdk` of a checkout of Oarlock, or the URL of its git repository [default: the checkout that
    /// built this binary]
    #[arg(long, value_name = "DIR|URL")]
    sdk: Option<String>,
}

/// Creates the folder.
pub(super) fn run(args: &NewArgs) -> anyhow::Result<ExitCode> {
    let name = args.name.as_str();
    if !is_dns_label(name) || !name.starts_with(|c: char| c.is_ascii_lowercase()) {
        bail!(
            "{name:?} is no name of a plugin: use at most 63 lower-case letters, digits and `-`, and begin with a letter"
        );
    }
    let sdk = match args.language {
        Language::Rust => dependency(args.sdk.as_deref())?,
        _ if args.sdk.is_some() => bail!("--sdk is for Rust: the folder of any other language gets a copy of its SDK"),
        _ => String::new(),
    };
    let folder = PathBuf::from(name);
    if folder.exists() {
        bail!("{name} exists already: choose another name, or remove it");
    }
    for (file, text) in files(name, args.language, &sdk)? {
        let path = folder.join(file);
        let parent = path.parent().unwrap_or(&folder);
        std::fs::create_dir_all(parent).with_context(|| format!("cannot make the folder {}", parent.display()))?;
        std::fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))?;
    }
    print(&next_steps(name, args.language))
}

fn next_steps(name: &str, language: Language) -> String {
    let (source, test) = (language.source(), language.test());
    format!(
        "Made the plugin {name}. Next:

  cd {name}
  oarlock plugin try

This builds the plugin, serves it on a cluster in memory, applies try.yaml and follows the job.
Your code is in {source}. `{test}` runs its tests. manifest.json says what the plugin asks for, and grants.yaml what is
granted; `oarlock plugin grant {name}.wasm` prints the latter anew.
"
    )
}

/// Returns the line of `Cargo.toml` that names the SDK.
fn dependency(sdk: Option<&str>) -> anyhow::Result<String> {
    if let Some(url) = sdk.filter(|sdk| sdk.contains("://")) {
        return Ok(format!("oarlock-sdk = {{ git = {url:?} }}"));
    }
    let folder = Path::new(sdk.unwrap_or(CHECKOUT));
    if !folder.join("src/lib.rs").is_file() {
        bail!(
            "there is no SDK at {}: name the folder `sdk` of a checkout of Oarlock, or its git repository, with --sdk",
            folder.display()
        );
    }
    let folder = folder.canonicalize().with_context(|| format!("cannot find {}", folder.display()))?;
    Ok(format!("oarlock-sdk = {{ path = {:?} }}", folder.display().to_string()))
}

/// Returns the files of the folder, with their paths in it.
fn files(name: &str, language: Language, sdk: &str) -> anyhow::Result<Vec<(&'static str, String)>> {
    let type_name: String = name.split('-').map(capitalised).collect();
    let named = |text: &str| text.replace("quarantine", name).replace("Quarantine", &type_name);
    let manifest = named(MANIFEST);
    let manifest = if language.has_runtime() { manifest.replace(READS, &format!("{DENIED}{READS}")) } else { manifest };
    let parsed = Manifest::parse(manifest.as_bytes()).context("the manifest of the example is invalid")?;
    let mut files: Vec<_> = language.example().iter().map(|(path, text)| (*path, named(text))).collect();
    if let Some((_, cargo)) = files.iter_mut().find(|(path, _)| *path == "Cargo.toml") {
        let own = "\n# A workspace of its own: remove this where the crate is a member of another one.\n[workspace]\n";
        *cargo = cargo.replace(SDK, sdk) + own;
        files.push(("rust-toolchain.toml", toolchain()));
    }
    files.extend(language.sdk().into_iter().map(|(path, text)| (path, text.to_owned())));
    files.extend([
        ("manifest.schema.json", JSON_SCHEMA.to_owned()),
        // The grant is for any version, because each build has another digest.
        ("grants.yaml", grant::document(&Grant::of_all(&parsed))?),
        ("manifest.json", manifest),
        ("try.yaml", named(TRY)),
        (".gitignore", language.ignored().to_owned()),
    ]);
    Ok(files)
}

/// Returns the toolchain file: Oarlock's compiler, with the target of plugins. rustup installs both at the first build.
fn toolchain() -> String {
    let lines = TOOLCHAIN.lines().filter(|line| !line.starts_with('#'));
    lines.fold("# What Oarlock is built with.\n".to_owned(), |text, line| text + line + "\n")
}

fn capitalised(word: &str) -> String {
    let mut letters = word.chars();
    letters.next().map(|first| first.to_ascii_uppercase()).into_iter().chain(letters).collect()
}

#[cfg(test)]
mod tests {
    use clap::ValueEnum as _;

    use super::*;

    #[test]
    fn the_example_is_renamed_everywhere_and_its_dependency_replaced() {
        let files = files("tag-it", Language::Rust, "oarlock-sdk = { path = \"/somewhere/sdk\" }").unwrap();
        let text = |wanted: &str| &files.iter().find(|(path, _)| *path == wanted).unwrap().1;
        assert!(text("Cargo.toml").contains("/somewhere/sdk") && !text("Cargo.toml").contains("../.."));
        assert!(text("src/lib.rs").contains("export!(TagIt, manifest"));
    }

    #[test]
    fn every_language_gets_its_sdk_a_grant_of_all_and_a_job_on_a_pod() {
        for language in Language::value_variants() {
            let files = files("tag-it", *language, "").unwrap();
            for (path, text) in files.iter().filter(|(path, _)| !path.starts_with("oarlock/")) {
                assert!(!text.to_lowercase().contains("quarantine"), "{path}: {text}");
            }
            let text = |wanted: &str| &files.iter().find(|(path, _)| *path == wanted).unwrap().1;
            assert!(!text(language.source()).is_empty());
            let [pod, job]: [serde_json::Value; 2] =
                serde_saphyr::from_multiple(text("try.yaml")).unwrap().try_into().unwrap();
            assert_eq!(
                (&job["spec"]["action"], &job["spec"]["targets"][0]["name"]),
                (&"TagIt".into(), &pod["metadata"]["name"])
            );
            let grants = oarlock_wasm::parse_grants(text("grants.yaml")).unwrap();
            let manifest = Manifest::parse(text("manifest.json").as_bytes()).unwrap();
            assert_eq!(oarlock_core::plugin::grant::missing(&manifest, grants.first(), "any"), Vec::<String>::new());
            assert_eq!(manifest.denied.len(), if *language == Language::Rust { 0 } else { 2 });
            assert_eq!(files.iter().any(|(path, _)| path.starts_with("oarlock/wit/")), language.has_runtime());
        }
    }
}
