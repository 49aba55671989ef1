//! The due times of a job's targets: at most one for each target, ordered by time.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::jiff::Timestamp;

/// The due times of targets.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct DueTimes {
    by_index: BTreeMap<u32, Timestamp>,
    by_time: BTreeSet<(Timestamp, u32)>,
}

impl DueTimes {
    /// Sets the due time of a target and replaces any earlier one; `None` removes it.
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

    /// Returns the earliest due time.
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

    /// Returns the number of targets that have a due time.
    pub fn len(&self) -> usize {
        self.by_index.len()
    }

    /// Returns true if no target has a due time.
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
        let mut due_times = DueTimes::default();
        (0..200).for_each(|second| due_times.set(7, Some(at(second))));
        due_times.set(8, Some(at(300)));
        assert_eq!((due_times.len(), due_times.first()), (2, Some(at(199))));
        assert_eq!(due_times.take_due(at(250)), [7]);
        due_times.set(8, None);
        assert!(due_times.is_empty() && due_times.first().is_none());
    }
}
