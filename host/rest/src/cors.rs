//! Answers CORS requests: pages of other origins may call this API from a browser. Source: docs/opsjob-rest.md 1.
//!
//! The server allows only the origins that the admin named. It never allows `*`, and never credentials: a page sends its token itself.

use std::time::Duration;

use axum::body::Body;
use axum::extract::State;
use axum::middleware::Next;
use http::uri::{Parts, Scheme};
use http::{HeaderName, HeaderValue, Method, Request, Response, Uri, header};
use tower::{Layer as _, ServiceExt as _};
use tower_http::cors::{AllowOrigin, CorsLayer};

/// How long a browser may cache the answer to a preflight request.
const KEPT: Duration = Duration::from_secs(600);

/// The origin of a page, in the form that browsers send.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Origin(HeaderValue);

impl Origin {
    /// Reads an origin: a scheme, a host, and a port unless it is the default port.
    ///
    /// # Errors
    /// If the text is no origin. The error says what an origin looks like.
    pub fn read(text: &str) -> Result<Self, String> {
        let wrong =
            || format!("{text} is no origin such as https://console.example or http://localhost:3000, without a path");
        let Parts { scheme, authority, path_and_query, .. } = text.parse::<Uri>().map_err(|_| wrong())?.into_parts();
        let (scheme, authority) = scheme.zip(authority).ok_or_else(wrong)?;
        let usual = if scheme == Scheme::HTTPS { 443 } else { 80 };
        let is_web = scheme == Scheme::HTTPS || scheme == Scheme::HTTP;
        let has_path = path_and_query.is_some_and(|path| path != "/") || text.ends_with('/');
        let (host, port) = (authority.host(), authority.port_u16());
        let is_host =
            |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-' | b'[' | b']' | b':' | b'_');
        let has_user = authority.as_str().contains('@');
        if !is_web || has_path || has_user || host.is_empty() || !host.bytes().all(is_host) {
            return Err(wrong());
        }
        // Browsers send the host in lower case, and omit the default port.
        let port = port.filter(|port| *port != usual).map(|port| format!(":{port}")).unwrap_or_default();
        let sent = format!("{scheme}://{}{port}", host.to_ascii_lowercase());
        HeaderValue::try_from(sent).map(Self).map_err(|_| wrong())
    }
}

/// Returns the CORS layer for these origins, or `None` if there are none.
pub(crate) fn layer(origins: &[Origin]) -> Option<CorsLayer> {
    let origins: Vec<HeaderValue> = origins.iter().map(|origin| origin.0.clone()).collect();
    let own = HeaderName::from_static;
    let sent = [
        header::AUTHORIZATION,
        header::CONTENT_TYPE,
        header::RANGE,
        header::IF_RANGE,
        header::IF_NONE_MATCH,
        header::IF_MODIFIED_SINCE,
        own("idempotency-key"),
        own("x-request-id"),
    ];
    let read = [
        header::WARNING,
        header::RETRY_AFTER,
        header::ETAG,
        header::ACCEPT_RANGES,
        header::CONTENT_RANGE,
        header::CONTENT_LENGTH,
        own("x-request-id"),
    ];
    (!origins.is_empty()).then(|| {
        CorsLayer::new()
            .allow_origin(AllowOrigin::list(origins))
            .allow_methods([Method::GET, Method::HEAD, Method::POST, Method::DELETE])
            .allow_headers(sent)
            .expose_headers(read)
            .max_age(KEPT)
    })
}

/// Answers CORS preflight requests, and adds CORS headers to all other answers.
pub(crate) async fn cross_origin(
    State(layer): State<Option<CorsLayer>>,
    request: Request<Body>,
    next: Next,
) -> Response<Body> {
    let is_question = request.headers().contains_key(header::ORIGIN)
        && request.headers().contains_key(header::ACCESS_CONTROL_REQUEST_METHOD);
    match layer.filter(|_| request.method() != Method::OPTIONS || is_question) {
        Some(layer) => match layer.layer(next).oneshot(request).await {
            Ok(response) => response,
            Err(never) => match never {},
        },
        None => next.run(request).await,
    }
}

