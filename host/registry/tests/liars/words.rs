//! Registries that refuse, with every documented status and body. The error shows the registry's message, cut to a bearable length.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::*;

/// The error codes of the distribution protocol, and further codes that registries use.
const CODES: [&str; 19] = [
    "BLOB_UNKNOWN",
    "BLOB_UPLOAD_INVALID",
    "BLOB_UPLOAD_UNKNOWN",
    "DIGEST_INVALID",
    "MANIFEST_BLOB_UNKNOWN",
    "MANIFEST_INVALID",
    "MANIFEST_UNKNOWN",
    "MANIFEST_UNVERIFIED",
    "NAME_INVALID",
    "NAME_UNKNOWN",
    "PAGINATION_NUMBER_INVALID",
    "RANGE_INVALID",
    "SIZE_INVALID",
    "TAG_INVALID",
    "UNAUTHORIZED",
    "DENIED",
    "UNSUPPORTED",
    "TOOMANYREQUESTS",
    "UNAVAILABLE",
];
const STATUSES: [u16; 14] = [400, 401, 403, 404, 405, 406, 409, 412, 413, 416, 429, 500, 502, 503];

fn errors(code: &str) -> String {
    json!({"errors": [{"code": code, "message": format!("words of {code}"), "detail": {"name": "team/app"}}]})
        .to_string()
}

/// Answers all requests of this method whose path contains this part with this status and body.
fn always(method: &Method, part: &str, status: u16, body: String) -> Lie {
    let (method, part) = (method.clone(), part.to_owned());
    Box::new(move |asked, _| {
        (asked.method == method && asked.uri.path().contains(&part))
            .then(|| response(status, &[("content-type", "application/json")], body.clone()))
    })
}

#[tokio::test]
async fn whatever_a_target_refuses_and_with_whatever_status_its_code_and_words_are_told() {
    let places = [
        (Method::POST, "uploads"),
        (Method::PUT, "uploads"),
        (Method::PUT, "manifests/1"),
        (Method::PUT, "manifests/sha256"),
    ];
    for (number, code) in CODES.iter().enumerate() {
        for (other, status) in STATUSES.iter().enumerate() {
            let (method, part) = &places[(number + other) % places.len()];
            let failed = to_a_liar(always(method, part, *status, errors(code))).await;
            let (told, words) = (failed.to_string(), format!(": {code}: words of {code} ({{\"name\":\"team/app\"}})"));
            assert!(told.ends_with(&words) && told.contains(&status.to_string()), "{told}");
            let is_busy = *status == 429 || *status >= 500 || matches!(*code, "TOOMANYREQUESTS" | "UNAVAILABLE");
            let may_pass = is_busy || *status == 404 && *method == Method::PUT && *part == "uploads";
            assert!(!is_busy || failed.is_for_now(), "{told}");
            assert!(may_pass || !failed.is_for_now(), "{told}");
        }
    }
}

#[tokio::test]
async fn a_refusal_of_a_question_without_a_body_is_asked_again_for_its_words() {
    for status in [400, 403, 429, 503] {
        for part in ["manifests/1", "blobs/sha256"] {
            let lie: Lie = Box::new(move |asked, _| {
                let is_read = asked.method == Method::HEAD || asked.method == Method::GET;
                let body = if asked.method == Method::HEAD { String::new() } else { errors("DENIED") };
                (is_read && asked.uri.path().contains(part)).then(|| response(status, &[], body))
            });
            let told = to_a_liar(lie).await.to_string();
            assert!(told.contains("DENIED: words of DENIED"), "{told}");
        }
    }
}

#[tokio::test]
async fn a_source_that_refuses_is_quoted_too() {
    for (status, body, words) in [
        (404, errors("MANIFEST_UNKNOWN"), "MANIFEST_UNKNOWN: words of"),
        (403, errors("DENIED"), "DENIED: words of"),
        (200, errors("MANIFEST_UNKNOWN"), "MANIFEST_UNKNOWN: words of"),
        (200, "<html><title>Sign in</title></html>".to_owned(), "Sign in"),
        (429, "You have reached your pull rate limit".to_owned(), "your pull rate limit"),
    ] {
        let told = from_a_liar(image(), always(&Method::GET, "manifests/1", status, body)).await.to_string();
        assert!(told.contains(words), "{told}");
    }
    let blob = from_a_liar(image(), always(&Method::GET, &layer(), 404, errors("BLOB_UNKNOWN"))).await.to_string();
    assert!(blob.contains("there is no blob sha256:") && blob.contains("BLOB_UNKNOWN: words"), "{blob}");
}

