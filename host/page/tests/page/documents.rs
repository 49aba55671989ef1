//! Whole documents: their sizes, and the safety of everything in them.

use std::collections::BTreeSet;
use std::sync::LazyLock;

use oarlock_page::{CONTENT_SECURITY_POLICY, LogAddress, PageAddress, PartQuery, asset_at, assets};

use crate::samples::{SampleJob, SamplePage, all, hostile_name, of_job};

/// The most bytes and nodes of the page of a job.
const MOST_BYTES: usize = 300_000;
const MOST_NODES: usize = 3_000;

static PAGES: LazyLock<Vec<SamplePage>> = LazyLock::new(all);

/// Returns the number of elements and texts of a document, without texts of spaces only.
fn nodes(html: &str) -> usize {
    let texts = html.split('>').filter(|part| part.split('<').next().is_some_and(|text| !text.trim().is_empty()));
    tags(html).len() + texts.count()
}

/// Returns the start tags of a document. maud escapes each `<` and `>` of a text, so each `<` begins a tag.
fn tags(html: &str) -> Vec<&str> {
    let starts = html.split('<').skip(1).filter_map(|part| part.split('>').next());
    starts.filter(|tag| !tag.starts_with(['/', '!'])).collect()
}

/// Returns the values of an attribute in a document.
fn values<'a>(html: &'a str, attribute: &str) -> Vec<&'a str> {
    let begin = format!(" {attribute}=\"");
    let of_tag = |tag: &'a str| Some(tag.split_once(&begin)?.1.split('"').next().unwrap_or_default());
    tags(html).into_iter().filter_map(of_tag).collect()
}

fn with_targets(details: Vec<serde_json::Value>) -> SamplePage {
    of_job("job", &SampleJob::of(details, false).view(), PartQuery::default())
}

#[test]
fn ten_thousand_targets_fit_a_small_page_in_whichever_state_they_are() {
    let states = ["Succeeded", "Failed", "Processing", "Pending"];
    let named = |index: usize, progress: &str| {
        serde_json::json!({"name": format!("web-7d9f8c6b5d-{index:05}"), "progress": progress, "startTime": "2026-07-01T10:00:00Z",
            "error": if progress == "Failed" { serde_json::json!({"reason": "Boom", "message": "m".repeat(256)}) } else { serde_json::Value::Null }})
    };
    let mixed = with_targets((0..10_000).map(|index| named(index, states[index % 4])).collect());
    let failed = with_targets((0..10_000).map(|index| named(index, "Failed")).collect());
    let usual = of_job("job", &SampleJob::new(10_000, false).view(), PartQuery::default());
    for (what, page) in [("mixed", mixed), ("failed", failed), ("usual", usual)] {
        let html = page.html();
        println!("{what}: {} bytes, {} nodes", html.len(), nodes(&html));
        assert!(
            html.len() <= MOST_BYTES && nodes(&html) <= MOST_NODES,
            "{what}: {} bytes, {} nodes",
            html.len(),
            nodes(&html)
        );
    }
}

#[test]
fn each_part_of_a_table_fits_the_same_bounds() {
    let view = SampleJob::new(10_000, false).view();
    for query in ["state=Succeeded", "from=0", "from=9990", "state=Pending&from=3000", "from=99999", "state=None"] {
        let address = format!("/ui/opj/team-a/replace-web-10000?{query}");
        let Some(PageAddress::Object(_, parts)) = PageAddress::parse(&address) else { panic!("{address}") };
        let html = of_job("job", &view, parts).html();
        assert!(html.len() <= MOST_BYTES && nodes(&html) <= MOST_NODES, "{query}: {}", nodes(&html));
    }
}

#[test]
fn each_failure_of_ten_thousand_targets_can_be_found_by_its_shape() {
    let html = of_job("job", &SampleJob::new(10_000, false).view(), PartQuery::default()).html();
    // 62 targets have failed, 100 are blocked, 57 retry: 150 of them are links, and the others are in paths with their shape.
    let links = html.matches("tabindex=\"-1\"><title>").count();
    assert_eq!(links, 150);
    assert!(
        html.contains("url(#p-failed)") && html.contains("aria-label=\"targets 1 to 250: 3 Failed, 247 Succeeded\"")
    );
}

