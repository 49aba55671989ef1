//! Keys and bundles that the tests make themselves.
#![allow(dead_code, unreachable_pub, reason = "each harness uses a part of it")]

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use oarlock_signature::{Sha256, TrustPolicy};
use ring::rand::SystemRandom;
use ring::signature::{ECDSA_P256_SHA256_ASN1_SIGNING, EcdsaKeyPair, KeyPair as _};
use serde_json::{Value, json};

pub const BUNDLE: &str = "application/vnd.dev.sigstore.bundle.v0.3+json";
pub const IN_TOTO: &str = "application/vnd.in-toto+json";
pub const SIGN: &str = "https://sigstore.dev/cosign/sign/v1";

/// A key pair that signs any bytes.
pub struct Pair {
    pub pkcs8: Vec<u8>,
    pair: EcdsaKeyPair,
}

impl Pair {
    pub fn new() -> Self {
        let random = SystemRandom::new();
        let pkcs8 = EcdsaKeyPair::generate_pkcs8(&ECDSA_P256_SHA256_ASN1_SIGNING, &random).unwrap();
        let pair = EcdsaKeyPair::from_pkcs8(&ECDSA_P256_SHA256_ASN1_SIGNING, pkcs8.as_ref(), &random).unwrap();
        Self { pkcs8: pkcs8.as_ref().to_vec(), pair }
    }

    pub fn private_pem(&self) -> String {
        pem("PRIVATE KEY", &self.pkcs8)
    }

    pub fn public_pem(&self) -> String {
        let prefix = "3059301306072a8648ce3d020106082a8648ce3d030107034200";
        pem("PUBLIC KEY", &[&hex(prefix)[..], self.pair.public_key().as_ref()].concat())
    }

    pub fn sign(&self, bytes: &[u8]) -> String {
        STANDARD.encode(self.pair.sign(&SystemRandom::new(), bytes).unwrap())
    }

    /// Returns a bundle with an envelope that this key signs as it should.
    pub fn envelope(&self, payload_type: &str, payload: &str) -> Vec<u8> {
        let signature = self.sign(&pae(payload_type, payload.as_bytes()));
        bundle(payload_type, payload, &signature)
    }
}

pub fn hex(text: &str) -> Vec<u8> {
    let digits: Vec<u8> = text.chars().map(|c| c.to_digit(16).unwrap() as u8).collect();
    digits.chunks(2).map(|pair| pair[0] * 16 + pair[1]).collect()
}

pub fn pem(label: &str, der: &[u8]) -> String {
    format!("-----BEGIN {label}-----\n{}\n-----END {label}-----\n", STANDARD.encode(der))
}

/// Returns what an envelope signs, written here a second time on purpose.
pub fn pae(payload_type: &str, payload: &[u8]) -> Vec<u8> {
    let mut bytes = format!("DSSEv1 {} {payload_type} {} ", payload_type.len(), payload.len()).into_bytes();
    bytes.extend_from_slice(payload);
    bytes
}

pub fn bundle(payload_type: &str, payload: &str, signature: &str) -> Vec<u8> {
    bundle_of(
        json!({"payload": STANDARD.encode(payload), "payloadType": payload_type, "signatures": [{"sig": signature}]}),
    )
}

pub fn bundle_of(envelope: Value) -> Vec<u8> {
    let material = json!({"publicKey": {"hint": "aGludA=="}});
    json!({"mediaType": BUNDLE, "verificationMaterial": material, "dsseEnvelope": envelope}).to_string().into_bytes()
}

pub fn statement(digest: &Sha256) -> Value {
    json!({"_type": "https://in-toto.io/Statement/v1", "subject": [{"digest": {"sha256": digest.hex()}}],
        "predicateType": SIGN, "predicate": {}})
}

pub fn policy(keys: &[&Pair], threshold: usize) -> TrustPolicy {
    let pems: Vec<String> = keys.iter().map(|key| key.public_pem()).collect();
    TrustPolicy::new(pems.iter().map(String::as_str), threshold).unwrap()
}
