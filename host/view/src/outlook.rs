//! The rate of a job, and an estimate of its remaining time.

use k8s_openapi::jiff::{SignedDuration, Timestamp};

use crate::job_view::JobView;

/// The time for which the rate is measured. Earlier ends say little about the current rate.
const WINDOW: SignedDuration = SignedDuration::from_secs(60);

/// The rate and the estimate at one time.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Outlook {
    /// The targets that ended in the last minute, or since the start of a younger job, as targets a minute. It is absent while no target
    /// ends, and if no details of targets are known.
    pub per_minute: Option<f64>,
    /// The time that the targets which may start need at this rate.
    pub remaining: Option<SignedDuration>,
    /// True if the partition keeps targets from starting. The estimate is then for the targets below the partition.
    pub to_partition: bool,
}

impl Outlook {
    /// Returns the outlook of `job` at `now`.
    pub fn new(job: &JobView, now: Timestamp) -> Self {
        if job.progress.is_terminal() {
            return Self::default();
        }
        let age = job.started.map_or(WINDOW, |started| now.duration_since(started));
        let window = age.clamp(SignedDuration::from_secs(1), WINDOW);
        // For a younger job, all ends count, including an end in the second of its start, because the stored times have whole seconds.
        let after = now.checked_sub(WINDOW).ok().filter(|_| age > WINDOW).unwrap_or(Timestamp::MIN);
        // The cluster's clock may be a little ahead of the local clock.
        let ended = job.ended_between(after, now.checked_add(WINDOW).unwrap_or(now));
        if ended == 0 {
            return Self::default();
        }
        #[expect(clippy::cast_precision_loss, reason = "there are at most 10,000 targets")]
        let count = |number: usize| number as f64;
        let per_minute = count(ended) * 60.0 / window.as_secs_f64();
        let last = job.partition.unwrap_or(usize::MAX).min(job.counts.total);
        let left = last.saturating_sub(job.counts.ended());
        let seconds = (count(left) * 60.0 / per_minute).ceil();
        let remaining = SignedDuration::try_from_secs_f64(seconds).ok().filter(|_| left > 0 && !job.is_paused());
        Self { per_minute: Some(per_minute), remaining, to_partition: last < job.counts.total }
    }

    /// Returns a sentence such as `12.4/min, about 29m left`. It is empty while no target ends.
    pub fn sentence(&self) -> String {
        let Some(rate) = self.per_minute else { return String::new() };
        let digits = usize::from(rate < 99.95);
        let rate = format!("{rate:.digits$}/min");
        let until = if self.to_partition { " to the partition" } else { "" };
        match self.remaining {
            Some(remaining) => format!("{rate}, about {} left{until}", crate::span_text::span(remaining)),
            None => rate,
        }
    }
}
