//! The act of a restart under the PodOpsLifecycle: no container restarts while its pod gets traffic.

use std::sync::Arc;

use k8s_openapi::api::core::v1::Pod;
use oarlock_sim::world::labels;

use super::super::play::{head, identities};
use super::super::snapshot::Snapshot;
use super::{PodActs, SEEN_WITHIN};

impl PodActs<'_> {
    /// Restarts the containers of the CollaSet's pods in place.
    pub(super) async fn restart(&mut self) -> anyhow::Result<()> {
        let shows = "OpenKruise restarts the containers of CollaSet foo in their pods. The job announces each operation on its\n\
                     pod by a label, KusionStack's controllers (played by the simulated world) take the pod out of traffic and\n\
                     allow it, and only then the container restarts.";
        self.act("A restart under the PodOpsLifecycle", shows).await?;
        let pods = self.play.user.pods("foo").await?;
        let since = self.seen.mark(&pods, SEEN_WITHIN).await?;
        let yaml = format!(
            "{}    # <- its plugin says lifecycle: Controlled\n  selector: {{labelSelector: {{matchLabels: {{app: foo}}}}}}\n  parallelism: 2\n",
            head("opj-restart", "Restart")
        );
        self.play.apply(&yaml).await?;
        self.play.watch(("opj-restart", "foo"), "the job to end", Snapshot::has_ended).await?;
        self.until_all_get_traffic().await?;
        let seen: Vec<_> = identities(&pods).iter().map(|(_, uid)| self.seen.passage(uid, since)).collect();
        if let (Some(first), Some(pod)) = (seen.first(), identities(&pods).first()) {
            self.play.screen.say(&format!("  pod {}: {}", pod.0, first.steps.join(" -> "))).await?;
        }
        let once = seen.iter().filter(|passage| passage.restarts == 1).count();
        let observed = format!("{once} of {} containers restarted once, each in the pod that it was in", pods.len());
        self.check(!pods.is_empty() && once == pods.len(), &observed).await?;
        let early: i64 = seen.iter().map(|passage| passage.restarts_in_traffic).sum();
        self.check(early == 0, &format!("{early} containers restarted while their pods got traffic")).await?;
        let last = seen.iter().filter(|passage| passage.steps.last() == Some(&"in traffic again")).count();
        self.check(last == pods.len(), &format!("{last} of {} pods came back into traffic last", pods.len())).await
    }

    /// Waits until every pod of `foo` gets traffic, and bears no label of an operation; yields to the watch of the bystander.
    pub(super) async fn until_all_get_traffic(&self) -> anyhow::Result<()> {
        let rests = |pods: &[Arc<Pod>]| pods.iter().filter(|pod| is_of(pod, "foo")).all(|pod| rests(pod));
        self.play.stage.world().until("the pods of foo to get traffic", SEEN_WITHIN, rests).await?;
        self.seen.mark(&self.play.user.pods("foo").await?, SEEN_WITHIN).await.map(drop)
    }
}

fn is_of(pod: &Pod, app: &str) -> bool {
    pod.metadata.labels.iter().flatten().any(|(key, value)| key == "app" && value == app)
}

/// It gets traffic, and bears no label of an operation and no hold of a job.
fn rests(pod: &Pod) -> bool {
    let keys = || pod.metadata.labels.iter().flatten().map(|(key, _)| key);
    let annotations = || pod.metadata.annotations.iter().flatten().map(|(key, _)| key);
    keys().any(|key| key == labels::SERVICE_AVAILABLE)
        && !keys().any(|key| key.contains(&format!(".{}/", labels::LIFECYCLE)))
        && !annotations().any(|key| key.starts_with("hold.oarlock.dev/"))
}
