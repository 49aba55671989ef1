//! The tokens of service accounts in serialized form: JSON web tokens, signed by a key that the cluster creates at its start.
//! Anybody can check a signature with the public half of the key, which discovery serves. `token_review` checks that the objects
//! named in a token exist.

use base64::engine::general_purpose::{GeneralPurpose, NO_PAD, URL_SAFE_NO_PAD};
use base64::{Engine as _, alphabet};
use ring::{
    digest,
    rand::SystemRandom,
    signature::{
        ECDSA_P256_SHA256_FIXED, ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, KeyPair as _, UnparsedPublicKey,
    },
};
use serde_json::{Value, json};

use crate::object::str_at;

/// The issuer of the tokens, and their default audience.
pub(crate) const ISSUER: &str = "https://kubernetes.default.svc";

/// Reason why the server rejects a token.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Doubt {
    /// The text is no token of this cluster.
    Foreign,
    /// The text looks like a token of this cluster, but is invalid for this reason.
    Refuted(String),
}

impl Doubt {
    pub(crate) fn refuted(why: impl Into<String>) -> Self {
        Self::Refuted(why.into())
    }

    /// Returns the real server's message. That server tries each authenticator in turn, and the one for client tokens always fails first.
    pub(crate) fn sentence(&self) -> String {
        match self {
            Self::Foreign => "invalid bearer token".to_owned(),
            Self::Refuted(why) => format!("[{}, {why}]", Self::Foreign.sentence()),
        }
    }
}

/// The key that signs the tokens of one cluster.
#[derive(Debug)]
pub(crate) struct TokenKey(Option<EcdsaKeyPair>);

impl TokenKey {
    /// Generates a new key. The key does not come from the cluster's seed, or anybody who knows the seed could forge a token.
    pub(crate) fn generate() -> Self {
        let (random, algorithm) = (SystemRandom::new(), &ECDSA_P256_SHA256_FIXED_SIGNING);
        let document = EcdsaKeyPair::generate_pkcs8(algorithm, &random).ok();
        Self(document.and_then(|document| EcdsaKeyPair::from_pkcs8(algorithm, document.as_ref(), &random).ok()))
    }

    /// Returns a token with these claims, or none if the machine provided no random key.
    pub(crate) fn sign(&self, claims: &Value) -> Option<String> {
        let part = |value: &Value| URL_SAFE_NO_PAD.encode(value.to_string());
        let key = self.0.as_ref()?;
        let signed = format!("{}.{}", part(&json!({"alg": "ES256", "kid": self.id()})), part(claims));
        let signature = key.sign(&SystemRandom::new(), signed.as_bytes()).ok()?;
        Some(format!("{signed}.{}", URL_SAFE_NO_PAD.encode(signature)))
    }

    /// Returns the claims of a token that this key signed.
    pub(crate) fn read(&self, token: &str) -> Result<Value, Doubt> {
        let (signed, claims, signature) = parts(token).ok_or(Doubt::Foreign)?;
        let key = UnparsedPublicKey::new(&ECDSA_P256_SHA256_FIXED, self.point());
        let own = self.0.is_some() && key.verify(signed.as_bytes(), &signature).is_ok();
        if own { Ok(claims) } else { Err(Doubt::refuted("go-jose/go-jose: error in cryptographic primitive")) }
    }

    /// Returns the keys that verify tokens: the document at `/openid/v1/jwks`.
    pub(crate) fn documents(&self) -> Value {
        // The point is a format byte, which says that both coordinates follow, and then the two coordinates.
        let half = |from: usize| URL_SAFE_NO_PAD.encode(self.point().get(from..from + 32).unwrap_or_default());
        let key = json!({"use": "sig", "kty": "EC", "kid": self.id(), "crv": "P-256", "alg": "ES256", "x": half(1), "y": half(33)});
        json!({"keys": [key]})
    }

    fn point(&self) -> &[u8] {
        self.0.as_ref().map(|key| key.public_key().as_ref()).unwrap_or_default()
    }

    fn id(&self) -> String {
        URL_SAFE_NO_PAD.encode(digest::digest(&digest::SHA256, self.point()))
    }
}

/// Returns the public document about the issuer of the tokens, at `/.well-known/openid-configuration`.
pub(crate) fn configuration() -> Value {
    json!({
        "issuer": ISSUER, "jwks_uri": format!("{ISSUER}/openid/v1/jwks"), "response_types_supported": ["id_token"],
        "subject_types_supported": ["public"], "id_token_signing_alg_values_supported": ["ES256"],
    })
}

/// A decoder that ignores leftover bits at the end of a signature, as Go does.
const LENIENT: GeneralPurpose = GeneralPurpose::new(&alphabet::URL_SAFE, NO_PAD.with_decode_allow_trailing_bits(true));

/// Returns the signed text, the claims and the signature of a token of this issuer.
fn parts(token: &str) -> Option<(&str, Value, Vec<u8>)> {
    let (signed, signature) = token.rsplit_once('.')?;
    let (header, claims) = signed.split_once('.')?;
    let read = |part: &str| serde_json::from_slice::<Value>(&URL_SAFE_NO_PAD.decode(part).ok()?).ok();
    let (header, claims) = (read(header)?, read(claims)?);
    let known = header.is_object() && str_at(&claims, &["iss"]) == ISSUER;
    let signature = match URL_SAFE_NO_PAD.decode(signature) {
        Ok(signature) => signature,
        // Go accepts leftover bits, but then checks an empty signature, which fails.
        Err(_) => LENIENT.decode(signature).map(|_| Vec::new()).ok()?,
    };
    known.then_some((signed, claims, signature))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_character_of_a_token_can_be_changed() {
        let key = TokenKey::generate();
        let token = key.sign(&json!({"iss": ISSUER, "exp": 1})).unwrap();
        for (place, old) in token.char_indices() {
            for new in ['A', 'B', '_', '.'].into_iter().filter(|new| *new != old) {
                let mut changed = token.clone();
                changed.replace_range(place..=place, &new.to_string());
                assert!(key.read(&changed).is_err(), "{changed}");
            }
        }
        assert_eq!(key.read(""), Err(Doubt::Foreign));
    }

    #[test]
    fn a_token_with_a_character_more_is_refuted_as_the_api_server_does_it() {
        let key = TokenKey::generate();
        let token = key.sign(&json!({"iss": ISSUER})).unwrap();
        assert!(matches!(key.read(&format!("{token}x")), Err(Doubt::Refuted(_))));
    }

    #[test]
    fn a_token_without_a_signature_is_refuted() {
        let part = |value: Value| URL_SAFE_NO_PAD.encode(value.to_string());
        let token = format!("{}.{}.", part(json!({"alg": "none"})), part(json!({"iss": ISSUER})));
        assert!(matches!(TokenKey::generate().read(&token), Err(Doubt::Refuted(_))));
    }
}
