//! The tokens of service accounts in their written form: JSON web tokens, signed by a key that the cluster makes at its start
//! and shows to nobody. What such a token says is believed as long as what it speaks of is there: `token_review` looks.

use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use ring::{hmac, rand::SystemRandom};
use serde_json::{Value, json};

use crate::object::str_at;

/// Who makes the tokens, and whom they are for unless somebody else is named.
pub(crate) const ISSUER: &str = "https://kubernetes.default.svc";

/// Why a text is not believed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Doubt {
    /// It is no token of this cluster.
    Foreign,
    /// It looks like one.
    Refuted(String),
}

impl Doubt {
    pub(crate) fn refuted(why: impl Into<String>) -> Self {
        Self::Refuted(why.into())
    }

    /// The words of the real server. It tries each way to authenticate in turn, and its own clients' way always fails first.
    pub(crate) fn sentence(&self) -> String {
        match self {
            Self::Foreign => "invalid bearer token".to_owned(),
            Self::Refuted(why) => format!("[{}, {why}]", Self::Foreign.sentence()),
        }
    }
}

/// The key that signs the tokens of one cluster.
#[derive(Debug)]
pub(crate) struct TokenKey(Option<hmac::Key>);

impl TokenKey {
    /// A new key, not drawn from the cluster's seed: whoever knows a seed could write himself a token.
    pub(crate) fn generate() -> Self {
        Self(hmac::Key::generate(hmac::HMAC_SHA256, &SystemRandom::new()).ok())
    }

    /// The token that makes these claims, none if the machine gave no random key.
    pub(crate) fn sign(&self, claims: &Value) -> Option<String> {
        let part = |value: &Value| URL_SAFE_NO_PAD.encode(value.to_string());
        let signed = format!("{}.{}", part(&json!({"alg": "HS256"})), part(claims));
        let signature = hmac::sign(self.0.as_ref()?, signed.as_bytes());
        Some(format!("{signed}.{}", URL_SAFE_NO_PAD.encode(signature)))
    }

    /// The claims of a token that this key has signed.
    pub(crate) fn read(&self, token: &str) -> Result<Value, Doubt> {
        let (signed, claims, signature) = parts(token).ok_or(Doubt::Foreign)?;
        let own = self.0.as_ref().is_some_and(|key| hmac::verify(key, signed.as_bytes(), &signature).is_ok());
        if own { Ok(claims) } else { Err(Doubt::refuted("go-jose/go-jose: error in cryptographic primitive")) }
    }
}

/// The signed text of a token of this issuer, what it claims, and its signature.
fn parts(token: &str) -> Option<(&str, Value, Vec<u8>)> {
    let (signed, signature) = token.rsplit_once('.')?;
    let (header, claims) = signed.split_once('.')?;
    let read = |part: &str| serde_json::from_slice::<Value>(&URL_SAFE_NO_PAD.decode(part).ok()?).ok();
    let (header, claims) = (read(header)?, read(claims)?);
    let known = header.is_object() && str_at(&claims, &["iss"]) == ISSUER;
    known.then_some((signed, claims, URL_SAFE_NO_PAD.decode(signature).ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_read_by_the_key_that_signed_it_and_by_no_other() {
        let (own, other) = (TokenKey::generate(), TokenKey::generate());
        let claims = json!({"iss": ISSUER, "sub": "somebody"});
        let token = own.sign(&claims).unwrap();
        assert_eq!(own.read(&token), Ok(claims));
        assert!(matches!(other.read(&token), Err(Doubt::Refuted(_))));
    }

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
    fn a_token_without_a_signature_is_refuted() {
        let part = |value: Value| URL_SAFE_NO_PAD.encode(value.to_string());
        let token = format!("{}.{}.", part(json!({"alg": "none"})), part(json!({"iss": ISSUER})));
        assert!(matches!(TokenKey::generate().read(&token), Err(Doubt::Refuted(_))));
    }
}
