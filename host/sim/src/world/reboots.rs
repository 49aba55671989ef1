//! The reboots of nodes: their progress and their number. The event log shows the physical reboots, whatever the API
//! shows.

use std::collections::{BTreeMap, HashMap};
use std::sync::OnceLock;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

use super::queue::Queue;
use super::random::SeededRandom;
use super::rounds::WorkKey;

/// The way in which a node returns from a reboot.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Return {
    /// The node becomes Ready with a new boot id.
    #[default]
    Ready,
    /// The node gets a new boot id, but does not become Ready.
    NotReady,
    /// The node never returns.
    Never,
    /// The node becomes Ready with its old boot id, because its machine did not restart.
    SameBootId,
    /// The Node object is deleted during the reboot.
    Deleted,
    /// The Node object is deleted during the reboot and created again under its name.
    MadeAnew,
}

/// The next step of a rebooting node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RebootStep {
    /// The node goes down.
    Down,
    /// The node returns.
    Up(Return),
}

/// The reboots of all nodes by node name.
#[derive(Default)]
pub(crate) struct Reboots {
    all: Mutex<HashMap<String, NodeReboots>>,
    queue: OnceLock<Queue<WorkKey>>,
}

#[derive(Clone, Copy, Debug, Default)]
struct NodeReboots {
    count: u64,
    /// The next step and the time at which it is due.
    next: Option<(RebootStep, Instant)>,
    /// Whether the node is down.
    down: bool,
    goes: Return,
}

impl Reboots {
    /// Sets the queue that wakes nodes.
    pub(crate) fn wake_through(&self, queue: Queue<WorkKey>) {
        drop(self.queue.set(queue));
    }

    /// Sets how the node returns from its reboots from now on.
    pub(crate) fn returns(&self, node: &str, how: Return) {
        self.all.lock().entry(node.to_owned()).or_default().goes = how;
    }

    /// Lets the node go down after `ahead`, unless the node is already rebooting.
    pub(crate) fn begin(&self, node: &str, ahead: Duration) {
        let mut all = self.all.lock();
        let known = all.entry(node.to_owned()).or_default();
        if known.next.is_none() {
            known.next = Some((RebootStep::Down, Instant::now() + ahead));
            self.wake(WorkKey::Node(node.to_owned()), ahead);
        }
    }

    /// Returns the next step and the time until it is due.
    pub(crate) fn next(&self, node: &str) -> Option<(RebootStep, Duration)> {
        let (step, at) = self.all.lock().get(node)?.next?;
        Some((step, at.saturating_duration_since(Instant::now())))
    }

    /// Marks the node as down, to return after `away`. Returns the number of its reboots, including this one. A call for a node
    /// that is already down counts as another reboot.
    pub(crate) fn goes_down(&self, node: &str, away: Duration) -> u64 {
        let mut all = self.all.lock();
        let known = all.entry(node.to_owned()).or_default();
        known.count = known.count.saturating_add(1);
        known.down = true;
        known.next = match known.goes {
            Return::Never => None,
            how => Some((RebootStep::Up(how), Instant::now() + away)),
        };
        known.count
    }

    /// Marks the node as up.
    pub(crate) fn came_up(&self, node: &str) {
        if let Some(known) = self.all.lock().get_mut(node) {
            (known.next, known.down) = (None, false);
        }
    }

    /// Returns true while the node is down. Its kubelet then does nothing.
    pub(crate) fn is_down(&self, node: &str) -> bool {
        self.all.lock().get(node).is_some_and(|known| known.down)
    }

    /// Returns the number of reboots of each rebooted node.
    pub(crate) fn counts(&self) -> BTreeMap<String, u64> {
        let all = self.all.lock();
        all.iter().filter(|(_, known)| known.count > 0).map(|(name, known)| (name.clone(), known.count)).collect()
    }

    pub(crate) fn wake(&self, key: WorkKey, delay: Duration) {
        if let Some(queue) = self.queue.get() {
            queue.add(key, delay);
        }
    }
}

/// Returns the boot id of a node after a number of reboots. The boot id ends in this number, so each version of the node shows
/// how often it rebooted.
pub(crate) fn boot_id(node: &str, reboots: u64) -> String {
    let draw = SeededRandom::new(0).draw(&["boot", node]) >> 32;
    format!("{draw:08x}-0000-4000-8000-{reboots:012}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_node_goes_down_after_its_notice_and_comes_back_after_its_time() {
        let reboots = Reboots::default();
        reboots.begin("n", Duration::from_secs(3));
        reboots.begin("n", Duration::from_secs(9));
        assert_eq!(reboots.next("n"), Some((RebootStep::Down, Duration::from_secs(3))));
        assert!(!reboots.is_down("n"));
        assert_eq!(reboots.goes_down("n", Duration::from_secs(20)), 1);
        assert_eq!(reboots.next("n"), Some((RebootStep::Up(Return::Ready), Duration::from_secs(20))));
        assert!(reboots.is_down("n"));
        reboots.came_up("n");
        assert_eq!((reboots.next("n"), reboots.is_down("n")), (None, false));
        assert_eq!(reboots.counts(), [("n".to_owned(), 1)].into());
    }

    #[test]
    fn boot_ids_tell_nodes_and_reboots_apart() {
        assert_ne!(boot_id("a", 0), boot_id("b", 0));
        assert!(boot_id("a", 2).ends_with("-000000000002"));
    }
}
