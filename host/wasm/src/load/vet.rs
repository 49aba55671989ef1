//! Vets a file before any code of the compiler sees it.
//!
//! Takes the bytes of a file; yields an inspection, or a rejection. May not run or compile anything.

use semver::Version;
use wasmparser::{Validator, WasmFeatures};

use crate::load::inspect::{Inspection, inspect, malformed, manifest_missing};
use crate::rejection::Rejection;

/// The largest component. CPython with a plugin has 18 MB.
pub const MAX_BYTES: u64 = 64 << 20;
/// The version of the contract that this host offers.
const CONTRACT: Version = Version::new(1, 0, 0);
/// The interface that plugins implement.
const HANDLER: &str = "oarlock:action/handler";
/// The interfaces that the host offers beside WASI.
const OFFERED: [&str; 4] = ["oarlock:host/config", "oarlock:host/log", "oarlock:host/cluster", "oarlock:host/jobs"];
/// The packages of WASI 0.2 that language runtimes link. Each denies everything. Files and sockets are not among them,
/// so that a plugin that needs them is rejected when its file is dropped and not when it is called.
const WASI: [&str; 4] = ["wasi:cli/", "wasi:clocks/", "wasi:io/", "wasi:random/"];

/// Proposals that a component may use. Threads, exceptions, 64-bit memories and garbage collection are not among them.
///
/// This list guards the process: what it leaves out reaches neither the compiler nor the engine, whose builds without `gc` and
/// `threads`, as this one is, are tried less than others. RUSTSEC-2026-0570 (GHSA-rc4p-x33f-vpr2) aborts a process without `gc`,
/// and GHSA-2674-w29h-wqvj concerns those without `threads`; the locked engine has both, and a component has the instructions of
/// neither. Whoever adds a proposal here reads the engine's advisories first.
fn features() -> WasmFeatures {
    let all = WasmFeatures::WASM2
        | WasmFeatures::COMPONENT_MODEL
        | WasmFeatures::MULTI_MEMORY
        | WasmFeatures::EXTENDED_CONST
        | WasmFeatures::TAIL_CALL
        | WasmFeatures::RELAXED_SIMD
        | WasmFeatures::BULK_MEMORY_OPT
        | WasmFeatures::CALL_INDIRECT_OVERLONG;
    // WASM2 has `externref`, which needs a collector.
    all.difference(WasmFeatures::GC_TYPES)
}

/// The version of these rules. What was compiled by others is vetted again: raise it with each rule that gets stricter.
pub(crate) const RULES: u32 = 2;

/// Checks everything but the code. Cheap enough for each start of the host.
pub(crate) fn check_interface(bytes: &[u8]) -> Result<Inspection, Rejection> {
    let inspection = inspect(bytes)?;
    if let Some(import) = inspection.imports.iter().find(|import| !is_offered(import)) {
        let sentence = format!(
            "it imports `{import}`, which this host does not offer: plugins have no files and no network; build it without"
        );
        return Err(Rejection::new("ImportNotOffered", sentence));
    }
    check_exports(&inspection.exports)?;
    if inspection.manifest.is_none() {
        return Err(manifest_missing());
    }
    Ok(inspection)
}

/// Validates all code.
pub(crate) fn check_code(bytes: &[u8]) -> Result<(), Rejection> {
    Validator::new_with_features(features()).validate_all(bytes).map(drop).map_err(|error| malformed(&error))
}

/// The interface and version of a name such as `oarlock:host/log@1.0.0`.
fn versioned(name: &str) -> Option<(&str, Version)> {
    let (interface, version) = name.split_once('@')?;
    Some((interface, Version::parse(version).ok()?))
}

fn is_offered(import: &str) -> bool {
    let Some((interface, version)) = versioned(import) else { return false };
    if WASI.iter().any(|package| interface.starts_with(package)) {
        return version.major == 0 && version.minor == 2;
    }
    OFFERED.contains(&interface) && is_supported(&version)
}

/// A plugin of 1.x runs on a host of 1.y, y >= x.
fn is_supported(version: &Version) -> bool {
    let interface = Version::new(version.major, version.minor, 0);
    version.major == CONTRACT.major && interface <= CONTRACT && version.pre.is_empty()
}

fn check_exports(exports: &[String]) -> Result<(), Rejection> {
    let mut handlers = exports.iter().filter_map(|export| versioned(export)).filter(|(name, _)| *name == HANDLER);
    match handlers.next() {
        Some((_, version)) if is_supported(&version) => Ok(()),
        Some((_, version)) => {
            let sentence = format!(
                "it implements version {version} of the contract, and this host supports {}.0 to {CONTRACT}; use a \
                 newer host or build it with an older SDK",
                CONTRACT.major
            );
            Err(Rejection::new("ContractVersion", sentence))
        }
        None => {
            Err(Rejection::new("NotAPlugin", format!("it does not export `{HANDLER}`; export an action with the SDK")))
        }
    }
}

#[cfg(test)]
#[path = "excluded_proposals_tests.rs"]
mod excluded_proposals_tests;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_offered_imports_are_accepted() {
        for name in ["oarlock:host/log@1.0.0", "oarlock:host/jobs@1.0.7", "wasi:io/streams@0.2.3"] {
            assert!(is_offered(name), "{name}");
        }
        for name in [
            "oarlock:host/log@1.1.0",
            "oarlock:host/log@2.0.0",
            "oarlock:host/secrets@1.0.0",
            "log",
            "wasi:http/outgoing-handler@0.2.3",
            "wasi:sockets/tcp@0.2.3",
            "wasi:filesystem/types@0.2.3",
            "wasi:io/streams@0.3.0",
            "wasi:nn/graph@0.2.0",
        ] {
            assert!(!is_offered(name), "{name}");
        }
    }

    #[test]
    fn a_file_that_is_no_component_is_rejected_with_a_reason() {
        let reason = |bytes: &[u8]| check_interface(bytes).unwrap_err().reason;
        assert_eq!(reason(b""), "EmptyFile");
        assert_eq!(reason(b"#!/bin/sh\n"), "NotWebAssembly");
        assert_eq!(reason(b"\0as"), "Truncated");
        assert_eq!(reason(b"\0asm\x01\0\0\0"), "CoreModule");
        assert_eq!(reason(b"\0asm\x0d\0\x01\0"), "NotAPlugin");
        assert_eq!(reason(b"\0asm\x0d\0\x01\0\x00\x7f"), "Truncated");
    }
}
