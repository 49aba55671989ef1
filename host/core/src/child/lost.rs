//! Units that were lost with their JobRecord before this term: what ran of them is unknown. Source: docs/jobflow.md 5.

use std::collections::HashSet;

use crate::child::children::Children;
use crate::child::closing::retry_command;
use crate::child::header::Header;
use crate::child::parent::Parent;
use crate::child::unit::{Unit, UnitState};

/// Gives up those that nothing tells of, so that nothing of them runs twice: neither an entry in `known` nor a child.
pub fn give_up_lost(
    parent: &Parent,
    children: &Children<'_>,
    (units, known): (&mut [Unit], &[Unit]),
    header: &mut Header,
) {
    if std::mem::take(&mut header.lost_units) == 0 {
        return;
    }
    let known: HashSet<&str> = known.iter().map(|unit| unit.name.as_str()).collect();
    let message = format!(
        "its line in the JobRecords is missing or unreadable, so what ran of it is unknown; check, then run: {}",
        retry_command(parent)
    );
    let speaks = |unit: &Unit| children.newest(parent, &unit.name, 0).is_some_and(|child| !child.gone);
    for unit in units.iter_mut().filter(|unit| !known.contains(unit.name.as_str()) && !speaks(unit)) {
        unit.set(UnitState::Failed, "RecordLost", &message);
    }
}
