//! `transformList` and `transformMapEntry`: macros of cel-go's two-variable comprehensions that the `cel` crate lacks.
//! `l.transformList(i, x, e)` returns the list of the values of `e` for each element. `l.transformMapEntry(i, x, {k: v})` merges the
//! maps that its body returns for each element. A duplicate key is an error that names the key.

use std::collections::HashMap;

use cel::{
    DeclarationError, Env, ExecutionError, IdedExpr, ParseError,
    common::{
        ast::{CallExpr, ComprehensionExpr, Expr, ListExpr, LiteralValue, operators},
        types::{CelInt, CelList, CelMap, CelMapKey, LIST_TYPE, MAP_TYPE},
        value::{CowVal, Val},
    },
    parser::{Macro, MacroExprHelper},
};

/// Functions that only the macros can call, because no identifier begins with `@`.
const PAIRS: &str = "@pairs";
const MERGE: &str = "@mergeEntries";
/// The variable that holds the pair of index and element, from which the macros bind the body's two variables.
const PAIR: &str = "@pair";

/// Adds the macros and their functions.
pub(crate) fn extend(env: &mut Env) -> Result<(), DeclarationError> {
    env.add_overload(PAIRS, "pairs(list)", vec![LIST_TYPE], pairs_of_list)?;
    env.add_overload(PAIRS, "pairs(map)", vec![MAP_TYPE], pairs_of_map)?;
    env.add_overload(MERGE, "mergeEntries(list)", vec![LIST_TYPE], merge_entries)?;
    env.add_macro(Macro::receiver("transformList", 3, |helper, target, args| expand(helper, target, args, None)))?;
    env.add_macro(Macro::receiver("transformList", 4, |helper, target, args| {
        let filter = filter_of(args);
        expand(helper, target, args, filter)
    }))?;
    env.add_macro(Macro::receiver("transformMapEntry", 3, |helper, target, args| {
        let mapped = expand(helper, target, args, None)?;
        Ok(mapped.map(|mapped| call(helper, MERGE, vec![mapped])))
    }))?;
    env.add_macro(Macro::receiver("transformMapEntry", 4, |helper, target, args| {
        let filter = filter_of(args);
        let mapped = expand(helper, target, args, filter)?;
        Ok(mapped.map(|mapped| call(helper, MERGE, vec![mapped])))
    }))
}

/// Removes the filter from the arguments: the argument before the body.
fn filter_of(args: &mut Vec<IdedExpr>) -> Option<IdedExpr> {
    let body = args.pop();
    let filter = args.pop();
    args.extend(body);
    filter
}

/// Expands `target.transformList(a, b, body)` to `@pairs(target).map(@pair, bind a, b in body)`.
fn expand(
    helper: &mut MacroExprHelper<'_>,
    target: &mut Option<IdedExpr>,
    args: &mut Vec<IdedExpr>,
    filter: Option<IdedExpr>,
) -> Result<Option<IdedExpr>, ParseError> {
    let (Some(body), Some(second), Some(first), Some(target)) = (args.pop(), args.pop(), args.pop(), target.take())
    else {
        return Ok(None);
    };
    let names = (variable(helper, first)?, variable(helper, second)?);
    let range = call(helper, PAIRS, vec![target]);
    let step = step(helper, body, filter, &names);
    let mapped = ComprehensionExpr {
        iter_range: range,
        iter_var: PAIR.to_owned(),
        iter_var2: None,
        accu_var: "@result".to_owned(),
        accu_init: helper.next_expr(Expr::List(ListExpr::new(Vec::new()))),
        loop_cond: helper.next_expr(Expr::Literal(LiteralValue::Boolean(true.into()))),
        loop_step: step,
        result: helper.next_expr(Expr::Ident("@result".to_owned())),
    };
    Ok(Some(helper.next_expr(Expr::Comprehension(Box::new(mapped)))))
}

fn step(
    helper: &mut MacroExprHelper<'_>,
    body: IdedExpr,
    filter: Option<IdedExpr>,
    names: &(String, String),
) -> IdedExpr {
    let body = bound(helper, body, names);
    let element = helper.next_expr(Expr::List(ListExpr::new(vec![body])));
    let so_far = helper.next_expr(Expr::Ident("@result".to_owned()));
    let added = call(helper, operators::ADD, vec![so_far, element]);
    let Some(filter) = filter else { return added };
    let filter = bound(helper, filter, names);
    let so_far = helper.next_expr(Expr::Ident("@result".to_owned()));
    call(helper, operators::CONDITIONAL, vec![filter, added, so_far])
}

fn variable(helper: &MacroExprHelper<'_>, expr: IdedExpr) -> Result<String, ParseError> {
    match expr.expr {
        Expr::Ident(name) => Ok(name),
        _ => Err(helper.new_error(expr.id, "argument must be a simple name")),
    }
}

fn call(helper: &mut MacroExprHelper<'_>, function: &str, args: Vec<IdedExpr>) -> IdedExpr {
    helper.next_expr(Expr::Call(CallExpr { func_name: function.to_owned(), target: None, args }))
}

/// Returns `body` with both variables bound to the parts of the pair.
fn bound(helper: &mut MacroExprHelper<'_>, body: IdedExpr, names: &(String, String)) -> IdedExpr {
    let inner = bind(helper, &names.1, 1, body);
    bind(helper, &names.0, 0, inner)
}

