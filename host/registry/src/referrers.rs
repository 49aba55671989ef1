//! Collects the signatures of a plugin: the referrers of its manifest, and the tag of the older form.
//!
//! An entry of an index proves nothing, and some registries write a wrong type there. So each entry's manifest is read, within bounds. An
//! entry that is no signature is skipped. An entry that cannot be read gets a remark. So a broken entry hides no good signature.

use std::fmt;

use oarlock_signature::{
    ArtefactManifest, BUNDLE_TYPE, MOST_BUNDLE, MOST_ENTRIES, MOST_MANIFEST, OldSignature, SIMPLE_TYPE, Sha256,
    SignatureEvidence,
};
use serde::de::{IgnoredAny, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};
use tokio::time::timeout;

use crate::content::content;
use crate::failed::{CopyFailed, Fault};
use crate::manifest::MANIFEST;
use crate::repository::Repository;

/// The entries of an index. It keeps no more than [`MOST_ENTRIES`].
#[derive(Deserialize)]
struct ReferrerIndex {
    #[serde(deserialize_with = "first_entries")]
    manifests: Entries,
}

struct Entries {
    kept: Vec<String>,
    count: usize,
}

#[derive(Deserialize)]
struct ReferrerEntry {
    digest: String,
}

/// The manifest of a signature, or of anything else that refers to a plugin.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct ReferrerManifest {
    artifact_type: Option<String>,
    #[serde(default)]
    layers: Vec<ReferrerLayer>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct ReferrerLayer {
    media_type: String,
    digest: String,
    size: u64,
    annotations: Option<OldAnnotations>,
}

#[derive(Deserialize)]
struct OldAnnotations {
    #[serde(rename = "dev.cosignproject.cosign/signature")]
    signature: Option<String>,
}

/// Returns the tag that lists the referrers of a manifest, where a registry does not list them itself.
pub(crate) fn fallback_tag(manifest: &Sha256) -> String {
    format!("sha256-{}", manifest.hex())
}

/// Collects all signatures of a plugin.
pub(crate) async fn collect(
    repository: &Repository,
    plugin: &ArtefactManifest,
) -> Result<SignatureEvidence, CopyFailed> {
    let mut evidence = SignatureEvidence::default().with_manifest(plugin.bytes());
    let wait = repository.exchange.timeouts.signatures;
    let collected = timeout(wait, async {
        for digest in entries(repository, plugin.digest(), &mut evidence).await? {
            if evidence.is_full() {
                evidence.remark("referrers after the last signature that has room".to_owned());
                break;
            }
            if let Some(bundle) = counted(bundle(repository, &digest).await, &digest, &mut evidence)? {
                evidence.add_bundle(bundle);
            }
        }
        old(repository, plugin.digest(), &mut evidence).await
    });
    let slow = |_| {
        CopyFailed::for_now(
            repository.exchange.side,
            format!("the signatures are not whole after {} s", wait.as_secs()),
        )
    };
    collected.await.map_err(slow)??;
    Ok(evidence)
}

/// Turns an entry that cannot be read into a remark. A failure that may pass, or that other credentials may cure, fails the whole.
fn counted(
    read: Result<Option<Vec<u8>>, CopyFailed>,
    about: &str,
    evidence: &mut SignatureEvidence,
) -> Result<Option<Vec<u8>>, CopyFailed> {
    match read {
        Err(failed) if !failed.is_for_now() && failed.fault() != Fault::Unauthorized => {
            evidence.remark(format!("signature {about}: {failed}"));
            Ok(None)
        }
        read => read,
    }
}

/// Returns the digests of the first entries that refer to a manifest.
async fn entries(
    repository: &Repository,
    manifest: &Sha256,
    evidence: &mut SignatureEvidence,
) -> Result<Vec<String>, CopyFailed> {
    let mut found = Vec::new();
    let first = repository.page(manifest, None).await?;
    // Some registries answer an unknown path with a web page, which is no index.
    let next = match first {
        Some(page) if add(&page.bytes, &mut found, evidence) => page.next,
        _ => {
            if let Some(bytes) = repository.manifest_bytes(&fallback_tag(manifest), MANIFEST).await? {
                add(&bytes, &mut found, evidence);
            }
            return Ok(found);
        }
    };
    if let Some(next) = next
        && found.len() < MOST_ENTRIES
        && let Some(page) = repository.page(manifest, Some(next)).await?
    {
        add(&page.bytes, &mut found, evidence);
        if page.next.is_some() {
            evidence.remark("pages of referrers after the second".to_owned());
        }
    }
    Ok(found)
}

