//! Registries that give wrong answers, break off and redirect. Each wrong answer fails the copy quickly with its own error, and leaves no wrong
//! blob at the target.
#![cfg(test)]

mod content;
mod moments;
mod partly;
mod places;
#[path = "../support/mod.rs"]
mod support;
mod words;

use std::time::Duration;

use axum::body::Body;
use axum::http::Method;
use axum::http::request::Parts;
use oarlock_registry::{CopyFailed, Credentials, Fault, Registries, Timeouts};
use serde_json::json;
use support::{Fake, INDEX, Image, Lie, MANIFEST, bytes, copy_of, honest, response, run, timeouts};

const PASSWORD: &str = "hunter2-and-a-half";
const TOKEN: &str = "t0ken-of-the-server";

fn image() -> Image {
    Image::of(&[bytes(1, 100_000), bytes(2, 3_000)])
}

fn layer() -> String {
    support::digest(&bytes(1, 100_000))
}

fn me() -> Credentials {
    Credentials { username: "me".into(), password: PASSWORD.into() }
}

/// Makes wrong answers to requests of this method whose path contains this part.
fn about(
    method: Method,
    part: impl Into<String>,
    lie: impl Fn(&Parts, usize) -> Option<axum::http::Response<Body>> + Send + Sync + 'static,
) -> Lie {
    let part = part.into();
    Box::new(move |asked, before| {
        (asked.method == method && asked.uri.path().contains(&part)).then(|| lie(asked, before)).flatten()
    })
}

/// Copies from a source with wrong answers and returns the failure. Checks that the failure shows no credentials, and that the target has no tag
/// and no wrong blob.
async fn from_a_liar(image: Image, lie: Lie) -> CopyFailed {
    let (source, target) = (Fake::serving(image, lie).await, Fake::empty().await);
    let mut copy = copy_of(&source.address, &target.address);
    copy.source_credentials = vec![me()];
    checked(run(&copy).await.unwrap_err(), &target)
}

/// Copies to a target with wrong answers and returns the failure, with the checks of [`from_a_liar`].
async fn to_a_liar(lie: Lie) -> CopyFailed {
    let (source, target) = (Fake::serving(image(), honest()).await, Fake::serving(Image::default(), lie).await);
    let mut copy = copy_of(&source.address, &target.address);
    copy.target.credentials = Some(me());
    checked(run(&copy).await.unwrap_err(), &target)
}

fn checked(failed: CopyFailed, target: &Fake) -> CopyFailed {
    assert_eq!(*target.store.wrong.lock().unwrap(), Vec::<String>::new(), "no wrong blob");
    assert!(target.store.tags.lock().unwrap().is_empty(), "nothing is published");
    for text in [failed.to_string(), format!("{failed:?}")] {
        for secret in [PASSWORD, TOKEN, "Basic ", "Bearer ", "secret-state", "?", "bWU6aHVudGVy"] {
            assert!(!text.contains(secret), "{secret} is in: {text}");
        }
    }
    failed
}

#[track_caller]
fn assert_failed(failed: &CopyFailed, fault: Fault, words: &str) {
    assert_eq!(failed.fault(), fault, "{failed}");
    assert!(failed.to_string().contains(words), "{failed}");
}
