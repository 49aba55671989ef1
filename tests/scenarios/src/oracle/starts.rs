//! Checks the number of a job's targets in flight.
//!
//! Takes a version of a job and the state that was durable before; yields a start that the job's own spec forbids. The host
//! stores a start with the version of the job that it read. So the spec beside a stored start is the one that applies.

use std::collections::BTreeSet;

use oarlock_sim::world::Version;
use serde_json::Value;

use super::Job;

/// The finalizer that keeps a job until its targets are released.
const FINALIZER: &str = "finalizer.operating.kusionstack.io/protected";

impl Job {
    /// Checks S3: a dry run has no effect, so no finalizer must protect it.
    pub(super) fn is_protected(&self, version: &Version) -> Option<String> {
        let finalizers = version.at("/metadata/finalizers").as_array().into_iter().flatten();
        let kept = self.dry_run && finalizers.into_iter().any(|name| name == FINALIZER);
        kept.then(|| "S3: a dry run has the finalizer of a job that acts".to_owned())
    }

    /// Checks S4: no target starts beyond `parallelism`. A lowered `parallelism` stops no target that is in flight.
    pub(super) fn too_many(&mut self, version: &Version) -> Option<String> {
        let now = in_flight(version);
        let before = std::mem::replace(&mut self.in_flight, now);
        let most = parallelism(version)?;
        let starts = self.in_flight.difference(&before).count();
        let (count, is_wrong) = (self.in_flight.len(), starts > 0 && self.in_flight.len() > most);
        is_wrong.then(|| format!("S4: {count} targets are in flight, {starts} of them new, and parallelism is {most}"))
    }
}

/// Returns the indexes of the targets in flight, from target details or from ranges. Anyone may have written the status, so no value is trusted.
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

/// Returns the largest number of targets in flight, if the spec limits it. A percentage is rounded up.
fn parallelism(version: &Version) -> Option<usize> {
    let most = match version.at("/spec/parallelism") {
        Value::String(text) => {
            let share: usize = text.strip_suffix('%')?.parse().ok()?;
            total(version).saturating_mul(share).div_ceil(100)
        }
        count => usize::try_from(count.as_u64()?).ok()?,
    };
    // A limit of zero would only make the whole job rest.
    Some(most.max(1))
}
