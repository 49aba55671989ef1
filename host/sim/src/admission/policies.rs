//! Evaluates the stored ValidatingAdmissionPolicies on a write. Mutating policies are not supported.

use std::sync::Arc;

use serde_json::{Value, json};

use crate::{
    access::{
        rbac::{Attributes, Roles},
        user::User,
    },
    admission::{cel_authorizer::Question, cel_eval::Variables},
    kinds::registry::Kind,
    object::{self, at, str_at},
    selectors::LabelSelector,
    server::{cluster::State, routing::Call, status::Refusal},
    storage::{Key, ObjectVersion},
};

const GROUP: &str = "admissionregistration.k8s.io";
/// The largest result of a message expression in bytes. For a longer result, the denial uses the plain message.
const MESSAGE_LIMIT: usize = 5 * 1024;

/// A write as admission sees it.
#[derive(Debug)]
pub(crate) struct Operation<'a> {
    name: &'static str,
    object: Option<&'a Value>,
    old: Option<&'a Value>,
    subresource: &'a str,
}

impl<'a> Operation<'a> {
    pub(crate) fn create(object: &'a Value) -> Self {
        Self { name: "CREATE", object: Some(object), old: None, subresource: "" }
    }

    pub(crate) fn update(object: &'a Value, old: &'a Value, subresource: &'a str) -> Self {
        Self { name: "UPDATE", object: Some(object), old: Some(old), subresource }
    }

    pub(crate) fn delete(old: &'a Value) -> Self {
        Self { name: "DELETE", object: None, old: Some(old), subresource: "" }
    }

    fn subject(&self) -> &'a Value {
        self.object.or(self.old).unwrap_or(&Value::Null)
    }
}

/// A write under admission.
struct Attempt<'a> {
    kind: &'a Kind,
    operation: &'a Operation<'a>,
    namespace: Option<Arc<ObjectVersion>>,
    user: &'a User,
    roles: Arc<Roles>,
    request: Value,
}

/// Evaluates every matching policy on the write of a call. Returns the first denial.
pub(crate) fn check(state: &State, call: &Call, operation: &Operation<'_>) -> Result<(), Refusal> {
    judge(state, &call.kind, operation, (&call.user, call.query.dry_run()))
}

/// Evaluates every matching policy on a user's write, also of another kind than the call's. The flag says whether it is a dry run.
pub(crate) fn judge(
    state: &State,
    kind: &Kind,
    operation: &Operation<'_>,
    (user, dry_run): (&User, bool),
) -> Result<(), Refusal> {
    if kind.group == GROUP {
        return Ok(());
    }
    let bindings = stored(state, "validatingadmissionpolicybindings");
    if bindings.is_empty() {
        return Ok(());
    }
    let attempt = Attempt::new(state, kind, operation, (user, dry_run));
    for policy in stored(state, "validatingadmissionpolicies") {
        let name = object::name(&policy.value);
        let mine = bindings.iter().filter(|binding| str_at(&binding.value, &["spec", "policyName"]) == name);
        for binding in mine {
            attempt.under(&policy.value, &binding.value)?;
        }
    }
    Ok(())
}

fn stored(state: &State, plural: &str) -> Vec<Arc<ObjectVersion>> {
    let Some(kind) = state.kinds.by_path(GROUP, "v1", plural) else { return Vec::new() };
    state.store.scan(kind.table, None).map(|(_, version)| Arc::clone(version)).collect()
}

