//! Registries that lie, break and wander: each lie has its own failure, comes to it quickly, and leaves no wrong blob at the target.
#![cfg(test)]

mod support;

use std::time::Duration;

use axum::body::Body;
use axum::http::Method;
use axum::http::request::Parts;
use oarlock_registry::{CopyFailed, Credentials, Registries, Waits, Why};
use serde_json::json;
use support::{Fake, INDEX, Image, Lie, MANIFEST, bytes, copy_of, honest, response, run, waits};

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

/// A lie about one path.
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

/// What comes of a source that lies, with credentials that nobody may see. Nothing is published, and no blob is wrong.
async fn from_a_liar(image: Image, lie: Lie) -> CopyFailed {
    let (source, target) = (Fake::serving(image, lie).await, Fake::empty().await);
    let mut copy = copy_of(&source.address, &target.address);
    copy.source_credentials = vec![me()];
    checked(run(&copy).await.unwrap_err(), &target)
}

/// What comes of a target that lies.
async fn to_a_liar(lie: Lie) -> CopyFailed {
    let (source, target) = (Fake::serving(image(), honest()).await, Fake::serving(Image::default(), lie).await);
    let mut copy = copy_of(&source.address, &target.address);
    copy.target_credentials = Some(me());
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
fn assert_failed(failed: &CopyFailed, why: Why, words: &str) {
    assert_eq!(failed.why(), why, "{failed}");
    assert!(failed.to_string().contains(words), "{failed}");
}

#[tokio::test]
async fn honest_registries_end_with_the_whole_image() {
    let (source, target) = (Fake::serving(image(), honest()).await, Fake::empty().await);
    let copied = run(&copy_of(&source.address, &target.address)).await.unwrap();
    assert_eq!((copied.bytes, copied.skipped), (image().size(), 0));
    assert_eq!(target.store.image.lock().unwrap().blobs, source.store.image.lock().unwrap().blobs);
    assert_eq!(target.store.tags.lock().unwrap()["1"], copied.digest);
}

#[tokio::test]
async fn mirror_is_asked_in_place_of_the_registry() {
    let (mirror, target) = (Fake::serving(image(), honest()).await, Fake::empty().await);
    let mut copy = copy_of("registry.example", &target.address);
    copy.source_base = Some(format!("http://{}/mirror/", mirror.address));
    assert_eq!(run(&copy).await.unwrap().digest, image().root);
    assert!(mirror.asked("GET /mirror/v2/team/app/manifests/1") == 1);
    copy.source_base = Some("http://mirror.example".to_owned());
    assert_failed(&run(&copy).await.unwrap_err(), Why::Pull, "without HTTPS");
}

#[tokio::test]
async fn blob_with_other_bytes_is_not_uploaded() {
    let lie = about(Method::GET, layer(), |_, _| Some(response(200, &[], bytes(9, 100_000))));
    assert_failed(&from_a_liar(image(), lie).await, Why::DigestMismatch, "the source serves bytes with sha256:");
}

#[tokio::test]
async fn blob_that_is_too_long_is_stopped_at_its_size() {
    let lie = about(Method::GET, layer(), |_, _| {
        let endless = futures::stream::repeat_with(|| Ok::<_, std::io::Error>(bytes(1, 10_000)));
        Some(response(200, &[], Body::from_stream(endless)))
    });
    assert_failed(&from_a_liar(image(), lie).await, Why::DigestMismatch, "has more than the 100000 bytes");
}

#[tokio::test]
async fn blob_that_is_too_short_is_not_uploaded() {
    let chunked = about(Method::GET, layer(), |_, _| {
        let short = futures::stream::iter([Ok::<_, std::io::Error>(bytes(1, 99_999))]);
        Some(response(200, &[], Body::from_stream(short)))
    });
    assert_failed(&from_a_liar(image(), chunked).await, Why::DigestMismatch, "has fewer than the 100000 bytes");
    let with_length = about(Method::GET, layer(), |_, _| Some(response(200, &[], bytes(1, 99_999))));
    assert_failed(&from_a_liar(image(), with_length).await, Why::DigestMismatch, "99999 bytes, and 100000");
}

#[tokio::test]
async fn blob_that_breaks_is_begun_anew_until_the_tries_are_used_up() {
    let broken = || {
        let parts = [Ok(bytes(1, 50_000)), Err(std::io::Error::other("gone"))];
        Some(response(200, &[], Body::from_stream(futures::stream::iter(parts))))
    };
    let failed = from_a_liar(image(), about(Method::GET, layer(), move |_, _| broken())).await;
    assert_failed(&failed, Why::Pull, "fails");
    assert!(failed.is_for_now());

    let twice = about(Method::GET, layer(), move |_, before| (before < 2).then(broken).flatten());
    let (source, target) = (Fake::serving(image(), twice).await, Fake::empty().await);
    let copied = run(&copy_of(&source.address, &target.address)).await.unwrap();
    assert_eq!(copied.bytes, image().size(), "what was sent in vain does not count");
}

#[tokio::test]
async fn blob_that_stalls_is_broken() {
    let lie = about(Method::GET, layer(), |_, _| {
        let stall = futures::StreamExt::chain(
            futures::stream::iter([Ok::<_, std::io::Error>(bytes(1, 50_000))]),
            futures::stream::pending(),
        );
        Some(response(200, &[], Body::from_stream(stall)))
    });
    let (source, target) = (Fake::serving(image(), lie).await, Fake::empty().await);
    let short = Waits { stall: Duration::from_millis(50), ..waits() };
    let registries = Registries::with_waits(short).unwrap();
    let failed = registries.copy(&copy_of(&source.address, &target.address), |_| {}).await.unwrap_err();
    assert_failed(&checked(failed.clone(), &target), Why::Pull, "is not answered within");
    assert!(failed.is_for_now());
}

#[tokio::test]
async fn empty_blob_has_the_digest_of_nothing() {
    let mut empty = Image::default();
    let config = empty.blob("application/vnd.oci.empty.v1+json", Vec::new());
    empty.manifest(MANIFEST, &json!({"schemaVersion": 2, "config": config, "layers": []}));
    let (source, target) = (Fake::serving(empty.clone(), honest()).await, Fake::empty().await);
    assert!(run(&copy_of(&source.address, &target.address)).await.is_ok());
    let mut lie = Image::default();
    let mut config = lie.blob("application/vnd.oci.empty.v1+json", b"{}".to_vec());
    config["size"] = json!(0);
    lie.manifest(MANIFEST, &json!({"schemaVersion": 2, "config": config, "layers": []}));
    assert_failed(&from_a_liar(lie, honest()).await, Why::DigestMismatch, "is not the digest of 0 bytes");
}

#[tokio::test]
async fn manifests_are_what_their_digest_says() {
    let root = image().root;
    let children: Vec<String> = image().manifests.keys().filter(|digest| **digest != root).cloned().collect();
    let other = || Some(response(200, &[("content-type", MANIFEST)], r#"{"schemaVersion": 2}"#));
    let lie = about(Method::GET, children[0].clone(), move |_, _| other());
    assert_failed(&from_a_liar(image(), lie).await, Why::DigestMismatch, "whose digest is");
    let promise = about(Method::GET, "manifests/1", move |_, _| {
        Some(response(200, &[("content-type", INDEX), ("docker-content-digest", &root)], r#"{"schemaVersion": 2}"#))
    });
    assert_failed(&from_a_liar(image(), promise).await, Why::DigestMismatch, "whose digest is");
}

#[tokio::test]
async fn endless_manifest_is_read_up_to_its_bound() {
    let lie = about(Method::GET, "manifests/1", |_, _| {
        let endless = futures::stream::repeat_with(|| Ok::<_, std::io::Error>(vec![b' '; 65_536]));
        Some(response(200, &[("content-type", INDEX)], Body::from_stream(endless)))
    });
    assert_failed(&from_a_liar(image(), lie).await, Why::Pull, "more than 4096 KiB");
    let said = about(Method::GET, "manifests/1", |_, _| Some(response(200, &[], vec![b' '; 5_000_000])));
    assert_failed(&from_a_liar(image(), said).await, Why::Pull, "more than 4096 KiB");
}

#[tokio::test]
async fn what_is_no_manifest_is_not_copied() {
    for (text, words) in [
        ("<html>not found</html>", "cannot be read"),
        ("", "cannot be read"),
        ("{}", "cannot be read"),
        (r#"{"schemaVersion": 1}"#, "only 2 is copied"),
        (r#"{"schemaVersion": 2}"#, "neither that of an image nor an index"),
    ] {
        let lie = about(Method::GET, "manifests/1", move |_, _| Some(response(200, &[("content-type", INDEX)], text)));
        assert_failed(&from_a_liar(Image::default(), lie).await, Why::Pull, words);
    }
}

#[tokio::test]
async fn sizes_that_cannot_be_are_refused() {
    for (size, words) in [
        (json!(-1), "-1 bytes is no size"),
        (json!(u64::MAX), "cannot be read"),
        (json!(300_u64 << 30), "is no size"),
        (json!(200_u64 << 30), "more than 256 GiB"),
    ] {
        let mut lie = Image::default();
        let config = lie.blob("application/vnd.oci.image.config.v1+json", b"{}".to_vec());
        let mut layers = vec![config.clone(), config.clone()];
        for (place, layer) in layers.iter_mut().enumerate() {
            layer["size"] = size.clone();
            layer["digest"] = json!(support::digest(&[place as u8]));
        }
        lie.manifest(MANIFEST, &json!({"schemaVersion": 2, "config": config, "layers": layers}));
        assert_failed(&from_a_liar(lie, honest()).await, Why::Pull, words);
    }
}

#[tokio::test]
async fn index_of_ten_thousand_manifests_is_refused_before_they_are_got() {
    let mut lie = Image::default();
    let part = |n: u32| json!({"mediaType": MANIFEST, "digest": support::digest(&n.to_le_bytes()), "size": 1});
    let parts: Vec<_> = (0..10_000).map(part).collect();
    lie.manifest(INDEX, &json!({"schemaVersion": 2, "manifests": parts}));
    let (source, target) = (Fake::serving(lie, honest()).await, Fake::empty().await);
    let failed = run(&copy_of(&source.address, &target.address)).await.unwrap_err();
    assert_failed(&checked(failed, &target), Why::Pull, "more than 64 manifests");
    assert_eq!(source.asked("manifests"), 1);
}

#[tokio::test]
async fn indexes_are_nested_twice_and_no_deeper() {
    let nested = |times: usize| {
        let mut image = Image::default();
        let config = image.blob("application/vnd.oci.image.config.v1+json", b"{}".to_vec());
        let mut part = image.manifest(MANIFEST, &json!({"schemaVersion": 2, "config": config, "layers": []}));
        for _ in 0..times {
            part = image.manifest(INDEX, &json!({"schemaVersion": 2, "manifests": [part]}));
        }
        image
    };
    let (source, target) = (Fake::serving(nested(2), honest()).await, Fake::empty().await);
    assert!(run(&copy_of(&source.address, &target.address)).await.is_ok());
    assert_failed(&from_a_liar(nested(3), honest()).await, Why::Pull, "nested more than 2 deep");
}

#[tokio::test]
async fn realm_at_another_host_is_not_asked() {
    let other = Fake::empty().await;
    let challenge = format!(r#"Bearer realm="http://{}/token?secret=1",service="x""#, other.address);
    let lie = about(Method::GET, "manifests", move |_, _| Some(response(401, &[("www-authenticate", &challenge)], "")));
    let failed = from_a_liar(image(), lie).await;
    let words = "for a token, which is not among the hosts that are allowed: add it to `authHosts`";
    assert_failed(&failed, Why::Pull, words);
    assert!(failed.to_string().contains(&format!("the registry sends to {}", other.address)), "{failed}");
    assert_eq!(other.asked(""), 0);
    for realm in ["https://169.254.169.254/token", "http://auth.example/token", "file:///etc/passwd", "token", ""] {
        let challenge = format!(r#"Bearer realm="{realm}""#);
        let lie =
            about(Method::GET, "manifests", move |_, _| Some(response(401, &[("www-authenticate", &challenge)], "")));
        assert_failed(&from_a_liar(image(), lie).await, Why::Pull, "the registry sends");
    }
}

/// A registry that gives tokens itself, and wants them.
fn with_tokens(takes: &'static str) -> Lie {
    Box::new(move |asked, before| {
        let has = |value: &str| asked.headers.get("authorization").is_some_and(|sent| sent == value);
        if asked.uri.path() == "/token" {
            let query = asked.uri.query().unwrap_or_default();
            assert!(query.contains("scope=repository%3Ateam%2Fapp%3Apull"), "{query}");
            let password = format!("Basic {}", base64_of(&format!("me:{PASSWORD}")));
            let token = format!(r#"{{"access_token": "{TOKEN}-{before}"}}"#);
            return Some(if has(&password) { response(200, &[], token) } else { response(401, &[], "") });
        }
        let host = asked.headers["host"].to_str().unwrap();
        let challenge = format!(r#"Bearer realm="http://{host}/token",service="x""#);
        let is_known = has(&format!("Bearer {TOKEN}-{takes}"));
        (!is_known).then(|| response(401, &[("www-authenticate", &challenge)], ""))
    })
}

fn base64_of(text: &str) -> String {
    use base64::Engine as _;
    base64::engine::general_purpose::STANDARD.encode(text)
}

#[tokio::test]
async fn token_is_got_once_for_a_copy() {
    let (source, target) = (Fake::serving(image(), with_tokens("0")).await, Fake::empty().await);
    let mut copy = copy_of(&source.address, &target.address);
    copy.source_credentials = vec![me()];
    run(&copy).await.unwrap();
    assert_eq!(source.asked("GET /token"), 1);
    let asked = target.store.asked.lock().unwrap();
    assert!(asked.iter().all(|(_, authorization)| authorization.is_none()), "the target is not told");
}

#[tokio::test]
async fn credentials_are_tried_in_order() {
    let (source, target) = (Fake::serving(image(), with_tokens("0")).await, Fake::empty().await);
    let mut copy = copy_of(&source.address, &target.address);
    let wrong = Credentials { username: "you".into(), password: "no".into() };
    copy.source_credentials = vec![wrong.clone()];
    let failed = checked(run(&copy).await.unwrap_err(), &target);
    assert_failed(&failed, Why::Unauthorized, "the credentials are wrong, or do not suffice");
    assert!(!failed.is_for_now());

    // Each of them asked once before.
    let source = Fake::serving(image(), with_tokens("1")).await;
    let mut copy = copy_of(&source.address, &target.address);
    copy.source_credentials = vec![wrong, me()];
    run(&copy).await.unwrap();
}

#[tokio::test]
async fn token_that_is_refused_is_not_asked_for_for_ever() {
    let failed = from_a_liar(image(), with_tokens("never")).await;
    assert_failed(&failed, Why::Unauthorized, "401");
    let long = about(Method::GET, "token", |_, _| Some(response(200, &[], vec![b' '; 70_000])));
    let tokens = with_tokens("0");
    let lie: Lie = Box::new(move |asked, before| long(asked, before).or_else(|| tokens(asked, before)));
    assert_failed(&from_a_liar(image(), lie).await, Why::Pull, "more than 64 KiB");
}

#[tokio::test]
async fn redirects_are_followed_only_to_hosts_that_are_allowed() {
    for (place, words) in [
        ("https://169.254.169.254/latest/meta-data?token=1", "redirects to 169.254.169.254, which is not among"),
        ("http://169.254.169.254/latest/meta-data", "redirects to 169.254.169.254 without HTTPS"),
        ("https://cdn.example/x?sig=1", "redirects to cdn.example, which is not among the hosts that are allowed"),
        ("//[::1]:1/x", "redirects to [::1]:1, which is not among"),
        ("ftp://cdn.example/", "without HTTPS"),
        ("https://", "without a place to go to"),
    ] {
        let lie = about(Method::GET, layer(), move |_, _| Some(response(307, &[("location", place)], "")));
        assert_failed(&from_a_liar(image(), lie).await, Why::Pull, words);
    }
    let none = about(Method::GET, layer(), |_, _| Some(response(302, &[], "")));
    assert_failed(&from_a_liar(image(), none).await, Why::Pull, "without a place to go to");
}

#[tokio::test]
async fn redirect_to_itself_ends() {
    let lie = about(Method::GET, layer(), |asked, _| Some(response(302, &[("location", asked.uri.path())], "")));
    assert_failed(&from_a_liar(image(), lie).await, Why::Pull, "is redirected more than 5 times");
}

#[tokio::test]
async fn password_does_not_go_along_a_redirect() {
    let (cdn, target) = (Fake::serving(image(), honest()).await, Fake::empty().await);
    let place = format!("http://{}/v2/team/app/blobs/{}?sig=1", cdn.address, layer());
    let lie = about(Method::GET, layer(), move |_, _| Some(response(307, &[("location", &place)], "")));
    let password = format!("Basic {}", base64_of(&format!("me:{PASSWORD}")));
    let basic: Lie = Box::new(move |asked, before| {
        if asked.headers.get("authorization").is_none_or(|sent| *sent != password) {
            return Some(response(401, &[("www-authenticate", r#"Basic realm="x""#)], ""));
        }
        lie(asked, before)
    });
    let source = Fake::serving(image(), basic).await;
    let mut copy = copy_of(&source.address, &target.address);
    copy.source_credentials = vec![me()];
    copy.hosts = vec![cdn.address.clone()];
    run(&copy).await.unwrap();
    let asked = cdn.store.asked.lock().unwrap().clone();
    assert_eq!(asked, [(format!("GET /v2/team/app/blobs/{}", layer()), None)]);
}

#[tokio::test]
async fn overload_is_waited_out() {
    let busy = |status, times| {
        Box::new(move |_: &Parts, before: usize| {
            (before < times).then(|| response(status, &[("retry-after", "0")], "me:hunter2"))
        })
    };
    for status in [429, 500, 502, 503] {
        let (source, target) =
            (Fake::serving(image(), busy(status, 1)).await, Fake::serving(Image::default(), busy(status, 1)).await);
        run(&copy_of(&source.address, &target.address)).await.unwrap();
        let failed = from_a_liar(image(), busy(status, usize::MAX)).await;
        assert_failed(&failed, Why::Pull, &status.to_string());
        assert!(failed.is_for_now());
        let failed = to_a_liar(busy(status, usize::MAX)).await;
        assert_failed(&failed, Why::Push, &status.to_string());
        assert!(failed.is_for_now());
    }
}

#[tokio::test]
async fn registry_that_is_not_there_is_so_for_now() {
    let (source, target) = (Fake::serving(image(), honest()).await, Fake::empty().await);
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let nobody = listener.local_addr().unwrap().to_string();
    drop(listener);
    let failed = run(&copy_of(&nobody, &target.address)).await.unwrap_err();
    assert_failed(&failed, Why::Pull, "refused");
    assert!(failed.is_for_now());
    let failed = run(&copy_of(&source.address, &nobody)).await.unwrap_err();
    assert_failed(&failed, Why::Push, "refused");
    assert!(failed.is_for_now());
}

#[tokio::test]
async fn silent_registry_is_given_up() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let target = Fake::empty().await;
    let short = Waits { head: Duration::from_millis(50), ..waits() };
    let copy = copy_of(&listener.local_addr().unwrap().to_string(), &target.address);
    let failed = Registries::with_waits(short).unwrap().copy(&copy, |_| {}).await.unwrap_err();
    assert_failed(&failed, Why::Pull, "is not answered within");
    assert!(failed.is_for_now());
}

#[tokio::test]
async fn image_that_is_not_there_is_named() {
    let failed = from_a_liar(Image::default(), honest()).await;
    assert_failed(&failed, Why::Pull, "there is no image 127.0.0.1:");
    assert!(!failed.is_for_now());
    let mut without = image();
    without.blobs.remove(&layer());
    assert_failed(&from_a_liar(without, honest()).await, Why::Pull, "there is no blob sha256:");
}

#[tokio::test]
async fn upload_stays_at_the_target() {
    for (place, words) in [
        ("https://169.254.169.254/upload?x=1", "wants the upload at 169.254.169.254, which is not among"),
        ("http://storage.example/upload?x=1", "wants the upload at storage.example without HTTPS"),
        ("http://127.0.0.1:1/upload", "wants the upload at 127.0.0.1:1, which is not among"),
        ("https://", "without a place to go to"),
    ] {
        let lie = about(Method::POST, "uploads", move |_, _| Some(response(202, &[("location", place)], "")));
        assert_failed(&to_a_liar(lie).await, Why::Push, words);
    }
    let lie =
        about(Method::PUT, "uploads", |_, _| Some(response(307, &[("location", "https://169.254.169.254/")], "")));
    assert_failed(&to_a_liar(lie).await, Why::Push, "307");
}

#[tokio::test]
async fn target_that_has_the_blob_before_it_was_sent_is_not_believed() {
    let lie = about(Method::PUT, "uploads", |_, _| Some(response(201, &[], "")));
    let big = Image::of(&[bytes(1, 30_000_000)]);
    let (source, target) = (Fake::serving(big, honest()).await, Fake::serving(Image::default(), lie).await);
    let failed = run(&copy_of(&source.address, &target.address)).await.unwrap_err();
    assert_eq!(checked(failed, &target).why(), Why::Push);
}

#[tokio::test]
async fn target_that_names_another_digest_is_not_believed() {
    let other = support::digest(b"other");
    let lie =
        about(Method::PUT, "manifests/", move |_, _| Some(response(201, &[("docker-content-digest", &other)], "")));
    assert_failed(&to_a_liar(lie).await, Why::DigestMismatch, "another digest");
}

#[tokio::test]
async fn target_that_refuses_is_not_tried_again() {
    for (status, why) in [(400, Why::Push), (413, Why::Push), (403, Why::Unauthorized)] {
        let lie = about(Method::PUT, "uploads", move |_, _| Some(response(status, &[], format!("me:{PASSWORD}"))));
        let failed = to_a_liar(lie).await;
        assert_failed(&failed, why, &status.to_string());
        assert!(!failed.is_for_now());
    }
}

#[tokio::test]
async fn copy_that_is_dropped_stops_at_both_ends() {
    let (begun, mut seen) = tokio::sync::watch::channel(false);
    let lie = about(Method::GET, layer(), move |_, _| {
        let stall = futures::StreamExt::chain(
            futures::stream::iter([Ok::<_, std::io::Error>(bytes(1, 50_000)), Ok(bytes(2, 10_000))]),
            futures::stream::pending(),
        );
        begun.send_replace(true);
        Some(response(200, &[], Body::from_stream(stall)))
    });
    let (source, target) = (Fake::serving(image(), lie).await, Fake::empty().await);
    let copy = copy_of(&source.address, &target.address);
    let (sent, mut has_sent) = tokio::sync::watch::channel(0);
    let registries = Registries::with_waits(waits()).unwrap();
    let task = tokio::spawn(async move { registries.copy(&copy, |now| _ = sent.send_replace(now.copied)).await });
    seen.wait_for(|begun| *begun).await.unwrap();
    // All but the held back end of the layer and the manifests.
    has_sent.wait_for(|sent| *sent > 20_000).await.unwrap();
    task.abort();
    target.store.broken.subscribe().wait_for(|broken| *broken == 1).await.unwrap();
    assert!(!target.store.image.lock().unwrap().blobs.contains_key(&layer()));
}
