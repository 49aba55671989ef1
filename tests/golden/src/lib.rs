//! Uses the whole contract 1.0.0, as it stands in `wit/frozen/1.0.0`: every function that a plugin may call, every type that
//! it may answer with. A host on which this component does not run breaks plugins that were built before.
//!
//! It is written on the generated bindings and not on the SDK, which follows the contract as it is. Where the job has a
//! parameter `answer`, `operate` proposes that mutation; otherwise it answers what it has read as extras.

#[allow(
    missing_docs,
    unsafe_code,
    unreachable_pub,
    clippy::indexing_slicing,
    clippy::allow_attributes_without_reason,
    reason = "generated from wit/frozen, where the items are documented"
)]
pub mod bindings {
    wit_bindgen::generate!({
        path: ["../../wit/frozen/1.0.0/host", "../../wit/frozen/1.0.0/action"],
        world: "oarlock:action/action",
        generate_all,
        pub_export_macro: true,
        export_macro_name: "export_golden",
    });
}

/// The manifest of the component.
pub const MANIFEST: &str = include_str!("../manifest.json");

#[cfg(target_family = "wasm")]
mod plugin;
