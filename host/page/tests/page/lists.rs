//! Lists: filters, windows, and the order of rows.

use oarlock_page::{JobQuery, ListState, ObjectKind, PageAddress, PageContent, ROWS, list_content};

use crate::samples::{after, listed};

fn rows(content: &PageContent) -> Vec<String> {
    let rows = content.fragments().filter(|fragment| fragment.id.starts_with("row-"));
    rows.map(|fragment| fragment.html.clone()).collect()
}

fn list(count: usize, address: &str) -> PageContent {
    let Some(PageAddress::Jobs(query)) = PageAddress::parse(address) else { panic!("{address} is no list") };
    list_content(&listed(count), &query, after(3_600))
}

#[test]
fn a_window_has_at_most_one_hundred_rows_and_links_to_the_next_ones() {
    let first = list(2_500, "/ui/");
    assert_eq!(rows(&first).len(), ROWS);
    let pager = first.fragments().find(|fragment| fragment.id == "pager").unwrap();
    assert!(pager.html.contains("1 to 100 of 2505") && pager.html.contains("href=\"/ui/?skip=100\""), "{}", pager.html);
    let last = list(2_500, "/ui/?skip=2500");
    assert_eq!(rows(&last).len(), 5);
    assert_eq!(rows(&list(2_500, "/ui/?skip=99999")).len(), 0);
    let shared: Vec<String> =
        rows(&list(2_500, "/ui/?skip=100")).into_iter().filter(|row| rows(&first).contains(row)).collect();
    assert_eq!(shared, [""; 0]);
}

#[test]
fn filters_stay_in_the_address_and_choose_the_rows() {
    let all = rows(&list(70, "/ui/")).len();
    let of_kind = rows(&list(70, "/ui/?kind=jf"));
    assert!(of_kind.len() == 10 && of_kind.iter().all(|row| row.contains("/ui/jf/")), "{}", of_kind.len());
    let of_team = rows(&list(70, "/ui/?namespace=team-b,payments"));
    assert!(!of_team.is_empty() && of_team.len() < all && of_team.iter().all(|row| !row.contains("team-a")));
    let failed = list(70, "/ui/?state=failed&q=REPLACE");
    assert!(rows(&failed).iter().all(|row| row.contains("s-failed")), "only failed ones");
    let form = failed.fragments().find(|fragment| fragment.id == "filters").unwrap();
    assert!(
        form.html.contains("<option value=\"failed\" selected>") && form.html.contains("value=\"REPLACE\""),
        "{}",
        form.html
    );
}

#[test]
fn what_needs_attention_comes_first_and_then_what_is_new() {
    let rows = rows(&list(40, "/ui/?kind=opj"));
    let place = |name: &str| rows.iter().position(|row| row.contains(name)).unwrap();
    assert!(place("replace-web-0038") < place("replace-web-0000"), "38 has failed, and 0 has succeeded");
    assert!(place("replace-web-0003") < place("replace-web-0038"), "3 is newer");
    let attention = list_content(
        &listed(40),
        &JobQuery { state: Some(ListState::Attention), ..JobQuery::default() },
        after(48 * 3_600),
    );
    let left: Vec<String> = self::rows(&attention);
    assert!(
        !left.is_empty() && left.iter().all(|row| !row.contains("replace-web-0038")),
        "a failure of yesterday is old"
    );
}

#[test]
fn an_empty_list_shows_the_command_that_creates_the_first_object() {
    for kind in ObjectKind::ALL {
        let content = list_content(&[], &JobQuery { kind: Some(kind), ..JobQuery::default() }, after(0));
        let empty = content.fragments().find(|fragment| fragment.id == "empty").unwrap();
        assert!(empty.html.contains("<code>") && empty.html.contains(kind.word()), "{}", empty.html);
    }
    let filtered = list(5, "/ui/?q=nothing");
    let empty = filtered.fragments().find(|fragment| fragment.id == "empty").unwrap();
    assert!(empty.html.contains("Clear the filters"), "{}", empty.html);
}
