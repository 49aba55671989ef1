//! All signatures of one plugin, as a registry or a sidecar has them. They are untrusted until they are judged.

use std::io::Read;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::Deserialize;
use serde_json::json;

use crate::artefact::{BUNDLE_TYPE, MANIFEST_TYPE, MOST_MANIFEST, SIMPLE_TYPE};
use crate::digest::shortened;

/// The most bytes of one bundle, or of one payload of the older form.
pub const MOST_BUNDLE: u64 = 64 * 1024;
/// The most signatures of one plugin, of both forms together.
pub const MOST_BUNDLES: usize = 32;
/// The most entries of an index of referrers, or of a sidecar, that are looked at.
pub const MOST_ENTRIES: usize = 128;
/// The most bytes of a sidecar.
pub const MOST_SIDECAR: u64 = 4 * 1024 * 1024;
/// The most characters of a signature of the older form.
const MOST_OLD_SIGNATURE: usize = 1_024;
/// The most remarks that are kept.
const MOST_REMARKS: usize = 16;

/// A signature of the older form: its payload, and the Base64 of an annotation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OldSignature {
    /// The signed bytes.
    pub payload: Vec<u8>,
    /// The signature in Base64.
    pub signature: String,
}

/// All signatures of one plugin. It holds at most [`MOST_BUNDLES`].
///
/// Nothing in it is trusted. A host can keep it and judge it again, without a network, when the policy changes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SignatureEvidence {
    manifest: Option<Vec<u8>>,
    bundles: Vec<Vec<u8>>,
    old: Vec<OldSignature>,
    remarks: Vec<String>,
}

/// The type of a document in a sidecar.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct DocumentType {
    media_type: Option<String>,
}

/// A signature of the older form in a sidecar.
#[derive(Deserialize)]
struct OldDocument {
    payload: String,
    signature: String,
}

impl SignatureEvidence {
    /// Sets the manifest to which the signatures belong.
    #[must_use]
    pub fn with_manifest(self, manifest: &[u8]) -> Self {
        Self { manifest: Some(manifest.to_vec()), ..self }
    }

    /// Adds a bundle, unless it is too large or there are too many.
    pub fn add_bundle(&mut self, bundle: Vec<u8>) {
        if bundle.len() as u64 > MOST_BUNDLE {
            self.remark(format!("a bundle of {} bytes, and {MOST_BUNDLE} are the most", bundle.len()));
        } else if self.has_room() {
            self.bundles.push(bundle);
        }
    }

    /// Adds a signature of the older form, unless it is too large or there are too many.
    pub fn add_old(&mut self, old: OldSignature) {
        if old.payload.len() as u64 > MOST_BUNDLE || old.signature.len() > MOST_OLD_SIGNATURE {
            self.remark("a signature of the older form is too large".to_owned());
        } else if self.has_room() {
            self.old.push(old);
        }
    }

    /// Notes an entry that does not count, for the message of a refusal.
    pub fn remark(&mut self, remark: String) {
        if self.remarks.len() < MOST_REMARKS {
            self.remarks.push(remark);
        }
    }

    /// Returns true if another signature has room. Notes it otherwise.
    fn has_room(&mut self) -> bool {
        let has_room = !self.is_full();
        if !has_room {
            self.remark(format!("there are more than {MOST_BUNDLES} signatures"));
        }
        has_room
    }

    /// Returns true if no further signature has room.
    pub fn is_full(&self) -> bool {
        self.bundles.len().saturating_add(self.old.len()) >= MOST_BUNDLES
    }

    /// Returns the number of signatures, of both forms together.
    pub fn count(&self) -> usize {
        self.bundles.len().saturating_add(self.old.len())
    }

    pub(crate) fn manifest(&self) -> Option<&[u8]> {
        self.manifest.as_deref()
    }

    pub(crate) fn bundles(&self) -> impl Iterator<Item = &[u8]> {
        self.bundles.iter().map(Vec::as_slice)
    }

    pub(crate) fn old(&self) -> &[OldSignature] {
        &self.old
    }

    pub(crate) fn remarks(&self) -> &[String] {
        &self.remarks
    }

    /// Reads a sidecar, `NAME.wasm.sigstore.json`: one bundle, or several JSON documents one after the other. It reads no more than
    /// [`MOST_SIDECAR`] bytes.
    ///
    /// A document is a bundle, a manifest of an image whose layer is the file, or a signature of the older form.
    ///
    /// # Errors
    /// If the sidecar cannot be read, is too large, or is no JSON.
    pub fn read_sidecar(sidecar: impl Read) -> Result<Self, String> {
        let mut bytes = Vec::new();
        let read = sidecar.take(MOST_SIDECAR.saturating_add(1)).read_to_end(&mut bytes);
        read.map_err(|error| format!("the signatures beside the file cannot be read: {error}"))?;
        if bytes.len() as u64 > MOST_SIDECAR {
            return Err("the file with the signatures has more than 4 MiB".to_owned());
        }
        let mut evidence = Self::default();
        let mut documents = serde_json::Deserializer::from_slice(&bytes).into_iter::<DocumentType>();
        let mut begin = 0;
        for _ in 0..MOST_ENTRIES {
            let Some(document) = documents.next() else { return Ok(evidence) };
            let document =
                document.map_err(|error| format!("the file with the signatures is no JSON of bundles: {error}"))?;
            let end = documents.byte_offset();
            let text = bytes.get(begin..end).unwrap_or_default().trim_ascii();
            begin = end;
            evidence.add_document(document.media_type.as_deref().unwrap_or_default(), text);
        }
        evidence.remark(format!("documents after the first {MOST_ENTRIES}"));
        Ok(evidence)
    }

    fn add_document(&mut self, media_type: &str, text: &[u8]) {
        match media_type {
            BUNDLE_TYPE => self.add_bundle(text.to_vec()),
            MANIFEST_TYPE if text.len() <= MOST_MANIFEST && self.manifest.is_none() => {
                self.manifest = Some(text.to_vec());
            }
            SIMPLE_TYPE => match old_in(text) {
                Some(old) => self.add_old(old),
                None => self.remark("a signature of the older form cannot be read".to_owned()),
            },
            other => self.remark(format!("a document of type {:?}", shortened(other))),
        }
    }

    /// Returns the sidecar with these signatures, which [`SignatureEvidence::read_sidecar`] reads.
    pub fn sidecar(&self) -> Vec<u8> {
        let old = self.old.iter().map(|old| {
            let payload = STANDARD.encode(&old.payload);
            json!({"mediaType": SIMPLE_TYPE, "payload": payload, "signature": old.signature}).to_string().into_bytes()
        });
        let mut documents: Vec<Vec<u8>> = self.manifest.iter().chain(&self.bundles).cloned().chain(old).collect();
        documents.iter_mut().for_each(|document| document.push(b'\n'));
        documents.concat()
    }
}

fn old_in(text: &[u8]) -> Option<OldSignature> {
    let document: OldDocument = serde_json::from_slice(text).ok()?;
    Some(OldSignature { payload: STANDARD.decode(document.payload).ok()?, signature: document.signature })
}
