//! Converts replies and refusals to HTTP responses.

use std::convert::Infallible;

use bytes::Bytes;
use futures::StreamExt as _;
use http::{HeaderValue, Response, StatusCode, header};
use http_body::Frame;
use http_body_util::{BodyExt, Full, StreamBody, combinators::UnsyncBoxBody};
use serde_json::Value;

use crate::server::{status::Refusal, watch};
use crate::verbs::log::Log;

/// Body of a response: one chunk, or the stream of a watch or a log.
pub type ApiBody = UnsyncBoxBody<Bytes, Infallible>;

/// A successful answer.
pub(crate) enum Reply {
    /// One JSON document.
    Json(StatusCode, Bytes),
    /// A document with its own media type.
    Document(&'static str, Bytes),
    /// A stream of watch events.
    Watch(Box<watch::Watch>),
    /// The log of a container.
    Log(Box<Log>),
    /// A reply with `Warning` headers for people.
    Warned(Box<Reply>, Vec<String>),
}

impl Reply {
    pub(crate) fn value(code: StatusCode, value: &Value) -> Self {
        Self::Json(code, Bytes::from(serde_json::to_vec(value).unwrap_or_default()))
    }

    /// Returns the same reply with warnings, if there are any.
    pub(crate) fn warned(self, warnings: Vec<String>) -> Self {
        if warnings.is_empty() { self } else { Self::Warned(Box::new(self), warnings) }
    }

    pub(crate) fn ok(value: &Value) -> Self {
        Self::value(StatusCode::OK, value)
    }
}

pub(crate) fn from_result(result: Result<Reply, Refusal>) -> Response<ApiBody> {
    match result {
        Ok(reply) => from_reply(reply),
        Err(refused) => refusal(&refused),
    }
}

fn from_reply(reply: Reply) -> Response<ApiBody> {
    match reply {
        Reply::Json(code, body) => document(code, "application/json", body),
        Reply::Document(media, body) => document(StatusCode::OK, media, body),
        Reply::Watch(watch) => {
            let body = StreamBody::new(watch::frames(*watch)).boxed_unsync();
            typed(Response::new(body), "application/json")
        }
        Reply::Log(log) => {
            let body = StreamBody::new(log.pieces().map(|piece| Ok(Frame::data(piece)))).boxed_unsync();
            typed(Response::new(body), "text/plain")
        }
        Reply::Warned(reply, warnings) => {
            let mut response = from_reply(*reply);
            for warning in warnings {
                let text = warning.replace(['\\', '"'], "'");
                if let Ok(value) = HeaderValue::from_str(&format!("299 - \"{text}\"")) {
                    response.headers_mut().append(header::WARNING, value);
                }
            }
            response
        }
    }
}

/// Returns the response for a refusal.
pub(crate) fn refusal(refusal: &Refusal) -> Response<ApiBody> {
    let code = StatusCode::from_u16(refusal.code).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let body = serde_json::to_vec(&refusal.to_value()).unwrap_or_default();
    let mut response = document(code, "application/json", Bytes::from(body));
    if let Some(after) = refusal.details.get("retryAfterSeconds").and_then(Value::as_u64) {
        response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from(after));
    }
    response
}

fn document(code: StatusCode, media: &'static str, body: Bytes) -> Response<ApiBody> {
    let mut response = Response::new(Full::new(body).boxed_unsync());
    *response.status_mut() = code;
    typed(response, media)
}

fn typed(mut response: Response<ApiBody>, media: &'static str) -> Response<ApiBody> {
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(media));
    response
}
