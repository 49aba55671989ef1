//! Reads lists page by page.
//!
//! The items of a page are parsed one at a time while the page arrives, so the host never holds a whole page as text or as a tree. The
//! requests name no resourceVersion, so that each list is consistent and does not come from the caches of the API server.

use futures::StreamExt;
use kube::core::params::ListParams;
use serde::Deserialize;
use serde::de::Error as _;
use serde_json::Value;
use tokio::time::timeout;

use crate::transport::call::{ApiCall, RequestError, Transport, refused};
use crate::transport::items::{ItemCutter, NoList};
use crate::transport::path::{PathError, Resource};
use crate::transport::projection::Projection;

/// The number of items in a page. A page of pods is about 3 MB.
const PAGE: u32 = 500;
/// The size in bytes above which a page is large. After a large page, the next pages have half as many items, so that each page arrives in
/// time.
const LARGE_PAGE: usize = 16 * 1024 * 1024;

/// The objects to list.
#[derive(Clone, Copy)]
pub(crate) struct Collection<'a> {
    pub(crate) resource: &'a Resource,
    /// The namespace, or `None` for all namespaces.
    pub(crate) namespace: Option<&'a str>,
    /// A label selector.
    pub(crate) labels: Option<&'a str>,
    /// A field selector.
    pub(crate) fields: Option<&'a str>,
}

/// A whole list at one version.
#[derive(Debug)]
pub(crate) struct Listed<T> {
    pub(crate) items: Vec<T>,
    pub(crate) version: String,
}

impl<T> Listed<T> {
    /// Returns the version as a number.
    pub(crate) fn number(&self) -> u64 {
        self.version.parse().unwrap_or(0)
    }
}

/// The items of a list while the host reads it.
pub(crate) trait ListInto {
    /// Takes the next item.
    fn take(&mut self, item: Value);

    /// Returns true if the host reads the next page.
    fn needs_more(&self) -> bool;
}

/// The picked items of a list.
struct PickedItems<'a, T, P> {
    items: Vec<T>,
    pick: &'a P,
    most: usize,
}

impl<T, P: Fn(Value) -> Option<T>> ListInto for PickedItems<'_, T, P> {
    fn take(&mut self, item: Value) {
        self.items.extend((self.pick)(item));
    }

    fn needs_more(&self) -> bool {
        self.items.len() <= self.most
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
    /// Returns true if the API server refused the list and would refuse it again.
    pub(crate) fn is_refused(&self) -> bool {
        match self {
            Self::Path { .. } | Self::Unknown { .. } => true,
            Self::List { source, .. } => refused(source),
        }
    }
}

impl Transport {
    /// Reads a whole list and keeps the result of `pick` for each item.
    pub(crate) async fn list<T>(
        &self,
        from: Collection<'_>,
        projection: &Projection,
        pick: impl Fn(Value) -> Option<T>,
    ) -> Result<Listed<T>, ListError> {
        self.list_until(from, projection, pick, usize::MAX).await
    }

    /// Reads a list as [`Transport::list`] does, but reads no further page once it has kept more than `most` items.
    pub(crate) async fn list_until<T>(
        &self,
        from: Collection<'_>,
        projection: &Projection,
        pick: impl Fn(Value) -> Option<T>,
        most: usize,
    ) -> Result<Listed<T>, ListError> {
        let begin = || PickedItems { items: Vec::new(), pick: &pick, most };
        let (picked, version) = self.list_into(from, projection, begin).await?;
        Ok(Listed { items: picked.items, version })
    }

    /// Reads a list into the value that `begin` returns. If the continuation of the list has expired, the function begins once more. Returns
    /// the value and the version of the list.
    pub(crate) async fn list_into<C: ListInto>(
        &self,
        from: Collection<'_>,
        projection: &Projection,
        begin: impl Fn() -> C,
    ) -> Result<(C, String), ListError> {
        match self.pages(from, projection, begin()).await {
            Err(ListError::List { source, .. }) if source.is(410) => self.pages(from, projection, begin()).await,
            listed => listed,
        }
    }

    async fn pages<C: ListInto>(
        &self,
        from: Collection<'_>,
        projection: &Projection,
        mut into: C,
    ) -> Result<(C, String), ListError> {
        let resource = from.resource.plural.as_str();
        let path = |source| ListError::Path { resource: resource.to_owned(), source };
        let collection = kube::core::Request::new(from.resource.collection(from.namespace).map_err(path)?);
        let (mut version, mut token, mut limit) = (String::new(), None, PAGE);
        loop {
            let params = ListParams {
                limit: Some(limit),
                continue_token: token,
                label_selector: from.labels.map(str::to_owned),
                field_selector: from.fields.map(str::to_owned),
                ..ListParams::default()
            };
            let failed = |source| ListError::List { resource: resource.to_owned(), source };
            let call = ApiCall { verb: "list", resource, request: collection.list(&params) };
            let page = self.page(call, projection, |item| into.take(item)).await;
            let page = match page {
                Err(error) if error.is(404) => return Err(ListError::Unknown { resource: resource.to_owned() }),
                page => page.map_err(failed)?,
            };
            if page.bytes > LARGE_PAGE {
                limit = (limit / 2).max(1);
            }
            // The first page names the version, and later pages have the same version.
            if version.is_empty() {
                version = page.meta.resource_version;
            }
            match page.meta.next {
                Some(next) if !next.is_empty() && into.needs_more() => token = Some(next),
                _ => return Ok((into, version)),
            }
        }
    }

