//! A component that uses the whole contract 1.0.0, as it is in `wit/frozen/1.0.0`: every function that a plugin may
//! call, and every type that it may return. A host that cannot run this component breaks plugins that were built
//! before.
//!
//! The component uses the generated bindings and not the SDK, because the SDK follows the current contract. If the job
//! has a parameter `answer`, `operate` proposes the mutation with this name. In every case, `operate` returns the
//! values that it has read as extras.

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
        path: ["../../../wit/frozen/1.0.0/host", "../../../wit/frozen/1.0.0/action"],
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
