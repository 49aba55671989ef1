//! Who asks: the API server says it of a token. Source: docs/opsjob-rest.md 2.

use std::collections::BTreeMap;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::{Duration, Instant};

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use governor::{DefaultDirectRateLimiter, Quota, RateLimiter};
use http::HeaderMap;
use http::header::AUTHORIZATION;
use k8s_openapi::api::authentication::v1::{TokenReview, TokenReviewSpec};
use kube::api::{Api, PostParams};
use kube::{Client, core::ObjectMeta};
use moka::Expiry;
use moka::future::Cache;
use oarlock_core::ops_job::refusal::{Code, OpsRefusal};
use serde_json::Value;
use sha2::{Digest as _, Sha256};

use crate::errors::of_request;

/// For how long an answer counts.
const GOOD: Duration = Duration::from_secs(60);
const BAD: Duration = Duration::from_secs(5);
/// For how long a token that was good has its share of the reviews.
const KNOWN: Duration = Duration::from_secs(24 * 3_600);
/// Most tokens whose answer is kept.
const TOKENS: u64 = 10_000;
/// Longest token.
const TOKEN: usize = 16 * 1024;
/// Reviews a second, of tokens that were good before and of all others.
const REVIEWS: NonZeroU32 = NonZeroU32::new(25).expect("above 0");

/// Somebody whom the API server knows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Caller {
    /// The user name.
    pub name: String,
    /// The UID; empty where there is none.
    pub uid: String,
    /// Its groups.
    pub groups: Vec<String>,
    /// What else is known.
    pub extra: BTreeMap<String, Vec<String>>,
}

impl Caller {
    /// The UID, or else the name.
    pub fn id(&self) -> &str {
        if self.uid.is_empty() { &self.name } else { &self.uid }
    }
}

type TokenDigest = [u8; 32];
/// A caller, or why there is none.
type Reviewed = Result<Arc<Caller>, Arc<str>>;

/// What a token says of itself.
#[derive(Clone, Copy)]
struct TokenForm {
    /// How long it is good for.
    lasts: Duration,
    /// Its audience is this API.
    is_for_us: bool,
}

/// What the API server says of a token, and for how long that counts.
#[derive(Clone)]
struct Answer {
    reviewed: Reviewed,
    kept: Duration,
}

struct OfAnswer;

impl Expiry<TokenDigest, Answer> for OfAnswer {
    fn expire_after_create(&self, _key: &TokenDigest, answer: &Answer, _at: Instant) -> Option<Duration> {
        Some(answer.kept)
    }
}

/// Finds out who asks.
pub(crate) struct Callers {
    client: Client,
    audience: String,
    /// Tokens for the API server itself are taken too.
    takes_cluster_tokens: bool,
    answers: Cache<TokenDigest, Answer>,
    known: Cache<TokenDigest, ()>,
    for_known: DefaultDirectRateLimiter,
    for_others: DefaultDirectRateLimiter,
}

impl Callers {
    pub(crate) fn new(client: Client, audience: String, takes_cluster_tokens: bool) -> Self {
        let quota = || RateLimiter::direct(Quota::per_second(REVIEWS));
        Self {
            client,
            audience,
            takes_cluster_tokens,
            answers: Cache::builder().max_capacity(TOKENS).expire_after(OfAnswer).build(),
            known: Cache::builder().max_capacity(TOKENS).time_to_live(KNOWN).build(),
            for_known: quota(),
            for_others: quota(),
        }
    }

    /// Who sent these headers, at this second.
    pub(crate) async fn of(&self, headers: &HeaderMap, now: i64) -> Result<Arc<Caller>, OpsRefusal> {
        let token = token(headers)?;
        let form = self.check_form(token, now)?;
        let digest: TokenDigest = Sha256::digest(token).into();
        // Requests that come together with one token ask once.
        let answer = self.answers.try_get_with(digest, self.review(token, &digest, form)).await;
        let answer = answer.map_err(|refusal| OpsRefusal::clone(&refusal))?;
        answer.reviewed.map_err(|why| unknown(&why))
    }

    /// What a token says of itself: rubbish is not worth a question.
    fn check_form(&self, token: &str, now: i64) -> Result<TokenForm, OpsRefusal> {
        let claims = claims(token).ok_or_else(|| unknown("the token is no JSON Web Token"))?;
        let audiences = match claims.get("aud") {
            Some(Value::String(one)) => vec![one.as_str()],
            Some(Value::Array(all)) => all.iter().filter_map(Value::as_str).collect(),
            _ => Vec::new(),
        };
        let is_for_us = audiences.contains(&self.audience.as_str());
        if !self.takes_cluster_tokens && !is_for_us {
            let own = &self.audience;
            let fix = format!("the token is not for the audience {own}: kubectl create token NAME --audience {own}");
            return Err(unknown(&fix));
        }
        let lasts = match claims.get("exp").and_then(Value::as_i64) {
            Some(expires) if expires <= now => return Err(unknown("the token has expired")),
            Some(expires) => u64::try_from(expires.saturating_sub(now)).unwrap_or(0),
            None => GOOD.as_secs(),
        };
        Ok(TokenForm { lasts: Duration::from_secs(lasts), is_for_us })
    }

