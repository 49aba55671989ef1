//! The routes of the pages, and what their handlers share.

use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::extract::State;
use axum::routing::{get, post};
use http::{HeaderMap, HeaderName, HeaderValue, Response, StatusCode, Uri, header};
use oarlock_core::object::quota_key::QuotaKey;
use oarlock_core::ops_job::refusal::{Code, OpsRefusal};
use oarlock_kube::Cluster;
use oarlock_kube::watch::mirror::Mirror;
use oarlock_page::{LOGIN, LOGOUT, MOST_STREAMED, PageAddress, PageRefusal, ROOT, STREAM, Shell, asset_at, document};
use oarlock_rest::{HostOf, Rest};
use tokio_util::sync::CancellationToken;

use crate::answers::{html_answer, redirect, refusal_answer, refused, status_of, with_headers};
use crate::hub::Hub;
use crate::log::{LogReads, log};
use crate::login;
use crate::shown::Shown;
use crate::sight::{SightFailed, sight};
use crate::slots::PageSlots;
use crate::state::WebState;
use crate::stream::{self, Followed, STREAMS};
use crate::viewer::{NoViewer, PageAdmission, comes_from_elsewhere};

/// The parts of the pages.
pub struct WebOptions {
    /// The REST API of the same process, which authenticates the viewers and asks for their rights.
    pub rest: Rest,
    /// The objects that the pages show, of [`KINDS`](crate::KINDS).
    pub mirror: Mirror,
    /// The services of the leading host.
    pub host: HostOf,
    /// The cluster whose logs of failed Jobs the pages show. `None` for pages without logs.
    pub logs: Option<Cluster>,
    /// The people that may see the pages.
    pub admission: PageAdmission,
    /// Ends the streams and the updates.
    pub stop: CancellationToken,
}

/// Returns the routes of the pages, and begins to keep the open pages up to date. Call it within a tokio runtime.
pub fn pages(options: WebOptions) -> Router {
    let WebOptions { rest, mirror, host, logs, admission, stop } = options;
    let host = Arc::new(host);
    let shown = Arc::new(Shown::new(mirror, host.clone(), logs.is_some()));
    let hub = Arc::new(Hub::new(shown.clone()));
    tokio::spawn(hub.clone().run(stop.clone()));
    let (streams, logs) = (PageSlots::new(STREAMS.0, STREAMS.1), logs.map(LogReads::of));
    let web = Arc::new(WebState { rest, admission, hub, shown, streams, logs, host, stop });
    let to_first = || get(|| std::future::ready(redirect(ROOT)));
    Router::new()
        .route("/", to_first())
        .route("/ui", to_first())
        .route(LOGIN, get(login::form).post(login::log_in))
        .route(LOGOUT, post(login::log_out))
        .route(STREAM, get(events))
        .route("/ui/assets/{file}", get(asset))
        .route("/ui/log/{*path}", get(log))
        .route("/ui/{*path}", get(page))
        .route(ROOT, get(page))
        .with_state(web)
}

/// Answers with a page.
async fn page(State(web): State<Arc<WebState>>, uri: Uri, headers: HeaderMap) -> Response<Body> {
    let viewer = match web.viewer(&headers).await {
        Ok(viewer) => viewer,
        Err(none) => return without_viewer(none, &uri, &headers),
    };
    let path = uri.path_and_query().map_or_else(|| uri.path(), |both| both.as_str());
    let Some(address) = PageAddress::parse(path) else {
        return refusal_answer(PageRefusal::NotFound(path.to_owned()));
    };
    let sight = match sight(&web.rest, &viewer, &address).await {
        Ok(sight) => sight,
        Err(failed @ SightFailed::Forbidden(_)) => return refusal_answer(failed.shown()),
        Err(SightFailed::Unanswered(refusal)) => return refused(&refusal),
    };
    match web.open(&viewer, &address, sight) {
        Err(refusal) => refused(&refusal),
        Ok(page) => {
            let warning = web.warning();
            let shell = Shell {
                live: Some(&address),
                viewer: viewer.caller.as_ref().map(|caller| caller.name.as_str()),
                warning: warning.as_deref(),
            };
            // Also the page of nothing is live, so that an object that appears is shown.
            let content = page.newest();
            html_answer(status_of(&content), document(&content, &shell))
        }
    }
}

/// Answers with the stream of events of a browser.
async fn events(State(web): State<Arc<WebState>>, uri: Uri, headers: HeaderMap) -> Response<Body> {
    let viewer = match web.viewer(&headers).await {
        Ok(viewer) => viewer,
        // A browser does not follow redirects to a form here: it loads the page anew, which leads to the form.
        Err(NoViewer::Stranger | NoViewer::Expired(_)) => return with_headers(StatusCode::UNAUTHORIZED, Body::empty()),
        Err(NoViewer::Refused(refusal)) => return refused(&refusal),
    };
    let Some(slot) = web.streams.take(&QuotaKey::of(viewer.name()).text()) else {
        let message = "too many streams are open; the page asks by itself instead".to_owned();
        return refused(&OpsRefusal::new(Code::TooMany, message).after(30));
    };
    let body = stream::body(web, viewer, followed(uri.query().unwrap_or_default()), slot).await;
    let mut answer = with_headers(StatusCode::OK, body);
    let headers = answer.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
    // Some proxies would otherwise hold the events back.
    headers.insert(HeaderName::from_static("x-accel-buffering"), HeaderValue::from_static("no"));
    answer
}

/// Returns the pages in the query of a stream: pairs of `of` and `at`.
fn followed(query: &str) -> Vec<Followed> {
    let mut all: Vec<Followed> = Vec::new();
    for (name, value) in form_urlencoded::parse(query.as_bytes()) {
        if name == "of" && all.len() < MOST_STREAMED {
            // An address that is no page keeps its place, because the events name places.
            all.push(Followed { address: PageAddress::parse(&value), version: String::new() });
        } else if name == "at"
            && let Some(last) = all.last_mut()
        {
            last.version = value.into_owned();
        }
    }
    all
}

/// Answers with a file of the page. Its address has a digest of its content, so browsers keep it forever.
async fn asset(uri: Uri) -> Response<Body> {
    let Some(asset) = asset_at(uri.path()) else { return with_headers(StatusCode::NOT_FOUND, Body::empty()) };
    let mut answer = with_headers(StatusCode::OK, Body::from(asset.body));
    let headers = answer.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(asset.media_type));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("public, max-age=31536000, immutable"));
    answer
}

/// Answers a request without a viewer: with the login form, or with the reason of the refusal.
pub(crate) fn without_viewer(none: NoViewer, uri: &Uri, headers: &HeaderMap) -> Response<Body> {
    match none {
        NoViewer::Refused(refusal) => refused(&refusal),
        NoViewer::Stranger if comes_from_elsewhere(headers) => login::once_more(),
        NoViewer::Stranger => login::to_form(uri, false),
        NoViewer::Expired(_) => login::to_form(uri, true),
    }
}
