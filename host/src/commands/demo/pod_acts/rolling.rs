//! The acts of a rolling replacement: its plan, then a bound on pods that are out of service, and that it was kept.

use oarlock_view::Comparison;

use super::super::play::{head, identities};
use super::super::snapshot::Snapshot;
use super::{PodActs, SEEN_WITHIN};

/// 34 % of the six pods of `web`.
const BOUND: usize = 2;

/// The job of both acts.
fn rolling_job() -> String {
    format!(
        "{}\n  selector: {{labelSelector: {{matchLabels: {{app: web}}}}}}\n  maxUnavailable: 34%    # <- of 6 pods, rounded down: 2\n",
        head("opj-rolling", "Replace")
    )
}

impl PodActs<'_> {
    /// Plans the job of the next act.
    pub(super) async fn plan(&mut self) -> anyhow::Result<()> {
        let shows = "What a job would do, before it is created: this machine runs the plugin, and the API server says what it would\n\
                     answer to the first changes (dryRun=All). Nothing is changed.";
        self.act("A plan", shows).await?;
        let before = self.play.user.pods("web").await?;
        let plan = self.play.plan(&rolling_job()).await?;
        let counts = plan.counts;
        let observed = format!(
            "{} of {} pods would be evicted at once and {} later; the API server would accept {} of these evictions",
            counts.changed, counts.total, counts.waiting, counts.accepted
        );
        let as_bounded = (counts.changed, counts.total, counts.accepted) == (BOUND, before.len(), before.len());
        self.check(as_bounded && plan.cluster.comparison == Comparison::Same, &observed).await?;
        let unchanged = self.play.user.pods("web").await? == before;
        let jobs = self.play.user.jobs_there().await?;
        self.check(unchanged && jobs == 0, "no pod has changed, and there is no job").await
    }

    /// Replaces all pods of the Deployment, a few at a time.
    pub(super) async fn rolling(&mut self) -> anyhow::Result<()> {
        let shows = "All 6 pods of Deployment web are evicted and replaced, and never more than 2 of 6 are out of service: a\n\
                     pod starts only while that holds, whatever made the others unavailable.";
        self.act("A rolling replacement within maxUnavailable", shows).await?;
        let pods = self.play.user.pods("web").await?;
        let since = self.seen.mark(&pods, SEEN_WITHIN).await?;
        self.play.apply(&rolling_job()).await?;
        self.play.watch(("opj-rolling", "web"), "the job to end", Snapshot::has_ended).await?;
        let verdict = self.play.stage.ledger().verdict_within(&identities(&pods), SEEN_WITHIN).await;
        self.check(!pods.is_empty() && verdict.is_clean(), &verdict.to_string()).await?;
        self.seen.mark(&self.play.user.pods("web").await?, SEEN_WITHIN).await?;
        let most = self.seen.most_out_of_service("web", pods.len(), since);
        let observed = format!(
            "at no version of any pod were more than {BOUND} of {} out of service; at worst it was {most}",
            pods.len()
        );
        self.check((1..=BOUND).contains(&most), &observed).await
    }
}
