//! Scenarios, written once and run on both clusters.
//!
//! Each is a short script in an operator's words. It takes a rig with a running host and fails with what it saw.

pub mod replacing;

use crate::rig::Rig;

/// Names and UIDs of pods, as the ledger's verdict wants them.
///
/// # Errors
/// If a pod is not there.
pub async fn identities(rig: &Rig, names: &[String]) -> anyhow::Result<Vec<(String, String)>> {
    let mut found = Vec::new();
    for name in names {
        let pod = rig.pods().get(name).await?;
        found.push((name.clone(), pod.metadata.uid.unwrap_or_default()));
    }
    Ok(found)
}

/// Fails unless each of `targets` went once and was replaced once, and nothing of ours is left.
///
/// # Errors
/// With the ledger's verdict.
pub async fn all_replaced(rig: &Rig, targets: &[(String, String)]) -> anyhow::Result<()> {
    let verdict = rig.world.ledger().verdict(targets);
    anyhow::ensure!(verdict.is_clean(), "{verdict}");
    let left = rig.leftovers().await?;
    anyhow::ensure!(left.is_empty(), "left behind: {left:?}");
    Ok(())
}
