//! The fields that only a preflight has, as parameters of its OperationJob. Source: docs/opsjob.md 2.

use std::collections::{BTreeMap, BTreeSet};

use oarlock_contract::names::{is_qualified_name, is_quantity};
use oci_spec::distribution::Reference;
use serde_json::{Map, Value, json};

use crate::object::bound::shown;
use crate::object::fields::{flag, list, object, text};
use crate::ops_job::spec::{RuleBroken, refuse};
use crate::requests::scripts::sha256;

/// The most bytes of a script.
const SCRIPT: usize = 96 * 1024;
/// The most variables, and the most host paths.
const VARIABLES: usize = 64;
const HOST_PATHS: usize = 16;
/// The most bytes of a host path.
const PATH: usize = 4_096;
/// The most characters of a script in Base64.
const SCRIPT_IN_BASE64: usize = SCRIPT / 3 * 4;
/// The prefix of the variables that only the host may set.
const OWN_VARIABLES: &str = "OARLOCK_";

/// Returns the parameters of a check, and its script.
pub(super) fn check_parameters(spec: &Value) -> Result<(Map<String, Value>, String), RuleBroken> {
    let Some(image) = text(spec, "/image").filter(|image| !image.is_empty()) else {
        return refuse("image", "a preflight needs the image of the check");
    };
    if let Err(error) = image.parse::<Reference>() {
        return refuse("image", format_args!("{} is no reference of an image: {error}", shown(image, 256)));
    }
    let Some(script) = text(spec, "/entryPoint").and_then(decoded) else {
        return refuse("entryPoint", "a preflight needs a script in Base64, of 1 byte to 96 KiB without NUL bytes");
    };
    let named = json!({"sha256": sha256(&script)});
    let mut parameters = Map::from_iter([("image".to_owned(), json!(image)), ("script".to_owned(), named)]);
    let env = object(spec, "/env").cloned().unwrap_or_default();
    if env.len() > VARIABLES {
        return refuse("env", format_args!("at most {VARIABLES} variables"));
    }
    let is_text = |value: &Value| value.as_str().is_some_and(|text| !text.contains('\0'));
    if let Some((name, _)) = env.iter().find(|(name, value)| !is_variable(name) || !is_text(value)) {
        let rule = format!(
            "text by name, without NUL; a name has letters, digits and _, and does not begin with {OWN_VARIABLES}"
        );
        return refuse(&format!("env.{}", shown(name, 64)), rule);
    }
    if list(spec, "/hostpath").len() > HOST_PATHS {
        return refuse("hostpath", format_args!("at most {HOST_PATHS} directories"));
    }
    let paths = host_paths(spec);
    if let Some(path) = paths.iter().find(|path| !is_path(path)) {
        return refuse(
            "hostpath",
            format_args!("absolute paths without `..` and `//`, and one is {}", shown(path, 64)),
        );
    }
    if !env.is_empty() {
        parameters.insert("env".to_owned(), Value::Object(env));
    }
    if !paths.is_empty() {
        parameters.insert("hostPaths".to_owned(), json!(paths));
    }
    if flag(spec, "/isTolerateAll") {
        parameters.insert("tolerateAll".to_owned(), Value::Bool(true));
    }
    parameters.extend(resources(spec)?);
    Ok((parameters, script))
}

/// Returns the host paths that a check sees, without duplicates.
pub(super) fn host_paths(spec: &Value) -> BTreeSet<&str> {
    let paths = list(spec, "/hostpath").iter().filter_map(Value::as_str);
    paths.map(|path| path.strip_suffix('/').unwrap_or(path)).collect()
}

/// Returns the parameters for `spec.resource`.
fn resources(spec: &Value) -> Result<Vec<(String, Value)>, RuleBroken> {
    let Some(resource) = object(spec, "/resource") else { return Ok(Vec::new()) };
    let (mut parameters, mut amounts) = (Vec::new(), BTreeMap::new());
    for (field, value) in resource {
        let path = format!("resource.{}", shown(field, 64));
        let Some(amount) = value.as_str().filter(|amount| !amount.is_empty()) else {
            match value {
                Value::String(_) | Value::Null => continue,
                _ => return refuse(&path, "text, such as \"500m\""),
            }
        };
        if !matches!(field.as_str(), "gpu" | "gpuName") && !is_quantity(amount) {
            return refuse(&path, format_args!("{} is no amount such as 500m or 1Gi", shown(amount, 64)));
        }
        match field.as_str() {
            "cpu" | "memory" => drop(amounts.insert(field.as_str(), amount)),
            "ephemeralStorage" => drop(amounts.insert("ephemeral-storage", amount)),
            "gpuName" if !is_qualified_name(amount) => {
                return refuse(&path, format_args!("{} is no resource such as nvidia.com/gpu", shown(amount, 64)));
            }
            "sharedMemory" | "gpuName" => parameters.push((field.clone(), json!(amount))),
            "gpu" => match amount.parse::<u32>() {
                Ok(gpus) => parameters.push(("gpus".to_owned(), json!(gpus))),
                Err(_) => return refuse(&path, "a number of GPUs as text, such as \"8\""),
            },
            _ => return refuse(&path, "none of cpu, gpu, gpuName, memory, sharedMemory and ephemeralStorage"),
        }
    }
    if !amounts.is_empty() {
        parameters.push(("resources".to_owned(), json!(amounts)));
    }
    Ok(parameters)
}

/// Returns the script in a Base64 text, with or without padding.
fn decoded(text: &str) -> Option<String> {
    use base64::Engine as _;
    use base64::engine::general_purpose::STANDARD_NO_PAD;
    let is_in_bounds = text.len() <= SCRIPT_IN_BASE64;
    let bytes = STANDARD_NO_PAD.decode(text.trim_end_matches('=')).ok().filter(|_| is_in_bounds)?;
    let is_script = |script: &String| (1..=SCRIPT).contains(&script.len()) && !script.contains('\0');
    String::from_utf8(bytes).ok().filter(is_script)
}

fn is_variable(name: &str) -> bool {
    let is_first = |byte: u8| byte.is_ascii_alphabetic() || byte == b'_';
    name.bytes().next().is_some_and(is_first)
        && name.bytes().all(|byte| is_first(byte) || byte.is_ascii_digit())
        && !name.starts_with(OWN_VARIABLES)
}

fn is_path(path: &str) -> bool {
    (2..=PATH).contains(&path.len())
        && path.starts_with('/')
        && path.split('/').skip(1).all(|part| !part.is_empty() && part != "..")
}
