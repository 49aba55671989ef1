//! Checks that everything the repository cites exists: numbers of `docs/operationjob.md` and `docs/jobflow.md`, scenarios and
//! properties by id, tests by name, and linked files. No reference may lead to a document outside the repository.

#![cfg(test)]

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use oarlock_repository::root;
use regex::Regex;

/// The page that specifies OperationJob.
const PAGE: &str = "docs/operationjob.md";
/// The page that specifies JobFlow, JobTemplate and DaemonJob.
const FLOW_PAGE: &str = "docs/jobflow.md";
/// The folders whose doc comments describe scenarios.
const SCENARIOS: [&str; 2] = ["tests/scenarios/src/scenarios", "host/core/tests"];
/// A pattern for the id of a scenario (A) or a property (S, L, R).
const ID: &str = r"\b[ASLR][1-9][0-9]?\b";

/// One file, by its path from the root of the repository.
struct File {
    path: String,
    text: String,
}

impl File {
    fn new(path: &str, text: &str) -> Self {
        Self { path: path.to_owned(), text: text.to_owned() }
    }

    fn is(&self, endings: &[&str]) -> bool {
        endings.iter().any(|ending| self.path.ends_with(ending))
    }
}

/// The definitions of a page.
#[derive(Default)]
struct Page {
    /// Numbers of sections and statements, with the count of definitions of each.
    numbers: BTreeMap<String, usize>,
    /// Ids of scenarios and properties, with the count of definitions of each.
    ids: BTreeMap<String, usize>,
    /// The last cell of each scenario's row, by id.
    shown_by: BTreeMap<String, String>,
}

impl Page {
    fn read(text: &str) -> Self {
        let mut page = Self::default();
        let number = pattern(r"(?m)^(?:#{2,3} |- \*\*)([0-9]+(?:\.[0-9]+)*)(?:\*\*)? ");
        for found in number.captures_iter(text) {
            *page.numbers.entry(found[1].to_owned()).or_default() += 1;
        }
        for found in pattern(r"(?m)^\| ([ASLR][0-9]+) \|(.*)\|$").captures_iter(text) {
            *page.ids.entry(found[1].to_owned()).or_default() += 1;
            if found[1].starts_with('A') {
                let cell = found[2].rsplit('|').next().unwrap_or_default().trim().to_owned();
                page.shown_by.insert(found[1].to_owned(), cell);
            }
        }
        page
    }
}

fn pattern(text: &str) -> Regex {
    Regex::new(text).unwrap()
}

/// Returns all files of the repository that may cite something, without hidden folders and build output.
fn files() -> Vec<File> {
    let root = root();
    let mut folders = vec![root.clone()];
    let mut files = Vec::new();
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap().map(Result::unwrap) {
            let name = entry.file_name().into_string().unwrap_or_default();
            let kind = entry.file_type().unwrap();
            let built = name == "target" || name == "node_modules";
            if kind.is_dir() && !built && !name.starts_with('.') {
                folders.push(entry.path());
            } else if kind.is_file() && [".rs", ".wit", ".md", ".yaml", ".toml"].iter().any(|end| name.ends_with(end)) {
                let path = entry.path().strip_prefix(&root).unwrap().to_string_lossy().into_owned();
                files.push(File::new(&path, &std::fs::read_to_string(entry.path()).unwrap()));
            }
        }
    }
    files.sort_by(|one, other| one.path.cmp(&other.path));
    assert!(files.len() > 100, "the repository is not at {}", root.display());
    files
}

fn page(path: &str) -> Page {
    Page::read(&std::fs::read_to_string(root().join(path)).unwrap())
}

/// Joins lines, because a reference may continue on the next line of the same comment.
fn unwrapped(text: &str) -> String {
    pattern(r"\n[ \t]*(?://[/!]?|#)?[ \t]*").replace_all(text, " ").into_owned()
}

/// Returns the numbers of a page that a file cites.
fn cited(page: &str, file: &File) -> Vec<String> {
    let number = r"[0-9]+(?:\.[0-9]+)*";
    let list = pattern(&format!(r"{}`?\)? ({number}(?:(?:, | and |, and | to ){number})*)", regex::escape(page)));
    let text = unwrapped(&file.text);
    let numbers = pattern(number);
    list.captures_iter(&text)
        .flat_map(|found| numbers.find_iter(found.get(1).unwrap().as_str()).collect::<Vec<_>>())
        .map(|found| found.as_str().to_owned())
        .collect()
}

