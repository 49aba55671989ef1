//! The ledger: an append-only list of the physical effects on pods and nodes. Those on pods are built from watch events alone,
//! so it works on every API server; a reboot is noted where it happens. The cause of a deletion is known if the world announced it or the eviction API noted it.

use std::collections::{BTreeMap, HashSet};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use parking_lot::Mutex;
use tokio::sync::watch;
use tokio::time::Instant;

use super::ledger_book::Book;
use super::ledger_check::{LedgerCheck, TargetOutcome, judge};
use super::pod_facts::PodFacts;
use super::wait_until::{Overdue, wait_until};

/// Cause of a pod's deletion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// The eviction API, which sets the condition `DisruptionTarget`.
    Evicted,
    /// A CollaSet's pod that bore the label `to-delete`.
    MarkedToDelete,
    /// Its set became smaller.
    ScaledDown,
    /// A scenario made the pod again under its own name.
    Recreated,
    /// Another client deleted it.
    Unknown,
}

/// Physical effect on a pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Effect {
    /// It appeared.
    PodCreated {
        /// The uid of the workload that made it.
        owner: Option<String>,
        /// The uid of the pod whose place it takes: named by its label, of its own name, or the pod of the same
        /// owner that was lost first and has no replacement yet.
        for_origin: Option<String>,
    },
    /// Its containers ran for the first time.
    PodStarted {
        /// The name of its node.
        node: String,
    },
    /// It was ready for the first time.
    PodReady,
    /// Its containers ended by themselves.
    PodEnded {
        /// The exit code of the first of them.
        exit_code: i32,
    },
    /// The eviction API accepted its eviction.
    PodEvicted,
    /// One of its containers was restarted.
    ContainerRestarted {
        /// The container.
        container: String,
        /// The number of its restarts, this one included.
        count: i32,
    },
    /// Its deletion began.
    PodTerminating {
        /// Cause, as far as is known.
        cause: Cause,
    },
    /// It is gone.
    PodGone,
    /// A node went down to start again. Such an entry has no namespace, and the node's name and uid.
    NodeRebooted {
        /// The number of its reboots, this one included.
        count: u64,
    },
    /// A node is Ready again after a reboot, with another boot id than before. Such an entry is as the one of the reboot.
    NodeReady {
        /// The number of its reboots so far.
        count: u64,
    },
}

/// One line of the ledger.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Since the ledger was opened.
    pub time: Duration,
    /// The pod's namespace.
    pub namespace: String,
    /// The pod's name.
    pub name: String,
    /// The pod's identity.
    pub uid: String,
    /// The effect.
    pub effect: Effect,
}

impl fmt::Display for Entry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { time, namespace, name, uid, effect } = self;
        write!(f, "{:>9.3}s {namespace}/{name} ({uid}) ", time.as_secs_f64())?;
        match effect {
            Effect::PodCreated { for_origin: Some(origin), .. } => write!(f, "created in place of {origin}"),
            Effect::PodCreated { for_origin: None, .. } => f.write_str("created"),
            Effect::PodStarted { node } => write!(f, "started on {node}"),
            Effect::PodReady => f.write_str("ready"),
            Effect::PodEnded { exit_code } => write!(f, "ended ({exit_code})"),
            Effect::PodEvicted => f.write_str("evicted"),
            Effect::ContainerRestarted { container, count } => write!(f, "container {container} restarted ({count})"),
            Effect::PodTerminating { cause } => write!(f, "terminating ({cause:?})"),
            Effect::PodGone => f.write_str("gone"),
            Effect::NodeRebooted { count } => write!(f, "rebooted ({count})"),
            Effect::NodeReady { count } => write!(f, "ready after reboot {count}"),
        }
    }
}

/// A shared, append-only ledger.
#[derive(Clone, Debug)]
pub struct Ledger {
    book: Arc<Mutex<Book>>,
    opened: Instant,
    length: Arc<watch::Sender<usize>>,
}

impl Default for Ledger {
    fn default() -> Self {
        Self { book: Arc::default(), opened: Instant::now(), length: Arc::new(watch::Sender::new(0)) }
    }
}

