//! Transitions of units between two statuses. The host reports and counts each transition once, even over a restart. It compares the stored status
//! with the status that is about to be stored.

use std::cell::OnceCell;
use std::collections::HashMap;

use k8s_openapi::jiff::SignedDuration;

use crate::attempts::unit::{Unit, UnitState};
use crate::object::time::read_time;

/// Returns the units whose state, child or attempt has changed, each with its earlier entry.
pub fn changed_units<'a>(before: &'a [Unit], now: &'a [Unit]) -> impl Iterator<Item = (Option<&'a Unit>, &'a Unit)> {
    let by_name = OnceCell::new();
    let differs =
        |old: &Unit, unit: &Unit| (old.state, &old.job_uid, old.attempt) != (unit.state, &unit.job_uid, unit.attempt);
    now.iter().enumerate().filter_map(move |(index, unit)| {
        // Entries keep their order, except after an edit.
        let in_place = before.get(index).filter(|old| old.name == unit.name);
        let old = in_place.or_else(|| {
            let names: &HashMap<&str, &Unit> =
                by_name.get_or_init(|| before.iter().map(|unit| (unit.name.as_str(), unit)).collect());
            names.get(unit.name.as_str()).copied()
        });
        old.is_none_or(|old| differs(old, unit)).then_some((old, unit))
    })
}

/// The ends of a unit and its attempts between two entries.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct UnitEnds {
    /// True if the unit has reached an outcome since the earlier entry.
    pub has_ended: bool,
    /// Attempts that ended for another reason than an infrastructure failure.
    pub own_attempts: u32,
    /// Attempts that the infrastructure made fail.
    pub infra_attempts: u32,
}

impl UnitEnds {
    /// Compares the earlier entry of a unit, if it has one, with its new entry.
    pub fn between(old: Option<&Unit>, unit: &Unit) -> Self {
        let is_same = |old: &Unit| (old.state, old.attempt) == (unit.state, unit.attempt);
        // The number of an attempt that was given up without a child is never used again, and no attempt of that number ended.
        let was_given_up = |old: &Unit| old.state == UnitState::Failed && old.job.is_empty();
        let is_skipped = old.is_some_and(|old| was_given_up(old) && unit.counted_from > old.attempt);
        let ended = ended_attempts(unit).saturating_sub(old.map_or(0, ended_attempts));
        let ended = ended.saturating_sub(is_skipped.into());
        // A retry by hand restarts the count of infrastructure failures.
        let counted = old.filter(|old| old.counted_from == unit.counted_from).map_or(0, |old| old.infra_attempts);
        let infra_attempts = unit.infra_attempts.saturating_sub(counted).min(ended);
        Self {
            has_ended: unit.state.is_terminal() && !old.is_some_and(is_same),
            own_attempts: ended - infra_attempts,
            infra_attempts,
        }
    }
}

/// Returns the number of attempts of a unit that have ended. Numbers of attempts that were given up count too.
fn ended_attempts(unit: &Unit) -> u32 {
    let has_ended = unit.state.is_terminal() || unit.state == UnitState::Retrying;
    unit.attempt.saturating_add(u32::from(has_ended && !unit.job.is_empty()))
}

/// Returns the time from the creation of a unit's newest child to its end. Returns `None` if the unit has no child or has not ended.
pub fn duration(unit: &Unit) -> Option<SignedDuration> {
    let has_child = unit.has_child() && unit.state.is_terminal();
    let start = read_time(unit.start_time.as_deref()).filter(|_| has_child)?;
    Some(read_time(unit.completion_time.as_deref())?.duration_since(start).max(SignedDuration::ZERO))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn unit(name: &str, state: UnitState, attempt: u32) -> Unit {
        let uid = format!("{name}/{attempt}");
        Unit { state, attempt, job: uid.clone(), job_uid: uid, ..Unit::new(name) }
    }

    fn ends(old: &Unit, unit: &Unit) -> (bool, u32, u32) {
        let UnitEnds { has_ended, own_attempts, infra_attempts } = UnitEnds::between(Some(old), unit);
        (has_ended, own_attempts, infra_attempts)
    }

    #[test]
    fn only_what_changed_is_found_also_where_entries_were_moved() {
        let before = [unit("a", UnitState::Running, 0), unit("b", UnitState::Succeed, 0)];
        let now =
            [unit("new", UnitState::Pending, 0), unit("a", UnitState::Succeed, 0), unit("b", UnitState::Succeed, 0)];
        let found: Vec<_> =
            changed_units(&before, &now).map(|(old, unit)| (old.is_some(), unit.name.as_str())).collect();
        assert_eq!(found, [(false, "new"), (true, "a")]);
        assert_eq!(changed_units(&now, &now).count(), 0);
    }

    #[test]
    fn an_end_counts_once_and_a_second_one_after_a_retry_by_hand_again() {
        let failed = unit("a", UnitState::Failed, 0);
        assert_eq!(ends(&unit("a", UnitState::Running, 0), &failed), (true, 1, 0));
        assert_eq!(ends(&failed, &failed), (false, 0, 0));
        let mut again = failed.clone();
        again.start_over();
        assert_eq!((again.attempt, ends(&failed, &again)), (1, (false, 0, 0)));
        assert_eq!(ends(&failed, &Unit { counted_from: 1, ..unit("a", UnitState::Failed, 1) }), (true, 1, 0));
        let given_up = Unit { job: String::new(), job_uid: String::new(), ..unit("a", UnitState::Failed, 1) };
        let mut again = given_up.clone();
        again.start_over();
        assert_eq!((again.attempt, ends(&given_up, &again)), (2, (false, 0, 0)), "nothing of it ended");
        assert_eq!(UnitEnds::between(None, &Unit { state: UnitState::Omitted, ..Unit::new("a") }).own_attempts, 0);
    }

    #[test]
    fn attempts_that_the_infrastructure_ended_are_told_apart_however_many_one_status_skips() {
        let infra = |number, of: Unit| Unit { infra_attempts: number, ..of };
        let running = unit("a", UnitState::Running, 0);
        let retrying = infra(1, unit("a", UnitState::Retrying, 0));
        assert_eq!(ends(&running, &retrying), (false, 0, 1));
        assert_eq!(ends(&retrying, &infra(1, unit("a", UnitState::Running, 1))), (false, 0, 0));
        assert_eq!(ends(&running, &infra(1, unit("a", UnitState::Succeed, 2))), (true, 2, 1));
        assert_eq!(ends(&running, &Unit { job: String::new(), ..unit("a", UnitState::Blocked, 1) }), (false, 1, 0));
    }

    #[test]
    fn the_time_of_a_unit_is_that_of_its_last_child() {
        let of = |end: Option<&str>| {
            let start_time = Some("2026-01-01T00:00:00Z".to_owned());
            let completion_time = end.map(str::to_owned);
            duration(&Unit { start_time, completion_time, ..unit("a", UnitState::Succeed, 0) })
                .map(|took| took.as_secs())
        };
        assert_eq!(of(Some("2026-01-01T00:00:07Z")), Some(7));
        assert_eq!((of(Some("2025-12-31T23:59:59Z")), of(None)), (Some(0), None));
    }
}
