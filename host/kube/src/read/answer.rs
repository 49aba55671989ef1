//! Makes the live reads that pure code asks for.

use futures::StreamExt;
use oarlock_core::object::api_object::{Kind, ObjectKey};
use oarlock_core::requests::reads::{Answers, KeptObjects, Pending, Read, ReadFailed, Selected, WHOLE};
use serde_json::Value;

use crate::cluster::Cluster;
use crate::transport::list::{Collection, ListInto};
use crate::transport::projection::Projection;

/// The most reads of one question in flight.
const AT_ONCE: usize = 6;
/// The most rounds of reads of one question. A target is found after four rounds.
const ROUNDS: usize = 8;

/// A list while the host reads it for an answer.
struct ListedAnswer<'a> {
    read: &'a Read,
    kept: KeptObjects,
}

impl ListInto for ListedAnswer<'_> {
    fn take(&mut self, item: Value) {
        self.kept.take(self.read, item);
    }

    fn needs_more(&self) -> bool {
        self.kept.needs_more(self.read)
    }
}

impl Cluster {
    /// Calls `question` until it has a result, and makes the reads that it asks for in between. The reads of one round are in flight at the
    /// same time. A read that failed ends the question at once if the question cannot go on without it.
    ///
    /// # Errors
    /// If a read fails, with the message of the API server. If the question still asks for reads after eight rounds.
    pub async fn ask<T>(&self, question: impl Fn(&Answers) -> Result<T, Pending>) -> Result<T, ReadFailed> {
        let mut answers = Answers::default();
        for _ in 0..ROUNDS {
            let reads = match question(&answers) {
                Ok(result) => return Ok(result),
                Err(Pending::Failed(failed)) => return Err(failed),
                Err(Pending::Reads(reads)) => reads,
            };
            let made = futures::stream::iter(reads).map(async |read| {
                let answer = self.answer(&read).await;
                (read, answer)
            });
            let mut made = std::pin::pin!(made.buffer_unordered(AT_ONCE));
            while let Some((read, answer)) = made.next().await {
                let has_failed = answer.is_err();
                answers.insert(read, answer);
                if has_failed && let Err(Pending::Failed(failed)) = question(&answers) {
                    return Err(failed);
                }
            }
        }
        let message = format!("the reads have no end: {ROUNDS} rounds of them were not enough");
        Err(ReadFailed { message, is_refused: false, retry_after: None })
    }

