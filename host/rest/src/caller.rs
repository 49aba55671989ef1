//! Authenticates callers: the API server reviews each token. Source: docs/opsjob-rest.md 2.

use std::collections::BTreeMap;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::{Duration, Instant};

use governor::{DefaultDirectRateLimiter, Quota, RateLimiter};
use http::HeaderMap;
use http::header::AUTHORIZATION;
use k8s_openapi::api::authentication::v1::{TokenReview, TokenReviewSpec};
use kube::api::{Api, PostParams};
use kube::{Client, core::ObjectMeta};
use moka::Expiry;
use moka::future::Cache;
use oarlock_core::object::quota_key::QuotaKey;
use oarlock_core::ops_job::refusal::{Code, OpsRefusal};
use serde_json::Number;
use sha2::{Digest as _, Sha256};

use crate::errors::of_request;
use crate::issuer::{Issuer, Signed, TokenClaims, TokenParts};
use crate::rates::{Rate, RateQuotas, TooOften, whole_seconds};

/// How long the answer for a valid token is cached, and the answer for an invalid one.
const GOOD: Duration = Duration::from_secs(60);
const BAD: Duration = Duration::from_secs(5);
/// How long a token that was valid keeps its share of the reviews.
const KNOWN: Duration = Duration::from_secs(24 * 3_600);
/// The most tokens whose answers are cached.
const TOKENS: u64 = 10_000;
/// The most bytes of a token.
const TOKEN: usize = 16 * 1024;
/// The most reviews a second. Tokens with an unknown signer have this limit twice: for tokens that were valid before, and for all others.
/// Tokens of the cluster's issuer also have it twice: for accounts with few reviews, and for all others.
const REVIEWS: NonZeroU32 = NonZeroU32::new(25).expect("above 0");
/// The most reviews a second of tokens from other issuers.
const OF_OTHER_ISSUERS: NonZeroU32 = NonZeroU32::new(5).expect("above 0");
/// The rate limits for reviews of one account and of one namespace, with their bursts.
const OF_ACCOUNT: Quota = Quota::per_second(OF_OTHER_ISSUERS).allow_burst(REVIEWS);
const OF_NAMESPACE: Quota =
    Quota::per_second(NonZeroU32::new(10).expect("above 0")).allow_burst(NonZeroU32::new(50).expect("above 0"));

/// A user or account that the API server has authenticated.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Caller {
    /// The user name.
    pub name: String,
    /// The UID. Empty if there is none.
    pub uid: String,
    /// The groups of the user.
    pub groups: Vec<String>,
    /// The extra fields that the authenticator of the API server adds.
    pub extra: BTreeMap<String, Vec<String>>,
}

impl Caller {
    /// Returns the UID, or the name if there is no UID.
    pub fn id(&self) -> &str {
        if self.uid.is_empty() { &self.name } else { &self.uid }
    }
}

type TokenDigest = [u8; 32];
/// The caller, or why the token was refused.
type Reviewed = Result<Arc<Caller>, Arc<str>>;

/// The facts that a token claims about itself.
#[derive(Clone, Copy)]
struct TokenForm {
    /// The time until the token expires.
    lasts: Duration,
    /// True if the audience of the token is this API.
    is_for_us: bool,
}

/// The API server's answer for a token, and how long the answer is cached.
#[derive(Clone)]
struct ReviewAnswer {
    reviewed: Reviewed,
    kept: Duration,
}

struct OfAnswer;

impl Expiry<TokenDigest, ReviewAnswer> for OfAnswer {
    fn expire_after_create(&self, _key: &TokenDigest, answer: &ReviewAnswer, _at: Instant) -> Option<Duration> {
        Some(answer.kept)
    }
}

/// Authenticates requests by their tokens.
pub(crate) struct Callers {
    client: Client,
    audience: String,
    /// True if tokens for the API server itself are accepted too.
    takes_cluster_tokens: bool,
    answers: Cache<TokenDigest, ReviewAnswer>,
    known: Cache<TokenDigest, ()>,
    issuer: Issuer,
    /// The rate limits for reviews of tokens that the issuer has signed, by account.
    signed: Rate,
    for_known: DefaultDirectRateLimiter,
    for_others: DefaultDirectRateLimiter,
    of_other_issuers: DefaultDirectRateLimiter,
}

