//! The story of plugins: they come into a running host, replace pods, and are held to their grants.

use serde_json::{Value, json};

use crate::environment::Needs;
use crate::play::{Play, job};
use crate::snapshot::Snapshot;

pub(crate) const NEEDS: Needs =
    Needs { plugins: &["replace", "greedy", "overreach"], collaset: 3, deployment: 3, nodes: 3 };

pub(crate) async fn tell(play: &mut Play) -> anyhow::Result<()> {
    play.say("A Kubernetes API in memory, a CollaSet foo and a Deployment web, and a host that has no plugin yet.")
        .await?;
    let mut replaced = replace_a_collaset(play).await?;
    replaced.extend(replace_a_deployment(play).await?);
    greedy_waits(play).await?;
    overreach_is_denied(play).await?;
    play.check_replaced(&replaced).await
}

/// Adds the plugin and replaces the pods of the CollaSet, one partition after the other.
async fn replace_a_collaset(play: &mut Play) -> anyhow::Result<Vec<Value>> {
    play.act("A plugin is dropped into the directory of a running host", "").await?;
    let served = play.drop_plugin("replace").await?.as_millis();
    play.say(&format!("The host serves action Replace {served} ms after the file arrived. It was not restarted."))
        .await?;

    play.act("An OperationJob replaces pods, one partition after the other", "").await?;
    let pods = play.pods("foo").await?;
    play.apply(&job("opj-replace", "Replace", "\n  partition: 1", &pods)).await?;
    play.watch(("opj-replace", "foo"), "the end of the first target", |now| now.ended() >= 1).await?;
    play.say("partition: 1 lets one target start; the others wait.").await?;
    play.patch_job("opj-replace", &json!({"partition": pods.len()})).await?;
    play.watch(("opj-replace", "foo"), "the end", Snapshot::has_ended).await?;
    Ok(pods)
}

/// Replaces the pods of a Deployment by eviction: its controller does not cooperate.
async fn replace_a_deployment(play: &mut Play) -> anyhow::Result<Vec<Value>> {
    play.act("The same action on a Deployment's pods: evict, and wait for the new one", "").await?;
    let pods = play.pods("web").await?;
    play.apply(&job("opj-web", "Replace", "", &pods)).await?;
    play.watch(("opj-web", "web"), "the end", Snapshot::has_ended).await?;
    Ok(pods)
}

/// Shows that a plugin serves nothing until all its requests are granted.
async fn greedy_waits(play: &mut Play) -> anyhow::Result<()> {
    play.act("A plugin that asks for more than it is granted serves nothing", "").await?;
    play.drop_plugin("greedy").await?;
    let pods = one_of_web(play).await?;
    play.apply(&job("opj-greedy", "Greedy", "", &pods)).await?;
    play.until_condition("opj-greedy", "ActionAvailable", "AwaitingGrant").await?;
    play.say(
        "The job says ActionAvailable=False, AwaitingGrant, and so does the host's log. Lines missing in grants.yaml:",
    )
    .await?;
    let said = play.typed("oarlock plugin vet plugins/greedy.wasm --grants grants.yaml", "").await?;
    let missing = said.lines().skip_while(|line| !line.contains("the grant lacks:")).skip(1).count();
    play.check(missing == 4, &format!("{missing} lines are missing, and the plugin serves nothing")).await
}

/// Shows that a proposal outside the grant fails its target and changes nothing.
async fn overreach_is_denied(play: &mut Play) -> anyhow::Result<()> {
    play.act("A proposal for more than the plugin asked for is refused", "").await?;
    play.drop_plugin("overreach").await?;
    let pods = one_of_web(play).await?;
    play.apply(&job("opj-overreach", "Overreach", "", &pods)).await?;
    let end = play.watch(("opj-overreach", "web"), "the end", Snapshot::has_ended).await?;
    let denied = end.targets.iter().all(|target| target.detail.starts_with("MutationDenied"));
    let labels = |pods: &[Value]| pods.iter().map(|pod| pod.pointer("/metadata/labels").cloned()).collect::<Vec<_>>();
    let after = labels(&play.pods("web").await?);
    let unchanged = labels(&pods).iter().all(|labels| after.contains(labels));
    let observed = "Neither label was set: a proposal is carried out as a whole or not at all.";
    play.check(denied && unchanged && end.targets.len() == 1, observed).await
}

async fn one_of_web(play: &Play) -> anyhow::Result<Vec<Value>> {
    let mut pods = play.pods("web").await?;
    pods.retain(|pod| pod.pointer("/metadata/deletionTimestamp").is_none());
    pods.truncate(1);
    Ok(pods)
}
