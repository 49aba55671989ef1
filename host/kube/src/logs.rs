//! The logs of the containers of a pod.

use std::io::Error;

use futures::TryStreamExt as _;
use futures::io::AsyncBufRead;
use k8s_openapi::jiff::Timestamp;
use kube::api::LogParams;
use oarlock_core::child::fields::{list, number, text};
use oarlock_core::cluster::object::ObjectKey;
use oarlock_core::job::spec::is_object_name;
use oarlock_core::job::time::read_time;
use serde_json::Value;

use crate::cluster::Cluster;
use crate::outcome::sentence;
use crate::past_cache::ReadFailed;
use crate::transport::call::{ApiCall, RequestError};

/// One run of a container whose log may be there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ContainerRun {
    /// The place of its container in the pod: init containers, containers, ephemeral ones.
    pub place: usize,
    /// The name of its container.
    pub container: String,
    /// How often that was restarted before.
    pub number: i64,
    /// The API has it as the instance before.
    pub is_previous: bool,
    /// When it began.
    pub began: Option<Timestamp>,
}

/// Why a log was not opened.
#[derive(Debug, thiserror::Error)]
pub enum LogFailed {
    /// There is no such run, or it has not begun, as the kubelet says.
    #[error("{0}")]
    NoSuchRun(String),
    /// It cannot be had now, or not at all.
    #[error("{0}")]
    Unavailable(String),
}

/// What the API server and the kubelet say, with 400, of a run that is not there: it was removed, or it has not begun.
const NO_SUCH_RUN: [&str; 3] = ["previous terminated container", "is waiting to start", "is not available"];

const LISTS: [(&str, &str); 3] = [
    ("/spec/initContainers", "/status/initContainerStatuses"),
    ("/spec/containers", "/status/containerStatuses"),
    ("/spec/ephemeralContainers", "/status/ephemeralContainerStatuses"),
];

/// The runs that the API shows of the containers of a pod, earlier ones first.
fn runs(pod: &Value) -> Vec<ContainerRun> {
    let containers = LISTS.iter().flat_map(|(specs, statuses)| {
        list(pod, specs).iter().filter_map(move |one| Some((text(one, "/name")?, list(pod, statuses))))
    });
    let mut runs = Vec::new();
    for (place, (container, statuses)) in containers.enumerate() {
        let Some(status) = statuses.iter().find(|status| text(status, "/name") == Some(container)) else { continue };
        let restarts = number(status, "/restartCount").unwrap_or(0);
        let run = |number, is_previous, began: &str| ContainerRun {
            place,
            container: container.to_owned(),
            number,
            is_previous,
            began: read_time(text(status, began)),
        };
        let has = |at: &str| status.pointer(at).is_some_and(|value| !value.is_null());
        if has("/lastState/terminated") {
            // The count rises as a container is begun anew: while it waits for that, its newest run has the whole count, and is
            // shown under both names.
            let number = if has("/state/waiting") { restarts } else { restarts.saturating_sub(1) };
            runs.push(run(number, true, "/lastState/terminated/startedAt"));
        }
        if has("/state/running") {
            runs.push(run(restarts, false, "/state/running/startedAt"));
        } else if has("/state/terminated") {
            runs.push(run(restarts, false, "/state/terminated/startedAt"));
        }
    }
    runs
}

impl Cluster {
    /// The runs that the API shows of the containers of the pod of this UID, earlier ones of a container first; `None` where the pod
    /// is gone.
    ///
    /// # Errors
    /// The API server's sentence.
    pub async fn container_runs(
        &self,
        (namespace, name, uid): (&str, &str, &str),
    ) -> Result<Option<Vec<ContainerRun>>, ReadFailed> {
        let pod = self.link.stored(&ObjectKey::pod(namespace, name)).await?;
        Ok(pod.filter(|pod| text(pod, "/metadata/uid") == Some(uid)).map(|pod| runs(&pod)))
    }

    /// Opens the log of a run, each line with its time.
    ///
    /// # Errors
    /// Why it cannot be had.
    pub async fn open_log(
        &self,
        (namespace, name): (&str, &str),
        run: &ContainerRun,
    ) -> Result<impl AsyncBufRead + Send + Unpin + use<>, LogFailed> {
        if !is_object_name(namespace) || !is_object_name(name) {
            return Err(LogFailed::NoSuchRun(format!("{namespace}/{name} is no name of a pod")));
        }
        let params = LogParams {
            container: Some(run.container.clone()),
            previous: run.is_previous,
            timestamps: true,
            ..LogParams::default()
        };
        let pods = kube::core::Request::new(format!("/api/v1/namespaces/{namespace}/pods"));
        let call = ApiCall { verb: "get", resource: "pods/log", request: pods.logs(name, &params) };
        let opened = self.link.transport.open(call).await.map_err(|error| match &error {
            RequestError::Refused(refusal)
                if refusal.code == 400 && NO_SUCH_RUN.iter().any(|words| refusal.status.message.contains(words)) =>
            {
                LogFailed::NoSuchRun(sentence(&error))
            }
            _ => LogFailed::Unavailable(sentence(&error)),
        })?;
        Ok(opened.map_err(Error::other).into_async_read())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn each_run_that_is_shown_is_read_once_in_the_order_of_the_pod() {
        let began = "2026-01-01T00:00:00Z";
        let ended = json!({"terminated": {"startedAt": began}});
        let pod = json!({
            "spec": {"initContainers": [{"name": "init"}], "containers": [{"name": "app"}, {"name": "new"}, {"name": "loops"}],
                "ephemeralContainers": [{"name": "debug"}]},
            "status": {
                "initContainerStatuses": [{"name": "init", "restartCount": 0, "state": ended}],
                "containerStatuses": [
                    {"name": "loops", "restartCount": 4, "state": {"waiting": {"reason": "CrashLoopBackOff"}}, "lastState": ended},
                    {"name": "new", "restartCount": 0, "state": {"waiting": {"reason": "ContainerCreating"}}, "lastState": {}},
                    {"name": "app", "restartCount": 2, "state": {"running": {"startedAt": began}}, "lastState": ended}],
                "ephemeralContainerStatuses": [{"name": "debug", "restartCount": 0, "state": {"running": {"startedAt": began}}}]}});
        let shown: Vec<_> =
            runs(&pod).into_iter().map(|run| (run.place, run.container, run.number, run.is_previous)).collect();
        let run = |place, name: &str, number, is_previous| (place, name.to_owned(), number, is_previous);
        let expected = [
            run(0, "init", 0, false),
            run(1, "app", 1, true),
            run(1, "app", 2, false),
            run(3, "loops", 4, true),
            run(4, "debug", 0, false),
        ];
        assert_eq!(shown, expected);
    }
}
