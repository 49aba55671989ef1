//! Sends one request and returns its answer, after the redirects that are allowed.
//!
//! It turns an overload of the registry into a failure that may pass, with the registry's words. It must not send `Authorization` to
//! another host than the intended one. Messages must show no more of a URL than its host and path.

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
use crate::said::{self, RegistryWords};
use crate::timeouts::Timeouts;

/// The most redirects of one request.
const REDIRECTS: usize = 5;
/// The longest time of a small answer, as a multiple of the longest silence.
const SMALL_ANSWER: u32 = 5;
/// The longest wait for the body of a refusal.
const WORDS_WITHIN: Duration = Duration::from_secs(5);

/// A request that can be sent again.
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

/// The head of an answer whose body is not read yet.
#[derive(Debug)]
pub(crate) struct HttpAnswer {
    response: Response,
    /// The request as messages show it.
    pub(crate) shown: String,
    /// True if the answer comes from the requested host, not from the target of a redirect.
    pub(crate) is_direct: bool,
    /// True if the answer cannot have a body.
    is_head: bool,
    /// The credentials that were sent. No message may repeat them.
    sent: Option<HeaderValue>,
}

impl HttpAnswer {
    /// Returns true if this answers a `HEAD` request, so that it has no words.
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

    /// Returns the credentials that were sent, with and without their scheme.
    fn sent(&self) -> impl Iterator<Item = String> {
        let sent = self.sent.as_ref().and_then(|sent| sent.to_str().ok());
        let bare = sent.and_then(|sent| sent.split_once(' ')).map(|(_, bare)| bare);
        [sent, bare].into_iter().flatten().map(str::to_owned)
    }

    /// Returns a text with the request and the status of the answer.
    pub(crate) fn describe(&self) -> String {
        format!("{} is answered with {}", self.shown, self.status())
    }
}

/// The settings for requests to one registry.
#[derive(Clone, Debug)]
pub(crate) struct Exchange {
    pub(crate) clients: Clients,
    pub(crate) hosts: Hosts,
    pub(crate) timeouts: Timeouts,
    /// The fault to report if this registry fails: pull or push.
    pub(crate) side: Fault,
    /// The texts that no message may repeat: a password in all its forms.
    pub(crate) secrets: Arc<[String]>,
}

impl Exchange {
    pub(crate) fn refuse(&self, message: impl Into<String>) -> CopyFailed {
        CopyFailed::for_good(self.side, message)
    }

    /// Checks a URL that the registry names.
    pub(crate) fn check(&self, url: &Url, purpose: NamedFor) -> Result<(), CopyFailed> {
        self.hosts.check(url, purpose).map_err(|message| self.refuse(message))
    }

