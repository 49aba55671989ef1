//! The extras that the host keeps for a target. A plugin may read them but may not set them.

/// The extra with the root controller, as `kind/name/uid`.
pub const OWNER: &str = "Owner";
/// The extra with the node of a DaemonSet's pod.
pub const NODE: &str = "Node";
/// The extra with the time at which the host asked the target to terminate.
pub const EVICTED_AT: &str = "EvictedAt";
/// The extra that is `true` once the target carries no change of this job that the job must undo.
pub const RELEASED: &str = "Released";
/// The extra with the objects that the exclusive extras name, as `<extra>=<kind>/<uid>`, joined by commas.
pub const CLAIMED_UID: &str = "ClaimedUID";
/// The extra with the time at which the host finished the operation of the PodOpsLifecycle. From then on, the job only waits for the end of
/// the operation.
pub const FINISHED: &str = "Finished";
/// The extra with the changes that the plugin would make, according to a dry run.
pub const PLAN: &str = "Plan";
/// The extra with the state of a node's drain, as JSON: `{"state": "Draining"}` or `{"state": "Drained"}`. While the drain runs, `blocked`
/// names at most 10 pods that do not go, and `more` counts the others. `terminating` names the pod whose grace period ends last.
pub const DRAIN: &str = "Drain";
/// The value of [`DRAIN`] once no pod is left that must go.
pub const DRAINED: &str = r#"{"state":"Drained"}"#;
/// The extra with the reason why a target waits, in the words of its plugin: `<Word>: <sentence>`. The host shows this extra and never
/// clears it.
pub const WAITS_FOR: &str = "WaitsFor";
/// The extra with the time since which a target waits for the word of [`WAITS_FOR`], in RFC 3339.
pub const WAITS_SINCE: &str = "WaitsSince";
/// The beginning of the keys of tasks. `Task/<name>` has the state of the task of that name, as JSON.
pub const TASK: &str = "Task/";
/// All extras of the host.
pub const HOST: [&str; 9] = [OWNER, NODE, EVICTED_AT, RELEASED, CLAIMED_UID, FINISHED, PLAN, DRAIN, WAITS_SINCE];

/// Returns true if the extra with this `key` belongs to the host.
pub fn is_host(key: &str) -> bool {
    HOST.contains(&key) || key.starts_with(TASK)
}
