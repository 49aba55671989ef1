//! The table of an object's targets, steps or nodes: one window of rows, which an address chooses.

use maud::{Markup, PreEscaped, html};

use crate::address::{ObjectAddress, PageAddress, PartQuery};
use crate::mark::Mark;
use crate::page_content::{Fragment, FragmentList};
use crate::text_html::label;

/// The most rows of a window.
pub(crate) const ROWS: usize = 50;

/// The parts of an object, as the table needs them.
pub(crate) struct PartTable<'a> {
    pub(crate) object: &'a ObjectAddress,
    pub(crate) query: &'a PartQuery,
    /// The state of each part in words, in the order of the object.
    pub(crate) states: Vec<(Mark, &'static str)>,
    /// The places of the parts by need.
    pub(crate) by_need: Vec<usize>,
    /// The titles of the columns.
    pub(crate) columns: &'static [&'static str],
}

impl PartTable<'_> {
    /// Returns the places of the rows to show, and the number of rows from which they are chosen.
    fn window(&self) -> (Vec<usize>, usize) {
        let skip = self.query.from.unwrap_or(0);
        if !self.query.state.is_empty() {
            let of_state = |at: &usize| self.states.get(*at).is_some_and(|(_, state)| *state == self.query.state);
            let found: Vec<usize> = (0..self.states.len()).filter(of_state).collect();
            return (found.iter().copied().skip(skip).take(ROWS).collect(), found.len());
        }
        match self.query.from {
            Some(from) => ((from..self.states.len()).take(ROWS).collect(), self.states.len()),
            None => (self.by_need.iter().copied().take(ROWS).collect(), self.states.len()),
        }
    }

    fn address(&self, state: &str, from: Option<usize>) -> String {
        PageAddress::Object(self.object.clone(), PartQuery { state: state.to_owned(), from }).to_string()
    }

    /// Returns the links to the parts in each state, with their numbers. The element is a fragment with the id `legend`.
    pub(crate) fn legend(&self) -> Fragment {
        let mut counts = std::collections::BTreeMap::<(Mark, &str), usize>::new();
        for state in &self.states {
            *counts.entry(*state).or_default() += 1;
        }
        let html = html! {
            nav id="legend" class="legend" aria-label={ (self.object.kind.part()) "s by state" } {
                a href=(self.address("", None)) aria-current=[self.query.state.is_empty().then_some("true")] { "All " (self.states.len()) }
                @for ((mark, state), count) in &counts {
                    a href=(self.address(state, None)) aria-current=[(self.query.state == *state).then_some("true")] {
                        (mark.with_word(state)) " " (count)
                    }
                }
            }
        };
        Fragment { id: "legend".to_owned(), html: html.into_string() }
    }

    /// Returns the table. `row` returns the cells after the first one of a part, and `id` the id of its row.
    pub(crate) fn rows(&self, row: &dyn Fn(usize) -> Option<Fragment>) -> FragmentList {
        let (window, _) = self.window();
        let mut items: Vec<Fragment> = window.into_iter().filter_map(row).collect();
        if items.is_empty() {
            let html =
                html! { tr id="no-rows" { td colspan=(self.columns.len()) class="muted" { "There are none." } } };
            items.push(Fragment { id: "no-rows".to_owned(), html: html.into_string() });
        }
        let open = html! {
            h2 id="parts-title" { (self.title()) }
            (PreEscaped("<div class=\"scroll\" tabindex=\"0\" role=\"group\" aria-labelledby=\"parts-title\"><table>"))
            thead { tr { @for column in self.columns { th scope="col" { (column) } } } }
        };
        FragmentList {
            id: "parts",
            before: format!(
                "<section class=\"panel\" aria-labelledby=\"parts-title\">{}<tbody id=\"parts\">",
                open.into_string()
            ),
            items,
            after: "</tbody></table></div></section>".to_owned(),
        }
    }

    fn title(&self) -> String {
        let part = self.object.kind.part();
        let parts =
            format!("{}{}s", part.get(..1).unwrap_or_default().to_uppercase(), part.get(1..).unwrap_or_default());
        match (self.query.state.as_str(), self.query.from) {
            ("", None) => format!("{parts} by need for attention"),
            ("", Some(from)) => format!("{parts} from {}", from.saturating_add(1)),
            (state, _) => format!("{parts} in state {}", label(state)),
        }
    }

    /// Returns the place of the window, and the links to the windows before and after it. The element is a fragment with the id `pager`.
    pub(crate) fn pager(&self) -> Markup {
        let (window, of) = self.window();
        let skip = self.query.from.unwrap_or(0).min(of);
        let last = skip.saturating_add(window.len());
        let before = skip.saturating_sub(ROWS);
        let (state, part) = (self.query.state.as_str(), self.object.kind.part());
        let is_by_need = state.is_empty() && self.query.from.is_none();
        html! {
            nav id="pager" class="pager" aria-label={ "Pages of " (part) "s" } {
                @if window.is_empty() { span { "No " (part) "s" } }
                @else if is_by_need { span { (window.len()) " of " (of) } }
                @else { span { (skip.saturating_add(1)) " to " (last) " of " (of) } }
                @if skip > 0 { " " a href=(self.address(state, Some(before))) rel="prev" { "Previous " (ROWS) } }
                @if last < of && !is_by_need { " " a href=(self.address(state, Some(last))) rel="next" { "Next " (ROWS) } }
                @if is_by_need && of > window.len() { " " a href=(self.address("", Some(0))) { "All in order" } }
                @if !is_by_need { " " a href=(self.address("", None)) { "By need" } }
            }
        }
    }
}