    async fn review(&self, token: &str, digest: &TokenDigest, form: TokenForm) -> Result<Answer, OpsRefusal> {
        let is_known = self.known.contains_key(digest);
        let has_room = is_known && self.for_known.check().is_ok() || self.for_others.check().is_ok();
        if !has_room {
            let words = "too many new tokens at once; try again in a second";
            return Err(OpsRefusal::new(Code::Unreachable, words).after(1));
        }
        // Any other one is for the API server itself, and taken for that.
        let audiences = form.is_for_us.then(|| vec![self.audience.clone()]);
        let spec = TokenReviewSpec { token: Some(token.to_owned()), audiences };
        let review = TokenReview { metadata: ObjectMeta::default(), spec, status: None };
        let api: Api<TokenReview> = Api::all(self.client.clone());
        let review = api.create(&PostParams::default(), &review).await;
        let status = review.map_err(|error| of_request(&error, "review a token"))?.status.unwrap_or_default();
        let user = status.user.filter(|_| status.authenticated == Some(true));
        // An API server that knows no audiences says none, and took the token for itself.
        let is_for_us = !form.is_for_us || status.audiences.iter().flatten().any(|one| *one == self.audience);
        let Some((user, name)) =
            user.filter(|_| is_for_us).and_then(|user| user.username.clone().map(|name| (user, name)))
        else {
            let why = status.error.unwrap_or_else(|| "the API server does not know the token".to_owned());
            return Ok(Answer { reviewed: Err(why.into()), kept: BAD });
        };
        self.known.insert(*digest, ()).await;
        let caller = Caller {
            name,
            uid: user.uid.unwrap_or_default(),
            groups: user.groups.unwrap_or_default(),
            extra: user.extra.unwrap_or_default(),
        };
        Ok(Answer { reviewed: Ok(Arc::new(caller)), kept: GOOD.min(form.lasts) })
    }
}

fn unknown(why: &str) -> OpsRefusal {
    OpsRefusal::new(Code::Unauthenticated, format!("not authenticated: {why}"))
}

fn token(headers: &HeaderMap) -> Result<&str, OpsRefusal> {
    let mut all = headers.get_all(AUTHORIZATION).iter();
    let missing = || unknown("a header `Authorization: Bearer TOKEN` is needed");
    let (Some(given), None) = (all.next(), all.next()) else { return Err(missing()) };
    let given = given.to_str().map_err(|_| missing())?;
    let (scheme, token) = given.split_once(' ').ok_or_else(missing)?;
    let token = token.trim();
    if !scheme.eq_ignore_ascii_case("bearer") || token.is_empty() || token.len() > TOKEN {
        return Err(missing());
    }
    Ok(token)
}

fn claims(token: &str) -> Option<Value> {
    let mut parts = token.split('.');
    let (_, payload, _) = (parts.next()?, parts.next()?, parts.next().filter(|signature| !signature.is_empty())?);
    let payload = URL_SAFE_NO_PAD.decode(payload).ok().filter(|_| parts.next().is_none())?;
    serde_json::from_slice(&payload).ok().filter(Value::is_object)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_token_is_taken_from_the_one_header_that_is_for_it() {
        let of = |values: &[&str]| {
            let mut headers = HeaderMap::new();
            for value in values {
                headers.append(AUTHORIZATION, value.parse().unwrap());
            }
            token(&headers).map(str::to_owned).ok()
        };
        assert_eq!(of(&["Bearer a.b.c"]).as_deref(), Some("a.b.c"));
        assert_eq!(of(&["bearer  x"]).as_deref(), Some("x"));
        for wrong in [&[][..], &["Basic x"], &["Bearer"], &["Bearer "], &["Bearer a", "Bearer b"]] {
            assert_eq!(of(wrong), None, "{wrong:?}");
        }
    }

    #[test]
    fn only_what_has_the_form_of_a_token_is_read() {
        let part = URL_SAFE_NO_PAD.encode(json!({"aud": ["oarlock"]}).to_string());
        assert_eq!(claims(&format!("e30.{part}.x")).unwrap()["aud"][0], "oarlock");
        for wrong in ["", "a.b", "a.b.c.d", "a.%.c", &format!("e30.{part}."), "e30.W10.x"] {
            assert_eq!(claims(wrong), None, "{wrong}");
        }
    }
}
