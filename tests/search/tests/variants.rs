//! Tests the suite itself: the ordinary sweep finds hosts with one bug each, and finds nothing in the host without the bug.
//!
//! No fault is placed by hand. Each known-bad host plays the points of the sweep in their order until a point fails. The right host must pass that
//! point, so that the sweep catches the bug and not the fault.

use std::sync::{Arc, OnceLock};

use oarlock_scenarios::is_soak;
use oarlock_scenarios::variant::Variant;
use oarlock_search::crash::flows::{self, FlowScript};
use oarlock_search::crash::plan::Plan;
use oarlock_search::crash::plan_run::play_seed;
use oarlock_search::crash::points::{self, Point};
use oarlock_search::crash::schedule::{self, Calm};
use oarlock_search::crash::script::Scripted;
use oarlock_search::crash::sweep::play;
use oarlock_search::variants::belief::{RepeatsPosts, RetriesOnAFreshView, TakesOutcomesFromRequests};
use oarlock_search::variants::earnest::{EvictsInDryRuns, MarksInDryRuns};
use oarlock_search::variants::flows::{
    BelievesInARehearsedJob, ForgetsOwners, LetsJobsExpireAtOnce, NamesARepeatedCreateAnew, StartsADependantAtOnce,
};
use oarlock_search::variants::identity::{EvictsWithoutPreconditions, NamesInsteadOfUids};
use oarlock_search::variants::invention::{
    BelievesInNewPods, EvictsANewPod, SharesANewPod, StartsAllAtOnce, StaysInItsFirstEpoch, StoresNoUids,
    TakesEndsBack, TellsNoFailures,
};
use oarlock_search::variants::neglect::{
    KeepsItsFinalizer, LeavesItsMarks, LeavesTheMarksOfFailures, WritesAfterTheEnd,
};
use oarlock_search::variants::nodes::{LeavesItsCordon, MakesTasksBeforeItRecords, TakesEveryCordonOff};
use oarlock_search::variants::order::{ActsBeforeItRecords, DropsItsFinalizerTooEarly, ReleasesBeforeItRecords};
use oarlock_search::variants::records::{DeletesARecord, DropsALineOfARecord, KeepsRecordsInTheFirstEpoch};

/// The points that a test plays. A bug must be found within these points, and every test run plays at least as many.
const POINTS: usize = 600;

/// A soak also plays the schedules of this many seeds against each known-bad host.
const SEEDS: u64 = 1_000;

/// A soak also plays the plans of this many seeds against each known-bad host.
const PLANS: u64 = 130;

/// `POINTS` for jobs in records.
const RECORDED_POINTS: usize = 8;

/// `POINTS` for jobs on nodes.
const NODE_POINTS: usize = 100;

/// `POINTS` for flows.
const FLOW_POINTS: usize = 100;

fn points() -> anyhow::Result<&'static [Point]> {
    static FOUND: OnceLock<Result<Vec<Point>, String>> = OnceLock::new();
    first(FOUND.get_or_init(|| points::all().map_err(|error| format!("{error:#}"))), POINTS)
}

fn recorded_points() -> anyhow::Result<&'static [Point]> {
    static FOUND: OnceLock<Result<Vec<Point>, String>> = OnceLock::new();
    first(FOUND.get_or_init(|| points::recorded().map_err(|error| format!("{error:#}"))), RECORDED_POINTS)
}

fn node_points() -> anyhow::Result<&'static [Point]> {
    static FOUND: OnceLock<Result<Vec<Point>, String>> = OnceLock::new();
    first(FOUND.get_or_init(|| points::on_nodes().map_err(|error| format!("{error:#}"))), NODE_POINTS)
}

fn flow_points() -> anyhow::Result<&'static [Point<FlowScript>]> {
    static FOUND: OnceLock<Result<Vec<Point<FlowScript>>, String>> = OnceLock::new();
    first(FOUND.get_or_init(|| flows::points::all().map_err(|error| format!("{error:#}"))), FLOW_POINTS)
}

fn first<S>(found: &'static Result<Vec<Point<S>>, String>, count: usize) -> anyhow::Result<&'static [Point<S>]> {
    let found = found.as_deref().map_err(|error| anyhow::anyhow!("{error}"))?;
    Ok(found.get(..count).unwrap_or(found))
}

/// Returns the first point that fails in the host with the bug with these words: its number from one, the point, and the failure.
fn found<V: Variant + Default + 'static, S: Scripted>(
    points: impl Iterator<Item = anyhow::Result<Point<S>>>,
    words: &str,
) -> anyhow::Result<Option<(usize, Point<S>, String)>> {
    for (number, point) in (1..).zip(points) {
        let point = point?;
        let bad = Arc::new(V::default()) as Arc<dyn Variant>;
        let with_the_bug = point.script.with_variant(bad);
        // If the bug prevents the point from being played, nothing is judged.
        let Ok(bad) = play(&Point { script: with_the_bug, most: point.most }) else { continue };
        if let Some(first) = bad.failures.into_iter().find(|failure| failure.contains(words)) {
            return Ok(Some((number, point, first)));
        }
    }
    Ok(None)
}

