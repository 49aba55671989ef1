//! Bytes that all requests share, so that no namespace takes them all. Source: docs/opsjob-rest.md 8.
//!
//! One key has at most a quarter of a room. A quarter of it is for callers with rights in the whole cluster alone.

use std::sync::Arc;
use std::time::Duration;

use oarlock_core::ops_job::refusal::{Code, OpsRefusal};
use oarlock_core::shared::quota_key::QuotaKey;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;

use crate::keyed::KeyedSemaphores;

/// Longest time that bytes usually wait for their place.
pub(crate) const WAITS: Duration = Duration::from_secs(2);

/// A room of bytes.
pub(crate) struct ByteRoom {
    all: Arc<Semaphore>,
    of_others: Arc<Semaphore>,
    of_keys: KeyedSemaphores,
}

/// The caller whose bytes take place.
#[derive(Clone)]
pub(crate) struct Sharer {
    pub(crate) key: QuotaKey,
    /// True if the caller has rights in the whole cluster.
    pub(crate) is_wide: bool,
}

/// The parts of a room in which the bytes of one request count.
pub(crate) struct ByteShares {
    /// The part of the caller's key comes first: bytes without a place there take none elsewhere.
    parts: Vec<Arc<Semaphore>>,
    key: QuotaKey,
    /// The noun for the bytes in refusals.
    what: &'static str,
    waits: Duration,
}

/// The places of the bytes of one request. Dropping them gives them back.
#[derive(Default)]
pub(crate) struct BytePlaces(Vec<OwnedSemaphorePermit>);

impl ByteRoom {
    /// Makes a room of so many bytes.
    pub(crate) fn of(bytes: usize) -> Self {
        let of_others = Arc::new(Semaphore::new(bytes / 4 * 3));
        Self { all: Arc::new(Semaphore::new(bytes)), of_others, of_keys: KeyedSemaphores::of(bytes / 4) }
    }

    /// Returns the most bytes that one key may have.
    pub(crate) fn of_one(&self) -> usize {
        self.of_keys.permits()
    }

    /// Returns the parts in which the bytes of a caller count. `what` names these bytes in refusals.
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
    /// Returns the same, where bytes wait so long for their place.
    pub(crate) fn waiting(self, waits: Duration) -> Self {
        Self { waits, ..self }
    }

    /// Takes places for more bytes, and waits a moment for them.
    ///
    /// # Errors
    /// The part of the key, or of all, has no place.
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
        let words = format!("{} {whose} have all the room there is: try again", self.what);
        OpsRefusal::new(code, words).after(1)
    }
}