fn undefined_numbers((path, page): (&str, &Page), files: &[File]) -> Vec<String> {
    let undefined = |file: &File| {
        let numbers = cited(path, file).into_iter().filter(|number| !page.numbers.contains_key(number));
        numbers.map(|number| format!("{}: {path} has no {number}", file.path)).collect::<Vec<_>>()
    };
    files.iter().flat_map(undefined).collect()
}

/// Returns the ids that a file names: all ids in the doc comments of scenarios, elsewhere the ids before a colon.
fn named(file: &File) -> BTreeSet<String> {
    let id = pattern(ID);
    let told = SCENARIOS.iter().any(|folder| file.path.starts_with(folder));
    let docs = file.text.lines().map(str::trim).filter(|line| line.starts_with("///") || line.starts_with("//!"));
    let docs: Vec<&str> = docs.filter(|_| told).collect();
    let labels = pattern(&format!(r"((?:{ID}, )*{ID}):(?:[^:]|$)"));
    let labels: Vec<&str> = labels.captures_iter(&file.text).map(|found| found.get(1).unwrap().as_str()).collect();
    docs.iter().chain(&labels).flat_map(|text| id.find_iter(text)).map(|found| found.as_str().to_owned()).collect()
}

fn undefined_ids(page: &Page, files: &[File]) -> Vec<String> {
    let undefined = |file: &File| {
        let ids = named(file).into_iter().filter(|id| !page.ids.contains_key(id));
        ids.map(|id| format!("{}: {PAGE} has no {id}", file.path)).collect::<Vec<_>>()
    };
    files.iter().filter(|file| file.is(&[".rs"])).flat_map(undefined).collect()
}

/// Returns references to files outside the repository, and references in another form than `docs/operationjob.md 3.7` and
/// `docs/jobflow.md 2.3`.
fn foreign(files: &[File]) -> Vec<String> {
    let forms = [
        r"\bspec/[a-z]+\.md",
        r"\bshared/[a-z_]+/[a-z_.-]+\.md",
        r"(?i)\bspec(?:ification)?,? (?:§|section\b)",
        r"\bdocs/(?:operationjob|jobflow)\.md`?,? (?:§|section\b)",
    ];
    let forms = forms.map(pattern);
    let found = |file: &File| {
        let text = unwrapped(&file.text);
        let hits = forms.iter().flat_map(|form| form.find_iter(&text));
        hits.map(|hit| format!("{}: cites {:?}", file.path, hit.as_str())).collect::<Vec<_>>()
    };
    files.iter().flat_map(found).collect()
}

/// Returns the relative links of a Markdown file, without anchors. Links in code do not count.
fn links(text: &str) -> Vec<String> {
    let mut code = false;
    let prose = text.lines().filter(|line| {
        let fence = line.trim_start().starts_with("```");
        code ^= fence;
        !code && !fence
    });
    let prose: Vec<&str> = prose.collect();
    let prose = pattern(r"`[^`]*`").replace_all(&prose.join("\n"), "``").into_owned();
    let targets = pattern(r"\]\(([^)\s#]*)(?:#[^)\s]*)?\)");
    let targets = targets.captures_iter(&prose).map(|found| found[1].to_owned());
    targets.filter(|target| !target.is_empty() && !target.contains(':')).collect()
}

fn dead_links(root: &Path, files: &[File]) -> Vec<String> {
    let dead = |file: &File| {
        let folder = root.join(&file.path).parent().unwrap().to_owned();
        let gone = links(&file.text).into_iter().filter(|target| !folder.join(target).exists());
        gone.map(|target| format!("{}: links to {target}, which is not there", file.path)).collect::<Vec<_>>()
    };
    files.iter().filter(|file| file.is(&[".md"])).flat_map(dead).collect()
}

/// Returns the paths of this repository that a page names, each from the root.
fn paths(text: &str) -> BTreeSet<String> {
    let path = pattern(r"(?m)(?:^|[\s`(\[])((?:host|tests|sdk|plugins|docs|wit)/[\w./-]*\w)");
    path.captures_iter(text).map(|found| found[1].to_owned()).collect()
}

/// Returns the paths that a page names and that do not exist below `root`.
fn dead_paths(root: &Path, page: &File) -> Vec<String> {
    let gone = paths(&page.text).into_iter().filter(|path| !root.join(path).exists());
    gone.map(|path| format!("{}: names {path}, which is not there", page.path)).collect()
}

