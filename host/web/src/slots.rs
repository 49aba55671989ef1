//! Limits how many streams are open, and how many logs are read, at one time.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;

/// The slots that are taken, by the keys of their viewers. Clones share them.
#[derive(Clone)]
pub(crate) struct PageSlots {
    of_one: usize,
    of_all: usize,
    taken: Arc<Mutex<HashMap<String, usize>>>,
}

/// A slot. It is released on drop.
pub(crate) struct PageSlot {
    of: PageSlots,
    key: String,
}

impl PageSlots {
    /// Returns slots of which viewers with one key take at most `of_one`, and all viewers at most `of_all`.
    pub(crate) fn new(of_one: usize, of_all: usize) -> Self {
        Self { of_one, of_all, taken: Arc::default() }
    }

    /// Returns a slot for a viewer with this key, or `None` if too many are taken.
    pub(crate) fn take(&self, key: &str) -> Option<PageSlot> {
        let mut taken = self.taken.lock();
        let own = taken.get(key).copied().unwrap_or(0);
        if own >= self.of_one || taken.values().sum::<usize>() >= self.of_all {
            return None;
        }
        taken.insert(key.to_owned(), own.saturating_add(1));
        Some(PageSlot { of: self.clone(), key: key.to_owned() })
    }
}

impl Drop for PageSlot {
    fn drop(&mut self) {
        let mut taken = self.of.taken.lock();
        match taken.get_mut(&self.key) {
            Some(own) if *own > 1 => *own -= 1,
            _ => drop(taken.remove(&self.key)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_viewer_takes_no_slot_of_others_and_a_dropped_slot_is_free_again() {
        let slots = PageSlots::new(1, 2);
        let (first, second) = (slots.take("a"), slots.take("b"));
        assert!(first.is_some() && second.is_some());
        assert!(slots.take("a").is_none() && slots.take("c").is_none());
        drop(first);
        assert!(slots.take("b").is_none());
        assert!(slots.take("a").is_some());
        drop(second);
        assert!(slots.taken.lock().is_empty());
    }
}
