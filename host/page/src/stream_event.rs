//! The events of a stream: their meaning, and their bytes on the wire.
//!
//! A browser opens one stream for all of its tabs: `GET /ui/stream?of=ADDRESS&at=VERSION&of=...`. Each `of` is an address of the page,
//! and the `at` after it is the version that the tab shows. The server answers with `text/event-stream`:
//!
//! - It sends `beat` at once, so that the browser knows that no proxy holds the stream back, and then every 15 s.
//! - For each address whose page has another version than `at`, it sends `resync`. From then on it sends the changes of each page
//!   ([`PageContent::changes_since`](crate::PageContent::changes_since)).
//! - It sends `end` if the viewer may no longer see a page, or if the login has expired.
//!
//! Each event has a name and one line of JSON. `of` in the JSON is the place of the address in the query, from 0. A browser that hears
//! nothing for 40 s opens a new stream. The browser never relies on `Last-Event-ID`, so events have no id.

use serde::Serialize;
use serde_json::json;

/// One event of a stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StreamEvent {
    /// An element changed or is new. Wire: `event: fragment`, `{"of": 0, "id": ..., "html": ..., "in": ...}`. `in` is the id of the
    /// element to which the browser appends a new element, and is absent for an element outside a list.
    Fragment {
        /// The place of the address.
        of: usize,
        /// The id of the element.
        id: String,
        /// The whole element.
        html: String,
        /// The id of the element's parent, for an element of a list.
        list: Option<String>,
    },
    /// An element of a list is gone. Wire: `event: gone`, `{"of": 0, "id": ...}`.
    Gone {
        /// The place of the address.
        of: usize,
        /// The id of the element.
        id: String,
    },
    /// The children of a list have another order. Wire: `event: order`, `{"of": 0, "in": ..., "ids": [...]}`.
    Order {
        /// The place of the address.
        of: usize,
        /// The id of the list.
        list: String,
        /// The ids of all children, in their order.
        ids: Vec<String>,
    },
    /// The page has another title. Wire: `event: title`, `{"of": 0, "text": ...}`.
    Title {
        /// The place of the address.
        of: usize,
        /// The title, as text.
        text: String,
    },
    /// The events before this one have brought the page to a version. Wire: `event: at`, `{"of": 0, "at": ...}`.
    At {
        /// The place of the address.
        of: usize,
        /// The version.
        at: String,
    },
    /// The browser must load the page anew. Wire: `event: resync`, `{"of": 0}`.
    Resync {
        /// The place of the address.
        of: usize,
    },
    /// The stream of one address ends, or the whole stream without an address. The browser loads the pages anew, which then show why. It
    /// opens no new stream for them. Wire: `event: end`, `{"of": 0, "text": ...}`.
    End {
        /// The place of the address; absent for the whole stream.
        of: Option<usize>,
        /// A sentence for the viewer.
        text: String,
    },
    /// The stream works. Wire: `event: beat`, `{}`.
    Beat,
}

#[derive(Serialize)]
struct FragmentFields<'a> {
    of: usize,
    id: &'a str,
    html: &'a str,
    #[serde(rename = "in", skip_serializing_if = "Option::is_none")]
    list: Option<&'a str>,
}

impl StreamEvent {
    /// Returns the bytes of the event, which end with an empty line.
    pub fn wire(&self) -> String {
        let (name, data) = match self {
            Self::Fragment { of, id, html, list } => {
                let fields = FragmentFields { of: *of, id, html, list: list.as_deref() };
                // Texts and numbers always have a form in JSON.
                ("fragment", serde_json::to_string(&fields).unwrap_or_default())
            }
            Self::Gone { of, id } => ("gone", json!({"of": of, "id": id}).to_string()),
            Self::Order { of, list, ids } => ("order", json!({"of": of, "in": list, "ids": ids}).to_string()),
            Self::Title { of, text } => ("title", json!({"of": of, "text": text}).to_string()),
            Self::At { of, at } => ("at", json!({"of": of, "at": at}).to_string()),
            Self::Resync { of } => ("resync", json!({"of": of}).to_string()),
            Self::End { of, text } => ("end", json!({"of": of, "text": text}).to_string()),
            Self::Beat => ("beat", "{}".to_owned()),
        };
        format!("event: {name}\ndata: {data}\n\n")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_is_one_line_of_json_whatever_its_text_holds() {
        let html = "<p>a\nb\r\n\n\u{2028}event: end</p>".to_owned();
        let event = StreamEvent::Fragment { of: 1, id: "p".into(), html: html.clone(), list: Some("l".into()) };
        let wire = event.wire();
        assert_eq!(wire.lines().collect::<Vec<_>>()[0], "event: fragment");
        assert_eq!((wire.lines().count(), wire.matches('\r').count()), (3, 0));
        let data: serde_json::Value =
            serde_json::from_str(wire.lines().nth(1).unwrap().trim_start_matches("data: ")).unwrap();
        assert_eq!(data, json!({"of": 1, "id": "p", "html": html, "in": "l"}));
        assert_eq!(StreamEvent::Beat.wire(), "event: beat\ndata: {}\n\n");
        assert!(StreamEvent::End { of: None, text: "x".into() }.wire().contains(r#"{"of":null,"text":"x"}"#));
    }
}
