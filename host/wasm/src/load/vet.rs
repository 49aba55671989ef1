//! Vets a file before the compiler handles any of its code.
//!
//! A check takes the bytes of a file and returns an inspection, or a rejection. It may not run or compile anything.

use oarlock_contract::manifest::{DeniedInterface, Manifest};
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
/// The interfaces that the host offers besides WASI.
const OFFERED: [&str; 4] = ["oarlock:host/config", "oarlock:host/log", "oarlock:host/cluster", "oarlock:host/jobs"];
/// The packages of WASI 0.2 that language runtimes link. Each package denies all access. Files and sockets are not in the list. The host
/// links them too and denies each call, but accepts them only if the manifest has them in `denied`. So the host rejects a plugin that needs
/// them when it loads the file, and not when it calls the plugin.
const WASI: [&str; 4] = ["wasi:cli/", "wasi:clocks/", "wasi:io/", "wasi:random/"];

/// The WebAssembly proposals that a component may use. Threads, exceptions, 64-bit memories and garbage collection are excluded.
///
/// This list protects the process, because excluded features reach neither the compiler nor the engine. This engine is built without `gc`
/// and `threads`, and such builds are tested less than others. RUSTSEC-2026-0570 (GHSA-rc4p-x33f-vpr2) aborts a process without `gc`, and
/// GHSA-2674-w29h-wqvj concerns builds without `threads`. Both affect the locked engine, but no component can have the instructions that
/// trigger them. Read the advisories of the engine before you add a proposal.
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

/// The version of these rules. Components that were compiled or rejected with other rules are vetted again. Raise the version with each
/// rule that changes.
pub(crate) const RULES: u32 = 3;

/// Checks everything except the code. The check is cheap enough for each start of the host.
pub(crate) fn check_interface(bytes: &[u8]) -> Result<Inspection, Rejection> {
    let inspection = inspect(bytes)?;
    if let Some(import) = inspection.imports.iter().find(|import| !is_offered(import, inspection.manifest.as_ref())) {
        return Err(not_offered(import));
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

/// Returns the interface and version of a name such as `oarlock:host/log@1.0.0`.
fn versioned(name: &str) -> Option<(&str, Version)> {
    let (interface, version) = name.split_once('@')?;
    Some((interface, Version::parse(version).ok()?))
}

/// Returns the denied interface that an import belongs to. Returns `None` for an import whose calls the host does not deny.
pub fn denied_interface(import: &str) -> Option<DeniedInterface> {
    DeniedInterface::ALL.into_iter().find(|denied| import.starts_with(denied.package()))
}

fn not_offered(import: &str) -> Rejection {
    let none = "plugins have no files and no network; build it without";
    let fix = match denied_interface(import) {
        Some(denied) => {
            let word = denied.word();
            format!("{none}, or say `\"denied\": [\"{word}\"]` in its manifest if only its language runtime imports it")
        }
        None => none.to_owned(),
    };
    Rejection::new("ImportNotOffered", format!("it imports `{import}`, which this host does not offer: {fix}"))
}

fn is_offered(import: &str, manifest: Option<&Manifest>) -> bool {
    let Some((interface, version)) = versioned(import) else { return false };
    let knows = |denied: DeniedInterface| manifest.is_some_and(|manifest| manifest.denied.contains(&denied));
    if WASI.iter().any(|package| interface.starts_with(package)) || denied_interface(interface).is_some_and(knows) {
        return version.major == 0 && version.minor == 2;
    }
    OFFERED.contains(&interface) && is_supported(&version)
}

/// Returns true if this host supports the version. A plugin of 1.x runs on a host of 1.y if y >= x.
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
            assert!(is_offered(name, None), "{name}");
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
            assert!(!is_offered(name, None), "{name}");
        }
    }

    #[test]
    fn a_manifest_that_knows_of_the_denial_may_import_files_and_sockets_but_not_http() {
        let manifest = |denied: &str| {
            let text = format!(
                r#"{{"schema": 1, "name": "a", "version": "0.1.0", "action": "A", "target": ["Pod"], "denied": [{denied}]}}"#
            );
            Manifest::parse(text.as_bytes()).unwrap()
        };
        let (files, sockets, http) =
            ("wasi:filesystem/types@0.2.9", "wasi:sockets/tcp@0.2.9", "wasi:http/outgoing-handler@0.2.9");
        let offered = |denied: &str| [files, sockets, http].map(|import| is_offered(import, Some(&manifest(denied))));
        assert_eq!(offered(""), [false, false, false]);
        assert_eq!(offered("\"files\""), [true, false, false]);
        assert_eq!(offered("\"files\", \"sockets\""), [true, true, false]);
        let sentence = not_offered(files).sentence;
        assert!(
            sentence.ends_with("say `\"denied\": [\"files\"]` in its manifest if only its language runtime imports it")
        );
        assert!(not_offered(http).sentence.ends_with("build it without"));
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
