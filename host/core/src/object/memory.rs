//! Estimates the memory of objects and bounds the share of one namespace.
//!
//! Anyone who may write objects in a namespace decides how large they are. So each namespace has a share of the host's memory. The host keeps only
//! the identity of an object that exceeds the share. All figures are estimates of the heap, without the overhead of the allocator.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde_json::Value;

use crate::object::own::{OPS_NAMESPACE, TASKS_NAMESPACE};

/// Memory of a JSON value without the data that it points to.
pub const VALUE: usize = size_of::<Value>();
/// Memory of an entry of a JSON object, without its name and the data that its value points to.
pub const ENTRY: usize = size_of::<(String, Value)>() + 2 * size_of::<usize>();

/// Returns the memory of a JSON value, in bytes.
pub fn memory_of(value: &Value) -> usize {
    let below = match value {
        Value::String(text) => text.len(),
        Value::Array(items) => items.iter().map(memory_of).fold(0, usize::saturating_add),
        Value::Object(fields) => fields
            .iter()
            .map(|(name, value)| memory_of(value).saturating_add(ENTRY - VALUE).saturating_add(name.len()))
            .fold(0, usize::saturating_add),
        Value::Null | Value::Bool(_) | Value::Number(_) => 0,
    };
    below.saturating_add(VALUE)
}

/// Returns the length of a JSON value as text, in bytes. Does not build the text.
pub fn text_len(value: &Value) -> usize {
    struct Counter(usize);
    impl std::io::Write for Counter {
        fn write(&mut self, piece: &[u8]) -> std::io::Result<usize> {
            self.0 = self.0.saturating_add(piece.len());
            Ok(piece.len())
        }
        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }
    let mut counter = Counter(0);
    // Writing to a counter cannot fail.
    serde_json::to_writer(&mut counter, value).map_or(usize::MAX, |()| counter.0)
}

/// The memory budget of a process that sets no other, in bytes.
const ROOM: usize = 128 * 1024 * 1024;
/// Divisor of the room for one namespace, which may take a quarter.
const OF_ROOM: usize = 4;
/// Bytes that a namespace may always take.
const LITTLE: usize = 1024 * 1024;

/// Memory budget for tenants' objects in all caches of a process together. One namespace may take a quarter of it. If the budget is used up, only
/// namespaces with few bytes may grow. Objects that no tenant writes do not count. Clones share the budget.
#[derive(Clone, Debug)]
pub struct MemoryBudget(Arc<MemoryBudgetState>);

#[derive(Debug)]
struct MemoryBudgetState {
    most: AtomicUsize,
    used: Mutex<UsedMemory>,
}

#[derive(Debug, Default)]
struct UsedMemory {
    of: HashMap<String, usize>,
    all: usize,
}

impl Default for MemoryBudget {
    fn default() -> Self {
        Self::of(ROOM)
    }
}

impl MemoryBudget {
    fn of(bytes: usize) -> Self {
        Self(Arc::new(MemoryBudgetState { most: AtomicUsize::new(bytes), used: Mutex::default() }))
    }

    /// Sets the budget to a quarter of the process's memory limit, in bytes. A list of objects takes as much again while the host reads it, and
    /// plugins take the rest.
    pub fn bound(&self, limit: u64) {
        self.0.most.store(usize::try_from(limit / 4).unwrap_or(usize::MAX), Ordering::Relaxed);
    }

    fn most(&self) -> usize {
        self.0.most.load(Ordering::Relaxed)
    }

    fn lock_used(&self) -> MutexGuard<'_, UsedMemory> {
        self.0.used.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn count(&self, namespace: &str, before: usize, bytes: usize) {
        if before == bytes || is_of_cluster(namespace) {
            return;
        }
        let mut used = self.lock_used();
        used.all = used.all.saturating_sub(before).saturating_add(bytes);
        let own = used.of.get(namespace).copied().unwrap_or(0).saturating_sub(before).saturating_add(bytes);
        if own == 0 {
            used.of.remove(namespace);
        } else {
            used.of.insert(namespace.to_owned(), own);
        }
    }
}

/// Returns true for objects that tenants do not write: cluster-scoped objects and the objects in the host's own namespaces.
fn is_of_cluster(namespace: &str) -> bool {
    ["", OPS_NAMESPACE, TASKS_NAMESPACE].contains(&namespace)
}

/// The memory that the objects of a cache take, by namespace.
#[derive(Debug, Default)]
pub struct NamespaceShares {
    of: HashMap<String, usize>,
    room: MemoryBudget,
}

impl Drop for NamespaceShares {
    fn drop(&mut self) {
        self.of.iter().for_each(|(namespace, bytes)| self.room.count(namespace, *bytes, 0));
    }
}

impl NamespaceShares {
    /// Returns empty shares that count against this room.
    pub fn within(room: &MemoryBudget) -> Self {
        Self { of: HashMap::new(), room: room.clone() }
    }

    /// Counts `bytes` of an object in place of `before`, its earlier size. An object that does not grow always fits.
    ///
    /// # Errors
    /// If there is no room for the object. The error is the message for the object's owner. The object then counts as 0 bytes, and the caller must
    /// not keep its spec.
    pub fn admit(&mut self, namespace: &str, before: usize, bytes: usize) -> Result<(), String> {
        let has_room = self.has_room(namespace, before, bytes);
        self.count(namespace, before, if has_room { bytes } else { 0 });
        if has_room { Ok(()) } else { Err(self.no_room(namespace, bytes)) }
    }

