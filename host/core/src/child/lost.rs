//! Units that were lost with their JobRecord before this term: what ran of them is unknown. Source: docs/jobflow.md 5.

use std::collections::HashSet;

use k8s_openapi::jiff::Timestamp;

use crate::child::children::Children;
use crate::child::closing::retry_command;
use crate::child::course::take;
use crate::child::header::Header;
use crate::child::parent::{Parent, ParentKind};
use crate::child::unit::{Unit, UnitState};

/// The reason of a unit whose entry was lost with its JobRecord.
pub(super) const RECORD_LOST: &str = "RecordLost";

/// Gives up those that nothing tells of, so that nothing of them runs twice: neither an entry in `known` nor a child that may
/// still be the newest. `is_closed`: without an edit there are no new ones among these units.
pub fn give_up_lost(
    parent: &Parent,
    children: &Children<'_>,
    (units, known): (&mut [Unit], &[Unit]),
    (header, is_closed): (&mut Header, bool),
    now: Timestamp,
) {
    let lost = usize::try_from(std::mem::take(&mut header.lost_units)).unwrap_or(usize::MAX);
    if lost == 0 {
        return;
    }
    let known: HashSet<&str> = known.iter().map(|unit| unit.name.as_str()).collect();
    let unknown = units.iter_mut().filter(|unit| !known.contains(unit.name.as_str()));
    let (mut silent, mut found) = (Vec::new(), 0);
    for unit in unknown {
        let Some(child) = children.newest_of_lost(parent, &unit.name).filter(|child| !child.gone) else {
            silent.push(unit);
            continue;
        };
        found += 1;
        take(unit, child);
        if child.progress.end(now).is_ok_and(|ended| !ended.well) {
            // A later attempt may have been deleted since.
            give_up(unit, parent);
        }
    }
    let is_edited = header.observed_generation != Some(parent.generation);
    // All of them were found, and what is left is new. Of a flow that was edited, a child may be that of a new step.
    if found >= lost && (parent.kind == ParentKind::Daemon || !is_edited) {
        return;
    }
    let is_same = is_closed && !is_edited;
    let had_succeeded = header.state == "Succeed" && header.completion_time.is_some();
    for unit in silent {
        if is_same && had_succeeded {
            let message = "its line in the JobRecords is missing or unreadable; the whole had succeeded";
            unit.set(UnitState::Succeed, "", message);
        } else {
            give_up(unit, parent);
        }
    }
}

fn give_up(unit: &mut Unit, parent: &Parent) {
    let message = format!(
        "its line in the JobRecords is missing or unreadable, so what ran of it is unknown; check, then run: {}",
        retry_command(parent)
    );
    unit.set(UnitState::Failed, RECORD_LOST, &message);
}