impl Ledger {
    /// All effects so far, in the order of the watch.
    #[must_use]
    pub fn entries(&self) -> Vec<Entry> {
        self.book.lock().entries.clone()
    }

    /// When the ledger was opened: the times of its entries count from then.
    #[must_use]
    pub fn opened(&self) -> Instant {
        self.opened
    }

    /// Judges whether each target, as (name, uid), was replaced exactly once and no other pod was lost.
    #[must_use]
    pub fn verdict(&self, targets: &[(String, String)]) -> LedgerCheck {
        judge(&self.book.lock().entries, targets)
    }

    /// The verdict once each target went once and was replaced once, or what it is after `patience`: the world's watch
    /// may be behind what a job already knows to be done.
    pub async fn verdict_within(&self, targets: &[(String, String)], patience: Duration) -> LedgerCheck {
        let right = |entries: &[Entry]| judge(entries, targets).targets.iter().all(TargetOutcome::is_right);
        // Whether it is right or too late, the verdict says how things stand.
        let _ = self.until("each target to go once and be replaced once", patience, right).await;
        self.verdict(targets)
    }

    /// Waits until the entries satisfy a condition.
    ///
    /// # Errors
    /// `Overdue` once the deadline has passed.
    pub async fn until(
        &self,
        what: &str,
        deadline: Duration,
        condition: impl FnMut(&[Entry]) -> bool,
    ) -> Result<(), Overdue> {
        let mut condition = condition;
        let held = || condition(&self.book.lock().entries);
        wait_until(what, deadline, self.length.subscribe(), held).await
    }

    /// Announces the cause of a deletion to come.
    pub(crate) fn announce(&self, uid: &str, cause: Cause) {
        self.book.lock().announced.insert(uid.to_owned(), cause);
    }

    /// The number of reboots of each node that was rebooted, by name.
    #[must_use]
    pub fn reboots(&self) -> BTreeMap<String, u64> {
        let book = self.book.lock();
        let counted = |entry: &Entry| match entry.effect {
            Effect::NodeRebooted { count } => Some((entry.name.clone(), count)),
            _ => None,
        };
        book.entries.iter().filter_map(counted).collect()
    }

    /// Records an effect on a node, as (name, uid).
    pub(crate) fn note(&self, (name, uid): (&str, &str), effect: Effect) {
        let (name, uid) = (name.to_owned(), uid.to_owned());
        self.write(|book, time| book.entries.push(Entry { time, namespace: String::new(), name, uid, effect }));
    }

    /// Records the effects that a new version of a pod shows.
    pub(crate) fn saw(&self, pod: &Pod) {
        self.write(|book, time| book.saw(pod, time));
    }

    /// Records that a pod is gone, and the effects that its last version shows.
    pub(crate) fn saw_gone(&self, pod: &Pod) {
        self.write(|book, time| {
            book.saw(pod, time);
            book.gone(pod.uid(), time);
        });
    }

    /// Records the end of every pod that a full list lacks.
    pub(crate) fn only_these_exist(&self, uids: &HashSet<String>) {
        self.write(|book, time| {
            let missing = book.missing(uids);
            missing.iter().for_each(|uid| book.gone(uid, time));
        });
    }

