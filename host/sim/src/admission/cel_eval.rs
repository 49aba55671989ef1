//! Evaluates CEL expressions on JSON values. The process compiles each program once.

use std::{
    collections::HashMap,
    sync::{Arc, LazyLock},
};

use cel::{
    Context, Env, ExecutionError, Program,
    common::{
        types::{CelBool, CelDouble, CelInt, CelList, CelMap, CelMapKey, CelNull, CelString},
        value::Val,
    },
};
use parking_lot::Mutex;
use serde_json::Value;

use crate::admission::{
    cel_authorizer::{self, Question},
    cel_macros,
};

/// The CEL standard library, and the Kubernetes extensions that policies and schemas use here.
static ENV: LazyLock<Arc<Env>> = LazyLock::new(|| {
    let mut env = Env::stdlib();
    // An extension fails only if a name is already taken, and none of these names is.
    drop(cel_macros::extend(&mut env));
    drop(cel_authorizer::extend(&mut env));
    drop(env.add_extension(cel::extensions::strings));
    drop(env.add_extension(cel::extensions::lists));
    Arc::new(env)
});

static PROGRAMS: LazyLock<Mutex<HashMap<String, Arc<Program>>>> = LazyLock::new(Mutex::default);

/// Compiles an expression, or returns the compile error.
pub(crate) fn compile(source: &str) -> Result<Arc<Program>, String> {
    if let Some(known) = PROGRAMS.lock().get(source) {
        return Ok(Arc::clone(known));
    }
    let program = Arc::new(ENV.compile(source).map_err(|errors| errors.to_string())?);
    PROGRAMS.lock().insert(source.to_owned(), Arc::clone(&program));
    Ok(program)
}

/// The variables of an evaluation. They borrow the objects that they refer to.
pub(crate) struct Variables<'v> {
    context: Context<'v, 'v>,
    /// Variables that failed to evaluate, with the reason. Only expressions that refer to them fail.
    broken: HashMap<String, String>,
}

impl<'v> Variables<'v> {
    pub(crate) fn new() -> Self {
        Self { context: Context::with_env(Arc::clone(&ENV)), broken: HashMap::new() }
    }

    /// Binds a variable to a JSON value.
    pub(crate) fn bind(&mut self, name: &str, value: &'v Value) {
        self.context.add_variable_as_val(name, to_val(value));
    }

    /// Binds a variable to a question about access.
    pub(crate) fn bind_question(&mut self, name: &str, question: Question) {
        self.context.add_variable_as_val(name, Box::new(question));
    }

    /// Binds a variable to the value of an expression.
    pub(crate) fn bind_expression(&mut self, name: &str, source: &str) {
        let outcome = compile(source).and_then(|program| {
            let value = cel::Value::resolve_val(program.expression(), &self.context).map_err(|error| describe(&error));
            value.map(cel::common::value::CowVal::into_owned)
        });
        match outcome {
            Ok(value) => self.context.add_variable_as_val(name, value),
            Err(error) => drop(self.broken.insert(name.to_owned(), error)),
        }
    }

    /// Evaluates a condition. Any result but a boolean is an error.
    pub(crate) fn holds(&self, source: &str) -> Result<bool, String> {
        match self.evaluate(source)? {
            cel::Value::Bool(holds) => Ok(holds),
            other => Err(format!("cel expression must evaluate to a bool, not {:?}", other.type_of())),
        }
    }

    /// Returns the text that an expression evaluates to, or none if it fails or evaluates to something else.
    pub(crate) fn text(&self, source: &str) -> Option<String> {
        match self.evaluate(source) {
            Ok(cel::Value::String(text)) => Some(text.trim().to_owned()),
            _ => None,
        }
    }

    fn evaluate(&self, source: &str) -> Result<cel::Value, String> {
        let program = compile(source)?;
        program.execute(&self.context).map_err(|error| self.explain(&program, &error))
    }

