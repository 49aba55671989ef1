//! Makes a request of a [`Write`], sends it, and puts the reply into the cache.
//!
//! The check of the caller runs right before the request is sent. This module never repeats a write, and never sends a write with an
//! invalid name.

use kube::core::params::{DeleteParams, Patch, PatchParams, PostParams, Preconditions, PropagationPolicy};
use kube::core::response::reason;
use oarlock_core::object::api_object::{Kind, ObjectKey};
use oarlock_core::object::key::JobKey;
use oarlock_core::requests::adopt::why_foreign;
use oarlock_core::requests::scripts::made_by;
use oarlock_core::requests::writes::{Lane, PluginAccount, Stopped, Write};
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::error_chain::error_chain;
use crate::lease::fence::Fence;
use crate::link::Link;
use crate::send::outcome::{kept, stopped, tested};
use crate::send::plugin_accounts::IMPERSONATE_USER;
use crate::transport::call::{ApiCall, RequestError, absent};
use crate::transport::discovery::DiscoverError;
use crate::transport::limiter::{Busy, WritePermit};
use crate::transport::path::Resource;
use crate::transport::projection::Projection;
use crate::transport::shares::WriteOwner;
use crate::watch::jobs::read_job;
use crate::watch::objects::Author;

/// The field manager of all writes of the host.
const FIELD_MANAGER: &str = "oarlock";

/// The target of a write, the reader of its reply, and whether it is a dry run.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Purpose<'a> {
    /// The caller reads the whole reply. Otherwise only the store reads it, which keeps the fields that plugins declare.
    pub(crate) whole_reply: bool,
    /// The target that the write is for.
    pub(crate) author: Option<&'a Author>,
    /// The API server makes all checks of the write but does not make the write.
    pub(crate) dry_run: bool,
    /// The account of the plugin that proposed the write. `None` for the host's own account.
    pub(crate) account: Option<&'a PluginAccount>,
}

type Request = Result<http::Request<Vec<u8>>, kube::core::request::Error>;

impl Link {
    /// Sends one write outside the queue, once the limiter of the lane admits it.
    pub(crate) async fn write(&self, write: &Write, lane: Lane, fence: &Fence) -> Result<Value, Stopped> {
        self.write_for(write, WriteOwner::of_object(write.object()), lane, fence).await
    }

    /// Sends one write outside the queue against the quota of this owner, once the limiter of the lane admits it.
    pub(crate) async fn write_for(
        &self,
        write: &Write,
        owner: WriteOwner,
        lane: Lane,
        fence: &Fence,
    ) -> Result<Value, Stopped> {
        let limiter = if lane == Lane::Record { &self.record_limiter } else { &self.limiter };
        let permit = limiter.enter(owner).await;
        let check = || if fence.allows() { Ok(()) } else { Err(Stopped::LostLease) };
        self.write_with(write, permit, check, Purpose { whole_reply: true, ..Purpose::default() }).await
    }

    /// Sends one write that the limiter has admitted. Adds the proof to each hold that the write puts on a pod. The function awaits nothing between
    /// `check` and the request.
    pub(crate) async fn write_with(
        &self,
        write: &Write,
        permit: WritePermit,
        check: impl FnOnce() -> Result<(), Stopped>,
        purpose: Purpose<'_>,
    ) -> Result<Value, Stopped> {
        if write.object().kind == Kind::host_task() {
            check()?;
            return self.host_task(write, purpose.dry_run);
        }
        if !purpose.dry_run
            && let Some(known) = self.without_request(write)
        {
            return known;
        }
        let proved = match write {
            Write::Patch { object, subresource: None, body } => {
                self.objects.hold_keys.read().proved_patch(object, body)
            }
            _ => None,
        };
        let proved = proved.map(|body| Write::Patch { object: write.object().clone(), subresource: None, body });
        let write = proved.as_ref().unwrap_or(write);
        let object = write.object();
        let shown = self.objects.store.get(object).map(|object| object.uid.clone());
        let sent = self.request(write, permit, check, purpose).await;
        match sent {
            // The reply of a dry run shows the object as it would be.
            Ok(reply) if purpose.dry_run => Ok(reply),
            Ok(reply) => {
                tracing::debug!(object = ?write.object(), verb = write.verb(), "written");
                made_by(write).into_iter().for_each(|name| self.scripts.lock().made(name));
                self.remember(write, &reply, purpose.author);
                Ok(reply)
            }
            Err(failure) => {
                if let (WriteFailure::ApiCall(error), Some(uid)) = (&failure, shown)
                    && absent(error, &object.name)
                {
                    self.objects.send(self.objects.store.confirm_gone(object, &uid), None);
                }
                let stopped = match failure.stopped(write) {
                    Stopped::Blocked { message, retry_after } => {
                        Stopped::Blocked { message: self.with_budgets(object, message).await, retry_after }
                    }
                    stopped => stopped,
                };
                let unsure = matches!(stopped, Stopped::Gone | Stopped::Conflict | Stopped::Unknown { .. });
                if let (Some(key), true) = (job_key(object), unsure) {
                    self.jobs.mark_uncertain(&key);
                }
                Err(stopped)
            }
        }
    }

