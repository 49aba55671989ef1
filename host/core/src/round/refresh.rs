//! The job as observed against the job as remembered.
//!
//! Takes what a round observed; brings the memory up to it and says what that means. A status that this term wrote
//! itself changes nothing; one that somebody else wrote is the truth, and everything is read anew. May not write.

use std::sync::Arc;

use k8s_openapi::jiff::Timestamp;
use oarlock_api::{OperationJob, OperationRecord};

use crate::cluster::writes::JobKey;
use crate::job::spec::{Invalid, ValidSpec, validate};
use crate::job::state::{JobState, extras};
use crate::plugin::lookup::Found;
use crate::plugin::manifest::Lifecycle;
use crate::round::memory::{Checked, JobMemory, StoredVersion};
use crate::shared::claims::{Claim, Claims};

/// What an observation means for the memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reflection {
    /// Nothing that concerns targets: it is as this term left it.
    Known,
    /// The durable state was read anew.
    Adopted,
    /// The records are needed first.
    NeedsRecords,
}

/// Brings `memory` up to `job`.
pub fn reflect(
    memory: &mut JobMemory,
    job: &OperationJob,
    records: Option<&[OperationRecord]>,
    now: Timestamp,
) -> Reflection {
    let seen = version(job);
    if memory.version.as_ref().is_some_and(|known| known.uid != seen.uid) {
        // Another job of the same name.
        *memory = JobMemory::default();
    }
    if memory.version.as_ref() == Some(&seen) {
        return Reflection::Known;
    }
    if let Some(known) = memory.version.as_ref().filter(|_| memory.status == job.status) {
        if (known.generation, known.deleting) != (seen.generation, seen.deleting) {
            // A spec edit or a deletion concerns every target that is not at rest.
            memory.dirty.extend(memory.processing.iter().chain(&memory.releasing));
        }
        memory.version = Some(seen);
        return Reflection::Known;
    }
    let sharded = job.status.as_ref().is_some_and(|status| status.records.is_some());
    if sharded && records.is_none() {
        memory.wants_records = true;
        return Reflection::NeedsRecords;
    }
    let records = records.unwrap_or_default();
    memory.wants_records = false;
    memory.shards = records.iter().filter_map(|record| u32::try_from(record.record.shard).ok()).collect();
    memory.status.clone_from(&job.status);
    memory.adopt(JobState::read(job, records, now), seen);
    Reflection::Adopted
}

/// The version of a job.
pub fn version(job: &OperationJob) -> StoredVersion {
    let meta = &job.metadata;
    StoredVersion {
        uid: meta.uid.clone().unwrap_or_default(),
        resource_version: meta.resource_version.clone().unwrap_or_default(),
        generation: meta.generation.unwrap_or(0),
        deleting: meta.deletion_timestamp.is_some(),
    }
}

/// Puts what the job's targets have stored into the table.
pub fn claim_stored(key: &JobKey, memory: &JobMemory, found: &Found, claims: &mut Claims) {
    let keys = match found {
        Found::Serving(plugin) => plugin.registration.exclusive_extras.clone(),
        // Without its plugin, whatever names an object may be claimed.
        _ => Vec::new(),
    };
    for (index, target) in (0u32..).zip(&memory.state.targets) {
        let Some(uid) = &target.uid else { continue };
        let named = target.extra.iter().filter(|(name, _)| {
            keys.contains(name) || keys.is_empty() && !extras::HOST.contains(&name.as_str()) && name.as_str() != "Mode"
        });
        for (_, value) in named {
            claims.claim(value, Claim { job: key.clone(), index, target_uid: uid.clone() });
        }
    }
}

/// Checks the spec, with the plugin where one serves. Checked once for each generation and plugin, for it costs as much
/// as there are targets.
pub fn check(
    key: &JobKey,
    memory: &mut JobMemory,
    job: &OperationJob,
    found: &Found,
) -> Result<Arc<ValidSpec>, Invalid> {
    let generation = job.metadata.generation.unwrap_or(0);
    let plugin = match found {
        Found::Serving(plugin) => Some(plugin.digest.clone()),
        _ => None,
    };
    if let Some(checked) = &memory.checked
        && (checked.generation, &checked.plugin) == (generation, &plugin)
    {
        return checked.outcome.clone();
    }
    let outcome = validate(job.spec.as_ref(), memory.state.selection.as_ref())
        .and_then(|spec| fits_plugin(key, spec, found))
        .map(Arc::new);
    memory.checked = Some(Checked { generation, plugin, outcome: outcome.clone() });
    outcome
}

fn fits_plugin(key: &JobKey, spec: ValidSpec, found: &Found) -> Result<ValidSpec, Invalid> {
    let Found::Serving(plugin) = found else { return Ok(spec) };
    if plugin.manifest.lifecycle != Lifecycle::Off {
        let name = &plugin.manifest.name;
        let message = format!(
            "plugin {name} wants its targets in the PodOpsLifecycle, which this version of the host does not have"
        );
        return Err(Invalid { reason: "InvalidValue", message });
    }
    if let Err(message) = plugin.manifest.check_parameters(&spec.parameters) {
        return Err(Invalid { reason: "ParametersInvalid", message: format!("spec.parameters: {message}") });
    }
    if !plugin.grant.allows_namespace(&key.namespace) {
        let message = format!("plugin {} is not granted namespace {}", plugin.manifest.name, key.namespace);
        return Err(Invalid { reason: "NamespaceNotAllowed", message });
    }
    Ok(spec)
}
