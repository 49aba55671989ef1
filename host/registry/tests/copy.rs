//! Copies between real registries: local processes, some of them with TLS and a password.
#![cfg(test)]

#[path = "support/server.rs"]
mod server;
mod support;

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use oarlock_registry::{Credentials, Destination, Fault, ImageCopy, Registries, Timeouts};
use server::{PASSWORD, Server, USER};
use support::{Fake, Image, bytes, copy_of, honest, run, timeouts};

fn small() -> Image {
    Image::of(&[bytes(1, 200_000), bytes(2, 3_000)])
}

/// Copies an image from an in-memory registry into a registry without TLS.
async fn push(image: Image, to: &Server) {
    let source = Fake::serving(image, honest()).await;
    run(&copy_of(&source.address, &to.address)).await.unwrap();
}

/// Returns a copy to a target that requires a password and has its own certificate authority.
fn closed_copy(source: &Server, target: &Server) -> ImageCopy {
    let mut copy = copy_of(&source.address, &target.address);
    copy.target.credentials = Some(Credentials { username: USER.into(), password: PASSWORD.into() });
    copy.target.ca.clone_from(&target.ca);
    copy
}

#[tokio::test(flavor = "multi_thread")]
async fn image_is_copied_once_and_whole() {
    let (source, target) = (Server::plain(), Server::closed());
    push(small(), &source).await;
    let copy = closed_copy(&source, &target);
    let copied = run(&copy).await.unwrap();
    assert_eq!((copied.bytes, copied.skipped), (small().size(), 0));
    assert_eq!(copied.digest, small().root);
    assert_eq!(copied.target, format!("{}/team/app:1", target.address));

    let again = run(&copy).await.unwrap();
    assert_eq!((again.bytes, again.digest, again.target), (0, copied.digest.clone(), copied.target));

    // The source names the image by its digest, and the target gets another tag: the target already has the blobs.
    let by_digest = ImageCopy {
        source: format!("{}/team/app@{}", source.address, copied.digest),
        target: Destination { image: format!("{}/team/app:2", target.address), ..copy.target.clone() },
        ..copy
    };
    let blobs: usize = small().blobs.values().map(bytes::Bytes::len).sum();
    assert_eq!(run(&by_digest).await.unwrap().skipped, blobs as u64);

    let memory = Fake::empty().await;
    run(&copy_of(&source.address, &memory.address)).await.unwrap();
    assert_eq!(memory.store.image.lock().unwrap().blobs, small().blobs);
    assert_eq!(memory.store.image.lock().unwrap().manifests, small().manifests);

    // The copy trusts the certificate authority of the target only for the target, not for the source.
    let mut copy = copy_of(&target.address, &memory.address);
    copy.source_base = Some(format!("https://{}", target.address));
    let untrusted = run(&copy).await.unwrap_err();
    assert!(untrusted.to_string().contains("certificate") && !untrusted.is_for_now(), "{untrusted}");
}

#[tokio::test(flavor = "multi_thread")]
async fn tag_of_another_image_is_left_alone() {
    let (source, other, target) = (Server::plain(), Server::plain(), Server::closed());
    push(small(), &source).await;
    push(Image::of(&[bytes(3, 1_000)]), &other).await;
    run(&closed_copy(&other, &target)).await.unwrap();
    let copy = closed_copy(&source, &target);
    let copied = run(&copy).await.unwrap();
    assert_eq!(copied.target, format!("{}/team/app:1-other", target.address));
    let again = run(&copy).await.unwrap();
    assert_eq!((again.bytes, again.target), (0, copied.target));

    let third = Server::plain();
    push(Image::of(&[bytes(5, 1_000)]), &third).await;
    let failed = run(&closed_copy(&third, &target)).await.unwrap_err();
    assert_eq!((failed.reason(), failed.is_for_now()), ("PushFailed", false));
    assert!(failed.to_string().contains("neither is replaced"), "{failed}");
}

#[tokio::test(flavor = "multi_thread")]
async fn wrong_password_is_said_and_not_shown() {
    let (source, target) = (Server::plain(), Server::closed());
    push(small(), &source).await;
    let mut copy = closed_copy(&source, &target);
    copy.target.credentials = Some(Credentials { username: USER.into(), password: "wr0ng-one".into() });
    let failed = run(&copy).await.unwrap_err();
    assert_eq!((failed.fault(), failed.is_for_now()), (Fault::Unauthorized, false));
    for text in [failed.to_string(), format!("{failed:?} {copy:?}")] {
        assert!(!text.contains("wr0ng-one") && !text.contains("Basic"), "{text}");
    }
    copy.target.credentials = None;
    let failed = run(&copy).await.unwrap_err();
    assert!(failed.to_string().contains("there are no credentials"), "{failed}");
    copy.target.ca = Some(b"-----BEGIN CERTIFICATE-----".to_vec());
    assert_eq!(run(&copy).await.unwrap_err().reason(), "PushFailed");
}

#[tokio::test(flavor = "multi_thread")]
async fn source_that_dies_midway_is_gone_on_with_later() {
    const BIG: usize = 48 * 1024 * 1024;
    let (source, target) = (Server::plain(), Server::plain());
    push(Image::of(&[bytes(1, 1_000), bytes(2, BIG)]), &source).await;
    let copy = copy_of(&source.address, &target.address);
    let source = Mutex::new(source);
    let registries = Registries::with_timeouts(timeouts()).unwrap();
    let tell = |now: oarlock_registry::CopyProgress| {
        if now.copied > BIG as u64 / 2 {
            source.lock().unwrap().kill();
        }
    };
    let failed = registries.copy(&copy, tell).await.unwrap_err();
    assert_eq!((failed.fault(), failed.is_for_now()), (Fault::Pull, true), "{failed}");

    source.lock().unwrap().start_again();
    let copied = registries.copy(&copy, |_| {}).await.unwrap();
    assert!(copied.skipped > 0 && copied.bytes > BIG as u64, "{copied:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn source_that_comes_back_is_waited_for() {
    const BIG: usize = 16 * 1024 * 1024;
    let (source, target) = (Server::plain(), Server::plain());
    push(Image::of(&[bytes(1, BIG)]), &source).await;
    let copy = copy_of(&source.address, &target.address);
    let (source, is_done) = (Mutex::new(source), AtomicBool::new(false));
    let tell = |now: oarlock_registry::CopyProgress| {
        if now.copied > BIG as u64 / 2 && !is_done.swap(true, Relaxed) {
            source.lock().unwrap().start_again();
        }
    };
    let patient = Timeouts { pause: Duration::from_millis(20), longest_pause: Duration::from_secs(1), ..timeouts() };
    let copied = Registries::with_timeouts(patient).unwrap().copy(&copy, tell).await.unwrap();
    assert!(copied.bytes > BIG as u64, "{copied:?}");
}
