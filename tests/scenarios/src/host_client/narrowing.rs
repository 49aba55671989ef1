//! Limits a host that shares a control plane to the objects of its own namespaces.
//!
//! Takes requests and replies; yields requests for one namespace, and replies without the objects of others. May not change
//! an object. Among cluster-scoped objects it filters only the nodes of other scenarios. The host does not see the jobs that
//! hold those nodes, so it would remove their holds.

use bytes::Bytes;
use http::header::CONTENT_LENGTH;
use http::{Method, Request, Response, Uri};
use http_body_util::{BodyExt as _, Full};
use oarlock_support::interception::{Body, BoxError};
use serde_json::Value;

/// The path of the list of nodes.
const NODES: &str = "/api/v1/nodes";
/// The label that names the scenario of a node.
const OF_NODE: &str = "/metadata/labels/scenario";

/// The namespaces that a host may see.
#[derive(Clone)]
pub(crate) struct Visible {
    /// The namespace of the scenario.
    pub own: String,
    /// The namespace of the scenario's tasks, if it has any. The host watches pods there.
    pub tasks: Option<String>,
}

impl Visible {
    /// Restricts a request across namespaces to the scenario's namespace, unless the host must also see the namespace of tasks.
    pub(super) fn narrow<B>(&self, request: &mut Request<B>) {
        let Some((root, plural)) = across_namespaces(request.uri()) else { return };
        if request.method() != Method::GET || self.tasks.is_some() && plural == "pods" {
            return;
        }
        let query = request.uri().query().map(|query| format!("?{query}")).unwrap_or_default();
        if let Ok(uri) = format!("{root}/namespaces/{}/{plural}{query}", self.own).parse() {
            *request.uri_mut() = uri;
        }
    }

    /// Removes the objects of others from the reply to a request that reads nodes or a kind across all namespaces.
    pub(super) async fn filter(self, asked: &Uri, mut reply: Response<Body>) -> Result<Response<Body>, BoxError> {
        let is_read = asked.path() == NODES || across_namespaces(asked).is_some();
        if !is_read || !reply.status().is_success() {
            return Ok(reply);
        }
        reply.headers_mut().remove(CONTENT_LENGTH);
        let (parts, body) = reply.into_parts();
        let is_watch = asked.query().is_some_and(|query| query.split('&').any(|part| part.starts_with("watch=")));
        if is_watch {
            let mut events = Events { visible: self, rest: Vec::new() };
            let body = body.map_frame(move |frame| frame.map_data(|bytes| events.keep(&bytes)));
            return Ok(Response::from_parts(parts, body.boxed_unsync()));
        }
        let body = self.listed(body).await?;
        Ok(Response::from_parts(parts, body))
    }

    async fn listed(&self, body: Body) -> Result<Body, BoxError> {
        let mut list: Value = serde_json::from_slice(&body.collect().await?.to_bytes())?;
        if let Some(items) = list.get_mut("items").and_then(Value::as_array_mut) {
            items.retain(|item| self.shows(item));
        }
        Ok(Full::from(list.to_string()).map_err(|never| match never {}).boxed_unsync())
    }

    /// Returns true if the host may see the object. Bookmarks have no namespace and always pass.
    fn shows(&self, object: &Value) -> bool {
        let namespace = object.pointer("/metadata/namespace").and_then(Value::as_str);
        if let Some(Value::String(scenario)) = object.pointer(OF_NODE) {
            return *scenario == self.own;
        }
        namespace.is_none_or(|one| one == self.own || self.tasks.as_deref() == Some(one))
    }
}

/// The events of a watch, one on each line.
struct Events {
    visible: Visible,
    /// The beginning of an incomplete line.
    rest: Vec<u8>,
}

impl Events {
    /// Returns the complete lines whose objects the host may see.
    fn keep(&mut self, bytes: &[u8]) -> Bytes {
        self.rest.extend_from_slice(bytes);
        let whole = self.rest.iter().rposition(|byte| *byte == b'\n').map_or(0, |last| last + 1);
        let lines: Vec<u8> = self.rest.drain(..whole).collect();
        let kept: Vec<&[u8]> = lines.split_inclusive(|byte| *byte == b'\n').filter(|line| self.tells(line)).collect();
        Bytes::from(kept.concat())
    }

