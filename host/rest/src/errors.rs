//! Turns refusals into HTTP answers.

use axum::body::Body;
use http::{HeaderValue, Response, header};
use oarlock_core::ops_job::refusal::{Code, OpsRefusal};
use oarlock_core::requests::reads::ReadFailed;
use oarlock_history::HistoryFailed;
use serde::Serialize;
use utoipa::ToSchema;

/// The body of every answer that reports an error.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct ErrorBody {
    /// The error code, for programs.
    #[schema(pattern = "^Primus\\.[0-9]{5}$", example = "Primus.00002")]
    error_code: &'static str,
    /// The cause, for people. The message names the wrong field or object.
    error_message: String,
}

/// Returns a refusal as an HTTP answer.
pub(crate) fn answer(refusal: &OpsRefusal) -> Response<Body> {
    let body = ErrorBody { error_code: refusal.code.word(), error_message: refusal.message.clone() };
    let text = serde_json::to_string(&body).unwrap_or_default();
    let mut response = Response::new(Body::from(text));
    *response.status_mut() = http::StatusCode::from_u16(refusal.code.status()).unwrap_or_default();
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    if refusal.code == Code::Unauthenticated {
        headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
    }
    if let Some(seconds) = refusal.retry_after {
        headers.insert(header::RETRY_AFTER, HeaderValue::from(seconds));
    }
    response.extensions_mut().insert(refusal.code);
    response
}

/// Returns an answer with the error body of this API, if it is an error without such a body.
pub(crate) fn with_body(response: Response<Body>) -> Response<Body> {
    let status = response.status();
    // Pages have their own form.
    let has_form = |form: &HeaderValue| form == "application/json" || form.as_bytes().starts_with(b"text/html");
    let has_form = response.headers().get(header::CONTENT_TYPE).is_some_and(has_form);
    if has_form || !(status.is_client_error() || status.is_server_error()) {
        return response;
    }
    let code = Code::ALL.into_iter().find(|code| code.status() == status.as_u16());
    let code = code.unwrap_or(if status.is_client_error() { Code::BadRequest } else { Code::Internal });
    let message = status.canonical_reason().unwrap_or("refused").to_lowercase();
    let mut answer = answer(&OpsRefusal::new(code, message));
    *answer.status_mut() = status;
    answer.extensions_mut().insert(code);
    for (name, value) in response.headers() {
        if !matches!(*name, header::CONTENT_LENGTH | header::CONTENT_TYPE) {
            answer.headers_mut().insert(name, value.clone());
        }
    }
    answer
}

/// Returns the refusal for a read that failed.
pub(crate) fn of_read(failed: &ReadFailed) -> OpsRefusal {
    let refusal = OpsRefusal::new(Code::Unreachable, failed.message.clone());
    refusal.after(failed.retry_after.map_or(1, u64::from))
}

/// Returns the refusal for a request that the history did not answer.
pub(crate) fn of_history(failed: &HistoryFailed) -> OpsRefusal {
    // The message of a database is for admins only.
    tracing::warn!(error = %failed, "the history has no answer");
    OpsRefusal::new(Code::Unreachable, "the history does not answer").after(1)
}

/// Returns the refusal for a request of the host to the API server that failed. `what` names the operation.
pub(crate) fn of_request(error: &kube::Error, what: &str) -> OpsRefusal {
    let kube::Error::Api(status) = error else {
        tracing::warn!(error = %error, "failed to {what}");
        return OpsRefusal::new(Code::Unreachable, format!("failed to {what}: the API server does not answer"))
            .after(1);
    };
    let message = format!("failed to {what}: {}", status.message);
    match status.code {
        400 | 422 => OpsRefusal::bad(message),
        413 => OpsRefusal::new(Code::TooLarge, message),
        429 => OpsRefusal::new(Code::TooMany, message).after(1),
        500 if status.message.contains("request is too large") => OpsRefusal::new(Code::TooLarge, message),
        // The host lacks the right here, not the caller. So the host's admin has to fix it.
        403 => OpsRefusal::new(
            Code::Unreachable,
            format!("{message}; a cluster admin has to apply `oarlock manifests --ops --rest`"),
        ),
        _ => OpsRefusal::new(Code::Unreachable, message).after(1),
    }
}
