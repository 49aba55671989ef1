//! The store of a cluster: one table per kind, one resourceVersion counter for all tables, and one log of writes. Every write
//! appends exactly one log entry, whose number is the write's resourceVersion. Walking the log backwards therefore restores
//! any past state.

use std::{
    collections::{BTreeMap, VecDeque},
    sync::{Arc, OnceLock},
};

use bytes::Bytes;
use serde_json::{Value, json};

use crate::{kinds::registry::TableId, object};

/// Namespace (empty for cluster-scoped kinds) and name of an object.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key {
    /// Namespace of the object, empty for cluster-scoped kinds.
    pub namespace: String,
    /// Name of the object.
    pub name: String,
}

impl Key {
    /// Returns the key of `name` in `namespace`.
    pub fn new(namespace: impl Into<String>, name: impl Into<String>) -> Self {
        Self { namespace: namespace.into(), name: name.into() }
    }
}

/// One immutable stored version of one object.
#[derive(Debug)]
pub struct ObjectVersion {
    /// resourceVersion of this version.
    pub rv: u64,
    /// The object as stored.
    pub value: Value,
    json: OnceLock<Bytes>,
}

impl ObjectVersion {
    pub(crate) fn new(rv: u64, value: Value) -> Self {
        Self { rv, value, json: OnceLock::new() }
    }

    /// Returns the object as JSON. All lists and watches share one serialization.
    pub(crate) fn json(&self) -> Bytes {
        self.json.get_or_init(|| Bytes::from(serde_json::to_vec(&self.value).unwrap_or_default())).clone()
    }
}

/// etcd's default limit for the size of a request, in bytes.
const LARGEST: usize = 1_536 << 10;

/// Returns false if the object is too large for etcd.
pub(crate) fn fits(value: &Value) -> bool {
    let mut room = Room(LARGEST);
    serde_json::to_writer(&mut room, value).is_ok()
}

/// A writer that fails once the remaining bytes are used up.
struct Room(usize);

impl std::io::Write for Room {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0 = self.0.checked_sub(bytes.len()).ok_or(std::io::ErrorKind::StorageFull)?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// Kind of a write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Change {
    /// The write created the object.
    Added,
    /// The write changed the object.
    Modified,
    /// The write removed the object. The log entry holds its last state.
    Deleted,
}

/// One entry of the log.
#[derive(Debug)]
pub struct LogEntry {
    /// resourceVersion of the write.
    pub rv: u64,
    /// Kind of the write.
    pub change: Change,
    /// Table of the object's kind.
    pub table: TableId,
    /// Key of the object.
    pub key: Key,
    /// The object after the write. For a deletion, its last state with the deletion's resourceVersion.
    pub object: Arc<ObjectVersion>,
    /// The object before the write, none for a creation.
    pub previous: Option<Arc<ObjectVersion>>,
}

type Table = BTreeMap<Key, Arc<ObjectVersion>>;

/// All objects of a cluster and its recent writes.
#[derive(Debug)]
pub(crate) struct Store {
    rv: u64,
    tables: Vec<Table>,
    log: VecDeque<Arc<LogEntry>>,
    window: usize,
    history: Option<Vec<Arc<LogEntry>>>,
    changed: tokio::sync::watch::Sender<u64>,
}

impl Store {
    /// Returns an empty store. It keeps at least the last `window` writes, and all of them if `history` is true.
    pub(crate) fn new(window: usize, history: bool) -> Self {
        Self {
            rv: 1,
            tables: Vec::new(),
            log: VecDeque::new(),
            window: window.max(1),
            history: history.then(Vec::new),
            changed: tokio::sync::watch::Sender::new(1),
        }
    }

    /// Returns the resourceVersion of the last write.
    pub(crate) fn rv(&self) -> u64 {
        self.rv
    }

    /// Returns a receiver of the resourceVersion of each new write.
    pub(crate) fn subscribe(&self) -> tokio::sync::watch::Receiver<u64> {
        self.changed.subscribe()
    }

    /// Returns the resourceVersion of the last write that is no longer in the log.
    pub(crate) fn compacted(&self) -> u64 {
        self.log.front().map_or(self.rv, |entry| entry.rv - 1)
    }

