//! A kubelet that lets every pod of a namespace succeed at once. It is for a real control plane, whose own controller creates the
//! pods of Jobs. The simulated cluster would create them too.

use std::pin::pin;
use std::time::Duration;

use futures::StreamExt as _;
use futures::stream::FuturesUnordered;
use k8s_openapi::api::core::v1::{Pod, PodStatus};
use kube::api::{Api, ApiResource, Patch, PatchParams};
use kube::core::{NotUsed, Object};
use kube::runtime::watcher::{Config, Event, watcher};
use kube::{Client, ResourceExt as _};
use serde_json::json;
use tokio::task::AbortHandle;

/// Requests in flight.
const IN_FLIGHT: usize = 32;
/// The wait before a failed watch is retried.
const AGAIN: Duration = Duration::from_millis(100);

/// A pod without its spec.
type PodWithStatus = Object<NotUsed, PodStatus>;

/// A kubelet that works until it is dropped.
pub(crate) struct Kubelet(AbortHandle);

impl Drop for Kubelet {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl Kubelet {
    /// Starts a kubelet for the pods of a namespace.
    pub(crate) fn start(client: Client, namespace: &str) -> Self {
        let pods = Api::namespaced_with(client, namespace, &ApiResource::erase::<Pod>(&()));
        Self(tokio::spawn(run(pods)).abort_handle())
    }
}

async fn run(pods: Api<PodWithStatus>) {
    let mut events = pin!(watcher(pods.clone(), Config::default()));
    let (mut waiting, mut flying) = (std::collections::VecDeque::new(), FuturesUnordered::new());
    loop {
        while flying.len() < IN_FLIGHT
            && let Some(name) = waiting.pop_front()
        {
            flying.push(end(&pods, name));
        }
        tokio::select! {
            event = events.next() => match event {
                Some(Ok(Event::Apply(pod) | Event::InitApply(pod))) => if is_new(&pod) {
                    waiting.push_back(pod.name_any());
                },
                Some(Ok(_)) => {}
                Some(Err(_)) => tokio::time::sleep(AGAIN).await,
                None => return,
            },
            Some(()) = flying.next(), if !flying.is_empty() => {}
        }
    }
}

fn is_new(pod: &PodWithStatus) -> bool {
    pod.status.as_ref().and_then(|status| status.phase.as_deref()) == Some("Pending")
}

/// Lets a pod succeed. An error is ignored, because a deleted pod needs no end.
async fn end(pods: &Api<PodWithStatus>, name: String) {
    let body = Patch::Merge(json!({"status": {"phase": "Succeeded"}}));
    let _ = pods.patch_status(&name, &PatchParams::default(), &body).await;
}
