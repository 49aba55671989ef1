//! Reads the imports, exports, sections and manifest of a component.
//!
//! This module may not compile, run or validate a component. Vetting finds invalid files.

use oarlock_core::plugin::manifest::{Manifest, ManifestError};
use oarlock_core::plugin::names::shown;
use serde::Serialize;
use sha2::{Digest, Sha256};
use wasmparser::{Encoding, Parser, Payload};

use crate::rejection::{Rejection, causes};

/// The name of the custom section with the manifest.
pub const MANIFEST_SECTION: &str = "oarlock.manifest";
/// The deepest accepted nesting of components. No tool nests them deeper.
const MAX_DEPTH: usize = 32;
/// The most custom sections, and the most imports and exports. The host keeps these statements of a file in memory before the file has a
/// grant.
const MAX_SECTIONS: usize = 10_000;
const MAX_INTERFACES: usize = 200;
/// The most bytes of a name.
const MAX_NAME_BYTES: usize = 512;

/// The statements of a component's file, read without running the component.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Inspection {
    /// The digest of the file, with the prefix `sha256:`.
    pub digest: String,
    /// The size of the file, in bytes.
    pub bytes: usize,
    /// The names of imported interfaces and functions.
    pub imports: Vec<String>,
    /// The names of exported interfaces and functions.
    pub exports: Vec<String>,
    /// The custom sections of the component and of the modules and components inside.
    pub sections: Vec<Section>,
    /// The manifest, if there is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub manifest: Option<Manifest>,
}

/// One custom section.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Section {
    /// The name of the section.
    pub name: String,
    /// The size of the section, in bytes.
    pub bytes: usize,
    /// True if the section belongs to the component, and false if it belongs to a module inside.
    pub own: bool,
}

/// Returns the digest of `bytes` with the prefix `sha256:`.
pub fn digest(bytes: &[u8]) -> String {
    let hex: String = Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect();
    format!("sha256:{hex}")
}

/// Inspects a component.
pub fn inspect(bytes: &[u8]) -> Result<Inspection, Rejection> {
    check_header(bytes)?;
    let mut inspection = Inspection {
        digest: digest(bytes),
        bytes: bytes.len(),
        imports: Vec::new(),
        exports: Vec::new(),
        sections: Vec::new(),
        manifest: None,
    };
    let (mut own, mut nested) = (Vec::new(), Vec::new());
    let mut depth = 0_usize;
    for payload in Parser::new(0).parse_all(bytes) {
        match payload.map_err(|error| malformed(&error))? {
            Payload::Version { encoding: Encoding::Module, .. } if depth == 0 => return Err(core_module()),
            Payload::ModuleSection { .. } | Payload::ComponentSection { .. } if depth == MAX_DEPTH => {
                return Err(Rejection::new("TooDeep", "its components are nested too deeply; rebuild it"));
            }
            Payload::ModuleSection { .. } | Payload::ComponentSection { .. } => depth += 1,
            Payload::End(_) => depth = depth.saturating_sub(1),
            Payload::CustomSection(section) => {
                let (name, bytes) =
                    (named(section.name(), inspection.sections.len(), MAX_SECTIONS)?, section.data().len());
                if name == MANIFEST_SECTION {
                    if depth == 0 { &mut own } else { &mut nested }.push(section.data());
                }
                inspection.sections.push(Section { name, bytes, own: depth == 0 });
            }
            payload if depth == 0 => inspection.add_names(payload)?,
            _ => {}
        }
    }
    // `oarlock plugin annotate` adds a manifest to the component. That manifest takes precedence over the manifest that the linker put into
    // a module.
    let found = if own.is_empty() { nested } else { own };
    inspection.manifest = manifest(&found)?;
    Ok(inspection)
}

impl Inspection {
    /// Adds the names in a section of imports or exports.
    fn add_names(&mut self, payload: Payload<'_>) -> Result<(), Rejection> {
        match payload {
            Payload::ComponentImportSection(section) => {
                for import in section {
                    let import = import.map_err(|error| malformed(&error))?;
                    self.imports.push(named(import.name.name, self.imports.len(), MAX_INTERFACES)?);
                }
            }
            Payload::ComponentExportSection(section) => {
                for export in section {
                    let export = export.map_err(|error| malformed(&error))?;
                    self.exports.push(named(export.name.name, self.exports.len(), MAX_INTERFACES)?);
                }
            }
            _ => {}
        }
        Ok(())
    }
}

