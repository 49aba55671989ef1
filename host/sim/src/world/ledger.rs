//! The event log: an append-only list of the physical effects on pods and nodes. Effects on pods come only from watch events, so
//! the log works on every API server. The simulation logs a reboot when it happens. The cause of a deletion is known if the
//! simulation announced it or the eviction API set its condition.

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

/// The cause of a pod's deletion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// The eviction API evicted the pod and set the condition `DisruptionTarget`.
    Evicted,
    /// The CollaSet deleted the pod because of its label `to-delete`.
    MarkedToDelete,
    /// The set was scaled down.
    ScaledDown,
    /// A scenario recreated the pod under its name.
    Recreated,
    /// Another client deleted the pod.
    Unknown,
}

/// A physical effect on a pod or node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Effect {
    /// The pod appeared.
    PodCreated {
        /// The uid of the workload that created the pod.
        owner: Option<String>,
        /// The uid of the pod that it replaces: the pod named in its label, the last pod of its name, or the first lost pod
        /// of the same owner without a replacement.
        for_origin: Option<String>,
    },
    /// The pod's containers ran for the first time.
    PodStarted {
        /// The name of the pod's node.
        node: String,
    },
    /// The pod was ready for the first time.
    PodReady,
    /// The pod's containers ended by themselves.
    PodEnded {
        /// The exit code of the first container.
        exit_code: i32,
    },
    /// The eviction API accepted the pod's eviction.
    PodEvicted,
    /// A container of the pod was restarted.
    ContainerRestarted {
        /// Name of the container.
        container: String,
        /// The number of the container's restarts, including this one.
        count: i32,
    },
    /// The pod's deletion began.
    PodTerminating {
        /// The cause of the deletion, if it is known.
        cause: Cause,
    },
    /// The pod is gone.
    PodGone,
    /// A node went down to reboot. The entry has no namespace, and the node's name and uid.
    NodeRebooted {
        /// The number of the node's reboots, including this one.
        count: u64,
    },
    /// A node is Ready with a new boot id after a reboot. The entry has no namespace, and the node's name and uid.
    NodeReady {
        /// The number of the node's reboots so far.
        count: u64,
    },
}

/// One entry of the event log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Time since the event log was opened.
    pub time: Duration,
    /// Namespace of the pod, empty for a node.
    pub namespace: String,
    /// Name of the pod or node.
    pub name: String,
    /// UID of the pod or node.
    pub uid: String,
    /// The effect on the pod or node.
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

/// A shared, append-only event log.
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
    /// Returns all effects so far, in the order of the watch events.
    #[must_use]
    pub fn entries(&self) -> Vec<Entry> {
        self.book.lock().entries.clone()
    }

    /// Returns the time at which the event log was opened. The times of its entries count from then.
    #[must_use]
    pub fn opened(&self) -> Instant {
        self.opened
    }

    /// Checks that each target, as (name, uid), was replaced exactly once, and that no other pod was lost.
    #[must_use]
    pub fn verdict(&self, targets: &[(String, String)]) -> LedgerCheck {
        judge(&self.book.lock().entries, targets)
    }

    /// Waits until each target went once and was replaced once, at most for `patience`, and returns the check. The
    /// simulation's watch may lag behind a job that already knows its targets are done.
    pub async fn verdict_within(&self, targets: &[(String, String)], patience: Duration) -> LedgerCheck {
        let right = |entries: &[Entry]| judge(entries, targets).targets.iter().all(TargetOutcome::is_right);
        // In both cases the check below shows the result.
        let _ = self.until("each target to go once and be replaced once", patience, right).await;
        self.verdict(targets)
    }

    /// Waits until the entries satisfy a condition.
    ///
    /// # Errors
    /// If the condition does not hold before the deadline.
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

    /// Announces the cause of a coming deletion.
    pub(crate) fn announce(&self, uid: &str, cause: Cause) {
        self.book.lock().announced.insert(uid.to_owned(), cause);
    }

    /// Returns the number of reboots of each rebooted node, by name.
    #[must_use]
    pub fn reboots(&self) -> BTreeMap<String, u64> {
        let book = self.book.lock();
        let counted = |entry: &Entry| match entry.effect {
            Effect::NodeRebooted { count } => Some((entry.name.clone(), count)),
            _ => None,
        };
        book.entries.iter().filter_map(counted).collect()
    }

    /// Logs an effect on a node, given as (name, uid).
    pub(crate) fn note(&self, (name, uid): (&str, &str), effect: Effect) {
        let (name, uid) = (name.to_owned(), uid.to_owned());
        self.write(|book, time| book.entries.push(Entry { time, namespace: String::new(), name, uid, effect }));
    }

    /// Logs the effects that a new version of a pod shows.
    pub(crate) fn saw(&self, pod: &Pod) {
        self.write(|book, time| book.saw(pod, time));
    }

    /// Logs that a pod is gone, and the effects that its last version shows.
    pub(crate) fn saw_gone(&self, pod: &Pod) {
        self.write(|book, time| {
            book.saw(pod, time);
            book.gone(pod.uid(), time);
        });
    }

    /// Logs the end of every pod that a full list lacks.
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
