//! The lease as the API server stores it: read, and written as held by this process.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use k8s_openapi::jiff::Timestamp;
use kube::core::params::{GetParams, PostParams};

use super::{LeaseHolder, NOTE, PROCESS};
use crate::lease::LeaseConfig;
use crate::outcome::sentence;
use crate::transport::call::{ApiCall, RequestError};
use crate::transport::path::Resource;

impl LeaseHolder {
    fn home(&self) -> Result<kube::core::Request, RequestError> {
        let resource =
            Resource { api_version: "coordination.k8s.io/v1".into(), plural: "leases".into(), namespaced: true };
        let LeaseConfig { namespace, name, .. } = &self.config;
        let invalid = |error| RequestError::Build(kube::core::request::Error::Validation(sentence(&error)));
        resource.home(Some(namespace), name).map(kube::core::Request::new).map_err(invalid)
    }

    pub(super) async fn read(&self) -> Result<Lease, RequestError> {
        let request = self.home()?.get(&self.config.name, &GetParams::default());
        self.transport.fetch(ApiCall { verb: "get", resource: "leases", request }).await
    }

    /// Writes the lease as held by this process from now on.
    pub(super) async fn write(&self, lease: &mut Lease) -> Result<(), RequestError> {
        let spec: &mut LeaseSpec = lease.spec.get_or_insert_default();
        spec.holder_identity = Some(self.config.identity.clone());
        spec.lease_duration_seconds = Some(i32::try_from(self.config.duration.as_secs()).unwrap_or(i32::MAX).max(1));
        spec.renew_time = Some(MicroTime(self.transport.clock.now()));
        let annotations = lease.metadata.annotations.get_or_insert_default();
        annotations.insert(PROCESS.to_owned(), self.process.clone());
        // That of an earlier holder is none of this one.
        annotations.remove(NOTE);
        annotations.extend(self.note.borrow().clone().map(|note| (NOTE.to_owned(), note)));
        self.put(lease).await
    }

    /// Creates the lease where it has no version yet, and replaces that version otherwise.
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

/// Who holds it; empty if nobody does.
pub(super) fn holder(lease: &Lease) -> &str {
    lease.spec.as_ref().and_then(|spec| spec.holder_identity.as_deref()).unwrap_or_default()
}

/// The duration that the holder wrote into the lease.
pub(super) fn duration_of(lease: &Lease, otherwise: Duration) -> Duration {
    let named = lease.spec.as_ref().and_then(|spec| spec.lease_duration_seconds);
    named.and_then(|seconds| u64::try_from(seconds).ok()).map_or(otherwise, Duration::from_secs)
}

/// A name for this process that no other one has, and by which an admin finds it.
pub(super) fn this_process(now: Timestamp) -> String {
    static NUMBER: AtomicU32 = AtomicU32::new(1);
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    let machine = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let machine = Some(machine.trim()).filter(|name| !name.is_empty()).unwrap_or("an unknown machine");
    format!("process {}.{number} on {machine}, since {now}", std::process::id())
}
