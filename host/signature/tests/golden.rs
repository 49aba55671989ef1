//! Bundles that cosign 3.1.3 made, and our own of the same form.
#![cfg(test)]

mod support;

use oarlock_signature::{PublicKey, Sha256, SignatureEvidence, SigningKey, TrustPolicy, UntrustedReason};
use serde_json::Value;
use support::{Pair, pae, policy};

const COSIGN: &[u8] = include_bytes!("golden/cosign-3.1.3-p256.sigstore.json");
const ED25519PH: &[u8] = include_bytes!("golden/cosign-3.1.3-ed25519.sigstore.json");
const OF_A_FILE: &[u8] = include_bytes!("golden/blob.sigstore.json");
const KEY: &str = include_str!("golden/p256.pub");
const ED25519: &str = include_str!("golden/ed25519.pub");
const SIGNED: &str = "sha256:7a74d01a01b465e1c804fcbb0e28afa6b04228293e0b25f78b449afd8ccb4856";
/// A private key that `openssl genpkey` made for this test.
const OPENSSL: &str = include_str!("golden/openssl-p256.key");

fn signed() -> Sha256 {
    Sha256::parse(SIGNED).unwrap()
}

fn evidence(bundle: &[u8]) -> SignatureEvidence {
    let mut evidence = SignatureEvidence::default();
    evidence.add_bundle(bundle.to_vec());
    evidence
}

fn cosign_key() -> TrustPolicy {
    TrustPolicy::new([KEY], 1).unwrap()
}

#[test]
fn bundle_of_cosign_is_accepted_for_its_digest_and_no_other() {
    let signers = evidence(COSIGN).judge_manifest(&cosign_key(), &signed()).unwrap();
    assert_eq!(signers.fingerprints(), [PublicKey::from_pem(KEY).unwrap().fingerprint()]);
    let refused = evidence(COSIGN).judge_manifest(&cosign_key(), &Sha256::of(b"another")).unwrap_err();
    assert_eq!(refused.reason(), UntrustedReason::SignatureForOther);
    assert!(refused.to_string().contains(SIGNED), "{refused}");
}

#[test]
fn bundle_of_cosign_by_another_key_is_by_nobody_trusted() {
    for bundle in [COSIGN, ED25519PH] {
        let refused = evidence(bundle).judge_manifest(&policy(&[&Pair::new()], 1), &signed()).unwrap_err();
        assert_eq!(refused.reason(), UntrustedReason::SignedByNobodyTrusted);
        assert!(refused.to_string().contains("no key of signedBy made a signature"), "{refused}");
    }
}

#[test]
fn each_changed_byte_of_the_signed_content_is_noticed() {
    let text: Value = serde_json::from_slice(COSIGN).unwrap();
    let payload = text["dsseEnvelope"]["payload"].as_str().unwrap();
    for place in (0..payload.len() - 1).step_by(7) {
        let other = if payload.as_bytes()[place] == b'A' { "B" } else { "A" };
        let changed = format!("{}{other}{}", &payload[..place], &payload[place + 1..]);
        let changed = String::from_utf8_lossy(COSIGN).replace(payload, &changed);
        let refused = evidence(changed.as_bytes()).judge_manifest(&cosign_key(), &signed()).unwrap_err();
        assert_eq!(refused.reason(), UntrustedReason::SignedByNobodyTrusted, "byte {place}");
    }
}

#[test]
fn bundle_of_a_file_is_refused_for_another_file() {
    let refused = evidence(OF_A_FILE).judge_file(&cosign_key(), b"another file").unwrap_err();
    assert_eq!(refused.reason(), UntrustedReason::SignatureForOther);
    let digest = "sha256:62f09b809e8512b30f1a71a890e582f2a4256ba994233f7b7f033e6d8f0ed486";
    assert!(refused.to_string().contains(digest), "{refused}");
}

