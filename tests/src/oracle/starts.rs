//! How many targets of a job may be in flight.
//!
//! Takes a version of a job and what was durable before; yields a start that its own spec forbids. The host stores a start
//! with the version of the job that it read, so each stored start is one of the spec that is stored with it.

use std::collections::BTreeSet;

use oarlock_sim::world::Version;
use serde_json::Value;

use super::Job;

/// Keeps a job until its targets are released.
const FINALIZER: &str = "finalizer.operating.kusionstack.io/protected";

impl Job {
    /// S3: a dry run has no effect, so nothing has to be kept for it.
    pub(super) fn is_protected(&self, version: &Version) -> Option<String> {
        let finalizers = version.at("/metadata/finalizers").as_array().into_iter().flatten();
        let kept = self.dry_run && finalizers.into_iter().any(|name| name == FINALIZER);
        kept.then(|| "S3: a dry run has the finalizer of a job that acts".to_owned())
    }

    /// S4: nothing starts beyond `parallelism`. One that was lowered stops nobody who is in flight.
    pub(super) fn too_many(&mut self, version: &Version) -> Option<String> {
        let now = in_flight(version);
        let before = std::mem::replace(&mut self.in_flight, now);
        let most = parallelism(version)?;
        let starts = self.in_flight.difference(&before).count();
        let (count, is_wrong) = (self.in_flight.len(), starts > 0 && self.in_flight.len() > most);
        is_wrong.then(|| format!("S4: {count} targets are in flight, {starts} of them new, and parallelism is {most}"))
    }
}

/// Indexes of the targets in flight, be they told one by one or in ranges. Somebody may have written what no host would.
fn in_flight(version: &Version) -> BTreeSet<usize> {
    let told = version.at("/status/targetDetails").as_array().into_iter().flatten().enumerate();
    let details = told.filter(|(_, target)| target["progress"] == "Processing").map(|(index, _)| index);
    let ranges = version.at("/status/ranges/processing").as_str().unwrap_or_default();
    let range = |text: &str| -> Option<std::ops::RangeInclusive<usize>> {
        let (first, last) = text.split_once('-').unwrap_or((text, text));
        Some(first.parse().ok()?..=last.parse::<usize>().ok()?.min(total(version)))
    };
    details.chain(ranges.split(',').filter_map(range).flatten()).collect()
}

fn total(version: &Version) -> usize {
    version.at("/spec/targets").as_array().map_or(0, Vec::len)
}

/// The most targets that may be in flight, where the spec bounds them; a share is rounded up.
fn parallelism(version: &Version) -> Option<usize> {
    let most = match version.at("/spec/parallelism") {
        Value::String(text) => {
            let share: usize = text.strip_suffix('%')?.parse().ok()?;
            total(version).saturating_mul(share).div_ceil(100)
        }
        count => usize::try_from(count.as_u64()?).ok()?,
    };
    // Nothing else than a whole job at rest would follow from less.
    Some(most.max(1))
}
