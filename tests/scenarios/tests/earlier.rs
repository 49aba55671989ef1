//! An upgrade from an earlier host to this one and back, on a real control plane. Each version removes the holds that the other has put on a pod.
//!
//! `OARLOCK_EARLIER_BINARY` names a binary of the earlier version. In the first test, the host of that version does not prove holds. The second
//! test takes any earlier version: it runs that version on what this one has stored.

use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use k8s_openapi::api::core::v1::Secret;
use kube::{Api, ResourceExt as _};
use oarlock::manifests::{GrantedAccess, PodPolicies, manifests_with};
use oarlock_scenarios::components::GRANTS;
use oarlock_scenarios::host_process::HostProcess;
use oarlock_scenarios::jobs::{Told, replace};
use oarlock_scenarios::mode::Mode;
use oarlock_scenarios::test_cluster::{TestCluster, patiently};
use oarlock_sim::world::{Pause, Scope};
use oarlock_support::accounts::Account;
use oarlock_support::control_plane;
use oarlock_support::install::{self, Way};
use serde_json::json;

/// Returns the text of the only hold of a pod.
async fn hold(cluster: &TestCluster, pod: &str) -> anyhow::Result<String> {
    let pod = cluster.pods().get(pod).await?;
    let hold = pod.annotations().iter().find(|(key, _)| key.starts_with("hold.oarlock.dev/"));
    Ok(hold.map(|(_, text)| text.clone()).unwrap_or_default())
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs a binary: OARLOCK_EARLIER_BINARY=oarlock-0.1 cargo test --workspace --exclude hostile --exclude oarlock-bench --test earlier -- --ignored"]
async fn what_a_host_of_an_earlier_version_has_put_on_a_pod_this_one_takes_off_and_the_other_way() -> anyhow::Result<()>
{
    let earlier = std::env::var_os("OARLOCK_EARLIER_BINARY").map(PathBuf::from).context("OARLOCK_EARLIER_BINARY")?;
    let plane = Arc::new(control_plane::start(control_plane::Options::default()).await?);
    let admin = plane.client(Account::Admin).await?;
    let printed = Command::new(&earlier).arg("manifests").output()?;
    install::install(&admin, &install::documents(&String::from_utf8(printed.stdout)?)?, Way::Apply).await?;
    let newer = || {
        let access = GrantedAccess::of(oarlock_wasm::parse_grants(GRANTS)?);
        install::documents(&manifests_with(&access, PodPolicies::ALL)?)
    };
    let cluster = TestCluster::real(plane.clone(), "team").await?;
    let earlier_host = HostProcess::prepare(&plane, plane.kubeconfig(Account::Host)?, "host-0")?;
    let host = HostProcess::prepare(&plane, plane.kubeconfig(Account::Host)?, "host-1")?;
    let set = Mode::CollaSet.plant(&cluster, 3).await?;
    cluster.world.settled(&set, Duration::from_secs(180)).await?;
    let names = cluster.pod_names(Mode::CollaSet.app()).await?;
    let held = async |pod: &str, proved: bool| {
        patiently("the pod is held", async || {
            let text = hold(&cluster, pod).await?;
            Ok(!text.is_empty() && text.contains("mac:") == proved)
        })
        .await
        .context(host.tail())
    };
    let secrets = Api::<Secret>::namespaced(admin.clone(), "oarlock-system");

    // Upgrade: the earlier host holds a pod. This host waits beside it, as in a rollout, and makes the key that the leader does not make. Then it
    // adopts the hold and ends the job.
    cluster.world.hold(Pause::Creation, Scope::World);
    earlier_host.begin_with(&earlier)?;
    cluster.create_job("up", replace(std::slice::from_ref(&names[0]), json!({}))).await?;
    held(&names[0], false).await?;
    install::install(&admin, &newer()?, Way::Apply).await?;
    host.begin()?;
    patiently("the host that waits makes the key", async || {
        let keys = secrets.get_opt("oarlock-holds").await?.and_then(|secret| secret.data);
        Ok(keys.is_some_and(|keys| keys.contains_key("key")))
    })
    .await
    .context(host.tail())?;
    ensure!(!hold(&cluster, &names[0]).await?.contains("mac:"), "the earlier host leads until it ends");
    (earlier_host.killer())();
    held(&names[0], true).await?;
    cluster.world.release(Pause::Creation, Scope::World);
    cluster.until_progress("up", "Succeeded").await.context(host.tail())?;
    cluster.until_nothing_is_left().await?;

    // The policy is removed before the downgrade, as the docs say.
    let mut old_policy = newer()?;
    old_policy.retain(|document| document["metadata"]["name"] == "pod-holds.oarlock.dev");
    install::remove(&admin, &old_policy).await?;

    // Downgrade: this host holds two pods and the job of one pod vanishes. The earlier host removes both holds.
    cluster.world.hold(Pause::Creation, Scope::World);
    cluster.create_job("down", replace(std::slice::from_ref(&names[1]), json!({}))).await?;
    cluster.create_job("gone", replace(std::slice::from_ref(&names[2]), json!({}))).await?;
    held(&names[1], true).await?;
    held(&names[2], true).await?;
    install::install(&admin, &newer()?, Way::Apply).await?;
    earlier_host.begin_with(&earlier)?;
    (host.killer())();
    let mut cluster = cluster;
    cluster.vanish("gone").await?;
    cluster.world.release(Pause::Creation, Scope::World);
    cluster.until_progress("down", "Succeeded").await.context(earlier_host.tail())?;
    cluster.until_nothing_is_left().await?;
    earlier_host.check()?;
    earlier_host.end();
    ensure!(cluster.leftovers().await?.is_empty());
    Ok(())
}

/// The number of targets whose pods do not exist. With so many targets, a job has OperationRecords.
const MISSING: usize = 300;

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs a binary: OARLOCK_EARLIER_BINARY=oarlock-0.1 cargo test --workspace --exclude hostile --exclude oarlock-bench --test earlier -- --ignored stored"]
async fn the_version_before_reads_what_this_one_has_stored_and_goes_on() -> anyhow::Result<()> {
    let earlier = std::env::var_os("OARLOCK_EARLIER_BINARY").map(PathBuf::from).context("OARLOCK_EARLIER_BINARY")?;
    let plane = Arc::new(control_plane::start(control_plane::Options::default()).await?);
    let admin = plane.client(Account::Admin).await?;
    let access = GrantedAccess::of(oarlock_wasm::parse_grants(GRANTS)?);
    install::install(&admin, &install::documents(&manifests_with(&access, PodPolicies::USUAL)?)?, Way::Apply).await?;
    let cluster = TestCluster::real(plane.clone(), "team").await?;
    let earlier_host = HostProcess::prepare(&plane, plane.kubeconfig(Account::Host)?, "host-0")?;
    let host = HostProcess::prepare(&plane, plane.kubeconfig(Account::Host)?, "host-1")?;
    let set = Mode::CollaSet.plant(&cluster, 3).await?;
    cluster.world.settled(&set, Duration::from_secs(180)).await?;
    let mut targets = cluster.pod_names(Mode::CollaSet.app()).await?;
    let first = targets[0].clone();
    targets.extend((0..MISSING).map(|number| format!("missing-{number}")));

    // This host stores outcomes, records and a hold, and is killed in the middle.
    cluster.world.hold(Pause::Creation, Scope::World);
    host.begin()?;
    cluster.create_job("half", replace(&targets, json!({}))).await?;
    patiently("a pod is held, and the outcomes are stored", async || {
        let stored = cluster.jobs().get("half").await?;
        Ok(!hold(&cluster, &first).await?.is_empty() && stored.count("Failed") == MISSING)
    })
    .await
    .context(host.tail())?;
    (host.killer())();

    earlier_host.begin_with(&earlier)?;
    cluster.world.release(Pause::Creation, Scope::World);
    cluster.until_progress("half", "Failed").await.context(earlier_host.tail())?;
    let ended = cluster.jobs().get("half").await?;
    ensure!((ended.count("Succeeded"), ended.count("Failed")) == (3, MISSING), "{ended:?}");
    cluster.until_nothing_is_left().await?;
    earlier_host.check()?;
    earlier_host.end();
    ensure!(cluster.leftovers().await?.is_empty());
    Ok(())
}
