//! Answers a DELETE: removes the object at once, or marks it until its grace period ends and its finalizers are gone. The garbage
//! collector deletes its dependents.

use http::StatusCode;
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};

use crate::{
    access::user::User,
    admission::policies::{self, Operation},
    clock,
    kinds::registry::Kind,
    object::{self, at, meta, str_at},
    server::{
        cluster::State,
        decode,
        handle::{key, shown},
        list::Selection,
        reply::Reply,
        response_form::{ListMeta, ResponseForm},
        routing::Call,
        status::{FieldError, Refusal, success},
    },
    storage::{Key, ObjectVersion},
};

/// The finalizer of an owner whose dependents are deleted first.
pub(crate) const FOREGROUND: &str = "foregroundDeletion";
/// The finalizer of an owner whose dependents stay, without their reference to it.
pub(crate) const ORPHAN: &str = "orphan";

/// Options of a deletion.
#[derive(Debug, Clone, Default)]
pub(crate) struct DeleteOptions {
    pub(crate) grace: Option<i64>,
    pub(crate) uid: Option<String>,
    pub(crate) rv: Option<String>,
    pub(crate) propagation: Option<String>,
    pub(crate) dry_run: bool,
    /// The user that deletes.
    pub(crate) user: User,
}

impl DeleteOptions {
    /// Reads a DeleteOptions object.
    pub(crate) fn from_object(options: &Value) -> Self {
        let text = |path: &[&str]| object::at(options, path).and_then(Value::as_str).map(str::to_owned);
        let orphan = options.get("orphanDependents").and_then(Value::as_bool);
        let orphan = orphan.map(|orphan| if orphan { "Orphan" } else { "Background" }.to_owned());
        Self {
            grace: options.get("gracePeriodSeconds").and_then(Value::as_i64),
            uid: text(&["preconditions", "uid"]),
            rv: text(&["preconditions", "resourceVersion"]),
            propagation: text(&["propagationPolicy"]).or(orphan),
            dry_run: object::at(options, &["dryRun"]).and_then(Value::as_array).is_some_and(|all| !all.is_empty()),
            user: User::default(),
        }
    }

    fn of(call: &Call) -> Result<Self, Refusal> {
        let body = if call.body.is_empty() { Value::Null } else { decode::body(call)? };
        let mut options = Self { user: call.user.clone(), ..Self::from_object(&body) };
        if let Some(grace) = call.query.get("gracePeriodSeconds").and_then(|grace| grace.parse().ok()) {
            options.grace = Some(grace);
        }
        let orphan = call.query.get("orphanDependents").is_some() || body.get("orphanDependents").is_some();
        let said = call.query.get("propagationPolicy").or_else(|| at(&body, &["propagationPolicy"])?.as_str());
        let said = said.map(str::to_owned);
        if call.query.flag("orphanDependents") {
            options.propagation = Some("Orphan".into());
        }
        options.propagation = said.clone().or(options.propagation);
        options.dry_run |= call.query.dry_run();
        let Some(said) = said else { return Ok(options) };
        let wrong = if orphan {
            let detail = "orphanDependents and deletionPropagation cannot be both set";
            FieldError::invalid("propagationPolicy", &json!(said), detail)
        } else if matches!(said.as_str(), "Foreground" | "Background" | "Orphan") {
            return Ok(options);
        } else {
            let allowed = ["Foreground", "Background", "Orphan", "nil"].map(str::to_owned);
            FieldError::not_supported("propagationPolicy", &json!(said), &allowed)
        };
        Err(Refusal::invalid_options("DeleteOptions", &[wrong]))
    }
}

/// Result of a deletion.
pub(crate) enum DeleteOutcome {
    /// The object is gone. Holds its last state.
    Gone(ObjectVersion),
    /// The object waits for its grace period or finalizers.
    Waiting(ObjectVersion),
}

/// Answers a DELETE of one object.
pub(crate) fn delete(state: &mut State, call: &Call) -> Result<Reply, Refusal> {
    if !call.subresource.is_empty() {
        return Err(match &call.kind.custom {
            Some(_) => Refusal::not_supported(&call.kind, "delete"),
            None => Refusal::method_not_allowed(),
        });
    }
    let options = DeleteOptions::of(call)?;
    stays(call)?;
    match remove(state, &call.kind, &key(call), options)? {
        DeleteOutcome::Waiting(version) => shown(state, call, StatusCode::OK, &version),
        DeleteOutcome::Gone(version) if call.kind.traits.returns_deleted => {
            shown(state, call, StatusCode::OK, &version)
        }
        DeleteOutcome::Gone(version) => Ok(Reply::ok(&success(gone_details(&call.kind, &version.value)))),
    }
}

