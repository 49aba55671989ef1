//! Reads the lease from the API server and writes it with this process as the holder.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use k8s_openapi::jiff::Timestamp;
use kube::core::params::{GetParams, PostParams};

use super::{LeaseHolder, NOTE, PROCESS};
use crate::error_chain::error_chain;
use crate::lease::config::LeaseConfig;
use crate::transport::call::{ApiCall, RequestError};
use crate::transport::path::Resource;

impl LeaseHolder {
    fn home(&self) -> Result<kube::core::Request, RequestError> {
        let resource =
            Resource { api_version: "coordination.k8s.io/v1".into(), plural: "leases".into(), namespaced: true };
        let LeaseConfig { namespace, name, .. } = &self.config;
        let invalid = |error| RequestError::Build(kube::core::request::Error::Validation(error_chain(&error)));
        resource.home(Some(namespace), name).map(kube::core::Request::new).map_err(invalid)
    }

    pub(super) async fn read(&self) -> Result<Lease, RequestError> {
        let request = self.home()?.get(&self.config.name, &GetParams::default());
        self.transport.fetch(ApiCall { verb: "get", resource: "leases", request }).await
    }

    /// Writes the lease with this process as the holder from now on.
    pub(super) async fn write(&self, lease: &mut Lease) -> Result<(), RequestError> {
        let spec: &mut LeaseSpec = lease.spec.get_or_insert_default();
        spec.holder_identity = Some(self.config.identity.clone());
        spec.lease_duration_seconds = Some(i32::try_from(self.config.duration.as_secs()).unwrap_or(i32::MAX).max(1));
        spec.renew_time = Some(MicroTime(self.transport.clock.now()));
        let annotations = lease.metadata.annotations.get_or_insert_default();
        annotations.insert(PROCESS.to_owned(), self.process.clone());
        // The note of an earlier holder is not valid for this holder.
        annotations.remove(NOTE);
        annotations.extend(self.note.borrow().clone().map(|note| (NOTE.to_owned(), note)));
        self.put(lease).await
    }

    /// Creates the lease if it has no version yet, and otherwise replaces that version.
    pub(super) async fn put(&self, lease: &mut Lease) -> Result<(), RequestError> {
        let home = self.home()?;
        let params = PostParams::default();
        let LeaseConfig { namespace, name, .. } = &self.config;
        let created = lease.metadata.resource_version.is_none();
        if created {
            lease.metadata.name = Some(name.clone());
            lease.metadata.namespace = Some(namespace.clone());
        }
        let body = serde_json::to_vec(lease).map_err(RequestError::Unreadable)?;
        let (verb, request) = match created {
            true => ("create", home.create(&params, body)),
            false => ("update", home.replace(name, &params, body)),
        };
        *lease = self.transport.fetch(ApiCall { verb, resource: "leases", request }).await?;
        Ok(())
    }
}

/// Returns the holder of the lease, which is empty if no process holds it.
pub(super) fn holder(lease: &Lease) -> &str {
    lease.spec.as_ref().and_then(|spec| spec.holder_identity.as_deref()).unwrap_or_default()
}

/// Returns the duration that the holder wrote into the lease.
pub(super) fn duration_of(lease: &Lease, otherwise: Duration) -> Duration {
    let named = lease.spec.as_ref().and_then(|spec| spec.lease_duration_seconds);
    named.and_then(|seconds| u64::try_from(seconds).ok()).map_or(otherwise, Duration::from_secs)
}

/// Returns a unique name for this process, by which an admin can find it.
pub(super) fn this_process(now: Timestamp) -> String {
    static NUMBER: AtomicU32 = AtomicU32::new(1);
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    let machine = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let machine = Some(machine.trim()).filter(|name| !name.is_empty()).unwrap_or("an unknown machine");
    format!("process {}.{number} on {machine}, since {now}", std::process::id())
}
