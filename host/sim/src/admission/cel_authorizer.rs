//! `authorizer` in CEL: questions about a user's permissions, built up by method calls and answered by roles.

use std::{any::Any, sync::Arc};

use cel::{
    DeclarationError, Env, ExecutionError,
    common::{
        types::{CelBool, CelString, STRING_TYPE, Type},
        value::{CowVal, StaticVal, Val},
    },
};

use crate::access::{
    rbac::{Attributes, Decision, Roles},
    user::User,
};

static AUTHORIZER: Type = Type::new_unspecified_type("kubernetes.authorization.Authorizer");
static PATH_CHECK: Type = Type::new_unspecified_type("kubernetes.authorization.PathCheck");
static GROUP_CHECK: Type = Type::new_unspecified_type("kubernetes.authorization.GroupCheck");
static RESOURCE_CHECK: Type = Type::new_unspecified_type("kubernetes.authorization.ResourceCheck");
static DECISION: Type = Type::new_unspecified_type("kubernetes.authorization.Decision");

/// The stage of a question, which is also its CEL type.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum AuthorizerStage {
    Authorizer,
    Path,
    Group,
    Resource,
    Decided,
}

/// A question under construction, and finally its answer.
#[derive(Debug, Clone)]
pub(crate) struct Question {
    step: AuthorizerStage,
    roles: Arc<Roles>,
    user: User,
    group: String,
    resource: String,
    subresource: String,
    namespace: String,
    name: String,
    path: String,
    answer: Decision,
}

impl Question {
    /// Returns `authorizer`, the question without any attribute.
    pub(crate) fn new(roles: Arc<Roles>, user: User) -> Self {
        let nothing = String::new;
        Self {
            step: AuthorizerStage::Authorizer,
            roles,
            user,
            group: nothing(),
            resource: nothing(),
            subresource: nothing(),
            namespace: nothing(),
            name: nothing(),
            path: nothing(),
            answer: Decision::default(),
        }
    }

    /// Returns `authorizer.requestResource`, the question about the resource of the request.
    pub(crate) fn about(mut self, requested: Attributes<'_>) -> Self {
        let Attributes { group, resource, subresource, namespace, name, .. } = requested;
        self.step = AuthorizerStage::Resource;
        [self.group, self.resource, self.subresource, self.namespace, self.name] =
            [group, resource, subresource, namespace, name].map(str::to_owned);
        self
    }

    fn ask(&mut self, verb: &str) {
        let wanted = Attributes {
            verb,
            group: &self.group,
            resource: &self.resource,
            subresource: &self.subresource,
            namespace: &self.namespace,
            name: &self.name,
            path: &self.path,
        };
        self.answer = self.roles.decide(&self.user, &wanted);
        self.step = AuthorizerStage::Decided;
    }
}

impl Val for Question {
    fn get_type(&self) -> &Type {
        match self.step {
            AuthorizerStage::Authorizer => &AUTHORIZER,
            AuthorizerStage::Path => &PATH_CHECK,
            AuthorizerStage::Group => &GROUP_CHECK,
            AuthorizerStage::Resource => &RESOURCE_CHECK,
            AuthorizerStage::Decided => &DECISION,
        }
    }

    fn cel_type() -> &'static Type {
        &AUTHORIZER
    }

    fn clone_as_boxed<'v>(&self) -> Box<dyn Val + 'v>
    where
        Self: 'v,
    {
        Box::new(self.clone())
    }

    fn as_any(&self) -> Option<&dyn Any> {
        Some(self)
    }
}

impl StaticVal for Question {}

/// Declares the CEL methods of `authorizer`.
pub(crate) fn extend(env: &mut Env) -> Result<(), DeclarationError> {
    let text = || vec![STRING_TYPE];
    let add = |env: &mut Env, name: &str, of: &Type, arguments: Vec<Type>, function| {
        let id = format!("{}_{name}", of.name());
        env.add_member_overload(name, &id, of.to_owned(), arguments, function)
    };
    add(env, "path", &AUTHORIZER, text(), path)?;
    add(env, "group", &AUTHORIZER, text(), group)?;
    add(env, "serviceAccount", &AUTHORIZER, vec![STRING_TYPE, STRING_TYPE], service_account)?;
    add(env, "resource", &GROUP_CHECK, text(), resource)?;
    add(env, "subresource", &RESOURCE_CHECK, text(), subresource)?;
    add(env, "namespace", &RESOURCE_CHECK, text(), namespace)?;
    add(env, "name", &RESOURCE_CHECK, text(), name)?;
    // RBAC does not evaluate selectors.
    add(env, "fieldSelector", &RESOURCE_CHECK, text(), unchanged)?;
    add(env, "labelSelector", &RESOURCE_CHECK, text(), unchanged)?;
    add(env, "check", &RESOURCE_CHECK, text(), check)?;
    add(env, "check", &PATH_CHECK, text(), check)?;
    add(env, "allowed", &DECISION, Vec::new(), allowed)?;
    add(env, "reason", &DECISION, Vec::new(), reason)?;
    add(env, "errored", &DECISION, Vec::new(), errored)?;
    add(env, "error", &DECISION, Vec::new(), error)
}

