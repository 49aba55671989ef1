//! Records the visits of plugins: the last visits of each plugin, and all visits that trapped, failed or changed their answer.
//!
//! The notes are in memory, and bounded in bytes for each plugin and for each namespace. A recorder that records nothing costs nothing.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::hash::{BuildHasher as _, RandomState};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use oarlock_contract::visit_record::MAX_RECORD_BYTES;

use crate::plugin::lookup::PluginInfo;
use crate::plugin::visit::Answer;
use crate::plugin::visit_note::{BegunNote, NotedRound, VisitNote, VisitOutputs};

/// The annotation that turns on the recording of a job's visits, with the value `true`. A policy lets only users with the verb `record` on
/// OperationJobs set it.
pub const RECORD: &str = "oarlock.dev/record";

/// The bounds of a recorder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecorderBounds {
    /// The last visits of each plugin to record, of all jobs. With 0, the recorder records only jobs with the annotation [`RECORD`].
    pub visits: usize,
    /// The most bytes of the notes of one plugin.
    pub plugin_bytes: usize,
    /// The most bytes of the notes of one namespace, over all plugins.
    pub namespace_bytes: usize,
    /// True to hand out each note once by [`VisitRecorder::take_finished`], for a store.
    pub stores: bool,
}

impl Default for RecorderBounds {
    fn default() -> Self {
        Self { visits: 0, plugin_bytes: 8 << 20, namespace_bytes: 4 << 20, stores: false }
    }
}

/// Numbers of visits since the process began.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RecorderCounts {
    /// The visits that were recorded.
    pub recorded: u64,
    /// The visits that were not recorded, because one record would be too long.
    pub too_large: u64,
    /// The notes that were dropped before a store took them, or because other plugins hold the room of the namespace.
    pub no_room: u64,
}

/// The recorder of all plugins of a host.
#[derive(Default)]
pub struct VisitRecorder {
    bounds: RecorderBounds,
    state: Mutex<RecorderState>,
    hasher: RandomState,
}

#[derive(Default)]
struct RecorderState {
    plugins: BTreeMap<String, PluginNotes>,
    namespaces: HashMap<String, usize>,
    /// The notes that no store has taken yet.
    finished: VecDeque<Arc<VisitNote>>,
    finished_bytes: usize,
    counts: RecorderCounts,
    rounds: u64,
    sequence: u64,
}

/// A note with its number and its size.
#[derive(Clone)]
struct Numbered {
    sequence: u64,
    bytes: usize,
    note: Arc<VisitNote>,
}

/// The notes of one plugin.
#[derive(Default)]
struct PluginNotes {
    /// The last visits.
    last: VecDeque<Numbered>,
    /// The visits that are worth more than the last ones.
    notable: VecDeque<Numbered>,
    bytes: usize,
    /// The hash of the last answer for each target, by the job's UID and the target's index.
    answers: HashMap<(String, u32), u64>,
}

/// The most targets of a plugin whose last answer is known.
const MOST_ANSWERS: usize = 16 * 1024;

/// Records the visits of one round.
pub struct RoundRecorder<'a> {
    recorder: &'a VisitRecorder,
    round: NotedRound,
    /// True if the job has the annotation, so that each of its visits is notable.
    of_job: bool,
}

impl VisitRecorder {
    /// Makes a recorder with these bounds.
    pub fn new(bounds: RecorderBounds) -> Self {
        Self { bounds, ..Self::default() }
    }

    /// Begins a round of a job. `of_job` is true if the job has the annotation [`RECORD`]. Returns `None` if the round is not to be recorded.
    pub fn round(&self, plugin: &Arc<PluginInfo>, of_job: bool) -> Option<RoundRecorder<'_>> {
        if self.bounds.visits == 0 && !of_job {
            return None;
        }
        let mut state = self.state();
        state.rounds += 1;
        Some(RoundRecorder {
            recorder: self,
            round: NotedRound { plugin: plugin.clone(), number: state.rounds },
            of_job,
        })
    }

    /// Returns the notes of a job, in the order of the visits.
    pub fn of_job(&self, namespace: &str, name: &str) -> Vec<Arc<VisitNote>> {
        self.select(|note| note.job() == (namespace, name))
    }

    /// Returns the notes of a plugin, in the order of the visits.
    pub fn of_plugin(&self, name: &str) -> Vec<Arc<VisitNote>> {
        self.select(|note| note.plugin() == name)
    }

    /// Returns the notes since the last call, for a store. The result is empty unless the bounds ask for it.
    pub fn take_finished(&self) -> Vec<Arc<VisitNote>> {
        let mut state = self.state();
        state.finished_bytes = 0;
        std::mem::take(&mut state.finished).into()
    }

    /// Returns the numbers of visits so far.
    pub fn counts(&self) -> RecorderCounts {
        self.state().counts
    }

    fn state(&self) -> MutexGuard<'_, RecorderState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn select(&self, wanted: impl Fn(&VisitNote) -> bool) -> Vec<Arc<VisitNote>> {
        let state = self.state();
        let all = state.plugins.values().flat_map(|notes| notes.last.iter().chain(&notes.notable));
        let mut found: Vec<Numbered> = all.filter(|numbered| wanted(&numbered.note)).cloned().collect();
        found.sort_by_key(|numbered| numbered.sequence);
        found.into_iter().map(|numbered| numbered.note).collect()
    }

    fn add(&self, note: VisitNote, of_job: bool) {
        let hash = self.hasher.hash_one(&note.outputs().answer);
        let mut state = self.state();
        state.add(note, hash, of_job, self.bounds);
    }
}