#[test]
fn bundle_of_a_file_signs_no_manifest() {
    let refused = evidence(OF_A_FILE).judge_manifest(&cosign_key(), &signed()).unwrap_err();
    assert_eq!(refused.reason(), UntrustedReason::NotSigned);
    assert!(refused.to_string().contains("a bundle signs a file, and not an image"), "{refused}");
}

/// Returns a JSON value with only its shape: keys and kinds.
fn shape(value: &Value) -> Value {
    match value {
        Value::Object(all) => all.iter().map(|(key, value)| (key.clone(), shape(value))).collect(),
        Value::Array(all) => all.iter().map(shape).collect(),
        Value::String(_) => "text".into(),
        other => other.clone(),
    }
}

fn payload_of(bundle: &Value) -> Value {
    use base64::Engine as _;
    let text = bundle["dsseEnvelope"]["payload"].as_str().unwrap();
    serde_json::from_slice(&base64::engine::general_purpose::STANDARD.decode(text).unwrap()).unwrap()
}

#[test]
fn our_bundles_have_the_form_of_cosigns() {
    let key = SigningKey::from_pem(OPENSSL).unwrap();
    let bundle = key.sign_manifest(&signed()).unwrap();
    let (own, theirs): (Value, Value) =
        (serde_json::from_slice(&bundle).unwrap(), serde_json::from_slice(COSIGN).unwrap());
    assert_eq!(shape(&own), shape(&theirs));
    assert_eq!(payload_of(&own), payload_of(&theirs));
    assert_eq!(own["mediaType"], theirs["mediaType"]);
    assert_eq!(own["dsseEnvelope"]["payloadType"], theirs["dsseEnvelope"]["payloadType"]);
    let file: Value = serde_json::from_slice(&key.sign_file(b"file").unwrap()).unwrap();
    assert_eq!(shape(&file), shape(&serde_json::from_slice(OF_A_FILE).unwrap()));
    assert_eq!(file["messageSignature"]["messageDigest"]["algorithm"], "SHA2_256");
}

#[test]
fn our_bundles_are_accepted_by_the_key_that_signed() {
    let key = SigningKey::from_pem(OPENSSL).unwrap();
    let pem = key.public_key().pem();
    let trusted = TrustPolicy::new([pem.as_str()], 1).unwrap();
    let manifest = evidence(&key.sign_manifest(&signed()).unwrap());
    assert!(manifest.judge_manifest(&trusted, &signed()).is_ok());
    let file = evidence(&key.sign_file(b"file").unwrap());
    assert!(file.judge_file(&trusted, b"file").is_ok());
    assert!(file.judge_file(&trusted, b"File").is_err());
}

#[test]
fn hint_of_our_bundles_is_that_of_cosign_for_the_same_key() {
    // The hint of the golden bundle is the Base64 of the fingerprint of its key.
    let theirs: Value = serde_json::from_slice(COSIGN).unwrap();
    let hint = theirs["verificationMaterial"]["publicKey"]["hint"].as_str().unwrap();
    use base64::Engine as _;
    let hint = base64::engine::general_purpose::STANDARD.decode(hint).unwrap();
    let hint: String = hint.iter().map(|byte| format!("{byte:02x}")).collect();
    assert_eq!(hint, PublicKey::from_pem(KEY).unwrap().fingerprint().hex());
}

#[test]
fn encoding_of_an_envelope_is_that_of_its_specification() {
    let bytes = pae("http://example.com/HelloWorld", b"hello world");
    assert_eq!(bytes, b"DSSEv1 29 http://example.com/HelloWorld 11 hello world");
}

#[test]
fn public_key_is_written_as_it_is_read() {
    assert_eq!(PublicKey::from_pem(KEY).unwrap().pem(), KEY);
}

#[test]
fn ed25519_key_is_refused_by_name_with_the_fix() {
    let refused = TrustPolicy::new([ED25519], 1).unwrap_err().to_string();
    let words = "key 1 of signedBy: the key is an Ed25519 key: cosign signs Ed25519ph with it, which this host does not verify; use a P-256 key";
    assert!(refused.starts_with(words), "{refused}");
}