impl<'a> Attempt<'a> {
    fn new(state: &State, kind: &'a Kind, operation: &'a Operation<'a>, (user, dry_run): (&'a User, bool)) -> Self {
        let subject = operation.subject();
        let namespace = state.kinds.by_path("", "v1", "namespaces").and_then(|namespaces| {
            state.store.get(namespaces.table, &Key::new("", object::namespace(subject))).cloned()
        });
        let own = json!({"group": kind.group, "version": kind.version, "kind": kind.kind});
        let resource = json!({"group": kind.group, "version": kind.version, "resource": kind.plural});
        let request = json!({
            "kind": own, "resource": resource, "subResource": operation.subresource,
            "requestKind": own, "requestResource": resource, "requestSubResource": operation.subresource,
            "name": object::name(subject), "namespace": object::namespace(subject), "operation": operation.name,
            "userInfo": user.info(),
            "dryRun": dry_run,
        });
        Self { kind, operation, namespace, user, roles: Arc::new(Roles::of(state)), request }
    }

    /// Evaluates the write under one policy and one binding.
    fn under(&self, policy: &Value, binding: &Value) -> Result<(), Refusal> {
        let denies = at(binding, &["spec", "validationActions"])
            .and_then(Value::as_array)
            .is_some_and(|actions| actions.iter().any(|action| action == "Deny"));
        let matches = |constraints: Option<&Value>| constraints.is_none_or(|constraints| self.matches(constraints));
        if !denies
            || at(policy, &["spec", "matchConstraints"]).is_none()
            || !matches(at(policy, &["spec", "matchConstraints"]))
            || !matches(at(binding, &["spec", "matchResources"]))
        {
            return Ok(());
        }
        let Some(denial) = self.evaluate(policy) else { return Ok(()) };
        Err(self.denied(policy, binding, &denial))
    }

    fn matches(&self, constraints: &Value) -> bool {
        let subject = self.operation.subject();
        let selected = |field: &str, target: &Value| {
            at(constraints, &[field])
                .is_none_or(|one| LabelSelector::from_object(Some(one)).is_none_or(|s| s.matches(target)))
        };
        let namespace_fits = if self.kind.is("", "Namespace") {
            selected("namespaceSelector", subject)
        } else {
            self.namespace.as_ref().is_none_or(|namespace| selected("namespaceSelector", &namespace.value))
        };
        let object_fits = [self.operation.object, self.operation.old].into_iter().flatten();
        let object_fits = object_fits.into_iter().any(|one| selected("objectSelector", one));
        let rules = |field: &str| at(constraints, &[field]).and_then(Value::as_array).cloned().unwrap_or_default();
        let (wanted, excluded) = (rules("resourceRules"), rules("excludeResourceRules"));
        namespace_fits
            && object_fits
            && !excluded.iter().any(|rule| self.rule_fits(rule))
            && (wanted.is_empty() || wanted.iter().any(|rule| self.rule_fits(rule)))
    }

    fn rule_fits(&self, rule: &Value) -> bool {
        let list = |field: &str| at(rule, &[field]).and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
        let has = |field: &str, wanted: &str| list(field).iter().any(|one| one == "*" || one == wanted);
        let scope = match str_at(rule, &["scope"]) {
            "Namespaced" => self.kind.namespaced,
            "Cluster" => !self.kind.namespaced,
            _ => true,
        };
        let resource = list("resources").iter().filter_map(Value::as_str).any(|one| {
            let (resource, subresource) = one.split_once('/').unwrap_or((one, ""));
            (resource == "*" || resource == self.kind.plural)
                && (subresource == "*" || subresource == self.operation.subresource)
        });
        let names = list("resourceNames");
        let named = names.is_empty() || names.iter().any(|one| one == object::name(self.operation.subject()));
        scope
            && resource
            && named
            && has("apiGroups", &self.kind.group)
            && has("apiVersions", &self.kind.version)
            && has("operations", self.operation.name)
    }

    /// Returns the first denial of a policy.
    fn evaluate(&self, policy: &Value) -> Option<Denial> {
        let fails = str_at(policy, &["spec", "failurePolicy"]) != "Ignore";
        let error = |message: String| fails.then_some(Denial { reason: "Invalid", message });
        let namespace =
            self.namespace.as_ref().map(|namespace| visible_namespace(&namespace.value)).unwrap_or_default();
        let mut scope = self.scope(&namespace);
        self.bind_authorizer(&mut scope);
        for condition in items(policy, "matchConditions") {
            match scope.holds(str_at(condition, &["expression"])) {
                Ok(true) => {}
                Ok(false) => return None,
                Err(reason) => return error(format!("matchCondition[{}]: {reason}", str_at(condition, &["name"]))),
            }
        }
        bind_variables(&mut scope, policy);
        items(policy, "validations").find_map(|validation| {
            let source = str_at(validation, &["expression"]);
            match scope.holds(source) {
                Ok(true) => None,
                Ok(false) => {
                    // Message expressions must not use the authorizer, nor a variable that uses it.
                    let mut scope = self.scope(&namespace);
                    bind_variables(&mut scope, policy);
                    Some(Denial { reason: reason(validation), message: message(&scope, validation) })
                }
                Err(cause) => error(format!("expression '{source}' resulted in error: {cause}")),
            }
        })
    }

    fn scope<'v>(&'v self, namespace: &'v Value) -> Variables<'v> {
        let mut scope = Variables::new();
        scope.bind("object", self.operation.object.unwrap_or(&Value::Null));
        scope.bind("oldObject", self.operation.old.unwrap_or(&Value::Null));
        scope.bind("request", &self.request);
        scope.bind("params", &Value::Null);
        scope.bind("namespaceObject", namespace);
        scope
    }

    fn bind_authorizer(&self, scope: &mut Variables<'_>) {
        let nothing = Question::new(Arc::clone(&self.roles), self.user.clone());
        let subject = self.operation.subject();
        let requested = nothing.clone().about(Attributes {
            group: &self.kind.group,
            resource: &self.kind.plural,
            subresource: self.operation.subresource,
            namespace: object::namespace(subject),
            name: object::name(subject),
            ..Attributes::default()
        });
        scope.bind_question("authorizer", nothing);
        scope.bind_question("authorizer.requestResource", requested);
    }

    fn denied(&self, policy: &Value, binding: &Value, denial: &Denial) -> Refusal {
        let message = format!(
            "ValidatingAdmissionPolicy '{}' with binding '{}' denied request: {}",
            object::name(policy),
            object::name(binding),
            denial.message
        );
        let subject = object::name(self.operation.subject());
        let mut refusal = Refusal::forbidden(self.kind, subject, &message);
        refusal.reason = denial.reason;
        refusal.code = match denial.reason {
            "Forbidden" => 403,
            "Unauthorized" => 401,
            "RequestEntityTooLarge" => 413,
            _ => 422,
        };
        object::as_map(&mut refusal.details).insert("causes".into(), json!([{"message": message}]));
        refusal
    }
}

