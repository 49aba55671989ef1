//! The story of nodes: a check, and reboots two at a time, one of which a disruption budget holds up.
//!
//! The versions of the nodes and the ledger judge the outcome, never the status of a job.

use anyhow::Context as _;
use serde_json::json;

use crate::cluster::patch;
use crate::environment::Needs;
use crate::play::{Play, head};
use crate::seen::{Seen, serves};
use crate::snapshot::Snapshot;

pub(crate) const NEEDS: Needs = Needs { plugins: &["preflight", "reboot"], collaset: 5, deployment: 1, nodes: NODES };

const NODES: usize = 4;
/// Nodes that are rebooted at once.
const AT_ONCE: usize = 2;
/// The node that is cordoned when nodes are checked.
const CORDONED: &str = "node-3";
/// The jobs.
const CHECK: &str = "opj-check";
const REBOOT: &str = "opj-reboot";

pub(crate) async fn tell(play: &mut Play) -> anyhow::Result<()> {
    let told = "A Kubernetes API in memory with 4 nodes, on which run a Deployment web of 1 pod and a CollaSet foo of 5, and a\n\
                host that gets the plugins preflight and reboot. Jobs may work on nodes from a namespace with this label:";
    play.say(told).await?;
    let seen = Seen::begin(&play.environment.client);
    play.command("kubectl label namespace default oarlock.dev/node-operations=true", "").await?;
    let labels = json!({"metadata": {"labels": {"oarlock.dev/node-operations": "true"}}});
    patch(&play.environment.client, ("Namespace", "default"), labels).await?;
    for plugin in NEEDS.plugins {
        play.drop_plugin(plugin).await?;
    }
    check_nodes(play).await?;
    reboot_nodes(play, &seen).await
}

/// Checks all nodes, of which one takes no pods.
async fn check_nodes(play: &mut Play) -> anyhow::Result<()> {
    let shows = "One unprivileged pod on each node runs a script. The list of healthy nodes is positive: a node that takes no pod\n\
                 is not left out, it fails.";
    play.act("All nodes are checked", shows).await?;
    cordon(play, "cordon", true).await?;
    let parameters = "{image: check:1, script: \"# sim: output all is well\"}";
    play.apply(&on_all_nodes((CHECK, "preflight"), NODES, parameters)).await?;
    let end = play.watch((CHECK, "nodes"), "the end", Snapshot::has_ended).await?;
    let failed = end.failed();
    let observed =
        format!("{} nodes are healthy, and {} failed", NODES.saturating_sub(failed.len()), failed.join(", "));
    play.check(failed == [CORDONED] && end.targets.len() == NODES, &observed).await?;
    cordon(play, "uncordon", false).await
}

async fn cordon(play: &Play, verb: &str, cordoned: bool) -> anyhow::Result<()> {
    play.command(&format!("kubectl {verb} {CORDONED}"), "").await?;
    patch(&play.environment.client, ("Node", CORDONED), json!({"spec": {"unschedulable": cordoned}})).await
}

/// Reboots all nodes, two at a time, while a budget keeps the pod of one of them.
async fn reboot_nodes(play: &mut Play, seen: &Seen) -> anyhow::Result<()> {
    let shows = "Each is cordoned, drained and rebooted once, and is done when it is Ready with another boot id. The pod of web has a\n\
                 disruption budget that allows nothing: its node waits, and the others go on beside it.";
    play.act("All nodes are rebooted, two at a time", shows).await?;
    play.command("kubectl create pdb web --selector app=web --min-available 1", "").await?;
    budget(play, 1).await?;
    let since = seen.mark(&play.nodes().await?).await?;
    play.apply(&on_all_nodes((REBOOT, "reboot"), AT_ONCE, "{drain: true}")).await?;
    let others = NODES.saturating_sub(1);
    let waiting = play.watch((REBOOT, "nodes"), "the end of all nodes but one", |now| now.ended() >= others).await?;
    let held: Vec<_> = waiting.targets.iter().filter(|one| !one.has_ended()).collect();
    let blocked = held.first().context("no node waits")?;
    let reboots = play.environment.ledger().reboots();
    let observed = format!("{} waits ({}), and {} others were rebooted", blocked.name, blocked.detail, reboots.len());
    let is_held = held.len() == 1 && blocked.detail.contains("EvictionBlocked") && !reboots.contains_key(&blocked.name);
    play.check(is_held && reboots.len() == others, &observed).await?;
    play.say("The budget is relaxed.").await?;
    play.command("kubectl patch pdb web --type merge -p '{\"spec\":{\"minAvailable\":0}}'", "").await?;
    budget(play, 0).await?;
    let end = play.watch((REBOOT, "nodes"), "the end", Snapshot::has_ended).await?;
    let nodes = play.nodes().await?;
    seen.mark(&nodes).await?;
    let reboots = play.environment.ledger().reboots();
    let once = reboots.len() == NODES && reboots.values().all(|times| *times == 1);
    let observed = format!("each of {NODES} nodes was rebooted once: {reboots:?}");
    play.check(once && end.progress == "Succeeded", &observed).await?;
    let most = seen.most_out_of_service(("nodes", ""), NODES, since);
    let observed = format!(
        "at no version of any node were more than {AT_ONCE} of {NODES} cordoned or not Ready; at worst it was {most}"
    );
    play.check((1..=AT_ONCE).contains(&most), &observed).await?;
    let left = nodes.iter().filter(|node| !serves(node)).count();
    play.check(left == 0, &format!("{left} nodes are left cordoned or not Ready")).await
}

/// Writes the disruption budget of `web`.
async fn budget(play: &Play, min_available: u8) -> anyhow::Result<()> {
    let budget = json!({"apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": {"name": "web", "namespace": "default"},
        "spec": {"minAvailable": min_available, "selector": {"matchLabels": {"app": "web"}}}});
    play.apply_silently(&budget.to_string()).await
}

/// A job on all nodes, so many at a time.
fn on_all_nodes((name, action): (&str, &str), parallelism: usize, parameters: &str) -> String {
    let selector = "{labelSelector: {matchExpressions: [{key: kubernetes.io/hostname, operator: Exists}]}}";
    let head = head(name, action);
    format!(
        "{head}\n  targetKind: Node\n  parallelism: {parallelism}\n  selector: {selector}\n  parameters: {parameters}\n"
    )
}
