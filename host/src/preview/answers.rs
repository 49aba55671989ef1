//! The answers to the live reads of a preview: from the lists if possible, otherwise from the API server, each read
//! once.

use std::collections::{BTreeMap, BTreeSet};

use oarlock_core::object::api_object::{Kind, ObjectKey};
use oarlock_core::operation_job::round::fit::allows_nodes;
use oarlock_core::requests::live_reads::{LiveRead, LiveReads, ReadFailure};
use oarlock_kube::Cluster;

use crate::preview::PreviewSetup;

/// The number of objects of a kind that are read by name. For more, all objects of the namespace are listed once.
const BY_NAME: usize = 8;

/// The facts about a namespace that a round needs.
#[derive(Clone, Debug)]
pub(super) struct NamespaceFacts {
    /// True if the namespace is being deleted.
    pub(super) terminating: bool,
    /// True if the namespace has the label that jobs on nodes need.
    pub(super) node_operations: bool,
    /// The reason why the namespace was not read. The preview then assumes that it allows the job.
    pub(super) unread: Option<ReadFailure>,
}

/// The answers so far.
pub(super) struct Answers {
    cluster: Cluster,
    namespace: String,
    known: LiveReads,
    /// The number of objects of each kind that were read by name.
    by_name: BTreeMap<Kind, usize>,
    /// The kinds that the preview listed.
    listed: BTreeSet<Kind>,
}

impl Answers {
    pub(super) fn new(stage: &PreviewSetup, namespace: &str) -> Self {
        let (cluster, known) = (stage.cluster.clone(), stage.known.clone());
        Self { cluster, namespace: namespace.to_owned(), known, by_name: BTreeMap::new(), listed: BTreeSet::new() }
    }

    /// Returns the number of reads that the API server answered or refused.
    pub(super) fn made(&self) -> usize {
        self.known.answered.len() + self.known.failed.len()
    }

    /// Returns the job's namespace; `None` if it does not exist.
    pub(super) async fn namespace(&self) -> Option<NamespaceFacts> {
        let key = ObjectKey::namespace(&self.namespace);
        let read = LiveRead::Object(key.clone());
        let answer = self.cluster.read_once(std::slice::from_ref(&read)).await;
        match answer.objects.get(&key) {
            Some(Some(namespace)) => Some(NamespaceFacts {
                terminating: namespace.terminating(),
                node_operations: allows_nodes(namespace),
                unread: None,
            }),
            Some(None) => None,
            None => {
                let unanswered = || ReadFailure { message: "no answer".to_owned(), refused: false };
                let unread = Some(answer.failed.get(&read).cloned().unwrap_or_else(unanswered));
                Some(NamespaceFacts { terminating: false, node_operations: true, unread })
            }
        }
    }

    /// Returns the answers to `wanted`, and no others.
    pub(super) async fn of(&mut self, wanted: &[LiveRead]) -> LiveReads {
        let lacking: Vec<&LiveRead> = wanted.iter().filter(|read| !self.has(read)).collect();
        let ask: BTreeSet<LiveRead> = lacking.into_iter().map(|read| self.wider(read)).collect();
        if !ask.is_empty() {
            let asked: Vec<LiveRead> = ask.into_iter().collect();
            let LiveReads { answered, objects, selections, failed } = self.cluster.read_once(&asked).await;
            let whole = |read: &LiveRead| if let LiveRead::All { kind, .. } = read { Some(kind.clone()) } else { None };
            self.listed.extend(answered.iter().filter_map(whole));
            self.known.answered.extend(answered);
            self.known.objects.extend(objects);
            self.known.selections.extend(selections);
            self.known.failed.extend(failed);
        }
        let mut answers = LiveReads::default();
        for read in wanted {
            self.answer(read, &mut answers);
        }
        answers
    }

    /// Returns true if `read` needs no request.
    fn has(&self, read: &LiveRead) -> bool {
        self.known.answered.contains(read) || self.known.failed.contains_key(read) || self.is_listed(read)
    }

    fn is_listed(&self, read: &LiveRead) -> bool {
        match read {
            LiveRead::Object(ObjectKey { kind, .. }) | LiveRead::Labelled { kind, .. } | LiveRead::All { kind, .. } => {
                self.cluster.store().keeps(kind) || self.listed.contains(kind)
            }
            LiveRead::Served(_)
            | LiveRead::OnNode { .. }
            | LiveRead::Controllers { .. }
            | LiveRead::Selection { .. } => false,
        }
    }

    /// Returns the read to send for `read`, which may be a list.
    fn wider(&mut self, read: &LiveRead) -> LiveRead {
        let LiveRead::Object(key) = read else { return read.clone() };
        let Some(namespace) = key.namespace.clone() else { return read.clone() };
        let made = self.by_name.entry(key.kind.clone()).or_default();
        *made += 1;
        let all = LiveRead::All { kind: key.kind.clone(), namespace };
        // A user without permission to list may still read by name.
        if *made > BY_NAME && !self.known.failed.contains_key(&all) { all } else { read.clone() }
    }

    fn answer(&self, read: &LiveRead, answers: &mut LiveReads) {
        if let Some(failure) = self.known.failed.get(read).filter(|_| !self.is_listed(read)) {
            answers.failed.insert(read.clone(), failure.clone());
            return;
        }
        if !self.has(read) {
            return;
        }
        answers.answered.insert(read.clone());
        match read {
            LiveRead::Object(key) => {
                answers.objects.insert(key.clone(), self.known.objects.get(key).cloned().flatten());
            }
            LiveRead::Selection { .. } => {
                let found = self.known.selections.get(read).cloned().unwrap_or_default();
                answers.selections.insert(read.clone(), found);
            }
            LiveRead::Labelled { .. }
            | LiveRead::All { .. }
            | LiveRead::OnNode { .. }
            | LiveRead::Served(_)
            | LiveRead::Controllers { .. } => {}
        }
    }
}