/// Adds the entries of an index. Returns false if the bytes are no index.
fn add(bytes: &[u8], found: &mut Vec<String>, evidence: &mut SignatureEvidence) -> bool {
    let entries = match serde_json::from_slice::<ReferrerIndex>(bytes) {
        Ok(index) => index.manifests,
        Err(error) => {
            evidence.remark(format!("the index of referrers cannot be read: {error}"));
            return false;
        }
    };
    let room = MOST_ENTRIES.saturating_sub(found.len());
    if entries.count > room {
        evidence.remark(format!("there are {} referrers, and {room} of them are looked at", entries.count));
    }
    for digest in entries.kept.into_iter().take(room) {
        if !found.contains(&digest) {
            found.push(digest);
        }
    }
    true
}

/// Returns the bundle of a referrer, or `None` if the referrer is something else.
async fn bundle(repository: &Repository, digest: &str) -> Result<Option<Vec<u8>>, CopyFailed> {
    let no = |why: String| repository.exchange.refuse(why);
    let digest = Sha256::parse(digest).map_err(no)?;
    let Some(bytes) = repository.manifest_bytes(digest.as_str(), MOST_MANIFEST).await? else {
        return Err(no("its manifest is not there".to_owned()));
    };
    let manifest: ReferrerManifest =
        serde_json::from_slice(&bytes).map_err(|error| no(format!("its manifest cannot be read: {error}")))?;
    let is_bundle = |layer: &ReferrerLayer| layer.media_type == BUNDLE_TYPE;
    if manifest.artifact_type.as_deref() != Some(BUNDLE_TYPE) && !manifest.layers.iter().any(is_bundle) {
        return Ok(None);
    }
    match manifest.layers.as_slice() {
        [layer] => small(repository, layer).await.map(Some),
        layers => Err(no(format!("it has {} layers, and a signature has one", layers.len()))),
    }
}

/// Returns the bytes of a small layer. A layer that is too large is not requested.
async fn small(repository: &Repository, layer: &ReferrerLayer) -> Result<Vec<u8>, CopyFailed> {
    if layer.size > MOST_BUNDLE {
        return Err(repository.exchange.refuse(format!("it has {} bytes, and {MOST_BUNDLE} are the most", layer.size)));
    }
    let digest = Sha256::parse(&layer.digest).map_err(|why| repository.exchange.refuse(why))?;
    let mut bytes = Vec::new();
    repository.blob_into(&content(digest, layer.size), &mut bytes).await?;
    Ok(bytes)
}

/// Adds the signatures of the older form.
async fn old(repository: &Repository, manifest: &Sha256, evidence: &mut SignatureEvidence) -> Result<(), CopyFailed> {
    let tag = format!("{}.sig", fallback_tag(manifest));
    let Some(bytes) = counted(repository.manifest_bytes(&tag, MOST_MANIFEST).await, &tag, evidence)? else {
        return Ok(());
    };
    let signatures: ReferrerManifest = match serde_json::from_slice(&bytes) {
        Ok(signatures) => signatures,
        Err(error) => {
            evidence.remark(format!("tag {tag} cannot be read: {error}"));
            return Ok(());
        }
    };
    for layer in signatures.layers.iter().filter(|layer| layer.media_type == SIMPLE_TYPE).take(MOST_ENTRIES) {
        if evidence.is_full() {
            break;
        }
        let Some(signature) = layer.annotations.as_ref().and_then(|all| all.signature.clone()) else { continue };
        if let Some(payload) = counted(small(repository, layer).await.map(Some), &tag, evidence)? {
            evidence.add_old(OldSignature { payload, signature });
        }
    }
    Ok(())
}

/// Reads the first entries of an index, and only counts the rest.
fn first_entries<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Entries, D::Error> {
    struct First;

    impl<'de> Visitor<'de> for First {
        type Value = Entries;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("a list of manifests")
        }

        fn visit_seq<A: SeqAccess<'de>>(self, mut all: A) -> Result<Entries, A::Error> {
            let mut entries = Entries { kept: Vec::new(), count: 0 };
            while entries.kept.len() < MOST_ENTRIES
                && let Some(entry) = all.next_element::<ReferrerEntry>()?
            {
                entries.kept.push(entry.digest);
            }
            entries.count = entries.kept.len();
            while all.next_element::<IgnoredAny>()?.is_some() {
                entries.count = entries.count.saturating_add(1);
            }
            Ok(entries)
        }
    }

    deserializer.deserialize_seq(First)
}