    /// Sends a request and follows its redirects.
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
                return Err(self.refuse(format!("{}: an upload is not redirected", answer.describe())));
            }
            url = self.named_in(&answer, &url, NamedFor::Redirect)?;
            if !is_same(&url, &call.url) {
                authorization = None;
            }
        }
        Err(self.refuse(format!("{} is redirected more than {REDIRECTS} times", shown(&call.method, &call.url))))
    }

    /// Returns the URL in the header `Location` of an answer from `from`.
    pub(crate) fn named_in(&self, answer: &HttpAnswer, from: &Url, purpose: NamedFor) -> Result<Url, CopyFailed> {
        let named = answer.header(LOCATION.as_str()).and_then(|text| from.join(text).ok());
        let url = named.ok_or_else(|| self.refuse(format!("{} without a place to go to", answer.describe())))?;
        self.check(&url, purpose)?;
        Ok(url)
    }

    /// Sends a request once. `stream` is a body that can be sent only once. `longer` extends the time limit for the head of the answer.
    pub(crate) async fn once(
        &self,
        call: HttpCall,
        stream: Option<Body>,
        longer: Duration,
    ) -> Result<HttpAnswer, CopyFailed> {
        let HttpCall { method, url, headers, body } = call;
        let (shown, is_head) = (shown(&method, &url), method == Method::HEAD);
        let sent = headers.get(AUTHORIZATION).cloned();
        // The sender of the stream limits the time of this answer.
        let wait = if stream.is_some() { Duration::MAX } else { self.timeouts.head.saturating_add(longer) };
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

    /// Returns all secrets that a message about this answer must not repeat.
    pub(crate) fn secrets_of(&self, answer: &HttpAnswer) -> Vec<String> {
        answer.sent().chain(self.secrets.iter().cloned()).collect()
    }

    /// Reads the words of a refusal and returns its failure.
    pub(crate) async fn refused(&self, answer: &mut HttpAnswer) -> CopyFailed {
        let said = self.said(answer).await;
        self.refused_with(answer, &said)
    }

    /// Returns the failure of a refusal whose words are already read.
    pub(crate) fn refused_with(&self, answer: &HttpAnswer, said: &RegistryWords) -> CopyFailed {
        let after = answer.header(RETRY_AFTER.as_str()).and_then(|text| text.trim().parse().ok());
        let message = said.after(&answer.describe());
        let failed = if is_overload(answer.status()) || said.is_later() {
            CopyFailed::for_now(self.side, message).after(after.map(Duration::from_secs))
        } else {
            self.refuse(message)
        };
        failed.without_words(answer.is_head)
    }

    /// Reads the words at the beginning of a body. Returns no words if the body is empty, broken or slow.
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
        let _in_time = timeout(self.timeouts.stall.min(WORDS_WITHIN), read).await;
        RegistryWords::read(&body, &secrets)
    }

    /// Returns the next bytes of an answer.
    pub(crate) async fn chunk(&self, answer: &mut HttpAnswer) -> Result<Option<Bytes>, CopyFailed> {
        match timeout(self.timeouts.stall, answer.response.chunk()).await {
            Ok(read) => read.map_err(|error| self.broken(&answer.shown, &error)),
            Err(_) => Err(self.silent(&answer.shown, self.timeouts.stall)),
        }
    }

    /// Returns the whole body of a small answer.
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
        let wait = self.timeouts.stall.saturating_mul(SMALL_ANSWER);
        match timeout(wait, whole).await {
            Ok(read) => read.map(|()| bytes),
            Err(_) => Err(CopyFailed::for_now(self.side, format!("an answer is not whole after {} s", wait.as_secs()))),
        }
    }

    pub(crate) fn silent(&self, shown: &str, wait: Duration) -> CopyFailed {
        CopyFailed::for_now(self.side, format!("{shown} is not answered within {} s", wait.as_secs()))
    }

    /// Returns the failure of a broken connection. Only a TLS error or an invalid request is permanent.
    fn broken(&self, shown: &str, error: &reqwest::Error) -> CopyFailed {
        let (mut cause, mut is_tls): (&dyn Error, bool) = (error, false);
        while let Some(next) = cause.source() {
            is_tls |= is_of_tls(next);
            cause = next;
        }
        // The outermost error contains the whole URL, so messages use the innermost one.
        let message =
            if error.source().is_some() { cause.to_string() } else { "the request cannot be made".to_owned() };
        let message = format!("{shown} fails: {message}");
        if is_tls || error.is_builder() {
            return CopyFailed::for_good(self.side, message);
        }
        CopyFailed::for_now(self.side, message)
    }
}

/// Returns true if an error comes from TLS. An I/O error may wrap a TLS error that is not among its sources.
fn is_of_tls(error: &(dyn Error + 'static)) -> bool {
    let within = error.downcast_ref::<io::Error>().and_then(io::Error::get_ref);
    error.is::<rustls::Error>() || within.is_some_and(|within| is_of_tls(within))
}

/// Returns true if the status asks the client to retry later.
fn is_overload(status: StatusCode) -> bool {
    status.is_server_error() || matches!(status, StatusCode::TOO_MANY_REQUESTS | StatusCode::REQUEST_TIMEOUT)
}

fn is_redirect(status: StatusCode) -> bool {
    matches!(status.as_u16(), 301 | 302 | 303 | 307 | 308)
}

/// Returns a request as messages show it: method, host and path.
pub(crate) fn shown(method: &Method, url: &Url) -> String {
    let path: String = url.path().chars().take(256).collect();
    format!("{method} {}{path}", host_of(url))
}