impl Callers {
    pub(crate) fn new(client: Client, audience: String, takes_cluster_tokens: bool) -> Self {
        let quota = |of: NonZeroU32| RateLimiter::direct(Quota::per_second(of));
        let signed = RateQuotas { of_name: OF_ACCOUNT, of_key: OF_NAMESPACE, of_all: Quota::per_second(REVIEWS) };
        Self {
            issuer: Issuer::of(client.clone()),
            signed: Rate::of(&signed),
            client,
            audience,
            takes_cluster_tokens,
            answers: Cache::builder().max_capacity(TOKENS).expire_after(OfAnswer).build(),
            known: Cache::builder().max_capacity(TOKENS).time_to_live(KNOWN).build(),
            for_known: quota(REVIEWS),
            for_others: quota(REVIEWS),
            of_other_issuers: quota(OF_OTHER_ISSUERS),
        }
    }

    /// Returns the caller of a request with these headers, at this second.
    pub(crate) async fn of(&self, headers: &HeaderMap, now: i64) -> Result<Arc<Caller>, OpsRefusal> {
        self.of_token(token(headers)?, now).await
    }

    /// Returns the caller with this token, at this second.
    pub(crate) async fn of_token(&self, token: &str, now: i64) -> Result<Arc<Caller>, OpsRefusal> {
        let parts = TokenParts::of(token).ok_or_else(|| unknown("the token is no JSON Web Token"))?;
        // A token expires by the clock of the API server.
        let now = now.saturating_add(self.issuer.clock_is_ahead().await);
        let form = self.check_form(&parts.claims, now)?;
        let digest: TokenDigest = Sha256::digest(token).into();
        // Concurrent requests with the same token share one review.
        let answer = self.answers.try_get_with(digest, self.review(&parts, &digest, form)).await;
        let answer = answer.map_err(|refusal| OpsRefusal::clone(&refusal))?;
        answer.reviewed.map_err(|why| unknown(&why))
    }

    /// Checks the claims of a token. The host asks the API server only about well-formed tokens.
    fn check_form(&self, claims: &TokenClaims, now: i64) -> Result<TokenForm, OpsRefusal> {
        let is_for_us = claims.is_for(&self.audience);
        if !self.takes_cluster_tokens && !is_for_us {
            let own = &self.audience;
            let fix = format!("the token is not for the audience {own}: kubectl create token NAME --audience {own}");
            return Err(unknown(&fix));
        }
        let lasts = match claims.exp.as_ref().and_then(Number::as_i64) {
            Some(expires) if expires <= now => return Err(unknown("the token has expired")),
            Some(expires) => u64::try_from(expires.saturating_sub(now)).unwrap_or(0),
            None => GOOD.as_secs(),
        };
        Ok(TokenForm { lasts: Duration::from_secs(lasts), is_for_us })
    }

    /// Checks that a token deserves a review, and that its rate limit allows one.
    async fn check_worth(&self, parts: &TokenParts<'_>, digest: &TokenDigest) -> Result<(), OpsRefusal> {
        let has_room = match self.issuer.has_signed(parts).await {
            Signed::No => {
                let message = "no key of the API server has signed the token; if the key is new, try again in 10 s";
                return Err(unknown(message));
            }
            Signed::ByAnother if !self.takes_cluster_tokens => {
                return Err(unknown("the token has another issuer than the API server"));
            }
            Signed::Yes => return self.check_account(parts).await,
            Signed::ByAnother => {
                self.known.contains_key(digest) && self.for_known.check().is_ok()
                    || self.of_other_issuers.check().is_ok()
            }
            Signed::Unknown => {
                self.known.contains_key(digest) && self.for_known.check().is_ok() || self.for_others.check().is_ok()
            }
        };
        if has_room { Ok(()) } else { Err(too_many(Code::Unreachable, "new tokens at once", Duration::ZERO)) }
    }

    /// Checks the rate limit for an account whose token is signed by the cluster's issuer.
    async fn check_account(&self, parts: &TokenParts<'_>) -> Result<(), OpsRefusal> {
        let account = &parts.claims.sub;
        let key = QuotaKey::of(account);
        self.signed.take(account, &key).await.map_err(|refused| match refused {
            TooOften::Name(wait) => too_many(Code::TooMany, &format!("new tokens of {account} at once"), wait),
            TooOften::Key(wait) => too_many(Code::TooMany, &format!("new tokens of {key} at once"), wait),
            TooOften::All(wait) => too_many(Code::Unreachable, "new tokens at once", wait),
        })
    }

