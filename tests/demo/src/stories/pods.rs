//! The story of pods: a plan, operations within bounds, a pause, a failure and a resume.
//!
//! The user drives host and world, except for one container that the world breaks. The versions of the pods and the
//! ledger judge the outcome, never the status of a job.

use std::collections::BTreeSet;

use anyhow::Context as _;
use oarlock_sim::world::Effect;
use serde_json::{Value, json};

use crate::environment::{NAMESPACE, Needs};
use crate::play::{Play, head, job, until};
use crate::seen::{Mark, Seen};
use crate::snapshot::{Snapshot, identities, is_in_traffic, is_operated_on, keys, text};

pub(crate) const NEEDS: Needs = Needs { plugins: &["replace", "restart"], collaset: 5, deployment: 6, nodes: 3 };

/// 34 % of the six pods of `web`.
const BOUND: usize = 2;
/// The job of the acts of a pause, a failure and a resume.
const CAREFUL: &str = "opj-careful";
/// The message of the container that cannot be restarted.
const BROKEN: &str = "the container runtime does not answer";

pub(crate) async fn tell(play: &mut Play) -> anyhow::Result<()> {
    let told = "A Kubernetes API in memory, with a Deployment web of 6 pods, a CollaSet foo of 5, OpenKruise, and a host that\n\
                gets the plugins Replace and Restart.";
    play.say(told).await?;
    let seen = Seen::begin(&play.environment.client);
    for plugin in NEEDS.plugins {
        play.drop_plugin(plugin).await?;
    }
    plan(play).await?;
    rolling(play, &seen).await?;
    restart(play, &seen).await?;
    let before = play.pods("foo").await?;
    let since = seen.mark(&before).await?;
    pause(play, &seen, (&before, since)).await?;
    // The second pod has the container that cannot be restarted.
    let broken = before.get(1).map(|pod| text(pod, "/metadata/name")).context("foo has no second pod")?;
    failure(play, &seen, broken).await?;
    resume(play, &seen, (&before, since)).await
}

/// The job of the first two acts.
fn rolling_job() -> String {
    let head = head("opj-rolling", "Replace");
    format!(
        "{head}\n  selector: {{labelSelector: {{matchLabels: {{app: web}}}}}}\n  maxUnavailable: 34%    # <- of 6 pods, rounded down: 2\n"
    )
}

/// Plans the job of the next act.
async fn plan(play: &mut Play) -> anyhow::Result<()> {
    let shows = "What a job would do, before it is created: this machine runs the plugin, and the API server says what it would\n\
                 answer to the first changes (dryRun=All). Nothing is changed.";
    play.act("A plan", shows).await?;
    let before = play.pods("web").await?;
    let (line, job) = ("oarlock plan - --plugins plugins --server", rolling_job());
    // The host says with its next renewal of the lease which plugins it serves.
    let plan = until("the lease to say that the same plugin serves", async || {
        let plan: Value = serde_json::from_str(&play.run(&format!("{line} -o json"), &job).await?)?;
        Ok((text(&plan, "/cluster/comparison") == "Same").then_some(plan))
    });
    let plan = plan.await?;
    play.typed(line, &job).await?;
    let count = |name: &str| plan.pointer(&format!("/counts/{name}")).and_then(Value::as_u64).unwrap_or(0);
    let counts = ["changed", "total", "waiting", "accepted"].map(count);
    let [changed, total, waiting, accepted] = counts;
    let observed = format!(
        "{changed} of {total} pods would be evicted at once and {waiting} later; the API server would accept {accepted} of these evictions"
    );
    play.check(counts == [2, 6, 4, 6], &observed).await?;
    let unchanged = play.pods("web").await? == before;
    let jobs = play.run("oarlock get -o json", "").await?;
    play.check(unchanged && !jobs.contains("opj-rolling"), "no pod has changed, and there is no job").await
}

