//! The older form of cosign 2: a payload, and its signature in an annotation.

use serde::Deserialize;

use crate::bundle::decode;
use crate::digest::shortened;
use crate::evidence::OldSignature;
use crate::judge::{SignatureOutcome, SignedPlugin};
use crate::policy::TrustPolicy;

/// The type by which cosign says that it signed an image.
const KIND: &str = "cosign container image signature";

#[derive(Deserialize)]
struct OldPayload {
    critical: Critical,
}

#[derive(Deserialize)]
struct Critical {
    image: CriticalImage,
    #[serde(rename = "type")]
    kind: String,
}

#[derive(Deserialize)]
struct CriticalImage {
    #[serde(rename = "docker-manifest-digest")]
    manifest: String,
}

/// Judges one signature of the older form. The name of the image in the payload does not count, because an image keeps its signature when
/// it is copied.
pub(crate) fn check(old: &OldSignature, policy: &TrustPolicy, wanted: &SignedPlugin<'_>) -> SignatureOutcome {
    checked(old, policy, wanted).unwrap_or_else(SignatureOutcome::not_counted)
}

fn checked(old: &OldSignature, policy: &TrustPolicy, wanted: &SignedPlugin<'_>) -> Result<SignatureOutcome, String> {
    let signature = decode(&old.signature, "the annotation with a signature of the older form")?;
    let Some(key) = policy.keys().iter().position(|key| key.has_signed(&old.payload, &signature)) else {
        return Ok(SignatureOutcome::Stranger);
    };
    // Only here the payload is known to be of a trusted key.
    let payload: OldPayload = serde_json::from_slice(&old.payload)
        .map_err(|error| format!("a trusted key signed a payload that cannot be read: {error}"))?;
    if payload.critical.kind != KIND {
        let other = shortened(&payload.critical.kind);
        return Err(format!("a trusted key signed something else, of type {other:?}, and only {KIND:?} counts"));
    }
    let manifest = payload.critical.image.manifest;
    if wanted.manifest.is_some_and(|wanted| wanted.as_str() == manifest) {
        return Ok(SignatureOutcome::By(key));
    }
    Ok(SignatureOutcome::ForOther(shortened(&manifest).escape_debug().to_string()))
}
