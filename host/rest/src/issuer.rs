//! Checks token signatures by the keys of the API server. A token with a bad signature needs no review. Source: docs/opsjob-rest.md 2.
//!
//! Only the API server knows whose token it is, and whether the token is still valid. But a signature check costs this process only
//! microseconds, and it rejects invented tokens.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use http::{Request, header};
use k8s_openapi::jiff::fmt::rfc2822;
use kube::Client;
use kube::client::Body;
use parking_lot::RwLock;
use ring::signature::{
    ECDSA_P256_SHA256_FIXED, ECDSA_P384_SHA384_FIXED, EcdsaVerificationAlgorithm, RSA_PKCS1_2048_8192_SHA256,
    RsaPublicKeyComponents, UnparsedPublicKey,
};
use serde::Deserialize;
use serde::de::{DeserializeOwned, Deserializer, IgnoredAny, SeqAccess, Visitor};
use serde_json::{Number, Value};
use tokio::sync::Mutex;
use tokio::time::{Instant, timeout};

/// The paths of the API server for its keys and for its name.
const KEYS: &str = "/openid/v1/jwks";
const ABOUT: &str = "/.well-known/openid-configuration";
/// The shortest time between two reads of the keys. A sender can put any key id into a token, so an unknown id must not cause a read each
/// time.
const AGAIN: Duration = Duration::from_secs(10);
/// The age of the keys from which the next token starts another read in the background.
const OLD: Duration = Duration::from_secs(300);
/// The longest time of one read.
const READ_WITHIN: Duration = Duration::from_secs(5);
/// The most keys that are kept.
const MOST_KEYS: usize = 64;
/// The most audiences of a token that are considered.
const MOST_AUDIENCES: usize = 32;
/// The difference in seconds below which two clocks count as equal.
const SAME_TIME: i64 = 2;

/// The result of checking a token's signature.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Signed {
    /// A key of the issuer has signed the token.
    Yes,
    /// No key of the issuer has signed the token, though the token names this issuer.
    No,
    /// The token names another issuer.
    ByAnother,
    /// The signature cannot be checked: there are no keys, or the type of the key is not supported.
    Unknown,
}

/// A JSON Web Token, split into its parts.
pub(crate) struct TokenParts<'a> {
    /// The whole token.
    pub(crate) whole: &'a str,
    /// The text that is signed.
    pub(crate) signed: &'a str,
    /// The header of the token, which names its key and algorithm.
    header: TokenHeader,
    /// The claims of the token.
    pub(crate) claims: TokenClaims,
    /// The signature of the token.
    pub(crate) signature: Vec<u8>,
}

impl<'a> TokenParts<'a> {
    /// Splits a token. Returns `None` if it is no JSON Web Token.
    pub(crate) fn of(token: &'a str) -> Option<Self> {
        let (signed, signature) = token.rsplit_once('.')?;
        let (header, claims) = signed.split_once('.')?;
        let signature = URL_SAFE_NO_PAD.decode(signature).ok().filter(|signature| !signature.is_empty())?;
        Some(Self { whole: token, signed, header: read_part(header)?, claims: read_part(claims)?, signature })
    }
}

fn read_part<T: DeserializeOwned>(part: &str) -> Option<T> {
    let text = URL_SAFE_NO_PAD.decode(part).ok()?;
    // Serde also reads a struct from a list, so the text has to be an object.
    serde_json::from_slice(&text).ok().filter(|_| text.trim_ascii_start().starts_with(b"{"))
}

/// The header fields of a token that matter. All other fields are skipped, because the sender is not authenticated yet.
#[derive(Default, Deserialize)]
#[serde(default)]
struct TokenHeader {
    kid: String,
    alg: String,
}

/// The claims of a token that matter. All other claims are skipped.
#[derive(Default, Deserialize)]
#[serde(default)]
pub(crate) struct TokenClaims {
    iss: Option<String>,
    /// The name of the account.
    pub(crate) sub: String,
    /// The time at which the token expires, in Unix seconds.
    pub(crate) exp: Option<Number>,
    aud: Audiences,
}

impl TokenClaims {
    /// Returns true if the token is for this audience.
    pub(crate) fn is_for(&self, audience: &str) -> bool {
        self.aud.0.iter().any(|one| one == audience)
    }
}

/// The audiences of a token. The claim is one name or a list of names.
#[derive(Default)]
struct Audiences(Vec<String>);

