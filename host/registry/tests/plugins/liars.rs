//! Registries that are down, slow, dishonest, or send elsewhere, when a plugin is fetched.

use std::time::Duration;

use axum::body::Body;
use oarlock_registry::Credentials;

use super::*;

const PASSWORD: &str = "hunter2-and-a-half";

#[tokio::test]
async fn digest_is_that_of_the_bytes_whatever_a_header_says() {
    let plugin = Plugin::signed();
    let (signed, other) = (plugin.root(), new_artefact(b"evil", &info("6.6.6")).manifest);
    let lie = about(Method::GET, "manifests/1", move |_, _| {
        Some(response(200, &[("content-type", MANIFEST), ("docker-content-digest", &signed)], other.clone()))
    });
    let failed = fetch(&plugin.serve(lie).await).await.unwrap_err();
    let other = support::digest(&new_artefact(b"evil", &info("6.6.6")).manifest);
    assert_failed(&failed, NOT_SIGNED, &format!("nothing signs manifest {other}"));
}

#[tokio::test]
async fn tag_that_flips_between_two_digests_is_read_once() {
    let plugin = Plugin::signed();
    let evil = new_artefact(b"evil", &info("6.6.6")).manifest;
    let lie = about(Method::GET, "manifests/1", move |_, before| {
        (before % 2 == 1).then(|| response(200, &[("content-type", MANIFEST)], evil.clone()))
    });
    let fake = plugin.serve(lie).await;
    let (verified, bytes) = fetch(&fake).await.unwrap();
    assert_eq!((fake.asked("manifests/1"), bytes), (1, component()));
    assert_eq!(*verified.manifest.component(), Sha256::of(&component()));
    // The next look gets the other digest, which nobody signed.
    let failed = open(&fake, ":1").verify(Some(&policy()), MOST).await.unwrap_err();
    assert_failed(&failed, NOT_SIGNED, "nothing signs");
    assert!(open(&fake, ":1").verify(Some(&policy()), MOST).await.is_ok());
}

#[tokio::test]
async fn pinned_digest_is_compared_with_the_bytes() {
    let plugin = Plugin::signed();
    let pinned = plugin.root();
    let evil = new_artefact(b"evil", &info("6.6.6")).manifest;
    let lie = about(Method::GET, format!("manifests/{pinned}"), move |_, _| {
        Some(response(200, &[("docker-content-digest", &pinned)], evil.clone()))
    });
    let pinned = format!("@{}", plugin.root());
    let fake = plugin.serve(lie).await;
    let failed = open(&fake, &pinned).fetch_verified(None, MOST, &mut Vec::new()).await.unwrap_err();
    assert_failed(&failed, UNAVAILABLE, "whose digest is");
}

#[tokio::test]
async fn component_that_differs_is_never_whole() {
    let digest = support::digest(&component());
    let endless = || {
        let endless = futures::stream::repeat_with(|| Ok::<_, std::io::Error>(vec![0; 65_536]));
        response(200, &[], Body::from_stream(endless))
    };
    let short = || response(200, &[], Body::from_stream(futures::stream::iter([Ok::<_, std::io::Error>(vec![0; 9])])));
    type Answer = fn() -> Response<Body>;
    let answers: [(Answer, &str); 4] = [
        (|| response(200, &[], support::bytes(8, 300_000)), "the registry serves bytes with sha256:"),
        (|| response(200, &[], support::bytes(7, 299_999)), "299999 bytes, and 300000"),
        (endless, "has more than the 300000 bytes"),
        (short, "has fewer than the 300000 bytes"),
    ];
    for (answer, words) in answers {
        let fake = Plugin::signed().serve(about(Method::GET, digest.clone(), move |_, _| Some(answer()))).await;
        let failed = fetch(&fake).await.unwrap_err();
        assert_failed(&failed, UNAVAILABLE, words);
        assert_eq!(fake.asked(&digest), 1, "another try would give the same");
    }
}

#[tokio::test]
async fn component_that_is_too_large_is_not_requested() {
    let fake = Plugin::signed().serve(honest()).await;
    let failed = open(&fake, ":1").fetch_verified(Some(&policy()), 299_999, &mut Vec::new()).await.unwrap_err();
    let words = "its component has 300000 bytes, and this host takes at most 299999";
    assert_failed(&failed, FetchReason::NotAWasmArtefact, words);
    assert_eq!((fake.asked("/blobs/"), fake.asked("")), (0, 1));
}

