//! Manifests and blobs that differ from their digest, their size or their type.

use super::*;

#[tokio::test]
async fn blob_with_other_bytes_is_not_uploaded() {
    let lie = about(Method::GET, layer(), |_, _| Some(response(200, &[], bytes(9, 100_000))));
    assert_failed(&from_a_liar(image(), lie).await, Fault::DigestMismatch, "the source serves bytes with sha256:");
}

#[tokio::test]
async fn blob_that_is_too_long_is_stopped_at_its_size() {
    let lie = about(Method::GET, layer(), |_, _| {
        let endless = futures::stream::repeat_with(|| Ok::<_, std::io::Error>(bytes(1, 10_000)));
        Some(response(200, &[], Body::from_stream(endless)))
    });
    assert_failed(&from_a_liar(image(), lie).await, Fault::DigestMismatch, "has more than the 100000 bytes");
}

#[tokio::test]
async fn blob_that_is_too_short_is_not_uploaded() {
    let chunked = about(Method::GET, layer(), |_, _| {
        let short = futures::stream::iter([Ok::<_, std::io::Error>(bytes(1, 99_999))]);
        Some(response(200, &[], Body::from_stream(short)))
    });
    assert_failed(&from_a_liar(image(), chunked).await, Fault::DigestMismatch, "has fewer than the 100000 bytes");
    let with_length = about(Method::GET, layer(), |_, _| Some(response(200, &[], bytes(1, 99_999))));
    assert_failed(&from_a_liar(image(), with_length).await, Fault::DigestMismatch, "99999 bytes, and 100000");
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
    assert_failed(&from_a_liar(lie, honest()).await, Fault::DigestMismatch, "is not the digest of 0 bytes");
}

#[tokio::test]
async fn manifests_are_what_their_digest_says() {
    let root = image().root;
    let children: Vec<String> = image().manifests.keys().filter(|digest| **digest != root).cloned().collect();
    let other = || Some(response(200, &[("content-type", MANIFEST)], r#"{"schemaVersion": 2}"#));
    let lie = about(Method::GET, children[0].clone(), move |_, _| other());
    assert_failed(&from_a_liar(image(), lie).await, Fault::DigestMismatch, "whose digest is");
    let promise = about(Method::GET, "manifests/1", move |_, _| {
        Some(response(200, &[("content-type", INDEX), ("docker-content-digest", &root)], r#"{"schemaVersion": 2}"#))
    });
    assert_failed(&from_a_liar(image(), promise).await, Fault::DigestMismatch, "whose digest is");
}

#[tokio::test]
async fn endless_manifest_is_read_up_to_its_bound() {
    let lie = about(Method::GET, "manifests/1", |_, _| {
        let endless = futures::stream::repeat_with(|| Ok::<_, std::io::Error>(vec![b' '; 65_536]));
        Some(response(200, &[("content-type", INDEX)], Body::from_stream(endless)))
    });
    assert_failed(&from_a_liar(image(), lie).await, Fault::Pull, "more than 4096 KiB");
    let said = about(Method::GET, "manifests/1", |_, _| Some(response(200, &[], vec![b' '; 5_000_000])));
    assert_failed(&from_a_liar(image(), said).await, Fault::Pull, "more than 4096 KiB");
}

#[tokio::test]
async fn what_is_no_manifest_is_not_copied() {
    for (text, words) in [
        ("<html>not found</html>", "cannot be read"),
        ("", "cannot be read"),
        ("{}", "its type is"),
        (r#"{"schemaVersion": 1}"#, "only 2 is copied"),
        (r#"{"schemaVersion": 2}"#, "neither that of an image nor an index"),
    ] {
        let lie = about(Method::GET, "manifests/1", move |_, _| Some(response(200, &[("content-type", INDEX)], text)));
        assert_failed(&from_a_liar(Image::default(), lie).await, Fault::Pull, words);
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
        assert_failed(&from_a_liar(lie, honest()).await, Fault::Pull, words);
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
    assert_failed(&checked(failed, &target), Fault::Pull, "more than 64 manifests");
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
    assert_failed(&from_a_liar(nested(3), honest()).await, Fault::Pull, "nested more than 2 deep");
}

#[tokio::test]
async fn image_that_is_not_there_is_named() {
    let failed = from_a_liar(Image::default(), honest()).await;
    assert_failed(&failed, Fault::Pull, "there is no image 127.0.0.1:");
    assert!(!failed.is_for_now());
    let mut without = image();
    without.blobs.remove(&layer());
    assert_failed(&from_a_liar(without, honest()).await, Fault::Pull, "there is no blob sha256:");
}

#[tokio::test]
async fn target_that_has_the_blob_before_it_was_sent_is_not_believed() {
    let lie = about(Method::PUT, "uploads", |_, _| Some(response(201, &[], "")));
    let big = Image::of(&[bytes(1, 30_000_000)]);
    let (source, target) = (Fake::serving(big, honest()).await, Fake::serving(Image::default(), lie).await);
    let failed = run(&copy_of(&source.address, &target.address)).await.unwrap_err();
    assert_eq!(checked(failed, &target).fault(), Fault::Push);
}

#[tokio::test]
async fn target_that_names_another_digest_is_not_believed() {
    let other = support::digest(b"other");
    let lie =
        about(Method::PUT, "manifests/", move |_, _| Some(response(201, &[("docker-content-digest", &other)], "")));
    assert_failed(&to_a_liar(lie).await, Fault::DigestMismatch, "another digest");
}