type Values<'b, 'v> = Vec<CowVal<'b, 'v>>;
type CelResult<'b, 'v> = Result<CowVal<'b, 'v>, ExecutionError>;

fn question(values: &Values<'_, '_>) -> Result<Question, ExecutionError> {
    let found = values.first().and_then(|one| one.as_ref().downcast_ref::<Question>()).cloned();
    found.ok_or(ExecutionError::InvalidArgumentCount { expected: 1, actual: 0 })
}

fn argument(values: &Values<'_, '_>, place: usize) -> Result<String, ExecutionError> {
    let found = values.get(place).and_then(|one| one.as_ref().downcast_ref::<CelString<'_>>());
    let actual = values.len();
    found.map(|text| text.inner().to_owned()).ok_or(ExecutionError::InvalidArgumentCount { expected: place, actual })
}

/// Returns a copy of the question, changed by the first argument.
fn with<'b, 'v>(values: &Values<'_, '_>, change: impl FnOnce(&mut Question, String)) -> CelResult<'b, 'v> {
    let (mut question, text) = (question(values)?, argument(values, 1)?);
    change(&mut question, text);
    Ok(CowVal::owned(question))
}

fn refused<'b, 'v>(function: &str, message: &str) -> CelResult<'b, 'v> {
    Err(ExecutionError::FunctionError { function: function.into(), message: message.into() })
}

fn path<'b, 'v>(values: Values<'b, 'v>) -> CelResult<'b, 'v> {
    if argument(&values, 1)?.trim().is_empty() {
        return refused("path", "path must not be empty");
    }
    with(&values, |question, path| {
        question.path = if path.starts_with('/') { path } else { format!("/{path}") };
        question.step = AuthorizerStage::Path;
    })
}

fn group<'b, 'v>(values: Values<'b, 'v>) -> CelResult<'b, 'v> {
    with(&values, |question, group| {
        question.group = group;
        question.step = AuthorizerStage::Group;
    })
}

fn service_account<'b, 'v>(values: Values<'b, 'v>) -> CelResult<'b, 'v> {
    let account = argument(&values, 2)?;
    with(&values, |question, namespace| question.user = User::account(&namespace, &account))
}

fn resource<'b, 'v>(values: Values<'b, 'v>) -> CelResult<'b, 'v> {
    if argument(&values, 1)?.trim().is_empty() {
        return refused("resource", "resource must not be empty");
    }
    with(&values, |question, resource| {
        question.resource = resource;
        question.step = AuthorizerStage::Resource;
    })
}

fn subresource<'b, 'v>(values: Values<'b, 'v>) -> CelResult<'b, 'v> {
    with(&values, |question, subresource| question.subresource = subresource)
}

fn namespace<'b, 'v>(values: Values<'b, 'v>) -> CelResult<'b, 'v> {
    with(&values, |question, namespace| question.namespace = namespace)
}

fn name<'b, 'v>(values: Values<'b, 'v>) -> CelResult<'b, 'v> {
    with(&values, |question, name| question.name = name)
}

fn unchanged<'b, 'v>(values: Values<'b, 'v>) -> CelResult<'b, 'v> {
    with(&values, |_, _| {})
}

fn check<'b, 'v>(values: Values<'b, 'v>) -> CelResult<'b, 'v> {
    with(&values, |question, verb| question.ask(&verb))
}

fn allowed<'b, 'v>(values: Values<'b, 'v>) -> CelResult<'b, 'v> {
    Ok(CowVal::owned(CelBool::from(question(&values)?.answer.allowed)))
}

fn reason<'b, 'v>(values: Values<'b, 'v>) -> CelResult<'b, 'v> {
    Ok(CowVal::owned(CelString::from(question(&values)?.answer.reason)))
}

/// Returns false: roles are in memory, so a lookup cannot fail.
fn errored<'b, 'v>(values: Values<'b, 'v>) -> CelResult<'b, 'v> {
    question(&values).map(|_| CowVal::owned(CelBool::from(false)))
}

fn error<'b, 'v>(values: Values<'b, 'v>) -> CelResult<'b, 'v> {
    question(&values).map(|_| CowVal::owned(CelString::from(String::new())))
}
