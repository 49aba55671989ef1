//! The suite itself is tested: hosts with one bug each are caught by the oracles, and the host without it is not.
//!
//! Each test plays the same trouble twice. Where the host is right nothing may be found, so that it is the bug that is
//! caught and not the trouble.

use std::sync::Arc;
use std::time::Duration;

use oarlock_bed::faults::When;
use oarlock_bed::interception::WriteRecord;
use oarlock_tests::crash::run;
use oarlock_tests::crash::script::{Mode, Script, Trouble};
use oarlock_tests::variants::Variant;
use oarlock_tests::variants::belief::{RepeatsPosts, RetriesOnAFreshView, TakesOutcomesFromRequests};
use oarlock_tests::variants::identity::{EvictsWithoutPreconditions, NamesInsteadOfUids};
use oarlock_tests::variants::order::{ActsBeforeItRecords, DropsItsFinalizerTooEarly, ReleasesBeforeItRecords};

const TARGETS: usize = 3;
/// Longer than the world needs to finish whatever it was doing when the host was killed.
const LONG: Duration = Duration::from_secs(5);

fn script(mode: Mode) -> Script {
    Script::of(mode, TARGETS)
}

/// Fails unless the host with the bug is caught, by a breach with these words, and the host without it is not.
/// `trouble` is made from the writes of a run without any.
fn caught<V: Variant + Default + 'static>(
    script: &Script,
    trouble: impl Fn(&[WriteRecord]) -> Option<Trouble>,
    words: &str,
) -> anyhow::Result<()> {
    let with = |variant: Option<Arc<dyn Variant>>| Script { variant, ..script.clone() };
    let bad = || Some(Arc::new(V::default()) as Arc<dyn Variant>);
    let right = run(with(None))?;
    assert_eq!(right.breaches, Vec::<String>::new(), "the host is right");
    let right = run(Script { trouble: trouble(&right.writes), ..with(None) })?;
    assert_eq!(right.breaches, Vec::<String>::new(), "the host is right under the same trouble");
    let wrong = run(Script { trouble: trouble(&run(with(bad()))?.writes), ..with(bad()) })?;
    println!("{}", wrong.breaches.join("\n"));
    let hit = wrong.breaches.iter().any(|breach| breach.contains(words));
    assert!(hit, "not caught by {words:?}: {:#?}", wrong.breaches);
    Ok(())
}

/// The number of the first write whose path ends so.
fn first(writes: &[WriteRecord], end: &str) -> Option<u64> {
    writes.iter().find(|write| path(write).ends_with(end)).map(|write| write.number)
}

fn path(write: &WriteRecord) -> &str {
    write.path.split('?').next().unwrap_or_default()
}

fn patches_a_pod(write: &&WriteRecord) -> bool {
    write.verb == "PATCH" && path(write).contains("/pods/")
}

#[test]
fn acting_before_recording_is_caught() -> anyhow::Result<()> {
    let killed_after_the_first_eviction = |writes: &[WriteRecord]| {
        Some(Trouble::Crash { at: first(writes, "/eviction")?, when: When::AfterCommit, down: LONG })
    };
    caught::<ActsBeforeItRecords>(&script(Mode::Evict), killed_after_the_first_eviction, "targets did not succeed")?;
    caught::<ActsBeforeItRecords>(&script(Mode::Evict), |_| None, "evicted while its target is stored as")
}

#[test]
fn releasing_before_recording_is_caught() -> anyhow::Result<()> {
    let killed_before_the_record = |writes: &[WriteRecord]| {
        let released = writes.iter().filter(patches_a_pod).nth(TARGETS)?.number;
        let later: Vec<_> = writes.iter().filter(|write| write.number > released).cloned().collect();
        Some(Trouble::Crash { at: first(&later, "/status")?, when: When::BeforeSend, down: LONG })
    };
    caught::<ReleasesBeforeItRecords>(&script(Mode::CollaSet), killed_before_the_record, "targets did not succeed")?;
    caught::<ReleasesBeforeItRecords>(&script(Mode::CollaSet), |_| None, "let go while its target is stored as")
}

#[test]
fn names_instead_of_uids_are_caught() -> anyhow::Result<()> {
    caught::<NamesInsteadOfUids>(
        &script(Mode::CollaSet),
        |_| Some(Trouble::Namesake),
        "held while its target is stored as",
    )
}

#[test]
fn evictions_without_preconditions_are_caught() -> anyhow::Result<()> {
    caught::<EvictsWithoutPreconditions>(
        &script(Mode::Evict),
        |_| Some(Trouble::Namesake),
        "lost although it was no target",
    )
}

#[test]
fn repeated_posts_are_caught() -> anyhow::Result<()> {
    let unanswered = |writes: &[WriteRecord]| Some(Trouble::GatewayTimeout { at: first(writes, "/eviction")? });
    caught::<RepeatsPosts>(&script(Mode::Evict), unanswered, "evicts once more")
}

#[test]
fn retries_on_a_fresh_view_are_caught() -> anyhow::Result<()> {
    let unanswered = |writes: &[WriteRecord]| Some(Trouble::LostReply { at: first(writes, "/eviction")? });
    caught::<RetriesOnAFreshView>(&script(Mode::EvictSameName), unanswered, "lost although it was no target")
}

#[test]
fn outcomes_taken_from_requests_are_caught() -> anyhow::Result<()> {
    caught::<TakesOutcomesFromRequests>(
        &script(Mode::Evict),
        |_| Some(Trouble::SlowPods(LONG)),
        "is said to have succeeded, and its pod is there",
    )
}

#[test]
fn a_jobs_finalizer_that_is_dropped_too_early_is_caught() -> anyhow::Result<()> {
    let calm = run(script(Mode::CollaSet))?;
    let delete_at = calm.writes.iter().filter(patches_a_pod).nth(TARGETS - 1).map(|write| write.number);
    let script = Script { delete_at, ..script(Mode::CollaSet) };
    caught::<DropsItsFinalizerTooEarly>(&script, |_| None, "L3: left behind")
}
