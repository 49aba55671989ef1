//! Signatures that a registry lists wrongly, in too large a number, or for another plugin.

use super::*;

fn other_manifest(version: &str) -> Vec<u8> {
    new_artefact(&component(), &info(version)).manifest
}

/// An index of referrers with these digests.
fn index(digests: impl IntoIterator<Item = String>) -> Vec<u8> {
    let entry = |digest: String| json!({"mediaType": MANIFEST, "digest": digest, "size": 1, "artifactType": "x/y"});
    bytes_of(&json!({"schemaVersion": 2, "manifests": digests.into_iter().map(entry).collect::<Vec<_>>()}))
}

fn list(digests: Vec<String>) -> Lie {
    about(Method::GET, "/referrers/", move |_, _| {
        Some(response(200, &[("content-type", INDEX)], index(digests.clone())))
    })
}

#[tokio::test]
async fn plugin_that_nobody_signed_is_refused() {
    let fake = Plugin::unsigned().serve(honest()).await;
    let failed = fetch(&fake).await.unwrap_err();
    assert_failed(&failed, NOT_SIGNED, "/team/app:1: nothing signs manifest sha256:");
    assert!(!failed.is_for_now());
}

#[tokio::test]
async fn plugin_that_somebody_else_signed_is_refused() {
    let fake = Plugin::signed().serve(honest()).await;
    let golden = include_str!("../../../signature/tests/golden/p256.pub");
    let stranger = TrustPolicy::new([golden], 1).unwrap();
    let failed = open(&fake, ":1").verify(Some(&stranger), MOST).await.unwrap_err();
    let reason = FetchReason::Untrusted(UntrustedReason::SignedByNobodyTrusted);
    assert_failed(&failed, reason, "add the public key of the signer");
    // The evidence is judged by another policy without the registry.
    let repository = open(&fake, ":1");
    let manifest = repository.resolve(MOST).await.unwrap();
    let (evidence, asked) = (repository.signatures(&manifest).await.unwrap(), fake.asked(""));
    assert!(evidence.judge_manifest(&policy(), manifest.digest()).is_ok());
    assert!(evidence.judge_manifest(&stranger, manifest.digest()).is_err());
    assert_eq!(fake.asked(""), asked);
}

#[tokio::test]
async fn index_that_names_another_plugins_signature_gains_nothing() {
    let mut plugin = Plugin::unsigned();
    let other = Sha256::of(&other_manifest("0.9.0"));
    let referrer = plugin.add_bundle(key().sign_manifest(&other).unwrap());
    let fake = plugin.serve(list(vec![referrer.clone()])).await;
    let reason = FetchReason::Untrusted(UntrustedReason::SignatureForOther);
    assert_failed(&fetch(&fake).await.unwrap_err(), reason, other.as_str());

    // Beside it, a good signature counts.
    let mut plugin = Plugin::signed();
    plugin.add_bundle(key().sign_manifest(&other).unwrap());
    assert!(fetch(&plugin.serve(honest()).await).await.is_ok());
}

#[tokio::test]
async fn subject_of_a_signatures_manifest_proves_nothing() {
    // The referrer names another subject, and its bundle signs the plugin: only the bundle counts.
    let mut plugin = Plugin::unsigned();
    let bundle = key().sign_manifest(plugin.manifest.digest()).unwrap();
    let elsewhere = ArtefactManifest::parse(&other_manifest("2.0.0"), MOST).unwrap();
    let referrer = new_referrer(&elsewhere, &bundle, "");
    plugin.image.blob("", bundle);
    let digest = put(&mut plugin.image, referrer.manifest);
    assert!(fetch(&plugin.serve(list(vec![digest])).await).await.is_ok());
}

#[tokio::test]
async fn entries_that_are_no_signatures_do_not_count_and_hide_none() {
    let mut plugin = Plugin::signed();
    let good = plugin.image.manifests.keys().find(|digest| **digest != plugin.root()).unwrap().clone();
    let sbom = plugin.image.blob("text/spdx", b"{}".to_vec());
    let sbom = json!({"schemaVersion": 2, "artifactType": "text/spdx", "config": sbom, "layers": [sbom]});
    let sbom = put(&mut plugin.image, bytes_of(&sbom));
    let html = put(&mut plugin.image, b"<html>".to_vec());
    let absent = support::digest(b"absent");
    let path = "sha256:../../../other/manifests/1".to_owned();
    let all = vec![sbom.clone(), html.clone(), absent.clone(), path, String::new(), good];
    let fake = plugin.serve(list(all)).await;
    assert!(fetch(&fake).await.is_ok());
    assert!(fake.store.asked.lock().unwrap().iter().all(|(asked, _)| !asked.contains("..")));

    let mut plugin = Plugin::unsigned();
    plugin.image.manifests.insert(html.clone(), (MANIFEST.to_owned(), Bytes::from_static(b"<html>")));
    let fake = plugin.serve(list(vec![html, absent])).await;
    let failed = fetch(&fake).await.unwrap_err();
    assert_failed(&failed, NOT_SIGNED, "Not counted: signature sha256:");
    assert!(failed.to_string().contains("its manifest is not there"), "{failed}");
}

