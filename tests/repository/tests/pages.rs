//! Accounts for every block with commands: a test runs the block in memory or on nodes, or the page says why no test does.
//! `oarlock_repository::pages` describes the marks.

#![cfg(test)]

use std::collections::BTreeMap;
use std::path::Path;

use oarlock_repository::{Block, blocks, root};

/// The pages for users that are not in `docs`.
const PAGES: [&str; 4] = ["README.md", "CONTRIBUTING.md", "SECURITY.md", "sdk/README.md"];
/// The test that runs pages in memory. It includes each page that it runs.
const IN_MEMORY: &str = "tests/scenarios/tests/tutorials.rs";
/// The folder of the tests on real nodes.
const ON_NODES: &str = "tests/nodes/";
/// The fewest words of a reason.
const WORDS: usize = 3;

/// All files below `folder` whose name has this end, by their paths from the root.
fn files(folder: &str, end: &str) -> BTreeMap<String, String> {
    let (mut found, mut folders) = (BTreeMap::new(), vec![root().join(folder)]);
    while let Some(folder) = folders.pop() {
        for path in std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()) {
            if path.is_dir() {
                folders.push(path);
            } else if path.to_string_lossy().ends_with(end) {
                let name = path.strip_prefix(root()).unwrap().to_string_lossy().into_owned();
                found.insert(name, std::fs::read_to_string(&path).unwrap());
            }
        }
    }
    found
}

/// The account of one block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Account {
    InMemory,
    OnNodes,
    ByAnotherTest,
    NotRun,
}

/// Returns the account of a block, or the reason why it has none.
fn account(page: &str, block: &Block, tests: &BTreeMap<String, String>) -> Result<Account, String> {
    if let Some(reason) = block.reason() {
        let enough = reason.split_whitespace().count() >= WORDS;
        return enough.then_some(Account::NotRun).ok_or_else(|| format!("{reason:?} is no reason"));
    }
    let name = Path::new(page).file_name().unwrap().to_string_lossy().into_owned();
    if let Some(test) = block.test() {
        let defines = |text: &str| text.contains(&format!("fn {test}("));
        let file = tests.iter().find(|(_, text)| defines(text)).ok_or_else(|| format!("there is no test {test}"))?;
        if !file.1.contains(&format!("{name}\"")) {
            return Err(format!("{} does not read the page", file.0));
        }
        return Ok(if file.0.starts_with(ON_NODES) { Account::OnNodes } else { Account::ByAnotherTest });
    }
    let included = tests.get(IN_MEMORY).is_some_and(|text| text.contains(&format!("\"../../../{page}\"")));
    match block.in_memory() {
        Some(_) if included => Ok(Account::InMemory),
        Some(_) => Err(format!("{IN_MEMORY} does not include the page")),
        None => Err(format!("`{}` does not run in memory, and has no note", block.kind)),
    }
}

fn pages() -> BTreeMap<String, String> {
    let others = PAGES.map(|page| (page.to_owned(), std::fs::read_to_string(root().join(page)).unwrap()));
    files("docs", ".md").into_iter().chain(others).collect()
}

fn tests() -> BTreeMap<String, String> {
    ["tests", "host/tests", "sdk/tests"].into_iter().flat_map(|folder| files(folder, ".rs")).collect()
}

#[test]
fn a_test_runs_every_block_with_commands_or_the_page_says_why_not() {
    let (tests, mut counts, mut wrong) = (tests(), BTreeMap::<Account, usize>::new(), Vec::new());
    for (page, text) in pages() {
        for block in blocks(&text).iter().filter(|block| block.has_commands()) {
            match account(&page, block, &tests) {
                Ok(account) => *counts.entry(account).or_default() += 1,
                Err(why) => wrong.push(format!("{page}:{}: {why}", block.line)),
            }
        }
    }
    println!("blocks with commands: {} in all, {counts:?}", counts.values().sum::<usize>());
    assert!(
        wrong.is_empty(),
        "run these blocks in {IN_MEMORY}, or put `<!-- run by: TEST -->` or `<!-- not run: REASON -->` before them:\n{}",
        wrong.join("\n")
    );
    assert!(counts.get(&Account::InMemory).is_some_and(|count| *count > 50), "{counts:?}");
}

#[test]
fn the_book_has_every_page() {
    let summary = std::fs::read_to_string(root().join("docs/SUMMARY.md")).unwrap();
    let missing: Vec<String> = files("docs", ".md")
        .into_keys()
        .filter(|page| {
            page != "docs/SUMMARY.md" && !summary.contains(&format!("]({})", page.trim_start_matches("docs/")))
        })
        .collect();
    assert!(missing.is_empty(), "list these pages in docs/SUMMARY.md: {missing:?}");
}

#[test]
fn a_block_without_an_account_is_found() {
    let sources = |name: &str, text: &str| BTreeMap::from([(name.to_owned(), text.to_owned())]);
    let tests = sources("tests/nodes/a.rs", "include_str!(\"../x.md\") fn runs_it() {} fn runs(");
    let said = |page: &str, text: &str| account(page, &blocks(text)[0], &tests);
    let run_by = |test: &str| format!("<!-- run by: {test} -->\n```sh\na\n```\n");
    assert_eq!(said("docs/x.md", &run_by("runs_it")), Ok(Account::OnNodes));
    assert_eq!(said("docs/x.md", "<!-- not run: needs a cloud -->\n```sh\na\n```\n"), Ok(Account::NotRun));
    for (page, text) in [
        ("docs/x.md", "```sh\na\n```\n"),
        ("docs/x.md", "```sh cluster\na\n```\n"),
        ("docs/x.md", "```console\n$ a\n```\n"),
        ("docs/x.md", "<!-- not run: no -->\n```sh\na\n```\n"),
        ("docs/x.md", &run_by("is_gone")),
        ("docs/y.md", &run_by("runs_it")),
    ] {
        assert!(said(page, text).is_err(), "{text}");
    }
    let memory = sources(IN_MEMORY, "include_str!(\"../../../docs/x.md\")");
    assert_eq!(account("docs/x.md", &blocks("```sh fails\na\n```\n")[0], &memory), Ok(Account::InMemory));
}
