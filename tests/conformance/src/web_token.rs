//! Reads the claims of service-account tokens, so that the tokens can be compared although no two are equal.
//!
//! Times become seconds since the token was issued. Nothing here verifies a token.

use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use serde_json::{Value, json};

/// A pattern for a JSON web token in a text: both of its first parts begin with `{"`.
pub(crate) const PATTERN: &str = r"eyJ[\w-]+\.eyJ[\w-]+\.[\w-]*";

/// Returns the claims of a token as sorted JSON. Returns `None` if the text has no claims.
pub(crate) fn claims(token: &str) -> Option<String> {
    let payload = URL_SAFE_NO_PAD.decode(token.split('.').nth(1)?).ok()?;
    let mut claims: Value = serde_json::from_slice(&payload).ok()?;
    let map = claims.as_object_mut()?;
    let made = map.get("iat").and_then(Value::as_i64)?;
    for (_, claim) in map.iter_mut().filter(|(name, _)| ["exp", "iat", "nbf"].contains(&name.as_str())) {
        *claim = json!(claim.as_i64()? - made);
    }
    claims.sort_all_objects();
    Some(claims.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn claims_of_a_token_are_in_order_and_count_from_when_it_was_made() {
        let payload = URL_SAFE_NO_PAD.encode(r#"{"sub":"s","aud":["a"],"exp":1600,"iat":1000,"nbf":1000}"#);
        let token = format!("eyJhIjoxfQ.{payload}.x");
        assert!(regex::Regex::new(PATTERN).unwrap().is_match(&token));
        assert_eq!(claims(&token).as_deref(), Some(r#"{"aud":["a"],"exp":600,"iat":0,"nbf":0,"sub":"s"}"#));
        assert_eq!(claims("a.b.c"), None);
    }
}
