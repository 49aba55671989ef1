//! The forms of all answers.

use axum::body::Body;
use http::{HeaderValue, Response, StatusCode, header};
use oarlock_core::ops_job::refusal::{Code, OpsRefusal};
use oarlock_page::{CONTENT_SECURITY_POLICY, PageContent, PageRefusal, Shell, document, refusal_content};

/// Returns an answer with the headers of all pages. Nobody keeps a copy of it.
pub(crate) fn with_headers(status: StatusCode, body: Body) -> Response<Body> {
    let mut answer = Response::new(body);
    *answer.status_mut() = status;
    let headers = answer.headers_mut();
    headers.insert(header::CONTENT_SECURITY_POLICY, HeaderValue::from_static(CONTENT_SECURITY_POLICY));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    // Without a referrer, a browser would not name the origin of a form.
    headers.insert(header::REFERRER_POLICY, HeaderValue::from_static("same-origin"));
    answer
}

/// Returns an HTML document.
pub(crate) fn html_answer(status: StatusCode, document: String) -> Response<Body> {
    let mut answer = with_headers(status, Body::from(document));
    answer.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("text/html; charset=utf-8"));
    answer
}

/// Returns an answer that leads a browser to an address of this server.
pub(crate) fn redirect(address: &str) -> Response<Body> {
    let mut answer = with_headers(StatusCode::SEE_OTHER, Body::empty());
    if let Ok(address) = HeaderValue::from_str(address) {
        answer.headers_mut().insert(header::LOCATION, address);
    }
    answer
}

/// Returns the status of the answer with this content.
pub(crate) fn status_of(content: &PageContent) -> StatusCode {
    match content.refusal() {
        None | Some(PageRefusal::Unreadable(_)) => StatusCode::OK,
        Some(PageRefusal::NotFound(_)) => StatusCode::NOT_FOUND,
        Some(PageRefusal::Forbidden { .. } | PageRefusal::Refused(_)) => StatusCode::FORBIDDEN,
        Some(PageRefusal::Unlisted(_) | PageRefusal::Outage(_)) => StatusCode::SERVICE_UNAVAILABLE,
        Some(PageRefusal::Busy) => StatusCode::TOO_MANY_REQUESTS,
    }
}

/// Returns a page that says why there is nothing to see.
pub(crate) fn refusal_answer(refusal: PageRefusal) -> Response<Body> {
    let content = refusal_content(refusal);
    html_answer(status_of(&content), document(&content, &Shell::default()))
}

/// Returns a refusal of the REST API as a page.
pub(crate) fn refused(refusal: &OpsRefusal) -> Response<Body> {
    let status = StatusCode::from_u16(refusal.code.status()).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let shown = match refusal.code {
        Code::TooMany => PageRefusal::Busy,
        _ if status.is_server_error() => PageRefusal::Outage(refusal.message.clone()),
        _ => PageRefusal::Refused(refusal.message.clone()),
    };
    let mut answer = refusal_answer(shown);
    *answer.status_mut() = status;
    if let Some(seconds) = refusal.retry_after {
        answer.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from(seconds));
    }
    answer
}