impl<'de> Deserialize<'de> for Audiences {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        from.deserialize_any(AudiencesVisitor)
    }
}

struct AudiencesVisitor;

impl<'de> Visitor<'de> for AudiencesVisitor {
    type Value = Audiences;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an audience, or a list of them")
    }

    fn visit_str<E>(self, one: &str) -> Result<Audiences, E> {
        Ok(Audiences(vec![one.to_owned()]))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Audiences, A::Error> {
        let mut all = Vec::new();
        while all.len() < MOST_AUDIENCES {
            let Some(one) = list.next_element()? else { return Ok(Audiences(all)) };
            all.push(one);
        }
        while list.next_element::<IgnoredAny>()?.is_some() {}
        Ok(Audiences(all))
    }
}

enum Material {
    Rsa(RsaPublicKeyComponents<Vec<u8>>),
    Curve(&'static EcdsaVerificationAlgorithm, Vec<u8>),
    /// A key of an unsupported type.
    Other,
}

struct Key {
    id: String,
    /// The name of the key's algorithm in token headers.
    algorithm: &'static str,
    material: Material,
}

impl Key {
    fn of(document: &Value) -> Self {
        let text = |field: &str| document.get(field).and_then(Value::as_str).unwrap_or_default();
        let bytes = |field: &str| URL_SAFE_NO_PAD.decode(text(field).trim_end_matches('=')).unwrap_or_default();
        let curve = |size: usize| {
            let (x, y) = (bytes("x"), bytes("y"));
            (x.len() == size && y.len() == size).then(|| [vec![4], x, y].concat())
        };
        let (algorithm, material) = match (text("kty"), text("crv")) {
            ("RSA", _) if (256..=1_024).contains(&bytes("n").len()) => {
                ("RS256", Material::Rsa(RsaPublicKeyComponents { n: bytes("n"), e: bytes("e") }))
            }
            ("EC", "P-256") if let Some(point) = curve(32) => {
                ("ES256", Material::Curve(&ECDSA_P256_SHA256_FIXED, point))
            }
            ("EC", "P-384") if let Some(point) = curve(48) => {
                ("ES384", Material::Curve(&ECDSA_P384_SHA384_FIXED, point))
            }
            _ => ("", Material::Other),
        };
        Self { id: text("kid").to_owned(), algorithm, material }
    }

    fn has_signed(&self, token: &TokenParts<'_>) -> Option<bool> {
        let (message, signature) = (token.signed.as_bytes(), token.signature.as_slice());
        let has = match &self.material {
            Material::Other => return None,
            Material::Rsa(key) => key.verify(&RSA_PKCS1_2048_8192_SHA256, message, signature).is_ok(),
            Material::Curve(curve, point) => UnparsedPublicKey::new(*curve, point).verify(message, signature).is_ok(),
        };
        Some(has && token.header.alg == self.algorithm)
    }
}

/// The keys of the API server, with its issuer name and its clock difference.
struct Keys {
    issuer: String,
    keys: Vec<Key>,
    /// The seconds that the clock of the API server is ahead of the local clock.
    ahead: i64,
    read: Instant,
}

impl Keys {
    /// Checks a token against these keys. Returns `None` if the token names a key that is not here.
    fn signed(&self, token: &TokenParts<'_>) -> Option<Signed> {
        let id = &token.header.kid;
        let mut named = self.keys.iter().filter(|key| id.is_empty() || key.id == *id).peekable();
        named.peek()?;
        let answers: Vec<Option<bool>> = named.map(|key| key.has_signed(token)).collect();
        Some(match () {
            () if answers.contains(&Some(true)) => Signed::Yes,
            () if answers.contains(&None) => Signed::Unknown,
            () => self.of_no_key(token),
        })
    }

    fn of_no_key(&self, token: &TokenParts<'_>) -> Signed {
        match &token.claims.iss {
            Some(issuer) if *issuer != self.issuer => Signed::ByAnother,
            _ => Signed::No,
        }
    }
}

/// The issuer of the cluster's tokens.
#[derive(Clone)]
pub(crate) struct Issuer(Arc<IssuerState>);

struct IssuerState {
    client: Client,
    keys: RwLock<Option<Arc<Keys>>>,
    /// The time of the last attempt to read the keys. The lock is held during a read.
    asked: Mutex<Option<Instant>>,
    /// True once a missing key was logged as a warning.
    is_told: AtomicBool,
}

impl Issuer {
    pub(crate) fn of(client: Client) -> Self {
        Self(Arc::new(IssuerState {
            client,
            keys: RwLock::default(),
            asked: Mutex::default(),
            is_told: AtomicBool::new(false),
        }))
    }

