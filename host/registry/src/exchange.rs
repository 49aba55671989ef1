//! One request and its answer, through the redirects that are allowed.
//!
//! Takes a call; yields an answer that is neither an overload nor a redirect, or why there is none, in the registry's own words. May not send `Authorization` to another host than the
//! one it is for, nor say more of an address than its host and path.

use std::error::Error;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use reqwest::header::{AUTHORIZATION, CONTENT_LENGTH, HeaderMap, HeaderValue, LOCATION, RETRY_AFTER};
use reqwest::{Body, Method, Response, StatusCode, Url};
use tokio::time::timeout;

use crate::clients::Clients;
use crate::failed::{CopyFailed, Fault};
use crate::hosts::{Hosts, NamedFor, host_of, is_same};
use crate::patience::Patience;
use crate::said::{self, RegistryWords};

/// Most redirects of one request.
const REDIRECTS: usize = 5;
/// Most times the longest silence that a whole small answer may take.
const SMALL_ANSWER: u32 = 5;
/// Most time that the words of a refusal may take to come.
const WORDS_WITHIN: Duration = Duration::from_secs(5);

/// A request that can be sent more than once.
#[derive(Clone, Debug)]
pub(crate) struct HttpCall {
    pub(crate) method: Method,
    pub(crate) url: Url,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
}

impl HttpCall {
    pub(crate) fn new(method: Method, url: Url) -> Self {
        Self { method, url, headers: HeaderMap::new(), body: Bytes::new() }
    }

    fn may_be_redirected(&self) -> bool {
        self.method == Method::GET || self.method == Method::HEAD
    }
}

/// The head of an answer, with a body that is still to be read.
#[derive(Debug)]
pub(crate) struct HttpAnswer {
    response: Response,
    /// The request that it answers, for words.
    pub(crate) shown: String,
    /// Whether the host that was asked answers, and not one that it redirects to.
    pub(crate) is_direct: bool,
    /// True if the answer can have no body.
    is_head: bool,
    /// The credentials that the request carried, which no message may repeat.
    sent: Option<HeaderValue>,
}

impl HttpAnswer {
    /// Returns true for an answer to `HEAD`, which has no words.
    pub(crate) fn is_head(&self) -> bool {
        self.is_head
    }

    pub(crate) fn status(&self) -> StatusCode {
        self.response.status()
    }

    pub(crate) fn headers(&self) -> &HeaderMap {
        self.response.headers()
    }

    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers().get(name).and_then(|value| value.to_str().ok())
    }

    pub(crate) fn length(&self) -> Option<u64> {
        self.header(CONTENT_LENGTH.as_str()).and_then(|text| text.parse().ok())
    }

    /// Returns the credentials that the request carried: a token with its scheme, and without it.
    fn sent(&self) -> impl Iterator<Item = String> {
        let sent = self.sent.as_ref().and_then(|sent| sent.to_str().ok());
        let bare = sent.and_then(|sent| sent.split_once(' ')).map(|(_, bare)| bare);
        [sent, bare].into_iter().flatten().map(str::to_owned)
    }

    /// What it says, in words.
    pub(crate) fn words(&self) -> String {
        format!("{} is answered with {}", self.shown, self.status())
    }
}

/// How one registry is talked to.
#[derive(Clone, Debug)]
pub(crate) struct Exchange {
    pub(crate) clients: Clients,
    pub(crate) hosts: Hosts,
    pub(crate) patience: Patience,
    /// What fails where this registry fails.
    pub(crate) side: Fault,
    /// Texts that no words repeat: a password in both of its forms.
    pub(crate) secrets: Arc<[String]>,
}

impl Exchange {
    pub(crate) fn refuse(&self, words: impl Into<String>) -> CopyFailed {
        CopyFailed::for_good(self.side, words)
    }

    /// Checks an address that the registry names.
    pub(crate) fn check(&self, url: &Url, purpose: NamedFor) -> Result<(), CopyFailed> {
        self.hosts.check(url, purpose).map_err(|words| self.refuse(words))
    }

