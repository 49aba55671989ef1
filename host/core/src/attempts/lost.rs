//! Gives up units that were lost with their JobRecord before this term. The host does not know which of their attempts ran. Source: docs/jobflow.md
//! 5.

use std::collections::HashSet;

use k8s_openapi::jiff::Timestamp;

use crate::attempts::children::Children;
use crate::attempts::follow::take;
use crate::attempts::header::Header;
use crate::attempts::parent::{Parent, ParentKind};
use crate::attempts::retry_and_cleanup::retry_command;
use crate::attempts::unit::{RECORD_LOST, Unit, UnitState};

/// The units of an object, some of which may be lost.
pub struct ListedUnits<'a> {
    /// The units by the spec of the object.
    pub units: &'a mut [Unit],
    /// The units that the memory has.
    pub known: &'a [Unit],
    /// True if units without an entry in `known` cannot be new without an edit.
    pub is_closed: bool,
}

/// Gives up lost units, so that none of them runs twice. A unit counts as lost if it has no entry among the known units and no child that may be its
/// newest.
pub fn give_up_lost(
    parent: &Parent,
    children: &Children<'_>,
    listed: ListedUnits<'_>,
    header: &mut Header,
    now: Timestamp,
) {
    let ListedUnits { units, known, is_closed } = listed;
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
            // A later attempt may have existed and been deleted.
            give_up(unit, parent);
        }
    }
    let is_edited = header.observed_generation != Some(parent.generation);
    // All lost units were found, so the remaining units are new. In an edited flow, a found child may belong to a new step instead.
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
