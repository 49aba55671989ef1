//! The queue of waiting events, by namespace. It is plain data and sends nothing.
//!
//! The queue is bounded. If it is full, the namespace with the longest line loses its newest event. Namespaces take turns, and a namespace
//! may have at most as many events in flight as slots are free. So a flood or hanging requests in one namespace do not cost other
//! namespaces their events.

use std::collections::{BTreeMap, VecDeque};

use k8s_openapi::jiff::Timestamp;
use oarlock_core::requests::writes::EventNote;

/// The most waiting events. A wave of targets fits. The events of 10,000 jobs that fail at once do not fit and need not.
const QUEUE: usize = 4_096;
/// The most events in flight. It is small, so that events never crowd out other requests.
const AT_ONCE: usize = 8;

/// A waiting event.
#[derive(Clone, Debug)]
pub(crate) struct WaitingEvent {
    pub(crate) note: EventNote,
    /// The time of the event.
    pub(crate) at: Timestamp,
}

/// The waiting events, and the number of events in flight of each namespace.
#[derive(Debug, Default)]
pub(crate) struct EventQueue {
    lines: BTreeMap<String, VecDeque<WaitingEvent>>,
    turns: VecDeque<String>,
    in_flight: BTreeMap<String, usize>,
    waiting: usize,
}

impl EventQueue {
    /// Adds an event. Returns false if this event or another event was dropped.
    pub(crate) fn push(&mut self, namespace: &str, event: WaitingEvent) -> bool {
        let was_full = self.waiting >= QUEUE;
        if was_full && !self.make_room(namespace) {
            return false;
        }
        let line = self.lines.entry(namespace.to_owned()).or_default();
        if line.is_empty() {
            self.turns.push_back(namespace.to_owned());
        }
        line.push_back(event);
        self.waiting = self.waiting.saturating_add(1);
        !was_full
    }

    /// Drops the newest event of the longest line, unless the longest line belongs to this namespace.
    fn make_room(&mut self, namespace: &str) -> bool {
        let own = self.lines.get(namespace).map_or(0, VecDeque::len);
        let longest = self.lines.iter_mut().max_by_key(|(_, line)| line.len());
        let Some((longest, line)) = longest.filter(|(_, line)| line.len() > own) else { return false };
        line.pop_back();
        self.waiting = self.waiting.saturating_sub(1);
        if line.is_empty() {
            let longest = longest.clone();
            self.turns.retain(|turn| *turn != longest);
            self.lines.remove(&longest);
        }
        true
    }

    /// Takes the first event of the next namespace that may have one more event in flight.
    pub(crate) fn take(&mut self) -> Option<(String, WaitingEvent)> {
        let free = AT_ONCE.saturating_sub(self.in_flight.values().sum());
        let may = |namespace: &String| self.in_flight.get(namespace).copied().unwrap_or(0) < free;
        let namespace = self.turns.iter().position(may).and_then(|turn| self.turns.remove(turn))?;
        let line = self.lines.get_mut(&namespace)?;
        let event = line.pop_front()?;
        if line.is_empty() {
            self.lines.remove(&namespace);
        } else {
            self.turns.push_back(namespace.clone());
        }
        self.waiting = self.waiting.saturating_sub(1);
        let sent = self.in_flight.entry(namespace.clone()).or_default();
        *sent = sent.saturating_add(1);
        Some((namespace, event))
    }

    /// Returns the number of events that wait or are in flight.
    pub(crate) fn unsent(&self) -> u64 {
        self.waiting.saturating_add(self.in_flight.values().sum()) as u64
    }

    /// Records that an event of the namespace is no longer in flight.
    pub(crate) fn done(&mut self, namespace: &str) {
        if let Some(sent) = self.in_flight.get_mut(namespace) {
            *sent = sent.saturating_sub(1);
            if *sent == 0 {
                self.in_flight.remove(namespace);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use oarlock_core::object::api_object::ObjectKey;

    use super::*;

    fn event(namespace: &str, name: usize) -> WaitingEvent {
        let note = EventNote {
            name: name.to_string(),
            regarding: ObjectKey::pod(namespace, "a"),
            regarding_uid: "u".into(),
            warning: false,
            reason: "TargetStarted".into(),
            action: "Replace".into(),
            message: String::new(),
        };
        WaitingEvent { note, at: Timestamp::UNIX_EPOCH }
    }

    fn push(queue: &mut EventQueue, namespace: &str, names: std::ops::Range<usize>) -> usize {
        names.filter(|name| queue.push(namespace, event(namespace, *name))).count()
    }

    /// Returns all waiting events and marks each of them as sent at once.
    fn sent(queue: &mut EventQueue) -> Vec<String> {
        let next = || {
            let (namespace, WaitingEvent { note, .. }) = queue.take()?;
            queue.done(&namespace);
            Some(format!("{namespace}/{}", note.name))
        };
        std::iter::from_fn(next).collect()
    }

    #[test]
    fn a_flood_of_one_namespace_costs_no_other_its_events() {
        let mut queue = EventQueue::default();
        assert_eq!(push(&mut queue, "flood", 0..10_000), QUEUE);
        assert_eq!(push(&mut queue, "small", 0..3), 0, "each one took the place of one of the flood");
        assert_eq!(push(&mut queue, "flood", 0..10_000), 0);
        let sent = sent(&mut queue);
        assert_eq!(sent.len(), QUEUE);
        assert_eq!(sent[..6], ["flood/0", "small/0", "flood/1", "small/1", "flood/2", "small/2"]);
        assert_eq!(queue.waiting, 0);
    }

    #[test]
    fn a_namespace_whose_events_hang_leaves_places_to_the_others() {
        let mut queue = EventQueue::default();
        for namespace in ["a", "b", "c"] {
            push(&mut queue, namespace, 0..100);
        }
        let first: Vec<String> = std::iter::from_fn(|| queue.take()).map(|(namespace, _)| namespace).collect();
        assert!(first.len() < AT_ONCE && first.iter().filter(|namespace| *namespace == "a").count() <= AT_ONCE / 2);
        push(&mut queue, "d", 0..1);
        assert_eq!(queue.take().map(|(namespace, _)| namespace).as_deref(), Some("d"));
    }
}
