//! Keys on the curve P-256. Other keys are refused by name, with the fix.

use std::fmt;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use ring::agreement::{ECDH_P256, EphemeralPrivateKey, UnparsedPublicKey as Peer, agree_ephemeral};
use ring::rand::SystemRandom;
use ring::signature::{
    ECDSA_P256_SHA256_ASN1, ECDSA_P256_SHA256_ASN1_SIGNING, EcdsaKeyPair, KeyPair as _, UnparsedPublicKey,
};

use crate::digest::Sha256;
use crate::pem::only_section;

/// The beginning of each public key on P-256 in DER. The rest is the point: 65 bytes that begin with 4.
const P256: [u8; 26] = [
    0x30, 0x59, 0x30, 0x13, 0x06, 0x07, 0x2a, 0x86, 0x48, 0xce, 0x3d, 0x02, 0x01, 0x06, 0x08, 0x2a, 0x86, 0x48, 0xce,
    0x3d, 0x03, 0x01, 0x07, 0x03, 0x42, 0x00,
];
const POINT: usize = 65;

/// The object identifiers of other keys, with the names of these keys.
const OTHERS: [(&[u8], &str); 8] = [
    (
        &[0x06, 0x03, 0x2b, 0x65, 0x70],
        "an Ed25519 key: cosign signs Ed25519ph with it, which this host does not verify",
    ),
    (&[0x06, 0x03, 0x2b, 0x65, 0x71], "an Ed448 key"),
    (&[0x06, 0x05, 0x2b, 0x81, 0x04, 0x00, 0x21], "a key on the curve P-224"),
    (&[0x06, 0x05, 0x2b, 0x81, 0x04, 0x00, 0x22], "a key on the curve P-384"),
    (&[0x06, 0x05, 0x2b, 0x81, 0x04, 0x00, 0x23], "a key on the curve P-521"),
    (&[0x06, 0x05, 0x2b, 0x81, 0x04, 0x00, 0x0a], "a key on the curve secp256k1"),
    (&[0x06, 0x09, 0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 0x01, 0x01, 0x01], "an RSA key"),
    (&[0x06, 0x08, 0x2a, 0x86, 0x48, 0xce, 0x3d, 0x03, 0x01, 0x07], "a P-256 key in another form than the usual one"),
];
/// Where the identifier of a key begins at the latest.
const IDENTIFIER_WITHIN: usize = 40;
/// The fix for another kind of key.
const MAKE_ONE: &str = "use a P-256 key, as `cosign generate-key-pair` makes";

/// The reason why a key cannot be used, with the fix. The text never repeats the key.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct KeyRefused(pub(crate) String);

/// A public key on the curve P-256.
#[derive(Clone, PartialEq, Eq)]
pub struct PublicKey {
    point: Vec<u8>,
}

impl fmt::Debug for PublicKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "public key {}", self.fingerprint())
    }
}

impl PublicKey {
    /// Reads a public key from PEM, which has one section `PUBLIC KEY`.
    ///
    /// # Errors
    /// If the text is another kind of key, or no key. The error names the kind and the fix.
    pub fn from_pem(text: &str) -> Result<Self, KeyRefused> {
        let (label, der) = only_section(text).map_err(|why| KeyRefused(format!("the key is no PEM: {why}")))?;
        match label {
            "PUBLIC KEY" => Self::from_der(&der),
            "CERTIFICATE" => Err(KeyRefused(
                "the key is a certificate, which is not judged here; get its key by `openssl x509 -pubkey -noout`"
                    .to_owned(),
            )),
            label if label.ends_with("PRIVATE KEY") => Err(KeyRefused(
                "the key is a private key; name the public key here, and replace this pair, because grants are no secret"
                    .to_owned(),
            )),
            _ => Err(KeyRefused("the key has no section `PUBLIC KEY`; use the file cosign.pub".to_owned())),
        }
    }

    /// Reads a public key from the DER of its SubjectPublicKeyInfo.
    fn from_der(der: &[u8]) -> Result<Self, KeyRefused> {
        let point = der.strip_prefix(&P256).filter(|point| point.len() == POINT && point.first() == Some(&4));
        let Some(point) = point else {
            return Err(KeyRefused(format!("the key is {}; {MAKE_ONE}", kind(der))));
        };
        if !is_on_curve(point) {
            return Err(KeyRefused("the key is broken: its point is not on the curve P-256".to_owned()));
        }
        Ok(Self { point: point.to_vec() })
    }

    /// Returns the DER of the SubjectPublicKeyInfo: 91 bytes.
    pub(crate) fn der(&self) -> Vec<u8> {
        [&P256[..], &self.point].concat()
    }