impl RoundRecorder<'_> {
    /// Records a visit.
    pub fn end(&self, begun: BegunNote, outputs: VisitOutputs) {
        match begun.end(&self.round, outputs) {
            Some(note) => self.recorder.add(note, self.of_job),
            None => self.recorder.state().counts.too_large += 1,
        }
    }
}

impl RecorderState {
    fn add(&mut self, note: VisitNote, hash: u64, of_job: bool, bounds: RecorderBounds) {
        let Self { plugins, namespaces, counts, .. } = self;
        let bytes = note.bytes();
        // Notes are larger than the record, because they have the fields of all plugins.
        if bytes > (4 * MAX_RECORD_BYTES).min(bounds.plugin_bytes).min(bounds.namespace_bytes) {
            counts.too_large += 1;
            return;
        }
        let notes = plugins.entry(note.plugin().to_owned()).or_default();
        let is_notable = notes.is_notable(&note, hash) || of_job;
        let namespace = note.job().0.to_owned();
        while notes.bytes + bytes > bounds.plugin_bytes && notes.drop_oldest(|_| true, namespaces) {}
        let of_namespace = |own: &VisitNote| own.job().0 == namespace;
        while namespaces.get(&namespace).copied().unwrap_or(0) + bytes > bounds.namespace_bytes {
            if !notes.drop_oldest(of_namespace, namespaces) {
                counts.no_room += 1;
                return;
            }
        }
        counts.recorded += 1;
        notes.bytes += bytes;
        *namespaces.entry(namespace).or_default() += bytes;
        let numbered = Numbered { sequence: self.sequence, bytes, note: Arc::new(note) };
        self.sequence += 1;
        let note = numbered.note.clone();
        if is_notable {
            notes.notable.push_back(numbered);
        } else {
            notes.last.push_back(numbered);
            if notes.last.len() > bounds.visits
                && let Some(oldest) = notes.last.pop_front()
            {
                notes.forget(&oldest, namespaces);
            }
        }
        if bounds.stores {
            self.hand_out(note, bytes, bounds.plugin_bytes);
        }
    }

    /// Keeps a note for the store. A store that is too slow loses the oldest notes.
    fn hand_out(&mut self, note: Arc<VisitNote>, bytes: usize, most: usize) {
        self.finished.push_back(note);
        self.finished_bytes += bytes;
        while self.finished_bytes > most
            && let Some(oldest) = self.finished.pop_front()
        {
            self.finished_bytes = self.finished_bytes.saturating_sub(oldest.bytes());
            self.counts.no_room += 1;
        }
    }
}

impl PluginNotes {
    /// Returns true for a visit that trapped, failed, or answered otherwise than the visit before to the same target.
    fn is_notable(&mut self, note: &VisitNote, hash: u64) -> bool {
        let (job, target) = note.target();
        if self.answers.len() >= MOST_ANSWERS {
            self.answers.clear();
        }
        let before = self.answers.insert((job.to_owned(), target), hash);
        let is_bad = matches!(note.outputs().answer, Answer::Failed(_) | Answer::Trapped(_));
        is_bad || before.is_some_and(|before| before != hash)
    }

    /// Drops the oldest wanted note, a notable one only if there is no other. Returns false if there is none.
    fn drop_oldest(&mut self, wanted: impl Fn(&VisitNote) -> bool, namespaces: &mut HashMap<String, usize>) -> bool {
        let oldest = [&mut self.last, &mut self.notable].into_iter().find_map(|notes| {
            let index = notes.iter().position(|numbered| wanted(&numbered.note))?;
            notes.remove(index)
        });
        let Some(oldest) = oldest else { return false };
        self.forget(&oldest, namespaces);
        true
    }

    fn forget(&mut self, gone: &Numbered, namespaces: &mut HashMap<String, usize>) {
        self.bytes = self.bytes.saturating_sub(gone.bytes);
        let namespace = gone.note.job().0;
        let left = namespaces.get(namespace).map_or(0, |bytes| bytes.saturating_sub(gone.bytes));
        if left == 0 {
            namespaces.remove(namespace);
        } else {
            namespaces.insert(namespace.to_owned(), left);
        }
    }
}

#[cfg(test)]
#[path = "visit_recorder_tests.rs"]
mod tests;
