//! Plugins that are pushed, signed and fetched again.

use super::*;

/// Pushes and signs a plugin with our own code. Returns its manifest.
async fn publish(fake: &Fake, version: &str) -> ArtefactManifest {
    let registries = Registries::with_timeouts(timeouts()).unwrap();
    let repository = registries.to_publish(&place(fake, ":1")).unwrap();
    let manifest = repository.push(Bytes::from(component()), &info(version)).await.unwrap();
    let bundle = key().sign_manifest(manifest.digest()).unwrap();
    repository.attach(&manifest, bundle.into(), "2026-11-29T04:33:04Z").await.unwrap();
    manifest
}

#[tokio::test]
async fn pushed_plugin_is_fetched_with_its_signature_whether_the_registry_lists_referrers_or_not() {
    for how in [Referrers::Unsupported, Referrers::Supported, Referrers::WithWrongType] {
        let fake = Fake::empty().await;
        *fake.store.referrers.lock().unwrap() = how;
        let manifest = publish(&fake, "1.0.0").await;
        let (verified, bytes) = fetch(&fake).await.unwrap();
        assert_eq!((&verified.manifest, bytes), (&manifest, component()), "{how:?}");
        assert_eq!(verified.signers.unwrap().fingerprints(), [key().public_key().fingerprint()]);
        let tag = manifest.digest().as_str().replace(':', "-");
        assert_eq!(fake.store.tags.lock().unwrap().contains_key(&tag), how == Referrers::Unsupported, "{how:?}");
    }
}

#[tokio::test]
async fn signature_is_kept_as_a_sidecar_of_the_file() {
    let fake = Fake::empty().await;
    publish(&fake, "1.0.0").await;
    let (verified, bytes) = fetch(&fake).await.unwrap();
    let sidecar = verified.evidence.sidecar();
    let read = oarlock_signature::SignatureEvidence::read_sidecar(sidecar.as_slice()).unwrap();
    assert!(read.judge_file(&policy(), &bytes).is_ok());
    assert!(read.judge_file(&policy(), b"another file").is_err());
}

#[tokio::test]
async fn layout_is_that_of_other_tools() {
    let fake = Fake::empty().await;
    let manifest = publish(&fake, "1.0.0").await;
    let written: Value = serde_json::from_slice(manifest.bytes()).unwrap();
    assert_eq!(written["config"]["mediaType"], "application/vnd.wasm.config.v0+json");
    assert_eq!(written["layers"].as_array().unwrap().len(), 1);
    assert_eq!(written["layers"][0]["mediaType"], "application/wasm");
    assert_eq!(written["artifactType"], Value::Null, "the type of the configuration says it");
    let image = fake.store.image.lock().unwrap().clone();
    let config: Value = serde_json::from_slice(&image.blobs[written["config"]["digest"].as_str().unwrap()]).unwrap();
    assert_eq!((config["architecture"].as_str(), config["os"].as_str()), (Some("wasm"), Some("wasip2")));
    assert_eq!(config["layerDigests"], json!([support::digest(&component())]));
    assert_eq!(config["component"]["exports"], json!(["oarlock:action/handler@1.0.0"]));

    // The manifest of the signature has what a manifest of cosign has.
    let theirs: Value =
        serde_json::from_str(include_str!("../../../signature/tests/golden/referrer-manifest.json")).unwrap();
    let all = image.manifests.values().filter_map(|(_, bytes)| serde_json::from_slice::<Value>(bytes).ok());
    let own = all.into_iter().find(|manifest| manifest["subject"] != Value::Null).unwrap();
    for path in ["/artifactType", "/config/mediaType", "/config/digest", "/layers/0/mediaType", "/subject/mediaType"] {
        assert_eq!(own.pointer(path), theirs.pointer(path), "{path}");
    }
    for key in ["dev.sigstore.bundle.content", "dev.sigstore.bundle.predicateType"] {
        assert_eq!(own["annotations"][key], theirs["annotations"][key], "{key}");
    }
    assert_eq!(own["subject"]["digest"], manifest.digest().as_str());
    assert_eq!(own["subject"]["size"], manifest.bytes().len());
}