/// Returns a name in a form that is safe to show. Refuses a name that is too long or too many names, because any user may have written the
/// file.
fn named(name: &str, others: usize, most: usize) -> Result<String, Rejection> {
    if name.len() > MAX_NAME_BYTES {
        let sentence = format!("a name in it has {} bytes; at most {MAX_NAME_BYTES} are taken", name.len());
        return Err(Rejection::new("NameTooLong", sentence));
    }
    if others == most {
        let sentence = format!("it has more than {most} imports, exports or custom sections; strip it");
        return Err(Rejection::new("TooManyNames", sentence));
    }
    Ok(shown(name))
}

fn core_module() -> Rejection {
    let sentence = "the file is a core module, not a component; build it with `--target wasm32-wasip2`";
    Rejection::new("CoreModule", sentence)
}

fn check_header(bytes: &[u8]) -> Result<(), Rejection> {
    if bytes.is_empty() {
        return Err(Rejection::new("EmptyFile", "the file is empty; copy it again, and rename it into place"));
    }
    let magic = b"\0asm";
    if !bytes.starts_with(magic) && !magic.starts_with(bytes) {
        return Err(Rejection::new("NotWebAssembly", "the file is not WebAssembly; drop a component here"));
    }
    if bytes.len() < 8 {
        return Err(truncated());
    }
    Ok(())
}

pub(crate) fn truncated() -> Rejection {
    Rejection::new("Truncated", "the file ends too early; copy it again, and rename it into place")
}

pub(crate) fn malformed(error: &wasmparser::BinaryReaderError) -> Rejection {
    let text = error.to_string();
    if text.contains("unexpected end") || text.contains("section too large") || text.contains("out of bounds") {
        return truncated();
    }
    Rejection::new("Malformed", format!("the file is not valid WebAssembly: {}; rebuild it", causes(error)))
}

fn manifest(sections: &[&[u8]]) -> Result<Option<Manifest>, Rejection> {
    let Some((first, others)) = sections.split_first() else { return Ok(None) };
    if others.iter().any(|other| other != first) {
        let sentence = format!("it has {} sections `{MANIFEST_SECTION}` that disagree; leave one", sections.len());
        return Err(Rejection::new("ManifestsDisagree", sentence));
    }
    Manifest::parse(first).map(Some).map_err(|error| manifest_refused(&error))
}

pub(crate) fn manifest_refused(error: &ManifestError) -> Rejection {
    let reason = match error {
        ManifestError::TooLarge { .. } => "ManifestTooLarge",
        ManifestError::Schema { .. } => "ManifestSchema",
        _ => "ManifestInvalid",
    };
    Rejection::new(reason, causes(error))
}

pub(crate) fn manifest_missing() -> Rejection {
    let sentence = "it has no section `oarlock.manifest`; write it with the SDK or `oarlock plugin annotate`";
    Rejection::new("ManifestMissing", sentence)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns a component with this number of custom sections of one name, without content.
    fn of_sections(count: usize, name: &str) -> Vec<u8> {
        let length = u8::try_from(name.len()).unwrap();
        let section = [&[0, length + 1, length], name.as_bytes()].concat();
        [b"\0asm\x0d\0\x01\0".as_slice(), &section.repeat(count)].concat()
    }

    #[test]
    fn a_file_with_more_sections_than_anybody_needs_is_refused_and_not_listed() {
        assert_eq!(inspect(&of_sections(MAX_SECTIONS, "x")).unwrap().sections.len(), MAX_SECTIONS);
        assert_eq!(inspect(&of_sections(MAX_SECTIONS + 1, "x")).unwrap_err().reason, "TooManyNames");
    }

    #[test]
    fn a_file_with_more_imports_or_exports_than_anybody_needs_is_refused() {
        let imports = |count: u8| {
            // Each import is a plain name `x` and the type 0 of a function.
            let section = [&[count | 0x80, 1][..], &[0, 1, b'x', 1, 0].repeat(usize::from(count) + 128)].concat();
            let length = section.len();
            let header = [10, (length & 0x7f) as u8 | 0x80, (length >> 7) as u8];
            [b"\0asm\x0d\0\x01\0".as_slice(), &header, &section].concat()
        };
        assert_eq!(inspect(&imports(72)).unwrap().imports.len(), MAX_INTERFACES);
        assert_eq!(inspect(&imports(73)).unwrap_err().reason, "TooManyNames");
    }

    #[test]
    fn what_a_file_states_cannot_rewrite_the_terminal_that_shows_it() {
        let inspection = inspect(&of_sections(1, "a\n\u{1b}[2Jb")).unwrap();
        assert_eq!(inspection.sections[0].name, "a\u{fffd}\u{fffd}[2Jb");
    }

    #[test]
    fn a_name_that_is_too_long_is_refused() {
        assert!(named(&"x".repeat(MAX_NAME_BYTES), 0, 1).is_ok());
        assert_eq!(named(&"x".repeat(MAX_NAME_BYTES + 1), 0, 1).unwrap_err().reason, "NameTooLong");
    }
}
