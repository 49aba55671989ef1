//! The acts of the demo, in order: the steps of a user and of an admin, and their effects on screen.
//!
//! Host and world are driven only as a user could drive them. The ledger judges the outcome.

use std::time::Duration;

use anyhow::bail;
use k8s_openapi::api::core::v1::Pod;
use oarlock_sim::world::{Effect, LedgerCheck};

use super::screen::Screen;
use super::snapshot::Snapshot;
use super::stage::Stage;
use super::user::User;

/// Interval between two reads of the cluster for the screen.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// Generous, since a machine that also compiles something is slow; a demo that waits longer hangs.
const ACT_ENDS_WITHIN: Duration = Duration::from_secs(60);

/// The demo while it runs.
pub(super) struct Demo {
    pub(super) stage: Stage,
    pub(super) user: User,
    pub(super) screen: Screen,
    /// Pods to be replaced, by name and UID.
    pub(super) replaced: Vec<(String, String)>,
}

impl Demo {
    /// Adds the plugin and replaces the pods of the CollaSet, one partition after the other.
    pub(super) async fn replace_a_collaset(&mut self) -> anyhow::Result<()> {
        self.screen.title("1. A plugin is dropped into the directory of a running host").await?;
        self.drop_plugin("replace").await?;
        let served = self.stage.wait_until_serving("Replace").await?;
        self.screen
            .say(&format!(
                "The host serves action Replace {} ms after the file arrived. It was not restarted.",
                served.as_millis()
            ))
            .await?;

        self.screen.title("2. An OperationJob replaces pods, one partition after the other").await?;
        let pods = self.user.pods("foo").await?;
        let yaml = job("opj-replace", "Replace", "\n  partition: 1", &pods);
        self.screen.command("kubectl apply -f -", &yaml).await?;
        self.user.apply(&yaml).await?;
        self.watch(("opj-replace", "foo"), "the first target to end", |now| now.ended() >= 1).await?;
        self.screen.say("partition: 1 lets one target start; the others wait.").await?;
        let all = pods.len();
        let patch = format!("kubectl patch opj opj-replace --type merge -p '{{\"spec\":{{\"partition\":{all}}}}}'");
        self.screen.command(&patch, "").await?;
        self.user.set_partition("opj-replace", all).await?;
        self.watch(("opj-replace", "foo"), "the job to end", Snapshot::has_ended).await?;
        self.remember(&pods);
        Ok(())
    }

    /// Replaces the pods of a Deployment by eviction: its controller does not cooperate.
    pub(super) async fn replace_a_deployment(&mut self) -> anyhow::Result<()> {
        self.screen.title("3. The same action on a Deployment's pods: evict, and wait for the new one").await?;
        let pods = self.user.pods("web").await?;
        let yaml = job("opj-web", "Replace", "", &pods);
        self.screen.command("kubectl apply -f -", &yaml).await?;
        self.user.apply(&yaml).await?;
        self.watch(("opj-web", "web"), "the job to end", Snapshot::has_ended).await?;
        self.remember(&pods);
        Ok(())
    }

    /// Shows that a plugin serves nothing until all its requests are granted.
    pub(super) async fn greedy_waits(&mut self) -> anyhow::Result<()> {
        self.screen.title("4. A plugin that asks for more than it is granted serves nothing").await?;
        self.drop_plugin("greedy").await?;
        let pods = self.one_of("web").await?;
        let yaml = job("opj-greedy", "Greedy", "", &pods);
        self.screen.command("kubectl apply -f -", &yaml).await?;
        self.user.apply(&yaml).await?;
        self.wait_for_condition("opj-greedy", "ActionAvailable", "AwaitingGrant").await?;
        let missing = self.stage.missing_lines("greedy").await?;
        if missing.is_empty() {
            bail!("the plugin awaits its grant, but the host reports no missing lines");
        }
        let lines: String = missing.iter().map(|line| format!("\n    {line}")).collect();
        let told = "The job says ActionAvailable=False, AwaitingGrant, and so does the host's log. Lines missing in grants.yaml:";
        self.screen.say(&format!("{told}{lines}")).await
    }

