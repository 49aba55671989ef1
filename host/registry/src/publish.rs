//! Publishes a plugin, and signatures of a plugin.

use bytes::Bytes;
use oarlock_signature::{
    ArtefactManifest, ComponentInfo, NewArtefact, Sha256, new_artefact, new_referrer, referrer_entry,
};
use serde_json::{Value, json};

use crate::failed::CopyFailed;
use crate::fetch::ArtefactRepository;
use crate::image::Version;
use crate::manifest::{ImageManifest, MANIFEST};
use crate::referrers::fallback_tag;

/// The type of an index.
const INDEX_TYPE: &str = "application/vnd.oci.image.index.v1+json";

impl ArtefactRepository {
    /// Pushes a component under the tag of the reference. A tag of another plugin moves to this one.
    ///
    /// Returns the manifest. Its digest is what is signed.
    ///
    /// # Errors
    /// If the reference has a digest, or if the registry does not take the plugin.
    pub async fn push(&self, component: Bytes, info: &ComponentInfo) -> Result<ArtefactManifest, CopyFailed> {
        let Version::Tag(tag) = &self.repository.image.version else {
            return Err(self.refuse("a plugin is pushed under a tag, and this reference has a digest"));
        };
        let size = component.len() as u64;
        let artefact = new_artefact(&component, info);
        let manifest = ArtefactManifest::parse(&artefact.manifest, size).map_err(|why| self.refuse(&why))?;
        self.put(component, artefact, tag).await?;
        Ok(manifest)
    }

    /// Publishes the bundle of a signature beside the manifest that it signs, as cosign 3 does. Returns the digest of its manifest.
    ///
    /// `created` is the time in RFC 3339. Two signers at the same moment may lose one entry, if the registry lists no referrers itself: the
    /// protocol has no way to change a tag safely. Then sign again.
    ///
    /// # Errors
    /// If the registry does not take the signature.
    pub async fn attach(&self, signed: &ArtefactManifest, bundle: Bytes, created: &str) -> Result<String, CopyFailed> {
        let artefact = new_referrer(signed, &bundle, created);
        let (bytes, digest) = (artefact.manifest.clone(), Sha256::of(&artefact.manifest).to_string());
        if !self.put(bundle, artefact, &digest).await? {
            self.list(signed.digest(), &bytes).await?;
        }
        Ok(digest)
    }

    /// Publishes the blobs and then the manifest. Returns true if the registry lists the manifest among the referrers of its subject.
    async fn put(&self, layer: Bytes, artefact: NewArtefact, version: &str) -> Result<bool, CopyFailed> {
        self.repository.put_blob(artefact.config.into()).await?;
        self.repository.put_blob(layer).await?;
        let manifest = ImageManifest::parse(artefact.manifest, None).map_err(|why| self.refuse(&why))?;
        self.repository.put_manifest(&manifest, version).await
    }

    /// Adds a referrer to the tag that lists referrers. It comes first, because readers look at the first entries only.
    async fn list(&self, signed: &Sha256, referrer: &[u8]) -> Result<(), CopyFailed> {
        let tag = fallback_tag(signed);
        let entry = referrer_entry(referrer);
        let mut index = match self.repository.manifest_bytes(&tag, MANIFEST).await? {
            None => json!({"schemaVersion": 2, "mediaType": INDEX_TYPE, "manifests": []}),
            Some(bytes) => serde_json::from_slice::<Value>(&bytes)
                .map_err(|error| self.refuse(&format!("tag {tag} is no index of referrers: {error}")))?,
        };
        let Some(entries) = index.get_mut("manifests").and_then(Value::as_array_mut) else {
            return Err(self.refuse(&format!("tag {tag} is no index of referrers")));
        };
        entries.retain(|known| known.get("digest") != entry.get("digest"));
        entries.insert(0, entry);
        let index = ImageManifest::parse(index.to_string(), Some(INDEX_TYPE)).map_err(|why| self.refuse(&why))?;
        self.repository.put_manifest(&index, &tag).await.map(drop)
    }

    fn refuse(&self, why: &str) -> CopyFailed {
        self.repository.exchange.refuse(format!("image {}: {why}", self.repository.image.whole()))
    }
}