#[tokio::test]
async fn signing_again_keeps_the_entries_of_others_and_adds_none_twice() {
    let mut plugin = Plugin::unsigned();
    let tag = plugin.root().replace(':', "-");
    let other =
        json!({"mediaType": MANIFEST, "digest": support::digest(b"sbom"), "size": 1, "artifactType": "text/spdx"});
    let index = json!({"schemaVersion": 2, "mediaType": INDEX, "manifests": [other], "annotations": {"a": "b"}});
    let digest = put(&mut plugin.image, bytes_of(&index));
    plugin.image.manifests.get_mut(&digest).unwrap().0 = INDEX.to_owned();
    let manifest = plugin.manifest.clone();
    let fake = plugin.serve(honest()).await;
    *fake.store.referrers.lock().unwrap() = Referrers::Unsupported;
    fake.store.tags.lock().unwrap().insert(tag.clone(), digest);
    let repository = Registries::with_timeouts(timeouts()).unwrap().to_publish(&place(&fake, ":1")).unwrap();
    let bundle = Bytes::from(key().sign_manifest(manifest.digest()).unwrap());
    let first = repository.attach(&manifest, bundle.clone(), "2026-11-29T04:33:04Z").await.unwrap();
    assert_eq!(repository.attach(&manifest, bundle, "2026-11-29T04:33:04Z").await.unwrap(), first);
    let digest = fake.store.tags.lock().unwrap()[&tag].clone();
    let index: Value = serde_json::from_slice(&fake.store.image.lock().unwrap().manifests[&digest].1).unwrap();
    let entries: Vec<_> = index["manifests"].as_array().unwrap().iter().map(|entry| entry["digest"].clone()).collect();
    assert_eq!(entries, [json!(first), other["digest"].clone()], "ours is first");
    assert_eq!(index["annotations"]["a"], "b");
    assert!(fetch(&fake).await.is_ok());
}

#[tokio::test]
async fn plugin_is_pushed_under_a_tag_only() {
    let fake = Fake::empty().await;
    let registries = Registries::with_timeouts(timeouts()).unwrap();
    let at = registries.to_publish(&place(&fake, &format!("@{}", support::digest(b"x")))).unwrap();
    let failed = at.push(Bytes::from_static(b"x"), &info("1.0.0")).await.unwrap_err();
    assert!(failed.to_string().contains("pushed under a tag"), "{failed}");
    assert_eq!(fake.asked(""), 0);
}

#[tokio::test]
async fn pinned_digest_needs_no_signature_and_a_tag_does() {
    let plugin = Plugin::unsigned();
    let pinned = format!("@{}", plugin.root());
    let fake = plugin.serve(honest()).await;
    let failed = open(&fake, ":1").fetch_verified(None, MOST, &mut Vec::new()).await.unwrap_err();
    assert_failed(&failed, NOT_SIGNED, "has a tag, which anyone who may push can move; add `signedBy` to the grant");
    assert_eq!(fake.asked(""), 0);
    let mut bytes = Vec::new();
    let verified = open(&fake, &pinned).fetch_verified(None, MOST, &mut bytes).await.unwrap();
    assert_eq!((verified.signers, bytes), (None, component()));
    // With a policy, a pinned digest has to be signed, too.
    let failed = open(&fake, &pinned).fetch_verified(Some(&policy()), MOST, &mut Vec::new()).await.unwrap_err();
    assert_failed(&failed, NOT_SIGNED, "nothing signs manifest");
}

#[tokio::test]
async fn component_goes_into_a_file_and_begins_anew_after_a_break() {
    let broken = about(Method::GET, support::digest(&component()), |_, before| {
        let parts = [Ok(component()[..1_000].to_vec()), Err(std::io::Error::other("gone"))];
        let body = axum::body::Body::from_stream(futures::stream::iter(parts));
        (before < 2).then(|| response(200, &[], body))
    });
    let fake = Plugin::signed().serve(broken).await;
    let path = std::env::temp_dir().join(format!("oarlock-component-{}", std::process::id()));
    let mut file = std::fs::File::create(&path).unwrap();
    open(&fake, ":1").fetch_verified(Some(&policy()), MOST, &mut file).await.unwrap();
    assert_eq!(std::fs::read(&path).unwrap(), component());
    std::fs::remove_file(&path).unwrap();
}
