//! Reads a component's imports, exports, sections and manifest.
//!
//! May not compile, run or validate: vetting finds the file that lies.

use oarlock_core::plugin::manifest::{Manifest, ManifestError};
use serde::Serialize;
use sha2::{Digest, Sha256};
use wasmparser::{Encoding, Parser, Payload};

use crate::rejection::{Rejection, causes};

/// The custom section of the manifest.
pub const MANIFEST_SECTION: &str = "oarlock.manifest";
/// The deepest nesting of components that is accepted. No tool nests them deeper.
const MAX_DEPTH: usize = 32;

/// Everything that a component's file states, read without running it.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Inspection {
    /// `sha256:` and the digest of the file.
    pub digest: String,
    /// Size of the file.
    pub bytes: usize,
    /// Names of imported interfaces and functions.
    pub imports: Vec<String>,
    /// Names of exported interfaces and functions.
    pub exports: Vec<String>,
    /// Custom sections, of the component and of the modules and components inside.
    pub sections: Vec<Section>,
    /// The manifest, if there is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub manifest: Option<Manifest>,
}

/// One custom section.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Section {
    /// Its name.
    pub name: String,
    /// Its size.
    pub bytes: usize,
    /// `true` if it is the component's own, `false` if it belongs to a module inside.
    pub own: bool,
}

/// `sha256:` and the digest of `bytes`.
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
                let (name, bytes) = (section.name().to_owned(), section.data().len());
                if name == MANIFEST_SECTION {
                    if depth == 0 { &mut own } else { &mut nested }.push(section.data());
                }
                inspection.sections.push(Section { name, bytes, own: depth == 0 });
            }
            payload if depth == 0 => inspection.add_names(payload).map_err(|error| malformed(&error))?,
            _ => {}
        }
    }
    // The manifest that `oarlock plugin annotate` added to the component wins over the one that the linker put into a
    // module.
    let found = if own.is_empty() { nested } else { own };
    inspection.manifest = manifest(&found)?;
    Ok(inspection)
}

impl Inspection {
    /// Adds the names in a section of imports or exports.
    fn add_names(&mut self, payload: Payload<'_>) -> wasmparser::Result<()> {
        match payload {
            Payload::ComponentImportSection(section) => {
                for import in section {
                    self.imports.push(import?.name.name.to_owned());
                }
            }
            Payload::ComponentExportSection(section) => {
                for export in section {
                    self.exports.push(export?.name.name.to_owned());
                }
            }
            _ => {}
        }
        Ok(())
    }
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
    Manifest::parse(first).map(Some).map_err(|error| {
        let reason = match error {
            ManifestError::TooLarge { .. } => "ManifestTooLarge",
            ManifestError::Schema { .. } => "ManifestSchema",
            _ => "ManifestInvalid",
        };
        Rejection::new(reason, causes(&error))
    })
}