    /// Shows that a proposal outside the grant fails its target and changes nothing.
    pub(super) async fn overreach_is_denied(&mut self) -> anyhow::Result<()> {
        self.screen.title("5. A proposal for more than the plugin asked for is refused").await?;
        self.drop_plugin("overreach").await?;
        self.stage.wait_until_serving("Overreach").await?;
        let pods = self.one_of("web").await?;
        let yaml = job("opj-overreach", "Overreach", "", &pods);
        self.screen.command("kubectl apply -f -", &yaml).await?;
        self.user.apply(&yaml).await?;
        let end = self.watch(("opj-overreach", "web"), "the job to end", Snapshot::has_ended).await?;
        if !end.targets.iter().all(|target| target.detail.starts_with("MutationDenied")) {
            bail!("expected the target of plugin overreach to fail with MutationDenied: {:?}", end.targets);
        }
        let labels = |pod: &Pod| pod.metadata.labels.clone().unwrap_or_default();
        let before: Vec<_> = pods.iter().map(labels).collect();
        let after: Vec<_> = self.user.pods("web").await?.iter().map(labels).collect();
        if !before.iter().all(|labels| after.contains(labels)) {
            bail!("a pod's labels were changed by a proposal that was denied: {before:?} became {after:?}");
        }
        self.screen.say("Neither label was set: a proposal is carried out as a whole or not at all.").await
    }

    /// Asks the ledger, which is built from pods and never from a status.
    pub(super) async fn verdict(&self) -> anyhow::Result<LedgerCheck> {
        let ledger = self.stage.ledger();
        let all_gone = |entries: &[oarlock_sim::world::Entry]| {
            self.replaced.iter().all(|(_, uid)| entries.iter().any(|e| e.uid == *uid && e.effect == Effect::PodGone))
        };
        // The ledger follows a watch; if it lags, its check names the missing pod.
        let _ = ledger.until("every target to be gone", Duration::from_secs(5), all_gone).await;
        let verdict = ledger.verdict(&self.replaced);
        self.screen.title("Results, by the ledger of the simulated world").await?;
        self.screen.say(&verdict.to_string()).await?;
        Ok(verdict)
    }

    async fn drop_plugin(&self, name: &str) -> anyhow::Result<()> {
        self.screen.command(&format!("cp {name}.wasm plugins/"), "").await?;
        self.stage.drop_plugin(name)
    }

    async fn one_of(&self, app: &str) -> anyhow::Result<Vec<Pod>> {
        let mut pods = self.user.pods(app).await?;
        pods.retain(|pod| pod.metadata.deletion_timestamp.is_none());
        pods.truncate(1);
        Ok(pods)
    }

    fn remember(&mut self, pods: &[Pod]) {
        let identity = |pod: &Pod| Some((pod.metadata.name.clone()?, pod.metadata.uid.clone()?));
        self.replaced.extend(pods.iter().filter_map(identity));
    }

    /// Shows the targets of a job and the pods of its set until `until` holds.
    async fn watch(
        &self,
        (job, app): (&str, &str),
        what: &str,
        until: impl Fn(&Snapshot) -> bool,
    ) -> anyhow::Result<Snapshot> {
        let targets = self.user.job(job).await?.spec.and_then(|spec| spec.targets).unwrap_or_default().len();
        let mut view = self.screen.view(targets)?;
        let deadline = tokio::time::Instant::now() + ACT_ENDS_WITHIN;
        loop {
            let now = Snapshot::of(&self.user.pods(app).await?, &self.user.job(job).await?);
            view.show(&now)?;
            if until(&now) {
                view.close()?;
                return Ok(now);
            }
            if tokio::time::Instant::now() > deadline {
                bail!(
                    "timed out after {ACT_ENDS_WITHIN:?} waiting for {what} of job {job}; run with --log info to see why"
                );
            }
            tokio::time::sleep(LOOK_EVERY).await;
        }
    }

    /// Waits until a condition of the job has a reason.
    async fn wait_for_condition(&self, job: &str, kind: &str, reason: &str) -> anyhow::Result<()> {
        let deadline = tokio::time::Instant::now() + ACT_ENDS_WITHIN;
        loop {
            let conditions = self.user.job(job).await?.status.and_then(|status| status.conditions).unwrap_or_default();
            if conditions.iter().any(|condition| condition.kind == kind && condition.reason == reason) {
                return Ok(());
            }
            if tokio::time::Instant::now() > deadline {
                bail!("job {job} does not say {kind} with reason {reason} after {ACT_ENDS_WITHIN:?}: {conditions:?}");
            }
            tokio::time::sleep(LOOK_EVERY).await;
        }
    }
}

/// An OperationJob as a user writes it; `more` is further lines of its spec.
fn job(name: &str, action: &str, more: &str, pods: &[Pod]) -> String {
    let names = pods.iter().filter_map(|pod| pod.metadata.name.as_ref());
    let targets: String = names.map(|pod| format!("\n  - name: {pod}")).collect();
    format!(
        "apiVersion: apps.kusionstack.io/v1alpha1\nkind: OperationJob\nmetadata:\n  name: {name}\n  namespace: default\n\
         spec:\n  action: {action}{more}\n  targets:{targets}\n"
    )
}