/// Denial of a policy.
struct Denial {
    reason: &'static str,
    message: String,
}

fn items<'p>(policy: &'p Value, field: &str) -> impl Iterator<Item = &'p Value> {
    at(policy, &["spec", field]).and_then(Value::as_array).into_iter().flatten()
}

fn bind_variables(scope: &mut Variables<'_>, policy: &Value) {
    for variable in items(policy, "variables") {
        let name = format!("variables.{}", str_at(variable, &["name"]));
        scope.bind_expression(&name, str_at(variable, &["expression"]));
    }
}

/// The fields of a namespace that policies may see.
fn visible_namespace(namespace: &Value) -> Value {
    let mut metadata = namespace.get("metadata").cloned().unwrap_or_default();
    object::as_map(&mut metadata).retain(|field, _| field != "managedFields");
    json!({
        "apiVersion": "v1", "kind": "Namespace", "metadata": metadata,
        "spec": namespace.get("spec"), "status": namespace.get("status"),
    })
}

fn reason(validation: &Value) -> &'static str {
    match str_at(validation, &["reason"]) {
        "Forbidden" => "Forbidden",
        "Unauthorized" => "Unauthorized",
        "RequestEntityTooLarge" => "RequestEntityTooLarge",
        _ => "Invalid",
    }
}

fn message(scope: &Variables<'_>, validation: &Value) -> String {
    let computed = match str_at(validation, &["messageExpression"]) {
        "" => None,
        source => scope.text(source),
    };
    let usable = |text: &String| !text.is_empty() && text.len() <= MESSAGE_LIMIT && !text.contains('\n');
    if let Some(text) = computed.filter(usable) {
        return text;
    }
    match str_at(validation, &["message"]).trim() {
        "" => format!("failed expression: {}", str_at(validation, &["expression"]).trim()),
        text => text.to_owned(),
    }
}
