//! The control plane and the proxy in front of it, as they really run.
//!
//! Takes the binaries of a control plane, which are built if need be; a missing one fails these tests and never skips them.

#[cfg(test)]
mod lifetime;
#[cfg(test)]
mod requests;
#[cfg(test)]
mod through_proxy;

use oarlock_bed::audit::Audit;
use oarlock_bed::control_plane::{self, ControlPlane, Options};
use tokio::sync::OnceCell;

/// One control plane for all tests that only need one; it ends with this process.
async fn shared() -> anyhow::Result<&'static ControlPlane> {
    static SHARED: OnceCell<ControlPlane> = OnceCell::const_new();
    SHARED.get_or_try_init(|| control_plane::start(Options { audit: Audit::Writes, ..Options::default() })).await
}
