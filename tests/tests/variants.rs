//! The suite itself is tested: hosts with one bug each are caught by the ordinary sweep, and the host without it is not.
//!
//! Nothing is placed by hand: each known-bad host plays the points of the sweep in their order until one of them finds
//! something. The right host plays that point too, so that it is the bug that is caught and not the trouble.

use std::sync::{Arc, OnceLock};

use oarlock_tests::crash::points::{self, Point};
use oarlock_tests::crash::script::Script;
use oarlock_tests::crash::sweep::play;
use oarlock_tests::variants::Variant;
use oarlock_tests::variants::belief::{RepeatsPosts, RetriesOnAFreshView, TakesOutcomesFromRequests};
use oarlock_tests::variants::earnest::{EvictsInDryRuns, MarksInDryRuns};
use oarlock_tests::variants::identity::{EvictsWithoutPreconditions, NamesInsteadOfUids};
use oarlock_tests::variants::invention::{
    BelievesInNewPods, EvictsANewPod, SharesANewPod, StartsAllAtOnce, StaysInItsFirstEpoch, StoresNoUids,
    TakesEndsBack, TellsNoFailures,
};
use oarlock_tests::variants::neglect::{
    KeepsItsFinalizer, LeavesItsMarks, LeavesTheMarksOfFailures, WritesAfterTheEnd,
};
use oarlock_tests::variants::order::{ActsBeforeItRecords, DropsItsFinalizerTooEarly, ReleasesBeforeItRecords};
use oarlock_tests::variants::records::{DeletesARecord, DropsALineOfARecord, KeepsRecordsInTheFirstEpoch};

/// A test run plays at least so many points of the sweep: what is not found within them is not found.
const POINTS: usize = 600;

/// The same, of jobs in records.
const RECORDED_POINTS: usize = 8;

fn points() -> anyhow::Result<&'static [Point]> {
    static FOUND: OnceLock<Result<Vec<Point>, String>> = OnceLock::new();
    first(FOUND.get_or_init(|| points::all().map_err(|error| format!("{error:#}"))), POINTS)
}

fn recorded_points() -> anyhow::Result<&'static [Point]> {
    static FOUND: OnceLock<Result<Vec<Point>, String>> = OnceLock::new();
    first(FOUND.get_or_init(|| points::recorded().map_err(|error| format!("{error:#}"))), RECORDED_POINTS)
}

fn first(found: &'static Result<Vec<Point>, String>, count: usize) -> anyhow::Result<&'static [Point]> {
    let found = found.as_deref().map_err(|error| anyhow::anyhow!("{error}"))?;
    Ok(found.get(..count).unwrap_or(found))
}

/// Fails unless some point finds something in the host with the bug, and nothing in the one without it. It finds these
/// words.
fn caught<V: Variant + Default + 'static>(points: &[Point], words: &str) -> anyhow::Result<()> {
    for (number, point) in points.iter().enumerate() {
        let bad = Arc::new(V::default()) as Arc<dyn Variant>;
        let with_the_bug = Script { variant: Some(bad), ..point.script.clone() };
        // Where the bug keeps the point from being played, nothing was judged.
        let Ok(bad) = play(&Point { script: with_the_bug, most: point.most }) else { continue };
        let Some(first) = bad.failures.iter().find(|failure| failure.contains(words)) else { continue };
        println!("{}: caught at point {number} by {}", std::any::type_name::<V>(), point.says(first));
        let right = play(point).map_err(anyhow::Error::msg)?.failures;
        anyhow::ensure!(right.is_empty(), "the host without the bug fails too: {right:#?}");
        return Ok(());
    }
    anyhow::bail!("{} is not caught", std::any::type_name::<V>())
}

/// Makes a test of each known-bad host, with the words that it is to be caught by where others would be by chance.
macro_rules! known_bad {
    (at $points:ident: $($name:ident: $variant:ty $(=> $words:literal)?,)*) => {
        $(#[test]
        fn $name() -> anyhow::Result<()> {
            caught::<$variant>($points()?, concat!($($words)?))
        })*
    };
}

known_bad! {
    at recorded_points:
    a_line_of_a_record_that_is_dropped_is_caught: DropsALineOfARecord => "S2: ",
    a_record_that_is_deleted_is_caught: DeletesARecord => "S2: ",
    an_epoch_of_a_record_that_falls_is_caught: KeepsRecordsInTheFirstEpoch => "operationrecords r-",
}

known_bad! {
    at points:
    acting_before_recording_is_caught: ActsBeforeItRecords,
    releasing_before_recording_is_caught: ReleasesBeforeItRecords,
    a_jobs_finalizer_that_is_dropped_too_early_is_caught: DropsItsFinalizerTooEarly,
    a_jobs_finalizer_that_stays_is_caught: KeepsItsFinalizer,
    names_instead_of_uids_are_caught: NamesInsteadOfUids,
    evictions_without_preconditions_are_caught: EvictsWithoutPreconditions,
    repeated_posts_are_caught: RepeatsPosts,
    retries_on_a_fresh_view_are_caught: RetriesOnAFreshView,
    outcomes_taken_from_requests_are_caught: TakesOutcomesFromRequests,
    new_pods_that_are_believed_in_are_caught: BelievesInNewPods,
    failures_told_as_successes_are_caught: TellsNoFailures,
    outcomes_that_are_taken_back_are_caught: TakesEndsBack,
    targets_without_uids_are_caught: StoresNoUids,
    an_epoch_that_falls_is_caught: StaysInItsFirstEpoch,
    a_new_pod_that_is_shared_is_caught: SharesANewPod,
    targets_that_start_all_at_once_are_caught: StartsAllAtOnce => "S4: ",
    a_new_pod_that_is_evicted_is_caught: EvictsANewPod,
    marks_that_stay_are_caught: LeavesItsMarks,
    marks_of_failures_that_stay_are_caught: LeavesTheMarksOfFailures,
    writes_after_the_end_are_caught: WritesAfterTheEnd,
    evictions_in_dry_runs_are_caught: EvictsInDryRuns => "in earnest",
    marks_in_dry_runs_are_caught: MarksInDryRuns => "held by the dry run",
}
