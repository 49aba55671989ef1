//! Indexes with missing or unknown parts, and tags that have moved to another image.

use super::*;

const ARTIFACT: &str = "application/vnd.oci.artifact.manifest.v1+json";

/// Returns an index of two platform images and an artifact that is no image. Also returns the digests of the second image and of the artifact.
fn mixed() -> (Image, String, String) {
    let mut image = Image::default();
    let layer = image.blob("application/vnd.oci.image.layer.v1.tar", bytes(3, 5_000));
    let mut platforms: Vec<_> = ["amd64", "arm64"]
        .map(|arch| {
            let config = image.blob("application/vnd.oci.image.config.v1+json", arch.as_bytes().to_vec());
            let of = json!({"schemaVersion": 2, "mediaType": MANIFEST, "config": config, "layers": [layer]});
            let mut part = image.manifest(MANIFEST, &of);
            part["platform"] = json!({"os": "linux", "architecture": arch});
            part
        })
        .into();
    let other = image.manifest(ARTIFACT, &json!({"mediaType": ARTIFACT, "blobs": []}));
    let digest = |part: &serde_json::Value| part["digest"].as_str().unwrap().to_owned();
    let (second, artifact) = (digest(&platforms[1]), digest(&other));
    platforms.push(other);
    image.manifest(INDEX, &json!({"schemaVersion": 2, "mediaType": INDEX, "manifests": platforms}));
    (image, second, artifact)
}

#[tokio::test]
async fn an_index_with_what_is_no_image_is_refused_with_its_cause() {
    let (image, _, artifact) = mixed();
    let failed = from_a_liar(image, honest()).await;
    assert_failed(&failed, Fault::Pull, &artifact);
    assert!(
        failed
            .to_string()
            .ends_with("its type is \"application/vnd.oci.artifact.manifest.v1+json\", which is not copied"),
        "{failed}"
    );
}

#[tokio::test]
async fn an_index_of_which_a_platform_is_missing_is_refused_and_says_how_the_rest_is_copied() {
    let (mut image, second, _) = mixed();
    image.manifests.remove(&second);
    let failed = from_a_liar(image, honest()).await;
    assert_failed(&failed, Fault::Pull, "mode copy-available copies the rest");
    assert!(failed.to_string().contains("for linux/arm64, is not there"), "{failed}");
}

#[tokio::test]
async fn what_is_there_of_an_index_is_copied_where_that_is_asked_for_and_the_rest_is_named() {
    let (mut image, second, artifact) = mixed();
    image.manifests.remove(&second);
    let (source, target) = (Fake::serving(image.clone(), honest()).await, Fake::empty().await);
    let mut copy = copy_of(&source.address, &target.address);
    copy.available = true;
    let copied = run(&copy).await.unwrap();
    assert_eq!(copied.left_out, [format!("linux/arm64 {second}"), format!("{ARTIFACT} {artifact}")]);
    let at_target = target.store.image.lock().unwrap().manifests.clone();
    let (_, index) = &at_target[&copied.digest];
    let index: serde_json::Value = serde_json::from_slice(index).unwrap();
    assert_eq!((index["manifests"].as_array().unwrap().len(), at_target.len()), (1, 2));
    assert_eq!(index["manifests"][0]["platform"]["architecture"], "amd64");
    // A second copy sends nothing and returns the same result.
    let again = run(&copy).await.unwrap();
    assert_eq!((again.bytes, &again.digest, &again.left_out), (0, &copied.digest, &copied.left_out));
}

#[tokio::test]
async fn an_index_that_is_all_there_keeps_its_digest_and_one_without_anything_is_refused() {
    let (source, target) = (Fake::serving(image(), honest()).await, Fake::empty().await);
    let mut copy = copy_of(&source.address, &target.address);
    copy.available = true;
    let copied = run(&copy).await.unwrap();
    assert_eq!((copied.digest.as_str(), copied.left_out.len()), (image().root.as_str(), 0));
    let mut empty = image();
    let root = empty.root.clone();
    empty.manifests.retain(|digest, _| *digest == root);
    let (source, target) = (Fake::serving(empty, honest()).await, Fake::empty().await);
    let mut copy = copy_of(&source.address, &target.address);
    copy.available = true;
    let failed = checked(run(&copy).await.unwrap_err(), &target);
    assert_failed(&failed, Fault::Pull, "nothing of it is there");
}

#[tokio::test]
async fn a_nested_index_is_written_anew_from_below() {
    let (mut image, second, _) = mixed();
    image.manifests.remove(&second);
    let (_, inner) = image.manifests[&image.root].clone();
    let inner = json!({"mediaType": INDEX, "digest": image.root, "size": inner.len()});
    image.manifest(INDEX, &json!({"schemaVersion": 2, "mediaType": INDEX, "manifests": [inner]}));
    let (source, target) = (Fake::serving(image, honest()).await, Fake::empty().await);
    let mut copy = copy_of(&source.address, &target.address);
    copy.available = true;
    let copied = run(&copy).await.unwrap();
    let at_target = target.store.image.lock().unwrap().manifests.clone();
    let outer: serde_json::Value = serde_json::from_slice(&at_target[&copied.digest].1).unwrap();
    let inner = &at_target[outer["manifests"][0]["digest"].as_str().unwrap()].1;
    assert_eq!(outer["manifests"][0]["size"], inner.len());
}

#[tokio::test]
async fn a_tag_that_is_another_image_than_the_one_that_runs_is_not_copied() {
    let image = image();
    let config =
        image.blobs.keys().find(|digest| image.blobs[*digest].starts_with(b"{\"architecture\":\"arm64\"")).unwrap();
    let (source, target) = (Fake::serving(image.clone(), honest()).await, Fake::empty().await);
    for (runs, is_it) in [(config, true), (&image.root, true), (&support::digest(b"other"), false)] {
        let mut copy = copy_of(&source.address, &target.address);
        copy.runs = Some(runs.clone());
        match run(&copy).await {
            Ok(copied) => assert!(is_it && copied.digest == image.root),
            Err(failed) => assert!(!is_it && failed.to_string().contains("another one now: what runs is"), "{failed}"),
        }
    }
}
