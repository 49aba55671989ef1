//! The grid: one cell for each target or node, in their order, also for 10,000 of them.
//!
//! A tile is a fragment with up to 250 cells. A tile draws the cells of one state as one path, whose pattern has the shape of the state.
//! Cells that need attention are links of their own, up to [`MOST_LINKS`].

use std::collections::{BTreeMap, HashSet};
use std::fmt::Write as _;

use maud::{Markup, html};

use crate::mark::Mark;
use crate::page_content::{Fragment, FragmentList};
use crate::text_html::filled;

/// The most cells of a tile. It is also the number of rows of a table that begins at a tile.
pub(crate) const TILE: usize = 250;
/// The most cells that are links.
pub(crate) const MOST_LINKS: usize = 150;
/// The cells in a row of a tile, if there are several tiles, and if there is only one.
const COLUMNS: usize = 50;
const COLUMNS_OF_ONE: usize = 25;
/// The size of a cell in units of the drawing.
const CELL: usize = 10;

/// One cell.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cell<'a> {
    /// The state.
    pub(crate) mark: Mark,
    /// The name; empty if it is unknown.
    pub(crate) name: &'a str,
    /// The state in words.
    pub(crate) state: &'a str,
}

/// Returns the grid of `cells`. `part` is the word for a cell, and `link` returns the address of one cell. `tile` returns the address of
/// the table that begins at a cell.
pub(crate) fn grid(
    cells: &[Cell<'_>],
    part: &str,
    link: &dyn Fn(usize) -> String,
    tile: &dyn Fn(usize) -> String,
) -> FragmentList {
    let linked = linked(cells);
    let columns = if cells.len() > TILE { COLUMNS } else { COLUMNS_OF_ONE };
    let item = |(at, of_tile): (usize, &[Cell<'_>])| {
        let first = at * TILE;
        let drawn = Tile { first, columns, cells: of_tile, linked: &linked };
        let sentence = drawn.sentence(part);
        let html = html! {
            div class="tile" id={ "tile-" (at) } {
                a class="first" href=(tile(first)) aria-label={ "List of " (sentence) } { (first.saturating_add(1)) }
                (drawn.svg(&sentence, link))
            }
        };
        Fragment { id: format!("tile-{at}"), html: html.into_string() }
    };
    let items = cells.chunks(TILE).enumerate().map(item).collect();
    let size = match cells.len().div_ceil(TILE) {
        0 | 1 => "few",
        2..=6 => "some",
        _ => "many",
    };
    FragmentList {
        id: "tiles",
        before: format!("<div id=\"tiles\" class=\"tiles {size}\">"),
        items,
        after: "</div>".to_owned(),
    }
}

/// Returns the cells that are links: the first ones that need attention, blocked ones before failed ones.
fn linked(cells: &[Cell<'_>]) -> HashSet<usize> {
    let rank = |mark| match mark {
        Mark::Blocked => 0,
        Mark::Retrying => 1,
        _ => 2,
    };
    let needing = cells.iter().enumerate().filter(|(_, cell)| cell.mark.needs_attention());
    let mut found: Vec<(u8, usize)> = needing.map(|(index, cell)| (rank(cell.mark), index)).collect();
    found.sort_unstable();
    found.into_iter().take(MOST_LINKS).map(|(_, index)| index).collect()
}

struct Tile<'a> {
    first: usize,
    columns: usize,
    cells: &'a [Cell<'a>],
    linked: &'a HashSet<usize>,
}

impl Tile<'_> {
    /// Returns a sentence such as `targets 1 to 250: 240 Succeeded, 10 In flight`.
    fn sentence(&self, part: &str) -> String {
        let mut counts: BTreeMap<(Mark, &str), usize> = BTreeMap::new();
        for cell in self.cells {
            *counts.entry((cell.mark, cell.state)).or_default() += 1;
        }
        let counts: Vec<String> = counts.iter().map(|((_, state), count)| format!("{count} {state}")).collect();
        let last = self.first.saturating_add(self.cells.len());
        format!("{part}s {} to {last}: {}", self.first.saturating_add(1), counts.join(", "))
    }

    fn svg(&self, sentence: &str, link: &dyn Fn(usize) -> String) -> Markup {
        let rows = self.cells.len().div_ceil(self.columns).max(1);
        let (width, height) = (self.columns * CELL, rows * CELL);
        let indexed = || self.cells.iter().enumerate().map(|(at, cell)| (at, self.first + at, cell));
        let links: Vec<_> = indexed().filter(|(_, index, _)| self.linked.contains(index)).collect();
        let role = if links.is_empty() { "img" } else { "group" };
        html! {
            svg viewBox={ "0 0 " (width) " " (height) } role=(role) aria-label=(sentence) data-first=(self.first)
                data-count=(self.cells.len()) data-columns=(self.columns) {
                @for (mark, path) in self.paths() {
                    path stroke={ "url(#p-" (mark.key()) ")" } stroke-width=(CELL) d=(path) {}
                }
                @for (at, index, cell) in links {
                    @let label = filled(cell.name).map_or_else(|| format!("#{index}"), crate::text_html::label);
                    a href=(link(index)) tabindex="-1" {
                        title { (label) ": " (cell.state) }
                        use href={ "#g-" (cell.mark.key()) } x=(at % self.columns * CELL) y=(at / self.columns * CELL) {}
                    }
                }
            }
        }
    }

    /// Returns the path of each state: lines along the middle of the cells, which a stroke of the height of a cell fills.
    fn paths(&self) -> BTreeMap<Mark, String> {
        let mut paths: BTreeMap<Mark, String> = BTreeMap::new();
        for (row, cells) in self.cells.chunks(self.columns).enumerate() {
            let is_linked = |at: &usize| self.linked.contains(&(self.first + row * self.columns + at));
            let mark = |at: &usize| cells.get(*at).map(|cell| cell.mark).filter(|_| !is_linked(at));
            let mut at = 0;
            while at < cells.len() {
                let this = mark(&at);
                let length = (at..cells.len()).take_while(|other| mark(other) == this).count();
                if let Some(this) = this {
                    let path = paths.entry(this).or_default();
                    let _always = write!(path, "M{} {}h{}", at * CELL, row * CELL + CELL / 2, length * CELL);
                }
                at += length.max(1);
            }
        }
        paths
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cell(mark: Mark) -> Cell<'static> {
        Cell { mark, name: "web", state: mark.key() }
    }

    #[test]
    fn cells_of_one_state_are_one_path_and_those_in_need_are_links() {
        let mut cells = vec![cell(Mark::Succeeded); 60];
        cells[3] = cell(Mark::Failed);
        cells[30] = cell(Mark::Running);
        let list = grid(&cells, "target", &|index| format!("?target={index}"), &|from| format!("?from={from}"));
        let html = &list.items[0].html;
        assert!(html.contains(r#"d="M0 5h30M40 5h210M0 15h50M60 15h190M0 25h100""#), "{html}");
        assert!(
            html.contains(
                r##"<a href="?target=3" tabindex="-1"><title>web: failed</title><use href="#g-failed" x="30" y="0">"##
            ),
            "{html}"
        );
        assert!(html.contains("targets 1 to 60: 1 failed, 1 running, 58 succeeded"), "{html}");
    }

    #[test]
    fn the_links_of_ten_thousand_failures_are_bounded_and_the_others_keep_their_shape() {
        let cells = vec![cell(Mark::Failed); 10_000];
        let list = grid(&cells, "target", &|_| String::new(), &|_| String::new());
        let html: String = list.items.iter().map(|item| item.html.as_str()).collect();
        assert_eq!((list.items.len(), html.matches("<use").count()), (40, MOST_LINKS));
        assert!(html.contains("url(#p-failed)"));
    }
}