    fn tells(&self, line: &[u8]) -> bool {
        let event: Option<Value> = serde_json::from_slice(line).ok();
        event.is_none_or(|event| event.get("object").is_none_or(|object| self.visible.shows(object)))
    }
}

/// Returns root and plural of a request that reads a namespaced kind across all namespaces.
fn across_namespaces(uri: &Uri) -> Option<(String, String)> {
    let parts: Vec<&str> = uri.path().trim_start_matches('/').split('/').collect();
    let (root, plural) = match parts.as_slice() {
        ["api", version, plural] => (format!("/api/{version}"), *plural),
        ["apis", group, version, plural] => (format!("/apis/{group}/{version}"), *plural),
        _ => return None,
    };
    let is_of_cluster = ["nodes", "namespaces", "customresourcedefinitions"].contains(&plural);
    (!is_of_cluster).then(|| (root, plural.to_owned()))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn visible(tasks: bool) -> Visible {
        Visible { own: "a".to_owned(), tasks: tasks.then(|| "a-tasks".to_owned()) }
    }

    fn narrowed(path: &str, tasks: bool) -> String {
        let mut request = Request::get(path).body(()).unwrap();
        visible(tasks).narrow(&mut request);
        request.uri().to_string()
    }

    #[test]
    fn only_lists_of_what_lives_in_namespaces_are_narrowed() {
        assert_eq!(narrowed("/api/v1/pods?watch=true", false), "/api/v1/namespaces/a/pods?watch=true");
        assert_eq!(narrowed("/apis/apps/v1/replicasets", true), "/apis/apps/v1/namespaces/a/replicasets");
        for path in ["/api/v1/nodes", "/api/v1", "/apis/apps/v1", "/api/v1/namespaces/b/pods"] {
            assert_eq!(narrowed(path, false), path);
        }
        assert_eq!(narrowed("/api/v1/pods", true), "/api/v1/pods");
    }

    fn pod(namespace: &str) -> Value {
        json!({"metadata": {"name": "p", "namespace": namespace}})
    }

    #[tokio::test]
    async fn of_a_list_the_objects_of_other_namespaces_are_left_out() {
        let list = json!({"items": [pod("a"), pod("b"), pod("a-tasks")]}).to_string();
        let reply = Response::new(Full::from(list).map_err(|never| match never {}).boxed_unsync());
        let reply = visible(true).filter(&"/api/v1/pods".parse().unwrap(), reply).await.unwrap();
        let kept: Value = serde_json::from_slice(&reply.into_body().collect().await.unwrap().to_bytes()).unwrap();
        assert_eq!(kept, json!({"items": [pod("a"), pod("a-tasks")]}));
    }

    #[tokio::test]
    async fn of_nodes_those_of_other_scenarios_are_left_out() {
        let [own, other] = ["a", "b"].map(|name| json!({"metadata": {"name": name, "labels": {"scenario": name}}}));
        let list = json!({"items": [own, other, {"metadata": {"name": "n"}}]}).to_string();
        let reply = Response::new(Full::from(list).map_err(|never| match never {}).boxed_unsync());
        let reply = visible(false).filter(&NODES.parse().unwrap(), reply).await.unwrap();
        let kept: Value = serde_json::from_slice(&reply.into_body().collect().await.unwrap().to_bytes()).unwrap();
        assert_eq!(kept, json!({"items": [own, {"metadata": {"name": "n"}}]}));
    }

    #[test]
    fn of_a_watch_the_events_of_other_namespaces_are_left_out_wherever_it_is_cut() {
        let line = |object: Value| format!("{}\n", json!({"object": object}));
        let (bookmark, own, other, task) = (line(json!({})), line(pod("a")), line(pod("b")), line(pod("a-tasks")));
        let all = format!("{bookmark}{own}{other}{task}");
        for cut in 0..all.len() {
            let mut events = Events { visible: visible(true), rest: Vec::new() };
            let kept = [&all[..cut], &all[cut..]].map(|bytes| events.keep(bytes.as_bytes())).concat();
            assert_eq!(String::from_utf8(kept).unwrap(), format!("{bookmark}{own}{task}"), "{cut}");
        }
    }
}
