//! The story of flows: a JobFlow with a retry, an operation, a branch and finally; then a DaemonJob.
//!
//! The ledger of pods judges the outcome. The objects have to say what the ledger shows.

use std::collections::BTreeMap;
use std::fs::write;

use oarlock_sim::world::Entry;
use serde_json::{Value, json};

use crate::cluster::{get, patch};
use crate::environment::Needs;
use crate::play::{Play, SEEN_WITHIN};
use crate::snapshot::{array, identities, text};
use crate::work::{Work, most_at_once, replacement, too_early, work};

pub(crate) const NEEDS: Needs = Needs { plugins: &["replace"], collaset: 3, deployment: 1, nodes: NODES };

const NODES: usize = 4;
/// The manifests, which are for `oarlock dev` as well, and their folder in the repository.
const FLOW: &str = include_str!("../../flow.yaml");
const ON_NODES: &str = include_str!("../../daemonjob.yaml");
const FOLDER: &str = "tests/demo";
/// Steps of the flow: one fails until it is mended, one is an operation, and two are for failures.
const MIGRATE: &str = "migrate";
const REPLACE: &str = "replace";
const NOT_NEEDED: [&str; 2] = ["roll-back", "alarm"];

pub(crate) async fn tell(play: &mut Play) -> anyhow::Result<()> {
    let told = "A Kubernetes API in memory with 4 nodes, on which runs a CollaSet foo of 3 pods, and a host that gets the plugin\n\
                Replace. JobFlow, JobTemplate and DaemonJob are its own.";
    play.say(told).await?;
    play.drop_plugin(REPLACE).await?;
    write(play.environment.path("flow.yaml"), FLOW)?;
    write(play.environment.path("daemonjob.yaml"), ON_NODES)?;
    flow(play).await?;
    on_nodes(play).await
}

/// Runs the flow, and mends the template of the step that fails.
async fn flow(play: &mut Play) -> anyhow::Result<()> {
    let shows = "Step migrate fails until its template is mended. Step replace is an OperationJob on the pods of foo. roll-back is for\n\
                 its failure, and finally runs whatever came before.";
    play.act("A flow of Jobs and an operation", shows).await?;
    play.typed("cat flow.yaml", "").await?;
    play.typed("oarlock graph -f flow.yaml", "").await?;
    let pods = play.pods("foo").await?;
    play.command("kubectl apply -f flow.yaml", "").await?;
    play.apply_silently(FLOW).await?;
    let mut is_mended = false;
    play.follow("oarlock watch jf/release", async |line| {
        if !is_mended && line.contains(MIGRATE) && line.contains("Retrying") {
            is_mended = true;
            mend(play).await?;
        }
        Ok(())
    })
    .await?;
    play.typed("oarlock graph release", "").await?;
    let end = get(&play.environment.client, "JobFlow", "release").await?;
    judge_flow(play, &end, &pods).await
}

async fn mend(play: &Play) -> anyhow::Result<()> {
    play.say("The step will be tried again, by its template as it is then. It is mended in time:").await?;
    play.command(&format!("kubectl patch jt {MIGRATE} --type json -p '{}'", mended()), "").await?;
    patch(&play.environment.client, ("JobTemplate", MIGRATE), mended()).await
}

/// The JSON Patch that mends the template of step migrate.
fn mended() -> Value {
    json!([{"op": "replace", "path": "/spec/jobTemplate/template/spec/containers/0/args/0", "value": "sleep 1"}])
}

