//! Cuts the items out of the text of a list while the text arrives.
//!
//! The cutter takes the bytes of a list in pieces. It passes on the text of each complete item, and keeps the list without its items. It
//! holds one item at a time. The caller checks whether an item is valid JSON.

/// The longest text of an item. An API server with default limits stores objects of 1.5 MiB, and may write one character as six.
const MOST_ITEM: usize = 16 * 1024 * 1024;
/// The longest text of a list without its items.
const MOST_ENVELOPE: usize = 1024 * 1024;

/// The reason why the cutter refuses the text of a list.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum NoList {
    /// An item is too large to read.
    #[error("an item is larger than 16 MiB")]
    Item,
    /// The list without its items is too large.
    #[error("the list without its items is larger than 1 MiB")]
    Envelope,
}

/// Cuts the items out of a list.
#[derive(Debug, Default)]
pub(crate) struct ItemCutter {
    depth: usize,
    in_string: bool,
    is_escaped: bool,
    /// The newest string among the fields of the list itself.
    field: Vec<u8>,
    in_items: bool,
    item: Vec<u8>,
    envelope: Vec<u8>,
}

/// The depth inside the object of the list, and the depth inside its array of items. An item is deeper than `ITEMS`.
const OWN: usize = 1;
const ITEMS: usize = 2;

impl ItemCutter {
    /// Takes the next piece, and calls `each` with each complete item.
    ///
    /// # Errors
    /// If an item or the envelope is too large.
    pub(crate) fn push<E: From<NoList>>(
        &mut self,
        piece: &[u8],
        mut each: impl FnMut(&[u8]) -> Result<(), E>,
    ) -> Result<(), E> {
        for byte in piece {
            match byte {
                byte if self.in_string => self.string(*byte),
                b'"' => {
                    self.in_string = true;
                    self.field.clear();
                    self.keep(*byte);
                }
                b'{' | b'[' => {
                    self.in_items |= self.depth == OWN && *byte == b'[' && self.field == b"items";
                    self.depth = self.depth.saturating_add(1);
                    self.keep(*byte);
                }
                b'}' | b']' => {
                    let ends_item = self.in_items && self.depth == ITEMS.saturating_add(1);
                    self.in_items &= self.depth != ITEMS;
                    self.keep(*byte);
                    self.depth = self.depth.saturating_sub(1);
                    if ends_item {
                        each(&self.item)?;
                        self.item.clear();
                    }
                }
                // Commas between the items belong neither to an item nor to the envelope.
                b',' if self.in_items && self.depth == ITEMS => {}
                _ => self.keep(*byte),
            }
            if self.item.len() > MOST_ITEM {
                return Err(NoList::Item.into());
            }
            if self.envelope.len() > MOST_ENVELOPE {
                return Err(NoList::Envelope.into());
            }
        }
        Ok(())
    }

    /// Returns the list without its items.
    pub(crate) fn envelope(&self) -> &[u8] {
        &self.envelope
    }

    fn string(&mut self, byte: u8) {
        self.keep(byte);
        if self.is_escaped {
            self.is_escaped = false;
        } else if byte == b'\\' {
            self.is_escaped = true;
        } else if byte == b'"' {
            self.in_string = false;
        }
        if self.in_string && self.depth == OWN {
            self.field.push(byte);
        }
    }

    fn keep(&mut self, byte: u8) {
        if self.in_items && self.depth > ITEMS { self.item.push(byte) } else { self.envelope.push(byte) }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::{Value, json};

    use super::*;

    fn cut(text: &[u8], piece: usize) -> Result<(Vec<String>, String), NoList> {
        let (mut cutter, mut items) = (ItemCutter::default(), Vec::new());
        for piece in text.chunks(piece.max(1)) {
            cutter.push(piece, |item| {
                items.push(String::from_utf8(item.to_vec()).unwrap());
                Ok::<(), NoList>(())
            })?;
        }
        Ok((items, String::from_utf8(cutter.envelope().to_vec()).unwrap()))
    }

    #[test]
    fn items_come_out_whole_wherever_the_text_is_broken() {
        let text = br#"{"kind":"L","items": [ {"a":"}],\"{"} , {"items":[{"b":[1,{}]}],"c":"\\"} ],"metadata":{"continue":"items","x":["items",[1]]}}"#;
        for piece in 1..=text.len() {
            let (items, envelope) = cut(text, piece).unwrap();
            assert_eq!(items, [r#"{"a":"}],\"{"}"#, r#"{"items":[{"b":[1,{}]}],"c":"\\"}"#], "{piece}");
            let envelope: Value = serde_json::from_str(&envelope).unwrap();
            let meta = json!({"continue": "items", "x": ["items", [1]]});
            assert_eq!(envelope, json!({"kind": "L", "items": [], "metadata": meta}), "{piece}");
        }
    }

    #[test]
    fn a_list_without_items_or_with_null_is_its_rest() {
        for text in [r#"{"items":null,"metadata":{}}"#, r#"{"metadata":{"a":[{}]}}"#, r#"{"items":[]}"#] {
            assert_eq!(cut(text.as_bytes(), 3).unwrap(), (vec![], text.to_owned()));
        }
    }

    #[test]
    fn an_item_that_never_ends_is_not_held() {
        let mut text = br#"{"items":[{"a":""#.to_vec();
        text.resize(MOST_ITEM + 100, b'x');
        assert_eq!(cut(&text, 1 << 16), Err(NoList::Item));
        let mut text = br#"{"a":""#.to_vec();
        text.resize(MOST_ENVELOPE + 100, b'x');
        assert_eq!(cut(&text, 1 << 16), Err(NoList::Envelope));
    }

    proptest! {
        #[test]
        fn every_list_is_cut_into_its_items(
            values in prop::collection::vec("\\PC{0,12}", 0..6), name in "\\PC{0,8}", piece in 1_usize..40,
        ) {
            let items: Vec<Value> = values.iter().map(|text| json!({text.as_str(): [text, {"items": [{}]}, null, 1.5]})).collect();
            let list = json!({"kind": name, "items": items, "metadata": {"continue": name}});
            for text in [serde_json::to_vec(&list).unwrap(), serde_json::to_vec_pretty(&list).unwrap()] {
                let (cut, envelope) = cut(&text, piece).unwrap();
                let cut: Vec<Value> = cut.iter().map(|item| serde_json::from_str(item).unwrap()).collect();
                prop_assert_eq!(&cut, &items);
                let envelope: Value = serde_json::from_str(&envelope).unwrap();
                prop_assert_eq!(envelope, json!({"kind": name, "items": [], "metadata": {"continue": name}}));
            }
        }

        #[test]
        fn no_bytes_make_it_panic(bytes in prop::collection::vec(any::<u8>(), 0..200), piece in 1_usize..40) {
            let mut cutter = ItemCutter::default();
            for piece in bytes.chunks(piece) {
                let _ = cutter.push(piece, |_| Ok::<(), NoList>(()));
            }
        }
    }
}
