//! Authenticates requests to a registry: anonymously, with a password, or with a token from a token server.
//!
//! A password must not be shown. It is sent only to the registry and to allowed hosts.

use std::fmt;
use std::time::Duration;

use reqwest::header::{AUTHORIZATION, HeaderMap, HeaderValue, WWW_AUTHENTICATE};
use reqwest::{Method, StatusCode, Url};
use serde::Deserialize;
use tokio::sync::Mutex;
use tokio::time::Instant;

use crate::credentials::Credentials;
use crate::exchange::{Exchange, HttpCall};
use crate::failed::{CopyFailed, Fault};
use crate::hosts::{NamedFor, host_of};

/// The most bytes of an answer with a token.
const TOKEN_ANSWER: usize = 64 * 1024;
/// The seconds that a token is valid if the server gives no time, and the most seconds that are accepted.
const USUAL: u64 = 60;
const LONGEST: u64 = 3_600;
/// How long before its end a token is renewed.
const EARLY: Duration = Duration::from_secs(5);

/// The login to one repository. It caches the credentials until they expire or are refused.
pub(crate) struct Login {
    credentials: Option<Credentials>,
    scope: String,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    scheme: Scheme,
    sent: Option<HeaderValue>,
    until: Option<Instant>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
enum Scheme {
    #[default]
    Nothing,
    Basic,
    Bearer {
        realm: String,
        service: Option<String>,
    },
}

#[derive(Deserialize)]
struct TokenAnswer {
    token: Option<String>,
    access_token: Option<String>,
    expires_in: Option<u64>,
}

impl fmt::Debug for Login {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Login").field("scope", &self.scope).finish_non_exhaustive()
    }
}

impl Login {
    /// Makes a login for a scope such as `repository:team/app:pull`. Without credentials, it is anonymous.
    pub(crate) fn new(credentials: Option<Credentials>, scope: String) -> Self {
        Self { credentials, scope, state: Mutex::default() }
    }

    /// Returns the value of `Authorization` for the next request.
    pub(crate) async fn authorization(&self, exchange: &Exchange) -> Result<Option<HeaderValue>, CopyFailed> {
        let mut state = self.state.lock().await;
        if state.sent.is_some() && state.until.is_none_or(|until| Instant::now() < until) {
            return Ok(state.sent.clone());
        }
        match state.scheme.clone() {
            Scheme::Nothing => return Ok(None),
            Scheme::Basic => {
                let credentials = self.credentials.as_ref().ok_or_else(|| self.refused(exchange))?;
                state.sent = Some(secret(&credentials.basic(), exchange)?);
                state.until = None;
            }
            Scheme::Bearer { realm, service } => {
                let (token, seconds) = self.token(exchange, &realm, service.as_deref()).await?;
                state.sent = Some(secret(&format!("Bearer {token}"), exchange)?);
                state.until = Instant::now().checked_add(Duration::from_secs(seconds).saturating_sub(EARLY));
            }
        }
        Ok(state.sent.clone())
    }

    /// Learns the scheme from an answer 401 to a request with `sent`.
    pub(crate) async fn challenged(
        &self,
        sent: Option<&HeaderValue>,
        headers: &HeaderMap,
        exchange: &Exchange,
    ) -> Result<(), CopyFailed> {
        let mut state = self.state.lock().await;
        if state.sent.as_ref() != sent {
            // Another request of this copy has handled the same challenge, and the state is newer.
            return Ok(());
        }
        let values = headers.get_all(WWW_AUTHENTICATE);
        let texts: Vec<&str> = values.iter().filter_map(|value| value.to_str().ok()).collect();
        state.scheme = scheme_in(&texts).ok_or_else(|| self.refused(exchange))?;
        state.sent = None;
        state.until = None;
        Ok(())
    }

    async fn token(
        &self,
        exchange: &Exchange,
        realm: &str,
        service: Option<&str>,
    ) -> Result<(String, u64), CopyFailed> {
        let mut url = Url::parse(realm).map_err(|_| exchange.refuse("the registry sends for a token to no address"))?;
        exchange.check(&url, NamedFor::Token)?;
        if let Some(service) = service {
            url.query_pairs_mut().append_pair("service", service);
        }
        url.query_pairs_mut().append_pair("scope", &self.scope);
        let password = self.credentials.as_ref().map(|known| secret(&known.basic(), exchange)).transpose()?;
        let mut answer = exchange.follow(&HttpCall::new(Method::GET, url), password).await?;
        match answer.status() {
            StatusCode::OK => {}
            StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN if answer.is_direct => {
                let message = format!("{}: {}", answer.describe(), self.who());
                let message = exchange.said(&mut answer).await.after(&message);
                return Err(CopyFailed::for_good(Fault::Unauthorized, message));
            }
            _ => return Err(exchange.refused(&mut answer).await),
        }
        let bytes = exchange.read(&mut answer, TOKEN_ANSWER).await?;
        token_in(&bytes).ok_or_else(|| exchange.refuse(format!("{} is answered with no token", answer.shown)))
    }