#[cfg(test)]
mod tests {
    use axum::Router;
    use axum::middleware::from_fn_with_state;
    use axum::routing::get;

    use super::*;

    #[test]
    fn an_origin_is_read_as_browsers_send_it_and_nothing_else_is_one() {
        for (text, sent) in [
            ("https://console.example", "https://console.example"),
            ("HTTPS://Console.Example:443", "https://console.example"),
            ("http://localhost:3000", "http://localhost:3000"),
            ("http://[::1]:80", "http://[::1]"),
        ] {
            assert_eq!(Origin::read(text).map(|origin| origin.0), Ok(HeaderValue::from_static(sent)), "{text}");
        }
        let wrong = [
            "*",
            "null",
            "",
            "console.example",
            "https://",
            "https://a/",
            "https://a/b",
            "https://u@a",
            "ftp://a",
            "https://*.example",
            "https://a?b",
            "https://a b",
            "file:///a",
        ];
        for text in wrong {
            assert!(Origin::read(text).unwrap_err().contains("is no origin such as"), "{text}");
        }
    }

    async fn ask(origins: &[&str], method: Method, given: &[(&str, &str)]) -> Response<Body> {
        let origins: Vec<Origin> = origins.iter().map(|origin| Origin::read(origin).unwrap()).collect();
        let app = Router::new().route("/a", get(|| async { "answer" }));
        let app = app.layer(from_fn_with_state(layer(&origins), cross_origin));
        let mut request = Request::builder().method(method).uri("/a");
        for (name, value) in given {
            request = request.header(*name, *value);
        }
        app.oneshot(request.body(Body::empty()).unwrap()).await.unwrap()
    }

    #[tokio::test]
    async fn a_page_of_a_named_origin_may_ask_and_that_of_another_one_is_not_told_so() {
        let named = ["https://console.example", "http://localhost:3000"];
        let question = |origin| [("origin", origin), ("access-control-request-method", "POST")];
        let own = |response: &Response<Body>, name: &str| {
            response.headers().get(name).map(|value| value.to_str().unwrap().to_ascii_lowercase()).unwrap_or_default()
        };
        for origin in named {
            let answer = ask(&named, Method::OPTIONS, &question(origin)).await;
            assert_eq!((answer.status().as_u16(), own(&answer, "access-control-allow-origin").as_str()), (200, origin));
            assert!(own(&answer, "access-control-allow-headers").contains("authorization"));
            assert!(own(&answer, "access-control-allow-methods").contains("delete"));
            assert_eq!(own(&answer, "access-control-allow-credentials"), "");
            let answer = ask(&named, Method::GET, &[("origin", origin)]).await;
            assert_eq!((answer.status().as_u16(), own(&answer, "access-control-allow-origin").as_str()), (200, origin));
            assert!(own(&answer, "vary").contains("origin"), "no cache gives it to another page");
        }
        for origin in ["https://evil.example", "https://console.example.evil", "null", "https://console.example:8443"] {
            for answer in [
                ask(&named, Method::OPTIONS, &question(origin)).await,
                ask(&named, Method::GET, &[("origin", origin)]).await,
            ] {
                assert_eq!(own(&answer, "access-control-allow-origin"), "", "{origin}");
            }
        }
    }

    #[tokio::test]
    async fn what_is_no_question_of_a_browser_is_answered_as_without_origins() {
        assert_eq!(ask(&["https://a"], Method::OPTIONS, &[]).await.status().as_u16(), 405);
        let question = [("origin", "https://a"), ("access-control-request-method", "GET")];
        assert_eq!(ask(&[], Method::OPTIONS, &question).await.status().as_u16(), 405);
        assert!(ask(&[], Method::GET, &question).await.headers().get("access-control-allow-origin").is_none());
    }
}
