//! Plugin files that are no plugins, or that are not what they claim.

use serde_json::{Value, json};

use super::shared_cluster::HOSTILE_MANIFEST;
use super::{Begin, Misfit, Told};
use oarlock_scenarios::components::component;

/// The name of the manifest section, after the byte of its length.
const SECTION: &[u8] = b"\x10oarlock.manifest";

fn file(
    name: &str,
    bytes: impl Fn() -> anyhow::Result<Vec<u8>> + Send + Sync + 'static,
    reason: &'static str,
) -> Misfit {
    Misfit::new(name, Begin::File(Box::new(bytes)), Told::Plugin(reason))
}

/// Returns a component without its own manifest, with these bytes as the manifest.
fn stating(manifest: &[u8]) -> anyhow::Result<Vec<u8>> {
    Ok([component("examples/no_manifest")?, section(&[SECTION, manifest].concat())].concat())
}

/// Returns a custom section.
fn section(content: &[u8]) -> Vec<u8> {
    let mut length = content.len();
    let mut bytes = vec![0];
    while length >= 0x80 {
        bytes.push(u8::try_from(length & 0x7f).unwrap_or(0) | 0x80);
        length >>= 7;
    }
    bytes.push(u8::try_from(length).unwrap_or(0));
    bytes.extend_from_slice(content);
    bytes
}

/// Returns a function that makes a component with the manifest of the hostile plugin, in which one field differs.
fn with(field: &'static str, value: Value) -> impl Fn() -> anyhow::Result<Vec<u8>> + Send + Sync {
    move || {
        let mut manifest: Value = serde_json::from_str(HOSTILE_MANIFEST)?;
        if let Some(fields) = manifest.as_object_mut() {
            fields.insert("name".to_owned(), json!("misfit"));
            fields.insert(field.to_owned(), value.clone());
        }
        stating(manifest.to_string().as_bytes())
    }
}

/// Returns a function that makes the hostile component with a text replaced everywhere by another of the same length.
fn renamed(from: &'static str, to: &'static str) -> impl Fn() -> anyhow::Result<Vec<u8>> + Send + Sync {
    move || {
        let mut bytes = component("hostile")?;
        let (from, to) = (from.as_bytes(), to.as_bytes());
        let places: Vec<_> = (0..bytes.len().saturating_sub(from.len()))
            .filter(|at| bytes.get(*at..*at + from.len()) == Some(from))
            .collect();
        for at in places {
            if let Some(place) = bytes.get_mut(at..at + from.len()) {
                place.copy_from_slice(to);
            }
        }
        Ok(bytes)
    }
}

/// Returns files that are no plugin components.
fn shapes() -> Vec<Misfit> {
    let half = || component("hostile").map(|bytes| bytes.get(..bytes.len() / 2).unwrap_or_default().to_vec());
    let nested = || {
        // Nested components: magic, version and layer, and a section that contains the next component.
        let header = b"\0asm\x0d\0\x01\0";
        Ok((0..40).fold(header.to_vec(), |inner, _| {
            let mut section = section(&inner);
            if let Some(id) = section.first_mut() {
                *id = 4;
            }
            [header.to_vec(), section].concat()
        }))
    };
    let sections = |count: usize, name: Vec<u8>| {
        move || {
            let named =
                [&[u8::try_from(name.len() & 0x7f)? | 0x80, u8::try_from(name.len() >> 7)?][..], &name].concat();
            Ok([b"\0asm\x0d\0\x01\0".to_vec(), section(&named).repeat(count)].concat())
        }
    };
    vec![
        file("an empty file", || Ok(Vec::new()), "EmptyFile"),
        file("a shell script", || Ok(b"#!/bin/sh\n".to_vec()), "NotWebAssembly"),
        file("a core module", || Ok(b"\0asm\x01\0\0\0".to_vec()), "CoreModule"),
        file("half a component", half, "Truncated"),
        file("more than 64 MiB", || Ok(vec![0; (64 << 20) + 1]), "TooLarge"),
        file("a header and nothing else", || Ok(b"\0asm\x0d\0\x01\0".to_vec()), "NotAPlugin"),
        file("components in each other", nested, "TooDeep"),
        file("ten thousand and one sections", sections(10_001, b"xy".to_vec()), "TooManyNames"),
        file("a section with a long name", sections(1, vec![b'x'; 600]), "NameTooLong"),
        file("a component that reads files", || component("examples/files"), "ImportNotOffered"),
        file("a component that calls home", || component("examples/sockets"), "ImportNotOffered"),
        file("an import that nobody offers", renamed("oarlock:host/log@1.", "oarlock:host/lag@1."), "ImportNotOffered"),
        file(
            "a contract of the future",
            renamed("oarlock:action/handler@1.", "oarlock:action/handler@9."),
            "ContractVersion",
        ),
    ]
}