#[tokio::test]
async fn a_tag_that_cannot_be_moved_says_so() {
    for (status, body) in [
        (
            400,
            json!({"errors": [{"code": "TAG_INVALID", "message": "The image tag '1' already exists and cannot be overwritten because the repository is immutable."}]}),
        ),
        (
            412,
            json!({"errors": [{"code": "PRECONDITION", "message": "Failed to process request due to 'app:1' configured as immutable."}]}),
        ),
        (409, json!({"errors": [{"code": "DENIED", "message": "the tag is immutable"}]})),
    ] {
        let failed = to_a_liar(always(&Method::PUT, "manifests/1", status, body.to_string())).await;
        assert!(failed.to_string().contains("immutable") && !failed.is_for_now(), "{failed}");
    }
}

#[tokio::test]
async fn words_are_found_in_bodies_that_are_no_whole_json() {
    for (body, words) in [
        (errors("DENIED").split(" of").next().unwrap().to_owned(), ": DENIED: words"),
        ("<html><body><h1>403 Forbidden</h1><hr>nginx</body></html>".to_owned(), ": 403 Forbidden"),
        (
            "<?xml version='1.0'?><Error><Code>AccessDenied</Code><Message>Request has expired</Message></Error>"
                .to_owned(),
            ": AccessDenied: Request has expired",
        ),
        (r#"{"details": "incorrect username or password"}"#.to_owned(), ": incorrect username or password"),
        ("no\r\nwords\u{7}".to_owned(), ": no words"),
    ] {
        let told = to_a_liar(always(&Method::POST, "uploads", 400, body)).await.to_string();
        assert!(told.ends_with(words), "{told}");
    }
    let silent = to_a_liar(always(&Method::POST, "uploads", 400, String::new())).await.to_string();
    assert!(silent.ends_with("is answered with 400 Bad Request"), "{silent}");
}

#[tokio::test]
async fn a_refusal_of_a_gibibyte_is_read_up_to_its_bound() {
    let sent = Arc::new(AtomicUsize::new(0));
    let counted = sent.clone();
    let lie = about(Method::POST, "uploads", move |_, _| {
        let counted = counted.clone();
        let pieces = (0..16_384).map(move |number: usize| {
            counted.fetch_add(65_536, Ordering::Relaxed);
            let mut piece = if number == 0 { errors("DENIED").into_bytes() } else { Vec::new() };
            piece.resize(65_536, b' ');
            Ok::<_, std::io::Error>(piece)
        });
        Some(response(400, &[], Body::from_stream(futures::stream::iter(pieces))))
    });
    let told = to_a_liar(lie).await.to_string();
    assert!(told.ends_with("DENIED: words of DENIED ({\"name\":\"team/app\"})"), "{told}");
    assert!(sent.load(Ordering::Relaxed) < 64 << 20, "{} bytes were taken", sent.load(Ordering::Relaxed));
}

#[tokio::test]
async fn a_registry_that_repeats_what_it_was_sent_shows_nobody_a_secret() {
    let lie: Lie = Box::new(|asked, _| {
        let Some(sent) = asked.headers.get("authorization").and_then(|sent| sent.to_str().ok()) else {
            return Some(response(401, &[("www-authenticate", "Basic realm=\"x\"")], ""));
        };
        let words = format!("{sent} of me:{PASSWORD} at https://reg/v2/session?state=secret-state is not welcome");
        Some(response(400, &[], json!({"errors": [{"code": "DENIED", "message": words}]}).to_string()))
    });
    let told = to_a_liar(lie).await.to_string();
    assert!(told.contains("at https://reg/v2/session is not welcome"), "{told}");
}
