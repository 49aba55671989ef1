//! The rules of prose that a program can check: no sentence of a comment or of a page begins with a word that hides its
//! subject, and none is too long to read once. Source: CONTRIBUTING.md.

#![cfg(test)]

use std::path::Path;
use std::process::Command;
use std::sync::LazyLock;

use oarlock_repository::root;
use regex::Regex;

/// Most words of a sentence.
const WORDS: usize = 35;
/// Words that hide the subject at the beginning of a sentence.
const OPENINGS: [&str; 3] = ["Of", "What", "Whoever"];
/// Pages whose text is quoted, or is a list of changes.
const LEFT_OUT: [&str; 1] = ["CHANGELOG.md"];

static ITEM: LazyLock<Regex> = LazyLock::new(|| Regex::new(r"^(?:[-*]|\d+\.) ").unwrap());
static COMMENT: LazyLock<Regex> = LazyLock::new(|| Regex::new(r"^\s*//[/!]? ?(.*)$").unwrap());
static CODE: LazyLock<Regex> = LazyLock::new(|| Regex::new(r"`[^`]*`").unwrap());
static LINK: LazyLock<Regex> = LazyLock::new(|| Regex::new(r"\[([^\]]*)\](?:\([^)]*\))?").unwrap());
static END: LazyLock<Regex> = LazyLock::new(|| Regex::new(r#"[.!?:;]\**\s+([A-Z0-9*"(\[])"#).unwrap());

/// Returns the paragraphs of a page, each with its first line. Code, comments, tables, headings and quotes of output are left out.
fn paragraphs_of_page(text: &str) -> Vec<(usize, String)> {
    let (mut found, mut is_code, mut is_comment): (Vec<(usize, String)>, bool, bool) = (Vec::new(), false, false);
    let mut continues = false;
    for (number, line) in text.lines().enumerate() {
        let line = line.trim().trim_start_matches("> ").trim();
        if line.starts_with("```") {
            is_code = !is_code;
        }
        is_comment |= line.starts_with("<!--");
        let is_hidden = is_comment;
        is_comment &= !line.contains("-->");
        if is_code || is_hidden || line.is_empty() || line.starts_with(['|', '#', '<']) || line.starts_with("```") {
            continues = false;
            continue;
        }
        let begins = ITEM.is_match(line);
        let words = ITEM.replace(line, "");
        match found.last_mut().filter(|_| continues && !begins) {
            Some((_, paragraph)) => *paragraph += &format!(" {words}"),
            None => found.push((number + 1, words.into_owned())),
        }
        continues = true;
    }
    found
}

/// Returns the comments of a source file as a page, line by line.
fn comments(source: &str) -> String {
    let text = |line| COMMENT.captures(line).map_or(String::new(), |found| found[1].to_owned());
    source.lines().map(text).collect::<Vec<_>>().join("\n")
}

/// Returns the sentences of a paragraph. Code counts as one word, and links as their text.
fn sentences(paragraph: &str) -> Vec<String> {
    let code = CODE.replace_all(paragraph, "X").into_owned();
    let plain = LINK.replace_all(&code, "$1").into_owned();
    let parted = END.replace_all(&plain, ".\n$1").into_owned();
    parted.lines().map(|sentence| sentence.trim_start_matches('*').to_owned()).collect()
}

/// Returns the sentences of a text that break a rule, each with the line where its paragraph begins.
fn faults(page: &str) -> Vec<(usize, String)> {
    let mut found = Vec::new();
    for (line, paragraph) in paragraphs_of_page(page) {
        for sentence in sentences(&paragraph) {
            let mut words = sentence.split_whitespace();
            let opens = words.next().is_some_and(|word| OPENINGS.contains(&word));
            if opens || sentence.split_whitespace().count() > WORDS {
                found.push((line, sentence));
            }
        }
    }
    found
}

#[test]
fn no_sentence_hides_its_subject_or_is_too_long() {
    let root = root();
    let list = ["ls-files", "--cached", "--others", "--exclude-standard"];
    let listed = Command::new("git").args(list).current_dir(&root).output().unwrap();
    let mut found = Vec::new();
    for file in String::from_utf8(listed.stdout).unwrap().lines().filter(|file| !LEFT_OUT.contains(file)) {
        let Ok(text) = std::fs::read_to_string(root.join(file)) else { continue };
        let page = match Path::new(file).extension().and_then(|extension| extension.to_str()) {
            Some("rs") => comments(&text),
            Some("md") => text,
            _ => continue,
        };
        found.extend(faults(&page).into_iter().map(|(line, sentence)| format!("{file}:{line}: {sentence}")));
    }
    assert!(found.is_empty(), "begin with the subject, and use at most {WORDS} words:\n{}", found.join("\n"));
}

#[test]
fn sentences_that_hide_their_subject_or_are_too_long_are_found() {
    let long = "word ".repeat(WORDS) + "end.";
    let page = format!(
        "# What\n\nGood one. Of `each` job, the name.\n\n| What |\n\n```\nWhat\n```\n<!-- a\nWhat\n-->\n- {long}\n- What?\n"
    );
    let lines: Vec<usize> = faults(&page).into_iter().map(|(line, _)| line).collect();
    assert_eq!(lines, [3, 13], "`What?` alone is no sentence");
    assert_eq!(faults(&comments("fn a() {}\n/// Whoever reads this.\nlet what = 1; // What\n")).len(), 1);
}
