//! Budgets of bytes that all requests share, so that one namespace cannot use up the memory. Source: docs/opsjob-rest.md 8.
//!
//! One key gets at most a quarter of a budget. Another quarter is only for callers with rights in the whole cluster.

use std::sync::Arc;
use std::time::Duration;

use oarlock_core::object::quota_key::QuotaKey;
use oarlock_core::ops_job::refusal::{Code, OpsRefusal};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;

use crate::keyed::KeyedSemaphores;

/// The default wait for a reservation of bytes.
pub(crate) const WAITS: Duration = Duration::from_secs(2);

/// A budget of bytes.
pub(crate) struct ByteRoom {
    all: Arc<Semaphore>,
    of_others: Arc<Semaphore>,
    of_keys: KeyedSemaphores,
}

/// The caller whose bytes count against a budget.
#[derive(Clone)]
pub(crate) struct Sharer {
    pub(crate) key: QuotaKey,
    /// True if the caller has rights in the whole cluster.
    pub(crate) is_wide: bool,
}

/// The parts of a budget against which the bytes of one request count.
pub(crate) struct ByteShares {
    /// The semaphores, beginning with the caller's key. So bytes that exceed the share of their key reserve nothing in the other parts.
    parts: Vec<Arc<Semaphore>>,
    key: QuotaKey,
    /// The noun for the bytes in refusals.
    what: &'static str,
    waits: Duration,
}

/// The reserved bytes of one request. Dropping them releases the reservation.
#[derive(Default)]
pub(crate) struct BytePlaces(Vec<OwnedSemaphorePermit>);

impl ByteRoom {
    /// Makes a budget of this many bytes.
    pub(crate) fn of(bytes: usize) -> Self {
        let of_others = Arc::new(Semaphore::new(bytes / 4 * 3));
        Self { all: Arc::new(Semaphore::new(bytes)), of_others, of_keys: KeyedSemaphores::of(bytes / 4) }
    }

    /// Returns the most bytes that one key may reserve.
    pub(crate) fn of_one(&self) -> usize {
        self.of_keys.permits()
    }

    /// Returns the parts of the budget for a caller. `what` names the bytes in refusals.
    pub(crate) fn shares(&self, sharer: &Sharer, what: &'static str) -> ByteShares {
        let own = self.of_keys.of_key(&sharer.key);
        let of_others = (!sharer.is_wide).then(|| self.of_others.clone());
        let parts = std::iter::once(own).chain(of_others).chain([self.all.clone()]).collect();
        ByteShares { parts, key: sharer.key.clone(), what, waits: WAITS }
    }

    #[cfg(test)]
    pub(crate) fn free(&self) -> usize {
        self.all.available_permits()
    }

    #[cfg(test)]
    pub(crate) fn keys(&self) -> usize {
        self.of_keys.known()
    }
}

impl ByteShares {
    /// Returns these parts with another wait for reservations.
    pub(crate) fn waiting(self, waits: Duration) -> Self {
        Self { waits, ..self }
    }

    /// Reserves more bytes, and waits a moment for them.
    ///
    /// # Errors
    /// If the share of the key, or the whole budget, has too few bytes left.
    pub(crate) async fn take(&self, bytes: usize, places: &mut BytePlaces) -> Result<(), OpsRefusal> {
        let many = u32::try_from(bytes).unwrap_or(u32::MAX);
        for (index, part) in self.parts.iter().enumerate() {
            let Ok(Ok(more)) = timeout(self.waits, part.clone().acquire_many_owned(many)).await else {
                return Err(self.refusal(index));
            };
            match places.0.get_mut(index) {
                Some(held) => held.merge(more),
                None => places.0.push(more),
            }
        }
        Ok(())
    }

    fn refusal(&self, part: usize) -> OpsRefusal {
        let (code, whose) = match part {
            0 => (Code::TooMany, format!("of {}", self.key)),
            _ => (Code::Unreachable, "of others".to_owned()),
        };
        let message = format!("{} {whose} take all the memory for them: try again", self.what);
        OpsRefusal::new(code, message).after(1)
    }
}
