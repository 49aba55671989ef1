//! The Rust types of the contract in `wit/`. Everything except the short names
//! below is generated.

#[allow(
    missing_docs,
    unsafe_code,
    unreachable_pub,
    clippy::indexing_slicing,
    clippy::allow_attributes_without_reason,
    reason = "generated from wit/, where the items are documented"
)]
pub mod bindings {
    wit_bindgen::generate!({
        path: ["../wit/host", "../wit/action"],
        world: "oarlock:action/action",
        generate_all,
        additional_derives: [PartialEq, Eq],
        pub_export_macro: true,
        export_macro_name: "__export_component",
        default_bindings_module: "oarlock_sdk::wit::bindings",
    });
}

pub use bindings::exports::oarlock::action::handler::*;
pub use bindings::oarlock::host::{cluster::Freshness, jobs::TaskStatus, log::Level};