/// Refuses to delete the namespaces that every cluster needs.
fn stays(call: &Call) -> Result<(), Refusal> {
    let needed =
        call.kind.is("", "Namespace") && matches!(call.name.as_str(), "default" | "kube-public" | "kube-system");
    if needed { Err(Refusal::forbidden(&call.kind, &call.name, "this namespace may not be deleted")) } else { Ok(()) }
}

fn gone_details(kind: &Kind, object: &Value) -> Value {
    let mut details = json!({"name": object::name(object)});
    let map = object::as_map(&mut details);
    if !kind.group.is_empty() {
        map.insert("group".into(), json!(kind.group));
    }
    map.insert("kind".into(), json!(kind.plural));
    map.insert("uid".into(), json!(object::uid(object)));
    details
}

/// Answers a DELETE of a collection. Returns the objects as they were before.
pub(crate) fn collection(state: &mut State, call: &Call) -> Result<Reply, Refusal> {
    let options = DeleteOptions::of(call)?;
    let selected = Selection::of(call)?.now(state, call);
    let form = ResponseForm::wanted(call)?;
    let mut items = Vec::new();
    for (key, version) in selected {
        // An object that is already gone counts as deleted.
        match remove(state, &call.kind, &key, options.clone()) {
            Err(refusal) if refusal.code != 404 => return Err(refusal),
            _ => items.push(version),
        }
    }
    let meta = ListMeta { rv: state.store.rv(), ..ListMeta::default() };
    Ok(Reply::Json(StatusCode::OK, form.list(&items, &meta, state.now)))
}

/// Deletes an object, or marks it if its grace period or finalizers do not allow the deletion yet.
pub(crate) fn remove(
    state: &mut State,
    kind: &Kind,
    key: &Key,
    options: DeleteOptions,
) -> Result<DeleteOutcome, Refusal> {
    let old = state.store.get(kind.table, key).cloned().ok_or_else(|| Refusal::not_found(kind, &key.name))?;
    preconditions(kind, &old.value, &options)?;
    policies::judge(state, kind, &Operation::delete(&old.value), (&options.user, options.dry_run))?;
    let mut new = old.value.clone();
    let step = grace_step(kind, &mut new, &options, state.now);
    if let GraceStep::Pending = step {
        return Ok(DeleteOutcome::Waiting(copy(&old)));
    }
    propagate(kind, &mut new, options.propagation.as_deref());
    let held = object::finalizers(&new).next().is_some() || held_namespace(kind, &new);
    if held && !object::is_deleting(&new) {
        object::set_meta(&mut new, "deletionTimestamp", json!(state.time()));
        if !kind.is("", "Namespace") {
            object::set_meta(&mut new, "deletionGracePeriodSeconds", json!(0));
        }
        raise_generation(&mut new);
    }
    if kind.is("", "Namespace") && held {
        object::map_at(&mut new, "status").insert("phase".into(), json!("Terminating"));
    }
    let stays = held || matches!(step, GraceStep::Graceful(seconds) if seconds > 0);
    if options.dry_run {
        let version = ObjectVersion::new(old.rv, new);
        return Ok(if stays { DeleteOutcome::Waiting(version) } else { DeleteOutcome::Gone(version) });
    }
    let graceful = matches!(step, GraceStep::Graceful(_));
    let written = if (stays || graceful) && new != old.value {
        copy(&state.store.put(kind.table, key.clone(), new))
    } else {
        copy(&old)
    };
    if stays {
        return Ok(DeleteOutcome::Waiting(written));
    }
    Ok(DeleteOutcome::Gone(state.store.remove(kind.table, key).map_or(written, |last| copy(&last))))
}

fn copy(version: &ObjectVersion) -> ObjectVersion {
    ObjectVersion::new(version.rv, version.value.clone())
}

/// Returns true for a namespace that waits until its content is gone.
pub(crate) fn held_namespace(kind: &Kind, object: &Value) -> bool {
    let finalizers = object::at(object, &["spec", "finalizers"]).and_then(Value::as_array);
    kind.is("", "Namespace") && finalizers.is_some_and(|all| !all.is_empty())
}

