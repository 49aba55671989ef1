//! Three acts on one job: a pause, a failure that trips the failure policy, and a resume to the end.

use std::collections::BTreeSet;

use anyhow::Context as _;
use oarlock_sim::world::Effect;
use serde_json::json;

use super::super::play::{identities, job};
use super::super::snapshot::Snapshot;
use super::observed::Mark;
use super::{PodActs, SEEN_WITHIN};
use crate::commands::in_memory::NAMESPACE;

/// The job of these acts.
const JOB: &str = "opj-careful";
/// The message of the container that cannot be restarted.
const BROKEN: &str = "the container runtime does not answer";

/// The job of these acts, and the pods it restarts.
pub(super) struct Careful {
    /// Names and UIDs, in the order of the job.
    pods: Vec<(String, String)>,
    since: Mark,
}

impl Careful {
    /// The pod whose container cannot be restarted: the second.
    fn broken(&self) -> anyhow::Result<&str> {
        self.pods.get(1).map(|(name, _)| name.as_str()).context("the job has no second pod")
    }
}

impl PodActs<'_> {
    /// Pauses a job while its first target is in flight.
    pub(super) async fn pause(&mut self) -> anyhow::Result<Careful> {
        let shows = "The same pods once more, one at a time. As soon as the first container has restarted the job is paused:\n\
                     what is in flight comes to its end, and nothing new begins.";
        self.act("A pause, and what it holds", shows).await?;
        let found = self.play.user.pods("foo").await?;
        let careful = Careful { since: self.seen.mark(&found, SEEN_WITHIN).await?, pods: identities(&found) };
        let more = "\n  parallelism: 1\n  failurePolicy: {type: Pause, maxFailures: 0}    # <- for the next act";
        let restarts = self.restarts();
        self.play.apply(&job(JOB, "Restart", more, &found)).await?;
        self.play.watch((JOB, "foo"), "the first container to restart", |_| self.restarts() > restarts).await?;
        self.play.patch(JOB, &json!({"paused": true})).await?;
        self.play.wait_for_condition(JOB, "Paused", "PausedBySpec").await?;
        self.play.watch((JOB, "foo"), "the target in flight to end", |now| now.ended() >= 1).await?;
        let paused = self.seen.mark(&self.play.user.pods("foo").await?, SEEN_WITHIN).await?;
        let begun = self.hold(paused).await?;
        let seconds = self.play.stage.hold().as_secs_f64();
        let observed = format!("in {seconds} s of the pause, an operation began on {} pods", begun.len());
        self.check(begun.is_empty(), &observed).await?;
        let first = careful.pods.first().map(|(_, uid)| self.seen.passage(uid, careful.since)).unwrap_or_default();
        let observed = "the pod that was in flight was restarted once, and is in traffic again";
        self.check(first.restarts == 1 && first.steps.last() == Some(&"in traffic again"), observed).await?;
        Ok(careful)
    }

    /// Lets the second target fail, which holds the rest.
    pub(super) async fn failure(&mut self, careful: &Careful) -> anyhow::Result<()> {
        let shows = "The job goes on, but the second pod's container cannot be restarted. failurePolicy: Pause with\n\
                     maxFailures: 0 holds the rest of the job at the first failure, and the pod that failed is given back.";
        self.act("A failure that holds the rest", shows).await?;
        let broken = careful.broken()?.to_owned();
        self.play.stage.world().break_container((NAMESPACE, &broken), "app", BROKEN);
        let resumed = self.seen.mark(&self.play.user.pods("foo").await?, SEEN_WITHIN).await?;
        self.play.patch(JOB, &json!({"paused": false})).await?;
        self.play.watch((JOB, "foo"), "the second target to fail", |now| now.ended() >= 2).await?;
        self.play.wait_for_condition(JOB, "Paused", "FailureThreshold").await?;
        let begun = self.hold(resumed).await?;
        let others: BTreeSet<&str> = begun.iter().map(String::as_str).filter(|name| *name != broken).collect();
        let observed = format!("after the failure of {broken}, an operation began on {} other pods", others.len());
        self.check(others.is_empty(), &observed).await?;
        let given_back = self.until_all_get_traffic().await.is_ok();
        self.check(given_back, "the pod that failed is in traffic again, and bears no label or mark of the job").await
    }

    /// Mends the container, tolerates the failure, and sees the job through.
    pub(super) async fn resume(&mut self, careful: &Careful) -> anyhow::Result<()> {
        let shows = "The cause is mended, and the user tolerates the one failure. The job goes on where it was, and ends: as\n\
                     Failed, since one target did.";
        self.act("A resume to the end", shows).await?;
        let broken = careful.broken()?.to_owned();
        self.play.stage.world().mend_container((NAMESPACE, &broken), "app");
        self.play.patch(JOB, &json!({"failurePolicy": {"type": "Pause", "maxFailures": 1}})).await?;
        let end = self.play.watch((JOB, "foo"), "the job to end", Snapshot::has_ended).await?;
        self.until_all_get_traffic().await?;
        let restarted = |(name, uid): &(String, String)| {
            let times = self.seen.passage(uid, careful.since).restarts;
            times == if *name == broken { 0 } else { 1 }
        };
        let right = careful.pods.iter().filter(|pod| restarted(pod)).count();
        let all = careful.pods.len();
        let observed =
            format!("{right} of {all} pods as they should be: restarted once by this job, and {broken} not at all");
        self.check(all > 2 && right == all, &observed).await?;
        let failed: Vec<&str> = end
            .targets
            .iter()
            .filter(|target| target.progress == "Failed")
            .map(|target| target.name.as_str())
            .collect();
        let observed = format!("the job says {}, and that of its targets {} failed", end.progress, failed.join(", "));
        self.check(end.progress == "Failed" && failed == [broken.as_str()], &observed).await
    }

    /// Lets a while pass in which nothing may happen; yields the pods on which an operation began since a mark all the same.
    async fn hold(&self, since: Mark) -> anyhow::Result<BTreeSet<String>> {
        let hold = self.play.stage.hold();
        self.play.screen.say(&format!("Watching the pods for {} s ...", hold.as_secs_f64())).await?;
        tokio::time::sleep(hold).await;
        self.seen.mark(&self.play.user.pods("foo").await?, SEEN_WITHIN).await?;
        Ok(self.seen.operated_on(since))
    }

    /// How many containers were ever restarted.
    fn restarts(&self) -> usize {
        let entries = self.play.stage.ledger().entries();
        entries.iter().filter(|entry| matches!(entry.effect, Effect::ContainerRestarted { .. })).count()
    }
}