    /// Reads one page as it arrives and parses each item once it is complete. The wait for each piece is as long as the wait for a reply.
    async fn page(
        &self,
        call: ApiCall<'_>,
        projection: &Projection,
        mut each: impl FnMut(Value),
    ) -> Result<Page, RequestError> {
        let mut pieces = self.open(call).await?;
        let (mut cutter, mut bytes) = (ItemCutter::default(), 0_usize);
        let mut item = |text: &[u8]| projection.read(text).map(&mut each).map_err(RequestError::Unreadable);
        loop {
            match timeout(self.timeout, pieces.next()).await {
                Err(_) => return Err(RequestError::TimedOut(self.timeout)),
                Ok(Some(Err(error))) => return Err(RequestError::Broken(Box::new(error))),
                Ok(Some(Ok(piece))) => {
                    bytes = bytes.saturating_add(piece.len());
                    cutter.push(&piece, &mut item)?;
                }
                Ok(None) => break,
            }
        }
        let PageRest { metadata: meta, items: _none } =
            serde_json::from_slice(cutter.envelope()).map_err(RequestError::Unreadable)?;
        if meta.resource_version.is_empty() {
            // Without this check, any object would count as an empty list, and the cache would drop all its items.
            return Err(RequestError::Unreadable(serde_json::Error::custom("the list has no resourceVersion")));
        }
        Ok(Page { meta, bytes })
    }
}

impl From<NoList> for RequestError {
    fn from(error: NoList) -> Self {
        Self::Unreadable(serde_json::Error::custom(error))
    }
}

/// A page without its items.
struct Page {
    meta: PageMeta,
    bytes: usize,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct PageRest {
    metadata: PageMeta,
    /// Items that are not objects remain in the array.
    items: Option<[(); 0]>,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct PageMeta {
    resource_version: String,
    #[serde(rename = "continue")]
    next: Option<String>,
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;
    use std::sync::Arc;
    use std::time::Duration;

    use http::{Request, Response};
    use k8s_openapi::jiff::Timestamp;
    use kube::Client;
    use kube::client::Body;
    use parking_lot::Mutex;
    use serde_json::json;

    use super::*;
    use crate::transport::clock::ServerClock;

    /// Returns a server with these pages, and the limits of the requests that it got.
    fn transport(pages: Vec<Value>) -> (Transport, Arc<Mutex<Vec<String>>>) {
        let (asked, pages) = (Arc::<Mutex<Vec<String>>>::default(), Arc::new(Mutex::new(pages.into_iter())));
        let limits = asked.clone();
        let service = tower::service_fn(move |request: Request<Body>| {
            let query = request.uri().query().unwrap_or_default().to_owned();
            let limit = query.split('&').find_map(|pair| pair.strip_prefix("limit=")).unwrap_or_default().to_owned();
            limits.lock().push(limit);
            let page = pages.lock().next().unwrap_or_default();
            async move { Ok::<_, Infallible>(Response::new(Body::from(page.to_string().into_bytes()))) }
        });
        let client = Client::new(service, "default");
        let clock = ServerClock::new(Arc::new(|| Timestamp::UNIX_EPOCH));
        (Transport { client, clock, requests: Arc::default(), timeout: Duration::from_secs(10) }, asked)
    }

    fn page(items: usize, bytes: usize, next: &str) -> Value {
        let item = |number: usize| json!({"metadata": {"name": number.to_string()}, "x": "x".repeat(bytes)});
        let items: Vec<Value> = (0..items).map(item).collect();
        json!({"kind": "PodList", "items": items, "metadata": {"resourceVersion": "7", "continue": next}})
    }

    #[tokio::test]
    async fn a_page_that_is_large_is_followed_by_smaller_ones() {
        let (transport, asked) = transport(vec![page(170, 100_000, "b"), page(2, 10, "c"), page(1, 10, "")]);
        let resource = Resource { api_version: "v1".into(), plural: "pods".into(), namespaced: true };
        let from = Collection { resource: &resource, namespace: None, labels: None, fields: None };
        let name = |item: Value| item.pointer("/metadata/name").and_then(Value::as_str).map(str::to_owned);
        let listed = transport.list(from, &Projection::everything(), name).await.unwrap();
        assert_eq!((listed.items.len(), listed.version.as_str()), (173, "7"));
        assert_eq!(*asked.lock(), ["500", "250", "250"]);
    }

    #[tokio::test]
    async fn a_page_that_is_cut_off_or_no_list_is_an_error() {
        for text in
            [json!("x"), json!({"items": [1]}), json!(null), json!({}), json!({"kind": "Status", "metadata": {}})]
        {
            let (transport, _) = transport(vec![text.clone()]);
            let resource = Resource { api_version: "v1".into(), plural: "pods".into(), namespaced: true };
            let from = Collection { resource: &resource, namespace: None, labels: None, fields: None };
            assert!(transport.list(from, &Projection::everything(), Some).await.is_err(), "{text}");
        }
    }
}
