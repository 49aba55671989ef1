//! A visit of one target: the visit as a round plans it, and its outcome. Plain data.

use std::collections::BTreeSet;
use std::sync::Arc;

use crate::object::api_object::Object;
use crate::operation_job::state::TargetState;
use crate::plugin::proposal::PluginEvent;
use crate::plugin::visit::Call;
use crate::requests::live_reads::LiveRead;
use crate::requests::writes::Write;

/// A visit that the round makes.
#[derive(Debug)]
pub struct PlannedVisit {
    /// The functions to call.
    pub call: Call,
    /// The state to record, before the plugin's extras are added.
    pub state: TargetState,
    /// The object of the recorded UID.
    pub object: Option<Arc<Object>>,
    /// True for a final check: every read is live, and only `succeeded` counts.
    pub final_check: bool,
}

/// The outcome of an answer.
#[derive(Debug, Default)]
pub struct TargetUpdate {
    /// The state to record, equal to the stored state if nothing changed. `None` if there is nothing to decide.
    pub state: Option<TargetState>,
    /// The writes that follow the record, in order.
    pub writes: Vec<Write>,
    /// The positions of the writes that make the plugin's proposal.
    pub of_plugin: BTreeSet<usize>,
    /// The events to emit.
    pub events: Vec<PluginEvent>,
    /// The events to emit on the target's object.
    pub pod_events: Vec<PluginEvent>,
    /// The live reads that the call lacked.
    pub live_reads: BTreeSet<LiveRead>,
    /// Message about the request that was not granted, if there is one. The host then does nothing of the proposal.
    pub denied: Option<String>,
}

pub(super) fn unchanged(planned: &PlannedVisit) -> TargetUpdate {
    TargetUpdate { state: Some(planned.state.clone()), ..TargetUpdate::default() }
}