    /// Sends a call, and follows redirects of it.
    pub(crate) async fn follow(
        &self,
        call: &HttpCall,
        mut authorization: Option<HeaderValue>,
    ) -> Result<HttpAnswer, CopyFailed> {
        let mut url = call.url.clone();
        for _ in 0..=REDIRECTS {
            let mut headers = call.headers.clone();
            if let Some(value) = authorization.clone() {
                headers.insert(AUTHORIZATION, value);
            }
            let sent = HttpCall { url: url.clone(), headers, ..call.clone() };
            let mut answer = self.once(sent, None, Duration::ZERO).await?;
            answer.is_direct = is_same(&url, &call.url);
            if !is_redirect(answer.status()) {
                return Ok(answer);
            }
            if !call.may_be_redirected() {
                return Err(self.refuse(format!("{}: an upload is not redirected", answer.words())));
            }
            url = self.named_in(&answer, &url, NamedFor::Redirect)?;
            if !is_same(&url, &call.url) {
                authorization = None;
            }
        }
        Err(self.refuse(format!("{} is redirected more than {REDIRECTS} times", shown(&call.method, &call.url))))
    }

    /// The address in the header `Location` of an answer from `from`.
    pub(crate) fn named_in(&self, answer: &HttpAnswer, from: &Url, purpose: NamedFor) -> Result<Url, CopyFailed> {
        let named = answer.header(LOCATION.as_str()).and_then(|text| from.join(text).ok());
        let url = named.ok_or_else(|| self.refuse(format!("{} without a place to go to", answer.words())))?;
        self.check(&url, purpose)?;
        Ok(url)
    }

    /// Sends a request once. `stream` is a body that is there once, `longer` the time that its head may take beyond the usual.
    pub(crate) async fn once(
        &self,
        call: HttpCall,
        stream: Option<Body>,
        longer: Duration,
    ) -> Result<HttpAnswer, CopyFailed> {
        let HttpCall { method, url, headers, body } = call;
        let (shown, is_head) = (shown(&method, &url), method == Method::HEAD);
        let sent = headers.get(AUTHORIZATION).cloned();
        // An answer to a stream is awaited by who sends the stream.
        let wait = if stream.is_some() { Duration::MAX } else { self.patience.head.saturating_add(longer) };
        let has_body = method != Method::GET && method != Method::HEAD;
        let mut request = self.clients.of(&url).request(method, url).headers(headers);
        if let Some(stream) = stream {
            request = request.body(stream);
        } else if has_body {
            request = request.body(body);
        }
        let response = match timeout(wait, request.send()).await {
            Ok(answered) => answered.map_err(|error| self.broken(&shown, &error))?,
            Err(_) => return Err(self.silent(&shown, wait)),
        };
        let mut answer = HttpAnswer { response, shown, is_direct: true, is_head, sent };
        if is_overload(answer.status()) { Err(self.refused(&mut answer).await) } else { Ok(answer) }
    }

    /// All that the words of an answer may not repeat.
    pub(crate) fn secrets_of(&self, answer: &HttpAnswer) -> Vec<String> {
        answer.sent().chain(self.secrets.iter().cloned()).collect()
    }

    /// Returns the failure that an answer of refusal means, with its words.
    pub(crate) async fn refused(&self, answer: &mut HttpAnswer) -> CopyFailed {
        let said = self.said(answer).await;
        self.refused_with(answer, &said)
    }

    /// The same of an answer whose words were read.
    pub(crate) fn refused_with(&self, answer: &HttpAnswer, said: &RegistryWords) -> CopyFailed {
        let after = answer.header(RETRY_AFTER.as_str()).and_then(|text| text.trim().parse().ok());
        let words = said.after(&answer.words());
        let failed = if is_overload(answer.status()) || said.is_later() {
            CopyFailed::for_now(self.side, words).after(after.map(Duration::from_secs))
        } else {
            self.refuse(words)
        };
        failed.without_words(answer.is_head)
    }

