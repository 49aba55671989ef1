//! The generated Rust types of the contract in `wit/`.

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
            "oarlock:host/cluster.object": crate::run::handles::ObjectHandle,
            "oarlock:host/jobs.job": crate::run::handles::JobHandle,
            "oarlock:host/jobs.target": crate::run::handles::TargetHandle,
        },
    });
}

pub(crate) use generated::exports::oarlock::action::handler as action;
pub(crate) use generated::oarlock::host::{cluster, config, jobs, log};
pub(crate) use generated::{Action, ActionPre};