#[tokio::test]
async fn ten_thousand_referrers_are_looked_at_up_to_a_bound() {
    let many = |good: Option<usize>, digest: &str| -> Vec<String> {
        let name = |place: usize| support::digest(&place.to_le_bytes());
        (0..10_000).map(|place| if good == Some(place) { digest.to_owned() } else { name(place) }).collect()
    };
    for (place, is_found) in [(127, true), (128, false)] {
        let mut plugin = Plugin::unsigned();
        let good = plugin.add_bundle(key().sign_manifest(plugin.manifest.digest()).unwrap());
        let fake = plugin.serve(list(many(Some(place), &good))).await;
        let fetched = fetch(&fake).await;
        assert!(fake.asked("/manifests/") <= 130, "{}", fake.asked("/manifests/"));
        match fetched {
            Ok(_) => assert!(is_found, "{place}"),
            Err(failed) => {
                assert!(!is_found, "{place}: {failed}");
                assert_failed(&failed, NOT_SIGNED, "there are 10000 referrers, and 128 of them are looked at");
            }
        }
    }
}

#[tokio::test]
async fn endless_index_of_referrers_is_read_up_to_its_bound() {
    let lie = about(Method::GET, "/referrers/", |_, _| {
        let endless = futures::stream::repeat_with(|| Ok::<_, std::io::Error>(vec![b' '; 65_536]));
        Some(response(200, &[], axum::body::Body::from_stream(endless)))
    });
    let failed = fetch(&Plugin::signed().serve(lie).await).await.unwrap_err();
    assert_failed(&failed, UNAVAILABLE, "more than 4096 KiB");
}

#[tokio::test]
async fn only_so_many_bundles_are_read() {
    let mut plugin = Plugin::unsigned();
    let digests = (0..60).map(|n| plugin.add_bundle(format!("{{\"n\": {n}}}").into_bytes())).collect();
    let fake = plugin.serve(list(digests)).await;
    assert!(fetch(&fake).await.is_err());
    assert_eq!(fake.asked("GET /v2/team/app/blobs/"), 32);
}

#[tokio::test]
async fn tag_of_referrers_is_read_however_a_registry_says_that_it_lists_none() {
    for (status, text) in [(404, ""), (405, ""), (400, "{}"), (406, ""), (200, "<html>welcome</html>")] {
        let mut plugin = Plugin::unsigned();
        let good = plugin.add_bundle(key().sign_manifest(plugin.manifest.digest()).unwrap());
        let tag = plugin.root().replace(':', "-");
        let index = put(&mut plugin.image, index([good]));
        let lie = about(Method::GET, "/referrers/", move |_, _| Some(response(status, &[], text)));
        let fake = plugin.serve(lie).await;
        fake.store.tags.lock().unwrap().insert(tag, index);
        assert!(fetch(&fake).await.is_ok(), "{status}");
    }
}

/// A referrer whose bundle has this size by its manifest.
fn with_size(plugin: &mut Plugin, size: u64) -> (String, String) {
    let bundle = key().sign_manifest(plugin.manifest.digest()).unwrap();
    let mut referrer: Value = serde_json::from_slice(&new_referrer(&plugin.manifest, &bundle, "").manifest).unwrap();
    referrer["layers"][0]["size"] = json!(size);
    let blob = support::digest(&bundle);
    plugin.image.blob("", bundle);
    (put(&mut plugin.image, bytes_of(&referrer)), blob)
}

#[tokio::test]
async fn bundle_of_a_gibibyte_is_not_requested() {
    let mut plugin = Plugin::unsigned();
    let (_, blob) = with_size(&mut plugin, 1 << 30);
    let fake = plugin.serve(honest()).await;
    let failed = fetch(&fake).await.unwrap_err();
    assert_failed(&failed, NOT_SIGNED, "it has 1073741824 bytes, and 65536 are the most");
    assert_eq!(fake.asked(&blob), 0);
}

