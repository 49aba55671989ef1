//! Registries that break off, are overloaded, do not answer or disappear, and copies that are cancelled.

use super::*;

#[tokio::test]
async fn blob_that_breaks_is_begun_anew_until_the_tries_are_used_up() {
    let broken = || {
        let parts = [Ok(bytes(1, 50_000)), Err(std::io::Error::other("gone"))];
        Some(response(200, &[], Body::from_stream(futures::stream::iter(parts))))
    };
    let failed = from_a_liar(image(), about(Method::GET, layer(), move |_, _| broken())).await;
    assert_failed(&failed, Fault::Pull, "fails");
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
    let short = Timeouts { stall: Duration::from_millis(50), ..timeouts() };
    let registries = Registries::with_timeouts(short).unwrap();
    let failed = registries.copy(&copy_of(&source.address, &target.address), |_| {}).await.unwrap_err();
    assert_failed(&checked(failed.clone(), &target), Fault::Pull, "is not answered within");
    assert!(failed.is_for_now());
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
        assert_failed(&failed, Fault::Pull, &status.to_string());
        assert!(failed.is_for_now());
        let failed = to_a_liar(busy(status, usize::MAX)).await;
        assert_failed(&failed, Fault::Push, &status.to_string());
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
    assert_failed(&failed, Fault::Pull, "refused");
    assert!(failed.is_for_now());
    let failed = run(&copy_of(&source.address, &nobody)).await.unwrap_err();
    assert_failed(&failed, Fault::Push, "refused");
    assert!(failed.is_for_now());
}

#[tokio::test]
async fn silent_registry_is_given_up() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let target = Fake::empty().await;
    let short = Timeouts { head: Duration::from_millis(50), ..timeouts() };
    let copy = copy_of(&listener.local_addr().unwrap().to_string(), &target.address);
    let failed = Registries::with_timeouts(short).unwrap().copy(&copy, |_| {}).await.unwrap_err();
    assert_failed(&failed, Fault::Pull, "is not answered within");
    assert!(failed.is_for_now());
}

#[tokio::test]
async fn target_that_refuses_is_not_tried_again() {
    for (status, why) in [(400, Fault::Push), (413, Fault::Push), (403, Fault::Unauthorized)] {
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
    let registries = Registries::with_timeouts(timeouts()).unwrap();
    let task = tokio::spawn(async move { registries.copy(&copy, |now| _ = sent.send_replace(now.copied)).await });
    seen.wait_for(|begun| *begun).await.unwrap();
    // The copy has sent all bytes except the end of the layer, which the source holds back, and the manifests.
    has_sent.wait_for(|sent| *sent > 20_000).await.unwrap();
    task.abort();
    target.store.broken.subscribe().wait_for(|broken| *broken == 1).await.unwrap();
    assert!(!target.store.image.lock().unwrap().blobs.contains_key(&layer()));
}
