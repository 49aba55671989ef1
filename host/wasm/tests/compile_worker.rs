//! The helper process that compiles, as a separate program: this test binary starts itself as the helper.
//!
//! The binary has no test harness, because a helper writes only code to standard output.

use std::error::Error;
use std::process::ExitCode;

use oarlock_core::plugin::grant::Grant;
use oarlock_wasm::{CompileWith, HelperTask, Options, PluginState, PluginStatus, Plugins, compile_worker, inspect};

fn main() -> ExitCode {
    if std::env::args().nth(1).as_deref() == Some("compile-worker") {
        let task = std::env::args().nth(2).and_then(|word| HelperTask::of(&word));
        let memory = std::env::args().nth(3).and_then(|bytes| bytes.parse().ok());
        return match task
            .ok_or("no task".to_owned())
            .and_then(|task| compile_worker(task, memory).map_err(|e| e.to_string()))
        {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => {
                eprintln!("{error}");
                ExitCode::FAILURE
            }
        };
    }
    for (name, test) in TESTS {
        if let Err(why) = test() {
            eprintln!("test {name} ... FAILED: {why}");
            return ExitCode::FAILURE;
        }
        println!("test {name} ... ok");
    }
    ExitCode::SUCCESS
}

type Test = fn() -> Result<(), Box<dyn Error>>;

const TESTS: [(&str, Test); 2] = [
    ("what_a_helper_compiled_within_its_share_serves", what_a_helper_compiled_within_its_share_serves),
    ("a_component_that_needs_more_than_the_share_is_refused_by_name", a_component_that_needs_more_is_refused_by_name),
];

fn what_a_helper_compiled_within_its_share_serves() -> Result<(), Box<dyn Error>> {
    let status = dropped(folder::component("replace")?)?;
    if status.state == PluginState::Serving { Ok(()) } else { Err(format!("{status:?}").into()) }
}

/// Checks that a host refuses a component with a module of one function that takes gigabytes to compile.
fn a_component_that_needs_more_is_refused_by_name() -> Result<(), Box<dyn Error>> {
    // local.get 0, i32.const 1, i32.add, local.set 0
    let step = [0x20, 0, 0x41, 1, 0x6a, 0x21, 0];
    // The body has one local of type i32, and ends with `end`.
    let body = [&[1, 1, 0x7f][..], &step.repeat(1_000_000), &[0x0b]].concat();
    let code = [vec![1], sized(body)].concat();
    let module = [
        b"\0asm\x01\0\0\0".to_vec(),
        [vec![1], sized(vec![1, 0x60, 0, 0])].concat(),
        [vec![3], sized(vec![1, 0])].concat(),
        [vec![10], sized(code)].concat(),
    ];
    let bytes = [folder::component("replace")?, vec![1], sized(module.concat())].concat();
    let status = dropped(bytes)?;
    let named = status.message.contains("96 MiB") && status.message.contains("--memory-limit");
    if status.reason == "CompileLimitExceeded" && named { Ok(()) } else { Err(format!("{status:?}").into()) }
}

/// Returns the bytes after their length, as in a section.
fn sized(bytes: Vec<u8>) -> Vec<u8> {
    let mut length = bytes.len();
    let mut number = Vec::new();
    while length >= 0x80 {
        number.push(0x80 | (length & 0x7f) as u8);
        length >>= 7;
    }
    number.push(length as u8);
    [number, bytes].concat()
}

#[path = "plugins/folder.rs"]
mod folder;

/// Returns the status of a component that is dropped into a host of 256 MiB. The host grants it what `replace` asks for.
fn dropped(bytes: Vec<u8>) -> Result<PluginStatus, Box<dyn Error>> {
    let manifest = inspect(&folder::component("replace")?)?.manifest.ok_or("it has no manifest")?;
    let grant = Grant {
        name: manifest.name,
        any_version: true,
        namespaces: vec!["*".into()],
        reads: manifest.reads,
        writes: manifest.writes,
        ..Grant::default()
    };
    let program = std::env::current_exe()?;
    let compile_with = CompileWith::Helper { program, arguments: vec!["compile-worker".into()] };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let plugins =
            Plugins::start(Options { compile_with, memory_limit: Some(256 << 20), ..Options::in_memory() }).await?;
        plugins.set_grants(vec![grant]).await;
        Ok(plugins.publish("replace", bytes).await.ok_or("it is not listed")?)
    })
}
