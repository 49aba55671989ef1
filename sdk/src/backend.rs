//! Selects the backend of all reads by the compile target: the host on
//! WebAssembly, and the test kit elsewhere. So the code of a plugin is the same
//! on both.

#[cfg(target_family = "wasm")]
pub(crate) use crate::wit::bindings::oarlock::host::{
    cluster::{Object, serves},
    config::value,
    jobs::{Job, Target},
    log::{enabled, write},
};

#[cfg(not(target_family = "wasm"))]
pub(crate) use crate::kit::memory::{Job, Object, Target, enabled, get, serves, value, write};

pub(crate) use crate::wit::bindings::oarlock::host::cluster::ReadError;

/// Looks up one object by name. It ignores the UID.
#[cfg(target_family = "wasm")]
pub(crate) fn get(object: &crate::ObjectRef, freshness: crate::Freshness) -> Result<Option<Object>, ReadError> {
    let crate::ObjectRef { api_version, kind, namespace, name, uid: _ } = object;
    crate::wit::bindings::oarlock::host::cluster::get(api_version, kind, namespace.as_deref(), name, freshness)
}