    /// Returns the seconds that the clock of the API server is ahead of the local clock, or 0 if that is unknown.
    pub(crate) async fn clock_is_ahead(&self) -> i64 {
        self.keys().await.map_or(0, |keys| keys.ahead)
    }

    /// Checks that the issuer has signed a token. For an unknown key, it reads the keys again, unless it has just done so.
    pub(crate) async fn has_signed(&self, token: &TokenParts<'_>) -> Signed {
        let Some(keys) = self.keys().await else { return Signed::Unknown };
        if let Some(signed) = keys.signed(token) {
            return signed;
        }
        self.read_again().await;
        let keys = self.0.keys.read().clone().unwrap_or(keys);
        keys.signed(token).unwrap_or_else(|| keys.of_no_key(token))
    }

    /// Returns the known keys. Reads them if there are none yet, and refreshes old keys in the background.
    async fn keys(&self) -> Option<Arc<Keys>> {
        let known = self.0.keys.read().clone();
        match known {
            None => {
                self.read_again().await;
                self.0.keys.read().clone()
            }
            Some(keys) => {
                if keys.read.elapsed() > OLD && self.0.asked.try_lock().is_ok() {
                    let own = self.clone();
                    tokio::spawn(async move { own.read_again().await });
                }
                Some(keys)
            }
        }
    }

    /// Reads the keys, unless the last attempt was just now. If the read fails, the known keys stay.
    async fn read_again(&self) {
        let mut asked = self.0.asked.lock().await;
        if asked.is_some_and(|at| at.elapsed() < AGAIN) {
            return;
        }
        *asked = Some(Instant::now());
        let read = timeout(READ_WITHIN, self.read()).await.unwrap_or_else(|_| Err("no answer in time".to_owned()));
        match read {
            Ok(keys) => *self.0.keys.write() = Some(Arc::new(keys)),
            Err(why) if self.0.keys.read().is_some() => {
                tracing::warn!(error = why, "failed to read the keys of tokens again; the old ones stay");
            }
            Err(why) if !self.0.is_told.swap(true, Ordering::Relaxed) => tracing::warn!(
                error = why,
                "failed to read the keys of tokens: {KEYS} and {ABOUT} of the API server; made-up tokens cost it a question each until \
                 this process may read them (ClusterRole system:service-account-issuer-discovery)"
            ),
            Err(why) => tracing::debug!(error = why, "failed to read the keys of tokens"),
        }
    }

    async fn read(&self) -> Result<Keys, String> {
        let ((about, ahead), (keys, _)) = futures::try_join!(self.document(ABOUT), self.document(KEYS))?;
        let issuer = about.get("issuer").and_then(Value::as_str).unwrap_or_default().to_owned();
        let all = keys.get("keys").and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
        let keys: Vec<Key> = all.iter().take(MOST_KEYS).map(Key::of).collect();
        if issuer.is_empty() || keys.is_empty() {
            return Err("the API server names no issuer, or no key".to_owned());
        }
        Ok(Keys { issuer, keys, ahead, read: Instant::now() })
    }

