//! Reads the logs of the containers of a pod.

use std::io::Error;

use futures::TryStreamExt as _;
use futures::io::AsyncBufRead;
use k8s_openapi::jiff::Timestamp;
use kube::api::LogParams;
use oarlock_core::object::api_object::ObjectKey;
use oarlock_core::object::fields::{list, number, text};
use oarlock_core::object::key::is_object_name;
use oarlock_core::object::time::read_time;
use oarlock_core::requests::reads::ReadFailed;
use serde_json::Value;

use crate::cluster::Cluster;
use crate::error_chain::error_chain;
use crate::read::target_pod::TargetPod;
use crate::transport::call::{ApiCall, RequestError};

/// One run of a container, which may have a log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ContainerRun {
    /// The position of the container in the pod: first init containers, then containers, then ephemeral containers.
    pub place: usize,
    /// The name of the container.
    pub container: String,
    /// The number of earlier restarts of the container.
    pub number: i64,
    /// True if the API shows this run as the previous instance.
    pub is_previous: bool,
    /// The start time of the run.
    pub began: Option<Timestamp>,
}

/// The reason why a log was not opened.
#[derive(Debug, thiserror::Error)]
pub enum LogFailed {
    /// The run does not exist or has not begun, according to the kubelet.
    #[error("{0}")]
    NoSuchRun(String),
    /// The log is not available now, or not at all.
    #[error("{0}")]
    Unavailable(String),
}

/// Parts of the messages that the API server and the kubelet send with status 400 for a run that was removed or has not begun.
const NO_SUCH_RUN: [&str; 3] = ["previous terminated container", "is waiting to start", "is not available"];

const LISTS: [(&str, &str); 3] = [
    ("/spec/initContainers", "/status/initContainerStatuses"),
    ("/spec/containers", "/status/containerStatuses"),
    ("/spec/ephemeralContainers", "/status/ephemeralContainerStatuses"),
];

/// Returns the runs of the containers of a pod that the API shows, earlier runs first.
pub(crate) fn runs(pod: &Value) -> Vec<ContainerRun> {
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
            // The kubelet raises the count when it restarts a container. While the container waits for the restart, its newest run has the
            // whole count, and the API shows that run under both names.
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

impl ContainerRun {
    /// Returns the parameters that ask for the log of the run, each line with its time.
    pub(crate) fn params(&self) -> LogParams {
        LogParams {
            container: Some(self.container.clone()),
            previous: self.is_previous,
            timestamps: true,
            ..LogParams::default()
        }
    }
}

impl Cluster {
    /// Reads the runs of the containers of a pod that the API shows, earlier runs of a container first. Returns `None` if the pod no longer
    /// exists.
    ///
    /// # Errors
    /// If the read fails, with the message of the API server.
    pub async fn container_runs(&self, of: &TargetPod) -> Result<Option<Vec<ContainerRun>>, ReadFailed> {
        let pod = self.link.stored(&ObjectKey::pod(&of.namespace, &of.name)).await?;
        Ok(pod.filter(|pod| text(pod, "/metadata/uid") == Some(&*of.uid)).map(|pod| runs(&pod)))
    }

    /// Opens the log of a run. Each line has its time.
    ///
    /// # Errors
    /// If the log is not available, with the reason.
    pub async fn open_log(
        &self,
        of: &TargetPod,
        run: &ContainerRun,
    ) -> Result<impl AsyncBufRead + Send + Unpin + use<>, LogFailed> {
        self.open_part(of, &run.params()).await
    }

    /// Opens the part of a pod's logs that the parameters ask for.
    pub(crate) async fn open_part(
        &self,
        of: &TargetPod,
        params: &LogParams,
    ) -> Result<impl AsyncBufRead + Send + Unpin + use<>, LogFailed> {
        let TargetPod { namespace, name, .. } = of;
        if !is_object_name(namespace) || !is_object_name(name) {
            return Err(LogFailed::NoSuchRun(format!("{namespace}/{name} is no name of a pod")));
        }
        let pods = kube::core::Request::new(format!("/api/v1/namespaces/{namespace}/pods"));
        let call = ApiCall { verb: "get", resource: "pods/log", request: pods.logs(name, params) };
        let opened = self.link.transport.open(call).await.map_err(|error| match &error {
            RequestError::Refused(refusal)
                if refusal.code == 400 && NO_SUCH_RUN.iter().any(|words| refusal.status.message.contains(words)) =>
            {
                LogFailed::NoSuchRun(error_chain(&error))
            }
            _ => LogFailed::Unavailable(error_chain(&error)),
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
