//! The content of a page: elements with stable ids, their version, and the changes from one content to the next.
//!
//! A page is the `main` element that a content makes. The elements with an id in it are *fragments*. A later content of the same address
//! yields the fragments that changed, so that a server sends only these.

use std::collections::{HashMap, HashSet};
use std::hash::{DefaultHasher, Hash as _, Hasher as _};

use maud::{DOCTYPE, Markup, PreEscaped, html};

use crate::login_form::PageRefusal;
use crate::stream_event::StreamEvent;

/// One element of a page with a stable id.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fragment {
    /// The id, unique in the page.
    pub id: String,
    /// The whole element, with its id.
    pub html: String,
}

/// A part of a page.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Piece {
    /// One fragment.
    One(Fragment),
    /// A list of fragments inside other elements.
    Many(FragmentList),
}

/// A list of fragments that are the children of one element.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct FragmentList {
    /// The id of the element whose children are the fragments.
    pub(crate) id: &'static str,
    /// The HTML before the first fragment.
    pub(crate) before: String,
    /// The fragments.
    pub(crate) items: Vec<Fragment>,
    /// The HTML after the last fragment.
    pub(crate) after: String,
}

/// The content of one page.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PageContent {
    title: String,
    pieces: Vec<Piece>,
    refusal: Option<PageRefusal>,
}

impl PageContent {
    /// Returns a content without pieces. The title is text, not HTML.
    pub(crate) fn new(title: impl Into<String>) -> Self {
        Self { title: title.into(), pieces: Vec::new(), refusal: None }
    }

    /// Returns the content as one that shows only the reason of a refusal.
    pub(crate) fn refused(self, refusal: PageRefusal) -> Self {
        Self { refusal: Some(refusal), ..self }
    }

    /// Returns the reason why the page has nothing to show. `None` for a page with content. A server derives the status of its answer from it.
    pub fn refusal(&self) -> Option<&PageRefusal> {
        self.refusal.as_ref()
    }

    /// Adds one element. `html` must have the id.
    pub(crate) fn with(mut self, id: &str, html: Markup) -> Self {
        self.pieces.push(Piece::One(Fragment { id: id.to_owned(), html: html.into_string() }));
        self
    }

    /// Adds a list of elements.
    pub(crate) fn with_list(mut self, list: FragmentList) -> Self {
        self.pieces.push(Piece::Many(list));
        self
    }

    /// Returns the title of the page, without the name of the product.
    pub fn title(&self) -> &str {
        &self.title
    }

    /// Returns all fragments, in the order of the page.
    pub fn fragments(&self) -> impl Iterator<Item = &Fragment> {
        self.pieces.iter().flat_map(|piece| match piece {
            Piece::One(fragment) => std::slice::from_ref(fragment).iter(),
            Piece::Many(list) => list.items.iter(),
        })
    }

    /// Returns the version of the page: a digest of everything that it shows. Equal contents have equal versions, also in other
    /// processes of the same release.
    pub fn version(&self) -> String {
        let mut hasher = DefaultHasher::new();
        self.title.hash(&mut hasher);
        for piece in &self.pieces {
            match piece {
                Piece::One(fragment) => fragment.html.hash(&mut hasher),
                Piece::Many(list) => {
                    (&list.before, &list.after).hash(&mut hasher);
                    list.items.iter().for_each(|item| item.html.hash(&mut hasher));
                }
            }
        }
        format!("{:016x}", hasher.finish())
    }

    /// Returns the `main` element. Its attribute `data-at` has the version.
    pub(crate) fn main(&self) -> Markup {
        html! {
            main id="main" tabindex="-1" data-at=(self.version()) {
                @for piece in &self.pieces {
                    @match piece {
                        Piece::One(fragment) => (PreEscaped(&fragment.html)),
                        Piece::Many(list) => {
                            (PreEscaped(&list.before))
                            @for item in &list.items { (PreEscaped(&item.html)) }
                            (PreEscaped(&list.after))
                        }
                    }
                }
            }
        }
    }

    /// Returns the events that turn the page `before` into this page: changed, new and removed fragments, the new order of lists, and the
    /// new version. Returns none if nothing changed. If the pages have other parts, returns one [`StreamEvent::Resync`]. `of` is the place
    /// of the address in the query of the stream, from 0.
    pub fn changes_since(&self, before: &Self, of: usize) -> Vec<StreamEvent> {
        if self == before {
            return Vec::new();
        }
        let mut events = Vec::new();
        if self.title != before.title {
            events.push(StreamEvent::Title { of, text: self.title.clone() });
        }
        let mut old_pieces = before.pieces.iter();
        for piece in &self.pieces {
            match (piece, old_pieces.next()) {
                (Piece::One(now), Some(Piece::One(old))) if now.id == old.id => {
                    events.extend((now.html != old.html).then(|| fragment(of, now, None)));
                }
                (Piece::Many(now), Some(Piece::Many(old))) if now.is_like(old) => {
                    events.extend(now.changes_since(old, of));
                }
                _ => return vec![StreamEvent::Resync { of }],
            }
        }
        if old_pieces.next().is_some() {
            return vec![StreamEvent::Resync { of }];
        }
        events.push(StreamEvent::At { of, at: self.version() });
        events
    }
}

