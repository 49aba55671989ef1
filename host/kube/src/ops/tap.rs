//! What is told of each OpsJob that is read: as a whole, and not as it is held.

use serde_json::Value;

/// Hears of OpsJobs as lists and watches show them.
pub trait OpsTap: Send + Sync {
    /// This is how one is stored. It may have been told before.
    fn seen(&self, document: &Value);

    /// The one of this UID is gone.
    fn gone(&self, uid: &str);

    /// These are all that there are.
    fn listed(&self, uids: Vec<String>);
}

/// Nobody hears.
impl OpsTap for () {
    fn seen(&self, _document: &Value) {}

    fn gone(&self, _uid: &str) {}

    fn listed(&self, _uids: Vec<String>) {}
}
