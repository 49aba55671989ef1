//! The due times of a job's targets: one for each, ordered by time.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::jiff::Timestamp;

/// The due times of targets.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Agenda {
    by_index: BTreeMap<u32, Timestamp>,
    by_time: BTreeSet<(Timestamp, u32)>,
}

impl Agenda {
    /// Sets the due time of a target, in place of any other.
    pub fn set(&mut self, index: u32, due: Option<Timestamp>) {
        let old = match due {
            Some(due) => self.by_index.insert(index, due),
            None => self.by_index.remove(&index),
        };
        if let Some(old) = old {
            self.by_time.remove(&(old, index));
        }
        self.by_time.extend(due.map(|due| (due, index)));
    }

    /// The earliest due time.
    pub fn first(&self) -> Option<Timestamp> {
        self.by_time.first().map(|(time, _)| *time)
    }

    /// Removes and returns the targets that are due.
    pub fn take_due(&mut self, now: Timestamp) -> Vec<u32> {
        let mut due = Vec::new();
        while let Some((_, index)) = self.by_time.first().copied().filter(|(time, _)| *time <= now) {
            self.set(index, None);
            due.push(index);
        }
        due
    }

    /// The number of targets that have a due time.
    pub fn len(&self) -> usize {
        self.by_index.len()
    }

    /// True if no target has a due time.
    pub fn is_empty(&self) -> bool {
        self.by_index.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_target_has_one_due_time_however_often_it_is_set() {
        let at = |second| Timestamp::from_second(second).unwrap();
        let mut agenda = Agenda::default();
        (0..200).for_each(|second| agenda.set(7, Some(at(second))));
        agenda.set(8, Some(at(300)));
        assert_eq!((agenda.len(), agenda.first()), (2, Some(at(199))));
        assert_eq!(agenda.take_due(at(250)), [7]);
        agenda.set(8, None);
        assert!(agenda.is_empty() && agenda.first().is_none());
    }
}
