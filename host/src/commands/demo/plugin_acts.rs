//! The acts of the story of plugins, in order: the steps of a user and of an admin, and their effects on screen.
//!
//! Host and world are driven only as a user could drive them. The ledger judges the outcome.

use std::time::Duration;

use anyhow::bail;
use k8s_openapi::api::core::v1::Pod;
use oarlock_sim::world::{Effect, LedgerCheck};
use serde_json::json;

use super::play::{Play, identities, job};
use super::snapshot::Snapshot;
use super::stage::Scenery;

/// What is on the stage; the grants are those of the two plugins that are not shipped.
pub(super) const SCENERY: Scenery = Scenery {
    plugins: &["replace", "greedy", "overreach"],
    grants: include_str!("../../../manifests/demo-grants.yaml"),
    collaset: 3,
    deployment: 3,
    nodes: 3,
    kruise: false,
    rest: false,
};

/// The story while it is told.
pub(super) struct PluginActs<'a> {
    play: &'a Play,
    /// Pods to be replaced, by name and UID.
    replaced: Vec<(String, String)>,
}

/// Tells the story; yields whether each target was replaced exactly once and no other pod was lost.
pub(super) async fn tell(play: &Play) -> anyhow::Result<bool> {
    play.screen
        .say("A Kubernetes API in memory, a CollaSet foo and a Deployment web, and a host that has no plugin yet.")
        .await?;
    let mut acts = PluginActs { play, replaced: Vec::new() };
    let told = acts.all().await;
    let verdict = acts.verdict().await?;
    told.map(|()| verdict.is_clean() && !acts.replaced.is_empty())
}

impl PluginActs<'_> {
    async fn all(&mut self) -> anyhow::Result<()> {
        self.replace_a_collaset().await?;
        self.replace_a_deployment().await?;
        self.greedy_waits().await?;
        self.overreach_is_denied().await
    }

    /// Adds the plugin and replaces the pods of the CollaSet, one partition after the other.
    async fn replace_a_collaset(&mut self) -> anyhow::Result<()> {
        self.play.screen.title("1. A plugin is dropped into the directory of a running host").await?;
        self.play.drop_plugin("replace").await?;
        let served = self.play.stage.wait_until_serving("Replace").await?;
        self.play
            .screen
            .say(&format!(
                "The host serves action Replace {} ms after the file arrived. It was not restarted.",
                served.as_millis()
            ))
            .await?;

        self.play.screen.title("2. An OperationJob replaces pods, one partition after the other").await?;
        let pods = self.play.user.pods("foo").await?;
        let yaml = job("opj-replace", "Replace", "\n  partition: 1", &pods);
        self.play.apply(&yaml).await?;
        self.play.watch(("opj-replace", "foo"), "the first target to end", |now| now.ended() >= 1).await?;
        self.play.screen.say("partition: 1 lets one target start; the others wait.").await?;
        let all = pods.len();
        self.play.patch("opj-replace", &json!({"partition": all})).await?;
        self.play.watch(("opj-replace", "foo"), "the job to end", Snapshot::has_ended).await?;
        self.replaced.extend(identities(&pods));
        Ok(())
    }

    /// Replaces the pods of a Deployment by eviction: its controller does not cooperate.
    async fn replace_a_deployment(&mut self) -> anyhow::Result<()> {
        self.play.screen.title("3. The same action on a Deployment's pods: evict, and wait for the new one").await?;
        let pods = self.play.user.pods("web").await?;
        let yaml = job("opj-web", "Replace", "", &pods);
        self.play.apply(&yaml).await?;
        self.play.watch(("opj-web", "web"), "the job to end", Snapshot::has_ended).await?;
        self.replaced.extend(identities(&pods));
        Ok(())
    }

    /// Shows that a plugin serves nothing until all its requests are granted.
    async fn greedy_waits(&mut self) -> anyhow::Result<()> {
        self.play.screen.title("4. A plugin that asks for more than it is granted serves nothing").await?;
        self.play.drop_plugin("greedy").await?;
        let pods = self.one_of("web").await?;
        let yaml = job("opj-greedy", "Greedy", "", &pods);
        self.play.apply(&yaml).await?;
        self.play.wait_for_condition("opj-greedy", "ActionAvailable", "AwaitingGrant").await?;
        let missing = self.play.stage.missing_lines("greedy").await?;
        if missing.is_empty() {
            bail!("the plugin awaits its grant, but the host reports no missing lines");
        }
        let lines: String = missing.iter().map(|line| format!("\n    {line}")).collect();
        let told = "The job says ActionAvailable=False, AwaitingGrant, and so does the host's log. Lines missing in grants.yaml:";
        self.play.screen.say(&format!("{told}{lines}")).await
    }

    /// Shows that a proposal outside the grant fails its target and changes nothing.
    async fn overreach_is_denied(&mut self) -> anyhow::Result<()> {
        self.play.screen.title("5. A proposal for more than the plugin asked for is refused").await?;
        self.play.drop_plugin("overreach").await?;
        self.play.stage.wait_until_serving("Overreach").await?;
        let pods = self.one_of("web").await?;
        let yaml = job("opj-overreach", "Overreach", "", &pods);
        self.play.apply(&yaml).await?;
        let end = self.play.watch(("opj-overreach", "web"), "the job to end", Snapshot::has_ended).await?;
        if !end.targets.iter().all(|target| target.detail.starts_with("MutationDenied")) {
            bail!("expected the target of plugin overreach to fail with MutationDenied: {:?}", end.targets);
        }
        let labels = |pod: &Pod| pod.metadata.labels.clone().unwrap_or_default();
        let before: Vec<_> = pods.iter().map(labels).collect();
        let after: Vec<_> = self.play.user.pods("web").await?.iter().map(labels).collect();
        if !before.iter().all(|labels| after.contains(labels)) {
            bail!("a pod's labels were changed by a proposal that was denied: {before:?} became {after:?}");
        }
        self.play.screen.say("Neither label was set: a proposal is carried out as a whole or not at all.").await
    }

    /// Asks the ledger, which is built from pods and never from a status.
    async fn verdict(&self) -> anyhow::Result<LedgerCheck> {
        let ledger = self.play.stage.ledger();
        let all_gone = |entries: &[oarlock_sim::world::Entry]| {
            self.replaced.iter().all(|(_, uid)| entries.iter().any(|e| e.uid == *uid && e.effect == Effect::PodGone))
        };
        // The ledger follows a watch; if it lags, its check names the missing pod.
        let _ = ledger.until("every target to be gone", Duration::from_secs(5), all_gone).await;
        let verdict = ledger.verdict(&self.replaced);
        self.play.screen.title("Results, by the ledger of the simulated world").await?;
        self.play.screen.say(&verdict.to_string()).await?;
        Ok(verdict)
    }

    async fn one_of(&self, app: &str) -> anyhow::Result<Vec<Pod>> {
        let mut pods = self.play.user.pods(app).await?;
        pods.retain(|pod| pod.metadata.deletion_timestamp.is_none());
        pods.truncate(1);
        Ok(pods)
    }
}