pub(crate) fn preconditions(kind: &Kind, object: &Value, options: &DeleteOptions) -> Result<(), Refusal> {
    let conflict = |why: String| {
        // In this conflict the real server names the kind. In other conflicts it names the resource.
        let named = Kind { plural: kind.kind.clone(), ..kind.clone() };
        Err(Refusal::conflict(&named, object::name(object), &why))
    };
    let (uid, rv) = (object::uid(object), object::meta_str(object, "resourceVersion"));
    if let Some(wanted) = options.uid.as_deref().filter(|wanted| *wanted != uid) {
        return conflict(format!(
            "the UID in the precondition ({wanted}) does not match the UID in record ({uid}). The object might have been \
             deleted and then recreated"
        ));
    }
    if let Some(wanted) = options.rv.as_deref().filter(|wanted| *wanted != rv) {
        return conflict(format!(
            "the ResourceVersion in the precondition ({wanted}) does not match the ResourceVersion in record ({rv}). The \
             object might have been modified"
        ));
    }
    Ok(())
}

/// The effect of a deletion on the grace period.
enum GraceStep {
    /// The kind has no grace period, or the period is over.
    Now,
    /// The deletion marked the object with this many seconds.
    Graceful(i64),
    /// The object is already being deleted, and this request does not shorten the period.
    Pending,
}

fn grace_step(kind: &Kind, object: &mut Value, options: &DeleteOptions, now: Timestamp) -> GraceStep {
    if !kind.is("", "Pod") {
        return GraceStep::Now;
    }
    let wanted = options.grace.map(|seconds| if seconds < 0 { 1 } else { seconds });
    if object::is_deleting(object) {
        return shorten(object, wanted, now);
    }
    let own = object::at(object, &["spec", "terminationGracePeriodSeconds"]).and_then(Value::as_i64);
    let unscheduled = str_at(object, &["spec", "nodeName"]).is_empty();
    let over = matches!(str_at(object, &["status", "phase"]), "Failed" | "Succeeded");
    let seconds = if unscheduled || over { 0 } else { wanted.or(own).unwrap_or(0) };
    mark(object, now, seconds);
    raise_generation(object);
    GraceStep::Graceful(seconds)
}

fn shorten(object: &mut Value, wanted: Option<i64>, now: Timestamp) -> GraceStep {
    let current = meta(object, "deletionGracePeriodSeconds").and_then(Value::as_i64).unwrap_or_default();
    if current == 0 {
        return GraceStep::Now;
    }
    let Some(mut wanted) = wanted.filter(|wanted| *wanted < current) else { return GraceStep::Pending };
    let marked = object::meta_str(object, "deletionTimestamp").parse::<Timestamp>().unwrap_or(now);
    let begun = marked.checked_sub(SignedDuration::from_secs(current)).unwrap_or(now);
    let end = begun.checked_add(SignedDuration::from_secs(wanted)).unwrap_or(now);
    if end < now && wanted != 0 {
        wanted = 1;
    }
    object::set_meta(object, "deletionTimestamp", json!(clock::seconds(end.max(now))));
    object::set_meta(object, "deletionGracePeriodSeconds", json!(wanted));
    GraceStep::Graceful(wanted)
}

fn mark(object: &mut Value, now: Timestamp, seconds: i64) {
    let end = now.checked_add(SignedDuration::from_secs(seconds)).unwrap_or(now);
    object::set_meta(object, "deletionTimestamp", json!(clock::seconds(end)));
    object::set_meta(object, "deletionGracePeriodSeconds", json!(seconds));
}

fn raise_generation(object: &mut Value) {
    let generation = object::generation(object);
    if generation > 0 {
        object::set_meta(object, "generation", json!(generation + 1));
    }
}

/// Sets the finalizers that say what happens to the dependents.
fn propagate(kind: &Kind, object: &mut Value, policy: Option<&str>) {
    // By default Jobs orphan their pods, as they did before Kubernetes had a garbage collector.
    let default = if kind.is("batch", "Job") { Some("Orphan") } else { None };
    let has = |name: &str| object::finalizers(object).any(|one| one == name);
    let (foreground, orphan) = match policy {
        Some("Foreground") => (true, false),
        Some("Orphan") => (false, true),
        Some(_) => (false, false),
        None => (has(FOREGROUND), has(ORPHAN) || default == Some("Orphan")),
    };
    let mut wanted = object::finalizers(object)
        .filter(|one| *one != FOREGROUND && *one != ORPHAN)
        .map(str::to_owned)
        .collect::<Vec<_>>();
    wanted.extend(foreground.then(|| FOREGROUND.to_owned()));
    wanted.extend(orphan.then(|| ORPHAN.to_owned()));
    let changed = !object::finalizers(object).eq(wanted.iter().map(String::as_str));
    if changed {
        let list = if wanted.is_empty() { Value::Null } else { json!(wanted) };
        object::set_meta(object, "finalizers", list);
    }
}
