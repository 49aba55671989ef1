//! The acts of the story of nodes, in order: a check, and reboots two at a time, one of which a disruption budget holds up.
//!
//! Host and world are driven only as a user could drive them. What came of it is judged by the versions of the nodes and by
//! the world's ledger ([`observed`]), never by a job's status.

mod observed;

use std::time::Duration;

use anyhow::Context as _;
use serde_json::json;

use self::observed::NodeObservations;
use super::checks::Checks;
use super::play::{Play, head};
use super::snapshot::Snapshot;
use super::stage::Scenery;

/// What is on the stage.
pub(super) const SCENERY: Scenery = Scenery {
    plugins: &["preflight", "reboot"],
    grants: concat!(
        include_str!("../../../../plugins/preflight/grant.yaml"),
        include_str!("../../../../plugins/reboot/grant.yaml")
    ),
    collaset: 5,
    deployment: 1,
    nodes: NODES,
    kruise: false,
    rest: false,
};

const NODES: usize = 4;
/// Nodes that are rebooted at once.
const AT_ONCE: usize = 2;
/// The node that is cordoned when nodes are checked.
const CORDONED: &str = "node-3";
/// The jobs.
const CHECK: &str = "opj-check";
const REBOOT: &str = "opj-reboot";
/// The world's watches and ours may be a moment behind what a job already knows.
const SEEN_WITHIN: Duration = Duration::from_secs(10);

/// The story while it is told.
struct NodeActs<'a> {
    play: &'a Play,
    seen: NodeObservations,
    checks: Checks,
}

/// Tells the story; yields whether all its checks hold.
pub(super) async fn tell(play: &Play) -> anyhow::Result<bool> {
    let seen = NodeObservations::begin(&play.stage);
    let mut acts = NodeActs { play, seen, checks: Checks::default() };
    let told = acts.all().await;
    acts.play.screen.title("Results, by the nodes and the ledger of the simulated world").await?;
    acts.play.screen.say(&acts.checks.to_string()).await?;
    told.map(|()| acts.checks.all_hold())
}

