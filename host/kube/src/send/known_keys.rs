//! The known keys that prove holds on pods, and the old policy that protected holds before them.

use std::sync::atomic::AtomicBool;

use parking_lot::Mutex;
use tokio::sync::Notify;

/// The known keys, and the old policy as the host last saw it.
#[derive(Default)]
pub(crate) struct HoldProof {
    /// The namespace of the Secret. It is `None` if the host does not prove holds.
    pub(super) namespace: Mutex<Option<String>>,
    /// The known keys. The key that proves holds comes first.
    pub(super) keys: Mutex<Vec<Vec<u8>>>,
    /// Wakes tasks that wait for the keys.
    pub(super) known: Notify,
    /// True if the host saw that the old policy is installed.
    pub(super) is_policy_there: AtomicBool,
    /// The number of pods whose holds could not be adopted, and the reason.
    pub(super) left: Mutex<Option<(usize, String)>>,
}
