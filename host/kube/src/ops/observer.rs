//! The observer of OpsJobs. It gets each OpsJob whole, not in the form that the cache keeps.

use serde_json::Value;

/// An observer of the OpsJobs that lists and watches show.
pub trait OpsJobObserver: Send + Sync {
    /// Handles an OpsJob as the API server stores it. The observer may have seen this version before.
    fn seen(&self, document: &Value);

    /// Handles the deletion of the OpsJob with this UID.
    fn gone(&self, uid: &str);

    /// Handles a complete list of the OpsJobs, by UID.
    fn listed(&self, uids: Vec<String>);
}

/// An observer that ignores all OpsJobs.
impl OpsJobObserver for () {
    fn seen(&self, _document: &Value) {}

    fn gone(&self, _uid: &str) {}

    fn listed(&self, _uids: Vec<String>) {}
}