/// Returns components with a wrong manifest or without a grant.
fn manifests() -> Vec<Misfit> {
    let patterns: Vec<Value> = (0..1_000).map(|number| json!({"pattern": format!("\\w{{150}}{number}")})).collect();
    let deep = (0..40).fold(json!({"type": "string"}), |inner, _| json!({"properties": {"x": inner}}));
    let read = |kind: &str| json!([{"apiVersion": "v1", "kind": kind, "reason": "r"}]);
    vec![
        file("no manifest", || component("examples/no_manifest"), "ManifestMissing"),
        file("a manifest of 65 KiB", || stating(&vec![b' '; 65 << 10]), "ManifestTooLarge"),
        file("a manifest that is no text", || stating(b"\xff\xfe"), "ManifestInvalid"),
        file("a manifest that is a deep list", || stating(&vec![b'['; 60 << 10]), "ManifestInvalid"),
        file("a manifest of the future", || stating(br#"{"schema": 2}"#), "ManifestSchema"),
        file("an empty manifest", || stating(b"{}"), "ManifestInvalid"),
        file(
            "manifests that disagree",
            || Ok([stating(b"{}")?, section(&[SECTION, b"[]"].concat())].concat()),
            "ManifestsDisagree",
        ),
        file("a thousand wide patterns", with("parameters", json!({"allOf": patterns})), "ManifestInvalid"),
        file("a pattern of a megabyte", with("parameters", json!({"pattern": "\\p{L}{500}"})), "ManifestInvalid"),
        file("a schema of 40 levels", with("config", deep), "ManifestInvalid"),
        file("a schema that refers", with("parameters", json!({"$ref": "http://127.0.0.1:1/x"})), "ManifestInvalid"),
        file("a kind that clears the screen", with("reads", read("Pod\u{1b}[2J")), "ManifestInvalid"),
        file("a kind that adds a line", with("reads", read("Pod\n- {verb: delete}")), "ManifestInvalid"),
        file("a name that is a path", with("name", json!("../replace")), "ManifestInvalid"),
        file("a field that nobody knows", with("surprise", json!(1)), "ManifestInvalid"),
        file("a lifecycle that nobody knows", with("lifecycle", json!("Maybe")), "ManifestInvalid"),
        file("a plugin without a grant", with("version", json!("99.0.0")), "GrantMissing"),
        file("the action of another, without a grant", with("action", json!("Good")), "GrantMissing"),
    ]
}

/// Returns all misfits of this module.
pub fn table() -> Vec<Misfit> {
    shapes().into_iter().chain(manifests()).chain(takers()).collect()
}

/// Returns granted plugins that claim the action of another plugin, in the same version and in a higher one.
fn takers() -> Vec<Misfit> {
    let claims = |version: &'static str| {
        move || {
            let mut manifest: Value = serde_json::from_str(HOSTILE_MANIFEST)?;
            if let Some(fields) = manifest.as_object_mut() {
                fields.extend([("action".to_owned(), json!("Good")), ("version".to_owned(), json!(version))]);
            }
            Ok(oarlock_wasm::annotate(&component("hostile")?, manifest.to_string().as_bytes())?)
        }
    };
    vec![
        file("the action of another, in its version", claims("0.1.0"), "ActionTaken"),
        file("the action of another, in a higher version", claims("99.0.0"), "ActionTaken"),
    ]
}
