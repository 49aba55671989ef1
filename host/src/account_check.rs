//! Checks whether the host may act as the accounts of its plugins, so that an admin knows it before the first write is refused.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::timeout;

use crate::health::Probe;
use crate::ports::Ports;

/// The longest time between two checks while the host lacks a right.
const CHECK_EVERY: Duration = Duration::from_secs(60);

/// The plugins as whose accounts the host may not act, each with the reason. Clones share it.
#[derive(Clone, Default)]
pub(crate) struct AccountCheck(Arc<Mutex<BTreeMap<String, String>>>);

impl AccountCheck {
    /// Returns a probe that fails while the host may not act as an account.
    pub(crate) fn probe(&self) -> Probe {
        let this = self.clone();
        Box::new(move || {
            let lacking: Vec<String> = this
                .0
                .lock()
                .iter()
                .map(|(plugin, why)| format!("HostMayNotImpersonate: plugin {plugin}: {why}"))
                .collect();
            if lacking.is_empty() { Ok(()) } else { Err(lacking.join("; ")) }
        })
    }

    /// Checks the accounts whenever the plugins change, and once a minute while a right is missing, until the task is aborted.
    pub(crate) async fn run(self, ports: Arc<Ports>) {
        let mut changes = ports.plugins.changes();
        loop {
            changes.mark_unchanged();
            let missing = self.check(&ports).await;
            let changed = changes.changed();
            let ended = if missing {
                timeout(CHECK_EVERY, changed).await.is_ok_and(|ended| ended.is_err())
            } else {
                changed.await.is_err()
            };
            if ended {
                return;
            }
        }
    }

    /// Returns true if an account must be checked again.
    async fn check(&self, ports: &Ports) -> bool {
        let grants = ports.plugins.grants().unwrap_or_default();
        let (mut lacking, mut unknown) = (BTreeMap::new(), false);
        for grant in &grants {
            let Some(account) = grant.account() else { continue };
            match ports.cluster.may_act_as(&grant.name, account).await {
                Ok(Ok(())) => {}
                Ok(Err(why)) => drop(lacking.insert(grant.name.clone(), why)),
                Err(error) => {
                    tracing::debug!(plugin = grant.name, error, "failed to ask for the rights on an account; retrying");
                    unknown = true;
                }
            }
        }
        let mut known = self.0.lock();
        for (plugin, why) in &lacking {
            if known.get(plugin) != Some(why) {
                tracing::error!(
                    plugin,
                    reason = "HostMayNotImpersonate",
                    "the host may not act as the account of a plugin: {why}"
                );
            }
        }
        *known = lacking;
        unknown || !known.is_empty()
    }
}