    async fn request(
        &self,
        write: &Write,
        permit: WritePermit,
        check: impl FnOnce() -> Result<(), Stopped>,
        purpose: Purpose<'_>,
    ) -> Result<Value, WriteFailure> {
        let object = write.object();
        let resource = self.discovery.resource(&self.transport, &object.kind).await?;
        let (label, mut request) = built(write, purpose, &resource)?;
        if let (Some(account), Ok(request)) = (purpose.account, &mut request) {
            let value = self.accounts.read().header(account).map_err(WriteFailure::Checked)?;
            request.headers_mut().insert(IMPERSONATE_USER, value);
        }
        check().map_err(WriteFailure::Checked)?;
        let begun = Instant::now();
        let reply = self.transport.send(ApiCall { verb: verb(write), resource: &label, request }).await;
        permit.leave(begun.elapsed(), reply.as_ref().err().map_or(Busy::Nobody, busy));
        match reply {
            Ok(reply) => Ok(self.reply_of(object, purpose, &reply).map_err(RequestError::Unreadable)?),
            Err(error) if already_exists(&error) => self.ours(write, error).await,
            Err(error) => Err(self.forbidden(&error, purpose).unwrap_or(WriteFailure::ApiCall(error))),
        }
    }

    /// Returns the failure of a write as a plugin's account, if the API server missed a right.
    fn forbidden(&self, error: &RequestError, purpose: Purpose<'_>) -> Option<WriteFailure> {
        self.accounts.read().forbidden(error, purpose.account?).map(WriteFailure::Forbidden)
    }

    /// Parses the fields of a reply that the caller or the store needs. Jobs are kept whole, whatever fields plugins declare for their
    /// kind.
    fn reply_of(&self, object: &ObjectKey, purpose: Purpose<'_>, reply: &[u8]) -> Result<Value, serde_json::Error> {
        if purpose.whole_reply || object.kind == Kind::job() {
            return Projection::everything().read(reply);
        }
        self.objects.projection(&object.kind).read(reply)
    }

    /// Counts an existing object with the name of a create as created, if it is the object that the create would have made.
    async fn ours(&self, write: &Write, error: RequestError) -> Result<Value, WriteFailure> {
        let Write::Create { object, body, owner_uid } = write else { return Err(error.into()) };
        let document = self.read(object).await.map_err(|failure| WriteFailure::NotSent(failure.message))??;
        match why_foreign(body, &document, owner_uid) {
            None => Ok(document),
            Some(why) => Err(WriteFailure::NotSent(format!("{}: {why}", error_chain(&error)))),
        }
    }

    fn remember(&self, write: &Write, reply: &Value, author: Option<&Author>) {
        let object = write.object();
        let is_object = reply.get("kind").and_then(Value::as_str) == Some(object.kind.kind.as_str());
        match (job_key(object), write) {
            // The reply is an Eviction or a Status, and shows no field of the pod.
            (_, Write::Evict { .. }) => {}
            (Some(_), _) if is_object => read_job(reply).into_iter().for_each(|held| self.jobs.reply(held)),
            (None, _) if is_object => {
                let taken =
                    self.objects.project(reply, &object.kind).and_then(|object| self.objects.store.apply(object));
                self.objects.send(taken, author);
            }
            // The API server replies to a delete with a Status if the object no longer exists.
            (Some(key), Write::Delete { uid, .. }) => self.jobs.gone(&key, uid),
            (None, Write::Delete { uid, .. }) => {
                self.objects.send(self.objects.store.confirm_gone(object, uid), author);
            }
            _ => {}
        }
    }
}

