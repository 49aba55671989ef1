//! From a host of an earlier version to this one and back, on a real control plane: what one has put on a pod, the other takes off.
//!
//! Takes a binary of that version, one whose host proves no holds, from OARLOCK_EARLIER_BINARY.

use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use kube::ResourceExt as _;
use oarlock::manifests::{GrantedAccess, PodPolicies, manifests_with};
use oarlock_bed::accounts::Account;
use oarlock_bed::control_plane;
use oarlock_bed::install::{self, Way};
use oarlock_sim::world::{Pause, Scope};
use oarlock_tests::components::GRANTS;
use oarlock_tests::crash::mode::Mode;
use oarlock_tests::crash::process::HostProcess;
use oarlock_tests::jobs::replace;
use oarlock_tests::rig::{Rig, patiently};
use serde_json::json;

/// The text of the only hold of a pod.
async fn hold(rig: &Rig, pod: &str) -> anyhow::Result<String> {
    let pod = rig.pods().get(pod).await?;
    let hold = pod.annotations().iter().find(|(key, _)| key.starts_with("hold.oarlock.dev/"));
    Ok(hold.map(|(_, text)| text.clone()).unwrap_or_default())
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs a binary: OARLOCK_EARLIER_BINARY=oarlock-0.1 cargo test --workspace --exclude hostile --test earlier -- --ignored"]
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
    let rig = Rig::real(plane.clone(), "team").await?;
    let host = HostProcess::prepare(&plane, plane.kubeconfig(Account::Host)?, "host-0")?;
    let set = Mode::CollaSet.plant(&rig, 3).await?;
    rig.world.settled(&set, Duration::from_secs(180)).await?;
    let names = rig.pod_names(Mode::CollaSet.app()).await?;
    let held = async |pod: &str, proved: bool| {
        patiently("the pod is held", async || {
            let text = hold(&rig, pod).await?;
            Ok(!text.is_empty() && text.contains("mac:") == proved)
        })
        .await
        .context(host.tail())
    };

    // Up: the earlier host holds a pod, this one adopts the hold and ends the job.
    rig.world.hold(Pause::Creation, Scope::World);
    host.begin_with(&earlier)?;
    rig.create_job("up", replace(std::slice::from_ref(&names[0]), json!({}))).await?;
    held(&names[0], false).await?;
    (host.killer())();
    install::install(&admin, &newer()?, Way::Apply).await?;
    host.begin()?;
    held(&names[0], true).await?;
    rig.world.release(Pause::Creation, Scope::World);
    rig.until_progress("up", "Succeeded").await.context(host.tail())?;
    rig.until_nothing_is_left().await?;

    // Without the policy, as the docs say from then on.
    let mut old_policy = newer()?;
    old_policy.retain(|document| document["metadata"]["name"] == "pod-holds.oarlock.dev");
    install::remove(&admin, &old_policy).await?;

    // Back: this host holds two pods, the job of one vanishes, and the earlier host takes both holds off.
    rig.world.hold(Pause::Creation, Scope::World);
    rig.create_job("down", replace(std::slice::from_ref(&names[1]), json!({}))).await?;
    rig.create_job("gone", replace(std::slice::from_ref(&names[2]), json!({}))).await?;
    held(&names[1], true).await?;
    held(&names[2], true).await?;
    (host.killer())();
    install::install(&admin, &newer()?, Way::Apply).await?;
    let mut rig = rig;
    rig.vanish("gone").await?;
    host.begin_with(&earlier)?;
    rig.world.release(Pause::Creation, Scope::World);
    rig.until_progress("down", "Succeeded").await.context(host.tail())?;
    rig.until_nothing_is_left().await?;
    host.check()?;
    host.end();
    ensure!(rig.leftovers().await?.is_empty());
    Ok(())
}
