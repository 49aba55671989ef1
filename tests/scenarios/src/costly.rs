//! Plugin files that cost as much as a file can when a host vets, compiles or runs them.
//!
//! [`files`] returns each file with the state that a host of 256 MiB gives it. The modules are written byte by byte, so the
//! tests need no further tool.

use anyhow::Context as _;
use serde_json::{Value, json};

use crate::components::component;

/// A plugin file and the state that the host gives it.
pub struct Costly {
    /// The name of the file, without `.wasm`.
    pub name: &'static str,
    /// The content of the file.
    pub bytes: Vec<u8>,
    /// Words in the host's log that name the state. One of them must appear.
    pub told: &'static [&'static str],
}

/// Returns the hostile plugin under another name and with another action. Each such plugin needs its own grant.
fn hostile(name: &str) -> anyhow::Result<Vec<u8>> {
    let mut manifest: Value = serde_json::from_str(include_str!("../../plugins/hostile/manifest.json"))?;
    let fields = manifest.as_object_mut().context("a manifest is an object")?;
    fields.insert("name".to_owned(), json!(name));
    fields.insert("action".to_owned(), json!(name.replace('-', "").to_uppercase()));
    Ok(oarlock_wasm::annotate(&component("hostile")?, manifest.to_string().as_bytes())?)
}

/// Encodes a number as unsigned LEB128, as WebAssembly does.
fn leb128(mut number: usize) -> Vec<u8> {
    let mut bytes = Vec::new();
    loop {
        let low = u8::try_from(number & 0x7f).unwrap_or(0);
        number >>= 7;
        bytes.push(if number == 0 { low } else { low | 0x80 });
        if number == 0 {
            return bytes;
        }
    }
}

fn section(id: u8, content: &[u8]) -> Vec<u8> {
    [&[id][..], &leb128(content.len()), content].concat()
}

/// Returns a module of `functions` functions. Each has `locals` locals of 64 bits and the given body.
fn module(functions: usize, locals: usize, body: &[u8]) -> Vec<u8> {
    let body = [&[1][..], &leb128(locals), &[0x7e], body, &[0x0b]].concat();
    let code = [leb128(body.len()), body].concat();
    [
        b"\0asm\x01\0\0\0".to_vec(),
        section(1, &[1, 0x60, 0, 0]),
        section(3, &[leb128(functions), vec![0; functions]].concat()),
        section(10, &[leb128(functions), code.repeat(functions)].concat()),
    ]
    .concat()
}

/// Returns a module with this many bytes of data.
fn data(bytes: usize) -> Vec<u8> {
    let pages = leb128(bytes.div_ceil(65_536));
    // One segment at address 0 of the memory.
    let segment = [&[1, 0, 0x41, 0, 0x0b][..], &leb128(bytes), &vec![0x5a; bytes]].concat();
    [b"\0asm\x01\0\0\0".to_vec(), section(5, &[&[1, 0][..], &pages].concat()), section(11, &segment)].concat()
}

/// Returns code that computes `local = local * local + 7` this many times.
fn sums(times: usize) -> Vec<u8> {
    (0..times)
        .flat_map(|time| {
            [0x20, (time % 50) as u8, 0x20, ((time + 1) % 50) as u8, 0x7e, 0x42, 7, 0x7c, 0x21, (time % 50) as u8]
        })
        .collect()
}

/// Returns all costly files. Words in the host's log tell whether the host serves or refuses a file.
///
/// # Errors
/// If a component was not built.
pub fn files() -> anyhow::Result<Vec<Costly>> {
    let costly = |name, bytes, told| Costly { name, bytes, told };
    let with = |name: &str, part: Vec<u8>| anyhow::Ok([hostile(name)?, part].concat());
    let patterns: Vec<Value> = (0..1_000).map(|number| json!({"pattern": format!("\\w{{150}}{number}")})).collect();
    let mut greedy: Value = serde_json::from_str(include_str!("../../plugins/hostile/manifest.json"))?;
    if let Some(fields) = greedy.as_object_mut() {
        fields.insert("parameters".to_owned(), json!({"allOf": patterns}));
    }
    let stated = section(0, &[b"\x10oarlock.manifest", greedy.to_string().as_bytes()].concat());
    let empty = section(0, &[1, b'x']);
    Ok(vec![
        costly("ordinary", hostile("ordinary")?, &["Serving"]),
        costly("of-63-mib", vec![0; 63 << 20], &["TooLarge"]),
        costly(
            "padded-to-31-mib",
            with("padded-to-31-mib", section(0, &[&[1, b'x'][..], &vec![0; 29 << 20]].concat()))?,
            &["Serving"],
        ),
        costly(
            "of-ten-million-sections",
            [b"\0asm\x0d\0\x01\0".to_vec(), empty.repeat(7_000_000)].concat(),
            &["TooManyNames"],
        ),
        costly("of-a-thousand-patterns", [component("examples/no_manifest")?, stated].concat(), &["ManifestInvalid"]),
        costly(
            "of-30000-functions",
            with("of-30000-functions", section(1, &module(30_000, 50, &sums(40))))?,
            &["Serving", "CompileLimitExceeded", "CompileFailed"],
        ),
        costly(
            "of-one-large-function",
            with("of-one-large-function", section(1, &module(1, 50, &sums(600_000))))?,
            &["CompileLimitExceeded", "CompileFailed"],
        ),
        costly(
            "of-50000-locals",
            with("of-50000-locals", section(1, &module(40, 40_000, &sums(2_000))))?,
            &["Serving", "CompileLimitExceeded", "CompileFailed"],
        ),
        costly(
            "of-24-mib-of-data",
            with("of-24-mib-of-data", section(1, &data(24 << 20)))?,
            &["Serving", "CompileLimitExceeded", "CompileFailed"],
        ),
    ])
}

/// Returns one grant for each of these plugins.
#[must_use]
pub fn grants(names: &[&str]) -> String {
    let spec = "  anyVersion: true\n  namespaces: [\"*\"]\n  reads: [{apiVersion: v1, kind: Pod}]\n  writes:\n  \
                - {verb: metadata, apiVersion: v1, kind: Pod, labels: [\"hostile.test/*\"]}\n  \
                - {verb: evict, apiVersion: v1, kind: Pod}\n  - {verb: patch, apiVersion: v1, kind: Pod}\n  \
                - {verb: create, apiVersion: v1, kind: ConfigMap}\n";
    let document = |name: &&str| {
        format!("---\napiVersion: oarlock.dev/v1alpha1\nkind: ActionPlugin\nmetadata: {{name: {name}}}\nspec:\n{spec}")
    };
    names.iter().map(document).collect()
}
