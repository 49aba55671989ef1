//! Server-side apply. It merges the configuration, removes fields that the manager no longer sends, and refuses to change
//! another manager's fields without `force`. The configuration gets no defaults before its fields are owned, so a manager
//! owns only the fields that it sent.

use serde_json::{Value, json};

use crate::{
    kinds::registry::split_api_version,
    lifecycle::prune,
    merge::{
        apply_merge,
        field_set::FieldSet,
        managed_fields::{self, FieldOwner},
    },
    object,
    server::{cluster::State, decode, handle::key, reply::Reply, routing::Call, status::Refusal},
    verbs::{
        create::{self, name_matches},
        update::{self, Managed},
    },
};

/// Answers a PATCH with an apply configuration.
pub(crate) fn apply(state: &mut State, call: &Call) -> Result<Reply, Refusal> {
    let kind = &call.kind;
    let config = configuration(call)?;
    let time = state.time();
    match state.store.get(kind.table, &key(call)).cloned() {
        Some(live) => {
            let (merged, owners) = merge(call, &live.value, &config, &time)?;
            let decode::Decoded { object: mut new, warnings } = decode::finish(call, merged)?;
            object::set_meta(
                &mut new,
                "resourceVersion",
                object::meta(&config, "resourceVersion").cloned().unwrap_or_default(),
            );
            Ok(update::change(state, call, &live, (new, Managed::By(owners)))?.warned(warnings))
        }
        None if !call.subresource.is_empty() => Err(Refusal::not_found(kind, &call.name)),
        None if !object::uid(&config).is_empty() => {
            let uid = object::uid(&config);
            let why =
                format!("uid mismatch: the provided object specified uid {uid}, and no existing object was found");
            Err(Refusal::conflict(kind, &call.name, &why))
        }
        None => {
            let base = json!({"kind": kind.kind, "apiVersion": kind.api_version(), "metadata": {}});
            let (merged, owners) = merge(call, &base, &config, &time)?;
            let decoded = decode::finish(call, merged)?;
            Ok(create::insert(state, call, (decoded.object, Managed::By(owners)))?.warned(decoded.warnings))
        }
    }
}

fn configuration(call: &Call) -> Result<Value, Refusal> {
    let kind = &call.kind;
    let mut config = decode::yaml_text(&call.body)?;
    if object::str_at(&config, &["kind"]).is_empty() || object::str_at(&config, &["apiVersion"]).is_empty() {
        let (group, version) = split_api_version(object::str_at(&config, &["apiVersion"]));
        let kind = object::str_at(&config, &["kind"]);
        return Err(Refusal::bad_request(format!("invalid object type: {group}/{version}, Kind={kind}")));
    }
    decode::typed(kind, &mut config)?;
    name_matches(call, &mut config)?;
    if object::meta(&config, "managedFields").is_some() {
        return Err(Refusal::bad_request("metadata.managedFields must be nil"));
    }
    let mut unknown = Vec::new();
    managed_fields::with_schema(kind, |schema| {
        if let Some(schema) = schema {
            let mut copy = config.clone();
            prune::prune(schema, &mut copy, "", &mut unknown);
        }
    });
    if unknown.is_empty() {
        return Ok(config);
    }
    let errors = unknown.iter().map(|path| format!(".{path}: field not declared in schema")).collect::<Vec<_>>();
    let errors =
        if let [one] = errors.as_slice() { one.clone() } else { format!("errors:\n  {}", errors.join("\n  ")) };
    let place = format!("{}/{}; {}, Kind={}", call.namespace, call.name, kind.api_version(), kind.kind);
    Err(Refusal::plain(500, "", format!("failed to create typed patch object ({place}): {errors}")))
}