    async fn review(
        &self,
        parts: &TokenParts<'_>,
        digest: &TokenDigest,
        form: TokenForm,
    ) -> Result<ReviewAnswer, OpsRefusal> {
        self.check_worth(parts, digest).await?;
        // Any other token is for the API server itself, and is reviewed as such.
        let audiences = form.is_for_us.then(|| vec![self.audience.clone()]);
        let spec = TokenReviewSpec { token: Some(parts.whole.to_owned()), audiences };
        let review = TokenReview { metadata: ObjectMeta::default(), spec, status: None };
        let api: Api<TokenReview> = Api::all(self.client.clone());
        let review = api.create(&PostParams::default(), &review).await;
        let status = review.map_err(|error| of_request(&error, "review a token"))?.status.unwrap_or_default();
        let user = status.user.filter(|_| status.authenticated == Some(true));
        // An API server that does not support audiences returns none: it has reviewed the token for itself.
        let is_for_us = !form.is_for_us || status.audiences.iter().flatten().any(|one| *one == self.audience);
        let Some((user, name)) =
            user.filter(|_| is_for_us).and_then(|user| user.username.clone().map(|name| (user, name)))
        else {
            let why = status.error.unwrap_or_else(|| "the API server does not know the token".to_owned());
            return Ok(ReviewAnswer { reviewed: Err(why.into()), kept: BAD });
        };
        self.known.insert(*digest, ()).await;
        let caller = Caller {
            name,
            uid: user.uid.unwrap_or_default(),
            groups: user.groups.unwrap_or_default(),
            extra: user.extra.unwrap_or_default(),
        };
        Ok(ReviewAnswer { reviewed: Ok(Arc::new(caller)), kept: GOOD.min(form.lasts) })
    }
}