#[tokio::test]
async fn bundle_that_grows_to_a_gibibyte_is_stopped_at_its_size() {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
    let mut plugin = Plugin::unsigned();
    let (_, blob) = with_size(&mut plugin, 60_000);
    let sent = Arc::new(AtomicUsize::new(0));
    let counted = sent.clone();
    let lie = about(Method::GET, blob, move |_, _| {
        let counted = counted.clone();
        let gibibyte = (0..16_384).map(move |_| {
            counted.fetch_add(65_536, Relaxed);
            Ok::<_, std::io::Error>(vec![b' '; 65_536])
        });
        Some(response(200, &[], axum::body::Body::from_stream(futures::stream::iter(gibibyte))))
    });
    let failed = fetch(&plugin.serve(lie).await).await.unwrap_err();
    assert_failed(&failed, NOT_SIGNED, "has more than the 60000 bytes");
    // The rest of what was sent is in the buffers of the connection.
    assert!(sent.load(Relaxed) < 64 << 20, "{} bytes were sent", sent.load(Relaxed));
}

#[tokio::test]
async fn second_page_is_read_at_the_own_host_and_no_third() {
    let pages = |next: [&'static str; 2], good_on: usize| {
        let mut plugin = Plugin::unsigned();
        let good = plugin.add_bundle(key().sign_manifest(plugin.manifest.digest()).unwrap());
        let of = plugin.root();
        let lie = about(Method::GET, "/referrers/", move |asked, _| {
            let page = asked.uri.query().map_or(0, |query| query.trim_start_matches("page=").parse().unwrap());
            let link = next.get(page).unwrap_or(&"").replace("DIGEST", &of);
            let body = index((page == good_on).then(|| good.clone()));
            Some(response(200, &[("link", &format!("<{link}>; rel=\"next\""))], body))
        });
        plugin.serve(lie)
    };
    let own = ["/v2/team/app/referrers/DIGEST?page=1", "/v2/team/app/referrers/DIGEST?page=2"];
    for (good_on, is_found) in [(0, true), (1, true), (2, false)] {
        let fake = pages(own, good_on).await;
        assert_eq!(fetch(&fake).await.is_ok(), is_found, "page {good_on}");
        assert!(fake.asked("/referrers/") <= 2);
    }
    let elsewhere = Fake::empty().await;
    let other: &'static str =
        Box::leak(format!("http://{}/v2/team/app/referrers/DIGEST?page=1", elsewhere.address).into());
    for next in
        [other, "https://169.254.169.254/v2/team/app/referrers/DIGEST?page=1", "/v2/other/referrers/DIGEST?page=1"]
    {
        let fake = pages([next, ""], 1).await;
        assert_failed(&fetch(&fake).await.unwrap_err(), NOT_SIGNED, "nothing signs");
        assert_eq!((fake.asked("/referrers/"), elsewhere.asked("")), (1, 0), "{next}");
    }
}

/// Adds a signature of the older form: a payload about this digest, and a manifest that cosign wrote, with this payload and our signature.
fn add_old(plugin: &mut Plugin, digest: &str) -> String {
    let payload = bytes_of(&json!({"critical": {"identity": {"docker-reference": "x/y"},
        "image": {"docker-manifest-digest": digest}, "type": "cosign container image signature"}, "optional": null}));
    // A bundle of a file has the signature of the bytes.
    let bundle: Value = serde_json::from_slice(&key().sign_file(&payload).unwrap()).unwrap();
    let golden = include_str!("../../../signature/tests/golden/old-signature-manifest.json");
    let mut manifest: Value = serde_json::from_str(golden).unwrap();
    let layer = &mut manifest["layers"][0];
    (layer["digest"], layer["size"]) = (json!(support::digest(&payload)), json!(payload.len()));
    layer["annotations"]["dev.cosignproject.cosign/signature"] = bundle["messageSignature"]["signature"].clone();
    plugin.image.blob("", payload);
    put(&mut plugin.image, bytes_of(&manifest))
}

#[tokio::test]
async fn older_form_is_found_by_its_tag_beside_any_referrers() {
    for how in [Referrers::Unsupported, Referrers::Supported] {
        let mut plugin = Plugin::unsigned();
        let (root, other) = (plugin.root(), Sha256::of(b"other"));
        let (good, foreign) = (add_old(&mut plugin, &root), add_old(&mut plugin, other.as_str()));
        let tag = format!("{}.sig", root.replace(':', "-"));
        let fake = plugin.serve(honest()).await;
        *fake.store.referrers.lock().unwrap() = how;
        fake.store.tags.lock().unwrap().insert(tag.clone(), good);
        assert!(fetch(&fake).await.is_ok(), "{how:?}");
        fake.store.asked.lock().unwrap().clear();
        fake.store.tags.lock().unwrap().insert(tag, foreign);
        let reason = FetchReason::Untrusted(UntrustedReason::SignatureForOther);
        assert_failed(&fetch(&fake).await.unwrap_err(), reason, other.as_str());
    }
}