/// The reason why a request has no good reply.
pub(crate) enum WriteFailure {
    /// The request could not be built, or the object belongs to another owner.
    NotSent(String),
    /// The last check before the request stopped it.
    Checked(Stopped),
    /// The host or the plugin's account lacks a right.
    Forbidden(Stopped),
    /// Discovery failed, and nothing was sent.
    Discover(DiscoverError),
    /// The request was sent.
    ApiCall(RequestError),
}

impl From<DiscoverError> for WriteFailure {
    fn from(error: DiscoverError) -> Self {
        Self::Discover(error)
    }
}

impl From<RequestError> for WriteFailure {
    fn from(error: RequestError) -> Self {
        Self::ApiCall(error)
    }
}

impl WriteFailure {
    fn stopped(&self, write: &Write) -> Stopped {
        match self {
            Self::NotSent(message) => Stopped::Refused { message: message.clone() },
            Self::Checked(stopped) | Self::Forbidden(stopped) => stopped.clone(),
            Self::Discover(error) if error.is_refused() => Stopped::Refused { message: error_chain(error) },
            // The write was not made and is possible later.
            Self::Discover(_) => Stopped::Throttled { retry_after: None },
            Self::ApiCall(error) if matches!(write, Write::Patch { body: Value::Array(_), .. }) => tested(error),
            // The namespace of the object does not exist.
            Self::ApiCall(error) if matches!(write, Write::Create { .. }) && stopped(error) == Stopped::Gone => {
                Stopped::Refused { message: error_chain(error) }
            }
            Self::ApiCall(error) if matches!(write, Write::Evict { .. }) => kept(error),
            Self::ApiCall(error) => stopped(error),
        }
    }
}

fn built(write: &Write, purpose: Purpose<'_>, resource: &Resource) -> Result<(String, Request), WriteFailure> {
    let ObjectKey { namespace, name, .. } = write.object();
    let home = resource.home(namespace.as_deref(), name).map_err(|error| WriteFailure::NotSent(error_chain(&error)))?;
    let home = kube::core::Request::new(home);
    let plural = &resource.plural;
    let Purpose { dry_run, .. } = purpose;
    let post = PostParams { dry_run, field_manager: Some(FIELD_MANAGER.to_owned()) };
    let patch = PatchParams { dry_run, field_manager: Some(FIELD_MANAGER.to_owned()), ..PatchParams::default() };
    Ok(match write {
        Write::Patch { subresource: None, body, .. } => (plural.clone(), home.patch(name, &patch, &patch_of(body)?)),
        Write::Patch { subresource: Some(sub), body, .. } => {
            (format!("{plural}/{sub}"), home.patch_subresource(sub, name, &patch, &patch_of(body)?))
        }
        Write::Evict { .. } => (
            format!("{plural}/eviction"),
            home.create_subresource("eviction", name, &post, json_bytes(&eviction(write, purpose))),
        ),
        Write::Create { body, .. } => (plural.clone(), home.create(&post, json_bytes(body))),
        Write::Delete { .. } => (plural.clone(), home.delete(name, &delete_params(write, purpose)?)),
    })
}

fn patch_of(body: &Value) -> Result<Patch<&Value>, WriteFailure> {
    if !body.is_array() {
        return Ok(Patch::Merge(body));
    }
    let patch = serde_json::from_value(body.clone());
    patch.map(Patch::Json).map_err(|error| WriteFailure::NotSent(format!("failed to build a JSON Patch: {error}")))
}