#[tokio::test]
async fn image_that_is_no_plugin_is_named_so() {
    let container = Image::of(&[support::bytes(1, 1_000)]);
    let failed = fetch(&Fake::serving(container, honest()).await).await.unwrap_err();
    assert_failed(&failed, FetchReason::NotAWasmArtefact, "is no plugin: it is an index of several images");
    let failed = fetch(&Fake::empty().await).await.unwrap_err();
    assert_failed(&failed, UNAVAILABLE, "there is no image 127.0.0.1:");
    let html = about(Method::GET, "manifests/1", |_, _| Some(response(200, &[], "<html>log in</html>")));
    let failed = fetch(&Plugin::signed().serve(html).await).await.unwrap_err();
    assert_failed(&failed, FetchReason::NotAWasmArtefact, "its manifest cannot be read");
    let large = about(Method::GET, "manifests/1", |_, _| Some(response(200, &[], vec![b' '; 5_000_000])));
    assert_failed(&fetch(&Plugin::signed().serve(large).await).await.unwrap_err(), UNAVAILABLE, "more than 4096 KiB");
}

#[tokio::test]
async fn registry_that_is_down_is_so_for_now() {
    let fake = Plugin::signed().serve(honest()).await;
    let repository = open(&fake, ":1");
    drop(fake);
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let nobody = format!("{}/team/app:1", listener.local_addr().unwrap());
    drop(listener);
    let down = Destination { image: nobody, ..Destination::default() };
    let down = Registries::with_timeouts(timeouts()).unwrap().to_fetch(&down).unwrap();
    let failed = down.verify(Some(&policy()), MOST).await.unwrap_err();
    assert_failed(&failed, UNAVAILABLE, "refused");
    assert!(failed.is_for_now());
    drop(repository);
}

#[tokio::test]
async fn overload_while_signatures_are_read_is_no_lack_of_signatures() {
    for part in ["/referrers/", "/blobs/", ".sig", "/manifests/sha256:"] {
        let busy = about(Method::GET, part, |_, _| Some(response(503, &[("retry-after", "0")], "")));
        let failed = fetch(&Plugin::signed().serve(busy).await).await.unwrap_err();
        assert_failed(&failed, UNAVAILABLE, "503");
        assert!(failed.is_for_now(), "{part}");
        let once =
            about(Method::GET, part, |_, before| (before == 0).then(|| response(503, &[("retry-after", "0")], "")));
        assert!(fetch(&Plugin::signed().serve(once).await).await.is_ok(), "{part}");
    }
}

#[tokio::test]
async fn slow_registry_is_given_up() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let silent =
        Destination { image: format!("{}/team/app:1", listener.local_addr().unwrap()), ..Destination::default() };
    let short = Timeouts { head: Duration::from_millis(50), tries: 1, ..timeouts() };
    let registries = Registries::with_timeouts(short).unwrap();
    let failed = registries.to_fetch(&silent).unwrap().verify(Some(&policy()), MOST).await.unwrap_err();
    assert_failed(&failed, UNAVAILABLE, "is not answered within");
    assert!(failed.is_for_now());
}

/// A body that begins, and then neither goes on nor ends.
fn begun() -> Body {
    let first = futures::stream::iter([Ok::<_, std::io::Error>(vec![0_u8])]);
    Body::from_stream(futures::StreamExt::chain(first, futures::stream::pending()))
}

#[tokio::test]
async fn blob_that_arrives_too_slowly_is_given_up() {
    // Here a stall would be noticed only much later than the limit for the whole blob.
    let short =
        Timeouts { head: Duration::from_millis(500), stall: Duration::from_secs(3_600), tries: 2, ..timeouts() };
    let registries = Registries::with_timeouts(short).unwrap();
    let mut plugin = Plugin::unsigned();
    let small = plugin.add_bundle(b"{}".to_vec());
    let mut referrer: Value = serde_json::from_slice(&plugin.image.manifests[&small].1).unwrap();
    referrer["layers"][0]["size"] = json!(60_000);
    put(&mut plugin.image, bytes_of(&referrer));
    let slow = about(Method::GET, support::digest(b"{}"), |_, _| Some(response(200, &[], begun())));
    let fake = plugin.serve(slow).await;
    let failed = registries.to_fetch(&place(&fake, ":1")).unwrap().verify(Some(&policy()), MOST).await.unwrap_err();
    assert_failed(&failed, UNAVAILABLE, "slower than 64 KiB a second");
    assert!(failed.is_for_now());
}

#[tokio::test]
async fn signatures_have_a_time_limit_together() {
    let short = Timeouts { signatures: Duration::from_millis(50), ..timeouts() };
    let registries = Registries::with_timeouts(short).unwrap();
    let endless = about(Method::GET, "/referrers/", |_, _| Some(response(200, &[], begun())));
    let fake = Plugin::signed().serve(endless).await;
    let failed = registries.to_fetch(&place(&fake, ":1")).unwrap().verify(Some(&policy()), MOST).await.unwrap_err();
    assert_failed(&failed, UNAVAILABLE, "the signatures are not whole after");
    assert!(failed.is_for_now());
}