    fn write(&self, change: impl FnOnce(&mut Book, Duration)) {
        let mut book = self.book.lock();
        change(&mut book, self.opened.elapsed());
        let length = book.entries.len();
        drop(book);
        self.length.send_if_modified(|known| std::mem::replace(known, length) != length);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::world::labels;
    use crate::world::samples::pod;

    fn origins(ledger: &Ledger) -> Vec<(String, Option<String>)> {
        let created = |entry: Entry| match entry.effect {
            Effect::PodCreated { for_origin, .. } => Some((entry.name, for_origin)),
            _ => None,
        };
        ledger.entries().into_iter().filter_map(created).collect()
    }

    #[tokio::test(start_paused = true)]
    async fn each_effect_is_written_once_however_often_it_is_seen() {
        let ledger = Ledger::default();
        let seen = pod("a").owner("ReplicaSet", "rs");
        ledger.saw(&seen.clone().0);
        ledger.saw(&seen.clone().0);
        ledger.saw(&seen.clone().terminating().0);
        ledger.saw_gone(&seen.clone().terminating().0);
        ledger.saw_gone(&seen.terminating().0);
        let effects: Vec<Effect> = ledger.entries().into_iter().map(|entry| entry.effect).collect();
        assert_eq!(
            effects,
            [
                Effect::PodCreated { owner: Some("rs".into()), for_origin: None },
                Effect::PodStarted { node: String::new() },
                Effect::PodReady,
                Effect::PodTerminating { cause: Cause::Unknown },
                Effect::PodGone,
            ]
        );
    }

    #[tokio::test(start_paused = true)]
    async fn a_pod_that_ends_by_itself_is_told_with_its_node_and_its_exit_code() {
        let ledger = Ledger::default();
        let seen = pod("a").node("node-1");
        ledger.saw(&seen.clone().0);
        ledger.saw(&seen.clone().ended(3).0);
        ledger.saw(&seen.ended(3).terminating().0);
        let effects: Vec<Effect> = ledger.entries().into_iter().map(|entry| entry.effect).collect();
        assert_eq!(effects[1], Effect::PodStarted { node: "node-1".into() });
        assert_eq!(effects[3..], [Effect::PodEnded { exit_code: 3 }, Effect::PodTerminating { cause: Cause::Unknown }]);
    }

    #[tokio::test(start_paused = true)]
    async fn replacements_of_a_replica_set_are_paired_first_lost_first() {
        let ledger = Ledger::default();
        let owned = |name: &str| pod(name).owner("ReplicaSet", "rs");
        ledger.saw(&owned("a").0);
        ledger.saw(&owned("b").0);
        ledger.saw(&owned("b").terminating().0);
        ledger.saw_gone(&owned("a").0);
        ledger.saw(&owned("c").0);
        ledger.saw(&owned("d").0);
        ledger.saw(&owned("e").0);
        let of = |name: &str, origin: Option<&str>| (name.to_owned(), origin.map(str::to_owned));
        let expected = [of("a", None), of("b", None), of("c", Some("uid-b")), of("d", Some("uid-a")), of("e", None)];
        assert_eq!(origins(&ledger), expected);
    }

    #[tokio::test(start_paused = true)]
    async fn labels_and_names_say_whose_place_is_taken() {
        let ledger = Ledger::default();
        ledger.saw(&pod("a").owner("CollaSet", "foo").0);
        ledger.saw(&pod("b").owner("CollaSet", "foo").label(labels::PAIR_ORIGIN_NAME, "a").0);
        ledger.saw_gone(&pod("a").owner("CollaSet", "foo").terminating().0);
        ledger.saw(&pod("c").owner("CollaSet", "foo").0);
        ledger.saw_gone(&pod("db-0").owner("StatefulSet", "db").0);
        ledger.saw(&pod("db-0").uid("second").owner("StatefulSet", "db").0);
        let found: Vec<_> = origins(&ledger).into_iter().filter_map(|(name, origin)| Some((name, origin?))).collect();
        assert_eq!(found, [("b".into(), "uid-a".into()), ("db-0".into(), "uid-db-0".into())]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_drawn_name_that_comes_up_again_is_no_second_replacement_of_its_first_bearer() {
        let ledger = Ledger::default();
        let owned = |name: &str| pod(name).owner("ReplicaSet", "rs");
        ledger.saw(&owned("a").0);
        ledger.saw_gone(&owned("a").terminating().0);
        ledger.saw(&owned("b").0);
        ledger.saw_gone(&owned("b").terminating().0);
        ledger.saw(&owned("a").uid("second").0);
        let of = |name: &str, origin: Option<&str>| (name.to_owned(), origin.map(str::to_owned));
        assert_eq!(origins(&ledger), [of("a", None), of("b", Some("uid-a")), of("a", Some("uid-b"))]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_full_list_ends_the_pods_that_it_lacks() {
        let ledger = Ledger::default();
        ledger.saw(&pod("a").0);
        ledger.saw(&pod("b").0);
        ledger.only_these_exist(&HashSet::from(["uid-b".to_owned()]));
        assert!(matches!(ledger.entries().last(), Some(Entry { name, effect: Effect::PodGone, .. }) if name == "a"));
    }
}