/// Replaces all pods of the Deployment, a few at a time.
async fn rolling(play: &mut Play, seen: &Seen) -> anyhow::Result<()> {
    let shows = "All 6 pods of Deployment web are evicted and replaced, and never more than 2 of 6 are out of service: a\n\
                 pod starts only while that holds, whatever made the others unavailable.";
    play.act("A rolling replacement within maxUnavailable", shows).await?;
    let pods = play.pods("web").await?;
    let since = seen.mark(&pods).await?;
    play.apply(&rolling_job()).await?;
    play.watch(("opj-rolling", "web"), "the end", Snapshot::has_ended).await?;
    play.check_replaced(&pods).await?;
    seen.mark(&play.pods("web").await?).await?;
    let (all, most) = (pods.len(), seen.most_out_of_service(("pods", "web"), pods.len(), since));
    let observed =
        format!("at no version of any pod were more than {BOUND} of {all} out of service; at worst it was {most}");
    play.check((1..=BOUND).contains(&most), &observed).await
}

/// Restarts the containers of the CollaSet's pods in place.
async fn restart(play: &mut Play, seen: &Seen) -> anyhow::Result<()> {
    let shows = "OpenKruise restarts the containers of CollaSet foo in their pods. The job announces each operation on its\n\
                 pod by a label, KusionStack's controllers (played by the simulated world) take the pod out of traffic and\n\
                 allow it, and only then the container restarts.";
    play.act("A restart under the PodOpsLifecycle", shows).await?;
    let pods = play.pods("foo").await?;
    let since = seen.mark(&pods).await?;
    let head = head("opj-restart", "Restart");
    play.apply(&format!("{head}    # <- its plugin says lifecycle: Controlled\n  selector: {{labelSelector: {{matchLabels: {{app: foo}}}}}}\n  parallelism: 2\n")).await?;
    play.watch(("opj-restart", "foo"), "the end", Snapshot::has_ended).await?;
    until_all_get_traffic(play, seen).await?;
    let pods = identities(&pods);
    let passages: Vec<_> = pods.iter().map(|(_, uid)| seen.passage(uid, since)).collect();
    if let (Some(first), Some((name, _))) = (passages.first(), pods.first()) {
        play.say(&format!("  pod {name}: {}", first.steps.join(" -> "))).await?;
    }
    let (all, once) = (pods.len(), passages.iter().filter(|passage| passage.restarts == 1).count());
    let observed = format!("{once} of {all} containers restarted once, each in the pod that it was in");
    play.check(all > 0 && once == all, &observed).await?;
    let early: i64 = passages.iter().map(|passage| passage.restarts_in_traffic).sum();
    play.check(early == 0, &format!("{early} containers restarted while their pods got traffic")).await?;
    let last = passages.iter().filter(|passage| passage.steps.last() == Some(&"in traffic again")).count();
    play.check(last == all, &format!("{last} of {all} pods came back into traffic last")).await
}

/// Pauses a job while its first target is in flight.
async fn pause(play: &mut Play, seen: &Seen, (pods, since): (&[Value], Mark)) -> anyhow::Result<()> {
    let shows = "The same pods once more, one at a time. As soon as the first container has restarted the job is paused:\n\
                 what is in flight comes to its end, and nothing new begins.";
    play.act("A pause, and what it holds", shows).await?;
    let more = "\n  parallelism: 1\n  failurePolicy: {type: Pause, maxFailures: 0}    # <- for the next act";
    let before = restarts(play);
    play.apply(&job(CAREFUL, "Restart", more, pods)).await?;
    play.watch((CAREFUL, "foo"), "the first restart of a container", |_| restarts(play) > before).await?;
    play.patch_job(CAREFUL, &json!({"paused": true})).await?;
    play.until_condition(CAREFUL, "Paused", "PausedBySpec").await?;
    play.watch((CAREFUL, "foo"), "the end of the target in flight", |now| now.ended() >= 1).await?;
    let paused = seen.mark(&play.pods("foo").await?).await?;
    let begun = hold(play, seen, paused).await?;
    let seconds = play.environment.hold.as_secs();
    let observed = format!("in {seconds} s of the pause, an operation began on {} pods", begun.len());
    play.check(begun.is_empty(), &observed).await?;
    let first = pods.first().map(|pod| seen.passage(text(pod, "/metadata/uid"), since)).unwrap_or_default();
    let as_said = first.restarts == 1 && first.steps.last() == Some(&"in traffic again");
    play.check(as_said, "the pod that was in flight was restarted once, and is in traffic again").await
}

