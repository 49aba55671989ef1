//! The acts of the story of flows, in order: a JobFlow with a retry, an operation, a branch and finally; then a DaemonJob.
//!
//! Host and world are driven only as a user could drive them. What came of it is judged by the world's ledger of pods
//! ([`observed`]); beside that, the objects have to say what the ledger shows.

mod observed;

use std::collections::BTreeMap;
use std::time::Duration;

use oarlock_view::{FlowKind, FlowView, ShownState};
use serde_json::{Value, json};

use self::observed::Work;
use super::checks::Checks;
use super::flow_show::drawing;
use super::play::{Play, identities};
use super::stage::Scenery;
use crate::commands::jobs::now;

/// What is on the stage.
pub(super) const SCENERY: Scenery =
    Scenery { plugins: &["replace"], grants: "", collaset: 3, deployment: 1, nodes: NODES, kruise: false, rest: false };

const NODES: usize = 4;
/// The manifests, which are for `oarlock dev` as well, and where they are in the repository.
const FLOW: &str = include_str!("flow.yaml");
const ON_NODES: &str = include_str!("daemonjob.yaml");
const FOLDER: &str = "host/src/commands/demo";
/// Names in them.
const RELEASE: &str = "release";
const DISKS: &str = "disks";
const MIGRATE: &str = "migrate";
const REPLACE: &str = "replace";
/// Steps that are for failures.
const NOT_NEEDED: [&str; 2] = ["roll-back", "alarm"];
/// The world's watches may be a moment behind what an object already knows.
const SEEN_WITHIN: Duration = Duration::from_secs(10);

/// The story while it is told.
struct FlowActs<'a> {
    play: &'a Play,
    checks: Checks,
}

/// Tells the story; yields whether all its checks hold.
pub(super) async fn tell(play: &Play) -> anyhow::Result<bool> {
    let mut acts = FlowActs { play, checks: Checks::default() };
    let told = acts.all().await;
    acts.play.screen.title("Results, by the ledger of the simulated world").await?;
    acts.play.screen.say(&acts.checks.to_string()).await?;
    if told.is_ok() {
        acts.by_hand().await?;
    }
    told.map(|()| acts.checks.all_hold())
}