impl NodeActs<'_> {
    async fn all(&mut self) -> anyhow::Result<()> {
        self.begin().await?;
        self.check_nodes().await?;
        self.reboot_nodes().await
    }

    async fn begin(&self) -> anyhow::Result<()> {
        let told = "A Kubernetes API in memory with 4 nodes, on which run a Deployment web of 1 pod and a CollaSet foo of 5, and a\n\
                    host that gets the plugins preflight and reboot. Jobs may work on nodes from a namespace with this label:";
        self.play.screen.say(told).await?;
        let label = "kubectl label namespace default oarlock.dev/node-operations=true";
        self.play.screen.command(label, "").await?;
        self.play.user.allow_node_operations().await?;
        for plugin in ["preflight", "reboot"] {
            self.play.drop_plugin(plugin).await?;
            self.play.stage.wait_until_serving(plugin).await?;
        }
        Ok(())
    }

    /// Checks all nodes, of which one takes no pods.
    async fn check_nodes(&mut self) -> anyhow::Result<()> {
        self.play.screen.title("1. All nodes are checked").await?;
        let shows = "One unprivileged pod on each node runs a script. The list of healthy nodes is positive: a node that takes no pod\n\
                     is not left out, it fails.";
        self.play.screen.say(shows).await?;
        self.play.screen.command(&format!("kubectl cordon {CORDONED}"), "").await?;
        self.play.user.cordon(CORDONED, true).await?;
        let parameters = "\n  parameters: {image: check:1, script: \"# sim: output all is well\"}";
        self.play.apply_to_nodes(&format!("{}{}{parameters}\n", head(CHECK, "preflight"), on_all_nodes(NODES))).await?;
        let end = self.play.watch_nodes(CHECK, "the job to end", Snapshot::has_ended).await?;
        let failed: Vec<&str> =
            end.targets.iter().filter(|one| one.progress == "Failed").map(|one| one.name.as_str()).collect();
        let observed =
            format!("{} nodes are healthy, and {} failed", NODES.saturating_sub(failed.len()), failed.join(", "));
        self.check(failed == [CORDONED] && end.targets.len() == NODES, &observed).await?;
        self.play.screen.command(&format!("kubectl uncordon {CORDONED}"), "").await?;
        self.play.user.cordon(CORDONED, false).await
    }

    /// Reboots all nodes, two at a time, while a budget keeps the pod of one of them.
    async fn reboot_nodes(&mut self) -> anyhow::Result<()> {
        self.play.screen.title("2. All nodes are rebooted, two at a time").await?;
        let shows = "Each is cordoned, drained and rebooted once, and is done when it is Ready with another boot id. The pod of web has a\n\
                     disruption budget that allows nothing: its node waits, and the others go on beside it.";
        self.play.screen.say(shows).await?;
        self.play.screen.command("kubectl create pdb web --selector app=web --min-available 1", "").await?;
        self.play.user.budget("web", 1).await?;
        let since = self.seen.mark(&self.play.user.nodes().await?, SEEN_WITHIN).await?;
        let parameters = "\n  parameters: {drain: true}";
        self.play.apply_to_nodes(&format!("{}{}{parameters}\n", head(REBOOT, "reboot"), on_all_nodes(AT_ONCE))).await?;
        let others_done = |now: &Snapshot| now.ended() >= NODES.saturating_sub(1);
        let waiting = self.play.watch_nodes(REBOOT, "all nodes but one to be rebooted", others_done).await?;
        let held: Vec<_> = waiting.targets.iter().filter(|one| !one.has_ended()).collect();
        let blocked = held.first().context("no node waits")?;
        let reboots = self.play.stage.ledger().reboots();
        let observed =
            format!("{} waits ({}), and {} others were rebooted", blocked.name, blocked.detail, reboots.len());
        let as_said =
            held.len() == 1 && blocked.detail.contains("EvictionBlocked") && !reboots.contains_key(&blocked.name);
        self.check(as_said && reboots.len() == NODES.saturating_sub(1), &observed).await?;
        self.play.screen.say("The budget is relaxed.").await?;
        self.play.screen.command("kubectl patch pdb web --type merge -p '{\"spec\":{\"minAvailable\":0}}'", "").await?;
        self.play.user.budget("web", 0).await?;
        let end = self.play.watch_nodes(REBOOT, "the job to end", Snapshot::has_ended).await?;
        self.seen.mark(&self.play.user.nodes().await?, SEEN_WITHIN).await?;
        let reboots = self.play.stage.ledger().reboots();
        let once = reboots.len() == NODES && reboots.values().all(|times| *times == 1);
        self.check(
            once && end.progress == "Succeeded",
            &format!("each of {NODES} nodes was rebooted once: {reboots:?}"),
        )
        .await?;
        let most = self.seen.most_out_of_service(since);
        let observed = format!(
            "at no version of any node were more than {AT_ONCE} of {NODES} cordoned or not Ready; at worst it was {most}"
        );
        self.check((1..=AT_ONCE).contains(&most), &observed).await?;
        let left = self.play.user.nodes().await?.iter().filter(|node| !observed::serves(&json!(node))).count();
        self.check(left == 0, &format!("{left} nodes are left cordoned or not Ready")).await
    }

    /// Notes what was observed, whether it is as it was said, and shows it.
    async fn check(&mut self, holds: bool, observed: &str) -> anyhow::Result<()> {
        let line = self.checks.add(holds, observed);
        self.play.screen.say(&line).await
    }
}

/// The lines of a job on all nodes, so many at a time.
fn on_all_nodes(parallelism: usize) -> String {
    format!(
        "\n  targetKind: Node\n  parallelism: {parallelism}\n  selector: {{labelSelector: {{matchExpressions: [{{key: kubernetes.io/hostname, operator: Exists}}]}}}}"
    )
}
