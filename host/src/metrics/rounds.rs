//! The number of objects whose last round failed, by kind.

use std::collections::{BTreeMap, HashSet};

use parking_lot::Mutex;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct FailingLabels {
    kind: String,
}

/// The objects whose last round failed. The set of kinds is fixed: it has the kinds that the host reconciles.
#[derive(Debug, Default)]
pub(crate) struct FailingRounds {
    shown: Family<FailingLabels, Gauge>,
    /// The texts of the keys of the failing objects, by kind.
    failing: Mutex<BTreeMap<String, HashSet<String>>>,
}

impl FailingRounds {
    pub(super) fn register(registry: &mut Registry) -> Self {
        let metrics = Self::default();
        let help = "Number of objects whose last round failed, by kind. The host repeats these rounds";
        registry.register("rounds_failing", help, metrics.shown.clone());
        metrics
    }

    /// Notes that a round of this object failed.
    pub(crate) fn failed(&self, kind: &str, object: String) {
        let mut failing = self.failing.lock();
        failing.entry(kind.to_owned()).or_default().insert(object);
        self.show(&failing, kind);
    }

    /// Notes that a round of this object succeeded, or that the object is deleted. `object` returns the text of the key.
    pub(crate) fn succeeded(&self, kind: &str, object: impl FnOnce() -> String) {
        let mut failing = self.failing.lock();
        let Some(objects) = failing.get_mut(kind) else {
            // The series exists from the first round, so that a dashboard shows 0.
            failing.insert(kind.to_owned(), HashSet::new());
            return self.show(&failing, kind);
        };
        if !objects.is_empty() && objects.remove(&object()) {
            self.show(&failing, kind);
        }
    }

    /// Forgets all objects, because a process that does not lead has no rounds.
    pub(crate) fn forget_all(&self) {
        self.failing.lock().clear();
        self.shown.clear();
    }

    fn show(&self, failing: &BTreeMap<String, HashSet<String>>, kind: &str) {
        let number = failing.get(kind).map_or(0, HashSet::len);
        let labels = FailingLabels { kind: kind.to_owned() };
        self.shown.get_or_create_owned(&labels).set(i64::try_from(number).unwrap_or(i64::MAX));
    }
}