/// Returns the scenarios whose last cell is neither the name of a test nor one of the two phrases.
fn unknown_tests(page: &Page, files: &[File]) -> Vec<String> {
    let function = pattern(r"\bfn ([a-z0-9_]+)");
    let sources = files.iter().filter(|file| file.is(&[".rs"]));
    let functions: BTreeSet<&str> = sources
        .flat_map(|file| function.captures_iter(&file.text))
        .map(|found| found.get(1).unwrap().as_str())
        .collect();
    let unknown = |(id, cell): (&String, &String)| {
        if ["to come", "extension, not built"].contains(&cell.as_str()) {
            return Vec::new();
        }
        let names = cell.split(", ").map(|name| name.trim_matches('`'));
        let gone = names.filter(|name| !functions.contains(name));
        gone.map(|name| format!("{PAGE}: {id} is shown by {name:?}, which is no function")).collect()
    };
    page.shown_by.iter().flat_map(unknown).collect()
}

fn none(wrong: &[String]) {
    assert!(wrong.is_empty(), "{} wrong references:\n{}", wrong.len(), wrong.join("\n"));
}

#[test]
fn every_number_that_is_cited_is_defined() {
    let files = files();
    for path in [PAGE, FLOW_PAGE] {
        none(&undefined_numbers((path, &page(path)), &files));
        let mut sources = files.iter().filter(|file| file.is(&[".rs"]));
        assert!(sources.any(|file| !cited(path, file).is_empty()), "no source cites {path}");
    }
}

#[test]
fn every_scenario_and_property_that_is_named_is_defined() {
    let files = files();
    none(&undefined_ids(&page(PAGE), &files));
    let told = files.iter().filter(|file| file.path.starts_with(SCENARIOS[0]));
    assert!(told.flat_map(named).any(|id| id == "A14"), "the scenarios name no ids, or are no longer in {SCENARIOS:?}");
}

#[test]
fn nothing_leads_out_of_the_repository() {
    none(&foreign(&files()));
}

#[test]
fn every_relative_link_leads_to_a_file() {
    let files = files();
    none(&dead_links(&root(), &files));
    assert!(files.iter().any(|file| !links(&file.text).is_empty()));
}

#[test]
fn every_path_that_the_pages_about_the_code_name_exists() {
    let files = files();
    for name in ["ARCHITECTURE.md", "CONTRIBUTING.md"] {
        let page = files.iter().find(|file| file.path == name).unwrap();
        assert!(!paths(&page.text).is_empty(), "{name} names no paths");
        none(&dead_paths(&root(), page));
    }
}

#[test]
fn every_test_that_the_page_names_exists() {
    none(&unknown_tests(&page(PAGE), &files()));
}

#[test]
fn every_test_that_shows_what_the_security_page_says_exists() {
    let files = files();
    let page = files.iter().find(|file| file.path == "SECURITY.md").unwrap();
    let name = pattern(r"`([a-z][a-z0-9]*(?:_[a-z0-9]+){3,})`");
    let named: BTreeSet<&str> = name.captures_iter(&page.text).map(|found| found.get(1).unwrap().as_str()).collect();
    assert!(named.len() > 20, "{named:?}");
    let is_test =
        |name: &&str| files.iter().any(|file| file.is(&[".rs"]) && file.text.contains(&format!("fn {name}(")));
    none(
        &named
            .into_iter()
            .filter(|name| !is_test(name))
            .map(|name| format!("SECURITY.md: there is no {name}"))
            .collect::<Vec<_>>(),
    );
}

#[test]
fn every_row_of_limits_and_waits_names_a_test_that_exists() {
    let files = files();
    let name = pattern(r"`([a-z][a-z0-9]*(?:_[a-z0-9]+){3,})`");
    let mut wrong = Vec::new();
    for path in ["docs/limits.md", "docs/waits.md"] {
        let page = files.iter().find(|file| file.path == path).unwrap();
        let lines: Vec<&str> = page.text.lines().collect();
        let last = |line: &str| line.trim_end_matches('|').rsplit('|').next().unwrap_or_default().trim().to_owned();
        // If the last column of a table is headed `test`, each row names a test.
        let (mut rows, mut has_tests) = (0, false);
        for (index, line) in lines.iter().enumerate() {
            if lines.get(index + 1).is_some_and(|next| next.starts_with("|--")) {
                has_tests = last(line) == "test";
                continue;
            }
            if !has_tests || !line.starts_with('|') || line.starts_with("|--") {
                continue;
            }
            let cell = last(line);
            let names: Vec<&str> = name.captures_iter(&cell).map(|found| found.get(1).unwrap().as_str()).collect();
            rows += 1;
            if names.is_empty() {
                wrong.push(format!("{path}: no test in {line}"));
            }
            let is_test =
                |name: &str| files.iter().any(|file| file.is(&[".rs"]) && file.text.contains(&format!("fn {name}(")));
            wrong.extend(
                names.into_iter().filter(|name| !is_test(name)).map(|name| format!("{path}: there is no {name}")),
            );
        }
        assert!(rows > 20, "{path} has {rows} rows with tests");
    }
    none(&wrong);
}