/// Returns the body of an eviction. The Kubernetes client spells `deleteOptions` in a way that the API server ignores. The body names a dry
/// run for the deletion, and the query names it for admission.
fn eviction(write: &Write, purpose: Purpose<'_>) -> Value {
    let Write::Evict { pod, uid, resource_version, grace_seconds } = write else { return Value::Null };
    let mut preconditions = json!({"uid": uid});
    if let (Some(version), Some(into)) = (resource_version, preconditions.as_object_mut()) {
        into.insert("resourceVersion".to_owned(), json!(version));
    }
    let mut options = json!({"preconditions": preconditions});
    if let (Some(seconds), Some(into)) = (grace_seconds, options.as_object_mut()) {
        into.insert("gracePeriodSeconds".to_owned(), json!(seconds));
    }
    if let (true, Some(into)) = (purpose.dry_run, options.as_object_mut()) {
        into.insert("dryRun".to_owned(), json!(["All"]));
    }
    json!({"apiVersion": "policy/v1", "kind": "Eviction",
        "metadata": {"name": pod.name, "namespace": pod.namespace}, "deleteOptions": options})
}

fn delete_params(write: &Write, purpose: Purpose<'_>) -> Result<DeleteParams, WriteFailure> {
    let Write::Delete { uid, resource_version, grace_seconds, propagation, .. } = write else {
        return Ok(DeleteParams::default());
    };
    let propagation_policy = match propagation.as_deref() {
        None => None,
        Some("Background") => Some(PropagationPolicy::Background),
        Some("Foreground") => Some(PropagationPolicy::Foreground),
        Some("Orphan") => Some(PropagationPolicy::Orphan),
        Some(other) => return Err(WriteFailure::NotSent(format!("{other:?} is no propagation policy"))),
    };
    let preconditions = Preconditions { uid: Some(uid.clone()), resource_version: resource_version.clone() };
    Ok(DeleteParams {
        dry_run: purpose.dry_run,
        grace_period_seconds: *grace_seconds,
        propagation_policy,
        preconditions: Some(preconditions),
    })
}

fn json_bytes(value: &Value) -> Vec<u8> {
    value.to_string().into_bytes()
}

fn verb(write: &Write) -> &'static str {
    match write {
        Write::Patch { .. } => "patch",
        Write::Evict { .. } | Write::Create { .. } => "create",
        Write::Delete { .. } => "delete",
    }
}

/// Returns which side was too busy for a write. An overloaded API server refuses before it reads the request, and answers with a text. The
/// answer of a webhook comes as a Status.
fn busy(error: &RequestError) -> Busy {
    match (stopped(error), error) {
        (Stopped::Throttled { .. }, RequestError::Refused(refusal)) if refusal.is_status => Busy::Owner,
        (Stopped::Throttled { .. }, _) => Busy::Server,
        _ => Busy::Nobody,
    }
}

pub(crate) fn already_exists(error: &RequestError) -> bool {
    matches!(error, RequestError::Refused(refusal) if refusal.status.reason == reason::ALREADY_EXISTS)
}

/// Returns the key of an object that is an OperationJob.
fn job_key(object: &ObjectKey) -> Option<JobKey> {
    let is_job = object.kind == Kind::job();
    let namespace = object.namespace.clone().filter(|_| is_job)?;
    Some(JobKey { namespace, name: object.name.clone() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_eviction_spells_its_preconditions_as_the_server_reads_them() {
        let pod = ObjectKey::pod("d", "a");
        let write = Write::Evict { pod, uid: "u".into(), resource_version: Some("7".into()), grace_seconds: Some(5) };
        let body = eviction(&write, Purpose::default());
        assert_eq!(body.pointer("/deleteOptions/preconditions/uid"), Some(&json!("u")));
        assert_eq!(body.pointer("/deleteOptions/preconditions/resourceVersion"), Some(&json!("7")));
        assert_eq!(body.pointer("/deleteOptions/gracePeriodSeconds"), Some(&json!(5)));
        assert_eq!(body.pointer("/deleteOptions/dryRun"), None);
    }

    #[test]
    fn a_write_to_a_name_that_is_a_path_is_never_built() {
        let object = ObjectKey::pod("d", "p4/status");
        let resource = Resource { api_version: "v1".into(), plural: "pods".into(), namespaced: true };
        let write = Write::Patch { object, subresource: None, body: json!({}) };
        assert!(matches!(built(&write, Purpose::default(), &resource), Err(WriteFailure::NotSent(_))));
    }
}
