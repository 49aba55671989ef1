//! OpsJobs and their templates, for every scenario that creates them and waits for them.

use std::time::Duration;

use anyhow::ensure;
use kube::api::{Api, ApiResource, DynamicObject};
use kube::core::GroupVersionKind;
use serde_json::Value;
use tokio::time::{Instant, sleep};

/// The time between two reads of a job.
pub(crate) const ASK_EVERY: Duration = Duration::from_millis(20);

/// Returns the resource of a kind of `oarlock.dev`.
pub(crate) fn resource(kind: &str) -> ApiResource {
    ApiResource::from_gvk(&GroupVersionKind::gvk("oarlock.dev", "v1alpha1", kind))
}

/// Waits until the job with this name has succeeded, and returns the job. It calls `look` before each read.
///
/// # Errors
/// If the job fails, or has not ended after the longest time.
pub(crate) async fn until_succeeded(
    jobs: &Api<DynamicObject>,
    name: &str,
    longest: Duration,
    mut look: impl FnMut() -> anyhow::Result<()>,
) -> anyhow::Result<Value> {
    let begun = Instant::now();
    loop {
        look()?;
        let job = jobs.get(name).await?.data;
        if job.pointer("/status/finishedAt").is_some() {
            ensure!(job.pointer("/status/phase").is_some_and(|phase| phase == "Succeeded"), "{job:#}");
            return Ok(job);
        }
        ensure!(
            begun.elapsed() < longest,
            "the job does not end: {}",
            job.pointer("/status/progress").unwrap_or(&Value::Null)
        );
        sleep(ASK_EVERY).await;
    }
}