/// Merges the configuration into the live object. Returns the result and the new field owners.
fn merge(call: &Call, live: &Value, config: &Value, time: &str) -> Result<(Value, Vec<FieldOwner>), Refusal> {
    managed_fields::with_schema(&call.kind, |schema| {
        let mut said = apply_merge::fields_of(schema, config);
        managed_fields::strip(&mut said);
        out_of_reach(call, &mut said);
        let mut owners = managed_fields::owners(live);
        let applier = FieldOwner {
            manager: managed_fields::manager(call),
            operation: "Apply".into(),
            api_version: call.kind.api_version(),
            subresource: call.subresource.clone(),
            time: time.to_owned(),
            fields: said.clone(),
        };
        let mine = |owner: &FieldOwner| {
            owner.manager == applier.manager && owner.operation == "Apply" && owner.subresource == applier.subresource
        };
        let last = owners.iter().find(|owner| mine(owner)).cloned();
        let mut merged = live.clone();
        apply_merge::merge(schema, &mut merged, config);
        let mut abandoned = last.as_ref().map(|last| last.fields.clone()).unwrap_or_default();
        abandoned.subtract_above(&said);
        for other in owners.iter().filter(|owner| !mine(owner)) {
            abandoned.subtract_above(&other.fields);
        }
        apply_merge::remove(schema, &mut merged, &abandoned);
        object::copy_meta(live, &mut merged, "managedFields");
        let mut change = apply_merge::difference(schema, live, &merged);
        managed_fields::strip(&mut change.written);
        refuse_conflicts(call, &owners, &mine, &change.written)?;
        managed_fields::disown(&mut owners, &change, mine);
        // Applying the same fields again must not change even the time of the entry.
        let unchanged = last.filter(|last| last.fields == said && last.api_version == applier.api_version);
        let entry =
            FieldOwner { time: unchanged.map_or_else(|| applier.time.clone(), |last| last.time), ..applier.clone() };
        match owners.iter_mut().find(|owner| mine(owner)) {
            Some(known) => *known = entry,
            None => owners.push(entry),
        }
        Ok((merged, owners))
    })
}

/// Removes the fields that the path does not write, so that the manager does not own them.
fn out_of_reach(call: &Call, said: &mut FieldSet) {
    if call.subresource == "status" {
        said.drop_below(&["f:spec"]);
        if call.kind.custom.is_some() {
            said.drop_below(&["f:metadata"]);
        }
    } else if call.kind.traits.status && !call.kind.is("", "Node") {
        said.drop_below(&["f:status"]);
    }
}

fn refuse_conflicts(
    call: &Call,
    owners: &[FieldOwner],
    mine: &impl Fn(&FieldOwner) -> bool,
    written: &FieldSet,
) -> Result<(), Refusal> {
    let others = owners.iter().filter(|owner| !mine(owner));
    let mut conflicts = others
        .map(|owner| (describe(owner), owner.fields.intersection(written).paths()))
        .filter(|(_, paths)| !paths.is_empty())
        .collect::<Vec<_>>();
    conflicts.sort();
    if conflicts.is_empty() || call.query.flag("force") {
        return Ok(());
    }
    let each = conflicts.iter().flat_map(|(who, paths)| paths.iter().map(move |path| (who, path)));
    let causes = each.map(|(who, path)| {
        json!({"reason": "FieldManagerConflict", "message": format!("conflict with {who}"), "field": path})
    });
    let causes = causes.collect::<Vec<_>>();
    let message = match conflicts.as_slice() {
        [(who, paths)] if paths.len() == 1 => {
            format!("Apply failed with 1 conflict: conflict with {who}: {}", paths.concat())
        }
        many => {
            let texts = many.iter().map(|(who, paths)| format!("conflicts with {who}:\n- {}", paths.join("\n- ")));
            format!("Apply failed with {} conflicts: {}", causes.len(), texts.collect::<Vec<_>>().join("\n"))
        }
    };
    Err(Refusal::plain(409, "Conflict", message).with_details(json!({"causes": causes})))
}

fn describe(owner: &FieldOwner) -> String {
    let mut text = format!("{:?}", owner.manager);
    if !owner.subresource.is_empty() {
        text.push_str(&format!(" with subresource {:?}", owner.subresource));
    }
    if owner.operation == "Update" {
        text.push_str(&format!(" using {}", owner.api_version));
    }
    text
}