    /// The words in the beginning of a body, as far as it comes soon. Nothing is wrong with one that has none.
    pub(crate) async fn said(&self, answer: &mut HttpAnswer) -> RegistryWords {
        let (mut body, secrets) = (Vec::new(), self.secrets_of(answer));
        let read = async {
            while body.len() < said::MOST
                && let Ok(Some(chunk)) = answer.response.chunk().await
            {
                let room = said::MOST.saturating_sub(body.len()).min(chunk.len());
                body.extend_from_slice(chunk.get(..room).unwrap_or_default());
            }
        };
        let _in_time = timeout(self.patience.stall.min(WORDS_WITHIN), read).await;
        RegistryWords::read(&body, &secrets)
    }

    /// The next bytes of an answer.
    pub(crate) async fn chunk(&self, answer: &mut HttpAnswer) -> Result<Option<Bytes>, CopyFailed> {
        match timeout(self.patience.stall, answer.response.chunk()).await {
            Ok(read) => read.map_err(|error| self.broken(&answer.shown, &error)),
            Err(_) => Err(self.silent(&answer.shown, self.patience.stall)),
        }
    }

    /// The whole body of an answer that is small.
    pub(crate) async fn read(&self, answer: &mut HttpAnswer, most: usize) -> Result<Vec<u8>, CopyFailed> {
        let too_much = format!("{} is answered with more than {} KiB", answer.shown, most / 1024);
        if answer.length().is_some_and(|length| length > most as u64) {
            return Err(self.refuse(too_much));
        }
        let mut bytes = Vec::new();
        let whole = async {
            while let Some(chunk) = self.chunk(answer).await? {
                if bytes.len().saturating_add(chunk.len()) > most {
                    return Err(self.refuse(too_much));
                }
                bytes.extend_from_slice(&chunk);
            }
            Ok(())
        };
        let wait = self.patience.stall.saturating_mul(SMALL_ANSWER);
        match timeout(wait, whole).await {
            Ok(read) => read.map(|()| bytes),
            Err(_) => Err(CopyFailed::for_now(self.side, format!("an answer is not whole after {} s", wait.as_secs()))),
        }
    }

    pub(crate) fn silent(&self, shown: &str, wait: Duration) -> CopyFailed {
        CopyFailed::for_now(self.side, format!("{shown} is not answered within {} s", wait.as_secs()))
    }

    /// What a connection ended with. Only a certificate is wrong for good.
    fn broken(&self, shown: &str, error: &reqwest::Error) -> CopyFailed {
        let (mut cause, mut is_tls): (&dyn Error, bool) = (error, false);
        while let Some(next) = cause.source() {
            is_tls |= is_of_tls(next);
            cause = next;
        }
        // The outermost names the whole address.
        let words = if error.source().is_some() { cause.to_string() } else { "the request cannot be made".to_owned() };
        let words = format!("{shown} fails: {words}");
        if is_tls || error.is_builder() {
            return CopyFailed::for_good(self.side, words);
        }
        CopyFailed::for_now(self.side, words)
    }
}

/// Whether an error is one of TLS. Errors of a connection hold others that are not among their sources.
fn is_of_tls(error: &(dyn Error + 'static)) -> bool {
    let within = error.downcast_ref::<io::Error>().and_then(io::Error::get_ref);
    error.is::<rustls::Error>() || within.is_some_and(|within| is_of_tls(within))
}

/// Returns true for a status that says to come later.
fn is_overload(status: StatusCode) -> bool {
    status.is_server_error() || matches!(status, StatusCode::TOO_MANY_REQUESTS | StatusCode::REQUEST_TIMEOUT)
}

fn is_redirect(status: StatusCode) -> bool {
    matches!(status.as_u16(), 301 | 302 | 303 | 307 | 308)
}

/// A request in words: method, host and path.
pub(crate) fn shown(method: &Method, url: &Url) -> String {
    let path: String = url.path().chars().take(256).collect();
    format!("{method} {}{path}", host_of(url))
}