#[test]
fn the_page_defines_everything_once_and_leaves_no_scenario_out() {
    let page = page(PAGE);
    let twice = page.numbers.iter().chain(&page.ids).filter(|(_, times)| **times > 1);
    none(&twice.map(|(what, times)| format!("{PAGE}: {what} is defined {times} times")).collect::<Vec<_>>());
    let series = |letter: char, last: usize| (1..=last).map(move |number| format!("{letter}{number}"));
    let expected = series('A', page.shown_by.len()).chain(series('S', 7)).chain(series('L', 3)).chain(series('R', 1));
    let missing = expected.filter(|id| !page.ids.contains_key(id));
    none(&missing.map(|id| format!("{PAGE}: {id} is missing")).collect::<Vec<_>>());
}

#[test]
fn a_number_that_the_page_does_not_have_is_found_over_the_end_of_a_line_too() {
    let page = Page::read("## 3 Rounds\n### 3.7 Calls\n- **3.7.2** Text.\n");
    let text =
        "//! Source: docs/operationjob.md 3, 3.7 and\n//! 3.8. Two.\n// docs/operationjob.md\n    /// 3.7.2, 3.7.3.\n";
    let wrong = undefined_numbers((PAGE, &page), &[File::new("a.rs", text)]);
    assert_eq!(wrong, ["a.rs: docs/operationjob.md has no 3.8", "a.rs: docs/operationjob.md has no 3.7.3"]);
}

#[test]
fn an_id_that_the_page_does_not_have_is_found_in_a_scenario_and_before_a_colon() {
    let page = Page::read("| A1 | given | then | `x` |\n| S7 | order |\n");
    let scenario =
        File::new("tests/scenarios/src/scenarios/a.rs", "/// A1, ahead; A62 too.\nlet a = A63::new(); // A64\n");
    let label = ["/// A65 in prose.\n/// A1, S8", ": in front.\nlet b = A66::new();\n"].concat();
    let other = File::new("tests/scenarios/src/a.rs", &label);
    let wrong = undefined_ids(&page, &[scenario, other]);
    let expected = [
        "tests/scenarios/src/scenarios/a.rs: docs/operationjob.md has no A62",
        "tests/scenarios/src/a.rs: docs/operationjob.md has no S8",
    ];
    assert_eq!(wrong, expected);
}

#[test]
fn references_to_what_is_elsewhere_are_found() {
    let outside = [
        "Source: spec",
        "/operationjob.md 3.7.",
        "\n(Spec",
        " section 10)\n",
        "docs/operationjob.md",
        " §2 shared",
        "/a/b.md",
    ];
    let wrong = foreign(&[
        File::new("a.rs", &outside.concat()),
        File::new("b.rs", "docs/operationjob.md 2, core/src/operation_job/shared/a.rs"),
    ]);
    assert_eq!(wrong.len(), 4, "{wrong:#?}");
}

#[test]
fn a_link_to_nowhere_and_a_test_that_is_gone_are_found() {
    let text = "[a](a.md) [b](b.md#x) [c](https://c/d.md) [d](#d) `[e](e.md)`\n```\n[f](f.md)\n```\n[g](../g)\n";
    assert_eq!(links(text), ["a.md", "b.md", "../g"]);
    let wrong = dead_links(&root(), &[File::new("docs/x.md", "[here](operationjob.md) [gone](gone.md)")]);
    assert_eq!(wrong, ["docs/x.md: links to gone.md, which is not there"]);
    let page =
        File::new("x.md", "`docs/operationjob.md` 3, `host/core/src/{gone,object}`, xdocs/a.md\nhost/gone.rs  I/O");
    assert_eq!(dead_paths(&root(), &page), ["x.md: names host/gone.rs, which is not there"]);
    let page = Page::read("| A1 | g | t | `is_there`, `is_gone` |\n| A2 | g | t | to come |\n| A3 | g | t | soon |\n");
    let wrong = unknown_tests(&page, &[File::new("a.rs", "fn is_there() {}")]);
    assert_eq!(wrong.len(), 2, "{wrong:#?}");
}
