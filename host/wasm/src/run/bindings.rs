//! Rust types of the contract in `wit/`. All of it is generated.

#[allow(
    missing_docs,
    unreachable_pub,
    clippy::indexing_slicing,
    clippy::allow_attributes_without_reason,
    reason = "generated from wit/, where the items are documented"
)]
mod generated {
    wasmtime::component::bindgen!({
        path: ["../../wit/host", "../../wit/action"],
        world: "oarlock:action/action",
        imports: { default: trappable },
        exports: { default: async },
        with: {
            "oarlock:host/cluster.object": crate::run::host_functions::ObjectHandle,
            "oarlock:host/jobs.job": crate::run::host_functions::JobHandle,
            "oarlock:host/jobs.target": crate::run::host_functions::TargetHandle,
        },
    });
}

pub(crate) use generated::exports::oarlock::action::handler as action;
pub(crate) use generated::oarlock::host::{cluster, config, jobs, log};
pub(crate) use generated::{Action, ActionPre};
