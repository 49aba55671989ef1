//! Lists, read page by page.
//!
//! Items are read from a page one at a time, so that a page of pods is never held as a whole tree. No resourceVersion is
//! named, which makes each list consistent and keeps the API server's caches out of it.

use std::fmt;

use kube::core::params::ListParams;
use serde::Deserialize;
use serde::de::{DeserializeSeed, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::Value;

use crate::live_reads::refused;
use crate::transport::call::{ApiCall, RequestError, Transport};
use crate::transport::path::{PathError, Resource};
use crate::watch::projection::Projection;

/// Items in a page: a page of pods is about 3 MB.
const PAGE: u32 = 500;

/// The objects to list.
#[derive(Clone, Copy)]
pub(crate) struct Collection<'a> {
    pub(crate) resource: &'a Resource,
    /// All namespaces where `None`.
    pub(crate) namespace: Option<&'a str>,
    /// A label selector.
    pub(crate) labels: Option<&'a str>,
    /// A field selector.
    pub(crate) fields: Option<&'a str>,
}

/// A whole list as of one version.
#[derive(Debug)]
pub(crate) struct Listed<T> {
    pub(crate) items: Vec<T>,
    pub(crate) version: String,
}

impl<T> Listed<T> {
    /// The version as a number.
    pub(crate) fn number(&self) -> u64 {
        self.version.parse().unwrap_or(0)
    }
}

/// The reason why there is no list.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ListError {
    #[error("failed to build the path of {resource}")]
    Path {
        resource: String,
        #[source]
        source: PathError,
    },
    #[error("the API server does not know {resource}: install their CustomResourceDefinition")]
    Unknown { resource: String },
    #[error("failed to list {resource}")]
    List {
        resource: String,
        #[source]
        source: RequestError,
    },
}

impl ListError {
    /// True where the API server refused the list, and will again.
    pub(crate) fn is_refused(&self) -> bool {
        match self {
            Self::Path { .. } | Self::Unknown { .. } => true,
            Self::List { source, .. } => refused(source),
        }
    }
}

impl Transport {
    /// Reads a whole list, keeping the result of `pick` for each item. A list whose continuation expired is read once more
    /// from its beginning.
    pub(crate) async fn list<T>(
        &self,
        from: Collection<'_>,
        projection: &Projection,
        pick: impl Fn(Value) -> Option<T>,
    ) -> Result<Listed<T>, ListError> {
        self.list_until(from, projection, pick, usize::MAX).await
    }

    /// The same, but no further page is read once more than `most` items were kept.
    pub(crate) async fn list_until<T>(
        &self,
        from: Collection<'_>,
        projection: &Projection,
        pick: impl Fn(Value) -> Option<T>,
        most: usize,
    ) -> Result<Listed<T>, ListError> {
        match self.pages(from, projection, &pick, most).await {
            Err(ListError::List { source, .. }) if source.is(410) => self.pages(from, projection, &pick, most).await,
            listed => listed,
        }
    }

    async fn pages<T>(
        &self,
        from: Collection<'_>,
        projection: &Projection,
        pick: impl Fn(Value) -> Option<T>,
        most: usize,
    ) -> Result<Listed<T>, ListError> {
        let resource = from.resource.plural.as_str();
        let path = |source| ListError::Path { resource: resource.to_owned(), source };
        let collection = kube::core::Request::new(from.resource.collection(from.namespace).map_err(path)?);
        let mut listed = Listed { items: Vec::new(), version: String::new() };
        let mut token = None;
        loop {
            let params = ListParams {
                limit: Some(PAGE),
                continue_token: token,
                label_selector: from.labels.map(str::to_owned),
                field_selector: from.fields.map(str::to_owned),
                ..ListParams::default()
            };
            let failed = |source| ListError::List { resource: resource.to_owned(), source };
            let call = ApiCall { verb: "list", resource, request: collection.list(&params) };
            let reply = match self.send(call).await {
                Err(error) if error.is(404) => return Err(ListError::Unknown { resource: resource.to_owned() }),
                reply => reply.map_err(failed)?,
            };
            let meta = page(&reply, projection, |item| listed.items.extend(pick(item)));
            let meta = meta.map_err(RequestError::Unreadable).map_err(failed)?;
            // The first page names the version; later ones continue it.
            if listed.version.is_empty() {
                listed.version = meta.resource_version;
            }
            match meta.next {
                Some(next) if !next.is_empty() && listed.items.len() <= most => token = Some(next),
                _ => return Ok(listed),
            }
        }
    }
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct PageMeta {
    resource_version: String,
    #[serde(rename = "continue")]
    next: Option<String>,
}

fn page(reply: &[u8], projection: &Projection, mut each: impl FnMut(Value)) -> Result<PageMeta, serde_json::Error> {
    let mut reader = serde_json::Deserializer::from_slice(reply);
    let meta = Page(projection, &mut each).deserialize(&mut reader)?;
    reader.end()?;
    Ok(meta)
}

struct Page<'a>(&'a Projection, &'a mut dyn FnMut(Value));
struct Items<'a>(&'a Projection, &'a mut dyn FnMut(Value));

impl<'de> DeserializeSeed<'de> for Page<'_> {
    type Value = PageMeta;
    fn deserialize<D: Deserializer<'de>>(self, reader: D) -> Result<PageMeta, D::Error> {
        reader.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for Page<'_> {
    type Value = PageMeta;
    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list with metadata and items")
    }
    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<PageMeta, A::Error> {
        let mut meta = PageMeta::default();
        while let Some(key) = map.next_key::<String>()? {
            match key.as_str() {
                "metadata" => meta = map.next_value()?,
                "items" => map.next_value_seed(Items(self.0, &mut *self.1))?,
                _ => {
                    map.next_value::<IgnoredAny>()?;
                }
            }
        }
        Ok(meta)
    }
}

impl<'de> DeserializeSeed<'de> for Items<'_> {
    type Value = ();
    fn deserialize<D: Deserializer<'de>>(self, reader: D) -> Result<(), D::Error> {
        // An empty list of some servers is `null`.
        reader.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Items<'_> {
    type Value = ();
    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a sequence of objects")
    }
    fn visit_unit<E>(self) -> Result<(), E> {
        Ok(())
    }
    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<(), A::Error> {
        while let Some(item) = seq.next_element_seed(self.0)? {
            (self.1)(item);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn items_are_picked_one_at_a_time_and_the_rest_is_skipped() {
        let reply =
            br#"{"kind":"PodList","items":[{"a":1},{"a":2}],"metadata":{"resourceVersion":"7","continue":"c"}}"#;
        let mut seen = Vec::new();
        let meta = page(reply, &Projection::everything(), |item| seen.push(item)).unwrap();
        assert_eq!((meta.resource_version.as_str(), meta.next.as_deref(), seen.len()), ("7", Some("c"), 2));
    }

    #[test]
    fn an_empty_list_may_be_null() {
        assert_eq!(
            page(br#"{"items":null,"metadata":{}}"#, &Projection::everything(), |_| panic!("no item")).unwrap().next,
            None
        );
    }
}