/// Fails unless a point fails in the host with the bug and passes in the host without it.
fn caught<V: Variant + Default + 'static, S: Scripted>(
    what: &str,
    points: impl Iterator<Item = anyhow::Result<Point<S>>>,
    words: &str,
) -> anyhow::Result<()> {
    let name = std::any::type_name::<V>();
    let Some((number, point, first)) = found::<V, S>(points, words)? else {
        anyhow::bail!("{name}: no {what} catches it")
    };
    println!("{name}: caught by {what} {number}, {}", point.says(&first));
    let right = play(&point).map_err(anyhow::Error::msg)?.failures;
    anyhow::ensure!(right.is_empty(), "the host without the bug fails too: {right:#?}");
    Ok(())
}

/// Returns the schedules of the first seeds.
fn schedules() -> impl Iterator<Item = anyhow::Result<Point>> {
    static CALM: OnceLock<Calm> = OnceLock::new();
    (0..SEEDS).map(|seed| schedule::of_seed(seed + 1, schedule::ON_PODS, CALM.get_or_init(Calm::default)))
}

/// Plays plans until a plan catches the host with the bug, and prints the result. Plans do not find every bug.
fn look_in_plans<V: Variant + Default + 'static>(words: &str) -> anyhow::Result<()> {
    for seed in 1..=PLANS {
        let bad = Arc::new(V::default()) as Arc<dyn Variant>;
        let Ok(played) = play_seed(seed, Some(bad)) else { continue };
        if let Some(first) = played.breaches.iter().find(|breach| breach.contains(words)) {
            println!("{}: caught by plan {}: {first}", std::any::type_name::<V>(), Plan::of_seed(seed).title());
            return Ok(());
        }
    }
    println!("{}: no plan catches it", std::any::type_name::<V>());
    Ok(())
}

/// Makes a test for each known-bad host. If other failures are possible, the words name the expected failure.
macro_rules! known_bad {
    (by $catch:ident: $($name:ident: $variant:ty $(=> $words:literal)?,)*) => {
        $(#[test]
        fn $name() -> anyhow::Result<()> {
            $catch::<$variant>(concat!($($words)?))
        })*
    };
}

fn caught_in_records<V: Variant + Default + 'static>(words: &str) -> anyhow::Result<()> {
    caught::<V, _>("point", recorded_points()?.iter().cloned().map(Ok), words)
}

fn caught_on_nodes<V: Variant + Default + 'static>(words: &str) -> anyhow::Result<()> {
    caught::<V, _>("point", node_points()?.iter().cloned().map(Ok), words)
}

fn caught_in_flows<V: Variant + Default + 'static>(words: &str) -> anyhow::Result<()> {
    caught::<V, _>("point", flow_points()?.iter().cloned().map(Ok), words)
}

/// Fails unless the sweep catches the bug. In a soak, the schedules must catch it too, and the plans may.
fn caught_twice<V: Variant + Default + 'static>(words: &str) -> anyhow::Result<()> {
    caught::<V, _>("point", points()?.iter().cloned().map(Ok), words)?;
    if !is_soak() {
        return Ok(());
    }
    look_in_plans::<V>(words)?;
    caught::<V, _>("schedule", schedules(), words)
}

known_bad! {
    by caught_in_records:
    a_line_of_a_record_that_is_dropped_is_caught: DropsALineOfARecord => "S2: ",
    a_record_that_is_deleted_is_caught: DeletesARecord => "S2: ",
    an_epoch_of_a_record_that_falls_is_caught: KeepsRecordsInTheFirstEpoch => "operationrecords r-",
}

known_bad! {
    by caught_on_nodes:
    a_task_that_is_made_before_it_is_recorded_is_caught: MakesTasksBeforeItRecords => "S7: ",
    a_cordon_of_somebody_else_that_is_taken_off_is_caught: TakesEveryCordonOff => "the cordon of somebody else",
    a_cordon_that_stays_is_caught: LeavesItsCordon => "is still cordoned",
}

known_bad! {
    by caught_in_flows:
    a_create_that_is_repeated_under_another_name_is_caught: NamesARepeatedCreateAnew => "was made twice",
    a_dependant_that_starts_at_once_is_caught: StartsADependantAtOnce => "S7: build began before",
    a_time_to_live_that_is_not_withheld_is_caught: LetsJobsExpireAtOnce => "S7: the time to live",
    a_job_that_is_believed_in_and_not_there_is_caught: BelievesInARehearsedJob,
    jobs_without_their_owner_are_caught: ForgetsOwners => "S5: a child of nobody",
}

known_bad! {
    by caught_twice:
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