    /// Drops the writes up to and including `rv` from the log.
    pub(crate) fn compact(&mut self, rv: u64) {
        while self.log.front().is_some_and(|entry| entry.rv <= rv) {
            self.log.pop_front();
        }
    }

    pub(crate) fn get(&self, table: TableId, key: &Key) -> Option<&Arc<ObjectVersion>> {
        self.tables.get(table.0)?.get(key)
    }

    /// Returns the objects of a kind in key order, in one namespace or in all.
    pub(crate) fn scan<'a>(
        &'a self,
        table: TableId,
        namespace: Option<&str>,
    ) -> impl Iterator<Item = (&'a Key, &'a Arc<ObjectVersion>)> + use<'a> {
        let from = Key::new(namespace.unwrap_or_default(), "");
        let own = namespace.map(str::to_owned);
        let objects = self.tables.get(table.0).into_iter().flat_map(move |all| all.range(from.clone()..));
        objects.take_while(move |(key, _)| own.as_ref().is_none_or(|own| *own == key.namespace))
    }

    /// Returns the objects of a kind as they were at `rv`, or none if the log does not reach back that far.
    pub(crate) fn at(&self, table: TableId, rv: u64) -> Option<BTreeMap<Key, Arc<ObjectVersion>>> {
        if rv < self.compacted() {
            return None;
        }
        let mut objects = self.tables.get(table.0).cloned().unwrap_or_default();
        for entry in self.log.iter().rev().take_while(|entry| entry.rv > rv).filter(|entry| entry.table == table) {
            match &entry.previous {
                Some(previous) => objects.insert(entry.key.clone(), Arc::clone(previous)),
                None => objects.remove(&entry.key),
            };
        }
        Some(objects)
    }

    /// Returns the writes after `rv`, oldest first, or none if the log lacks some of them.
    pub(crate) fn since(&self, rv: u64) -> Option<impl Iterator<Item = &Arc<LogEntry>>> {
        if rv < self.compacted() {
            return None;
        }
        let skip = usize::try_from(rv - self.compacted()).unwrap_or(usize::MAX);
        Some(self.log.iter().skip(skip))
    }

    /// Stores a new or changed object under the next resourceVersion.
    pub(crate) fn put(&mut self, table: TableId, key: Key, mut value: Value) -> Arc<ObjectVersion> {
        let rv = self.rv + 1;
        object::set_meta(&mut value, "resourceVersion", json!(rv.to_string()));
        let version = Arc::new(ObjectVersion::new(rv, value));
        if self.tables.len() <= table.0 {
            self.tables.resize_with(table.0 + 1, Table::new);
        }
        let previous = self.tables.get_mut(table.0).and_then(|all| all.insert(key.clone(), Arc::clone(&version)));
        let change = if previous.is_some() { Change::Modified } else { Change::Added };
        self.append(LogEntry { rv, change, table, key, object: Arc::clone(&version), previous });
        version
    }

    /// Removes an object. Watches show its last stored state with the deletion's resourceVersion.
    pub(crate) fn remove(&mut self, table: TableId, key: &Key) -> Option<Arc<ObjectVersion>> {
        let previous = self.tables.get_mut(table.0)?.remove(key)?;
        let rv = self.rv + 1;
        let mut last = previous.value.clone();
        object::set_meta(&mut last, "resourceVersion", json!(rv.to_string()));
        let version = Arc::new(ObjectVersion::new(rv, last));
        let object = Arc::clone(&version);
        self.append(LogEntry {
            rv,
            change: Change::Deleted,
            table,
            key: key.clone(),
            object,
            previous: Some(previous),
        });
        Some(version)
    }

    fn append(&mut self, entry: LogEntry) {
        self.rv = entry.rv;
        let entry = Arc::new(entry);
        if let Some(history) = &mut self.history {
            history.push(Arc::clone(&entry));
        }
        self.log.push_back(entry);
        self.changed.send_replace(self.rv);
    }

    /// Drops the writes before the window from the log. The caller must wait until no controller still reads the log.
    pub(crate) fn trim(&mut self) {
        let excess = self.log.len().saturating_sub(self.window);
        self.log.drain(..excess);
    }

    /// Returns every write since the cluster was created, or nothing if the store keeps no history.
    pub(crate) fn history(&self) -> Vec<Arc<LogEntry>> {
        self.history.clone().unwrap_or_default()
    }
}
