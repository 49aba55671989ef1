//! The note that the holder of the lease writes into the lease.

use std::time::Duration;

use k8s_openapi::api::coordination::v1::Lease;
use kube::api::Api;
use oarlock_kube::lease::config::NOTE;

use crate::fixture::Fixture;
use crate::lease::{leads, stand};

/// Returns the note as any reader of the lease finds it.
async fn note(fixture: &Fixture) -> Option<String> {
    let lease = Api::<Lease>::default_namespaced(fixture.admin.clone()).get("oarlock").await.unwrap();
    lease.metadata.annotations.unwrap_or_default().get(NOTE).cloned()
}

#[tokio::test(start_paused = true)]
async fn the_holder_says_something_along_with_a_renewal_and_takes_it_back_with_the_lease() {
    let fixture = Fixture::bare().await;
    let elector = stand(&fixture.cluster, "host-0");
    leads(&elector).await;
    assert_eq!(note(&fixture).await, None);
    let renewals = || fixture.cluster.requests().count("leases", "update");
    let (before, said) = (renewals(), elector.note());
    said.send_replace(Some("one".into()));
    said.send_replace(Some("two".into()));
    tokio::time::sleep(Duration::from_secs(4)).await;
    assert_eq!(note(&fixture).await.as_deref(), Some("two"));
    assert!(renewals() <= before + 2, "a note costs no request of its own");
    said.send_replace(None);
    tokio::time::sleep(Duration::from_secs(4)).await;
    assert_eq!(note(&fixture).await, None);
    said.send_replace(Some("three".into()));
    tokio::time::sleep(Duration::from_secs(4)).await;
    elector.resign().await.unwrap();
    assert_eq!(note(&fixture).await, None, "nobody serves any more");
}