async fn judge_flow(play: &mut Play, end: &Value, pods: &[Value]) -> anyhow::Result<()> {
    let steps = array(end, "/status/steps");
    let names: Vec<&str> = steps.iter().map(|step| text(step, "/name")).collect();
    let ran: Vec<&str> = names.iter().copied().filter(|name| !NOT_NEEDED.contains(name)).collect();
    let jobs: Vec<&str> = ran.iter().copied().filter(|name| *name != REPLACE).collect();
    until_ended(play, "release", &jobs).await;
    let lost = play.environment.ledger().verdict_within(&identities(pods), SEEN_WITHIN).await;
    let entries = play.environment.ledger().entries();
    let mut work = work(&entries, "release", &names);
    work.insert(REPLACE.to_owned(), replacement(&entries, &identities(pods)));

    let those = |field: &str, value: &str| {
        let found = steps.iter().filter(|step| text(step, field) == value);
        found.map(|step| text(step, "/name")).collect::<Vec<_>>()
    };
    let (succeeded, omitted) = (those("/state", "Succeed"), those("/reason", "NotNeeded"));
    let state = text(end, "/status/state");
    let (count, left_out) = (succeeded.len(), omitted.join(", "));
    let said = format!("the flow says {state}; {count} steps succeeded, not needed were {left_out}");
    play.check(state == "Succeed" && succeeded == ran && omitted == NOT_NEEDED, &said).await?;

    let with_pods: Vec<&str> = names.iter().copied().filter(|name| work.contains_key(*name)).collect();
    let said = format!("{} of {} steps had pods, and none of those that were not needed", with_pods.len(), ran.len());
    play.check(with_pods == ran, &said).await?;

    let specified = array(end, "/spec/flows").iter().chain(array(end, "/spec/finally"));
    let edges = specified.flat_map(|step| {
        let on = array(step, "/dependencies").iter().filter_map(Value::as_str);
        on.map(|on| (text(step, "/name"), on))
    });
    let edges: Vec<(&str, &str)> = edges.collect();
    let early = too_early(&work, &edges);
    let but = if early.is_empty() { String::new() } else { format!(", but for {early:?}") };
    let said = format!("no step began before those that it depends on had ended{but}");
    play.check(early.is_empty() && edges.len() > 5, &said).await?;

    let exits = work.get(MIGRATE).map(|work| work.exits.as_slice()).unwrap_or_default();
    let as_said = exits
        .split_last()
        .is_some_and(|(last, failed)| *last == 0 && !failed.is_empty() && failed.iter().all(|code| *code == 1));
    play.check(as_said, &format!("the pods of step migrate ended with the exit codes {exits:?}")).await?;
    play.check(!pods.is_empty() && lost.is_clean(), &lost.to_string()).await
}

/// Runs a Job on each node, one node after the other.
async fn on_nodes(play: &mut Play) -> anyhow::Result<()> {
    play.act("A DaemonJob: one Job on each node, one node at a time", "").await?;
    play.typed("cat daemonjob.yaml", "").await?;
    play.command("kubectl apply -f daemonjob.yaml", "").await?;
    play.apply_silently(ON_NODES).await?;
    play.follow("oarlock watch dj/disks", async |_| Ok(())).await?;
    let end = get(&play.environment.client, "DaemonJob", "disks").await?;
    let nodes: Vec<&str> = array(&end, "/status/nodes").iter().map(|node| text(node, "/name")).collect();
    until_ended(play, "disks", &nodes).await;
    let work = work(&play.environment.ledger().entries(), "disks", &nodes);
    let right = work.iter().filter(|(node, work)| work.exits == [0] && work.nodes == [(*node).clone()]).count();
    let state = text(&end, "/status/state");
    let said = format!("the DaemonJob says {state}; {right} of {NODES} nodes had one pod, and it ended well");
    play.check(state == "Succeed" && work.len() == NODES && right == NODES, &said).await?;
    let most = most_at_once(&work);
    let said =
        format!("at no entry of the ledger had more than 1 of them a pod that had not ended; at worst it was {most}");
    play.check(most == 1, &said).await
}

/// Waits until the newest pod of each of these units ended. The checks show a missing pod.
async fn until_ended(play: &Play, object: &str, units: &[&str]) {
    let has_ended = |found: &BTreeMap<String, Work>, unit: &str| {
        found.get(unit).is_some_and(|work| work.pods > 0 && work.exits.len() == work.pods)
    };
    let all_ended = |entries: &[Entry]| {
        let found = work(entries, object, units);
        units.iter().all(|unit| has_ended(&found, unit))
    };
    let _late = play.environment.ledger().until("the pods to end", SEEN_WITHIN, all_ended).await;
}

/// Returns what to type for the same.
pub(crate) fn by_hand() -> String {
    let patch = mended();
    format!(
        "  oarlock dev --plugins target/wasm32-wasip2/release --kubeconfig-out dev.kubeconfig\n\n\
         and in another terminal, with oarlock of target/debug in PATH:\n\n\
         \x20 export KUBECONFIG=$PWD/dev.kubeconfig\n\
         \x20 kubectl apply -f {FOLDER}/flow.yaml\n\
         \x20 oarlock watch jf/release        # live, until it ends; `q` leaves it\n\
         \x20 kubectl patch jt {MIGRATE} --type json -p '{patch}'\n\
         \x20 oarlock graph release\n\
         \x20 kubectl apply -f {FOLDER}/daemonjob.yaml\n\
         \x20 oarlock watch dj/disks\n\
         \x20 kubectl get jf,dj,jobs,opj"
    )
}
