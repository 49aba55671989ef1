//! Tests of the real control plane and of the proxy in front of it.
//!
//! The tests build the control plane's binaries if necessary. A missing binary fails the tests and never skips them.

#[cfg(test)]
mod lifetime;
#[cfg(test)]
mod requests;
#[cfg(test)]
mod through_proxy;

use oarlock_support::audit::Audit;
use oarlock_support::control_plane::{self, ControlPlane, Options};
use tokio::sync::OnceCell;

/// Returns one control plane that all tests share. It ends with this process.
async fn shared() -> anyhow::Result<&'static ControlPlane> {
    static SHARED: OnceCell<ControlPlane> = OnceCell::const_new();
    SHARED.get_or_try_init(|| control_plane::start(Options { audit: Audit::Writes, ..Options::default() })).await
}