/// Binds a variable as cel-go does: by a comprehension over an empty list, whose accumulator is the variable.
fn bind(helper: &mut MacroExprHelper<'_>, name: &str, index: i64, body: IdedExpr) -> IdedExpr {
    let pair = helper.next_expr(Expr::Ident(PAIR.to_owned()));
    let index = helper.next_expr(Expr::Literal(LiteralValue::Int(index.into())));
    let part = call(helper, operators::INDEX, vec![pair, index]);
    let comprehension = ComprehensionExpr {
        iter_range: helper.next_expr(Expr::List(ListExpr::new(Vec::new()))),
        iter_var: "#unused".to_owned(),
        iter_var2: None,
        accu_var: name.to_owned(),
        accu_init: part,
        loop_cond: helper.next_expr(Expr::Literal(LiteralValue::Boolean(false.into()))),
        loop_step: helper.next_expr(Expr::Ident(name.to_owned())),
        result: body,
    };
    helper.next_expr(Expr::Comprehension(Box::new(comprehension)))
}

fn only<'b, 'v>(args: Vec<CowVal<'b, 'v>>) -> Result<CowVal<'b, 'v>, ExecutionError> {
    let actual = args.len();
    args.into_iter().next().ok_or(ExecutionError::InvalidArgumentCount { expected: 1, actual })
}

fn elements<'v>(list: &(dyn Val + 'v)) -> Vec<Box<dyn Val + 'v>> {
    let Some(iterable) = list.as_iterable() else { return Vec::new() };
    let mut iterator = iterable.iter();
    let mut all = Vec::new();
    while let Some(one) = iterator.next() {
        all.push(one.clone_as_boxed());
    }
    all
}

fn pair<'v>(key: Box<dyn Val + 'v>, value: Box<dyn Val + 'v>) -> Box<dyn Val + 'v> {
    Box::new(CelList::from(vec![key, value]))
}

fn pairs_of_list<'b, 'v>(args: Vec<CowVal<'b, 'v>>) -> Result<CowVal<'b, 'v>, ExecutionError> {
    let list = only(args)?;
    let all = elements(list.as_ref()).into_iter().zip(0_i64..);
    let pairs = all.map(|(one, index)| pair(Box::new(CelInt::from(index)), one)).collect::<Vec<_>>();
    Ok(CowVal::owned(CelList::from(pairs)))
}

fn pairs_of_map<'b, 'v>(args: Vec<CowVal<'b, 'v>>) -> Result<CowVal<'b, 'v>, ExecutionError> {
    let map = only(args)?;
    let entries = map.downcast_ref::<CelMap<'v>>().map(|map| map.clone().into_inner()).unwrap_or_default();
    let pairs = entries.into_iter().map(|(key, value)| pair(key.inner().clone_as_boxed(), value)).collect::<Vec<_>>();
    Ok(CowVal::owned(CelList::from(pairs)))
}

fn merge_entries<'b, 'v>(args: Vec<CowVal<'b, 'v>>) -> Result<CowVal<'b, 'v>, ExecutionError> {
    let list = only(args)?;
    let mut merged: HashMap<CelMapKey<'v>, Box<dyn Val + 'v>> = HashMap::new();
    for one in elements(list.as_ref()) {
        let entries = one.downcast_ref::<CelMap<'v>>().map(|map| map.clone().into_inner()).unwrap_or_default();
        for (key, value) in entries {
            if merged.contains_key(&key) {
                return Err(duplicate(&key));
            }
            merged.insert(key, value);
        }
    }
    Ok(CowVal::owned(CelMap::from(merged)))
}

fn duplicate(key: &CelMapKey<'_>) -> ExecutionError {
    let shown = match key {
        CelMapKey::String(text) => text.inner().to_owned(),
        CelMapKey::Int(number) => number.inner().to_string(),
        CelMapKey::UInt(number) => number.inner().to_string(),
        CelMapKey::Bool(flag) => flag.inner().to_string(),
    };
    ExecutionError::FunctionError {
        function: "transformMapEntry".into(),
        message: format!("insert failed: key {shown} already exists"),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use crate::admission::cel_eval::Variables;

    #[test]
    fn entries_are_merged_and_a_key_that_comes_twice_is_named() {
        let object = json!([{"name": "p1"}, {"name": "p2"}]);
        let twice = json!([{"name": "p4"}, {"name": "p1"}, {"name": "p4"}]);
        let mut variables = Variables::new();
        variables.bind("l", &object);
        variables.bind("m", &twice);
        assert_eq!(variables.holds("l.transformMapEntry(i, t, {t.name: i}) == {'p1': 0, 'p2': 1}"), Ok(true));
        assert_eq!(variables.holds("l.transformMapEntry(i, t, i > 0, {t.name: i}) == {'p2': 1}"), Ok(true));
        assert_eq!(variables.holds("l.transformList(i, t, string(i) + t.name) == ['0p1', '1p2']"), Ok(true));
        assert_eq!(variables.holds("l.transformList(i, t, i > 0, t.name) == ['p2']"), Ok(true));
        assert_eq!(variables.holds("{'a': 1}.transformMapEntry(k, v, {v: k}) == {1: 'a'}"), Ok(true));
        let error = variables.holds("size(m.transformMapEntry(i, t, {t.name: true})) == size(m)").unwrap_err();
        assert_eq!(error, "insert failed: key p4 already exists");
    }
}
