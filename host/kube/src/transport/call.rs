//! One request to the API server, which is sent once, timed and counted.
//!
//! A [`RequestError`] distinguishes refusals of the API server from requests whose outcome is unknown. This module repeats no request,
//! because the caller must decide on a fresh view.

use std::error::Error;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use futures::TryStreamExt;
use futures::stream::BoxStream;
use http::header::{ACCEPT_ENCODING, DATE, HeaderMap, HeaderValue, RETRY_AFTER, USER_AGENT};
use http_body_util::BodyExt;
use hyper_util::client::legacy;
use kube::Client;
use kube::client::Body;
use kube::core::Status;
use serde::de::DeserializeOwned;
use tokio::time::{Instant, timeout};

use crate::error_chain::error_chain;
use crate::transport::clock::ServerClock;
use crate::transport::requests::{RequestLabels, Requests};

/// The longest wait for the answer to a request. After this wait, the outcome of the request is unknown (docs/operationjob.md 10).
pub const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);
/// The longest time that a reply can make the host wait, in seconds. API servers ask for 1 to 10 seconds.
pub(crate) const LONGEST_RETRY_AFTER: u32 = 300;

/// The bytes of a whole reply or of a piece of a stream. A whole list is never read into them.
pub(crate) type Bytes = Vec<u8>;

const AGENT: HeaderValue = HeaderValue::from_static(concat!("oarlock/", env!("CARGO_PKG_VERSION")));

/// The sender of requests. It is cheap to clone.
#[derive(Clone)]
pub(crate) struct Transport {
    pub(crate) client: Client,
    pub(crate) clock: ServerClock,
    pub(crate) requests: Arc<Requests>,
    /// The longest wait for a reply. After this wait, the outcome of the request is unknown.
    pub(crate) timeout: Duration,
}

/// One request and the labels of its count.
pub(crate) struct ApiCall<'a> {
    pub(crate) verb: &'static str,
    pub(crate) resource: &'a str,
    pub(crate) request: Result<http::Request<Vec<u8>>, kube::core::request::Error>,
}

/// The API server's answer to a refused request.
#[derive(Clone, Debug)]
pub(crate) struct Refusal {
    /// The HTTP status.
    pub(crate) code: u16,
    /// The Status object of the reply, or a Status with the text of the reply as its message.
    pub(crate) status: Status,
    /// True if the reply is a Status object.
    pub(crate) is_status: bool,
    /// The value of `Retry-After`, in seconds.
    pub(crate) retry_after: Option<u32>,
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Status { reason, message, .. } = &self.status;
        write!(f, "the API server answered {} {reason}", self.code)?;
        if message != reason {
            write!(f, ": {message}")?;
        }
        if self.code == 401 {
            write!(f, "; the user of the kubeconfig, or the service account, has no credentials that it accepts")?;
        }
        Ok(())
    }
}

