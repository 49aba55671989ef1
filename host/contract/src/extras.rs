//! Extras that the host keeps for a target. A plugin may read them, and set none of them.

/// `kind/name/uid` of the root controller.
pub const OWNER: &str = "Owner";
/// The node of a DaemonSet's pod.
pub const NODE: &str = "Node";
/// Time at which the target was asked to terminate.
pub const EVICTED_AT: &str = "EvictedAt";
/// `true` once the target carries no change of this job that has to be undone.
pub const RELEASED: &str = "Released";
/// The objects that the exclusive extras name, as `<extra>=<kind>/<uid>`, joined by commas.
pub const CLAIMED_UID: &str = "ClaimedUID";
/// Time at which the operation of the PodOpsLifecycle was finished: from then on only its end is awaited.
pub const FINISHED: &str = "Finished";
/// What a dry run found that the plugin would do.
pub const PLAN: &str = "Plan";
/// How far the drain of a node is, as JSON: `{"state": "Draining"}`, with the names of pods that do not go (`blocked`, at
/// most 10, and `more`, how many others) and of the one whose time to terminate ends last (`terminating`), or `{"state": "Drained"}`.
pub const DRAIN: &str = "Drain";
/// The value of [`DRAIN`] once no pod is left that has to go.
pub const DRAINED: &str = r#"{"state":"Drained"}"#;
/// What a target waits for, as its plugin says it: `<Word>: <sentence>`. The host shows it, and clears nothing of it.
pub const WAITS_FOR: &str = "WaitsFor";
/// Since when a target waits for what [`WAITS_FOR`] has a word for, in RFC 3339.
pub const WAITS_SINCE: &str = "WaitsSince";
/// How the keys of tasks begin: `Task/<name>` has the state of the task of that name, as JSON.
pub const TASK: &str = "Task/";
/// All extras of the host.
pub const HOST: [&str; 9] = [OWNER, NODE, EVICTED_AT, RELEASED, CLAIMED_UID, FINISHED, PLAN, DRAIN, WAITS_SINCE];

/// True if the extra under `key` belongs to the host.
pub fn is_host(key: &str) -> bool {
    HOST.contains(&key) || key.starts_with(TASK)
}
