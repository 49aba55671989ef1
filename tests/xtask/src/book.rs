//! Builds the book: the pages of `docs`, and the pages about the project, as HTML.
//!
//! A page in the book keeps only the links that lead to another page of the book. The tool mdBook is built once.

use std::path::{Component, Path, PathBuf};
use std::process::{Command, ExitCode};

use anyhow::Context as _;

use crate::workspace::{cargo, root, succeed, target_folder};

/// The version of mdBook.
const MDBOOK: &str = "0.5.4";
/// The pages outside `docs` that the book has, with their paths in the book and their titles.
const PROJECT: [(&str, &str, &str); 6] = [
    ("README.md", "project/overview.md", "Overview"),
    ("sdk/README.md", "project/sdk.md", "The SDK for plugins"),
    ("ARCHITECTURE.md", "project/architecture.md", "Architecture"),
    ("CONTRIBUTING.md", "project/contributing.md", "Contributing"),
    ("SECURITY.md", "project/security.md", "Security"),
    ("CHANGELOG.md", "project/changelog.md", "Changelog"),
];

/// The command `cargo xtask book`.
pub(crate) fn build() -> anyhow::Result<ExitCode> {
    let mdbook = mdbook()?;
    let folder = target_folder().join("book");
    let source = folder.join("source");
    // Pages of an earlier book must not get into this book.
    let _ = std::fs::remove_dir_all(&folder);
    copy(&root().join("docs"), Path::new(""), &source)?;
    let mut chapters = "\n# The project\n\n".to_owned();
    for (page, path, title) in PROJECT {
        chapters += &format!("- [{title}]({path})\n");
        let text = std::fs::read_to_string(root().join(page)).with_context(|| format!("cannot read {page}"))?;
        write(&source.join(path), &in_book(&text, page, path))?;
    }
    let summary = source.join("SUMMARY.md");
    let listed = std::fs::read_to_string(&summary).context("cannot read SUMMARY.md")?;
    write(&summary, &(listed + &chapters))?;
    let html = folder.join("html");
    succeed(Command::new(mdbook).arg("build").arg(&source).arg("--dest-dir").arg(&html))?;
    println!("open {}", html.join("index.html").display());
    Ok(ExitCode::SUCCESS)
}

/// Returns mdBook in the pinned version. The first call builds it, which takes a few minutes.
fn mdbook() -> anyhow::Result<PathBuf> {
    let folder = target_folder().join("tools").join(format!("mdbook-{MDBOOK}"));
    let program = folder.join("bin").join("mdbook");
    if !program.is_file() {
        let mut install =
            cargo(&["install", "mdbook", "--version", MDBOOK, "--locked", "--no-default-features", "--debug"]);
        succeed(install.arg("--root").arg(&folder))?;
    }
    Ok(program)
}

/// Copies the folder `inside` of `docs` into the source of the book.
fn copy(docs: &Path, inside: &Path, source: &Path) -> anyhow::Result<()> {
    let folder = docs.join(inside);
    for entry in std::fs::read_dir(&folder).with_context(|| format!("cannot list {}", folder.display()))? {
        let entry = entry.context("cannot list docs")?;
        let path = inside.join(entry.file_name());
        if entry.path().is_dir() {
            copy(docs, &path, source)?;
        } else if path.extension().is_some_and(|extension| extension == "md") {
            let shown = path.to_string_lossy();
            let named = name_in_book(&shown);
            let text = std::fs::read_to_string(entry.path()).with_context(|| format!("cannot read {shown}"))?;
            write(&source.join(&named), &in_book(&text, &format!("docs/{shown}"), &named))?;
        } else {
            let into = source.join(&path);
            std::fs::create_dir_all(into.parent().unwrap_or(source)).context("cannot create a folder")?;
            std::fs::copy(entry.path(), into).with_context(|| format!("cannot copy {}", path.display()))?;
        }
    }
    Ok(())
}

fn write(path: &Path, text: &str) -> anyhow::Result<()> {
    std::fs::create_dir_all(path.parent().unwrap_or(path)).context("cannot create a folder")?;
    std::fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))
}

/// Returns a page with its links as the book needs them. `page` is the path from the root, and `path` the path in the book.
fn in_book(text: &str, page: &str, path: &str) -> String {
    let mut is_code = false;
    let lines = text.lines().map(|line| {
        let fence = line.trim_start().starts_with("```");
        is_code ^= fence;
        if is_code || fence { line.to_owned() } else { with_links(line, page, path) }
    });
    lines.fold(String::new(), |text, line| text + &line + "\n")
}

/// Rewrites the links of one line.
fn with_links(line: &str, page: &str, path: &str) -> String {
    let (mut done, mut rest) = (String::new(), line);
    while let Some((before, after)) = rest.split_once("](") {
        let Some(end) = after.find(')') else { break };
        let (link, following) = after.split_at(end);
        done += &match (target(link, page, path), before.rfind('[')) {
            (Some(target), _) => format!("{before}]({target})"),
            (None, Some(open)) => {
                let (text, label) = before.split_at(open);
                format!("{text}{}", label.trim_start_matches('['))
            }
            // The text of the link begins on an earlier line.
            (None, None) => format!("{before}]({link})"),
        };
        rest = following.strip_prefix(')').unwrap_or(following);
    }
    done + rest
}

/// Returns the target of a link in the book, or `None` if the book does not have the target.
fn target(link: &str, page: &str, path: &str) -> Option<String> {
    if link.contains("://") || link.starts_with('#') {
        return Some(link.to_owned());
    }
    let (file, anchor) =
        link.split_once('#').map_or((link, String::new()), |(file, anchor)| (file, format!("#{anchor}")));
    let file = normal(&Path::new(page).parent()?.join(file));
    let in_docs = || file.strip_prefix("docs/").map(name_in_book);
    let found =
        PROJECT.iter().find(|(page, ..)| *page == file).map(|(_, path, _)| (*path).to_owned()).or_else(in_docs)?;
    Some("../".repeat(path.matches('/').count()) + &found + &anchor)
}

/// Returns the path in the book of a file of `docs`. A README is the index of its folder.
fn name_in_book(file: &str) -> String {
    file.replace("README.md", "index.md")
}

/// Returns a relative path without `.` and `..`.
fn normal(path: &Path) -> String {
    let mut parts = Vec::new();
    for part in path.components() {
        match part {
            Component::ParentDir => drop(parts.pop()),
            Component::Normal(part) => parts.push(part.to_string_lossy().into_owned()),
            Component::CurDir | Component::RootDir | Component::Prefix(_) => {}
        }
    }
    parts.join("/")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_lead_to_pages_of_the_book_and_others_are_text() {
        let line = "[a](../README.md#try-it), [b](opsjob.md), [c](../plugins/replace), [d](https://e/f), [g](#h).";
        let docs = "[a](project/overview.md#try-it), [b](opsjob.md), c, [d](https://e/f), [g](#h).";
        assert_eq!(with_links(line, "docs/x.md", "x.md"), docs);
        assert_eq!(with_links("[k](../x.md)", "docs/coming-from/k.md", "coming-from/k.md"), "[k](../x.md)");
        assert_eq!(with_links("of it](../docs/README.md)", "sdk/README.md", "project/sdk.md"), "of it](../index.md)");
        assert_eq!(with_links("[l](docs/x.md)", "README.md", "project/overview.md"), "[l](../x.md)");
        assert_eq!(in_book("```\n[m](n)\n```\n[o](p)\n", "README.md", "project/overview.md"), "```\n[m](n)\n```\no\n");
    }
}