    /// Makes one read. The answer to a read of an OperationJob also goes into the caches that watch OperationJobs.
    ///
    /// # Errors
    /// If the read fails, with the message of the API server.
    pub async fn answer(&self, read: &Read) -> Result<KeptObjects, ReadFailed> {
        let projection = Projection::of_fields(read.reduction.fields);
        let mut link = self.link.clone();
        link.transport.timeout = read.time_limit.unwrap_or(link.transport.timeout);
        match &read.selected {
            Selected::One { namespace, name } => {
                let (kind, namespace, name) = (read.kind.clone(), namespace.clone(), name.clone());
                let (key, owners) = (ObjectKey { kind, namespace, name }, &link.owners);
                let is_whole_job = key.kind == Kind::job() && read.reduction == WHOLE;
                let before = if is_whole_job { owners.uids_of(&key) } else { Vec::new() };
                let stored = link.stored_fields(&key, &projection).await?;
                owners.confirm(&key, &before, stored.as_ref());
                Ok(KeptObjects::of(read, stored))
            }
            Selected::All { namespace, labels, fields } => {
                let resource = link.discovery.resource(&link.transport, &read.kind).await;
                let resource = resource.map_err(|error| ReadFailed::from(&error))?;
                let [namespace, labels, fields] = [namespace, labels, fields].map(Option::as_deref);
                let from = Collection { resource: &resource, namespace, labels, fields };
                let begin = || ListedAnswer { read, kept: KeptObjects::default() };
                let listed = link.transport.list_into(from, &projection, begin).await;
                listed.map(|(listed, _)| listed.kept).map_err(|error| ReadFailed::from(&error))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use http::{Request, Response};
    use k8s_openapi::jiff::Timestamp;
    use kube::Client;
    use kube::client::Body;
    use oarlock_core::object::api_object::Kind;
    use oarlock_core::requests::reads::every;
    use parking_lot::Mutex;
    use serde_json::json;
    use tokio::sync::Barrier;

    use super::*;
    use crate::cluster::Setup;

    /// Returns a cluster that answers each request by `reply`, which takes the path with its query and returns a status and a body.
    fn cluster<F: Future<Output = (u16, Value)> + Send>(
        reply: impl Fn(String) -> F + Clone + Send + 'static,
    ) -> Cluster {
        let service = tower::service_fn(move |request: Request<Body>| {
            let (path, reply) = (request.uri().path_and_query().map(ToString::to_string), reply.clone());
            async move {
                let kinds = json!({"groupVersion": "v1", "resources": [
                    {"name": "pods", "kind": "Pod", "namespaced": true, "singularName": "pod", "verbs": []}]});
                let (status, body) = match path.unwrap_or_default() {
                    path if path == "/api/v1" => (200, kinds),
                    path => reply(path).await,
                };
                let response = Response::builder().status(status).body(Body::from(body.to_string().into_bytes()));
                Ok::<_, Infallible>(response.unwrap())
            }
        });
        let setup = Setup {
            client: Client::new(service, "default"),
            clock: Arc::new(|| Timestamp::UNIX_EPOCH),
            identity: "host".to_owned(),
        };
        Cluster::open(setup).0
    }

    fn pod(name: impl Into<String>) -> Read {
        Read::one(ObjectKey::pod("d", name))
    }

    fn status(code: u16) -> (u16, Value) {
        (code, json!({"kind": "Status", "code": code, "message": "no", "reason": "No", "status": "Failure"}))
    }

    /// Returns the answer to a read of an object that does not exist.
    fn absent(name: &str) -> (u16, Value) {
        let (code, mut body) = status(404);
        body["details"] = json!({"name": name, "kind": "pods"});
        (code, body)
    }

    #[tokio::test]
    async fn an_object_is_absent_only_if_the_answer_names_it() {
        let cluster = cluster(async |path| if path.ends_with("/a") { absent("a") } else { status(404) });
        assert!(cluster.answer(&pod("a")).await.unwrap().one::<Value>().is_none());
        let failed = cluster.answer(&pod("b")).await.unwrap_err();
        assert!(
            failed.message.starts_with("failed to read Pod b: "),
            "the kind was not served for a moment: {failed:?}"
        );
    }

    #[tokio::test]
    async fn the_reads_of_one_round_are_in_flight_at_the_same_time() {
        let all = Arc::new(Barrier::new(3));
        let cluster = cluster(move |path| {
            let all = all.clone();
            async move {
                all.wait().await;
                let name = path.rsplit('/').next().unwrap_or_default().to_owned();
                if name == "c" { absent("c") } else { (200, json!({"metadata": {"name": name}})) }
            }
        });
        let names = |answers: &Answers| {
            let all = every(["a", "b", "c"].map(|name| answers.to(&pod(name))))?;
            Ok(all.into_iter().flat_map(KeptObjects::parsed::<Value>).collect::<Vec<_>>())
        };
        let found = cluster.ask(names).await.unwrap();
        assert_eq!(found, [json!({"metadata": {"name": "a"}}), json!({"metadata": {"name": "b"}})]);
    }

    #[tokio::test]
    async fn a_read_that_is_refused_ends_the_question_while_others_have_no_answer() {
        let cluster =
            cluster(async |path| if path.ends_with("/a") { std::future::pending().await } else { status(403) });
        let failed = cluster.ask(|answers| every(["a", "b"].map(|name| answers.to(&pod(name).clone()).cloned()))).await;
        let failed = failed.unwrap_err();
        assert!(failed.is_refused && failed.message.starts_with("failed to read Pod b: "), "{failed:?}");
    }

    #[tokio::test]
    async fn a_question_without_end_and_a_name_that_is_no_name_are_failures() {
        let asked = Arc::new(AtomicUsize::new(0));
        let count = asked.clone();
        let cluster = cluster(move |_| {
            count.fetch_add(1, Ordering::Relaxed);
            async { (200, json!({"metadata": {"name": "a"}})) }
        });
        let (next, rounds) = (AtomicUsize::new(0), |failed: ReadFailed| failed.message);
        let endless = |answers: &Answers| {
            let read = pod(format!("p{}", next.fetch_add(1, Ordering::Relaxed)));
            answers.to(&read).cloned()
        };
        let failed = cluster.ask(endless).await.map_err(rounds).unwrap_err();
        assert!(failed.contains("8 rounds"), "{failed}");
        assert_eq!(asked.load(Ordering::Relaxed), ROUNDS);
        let failed = cluster.ask(|answers| answers.to(&pod("../a")).cloned()).await.unwrap_err();
        assert!(failed.is_refused && failed.message.contains("is no DNS-1123 subdomain"), "{failed:?}");
        assert_eq!(asked.load(Ordering::Relaxed), ROUNDS, "no request was sent");
    }

    #[tokio::test]
    async fn a_list_that_begins_again_counts_its_objects_once() {
        let page = |name: &str, next: &str| {
            let items = [json!({"metadata": {"name": name}})];
            (200, json!({"kind": "PodList", "items": items, "metadata": {"resourceVersion": "7", "continue": next}}))
        };
        let pages = [page("a", "x"), status(410), page("a", "x"), page("b", "")];
        let pages = Arc::new(Mutex::new(pages.into_iter()));
        let cluster = cluster(move |_| {
            let page = pages.lock().next().unwrap();
            async { page }
        });
        let both = Read { most_bytes: 60, ..Read::all(Kind::pod(), Some("d")) };
        let kept = cluster.ask(|answers| answers.to(&both).cloned()).await.unwrap();
        assert_eq!((kept.parsed::<Value>().count(), kept.is_cut()), (2, false));
    }
}