impl FragmentList {
    fn is_like(&self, other: &Self) -> bool {
        (self.id, &self.before, &self.after) == (other.id, &other.before, &other.after)
    }

    fn changes_since(&self, before: &Self, of: usize) -> Vec<StreamEvent> {
        let old: HashMap<&str, &str> = before.items.iter().map(|item| (item.id.as_str(), item.html.as_str())).collect();
        let changed = self.items.iter().filter(|item| old.get(item.id.as_str()) != Some(&item.html.as_str()));
        let mut events: Vec<StreamEvent> = changed.map(|item| fragment(of, item, Some(self.id))).collect();
        let kept: HashSet<&str> = self.items.iter().map(|item| item.id.as_str()).collect();
        let gone = before.items.iter().filter(|item| !kept.contains(item.id.as_str()));
        events.extend(gone.map(|item| StreamEvent::Gone { of, id: item.id.clone() }));
        // A client appends a new fragment, and removes a gone one. It needs the order only if this gives another one.
        let is_new = |item: &&Fragment| !old.contains_key(item.id.as_str());
        let stayed = before.items.iter().filter(|item| kept.contains(item.id.as_str()));
        let appended = stayed.chain(self.items.iter().filter(is_new)).map(|item| item.id.as_str());
        if !appended.eq(self.items.iter().map(|item| item.id.as_str())) {
            let ids = self.items.iter().map(|item| item.id.clone()).collect();
            events.push(StreamEvent::Order { of, list: self.id.to_owned(), ids });
        }
        events
    }
}

fn fragment(of: usize, fragment: &Fragment, list: Option<&str>) -> StreamEvent {
    let Fragment { id, html } = fragment.clone();
    StreamEvent::Fragment { of, id, html, list: list.map(str::to_owned) }
}

/// Returns a document with this head and body.
pub(crate) fn html_document(head: &Markup, body: &Markup) -> String {
    html! { (DOCTYPE) html lang="en" { head { (head) } body { (body) } } }.into_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn content(rows: &[(&str, &str)]) -> PageContent {
        let item = |(id, html): &(&str, &str)| Fragment { id: (*id).to_owned(), html: (*html).to_owned() };
        let items = rows.iter().map(item).collect();
        let list = FragmentList { id: "rows", before: "<ul id=rows>".into(), items, after: "</ul>".into() };
        PageContent::new("t").with("head", html! { h1 id="head" { "x" } }).with_list(list)
    }

    fn wire(before: &[(&str, &str)], now: &[(&str, &str)]) -> Vec<String> {
        let now = content(now);
        let events = now.changes_since(&content(before), 2);
        let words = |event: &StreamEvent| match event {
            StreamEvent::Fragment { id, list, .. } => format!("fragment {id} in {}", list.as_deref().unwrap_or("-")),
            StreamEvent::Gone { id, .. } => format!("gone {id}"),
            StreamEvent::Order { ids, .. } => format!("order {}", ids.join(",")),
            StreamEvent::At { at, .. } => format!("at {}", if *at == now.version() { "now" } else { "?" }),
            other => format!("{other:?}"),
        };
        events.iter().map(words).collect()
    }

    #[test]
    fn only_changed_fragments_become_events() {
        assert_eq!(wire(&[("a", "1"), ("b", "1")], &[("a", "1"), ("b", "1")]), [""; 0]);
        assert_eq!(wire(&[("a", "1"), ("b", "1")], &[("a", "1"), ("b", "2")]), ["fragment b in rows", "at now"]);
    }

    #[test]
    fn the_order_is_told_only_if_a_client_would_get_another_one() {
        assert_eq!(wire(&[("a", "1")], &[("a", "1"), ("b", "1")]), ["fragment b in rows", "at now"]);
        assert_eq!(wire(&[("a", "1")], &[("b", "1"), ("a", "1")]), ["fragment b in rows", "order b,a", "at now"]);
        assert_eq!(wire(&[("a", "1"), ("b", "1")], &[("b", "1")]), ["gone a", "at now"]);
        assert_eq!(wire(&[("a", "1"), ("b", "1")], &[("b", "1"), ("a", "1")]), ["order b,a", "at now"]);
    }

    #[test]
    fn pages_with_other_parts_are_loaded_anew() {
        let bare = PageContent::new("t").with("head", html! { h1 id="head" { "x" } });
        assert_eq!(bare.changes_since(&content(&[]), 0), [StreamEvent::Resync { of: 0 }]);
        assert_eq!(content(&[]).changes_since(&bare, 0), [StreamEvent::Resync { of: 0 }]);
    }
}