    /// Returns the key as PEM, as in `cosign.pub`.
    pub fn pem(&self) -> String {
        let body = STANDARD.encode(self.der());
        let (first, second) = body.split_at_checked(64).unwrap_or((&body, ""));
        format!("-----BEGIN PUBLIC KEY-----\n{first}\n{second}\n-----END PUBLIC KEY-----\n")
    }

    /// Returns the name of the key for people: the digest of its DER.
    pub fn fingerprint(&self) -> Sha256 {
        Sha256::of(&self.der())
    }

    /// Returns true if the key has signed the message. `signature` is ASN.1.
    pub(crate) fn has_signed(&self, message: &[u8], signature: &[u8]) -> bool {
        UnparsedPublicKey::new(&ECDSA_P256_SHA256_ASN1, &self.point).verify(message, signature).is_ok()
    }
}

/// Returns true if a point is on the curve. A key agreement refuses any other point.
fn is_on_curve(point: &[u8]) -> bool {
    let own = EphemeralPrivateKey::generate(&ECDH_P256, &SystemRandom::new());
    own.and_then(|own| agree_ephemeral(own, &Peer::new(&ECDH_P256, point), |_| ())).is_ok()
}

/// Returns the kind of a key in DER, for messages.
fn kind(der: &[u8]) -> &'static str {
    let begin = der.get(..IDENTIFIER_WITHIN.min(der.len())).unwrap_or_default();
    let is_in = |identifier: &[u8]| begin.windows(identifier.len()).any(|part| part == identifier);
    OTHERS
        .into_iter()
        .find(|(identifier, _)| is_in(identifier))
        .map_or("no public key that is known here", |found| found.1)
}

/// A private key on the curve P-256, which signs.
pub struct SigningKey {
    pair: EcdsaKeyPair,
    public: PublicKey,
}

impl fmt::Debug for SigningKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "private key of {:?}", self.public)
    }
}

impl SigningKey {
    /// Reads a private key from PEM, which has one section `PRIVATE KEY` (PKCS#8, without a password).
    ///
    /// # Errors
    /// If the text is another kind of key, or has a password. The error names the fix.
    pub fn from_pem(text: &str) -> Result<Self, KeyRefused> {
        let (label, der) = only_section(text).map_err(|why| KeyRefused(format!("the private key is no PEM: {why}")))?;
        let no = |why: &str| Err(KeyRefused(format!("the private key {why}")));
        match label {
            "PRIVATE KEY" => Self::from_der(&der),
            "EC PRIVATE KEY" => no("is in the older form SEC 1; convert it by `openssl pkcs8 -topk8 -nocrypt -in KEY`"),
            "ENCRYPTED PRIVATE KEY" => no("has a password; write it without one by `openssl pkcs8 -in KEY`"),
            "ENCRYPTED SIGSTORE PRIVATE KEY" | "ENCRYPTED COSIGN PRIVATE KEY" => {
                no("is cosign's own, with a password, which is not read here; sign by `cosign sign`, or use a key of \
                 `openssl genpkey -algorithm EC -pkeyopt ec_paramgen_curve:P-256`")
            }
            "PUBLIC KEY" => no("is a public key; signing needs the private key of the pair"),
            _ => no("has no section `PRIVATE KEY`"),
        }
    }

    fn from_der(der: &[u8]) -> Result<Self, KeyRefused> {
        let pair = EcdsaKeyPair::from_pkcs8(&ECDSA_P256_SHA256_ASN1_SIGNING, der, &SystemRandom::new());
        let pair = pair.map_err(|_| {
            let kind = kind(der);
            KeyRefused(format!(
                "the private key is {kind}; use a key of `openssl genpkey -algorithm EC -pkeyopt ec_paramgen_curve:P-256`"
            ))
        })?;
        let public = PublicKey { point: pair.public_key().as_ref().to_vec() };
        Ok(Self { pair, public })
    }

    /// Returns the public key of the pair.
    pub fn public_key(&self) -> &PublicKey {
        &self.public
    }

    /// Returns the ASN.1 signature of a message.
    ///
    /// # Errors
    /// If the system gives no random bytes.
    pub(crate) fn sign(&self, message: &[u8]) -> Result<Vec<u8>, KeyRefused> {
        let signed = self.pair.sign(&SystemRandom::new(), message);
        let no = |_| KeyRefused("nothing can be signed: the system gives no random bytes".to_owned());
        signed.map(|signature| signature.as_ref().to_vec()).map_err(no)
    }
}
