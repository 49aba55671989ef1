//! A plugin in a registry: a manifest with a configuration and exactly one layer, the component. The layout is the one of `wkg` and
//! `oras`, so a manifest needs no annotation of ours.

use serde::Deserialize;
use serde_json::{Value, json};

use crate::digest::{Sha256, shortened};

/// The type of an image manifest.
pub const MANIFEST_TYPE: &str = "application/vnd.oci.image.manifest.v1+json";
/// The type of the configuration of a plugin.
pub const CONFIG_TYPE: &str = "application/vnd.wasm.config.v0+json";
/// The type of the one layer of a plugin.
pub const COMPONENT_TYPE: &str = "application/wasm";
/// The type of a bundle with a signature.
pub const BUNDLE_TYPE: &str = "application/vnd.dev.sigstore.bundle.v0.3+json";
/// The type of the payload of a signature of the older form.
pub const SIMPLE_TYPE: &str = "application/vnd.dev.cosign.simplesigning.v1+json";
/// The type of an empty configuration.
const EMPTY_TYPE: &str = "application/vnd.oci.empty.v1+json";
/// The content of an empty configuration.
pub const EMPTY_CONFIG: &[u8] = b"{}";
/// The most bytes of the manifest of a plugin or of a signature.
pub const MOST_MANIFEST: usize = 64 * 1024;
/// The fix for another layout.
const PUSH_IT: &str = "push the plugin by `wkg oci push`";

/// The manifest of a plugin in a registry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ArtefactManifest {
    digest: Sha256,
    bytes: Vec<u8>,
    component: Sha256,
    size: u64,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct WrittenManifest {
    schema_version: u32,
    media_type: Option<String>,
    config: Option<WrittenPart>,
    layers: Option<Vec<WrittenPart>>,
    manifests: Option<serde::de::IgnoredAny>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct WrittenPart {
    media_type: String,
    digest: String,
    size: u64,
}

impl ArtefactManifest {
    /// Reads the manifest of a plugin, whose component has at most `most` bytes. The digest is computed from the bytes.
    ///
    /// # Errors
    /// If the manifest is not that of a plugin, or the component is too large. The error names the fix.
    pub fn parse(bytes: &[u8], most: u64) -> Result<Self, String> {
        if bytes.len() > MOST_MANIFEST {
            return Err(format!("its manifest has more than {} KiB", MOST_MANIFEST / 1024));
        }
        let written: WrittenManifest = serde_json::from_slice(bytes)
            .map_err(|error| format!("its manifest cannot be read: {}", shortened(&error.to_string())))?;
        if written.manifests.is_some() {
            return Err(format!("it is an index of several images, and not one plugin; {PUSH_IT}"));
        }
        let media_type = written.media_type.as_deref().unwrap_or(MANIFEST_TYPE);
        if media_type != MANIFEST_TYPE || written.schema_version != 2 {
            let other = shortened(media_type);
            return Err(format!("its manifest has the type {other:?}, and not {MANIFEST_TYPE}; {PUSH_IT}"));
        }
        let (Some(config), Some(layers)) = (written.config, written.layers) else {
            return Err(format!("its manifest has no configuration or no layers; {PUSH_IT}"));
        };
        if config.media_type != CONFIG_TYPE {
            let other = shortened(&config.media_type);
            return Err(format!("its configuration has the type {other:?}, and not {CONFIG_TYPE}; {PUSH_IT}"));
        }
        let [layer] = layers.as_slice() else {
            return Err(format!("it has {} layers, and a plugin has one; {PUSH_IT}", layers.len()));
        };
        if layer.media_type != COMPONENT_TYPE {
            let other = shortened(&layer.media_type);
            return Err(format!("its layer has the type {other:?}, and not {COMPONENT_TYPE}; {PUSH_IT}"));
        }
        if layer.size > most {
            return Err(format!("its component has {} bytes, and this host takes at most {most}", layer.size));
        }
        let component = Sha256::parse(&layer.digest)?;
        Ok(Self { digest: Sha256::of(bytes), bytes: bytes.to_vec(), component, size: layer.size })
    }

    /// Returns the digest of the manifest, which is what is signed.
    pub fn digest(&self) -> &Sha256 {
        &self.digest
    }

    /// Returns the bytes of the manifest.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Returns the digest of the component.
    pub fn component(&self) -> &Sha256 {
        &self.component
    }

    /// Returns the bytes of the component, as a number.
    pub fn size(&self) -> u64 {
        self.size
    }
}

/// The facts about a component that its configuration and annotations repeat, for people and other tools.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ComponentInfo {
    /// The name of the plugin.
    pub name: String,
    /// The version of the plugin.
    pub version: String,
    /// The version of the contract, such as `1.0`.
    pub contract: String,
    /// The time in RFC 3339. It is the caller's, so that the same input gives the same digest.
    pub created: String,
    /// The interfaces that the component imports.
    pub imports: Vec<String>,
    /// The interfaces that the component exports.
    pub exports: Vec<String>,
}