impl FlowActs<'_> {
    async fn all(&mut self) -> anyhow::Result<()> {
        self.begin().await?;
        self.flow().await?;
        self.on_nodes().await
    }

    async fn begin(&self) -> anyhow::Result<()> {
        let told = "A Kubernetes API in memory with 4 nodes, on which runs a CollaSet foo of 3 pods, and a host that gets the plugin\n\
                    Replace. JobFlow, JobTemplate and DaemonJob are its own.";
        self.play.screen.say(told).await?;
        self.play.drop_plugin("replace").await?;
        self.play.stage.wait_until_serving("Replace").await.map(drop)
    }

    /// Runs the flow, and mends the template of the step that fails.
    async fn flow(&mut self) -> anyhow::Result<()> {
        let screen = &self.play.screen;
        screen.title("1. A flow of Jobs and an operation").await?;
        let shows = "Step migrate fails until its template is mended. Step replace is an OperationJob on the pods of foo. roll-back is for\n\
                     its failure, and finally runs whatever came before.";
        screen.say(shows).await?;
        screen.command("cat flow.yaml", FLOW).await?;
        screen.command("oarlock graph -f flow.yaml", "").await?;
        screen.say(drawing(&written()?, now()).trim_end()).await?;
        let pods = identities(&self.play.user.pods("foo").await?);
        screen.command("kubectl apply -f flow.yaml", "").await?;
        self.play.user.apply(FLOW).await?;
        screen.command("oarlock watch jf/release", "").await?;
        let has_failed = |view: &FlowView| state(view, MIGRATE) == Some(ShownState::Retrying);
        let of = (FlowKind::JobFlow, RELEASE, None);
        let seen = self.play.watch_flow(of, "step migrate to fail", has_failed).await?;
        self.mend().await?;
        let of = (FlowKind::JobFlow, RELEASE, Some(seen));
        let end = self.play.watch_flow(of, "the flow to end", |view| view.has_ended).await?;
        self.judge_flow(&end, &pods).await
    }

    async fn mend(&self) -> anyhow::Result<()> {
        let patch = mended();
        let command = format!("kubectl patch jt {MIGRATE} --type json -p '{patch}'");
        self.play.user.patch_template(MIGRATE, patch).await?;
        self.play
            .screen
            .say("The step will be tried again, by its template as it is then. It is mended in time:")
            .await?;
        self.play.screen.command(&command, "").await
    }

    async fn judge_flow(&mut self, end: &FlowView, pods: &[(String, String)]) -> anyhow::Result<()> {
        let ran: Vec<&str> = names(end).filter(|name| !NOT_NEEDED.contains(name)).collect();
        let jobs: Vec<&str> = ran.iter().copied().filter(|name| *name != REPLACE).collect();
        self.wait_for_ends(RELEASE, &jobs).await;
        let lost = self.play.stage.ledger().verdict_within(pods, SEEN_WITHIN).await;
        let entries = self.play.stage.ledger().entries();
        let mut work = observed::work(&entries, RELEASE, &names(end).collect::<Vec<_>>());
        work.insert(REPLACE.to_owned(), observed::replacement(&entries, pods));

        let omitted: Vec<&str> =
            end.units().iter().filter(|unit| unit.reason == "NotNeeded").map(|unit| unit.name.as_str()).collect();
        let all_well = ran.iter().all(|name| state(end, name) == Some(ShownState::Succeed));
        let said = format!(
            "the flow says {}; {} steps succeeded, not needed were {}",
            end.state,
            end.counts.succeeded,
            omitted.join(", ")
        );
        self.check(end.has_succeeded() && all_well && omitted == NOT_NEEDED, &said).await?;

        let with_pods: Vec<&str> = ran.iter().copied().filter(|name| work.contains_key(*name)).collect();
        let idle = NOT_NEEDED.iter().all(|name| !work.contains_key(*name));
        let said =
            format!("{} of {} steps had pods, and none of those that were not needed", with_pods.len(), ran.len());
        self.check(with_pods == ran && idle, &said).await?;

        let edges: Vec<(&str, &str)> = end
            .units()
            .iter()
            .flat_map(|step| step.dependencies.iter().map(|on| (step.name.as_str(), on.as_str())))
            .collect();
        let early = observed::too_early(&work, edges.iter().copied());
        let before = if early.is_empty() { String::new() } else { format!(", but for {early:?}") };
        let said = format!("no step began before those that it depends on had ended{before}");
        self.check(early.is_empty() && edges.len() > 5, &said).await?;

        let exits = work.get(MIGRATE).map(|work| work.exits.clone()).unwrap_or_default();
        let (last, failed) = exits.split_last().map_or((None, &[][..]), |(last, failed)| (Some(*last), failed));
        let as_said = last == Some(0) && !failed.is_empty() && failed.iter().all(|code| *code == 1);
        self.check(as_said, &format!("the pods of step migrate ended with the exit codes {exits:?}")).await?;
        self.check(!pods.is_empty() && lost.is_clean(), &lost.to_string()).await
    }

    /// Runs a Job on each node, one node after the other.
    async fn on_nodes(&mut self) -> anyhow::Result<()> {
        let screen = &self.play.screen;
        screen.title("2. A DaemonJob: one Job on each node, one node at a time").await?;
        screen.command("cat daemonjob.yaml", ON_NODES).await?;
        screen.command("kubectl apply -f daemonjob.yaml", "").await?;
        self.play.user.apply(ON_NODES).await?;
        screen.command("oarlock watch dj/disks", "").await?;
        let end = self
            .play
            .watch_flow((FlowKind::DaemonJob, DISKS, None), "the DaemonJob to end", |view| view.has_ended)
            .await?;
        let nodes: Vec<&str> = names(&end).collect();
        self.wait_for_ends(DISKS, &nodes).await;
        let work = observed::work(&self.play.stage.ledger().entries(), DISKS, &nodes);
        let right = work.iter().filter(|(node, work)| work.exits == [0] && work.nodes == [(*node).clone()]).count();
        let said = format!("the DaemonJob says {}; {right} of {NODES} nodes had one pod, and it ended well", end.state);
        self.check(end.has_succeeded() && work.len() == NODES && right == NODES, &said).await?;
        let most = observed::most_at_once(&work);
        self.check(
            most == 1,
            &format!(
                "at no entry of the ledger had more than 1 of them a pod that had not ended; at worst it was {most}"
            ),
        )
        .await
    }

    /// Waits until the newest pod of each of these ended; what is missing then shows in the checks.
    async fn wait_for_ends(&self, object: &str, units: &[&str]) {
        let has_ended = |work: &BTreeMap<String, Work>, unit: &str| {
            work.get(unit).is_some_and(|work| work.pods > 0 && work.exits.len() == work.pods)
        };
        let all_ended = |entries: &[oarlock_sim::world::Entry]| {
            let work = observed::work(entries, object, units);
            units.iter().all(|unit| has_ended(&work, unit))
        };
        let _ = self.play.stage.ledger().until("the pods to end", SEEN_WITHIN, all_ended).await;
    }

    /// Says what to type for the same.
    async fn by_hand(&self) -> anyhow::Result<()> {
        self.play.screen.title("The same by hand, on a cluster that stays").await?;
        let patch = mended();
        let typed = format!(
            "  oarlock dev --plugins target/wasm32-wasip2/release --kubeconfig-out dev.kubeconfig\n\n\
             and in another terminal, with oarlock of target/debug in PATH:\n\n\
             \x20 export KUBECONFIG=$PWD/dev.kubeconfig\n\
             \x20 kubectl apply -f {FOLDER}/flow.yaml\n\
             \x20 oarlock watch jf/{RELEASE}        # live, until it ends; `q` leaves it\n\
             \x20 kubectl patch jt {MIGRATE} --type json -p '{patch}'\n\
             \x20 oarlock graph {RELEASE}\n\
             \x20 kubectl apply -f {FOLDER}/daemonjob.yaml\n\
             \x20 oarlock watch dj/{DISKS}\n\
             \x20 kubectl get jf,dj,jobs,opj"
        );
        self.play.screen.say(&typed).await
    }

    /// Notes what was observed, whether it is as it was said, and shows it.
    async fn check(&mut self, holds: bool, observed: &str) -> anyhow::Result<()> {
        let line = self.checks.add(holds, observed);
        self.play.screen.say(&line).await
    }
}

/// The flow as its file has it.
fn written() -> anyhow::Result<FlowView> {
    let documents: Vec<Value> = serde_saphyr::from_multiple(FLOW)?;
    let flow = documents.iter().find(|document| document.get("kind").is_some_and(|kind| kind == "JobFlow"));
    Ok(FlowView::new(flow.unwrap_or(&Value::Null), []))
}

/// The JSON Patch that mends the template of step migrate.
fn mended() -> Value {
    json!([{"op": "replace", "path": "/spec/jobTemplate/template/spec/containers/0/args/0", "value": "sleep 1"}])
}

fn names(view: &FlowView) -> impl Iterator<Item = &str> {
    view.units().iter().map(|unit| unit.name.as_str())
}

fn state(view: &FlowView, unit: &str) -> Option<ShownState> {
    view.units().iter().find(|one| one.name == unit).map(|one| one.state)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_file_holds_the_steps_that_the_story_is_about() {
        let view = written().unwrap();
        assert_eq!(view.name, RELEASE);
        for step in [MIGRATE, REPLACE].into_iter().chain(NOT_NEEDED) {
            assert!(state(&view, step).is_some(), "{step}");
        }
    }
}