#[test]
fn hostile_texts_make_no_tag_no_attribute_and_no_address() {
    let known: BTreeSet<&str> = [
        "a",
        "bdi",
        "body",
        "button",
        "code",
        "dd",
        "defs",
        "details",
        "div",
        "dl",
        "dt",
        "figcaption",
        "figure",
        "form",
        "g",
        "h1",
        "h2",
        "h3",
        "head",
        "header",
        "html",
        "input",
        "label",
        "li",
        "line",
        "link",
        "main",
        "meta",
        "nav",
        "ol",
        "option",
        "p",
        "path",
        "pattern",
        "pre",
        "rect",
        "script",
        "section",
        "select",
        "span",
        "strong",
        "summary",
        "svg",
        "table",
        "tbody",
        "td",
        "text",
        "th",
        "thead",
        "time",
        "title",
        "tr",
        "ul",
        "use",
    ]
    .into();
    for page in &*PAGES {
        let html = page.html();
        for tag in tags(&html) {
            let name = tag.split([' ', '/']).next().unwrap_or_default();
            assert!(known.contains(name), "{}: <{tag}>", page.file);
            let attributes: String = tag.split('"').step_by(2).collect();
            assert!(!attributes.contains(" on") && !attributes.contains(" style="), "{}: <{tag}>", page.file);
        }
        assert_eq!(html.matches("<script").count(), 2, "{}", page.file);
        for address in values(&html, "href").into_iter().chain(values(&html, "src")).chain(values(&html, "action")) {
            let is_own = address.starts_with("/ui/") || address.starts_with('#');
            let is_output = address == "https://registry.example.com/team-a/web:20260701";
            assert!(is_own || is_output, "{}: {address}", page.file);
            assert!(!address.contains(['<', '>', ' ', '\u{202e}', '\0']), "{}: {address}", page.file);
        }
        let hidden = |c: char| c.is_control() && c != '\n' || ('\u{202a}'..='\u{202e}').contains(&c);
        assert!(!html.contains(hidden), "{}: a control or direction character is not escaped", page.file);
    }
}

#[test]
fn each_link_within_the_page_leads_to_a_page_or_to_an_id() {
    for page in &*PAGES {
        let html = page.html();
        let ids: BTreeSet<&str> = values(&html, "id").into_iter().collect();
        for address in values(&html, "href") {
            if let Some(id) = address.strip_prefix('#') {
                assert!(ids.contains(id), "{}: {address} leads nowhere", page.file);
            } else if address.starts_with("/ui/assets/") {
                assert!(asset_at(address).is_some(), "{}: {address}", page.file);
            } else if address.starts_with("/ui/") {
                let path = address.replace("&amp;", "&");
                let path = path.split('#').next().unwrap_or_default();
                let is_page = PageAddress::parse(path).is_some() || LogAddress::parse(path).is_some();
                assert!(is_page, "{}: {address}", page.file);
            }
        }
    }
}

#[test]
fn ids_are_unique_and_have_no_spaces() {
    for page in &*PAGES {
        let html = page.html();
        let ids = values(&html, "id");
        let unique: BTreeSet<&str> = ids.iter().copied().collect();
        assert_eq!(unique.len(), ids.len(), "{}", page.file);
        assert!(ids.iter().all(|id| !id.is_empty() && !id.contains(char::is_whitespace)), "{}", page.file);
        for fragment in page.content.fragments() {
            assert!(unique.contains(fragment.id.as_str()), "{}: {}", page.file, fragment.id);
            let tag = fragment.html.trim_start_matches('<').split('>').next().unwrap_or_default();
            assert!(tag.contains(&format!("id=\"{}\"", fragment.id)), "{}: <{tag}>", page.file);
        }
    }
}

#[test]
fn the_whole_text_of_a_cut_name_or_message_is_on_the_page_of_its_object() {
    let page = |file: &str| PAGES.iter().find(|page| page.file == file).unwrap().html();
    let hostile = page("job-hostile");
    assert!(hostile.contains(&"w".repeat(150)), "the title of the name");
    assert!(page("target-hostile").matches("&lt;b&gt;bold&lt;/b&gt; \\u{202e}").count() > 2_000);
    assert!(hostile.len() < MOST_BYTES, "{}", hostile.len());
    assert!(page("list-hostile").len() < 20_000, "a list cuts what it shows");
    assert!(hostile_name().len() >= 253);
}

#[test]
fn commands_quote_every_name_for_the_shell() {
    let html = PAGES.iter().find(|page| page.file == "job-hostile").unwrap().html();
    // In HTML, the apostrophe needs no escape.
    assert!(
        html.contains("<code>oarlock watch opj/$'&lt;script&gt;alert(1)&lt;/script&gt;&quot;\\'&gt;"),
        "{html:.3000}"
    );
    for command in html.split("<code>").skip(1).filter_map(|part| part.split("</code>").next()) {
        assert!(!command.contains('\n'), "{command}");
    }
}

#[test]
fn the_scripts_are_small_and_the_policy_allows_nothing_else() {
    let own: usize = assets()
        .iter()
        .filter(|asset| asset.path.contains("/page.") || asset.path.contains("/stream."))
        .map(|asset| asset.body.len())
        .sum();
    assert!(own > 1_000 && own < 15_000, "{own} bytes of JavaScript");
    assert!(!assets().iter().any(|asset| asset.body.contains("eval(") || asset.body.contains("@import")));
    assert!(
        !CONTENT_SECURITY_POLICY.contains("unsafe") && !CONTENT_SECURITY_POLICY.contains("  "),
        "{CONTENT_SECURITY_POLICY}"
    );
    let paths: BTreeSet<&str> = assets().iter().map(|asset| asset.path.as_str()).collect();
    assert_eq!(paths.len(), 5);
}