fn too_many(code: Code, what: &str, wait: Duration) -> OpsRefusal {
    let seconds = whole_seconds(wait);
    OpsRefusal::new(code, format!("too many {what}; try again in {seconds} s")).after(seconds)
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

#[cfg(test)]
mod tests {
    use base64::Engine as _;
    use base64::engine::general_purpose::URL_SAFE_NO_PAD;
    use serde_json::{Value, json};

    use super::*;
    use crate::issuer::tests::{NAME, Pen, Server};

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
    fn of_a_token_that_nobody_has_checked_only_the_claims_that_count_are_kept() {
        let part = |text: &str| URL_SAFE_NO_PAD.encode(text);
        let deep = format!("{}{}", "[".repeat(120), "]".repeat(120));
        let claims = format!(r#"{{"aud": {{}}, "a": [{deep}], "exp": 1.5, "sub": "s"}}"#);
        let token = |audiences: &str| {
            format!("{}.{}.AAAA", part(r#"{"kid": "x", "b": [{}]}"#), part(&claims.replace("{}", audiences)))
        };
        let many = format!("[{}\"last\"]", "\"x\",".repeat(1_000));
        for (audiences, is_ours) in
            [("\"ours\"", true), ("[\"theirs\", \"ours\"]", true), (&many, false), ("[]", false)]
        {
            let token = token(audiences);
            assert_eq!(TokenParts::of(&token).unwrap().claims.is_for("ours"), is_ours, "{audiences}");
        }
        for wrong in ["7", "{\"ours\": 1}", "[[\"ours\"]]"] {
            assert!(TokenParts::of(&token(wrong)).is_none(), "{wrong}");
        }
        assert!(size_of::<TokenParts<'_>>() < 512);
    }

    fn headers(token: &str) -> HeaderMap {
        HeaderMap::from_iter([(AUTHORIZATION, format!("Bearer {token}").parse().unwrap())])
    }

    /// Returns the claims of a token of an account. The token expires an hour after `now`.
    fn claims(account: &str, now: i64) -> Value {
        json!({"iss": NAME, "aud": ["oarlock"], "sub": account, "exp": now + 3_600, "jti": random()})
    }

    fn random() -> u64 {
        use std::hash::{BuildHasher as _, RandomState};
        RandomState::new().hash_one(0)
    }

    async fn status(callers: &Callers, token: &str, now: i64) -> u16 {
        callers.of(&headers(token), now).await.map_or_else(|refusal| refusal.code.status(), |_| 200)
    }

    fn callers(server: &Server, takes_cluster_tokens: bool) -> Callers {
        Callers::new(server.client(), "oarlock".to_owned(), takes_cluster_tokens)
    }

    #[tokio::test(start_paused = true)]
    async fn tokens_that_somebody_made_up_cost_no_question_and_keep_nobody_out() {
        let (pen, forger) = (Pen::of("a"), Pen::of("a"));
        let server = Server::with(&[&pen]);
        let callers = callers(&server, false);
        for number in 0..30 {
            for _ in 0..40 {
                assert_eq!(status(&callers, &forger.token(&claims("system:serviceaccount:a:b", 0)), 0).await, 401);
            }
            let good = pen.token(&claims(&format!("system:serviceaccount:team-{number}:b"), 0));
            assert_eq!(status(&callers, &good, 0).await, 200, "{number}");
        }
        assert_eq!(server.reviews(), 30);
    }

    #[tokio::test(start_paused = true)]
    async fn a_token_of_another_issuer_costs_nothing_unless_such_tokens_are_taken_and_then_little() {
        let (pen, other) = (Pen::of("a"), Pen::of("b"));
        let server = Server::with(&[&pen]);
        let strange =
            || other.token(&json!({"iss": "https://login", "aud": ["oarlock"], "sub": "x", "exp": 9, "jti": random()}));
        let strict = callers(&server, false);
        assert_eq!((status(&strict, &strange(), 0).await, server.reviews()), (401, 0));
        let open = callers(&server, true);
        let mut answers = Vec::new();
        for _ in 0..100 {
            answers.push(status(&open, &strange(), 0).await);
        }
        assert!(answers.starts_with(&[200, 200]) && answers.contains(&503), "{answers:?}");
        assert!(server.reviews() < 60, "{}", server.reviews());
        assert_eq!(
            status(&open, &pen.token(&claims("system:serviceaccount:a:b", 0)), 0).await,
            200,
            "others have their own"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn an_account_with_very_many_tokens_has_no_more_questions_than_its_namespace() {
        let pen = Pen::of("a");
        let server = Server::with(&[&pen]);
        let callers = callers(&server, false);
        let mut answers = Vec::new();
        for number in 0..2_000 {
            let account = format!("system:serviceaccount:team:a{}", number % 100);
            answers.push(status(&callers, &pen.token(&claims(&account, 0)), 0).await);
        }
        let admitted = answers.iter().filter(|answer| **answer == 200).count();
        assert!(answers.contains(&429) && server.reviews() == admitted && admitted < 1_500, "{admitted}");
        assert_eq!(status(&callers, &pen.token(&claims("system:serviceaccount:calm:a", 0)), 0).await, 200);
    }

    #[tokio::test(start_paused = true)]
    async fn a_clock_that_is_ten_minutes_off_neither_ends_a_token_early_nor_late() {
        for ahead in [-600, 0, 600] {
            let pen = Pen::of("a");
            let server = Server::with(&[&pen]);
            server.set_ahead(ahead);
            let callers = callers(&server, false);
            let here = k8s_openapi::jiff::Timestamp::now().as_second();
            let there = here + ahead;
            let ends_in =
                |seconds: i64| pen.token(&json!({"iss": NAME, "aud": ["oarlock"], "sub": "a", "exp": there + seconds}));
            assert_eq!(status(&callers, &ends_in(60), here).await, 200, "{ahead}");
            assert_eq!((status(&callers, &ends_in(-60), here).await, server.reviews()), (401, 1), "{ahead}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn without_the_keys_tokens_are_asked_about_as_before() {
        let server = Server::default();
        let callers = callers(&server, false);
        let token = || Pen::of("a").token(&claims("system:serviceaccount:a:b", 0));
        assert_eq!((status(&callers, &token(), 0).await, server.reviews()), (200, 1));
        let mut answers = Vec::new();
        for _ in 0..200 {
            answers.push(status(&callers, &token(), 0).await);
        }
        assert!(answers.contains(&503), "{answers:?}");
    }
}
