//! Counts the lines outside this folder that a new kind needs.

#![cfg(test)]

use std::path::Path;

use regex::RegexBuilder;
use walkdir::{DirEntry, WalkDir};

/// The most lines of the repository that may mention the kind outside its folder.
const MOST_LINES: usize = 40;

#[test]
fn a_new_kind_needs_few_lines_outside_its_folder() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).canonicalize().unwrap();
    let root = folder.ancestors().nth(2).unwrap();
    let mentions = RegexBuilder::new("echo.?job|oarlock.echo|tests/echo").case_insensitive(true).build().unwrap();
    let is_source = |entry: &DirEntry| {
        let name = entry.file_name().to_string_lossy();
        let is_hidden = name.starts_with('.') && entry.path() != root;
        !is_hidden && !["target", "node_modules"].contains(&&*name) && entry.path() != folder
    };
    let (mut files, mut lines) = (0, Vec::new());
    for entry in WalkDir::new(root).into_iter().filter_entry(is_source).map(Result::unwrap) {
        let path = entry.path();
        let ending = path.extension().and_then(|ending| ending.to_str()).unwrap_or_default();
        if !entry.file_type().is_file() || !["rs", "toml", "yaml", "md"].contains(&ending) {
            continue;
        }
        files += 1;
        let text = std::fs::read_to_string(path).unwrap();
        let found = text.lines().filter(|line| mentions.is_match(line));
        lines.extend(found.map(|line| format!("{}: {}", path.display(), line.trim())));
    }
    println!("{} lines:\n{}", lines.len(), lines.join("\n"));
    assert!(files > 100, "the repository is not at {}", root.display());
    assert!((1..=MOST_LINES).contains(&lines.len()), "{} lines:\n{}", lines.len(), lines.join("\n"));
}