    /// Returns true if an object of `namespace` may take `bytes` in place of `before`, its earlier size.
    pub fn has_room(&self, namespace: &str, before: usize, bytes: usize) -> bool {
        let (more, room) = (bytes.saturating_sub(before), self.room.most());
        if more == 0 {
            return true;
        }
        if is_of_cluster(namespace) {
            return self.of.get(namespace).copied().unwrap_or(0).saturating_add(more) <= room;
        }
        let used = self.room.lock_used();
        let own = used.of.get(namespace).copied().unwrap_or(0).saturating_add(more);
        own <= room / OF_ROOM && (used.all.saturating_add(more) <= room || own <= LITTLE)
    }

    /// Returns the message for an object that has no room.
    fn no_room(&self, namespace: &str, bytes: usize) -> String {
        let (own, room) = (self.room.lock_used().of.get(namespace).copied().unwrap_or(0), self.room.most());
        let (whose, most) = match own.saturating_add(bytes) > room / OF_ROOM {
            _ if namespace.is_empty() => ("objects of the whole cluster".to_owned(), room),
            _ if is_of_cluster(namespace) => (format!("the objects of namespace {namespace}"), room),
            true => (format!("the objects of namespace {namespace}"), room / OF_ROOM),
            false => (format!("the objects of all namespaces, of which {namespace} has more than a little"), room),
        };
        let most = most / 1_048_576;
        format!(
            "{whose} take more than their share of the host's memory, {most} MiB: delete some of them and then change this object (a label is enough), or replace this object by a smaller one"
        )
    }

    /// Counts `bytes` of an object in place of `before`, its earlier size.
    pub fn count(&mut self, namespace: &str, before: usize, bytes: usize) {
        let known = self.of.get(namespace).copied().unwrap_or(0);
        let own = known.saturating_sub(before).saturating_add(bytes);
        self.room.count(namespace, known, own);
        if own == 0 {
            self.of.remove(namespace);
        } else {
            self.of.insert(namespace.to_owned(), own);
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// The share of one namespace in the default room.
    const OF_NAMESPACE: usize = ROOM / OF_ROOM;

    #[test]
    fn a_value_of_many_small_parts_takes_more_memory_than_its_text() {
        let zeros: Value = vec![0; 1_000].into();
        assert_eq!((text_len(&zeros), memory_of(&zeros)), (2_001, 1_001 * VALUE));
        let nested = json!({"a": {"b": "cd"}, "e": [null, true, 1.5]});
        assert_eq!(text_len(&nested), nested.to_string().len());
        assert_eq!(memory_of(&nested), VALUE + 3 * ENTRY + "abe".len() + "cd".len() + 3 * VALUE);
    }

    #[test]
    fn a_namespace_that_has_its_share_gets_no_more_and_others_do() {
        let mut shares = NamespaceShares::default();
        assert_eq!(shares.admit("a", 0, OF_NAMESPACE), Ok(()));
        assert!(shares.admit("a", 0, 1).unwrap_err().contains("namespace a"));
        assert_eq!((shares.admit("a", 10, 10), shares.admit("b", 0, OF_NAMESPACE)), (Ok(()), Ok(())));
        shares.count("a", OF_NAMESPACE, 0);
        assert_eq!(shares.admit("a", 0, OF_NAMESPACE), Ok(()));
        ["a", "b"].into_iter().for_each(|namespace| shares.count(namespace, OF_NAMESPACE, 0));
        assert!(shares.of.is_empty() && shares.room.lock_used().all == 0);
    }

    #[test]
    fn the_caches_of_a_process_have_one_room_of_which_nothing_is_taken_from_the_cluster() {
        let room = MemoryBudget::default();
        room.bound(512 * 1024 * 1024);
        let [mut pods, mut jobs] = [(); 2].map(|()| NamespaceShares::within(&room));
        for number in 0..4 {
            pods.admit(&number.to_string(), 0, OF_NAMESPACE / 2).unwrap();
            jobs.admit(&number.to_string(), 0, OF_NAMESPACE / 2).unwrap();
        }
        assert!(pods.admit("0", 0, 1).unwrap_err().contains("namespace 0"), "of both caches together");
        assert!(jobs.admit("more", 0, LITTLE + 1).unwrap_err().contains("128 MiB"));
        for namespace in ["", OPS_NAMESPACE, TASKS_NAMESPACE] {
            assert_eq!(jobs.admit(namespace, 0, 2 * OF_NAMESPACE), Ok(()));
        }
        drop(pods);
        assert_eq!(jobs.admit("more", 0, LITTLE + 1), Ok(()));
    }

    #[test]
    fn an_object_that_grows_beyond_the_share_counts_as_nothing_until_it_has_room() {
        let mut shares = NamespaceShares::default();
        let half = OF_NAMESPACE / 2;
        assert_eq!((shares.admit("a", 0, half), shares.admit("a", 0, half)), (Ok(()), Ok(())));
        assert!(shares.admit("a", half, half + 1).is_err());
        assert_eq!(shares.admit("a", 0, half), Ok(()));
    }

    #[test]
    fn many_namespaces_that_have_much_leave_room_for_those_that_have_little() {
        let mut shares = NamespaceShares::default();
        for number in 0..4 {
            shares.admit(&number.to_string(), 0, OF_NAMESPACE).unwrap();
        }
        assert!(shares.admit("more", 0, LITTLE + 1).unwrap_err().contains("all namespaces"));
        assert_eq!(shares.admit("more", 0, LITTLE), Ok(()));
    }
}
