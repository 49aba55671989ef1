//! The act of a rolling replacement: a bound on pods that are out of service, and that it was kept.

use super::super::play::{head, identities};
use super::super::snapshot::Snapshot;
use super::{PodActs, SEEN_WITHIN};

/// 34 % of the six pods of `web`.
const BOUND: usize = 2;

impl PodActs<'_> {
    /// Replaces all pods of the Deployment, a few at a time.
    pub(super) async fn rolling(&mut self) -> anyhow::Result<()> {
        let shows = "All 6 pods of Deployment web are evicted and replaced, and never more than 2 of 6 are out of service: a\n\
                     pod starts only while that holds, whatever made the others unavailable.";
        self.act("A rolling replacement within maxUnavailable", shows).await?;
        let pods = self.play.user.pods("web").await?;
        let since = self.seen.mark(&pods, SEEN_WITHIN).await?;
        let yaml = format!(
            "{}\n  selector: {{labelSelector: {{matchLabels: {{app: web}}}}}}\n  maxUnavailable: 34%    # <- of 6 pods, rounded down: 2\n",
            head("opj-rolling", "Replace")
        );
        self.play.apply(&yaml).await?;
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