    /// Returns the reason of a failure. For a reference to a broken variable, it is the variable's reason.
    fn explain(&self, program: &Program, error: &ExecutionError) -> String {
        if !matches!(error, ExecutionError::UndeclaredReference(_)) {
            return describe(error);
        }
        let source = program.source_info().source.as_str();
        let culprit = self.broken.iter().find(|(name, _)| source.contains(name.as_str()));
        culprit.map_or_else(
            || describe(error),
            |(name, reason)| {
                let short = name.strip_prefix("variables.").unwrap_or(name);
                format!("composited variable {short:?} fails to evaluate: {reason}")
            },
        )
    }
}

/// Converts a JSON value to CEL: whole numbers become int, other numbers double, and text is borrowed.
fn to_val<'v>(value: &'v Value) -> Box<dyn Val + 'v> {
    match value {
        Value::Null => Box::new(CelNull),
        Value::Bool(flag) => Box::new(CelBool::from(*flag)),
        Value::Number(number) => match number.as_i64() {
            Some(whole) => Box::new(CelInt::from(whole)),
            None => Box::new(CelDouble::from(number.as_f64().unwrap_or_default())),
        },
        Value::String(text) => Box::new(CelString::from(text.as_str())),
        Value::Array(list) => Box::new(CelList::from(list.iter().map(to_val).collect::<Vec<_>>())),
        Value::Object(map) => {
            let entries = map.iter().map(|(key, value)| (CelMapKey::from(key.as_str()), to_val(value)));
            Box::new(CelMap::from(entries.collect::<HashMap<_, _>>()))
        }
    }
}

/// Returns the message of an evaluation error as the real server's CEL writes it.
fn describe(error: &ExecutionError) -> String {
    match error {
        ExecutionError::NoSuchKey(key) => format!("no such key: {key}"),
        ExecutionError::FunctionError { message, .. } => message.clone(),
        ExecutionError::NoSuchOverload(_)
        | ExecutionError::UnexpectedType { .. }
        | ExecutionError::ValuesNotComparable(..)
        | ExecutionError::UnsupportedBinaryOperator(..) => "no such overload".to_owned(),
        ExecutionError::UndeclaredReference(name) => format!("undeclared reference to '{name}' (in container '')"),
        ExecutionError::DivisionByZero(_) => "division by zero".to_owned(),
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn holds(source: &str, object: &Value) -> Result<bool, String> {
        let mut variables = Variables::new();
        variables.bind("object", object);
        variables.holds(source)
    }

    #[test]
    fn whole_numbers_are_ints_and_text_is_text() {
        let object = json!({"n": 3, "s": "50%", "f": 1.5, "l": [1, 2]});
        assert_eq!(holds("type(object.n) == int && object.n >= 1", &object), Ok(true));
        assert_eq!(holds("type(object.s) == string && object.s.matches('^[0-9]+%$')", &object), Ok(true));
        assert_eq!(holds("object.l.exists_one(x, x == 2) && 's' in object && !has(object.x)", &object), Ok(true));
        assert_eq!(holds("object.x == 1", &object), Err("no such key: x".into()));
        assert_eq!(holds("{'a': [1]} == {'a': [1]} && [] == [] && {} == {}", &object), Ok(true));
    }

    #[test]
    fn a_broken_variable_fails_only_who_refers_to_it() {
        let object = json!({});
        let mut variables = Variables::new();
        variables.bind("object", &object);
        variables.bind_expression("variables.bad", "object.missing");
        variables.bind_expression("variables.good", "has(object.missing) ? object.missing : []");
        assert_eq!(variables.holds("size(variables.good) == 0"), Ok(true));
        assert_eq!(variables.holds("true || variables.bad"), Ok(true));
        let error = variables.holds("variables.bad == 1").unwrap_err();
        assert_eq!(error, "composited variable \"bad\" fails to evaluate: no such key: missing");
    }
}
