//! Plugins in a real registry: a local process with TLS and a password, which does not list referrers.

use oarlock_registry::Credentials;

use super::server::{PASSWORD, Server, USER};
use super::*;

#[tokio::test(flavor = "multi_thread")]
async fn plugin_is_pushed_signed_and_fetched_at_a_real_registry() {
    let server = Server::closed();
    let at = Destination {
        image: format!("{}/team/replace:1.0.0", server.address),
        credentials: Some(Credentials { username: USER.into(), password: PASSWORD.into() }),
        ca: server.ca.clone(),
        ..Destination::default()
    };
    let registries = Registries::with_timeouts(timeouts()).unwrap();
    let repository = registries.to_publish(&at).unwrap();
    let manifest = repository.push(component().into(), &info("1.0.0")).await.unwrap();
    let failed = registries.to_fetch(&at).unwrap().verify(Some(&policy()), MOST).await.unwrap_err();
    assert_failed(&failed, NOT_SIGNED, "nothing signs");

    let other = Sha256::of(b"other");
    for digest in [&other, manifest.digest()] {
        let bundle = key().sign_manifest(digest).unwrap();
        repository.attach(&manifest, bundle.into(), "2026-11-29T04:33:04Z").await.unwrap();
    }
    let mut bytes = Vec::new();
    let fetched = registries.to_fetch(&at).unwrap().fetch_verified(Some(&policy()), MOST, &mut bytes).await.unwrap();
    assert_eq!((fetched.manifest, bytes), (manifest, component()));
    assert_eq!(fetched.evidence.count(), 2);

    let anonymous = Destination { credentials: None, ..at };
    let failed = registries.to_fetch(&anonymous).unwrap().verify(Some(&policy()), MOST).await.unwrap_err();
    assert_failed(&failed, UNAVAILABLE, "there are no credentials");
}
