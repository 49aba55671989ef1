//! The Rust SDK for plugins. An [`Action`] becomes a plugin: one WebAssembly
//! component that contains its manifest.
#![doc = include_str!("../README.md")]

mod action;
mod backend;
mod condition;
mod failure;
mod holds;
mod instant;
mod job;
#[cfg(not(target_family = "wasm"))]
pub mod kit;
pub mod log;
mod object;
mod proposal;
mod registration;
mod report;
mod target;
#[doc(hidden)]
pub mod wit;

pub use action::{Action, MANIFEST_LIMIT, Plugin};
pub use condition::Condition;
pub use failure::{Failure, ReadError, Result};
pub use holds::{HOLD_PREFIX, Holds, Mark};
pub use instant::parse_instant;
pub use job::{Job, config};
pub use object::{Freshness, Object, Owner, get, serves};
pub use proposal::{
    Change, Deletion, Event, Eviction, MergePatch, MetadataChange, Mutation, NodeDrain, NodeSchedulable, ObjectRef,
    Propagation, Proposal, Severity, Taint, TaskRequest, WAITS_FOR,
};
pub use registration::{Registration, Relation};
pub use report::{Error, Report, State};
pub use target::{DrainStatus, Extras, Target, TaskStatus};

/// JSON values: for the texts of [`Proposal::create`] and [`Proposal::patch`],
/// and for fields without a fixed type.
pub use serde_json::{Value, json};

#[cfg(target_family = "wasm")]
#[doc(hidden)]
pub use action::Exported;
#[doc(hidden)]
pub use action::section;

/// Turns the crate into a plugin. Exports the component, and writes the
/// manifest into it as the custom section `oarlock.manifest`.
///
/// ```
/// # use oarlock_sdk::*;
/// # struct Restart;
/// # impl Action for Restart {
/// #     fn operate(_: &Job, _: &Target) -> Result<Proposal> { Ok(Proposal::new()) }
/// #     fn progress(_: &Job, _: &Target) -> Result<Report> { Ok(Report::succeeded()) }
/// # }
/// export!(Restart, manifest = r#"{"schema": 1, "name": "restart", "version": "0.1.0", "action": "Restart"}"#);
/// ```
///
/// A plugin without a manifest does not compile:
///
/// ```compile_fail
/// # use oarlock_sdk::*;
/// # struct Restart;
/// # impl Action for Restart {
/// #     fn operate(_: &Job, _: &Target) -> Result<Proposal> { Ok(Proposal::new()) }
/// #     fn progress(_: &Job, _: &Target) -> Result<Report> { Ok(Report::succeeded()) }
/// # }
/// export!(Restart);
/// ```
///
/// A type that is not an `Action` does not compile either:
///
/// ```compile_fail
/// struct Restart;
/// oarlock_sdk::export!(Restart, manifest = "{}");
/// ```
#[macro_export]
macro_rules! export {
    ($action:ty, manifest = $manifest:expr $(,)?) => {
        impl $crate::Plugin for $action {
            const MANIFEST: &'static str = $manifest;
        }

        const _: () = {
            const TEXT: &str = <$action as $crate::Plugin>::MANIFEST;
            ::core::assert!(TEXT.len() <= $crate::MANIFEST_LIMIT, "the manifest is larger than 64 KiB: shorten it");

            #[cfg(target_family = "wasm")]
            #[used]
            #[unsafe(link_section = "oarlock.manifest")]
            static SECTION: [u8; TEXT.len()] = $crate::section(TEXT);

            $crate::__export_action!($action);
        };
    };
    ($($other:tt)*) => {
        ::core::compile_error!(
            "`export!` needs the action and its manifest: `export!(Restart, manifest = include_str!(\"../manifest.json\"));`"
        );
    };
}

/// Exports the component without a manifest, for a component that gets its
/// manifest later, and for tests of hosts.
#[doc(hidden)]
#[macro_export]
macro_rules! __export_action {
    ($action:ty) => {
        const _: () = {
            #[cfg(target_family = "wasm")]
            type Component = $crate::Exported<$action>;
            #[cfg(target_family = "wasm")]
    $crate::wit::bindings::__export_component!(Component with_types_in $crate::wit::bindings);
        };
    };
}