    /// Returns a document, and the seconds that the clock of its server is ahead.
    async fn document(&self, path: &str) -> Result<(Value, i64), String> {
        let request = Request::get(path).body(Body::empty()).map_err(|error| error.to_string())?;
        let answer = self.0.client.send(request).await.map_err(|error| error.to_string())?;
        let (head, body) = answer.into_parts();
        if !head.status.is_success() {
            return Err(format!("{path}: {}", head.status));
        }
        let date = head.headers.get(header::DATE).and_then(|date| rfc2822::parse(date.to_str().ok()?).ok());
        let now = k8s_openapi::jiff::Timestamp::now().as_second();
        let ahead = date.map_or(0, |date| date.timestamp().as_second().saturating_sub(now));
        let ahead = if ahead.abs() > SAME_TIME { ahead } else { 0 };
        let bytes = body.collect_bytes().await.map_err(|error| error.to_string())?;
        let document = serde_json::from_slice(&bytes).map_err(|error| format!("{path}: {error}"))?;
        Ok((document, ahead))
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use std::convert::Infallible;
    use std::sync::atomic::{AtomicI64, AtomicUsize};

    use http::Response;
    use k8s_openapi::jiff::{SignedDuration, Timestamp};
    use ring::rand::SystemRandom;
    use ring::signature::{ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, KeyPair as _};
    use serde_json::json;

    use super::*;

    pub(crate) const NAME: &str = "https://kubernetes.default.svc";

    /// A signing key of an issuer.
    pub(crate) struct Pen {
        id: &'static str,
        pair: EcdsaKeyPair,
    }

    impl Pen {
        pub(crate) fn of(id: &'static str) -> Self {
            let (random, curve) = (SystemRandom::new(), &ECDSA_P256_SHA256_FIXED_SIGNING);
            let document = EcdsaKeyPair::generate_pkcs8(curve, &random).unwrap();
            Self { id, pair: EcdsaKeyPair::from_pkcs8(curve, document.as_ref(), &random).unwrap() }
        }

        pub(crate) fn token(&self, claims: &Value) -> String {
            let part = |value: &Value| URL_SAFE_NO_PAD.encode(value.to_string());
            let signed = format!("{}.{}", part(&json!({"alg": "ES256", "kid": self.id})), part(claims));
            let signature = self.pair.sign(&SystemRandom::new(), signed.as_bytes()).unwrap();
            format!("{signed}.{}", URL_SAFE_NO_PAD.encode(signature))
        }

        fn document(&self) -> Value {
            let point = self.pair.public_key().as_ref();
            let half = |bytes: &[u8]| URL_SAFE_NO_PAD.encode(bytes);
            json!({"kty": "EC", "crv": "P-256", "kid": self.id, "x": half(&point[1..33]), "y": half(&point[33..])})
        }
    }

    /// An API server that serves keys and accepts every token in reviews.
    #[derive(Clone, Default)]
    pub(crate) struct Server(Arc<State>);

    #[derive(Default)]
    struct State {
        keys: parking_lot::Mutex<Option<Vec<Value>>>,
        reads: AtomicUsize,
        reviews: AtomicUsize,
        /// The seconds that the clock of the server is ahead.
        ahead: AtomicI64,
    }

    impl Server {
        pub(crate) fn with(pens: &[&Pen]) -> Self {
            let server = Self::default();
            server.turn(Some(pens));
            server
        }

        /// Sets the keys that the server has from now on. With `None`, it does not serve its keys.
        pub(crate) fn turn(&self, pens: Option<&[&Pen]>) {
            *self.0.keys.lock() = pens.map(|pens| pens.iter().map(|pen| pen.document()).collect());
        }

        pub(crate) fn set_ahead(&self, seconds: i64) {
            self.0.ahead.store(seconds, Ordering::SeqCst);
        }

        pub(crate) fn reviews(&self) -> usize {
            self.0.reviews.load(Ordering::SeqCst)
        }

        pub(crate) fn client(&self) -> Client {
            let own = self.clone();
            let service = tower::service_fn(move |request: Request<Body>| {
                let own = own.clone();
                async move { Ok::<_, Infallible>(own.answer(request).await) }
            });
            Client::new(service, "default")
        }

        async fn answer(&self, request: Request<Body>) -> Response<Body> {
            let keys = self.0.keys.lock().clone();
            let ahead = SignedDuration::from_secs(self.0.ahead.load(Ordering::SeqCst));
            let date = rfc2822::DateTimePrinter::new()
                .timestamp_to_rfc9110_string(&Timestamp::now().checked_add(ahead).unwrap())
                .unwrap();
            let path = request.uri().path().to_owned();
            let (status, document) = match (path.as_str(), keys) {
                (KEYS, Some(keys)) => {
                    self.0.reads.fetch_add(1, Ordering::SeqCst);
                    (200, json!({"keys": keys}))
                }
                (ABOUT, Some(_)) => (200, json!({"issuer": NAME})),
                (KEYS | ABOUT, None) => (403, json!({})),
                _ => (201, self.review(&request.into_body().collect_bytes().await.unwrap())),
            };
            let answer = Response::builder().status(status).header("date", date);
            answer.body(Body::from(document.to_string().into_bytes())).unwrap()
        }

        fn review(&self, body: &[u8]) -> Value {
            self.0.reviews.fetch_add(1, Ordering::SeqCst);
            let mut review: Value = serde_json::from_slice(body).unwrap();
            let token = review["spec"]["token"].as_str().unwrap().to_owned();
            let name = TokenParts::of(&token).unwrap().claims.sub;
            review["status"] = json!({"authenticated": true, "user": {"username": name}, "audiences": ["oarlock"]});
            review
        }
    }

    async fn has_signed(issuer: &Issuer, token: &str) -> Signed {
        issuer.has_signed(&TokenParts::of(token).unwrap()).await
    }

    #[test]
    fn only_what_has_the_form_of_a_token_is_read() {
        let part = URL_SAFE_NO_PAD.encode(json!({"aud": ["oarlock"]}).to_string());
        assert!(TokenParts::of(&format!("e30.{part}.eA")).unwrap().claims.is_for("oarlock"));
        for wrong in ["", "a.b", "a.b.c.d", "a.%.c", &format!("e30.{part}."), "e30.W10.eA", &format!("{part}.{part}.%")]
        {
            assert!(TokenParts::of(wrong).is_none(), "{wrong}");
        }
    }

    #[tokio::test]
    async fn a_token_is_told_from_one_that_somebody_made_up() {
        let (own, foreign) = (Pen::of("a"), Pen::of("a"));
        let issuer = Issuer::of(Server::with(&[&own]).client());
        let claims = json!({"iss": NAME, "sub": "me"});
        let token = own.token(&claims);
        assert_eq!(has_signed(&issuer, &token).await, Signed::Yes);
        assert_eq!(has_signed(&issuer, &foreign.token(&claims)).await, Signed::No);
        let other_claims = own.token(&json!({"iss": NAME, "sub": "you"}));
        let mixed = format!("{}.{}", other_claims.rsplit_once('.').unwrap().0, token.rsplit_once('.').unwrap().1);
        assert_eq!(has_signed(&issuer, &mixed).await, Signed::No);
        for header in [json!({"alg": "none", "kid": "a"}), json!({"alg": "HS256", "kid": "a"}), json!({})] {
            assert_eq!(has_signed(&issuer, &with_header(&token, &header)).await, Signed::No, "{header}");
        }
        assert!(TokenParts::of(&with_header(&token, &json!({"kid": ["a"]}))).is_none(), "a name is a text");
        let elsewhere = json!({"iss": "https://elsewhere", "aud": ["oarlock"], "sub": "me"});
        assert_eq!(has_signed(&issuer, &foreign.token(&elsewhere)).await, Signed::ByAnother);
        assert_eq!(has_signed(&issuer, &Pen::of("b").token(&elsewhere)).await, Signed::ByAnother);
        assert_eq!(
            has_signed(&issuer, &own.token(&elsewhere)).await,
            Signed::Yes,
            "an issuer may have had another name"
        );
    }

    fn with_header(token: &str, header: &Value) -> String {
        format!("{}.{}", URL_SAFE_NO_PAD.encode(header.to_string()), token.split_once('.').unwrap().1)
    }

    /// The example of RFC 7515, appendix A.2.
    #[test]
    fn a_signature_by_rsa_is_checked() {
        let modulus = "ofgWCuLjybRlzo0tZWJjNiuSfb4p4fAkd_wWJcyQoTbji9k0l8W26mPddxHmfHQp-Vaw-4qPCJrcS2mJPMEzP1Pt0Bm4d4QlL-yRT-SFd2lZS-pCgNMs\
            D1W_YpRPEwOWvG6b32690r2jZ47soMZo9wGzjb_7OMg0LOL-bSf63kpaSHSXndS5z5rexMdbBYUsLA9e-KXBdQOS-UTo7WTBEMa2R2CapHg665xsmtdV\
            MTBQY4uDZlxvb3qCo5ZwKh9kG4LT6_I5IhlJH7aGhyxXFvUK-DWNmoudF8NAco9_h9iaGNj8q2ethFkMLs91kzk2PAcDTW9gb54h4FRWyuXpoQ";
        let token = "eyJhbGciOiJSUzI1NiJ9.eyJpc3MiOiJqb2UiLA0KICJleHAiOjEzMDA4MTkzODAsDQogImh0dHA6Ly9leGFtcGxlLmNvbS9pc19yb290Ijp0cnVlfQ.\
            cC4hiUPoj9Eetdgtv3hF80EGrhuB__dzERat0XF9g2VtQgr9PJbu3XOiZj5RZmh7AAuHIm4Bh-0Qc_lF5YKt_O8W2Fp5jujGbds9uJdbF9CUAr7t1dnZcAcQjbKB\
            YNX4BAynRFdiuB--f_nZLgrnbyTyWzO75vRK5h6xBArLIARNPvkSjtQBMHlb1L07Qe7K0GarZRmB_eSN9383LcOLn6_dO--xi12jzDwusC-eOkHWEsqtFZESc6Bf\
            I7noOPqvhJ1phCnvWh6IeYI2w9QOYEUipUTI8np6LbgGY9Fs98rqVt5AXLIhWkWywlVmtVrBp0igcN_IoypGlUPQGe77Rw";
        let key = Key::of(&json!({"kty": "RSA", "n": modulus, "e": "AQAB"}));
        assert_eq!(key.has_signed(&TokenParts::of(token).unwrap()), Some(true));
        let changed = token.replacen("eyJpc3Mi", "eyJpc3Mj", 1);
        assert_ne!(TokenParts::of(&changed).map(|token| key.has_signed(&token)), Some(Some(true)));
        let small = Key::of(&json!({"kty": "RSA", "n": "AQAB", "e": "AQAB"}));
        assert_eq!(small.has_signed(&TokenParts::of(token).unwrap()), None, "no key that is known here");
    }

    #[tokio::test(start_paused = true)]
    async fn keys_that_turn_are_read_again_at_most_every_ten_seconds_and_the_old_ones_stay() {
        let (old, new) = (Pen::of("old"), Pen::of("new"));
        let server = Server::with(&[&old]);
        let issuer = Issuer::of(server.client());
        let claims = json!({"iss": NAME});
        assert_eq!(has_signed(&issuer, &old.token(&claims)).await, Signed::Yes);
        server.turn(Some(&[&old, &new]));
        assert_eq!(has_signed(&issuer, &new.token(&claims)).await, Signed::No, "it was read just now");
        tokio::time::advance(AGAIN).await;
        assert_eq!(has_signed(&issuer, &new.token(&claims)).await, Signed::Yes);
        assert_eq!(has_signed(&issuer, &old.token(&claims)).await, Signed::Yes);
        for made_up in 0..1_000 {
            assert_eq!(
                has_signed(&issuer, &Pen::of("made up").token(&json!({"iss": NAME, "jti": made_up}))).await,
                Signed::No
            );
        }
        assert_eq!(server.0.reads.load(Ordering::SeqCst), 2);
        // The API server serves no keys for a while.
        server.turn(None);
        tokio::time::advance(AGAIN).await;
        assert_eq!(has_signed(&issuer, &Pen::of("another").token(&claims)).await, Signed::No);
        assert_eq!(has_signed(&issuer, &new.token(&claims)).await, Signed::Yes, "what was known stays known");
        server.turn(Some(&[&new]));
        tokio::time::advance(AGAIN).await;
        assert_eq!(has_signed(&issuer, &Pen::of("another").token(&claims)).await, Signed::No);
        assert_eq!(has_signed(&issuer, &old.token(&claims)).await, Signed::No, "it is none of the keys any more");
    }

    #[tokio::test(start_paused = true)]
    async fn keys_that_are_old_are_read_again_beside_the_next_token() {
        let (old, new) = (Pen::of("old"), Pen::of("new"));
        let server = Server::with(&[&old]);
        let issuer = Issuer::of(server.client());
        let token = old.token(&json!({"iss": NAME}));
        assert_eq!(has_signed(&issuer, &token).await, Signed::Yes);
        server.turn(Some(&[&new]));
        tokio::time::advance(OLD + AGAIN).await;
        assert_eq!(has_signed(&issuer, &token).await, Signed::Yes, "nobody waits");
        while has_signed(&issuer, &token).await == Signed::Yes {
            tokio::task::yield_now().await;
        }
    }

    #[tokio::test(start_paused = true)]
    async fn without_keys_nobody_knows_and_they_are_asked_for_again_later() {
        let pen = Pen::of("a");
        let server = Server::default();
        let issuer = Issuer::of(server.client());
        let token = pen.token(&json!({"iss": NAME}));
        assert_eq!(has_signed(&issuer, &token).await, Signed::Unknown);
        server.turn(Some(&[&pen]));
        assert_eq!(has_signed(&issuer, &token).await, Signed::Unknown, "it asked just now");
        tokio::time::advance(AGAIN).await;
        assert_eq!(has_signed(&issuer, &token).await, Signed::Yes);
    }
}