/// The reason why there is no good reply.
#[derive(Debug, thiserror::Error)]
pub(crate) enum RequestError {
    #[error("the request could not be built and was not sent")]
    Build(#[source] kube::core::request::Error),
    #[error("{0}")]
    Refused(Box<Refusal>),
    #[error("no reply came within {0:?}")]
    TimedOut(Duration),
    #[error("no connection to the API server could be opened")]
    NotConnected(#[source] Box<kube::Error>),
    #[error("the connection to the API server broke")]
    Broken(#[source] Box<kube::Error>),
    #[error("the reply is not what the API promises")]
    Unreadable(#[source] serde_json::Error),
}

impl RequestError {
    /// Returns true if the API server answered with this HTTP status.
    pub(crate) fn is(&self, code: u16) -> bool {
        matches!(self, Self::Refused(refusal) if refusal.code == code)
    }
}

impl From<kube::Error> for RequestError {
    /// Distinguishes a request that was never sent from a request whose connection broke.
    fn from(error: kube::Error) -> Self {
        let mut cause = Some(&error as &(dyn Error + 'static));
        let mut not_connected = false;
        while let Some(error) = cause {
            not_connected |= error.downcast_ref().is_some_and(legacy::Error::is_connect);
            cause = error.source();
        }
        if not_connected {
            tracing::debug!(error = error_chain(&error), "no connection to the API server could be opened");
            return Self::NotConnected(Box::new(error));
        }
        Self::Broken(Box::new(error))
    }
}

impl Transport {
    /// Sends the request and reads the whole reply.
    pub(crate) async fn send(&self, call: ApiCall<'_>) -> Result<Bytes, RequestError> {
        let request = call.request.map_err(RequestError::Build)?;
        let begun = Instant::now();
        let sent = self.clock.local();
        let reply = timeout(self.timeout, self.exchange(request)).await;
        let outcome = match reply {
            Err(_) => Err(RequestError::TimedOut(self.timeout)),
            Ok(Err(error)) => Err(error.into()),
            Ok(Ok((code, headers, body))) => {
                self.learn(&headers, sent);
                judge(code, &headers, body).map(|body| (code, body))
            }
        };
        let code = outcome.as_ref().map(|(code, _)| *code);
        self.requests.note(labels(call.verb, call.resource, code), begun.elapsed());
        outcome.map(|(_, body)| body)
    }

    /// Sends the request as [`Transport::send`] does and reads the reply as JSON.
    pub(crate) async fn fetch<T: DeserializeOwned>(&self, call: ApiCall<'_>) -> Result<T, RequestError> {
        let reply = self.send(call).await?;
        serde_json::from_slice(&reply).map_err(RequestError::Unreadable)
    }

    /// Opens a list or a watch, whose text the caller reads while it arrives. The request timeout limits only the time until the reply
    /// begins.
    pub(crate) async fn open(
        &self,
        call: ApiCall<'_>,
    ) -> Result<BoxStream<'static, Result<Bytes, kube::Error>>, RequestError> {
        let mut request = call.request.map_err(RequestError::Build)?;
        request.headers_mut().insert(ACCEPT_ENCODING, HeaderValue::from_static("identity"));
        let begun = Instant::now();
        let sent = self.clock.local();
        let opened = timeout(self.timeout, self.start(request)).await;
        let outcome = match opened {
            Err(_) => Err(RequestError::TimedOut(self.timeout)),
            Ok(Err(error)) => Err(error.into()),
            Ok(Ok(opened)) => Ok(opened),
        };
        let outcome = match outcome {
            Ok((code, headers, body)) if code < 400 => {
                self.learn(&headers, sent);
                Ok((code, body))
            }
            Ok((code, headers, body)) => {
                let text = timeout(self.timeout, body.collect()).await;
                let text = text.ok().and_then(Result::ok).map(|b| b.to_bytes().to_vec()).unwrap_or_default();
                Err(judge(code, &headers, text).err().unwrap_or(RequestError::TimedOut(self.timeout)))
            }
            Err(error) => Err(error),
        };
        let code = outcome.as_ref().map(|(code, _)| *code);
        self.requests.note(labels(call.verb, call.resource, code), begun.elapsed());
        let (_, body) = outcome?;
        Ok(Box::pin(body.into_data_stream().map_ok(|chunk| chunk.to_vec())))
    }

    async fn exchange(&self, request: http::Request<Vec<u8>>) -> Result<(u16, HeaderMap, Bytes), kube::Error> {
        let (code, headers, body) = self.start(request).await?;
        let body = body.collect().await?.to_bytes();
        Ok((code, headers, body.into()))
    }

    async fn start(&self, mut request: http::Request<Vec<u8>>) -> Result<(u16, HeaderMap, Body), kube::Error> {
        request.headers_mut().insert(USER_AGENT, AGENT);
        let (parts, body) = self.client.send(request.map(Body::from)).await?.into_parts();
        Ok((parts.status.as_u16(), parts.headers, body))
    }

    fn learn(&self, headers: &HeaderMap, sent: k8s_openapi::jiff::Timestamp) {
        if let Some(date) = headers.get(DATE).and_then(|date| date.to_str().ok()) {
            self.clock.learn(date, sent);
        }
    }
}

fn labels(verb: &'static str, resource: &str, code: Result<u16, &RequestError>) -> RequestLabels {
    let code = match code {
        Ok(code) => code.to_string(),
        Err(RequestError::Refused(refusal)) => refusal.code.to_string(),
        Err(RequestError::TimedOut(_)) => "timeout".to_owned(),
        Err(RequestError::NotConnected(_)) => "unconnected".to_owned(),
        Err(RequestError::Broken(_) | RequestError::Build(_) | RequestError::Unreadable(_)) => "broken".to_owned(),
    };
    RequestLabels { resource: resource.to_owned(), verb, code }
}

fn judge(code: u16, headers: &HeaderMap, body: Bytes) -> Result<Bytes, RequestError> {
    if code < 400 {
        return Ok(body);
    }
    let status = serde_json::from_slice::<Status>(&body);
    let is_status = status.as_ref().is_ok_and(|status| status.code != 0);
    let status = status.unwrap_or_else(|_| {
        let text = String::from_utf8_lossy(&body);
        Status::failure(text.trim().chars().take(256).collect::<String>().as_str(), "")
    });
    let retry_after = headers.get(RETRY_AFTER).and_then(|after| after.to_str().ok()?.parse().ok());
    Err(RequestError::Refused(Box::new(Refusal { code, status, is_status, retry_after })))
}

/// Returns true if the API server refused a read and would refuse it again.
pub(crate) fn refused(error: &RequestError) -> bool {
    matches!(error, RequestError::Refused(refusal) if (400..500).contains(&refusal.code) && ![408, 410, 429].contains(&refusal.code))
}

/// Returns true if the API server said that no object has this name, and not that it does not know the kind.
pub(crate) fn absent(error: &RequestError, name: &str) -> bool {
    match error {
        RequestError::Refused(refusal) if refusal.code == 404 => {
            refusal.status.details.as_ref().is_some_and(|details| details.name == name)
        }
        _ => false,
    }
}

/// Returns the seconds to wait before the next try of a failed request, if the API server names them.
pub(crate) fn asked_to_wait(error: &RequestError) -> Option<u32> {
    if let RequestError::Refused(refusal) = error { retry_after(refusal) } else { None }
}

/// Returns the seconds to wait after a refusal, if the API server names them.
pub(crate) fn retry_after(refusal: &Refusal) -> Option<u32> {
    let named = refusal.status.details.as_ref().map(|details| details.retry_after_seconds);
    named.filter(|seconds| *seconds > 0).or(refusal.retry_after).map(|seconds| seconds.min(LONGEST_RETRY_AFTER))
}

#[cfg(test)]
mod tests {
    use tokio::io::AsyncReadExt;
    use tokio::net::TcpListener;

    use super::*;

    #[test]
    fn a_refusal_is_told_without_repetition_and_missing_credentials_with_what_to_look_at() {
        let refusal = |code, reason: &str, message: &str| {
            let status = Status { reason: reason.to_owned(), message: message.to_owned(), ..Status::default() };
            RequestError::Refused(Box::new(Refusal { code, status, is_status: true, retry_after: None })).to_string()
        };
        assert_eq!(refusal(404, "NotFound", "no p"), "the API server answered 404 NotFound: no p");
        let unauthorized = refusal(401, "Unauthorized", "Unauthorized");
        assert!(unauthorized.starts_with("the API server answered 401 Unauthorized; the user of the kubeconfig"));
    }

    #[tokio::test]
    async fn a_request_that_finds_no_server_was_not_sent_and_one_whose_reply_breaks_off_may_have_been() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let config = kube::Config::new(format!("http://{address}").parse().unwrap());
        let client = Client::try_from(config).unwrap();
        let get = || http::Request::get("/version").body(Body::empty()).unwrap();
        let hang_up = async {
            let (mut connection, _) = listener.accept().await.unwrap();
            connection.read_u8().await.unwrap();
        };
        let (reply, ()) = tokio::join!(client.send(get()), hang_up);
        assert!(matches!(reply.map_err(RequestError::from), Err(RequestError::Broken(_))));
        drop(listener);
        let reply = client.send(get()).await;
        assert!(matches!(reply.map_err(RequestError::from), Err(RequestError::NotConnected(_))));
    }
}