/// The parts of a plugin or a signature that are published, apart from its layer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewArtefact {
    /// The bytes of the configuration.
    pub config: Vec<u8>,
    /// The bytes of the manifest.
    pub manifest: Vec<u8>,
}

/// Returns the configuration and the manifest of a component.
pub fn new_artefact(component: &[u8], info: &ComponentInfo) -> NewArtefact {
    let layer = part(COMPONENT_TYPE, component);
    let config = json!({
        "created": info.created,
        "architecture": "wasm",
        "os": "wasip2",
        "layerDigests": [layer.get("digest")],
        "component": {"imports": info.imports, "exports": info.exports},
    });
    let config = config.to_string().into_bytes();
    let manifest = json!({
        "schemaVersion": 2,
        "mediaType": MANIFEST_TYPE,
        "config": part(CONFIG_TYPE, &config),
        "layers": [layer],
        "annotations": {
            "org.opencontainers.image.title": info.name,
            "org.opencontainers.image.version": info.version,
            "org.opencontainers.image.created": info.created,
            "dev.oarlock.plugin.name": info.name,
            "dev.oarlock.plugin.contract": info.contract,
        },
    });
    NewArtefact { config, manifest: manifest.to_string().into_bytes() }
}

/// Returns the configuration and the manifest by which a bundle refers to a signed manifest, as cosign 3 writes them.
pub fn new_referrer(signed: &ArtefactManifest, bundle: &[u8], created: &str) -> NewArtefact {
    let manifest = json!({
        "schemaVersion": 2,
        "mediaType": MANIFEST_TYPE,
        "artifactType": BUNDLE_TYPE,
        "config": part(EMPTY_TYPE, EMPTY_CONFIG),
        "layers": [part(BUNDLE_TYPE, bundle)],
        "subject": part(MANIFEST_TYPE, signed.bytes()),
        "annotations": {
            "dev.sigstore.bundle.content": "dsse-envelope",
            "dev.sigstore.bundle.predicateType": "https://sigstore.dev/cosign/sign/v1",
            "org.opencontainers.image.created": created,
        },
    });
    NewArtefact { config: EMPTY_CONFIG.to_vec(), manifest: manifest.to_string().into_bytes() }
}

/// Returns the entry of an index for the manifest of a signature.
pub fn referrer_entry(manifest: &[u8]) -> Value {
    let mut entry = part(MANIFEST_TYPE, manifest);
    if let Some(entry) = entry.as_object_mut() {
        entry.insert("artifactType".to_owned(), BUNDLE_TYPE.into());
    }
    entry
}

fn part(media_type: &str, bytes: &[u8]) -> Value {
    json!({"mediaType": media_type, "digest": Sha256::of(bytes).as_str(), "size": bytes.len()})
}