/// Lets the second target fail, which holds the rest.
async fn failure(play: &mut Play, seen: &Seen, broken: &str) -> anyhow::Result<()> {
    let shows = "The job goes on, but the second pod's container cannot be restarted. failurePolicy: Pause with\n\
                 maxFailures: 0 holds the rest of the job at the first failure, and the pod that failed is given back.";
    play.act("A failure that holds the rest", shows).await?;
    play.environment.world.break_container((NAMESPACE, broken), "app", BROKEN);
    let resumed = seen.mark(&play.pods("foo").await?).await?;
    play.patch_job(CAREFUL, &json!({"paused": false})).await?;
    play.watch((CAREFUL, "foo"), "the failure of the second target", |now| now.ended() >= 2).await?;
    play.until_condition(CAREFUL, "Paused", "FailureThreshold").await?;
    let mut others = hold(play, seen, resumed).await?;
    others.remove(broken);
    let observed = format!("after the failure of {broken}, an operation began on {} other pods", others.len());
    play.check(others.is_empty(), &observed).await?;
    let given_back = until_all_get_traffic(play, seen).await.is_ok();
    play.check(given_back, "the pod that failed is in traffic again, and bears no label or mark of the job").await
}

/// Mends the container, tolerates the failure, and sees the job through.
async fn resume(play: &mut Play, seen: &Seen, (pods, since): (&[Value], Mark)) -> anyhow::Result<()> {
    let shows = "The cause is mended, and the user tolerates the one failure. The job goes on where it was, and ends: as\n\
                 Failed, since one target did.";
    play.act("A resume to the end", shows).await?;
    let pods = identities(pods);
    let (broken, _) = pods.get(1).context("the job has no second pod")?;
    play.environment.world.mend_container((NAMESPACE, broken), "app");
    play.patch_job(CAREFUL, &json!({"failurePolicy": {"type": "Pause", "maxFailures": 1}})).await?;
    let end = play.watch((CAREFUL, "foo"), "the end", Snapshot::has_ended).await?;
    until_all_get_traffic(play, seen).await?;
    let is_right = |(name, uid): &&(String, String)| seen.passage(uid, since).restarts == i64::from(name != broken);
    let (all, right) = (pods.len(), pods.iter().filter(is_right).count());
    let observed =
        format!("{right} of {all} pods as they should be: restarted once by this job, and {broken} not at all");
    play.check(all > 2 && right == all, &observed).await?;
    let failed = end.failed();
    let observed = format!("the job says {}, and that of its targets {} failed", end.progress, failed.join(", "));
    play.check(end.progress == "Failed" && failed == [broken.as_str()], &observed).await
}

/// Lets a while pass in which nothing may happen. Returns the pods on which an operation began all the same.
async fn hold(play: &Play, seen: &Seen, since: Mark) -> anyhow::Result<BTreeSet<String>> {
    let hold = play.environment.hold;
    play.say(&format!("Watching the pods for {} s ...", hold.as_secs())).await?;
    tokio::time::sleep(hold).await;
    seen.mark(&play.pods("foo").await?).await?;
    Ok(seen.operated_on(since))
}

/// Returns how many containers were ever restarted.
fn restarts(play: &Play) -> usize {
    let entries = play.environment.ledger().entries();
    entries.iter().filter(|entry| matches!(entry.effect, Effect::ContainerRestarted { .. })).count()
}

/// Waits until every pod of `foo` gets traffic, and bears no label of an operation and no hold of a job.
async fn until_all_get_traffic(play: &Play, seen: &Seen) -> anyhow::Result<()> {
    let has_hold = |pod: &Value| keys(pod, "annotations").any(|key| key.starts_with("hold.oarlock.dev/"));
    let rests = |pod: &Value| is_in_traffic(pod) && !is_operated_on(pod) && !has_hold(pod);
    let pods = until("the pods of foo to get traffic", async || {
        let pods = play.pods("foo").await?;
        Ok(pods.iter().all(rests).then_some(pods))
    });
    seen.mark(&pods.await?).await.map(drop)
}
