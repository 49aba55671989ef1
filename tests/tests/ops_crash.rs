//! A host that is killed at every write of an OpsJob, before it is sent and after it is made: nothing is lost, nothing done twice.

use oarlock_bed::faults::When;
use oarlock_tests::rig::Rig;
use oarlock_tests::scenarios::ops_crashes::{CrashGround, Deed};

async fn killed_everywhere(deed: Deed) -> anyhow::Result<()> {
    let mut rig = Rig::sim(1).await?;
    let mut ground = CrashGround::begin(&mut rig, deed).await?;
    let writes = ground.run((0, When::BeforeSend)).await?;
    for number in 1..=writes {
        for when in [When::BeforeSend, When::AfterCommit] {
            ground
                .run((number, when))
                .await
                .map_err(|error| error.context(format!("killed at write {number}, {when:?}")))?;
        }
    }
    println!("{deed:?}: a host was killed at {writes} writes, {} times", 2 * writes);
    anyhow::ensure!(writes >= 10, "a run has {writes} writes");
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn a_reboot_outlives_a_host_that_is_killed_at_any_write() -> anyhow::Result<()> {
    killed_everywhere(Deed::Reboot).await
}

#[tokio::test(start_paused = true)]
async fn a_stop_outlives_a_host_that_is_killed_at_any_write() -> anyhow::Result<()> {
    killed_everywhere(Deed::Stopped).await
}

#[tokio::test(start_paused = true)]
async fn a_preflight_outlives_a_host_that_is_killed_at_any_write() -> anyhow::Result<()> {
    killed_everywhere(Deed::Preflight).await
}