    /// Returns the reason of a refusal, as messages show it.
    pub(crate) fn who(&self) -> &'static str {
        if self.credentials.is_some() {
            "the credentials are wrong, or do not suffice"
        } else {
            "there are no credentials for it"
        }
    }

    fn refused(&self, exchange: &Exchange) -> CopyFailed {
        let host = host_of(exchange.hosts.own());
        CopyFailed::for_good(Fault::Unauthorized, format!("{host} refuses {}: {}", self.scope, self.who()))
    }
}

/// Returns a header value that logs do not show. The error does not repeat the text.
fn secret(text: &str, exchange: &Exchange) -> Result<HeaderValue, CopyFailed> {
    let mut value = HeaderValue::from_str(text)
        .map_err(|_| exchange.refuse(format!("there are characters in {AUTHORIZATION} that cannot be sent")))?;
    value.set_sensitive(true);
    Ok(value)
}

/// Returns the scheme that the challenges ask for. A token is preferred over a password.
fn scheme_in(challenges: &[&str]) -> Option<Scheme> {
    let mut basic = None;
    for challenge in challenges.iter().filter_map(|text| http_auth::parse_challenges(text).ok()).flatten() {
        let find = |name: &str| {
            let found = challenge.params.iter().find(|(key, _)| key.eq_ignore_ascii_case(name));
            found.map(|(_, value)| value.to_unescaped())
        };
        if challenge.scheme.eq_ignore_ascii_case("bearer")
            && let Some(realm) = find("realm")
        {
            return Some(Scheme::Bearer { realm, service: find("service") });
        }
        if challenge.scheme.eq_ignore_ascii_case("basic") {
            basic = Some(Scheme::Basic);
        }
    }
    basic
}

/// Returns the token in an answer, and the seconds that it is valid.
fn token_in(bytes: &[u8]) -> Option<(String, u64)> {
    let answer: TokenAnswer = serde_json::from_slice(bytes).ok()?;
    let token = answer.token.filter(|token| !token.is_empty()).or(answer.access_token)?;
    (!token.is_empty()).then(|| (token, answer.expires_in.unwrap_or(USUAL).min(LONGEST)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn token_is_preferred_to_a_password() {
        let bearer = r#"Bearer realm="https://auth.example/token",service="reg \"one\"",scope="repository:a:pull""#;
        let wanted = Scheme::Bearer { realm: "https://auth.example/token".into(), service: Some("reg \"one\"".into()) };
        assert_eq!(scheme_in(&[r#"Basic realm="x""#, bearer]), Some(wanted.clone()));
        assert_eq!(scheme_in(&[&format!(r#"{bearer}, Basic realm="x""#)]), Some(wanted));
        assert_eq!(scheme_in(&[r#"BASIC realm="x""#]), Some(Scheme::Basic));
    }

    #[test]
    fn challenges_that_nobody_can_answer_are_none() {
        for challenge in ["", "Bearer", r#"Bearer service="x""#, "Negotiate", "\"", r#"Digest realm="x", nonce="y""#] {
            assert_eq!(scheme_in(&[challenge]), None, "{challenge}");
        }
    }

    #[test]
    fn token_has_either_name_and_an_end() {
        assert_eq!(token_in(br#"{"token": "t", "expires_in": 300}"#), Some(("t".into(), 300)));
        assert_eq!(token_in(br#"{"access_token": "t"}"#), Some(("t".into(), 60)));
        assert_eq!(
            token_in(br#"{"token": "", "access_token": "t", "expires_in": 18446744073709551615}"#),
            Some(("t".into(), 3600))
        );
        for none in [&b"{}"[..], br#"{"token": ""}"#, b"no", br#"{"token": 1}"#, br#"{"token": "t", "expires_in": -1}"#]
        {
            assert_eq!(token_in(none), None);
        }
    }
}
