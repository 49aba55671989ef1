//! Bundles of cosign 3: one signature in JSON, over a statement about a manifest, or over a file.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::Deserialize;
use serde_json::json;

use crate::artefact::BUNDLE_TYPE;
use crate::digest::{Sha256, shortened};
use crate::judge::{SignatureOutcome, SignedPlugin};
use crate::key::{KeyRefused, SigningKey};
use crate::policy::TrustPolicy;

/// The type of the payload of an envelope.
const IN_TOTO: &str = "application/vnd.in-toto+json";
/// The type of a statement.
const STATEMENT: &str = "https://in-toto.io/Statement/v1";
/// The predicate by which cosign says that it signed an image.
const SIGN: &str = "https://sigstore.dev/cosign/sign/v1";
/// The most subjects of a statement that are read.
const MOST_SUBJECTS: usize = 128;

/// A bundle as it is written. Logs, timestamps and the hint are left out, because they prove nothing here.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct WrittenBundle {
    media_type: String,
    dsse_envelope: Option<Envelope>,
    message_signature: Option<FileSignature>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Envelope {
    payload: String,
    payload_type: String,
    signatures: Vec<EnvelopeSignature>,
}

#[derive(Deserialize)]
struct EnvelopeSignature {
    sig: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct FileSignature {
    message_digest: Option<MessageDigest>,
    signature: String,
}

#[derive(Deserialize)]
struct MessageDigest {
    algorithm: String,
    digest: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct SignedStatement {
    #[serde(rename = "_type")]
    kind: String,
    predicate_type: String,
    subject: Vec<StatementSubject>,
}

#[derive(Deserialize)]
struct StatementSubject {
    digest: SubjectDigest,
}

#[derive(Deserialize)]
struct SubjectDigest {
    sha256: Option<String>,
}

/// Judges one bundle.
pub(crate) fn check(bundle: &[u8], policy: &TrustPolicy, wanted: &SignedPlugin<'_>) -> SignatureOutcome {
    let bundle: WrittenBundle = match serde_json::from_slice(bundle) {
        Ok(bundle) => bundle,
        Err(error) => return SignatureOutcome::not_counted(format!("a bundle cannot be read: {error}")),
    };
    if bundle.media_type != BUNDLE_TYPE {
        let other = shortened(&bundle.media_type);
        return SignatureOutcome::not_counted(format!(
            "a bundle has the type {other:?}, and only {BUNDLE_TYPE} is read"
        ));
    }
    let outcome = match (bundle.dsse_envelope, bundle.message_signature) {
        (Some(envelope), None) => of_envelope(&envelope, policy, wanted),
        (None, Some(signature)) => of_file(&signature, policy, wanted),
        _ => Err("a bundle has not exactly one of dsseEnvelope and messageSignature".to_owned()),
    };
    outcome.unwrap_or_else(SignatureOutcome::not_counted)
}

fn of_envelope(
    envelope: &Envelope,
    policy: &TrustPolicy,
    wanted: &SignedPlugin<'_>,
) -> Result<SignatureOutcome, String> {
    if envelope.payload_type != IN_TOTO {
        let other = shortened(&envelope.payload_type);
        return Err(format!("an envelope has the payload type {other:?}, and only {IN_TOTO} is read"));
    }
    let [signature] = envelope.signatures.as_slice() else {
        return Err(format!("an envelope has {} signatures, and not one", envelope.signatures.len()));
    };
    let payload = decode(&envelope.payload, "the payload of an envelope")?;
    let signature = decode(&signature.sig, "the signature of an envelope")?;
    let signed = pae(&envelope.payload_type, &payload);
    let Some(key) = policy.keys().iter().position(|key| key.has_signed(&signed, &signature)) else {
        return Ok(SignatureOutcome::Stranger);
    };
    // Only here the payload is known to be of a trusted key.
    let statement: SignedStatement = serde_json::from_slice(&payload)
        .map_err(|error| format!("a trusted key signed a statement that cannot be read: {error}"))?;
    if statement.kind != STATEMENT || statement.predicate_type != SIGN {
        let other = shortened(&statement.predicate_type);
        return Err(format!("a trusted key signed something else, of type {other:?}, and only {SIGN} counts"));
    }
    if statement.subject.len() > MOST_SUBJECTS {
        return Err(format!("a statement has more than {MOST_SUBJECTS} subjects"));
    }
    let mut subjects = statement.subject.iter().filter_map(|subject| subject.digest.sha256.as_deref());
    if wanted.manifest.is_some_and(|manifest| subjects.clone().any(|hex| hex == manifest.hex())) {
        return Ok(SignatureOutcome::By(key));
    }
    let other = subjects.next().map(|hex| format!("sha256:{}", shortened(hex).escape_debug()));
    Ok(SignatureOutcome::ForOther(other.unwrap_or_else(|| "nothing".to_owned())))
}

fn of_file(
    signature: &FileSignature,
    policy: &TrustPolicy,
    wanted: &SignedPlugin<'_>,
) -> Result<SignatureOutcome, String> {
    let Some(file) = wanted.file else {
        return Err(
            "a bundle signs a file, and not an image; use `cosign sign` in place of `cosign sign-blob`".to_owned()
        );
    };
    if let Some(said) = &signature.message_digest {
        let digest = decode(&said.digest, "the digest of a bundle")?;
        if said.algorithm != "SHA2_256" {
            return Err(format!(
                "a bundle has a digest of the kind {:?}, and not SHA2_256",
                shortened(&said.algorithm)
            ));
        }
        let said: String = digest.iter().take(32).map(|byte| format!("{byte:02x}")).collect();
        if said != Sha256::of(file).hex() {
            return Ok(SignatureOutcome::ForOther(format!("sha256:{said}")));
        }
    }
    let signature = decode(&signature.signature, "the signature of a bundle")?;
    let signer = policy.keys().iter().position(|key| key.has_signed(file, &signature));
    Ok(signer.map_or(SignatureOutcome::Stranger, SignatureOutcome::By))
}

/// Decodes Base64 of a bundle.
pub(crate) fn decode(text: &str, about: &str) -> Result<Vec<u8>, String> {
    STANDARD.decode(text).map_err(|_| format!("{about} is no Base64"))
}

/// Returns the bytes that an envelope signs: the pre-authentication encoding. It has the lengths, so that no part can pass for another.
fn pae(payload_type: &str, payload: &[u8]) -> Vec<u8> {
    let head = format!("DSSEv1 {} {payload_type} {} ", payload_type.len(), payload.len());
    [head.as_bytes(), payload].concat()
}

impl SigningKey {
    /// Signs a manifest by its digest, as `cosign sign` does. Returns the bundle.
    ///
    /// # Errors
    /// If the system gives no random bytes.
    pub fn sign_manifest(&self, manifest: &Sha256) -> Result<Vec<u8>, KeyRefused> {
        let statement = json!({
            "_type": STATEMENT,
            "subject": [{"digest": {"sha256": manifest.hex()}, "annotations": {}}],
            "predicateType": SIGN,
            "predicate": {},
        });
        let payload = statement.to_string();
        let signature = STANDARD.encode(self.sign(&pae(IN_TOTO, payload.as_bytes()))?);
        Ok(self.bundle(
            "dsseEnvelope",
            &json!({
                "payload": STANDARD.encode(payload),
                "payloadType": IN_TOTO,
                "signatures": [{"sig": signature}],
            }),
        ))
    }

    /// Signs the bytes of a file, as `cosign sign-blob` does. Returns the bundle, which belongs into `FILE.sigstore.json`.
    ///
    /// # Errors
    /// If the system gives no random bytes.
    pub fn sign_file(&self, file: &[u8]) -> Result<Vec<u8>, KeyRefused> {
        let signature = STANDARD.encode(self.sign(file)?);
        let digest = ring::digest::digest(&ring::digest::SHA256, file);
        Ok(self.bundle(
            "messageSignature",
            &json!({
                "messageDigest": {"algorithm": "SHA2_256", "digest": STANDARD.encode(digest)},
                "signature": signature,
            }),
        ))
    }

    fn bundle(&self, name: &str, content: &serde_json::Value) -> Vec<u8> {
        let hint = ring::digest::digest(&ring::digest::SHA256, &self.public_key().der());
        let bundle = json!({
            "mediaType": BUNDLE_TYPE,
            "verificationMaterial": {"publicKey": {"hint": STANDARD.encode(hint)}},
            name: content,
        });
        bundle.to_string().into_bytes()
    }
}
