//! The helper process that compiles, as a program of its own: this one, called again by itself.
//!
//! It has no test harness, for what a helper writes to standard output is code and nothing else.

use std::process::ExitCode;

use oarlock_core::grant::Grant;
use oarlock_wasm::{CompileWith, Options, PluginState, Plugins, compile_worker, inspect};

fn main() -> ExitCode {
    if std::env::args().nth(1).as_deref() == Some("compile-worker") {
        return match compile_worker() {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => {
                eprintln!("{error}");
                ExitCode::FAILURE
            }
        };
    }
    what_a_helper_compiled_serves();
    println!("test what_a_helper_compiled_serves ... ok");
    ExitCode::SUCCESS
}

#[path = "plugins/folder.rs"]
mod folder;

fn what_a_helper_compiled_serves() {
    let bytes = folder::component("replace");
    let manifest = inspect(&bytes).expect("it is a component").manifest.expect("it has a manifest");
    let grant = Grant {
        name: manifest.name,
        any_version: true,
        namespaces: vec!["*".into()],
        reads: manifest.reads,
        writes: manifest.writes,
        ..Grant::default()
    };
    let program = std::env::current_exe().expect("this program has a path");
    let compile_with = CompileWith::Helper { program, arguments: vec!["compile-worker".into()] };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime starts");
    let status = runtime.block_on(async {
        let plugins = Plugins::start(Options { compile_with, ..Options::in_memory() }).await.expect("an engine starts");
        plugins.set_grants(vec![grant]).await;
        plugins.publish("replace", bytes).await.expect("it is listed")
    });
    assert_eq!(status.state, PluginState::Serving, "{status:?}");
}
