//! Tests with a component for each excluded family of instructions and types. The host refuses each component before it compiles the
//! component.

use wasmparser::{Validator, WasmFeatures};

use super::features;
use crate::load::compile::compile_component;
use crate::run::engine;

/// The WebAssembly proposals that plugins may use.
const TAKEN: [&str; 13] = [
    "MUTABLE_GLOBAL",
    "SATURATING_FLOAT_TO_INT",
    "SIGN_EXTENSION",
    "REFERENCE_TYPES",
    "MULTI_VALUE",
    "BULK_MEMORY",
    "SIMD",
    "RELAXED_SIMD",
    "TAIL_CALL",
    "FLOATS",
    "MULTI_MEMORY",
    "EXTENDED_CONST",
    "COMPONENT_MODEL",
];

/// The WebAssembly proposals that plugins may not use, each with examples of its use in a component.
const EXCLUDED: [(&str, &[&str]); 27] = [
    (
        "THREADS",
        &[
            "(core module (memory 1 1 shared))",
            "(core module (memory 1) (func (drop (i32.atomic.load (i32.const 0)))))",
            "(core module (memory 1) (func (drop (memory.atomic.notify (i32.const 0) (i32.const 1)))))",
            "(core module (func atomic.fence))",
        ],
    ),
    (
        "SHARED_EVERYTHING_THREADS",
        &["(core module (type (shared (func))))", "(core module (global (shared i32) (i32.const 0)))"],
    ),
    (
        "EXCEPTIONS",
        &[
            "(core module (tag $t) (func (throw $t)))",
            "(core module (func (block (result exnref) (try_table (catch_all_ref 0)) unreachable) throw_ref))",
            "(core module (func (local exnref)))",
        ],
    ),
    ("LEGACY_EXCEPTIONS", &["(core module (func try nop catch_all nop end))"]),
    ("MEMORY64", &["(core module (memory i64 1))", "(core module (table i64 1 funcref))"]),
    (
        "FUNCTION_REFERENCES",
        &[
            "(core module (type $f (func)) (func (param (ref null $f)) (call_ref $f (local.get 0))))",
            "(core module (func $f) (elem declare func $f) (func (local (ref func))))",
        ],
    ),
    ("MEMORY_CONTROL", &["(core module (memory 1) (func (memory.discard (i32.const 0) (i32.const 0))))"]),
    (
        "GC",
        &[
            "(core module (type (struct)))",
            "(core module (type $a (array i32)) (func (drop (array.new_default $a (i32.const 1)))))",
            "(core module (func (drop (ref.i31 (i32.const 1)))))",
            "(core module (rec (type (func)) (type (func))))",
        ],
    ),
    (
        "GC_TYPES",
        &[
            "(core module (func (param externref)))",
            "(core module (table 1 externref))",
            "(core module (global externref (ref.null extern)))",
            "(core module (func (drop (ref.null extern))))",
        ],
    ),
    ("CUSTOM_PAGE_SIZES", &["(core module (memory 1 (pagesize 1)))"]),
    ("STACK_SWITCHING", &["(core module (type $f (func)) (type (cont $f)))", "(core module (tag (result i32)))"]),
    ("WIDE_ARITHMETIC", &["(core module (func (result i64 i64) (i64.mul_wide_u (i64.const 1) (i64.const 2))))"]),
    (
        "CUSTOM_DESCRIPTORS",
        &["(core module (rec (type $a (descriptor $b) (struct)) (type $b (describes $a) (struct))))"],
    ),
    ("COMPACT_IMPORTS", &[r#"(core module (import "a" (item "b" (func)) (item "c" (func))))"#]),
    ("CM_VALUES", &[r#"(import "v" (value $v string)) (export "w" (value $v))"#]),
    ("CM_NESTED_NAMES", &[r#"(import "a:b:c/d" (func))"#]),
    (
        "CM_ASYNC",
        &[
            "(type (future u8))",
            "(type (stream u8))",
            "(type (func async))",
            "(core func (canon task.return))",
            "(core func (canon subtask.drop))",
        ],
    ),
    (
        "CM_ASYNC_STACKFUL",
        &[r#"(core module $m (func (export "f"))) (core instance $i (instantiate $m))
            (func (export "f") async (canon lift (core func $i "f") async))"#],
    ),
    ("CM_MORE_ASYNC_BUILTINS", &["(core func (canon subtask.cancel async))"]),
    ("CM_THREADING", &["(core func (canon thread.index))"]),
    ("CM_ERROR_CONTEXT", &["(core func (canon error-context.drop))"]),
    ("CM_FIXED_LENGTH_LISTS", &["(type (list u8 4))"]),
    (
        "CM_GC",
        &[r#"(core module $m (func (export "f"))) (core instance $i (instantiate $m))
            (func (export "f") (canon lift (core func $i "f") gc))"#],
    ),
    ("CM_MAP", &["(type (map string u8))"]),
    (
        "CM64",
        &[r#"(core module $m (memory (export "m") i64 1)) (core instance $i (instantiate $m))
            (import "f" (func $f (param "x" string)))
            (core func (canon lower (func $f) (memory (core memory $i "m"))))"#],
    ),
    ("CM_IMPLEMENTS", &[r#"(import "x" (implements "a:b/c") (instance))"#]),
    ("CM_CANON_NAMES", &[r#"(import "a:b/c@1" (versionsuffix ".2.3") (instance))"#]),
];

fn component(text: &str) -> Vec<u8> {
    wat::parse_str(format!("(component {text})")).unwrap_or_else(|error| panic!("{text}: {error}"))
}

fn is_valid(bytes: &[u8], features: WasmFeatures) -> bool {
    Validator::new_with_features(features).validate_all(bytes).is_ok()
}

/// A new version of the parser may bring a new proposal. Each new proposal needs a row in one of the lists.
#[test]
fn every_proposal_that_the_parser_knows_is_taken_or_excluded_by_name() {
    let taken = |name: &str| TAKEN.contains(&name);
    let excluded = |name: &str| EXCLUDED.iter().any(|(known, _)| *known == name);
    let mut known = 0;
    for (name, flag) in WasmFeatures::all().iter_names() {
        known += 1;
        assert_ne!(taken(name), excluded(name), "{name} stands in both lists or in none");
        assert_eq!(taken(name), features().contains(flag), "{name}");
        assert_eq!(excluded(name), features().intersection(flag).is_empty(), "{name}");
    }
    assert_eq!(known, TAKEN.len() + EXCLUDED.len(), "a list names what the parser does not know");
}

/// Each example is refused only because its own proposal is missing: all other proposals are on. So the example has no other mistake.
#[test]
fn what_stands_for_an_excluded_proposal_is_valid_with_it_and_invalid_without_it_alone() {
    for (name, texts) in EXCLUDED {
        let flag = WasmFeatures::from_name(name).unwrap();
        for text in texts {
            let bytes = component(text);
            assert!(is_valid(&bytes, WasmFeatures::all()), "{name}: {text}");
            assert!(!is_valid(&bytes, WasmFeatures::all().difference(flag)), "{name}: {text}");
        }
    }
}

/// This check keeps the advisories RUSTSEC-2026-0570 (GHSA-rc4p-x33f-vpr2) and GHSA-2674-w29h-wqvj out of reach.
#[test]
fn a_component_with_an_excluded_proposal_is_refused_before_it_is_compiled() {
    let engine = engine::compiler(true).unwrap();
    for (name, texts) in EXCLUDED {
        for text in texts {
            let refused = compile_component(&engine, &component(text)).unwrap_err();
            // A refusal by the compiler would be `CompileFailed`.
            assert_eq!(refused.reason, "Malformed", "{name}: {text}: {}", refused.sentence);
        }
    }
    assert!(compile_component(&engine, &component("(core module (memory 1))")).is_ok());
}
