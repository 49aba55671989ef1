//! What every story of the demo is played with: a stage, a user and a screen.

use std::time::Duration;

use anyhow::bail;
use k8s_openapi::api::core::v1::Pod;
use oarlock_view::{Comparison, FlowKind, FlowView, JobPlan, TargetRows, plan_text};

use super::flow_show::FlowShow;
use super::screen::Screen;
use super::snapshot::Snapshot;
use super::stage::Stage;
use super::user::User;

/// Interval between two reads of the cluster for the screen.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// Generous, since a machine that also compiles something is slow; a demo that waits longer hangs.
const ACT_ENDS_WITHIN: Duration = Duration::from_secs(60);

/// The demo while it runs.
pub(super) struct Play {
    pub(super) stage: Stage,
    pub(super) user: User,
    pub(super) screen: Screen,
}

impl Play {
    /// Copies a plugin into the directory of the host, as an admin would.
    pub(super) async fn drop_plugin(&self, name: &str) -> anyhow::Result<()> {
        self.screen.command(&format!("cp {name}.wasm plugins/"), "").await?;
        self.stage.drop_plugin(name)
    }

    /// Plans a job, as a user would, once the lease of the host says what it serves: it does with its next renewal.
    pub(super) async fn plan(&self, yaml: &str) -> anyhow::Result<JobPlan> {
        self.screen.command("oarlock plan - --plugins plugins --server", yaml).await?;
        let deadline = tokio::time::Instant::now() + ACT_ENDS_WITHIN;
        let plan = loop {
            let plan = self.user.plan(yaml, self.stage.plugin_directory()).await?;
            if plan.cluster.comparison != Comparison::Unknown || tokio::time::Instant::now() > deadline {
                break plan;
            }
            tokio::time::sleep(LOOK_EVERY).await;
        };
        self.screen.say(&plan_text(&plan, TargetRows::First)).await?;
        Ok(plan)
    }

    /// Applies a job, as a user would.
    pub(super) async fn apply(&self, yaml: &str) -> anyhow::Result<()> {
        self.screen.command("kubectl apply -f -", yaml).await?;
        self.user.apply(yaml).await
    }

    /// Patches the spec of a job, as a user would.
    pub(super) async fn patch(&self, job: &str, spec: &serde_json::Value) -> anyhow::Result<()> {
        let command = format!("kubectl patch opj {job} --type merge -p '{{\"spec\":{spec}}}'");
        self.screen.command(&command, "").await?;
        self.user.patch(job, spec).await
    }

    /// Shows the targets of a job and the pods of its set until `until` holds.
    pub(super) async fn watch(
        &self,
        (job, app): (&str, &str),
        what: &str,
        until: impl Fn(&Snapshot) -> bool,
    ) -> anyhow::Result<Snapshot> {
        let mut view = self.screen.view()?;
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

    /// Applies a job on nodes, once the admission policy has seen the label of its namespace.
    pub(super) async fn apply_to_nodes(&self, yaml: &str) -> anyhow::Result<()> {
        self.screen.command("kubectl apply -f -", yaml).await?;
        let deadline = tokio::time::Instant::now() + ACT_ENDS_WITHIN;
        loop {
            match self.user.apply(yaml).await {
                Err(_) if tokio::time::Instant::now() < deadline => tokio::time::sleep(LOOK_EVERY).await,
                applied => return applied,
            }
        }
    }

    /// Shows the targets of a job and all nodes until `until` holds.
    pub(super) async fn watch_nodes(
        &self,
        job: &str,
        what: &str,
        until: impl Fn(&Snapshot) -> bool,
    ) -> anyhow::Result<Snapshot> {
        let mut view = self.screen.view()?;
        let deadline = tokio::time::Instant::now() + ACT_ENDS_WITHIN;
        loop {
            let now = Snapshot::of_nodes(&self.user.nodes().await?, &self.user.job(job).await?);
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

    /// Shows a JobFlow or a DaemonJob until `until` holds, from what was `seen` of it before.
    pub(super) async fn watch_flow(
        &self,
        (kind, name, seen): (FlowKind, &str, Option<FlowView>),
        what: &str,
        until: impl Fn(&FlowView) -> bool,
    ) -> anyhow::Result<FlowView> {
        let mut show = FlowShow::begin(&self.screen, kind, seen)?;
        let deadline = tokio::time::Instant::now() + ACT_ENDS_WITHIN;
        loop {
            let now = self.user.flow(kind, name).await?;
            show.show(&now)?;
            if until(&now) {
                show.close()?;
                return Ok(now);
            }
            if tokio::time::Instant::now() > deadline {
                bail!("timed out after {ACT_ENDS_WITHIN:?} waiting for {what}; run with --log info to see why");
            }
            tokio::time::sleep(LOOK_EVERY).await;
        }
    }

    /// Waits until a condition of the job has a reason.
    pub(super) async fn wait_for_condition(&self, job: &str, kind: &str, reason: &str) -> anyhow::Result<()> {
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

/// Names and UIDs, by which the ledger knows pods.
pub(super) fn identities(pods: &[Pod]) -> Vec<(String, String)> {
    let identity = |pod: &Pod| Some((pod.metadata.name.clone()?, pod.metadata.uid.clone()?));
    pods.iter().filter_map(identity).collect()
}

/// An OperationJob as a user writes it; `more` is further lines of its spec.
pub(super) fn job(name: &str, action: &str, more: &str, pods: &[Pod]) -> String {
    let names = pods.iter().filter_map(|pod| pod.metadata.name.as_ref());
    let targets: String = names.map(|pod| format!("\n  - name: {pod}")).collect();
    format!("{}{more}\n  targets:{targets}\n", head(name, action))
}

/// The first lines of an OperationJob, up to its action.
pub(super) fn head(name: &str, action: &str) -> String {
    format!(
        "apiVersion: apps.kusionstack.io/v1alpha1\nkind: OperationJob\nmetadata:\n  name: {name}\n  namespace: default\n\
         spec:\n  action: {action}"
    )
}
