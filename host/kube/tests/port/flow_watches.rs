//! Watches of flow kinds that are not installed, may not be listed, or are installed later.

use std::time::Duration;

use http::Method;
use oarlock_kube::flows::Flows;
use oarlock_kube::watch::health::KindHealth;

use crate::faults::{Then, status};
use crate::fixture::Fixture;

async fn until(flows: &Flows, what: &str, which: impl Fn(&KindHealth) -> bool) {
    let all = || flows.health().iter().filter(|health| health.kind.api_version.starts_with("api.practice")).all(&which);
    let poll = async {
        while !all() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    let waited = tokio::time::timeout(Duration::from_secs(600), poll).await;
    waited.unwrap_or_else(|_| panic!("never seen: {what}: {:?}", flows.health()));
}

async fn install(fixture: &Fixture) {
    for crd in oarlock_api::FLOW_CRDS {
        fixture.install(crd).await;
    }
}

#[tokio::test(start_paused = true)]
async fn kinds_of_flows_that_are_not_installed_are_missed_by_nobody() {
    let fixture = Fixture::bare().await;
    let flows = Flows::watch(fixture.cluster.clone());
    until(&flows, "not served", |health| health.synced && !health.served).await;
    assert!(flows.health().iter().all(|health| !health.unread));
    install(&fixture).await;
    until(&flows, "listed", |health| health.synced && health.served && health.error.is_none()).await;
}

#[tokio::test(start_paused = true)]
async fn a_kind_of_flows_that_may_not_be_listed_is_unread_also_where_it_was_not_installed_before() {
    let fixture = Fixture::bare().await;
    let flows = Flows::watch(fixture.cluster.clone());
    until(&flows, "not served", |health| health.synced).await;
    let forbidden = || status(403, "Forbidden", "may not list");
    for plural in ["jobflows?", "daemonjobs?", "jobtemplates?"] {
        fixture.faults.plan(Method::GET, plural, (1_000, Then::Answer(403, forbidden())));
    }
    install(&fixture).await;
    until(&flows, "refused", |health| {
        health.unread && health.error.as_deref().is_some_and(|error| error.contains("may not list"))
    })
    .await;
    fixture.faults.heal();
    until(&flows, "listed", |health| !health.unread && health.served && health.error.is_none()).await;
}