fn basic() -> String {
    use base64::Engine as _;
    format!("Basic {}", base64::engine::general_purpose::STANDARD.encode(format!("me:{PASSWORD}")))
}

/// Requires the password, and then answers as `then` does.
fn with_password(then: Lie) -> Lie {
    Box::new(move |asked, before| {
        if asked.headers.get("authorization").is_none_or(|sent| *sent != basic()) {
            return Some(response(401, &[("www-authenticate", r#"Basic realm="x""#)], ""));
        }
        then(asked, before)
    })
}

fn me() -> Option<Credentials> {
    Some(Credentials { username: "me".into(), password: PASSWORD.into() })
}

#[tokio::test]
async fn credentials_go_to_the_registry_alone() {
    let cdn = Plugin::signed().serve(honest()).await;
    let digest = support::digest(&component());
    let place_of = format!("http://{}/v2/team/app/blobs/{digest}?sig=1", cdn.address);
    let lie = about(Method::GET, digest.clone(), move |_, _| Some(response(307, &[("location", &place_of)], "")));
    let fake = Plugin::signed().serve(with_password(lie)).await;
    let registries = Registries::with_timeouts(timeouts()).unwrap();
    let at = |hosts: Vec<String>, credentials| Destination { hosts, credentials, ..place(&fake, ":1") };

    // A host that nobody allowed gets no request.
    let failed = registries.to_fetch(&at(Vec::new(), me())).unwrap();
    let failed = failed.fetch_verified(Some(&policy()), MOST, &mut Vec::new()).await.unwrap_err();
    assert_failed(&failed, UNAVAILABLE, "which is not among the hosts that are allowed");
    assert_eq!(cdn.asked(""), 0);

    // An allowed host gets the request, and no password.
    let mut bytes = Vec::new();
    let allowed = registries.to_fetch(&at(vec![cdn.address.clone()], me())).unwrap();
    allowed.fetch_verified(Some(&policy()), MOST, &mut bytes).await.unwrap();
    assert_eq!(bytes, component());
    assert_eq!(*cdn.store.asked.lock().unwrap(), [(format!("GET /v2/team/app/blobs/{digest}"), None)]);

    let wrong = Some(Credentials { username: "me".into(), password: "wr0ng-one".into() });
    let failed = registries.to_fetch(&at(Vec::new(), wrong)).unwrap().verify(Some(&policy()), MOST).await.unwrap_err();
    assert_failed(&failed, UNAVAILABLE, "the credentials are wrong, or do not suffice");
    assert!(!format!("{failed:?}").contains("wr0ng-one"), "{failed:?}");
}

#[tokio::test]
async fn no_step_follows_a_redirect_to_a_host_that_is_not_allowed() {
    for part in ["manifests/1", "/referrers/", "/blobs/", ".sig"] {
        for (to, words) in [
            ("https://169.254.169.254/latest/meta-data?token=1", "redirects to 169.254.169.254, which is not among"),
            ("http://127.0.0.1:1/", "redirects to 127.0.0.1:1, which is not among"),
        ] {
            let lie = about(Method::GET, part, move |_, _| Some(response(307, &[("location", to)], "")));
            let failed = match fetch(&Plugin::signed().serve(lie).await).await {
                // The other signature counts, and the redirected tag is a remark.
                Ok(_) => {
                    assert_eq!(part, ".sig");
                    continue;
                }
                Err(failed) => failed,
            };
            assert!(failed.to_string().contains(words), "{part}: {failed}");
            assert!(!failed.to_string().contains("token=1"), "{failed}");
        }
    }
}

#[tokio::test]
async fn realm_at_another_host_gets_no_password() {
    let other = Fake::empty().await;
    let challenge = format!(r#"Bearer realm="http://{}/token",service="x""#, other.address);
    let lie: Lie = Box::new(move |_, _| Some(response(401, &[("www-authenticate", &challenge)], "")));
    let fake = Plugin::signed().serve(lie).await;
    let at = Destination { credentials: me(), ..place(&fake, ":1") };
    let registries = Registries::with_timeouts(timeouts()).unwrap();
    let failed = registries.to_fetch(&at).unwrap().verify(Some(&policy()), MOST).await.unwrap_err();
    assert_failed(&failed, UNAVAILABLE, "for a token, which is not among the hosts that are allowed");
    assert_eq!(other.asked(""), 0);
}
