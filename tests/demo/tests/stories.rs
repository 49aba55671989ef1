//! Each story from end to end, without pauses for reading.
//!
//! Takes the built binaries of demo and host, and built components (`cargo xtask plugins`). The exit code of a story is
//! the judgment; beside that, a story has to show what it is about.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails loudly")]

use std::path::PathBuf;
use std::process::{Command, Output};

fn components() -> PathBuf {
    let target = || {
        let named = std::env::var_os("CARGO_TARGET_DIR").map(PathBuf::from);
        named.unwrap_or_else(|| PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../../target")))
    };
    let folder = std::env::var_os("OARLOCK_COMPONENTS").map(PathBuf::from);
    folder.unwrap_or_else(|| target().join("wasm32-wasip2/release"))
}

fn demo(story: &str, plugins_from: PathBuf) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_demo"));
    command.args([story, "--fast", "--plugins-from"]).arg(plugins_from).output().unwrap()
}

/// Tells a story to its end. The last line of the checks and these words have to be there.
fn tells(story: &str, checks: usize, words: &[&str]) {
    let ended = demo(story, components());
    let (shown, errors) = (String::from_utf8_lossy(&ended.stdout), String::from_utf8_lossy(&ended.stderr));
    let wrong: Vec<&str> = shown.lines().filter(|line| line.contains("NOT AS SAID")).collect();
    assert!(ended.status.success(), "{wrong:?}\n{errors}\n{shown}");
    for words in [format!("{checks} of {checks} checks hold").as_str()].iter().chain(words) {
        assert!(shown.contains(words), "{words:?} is missing in\n{shown}\n{errors}");
    }
    assert!(!shown.contains('\x1b'), "control characters in what is no terminal:\n{shown}");
}

/// Each story that README names has a test below.
#[test]
fn readme_names_the_stories_that_are_told_here() {
    let readme = include_str!("../../../README.md");
    let named = readme.lines().filter_map(|line| line.strip_prefix("cargo xtask demo "));
    let named: Vec<&str> = named.map(|line| line.split('#').next().unwrap_or_default().trim()).collect();
    assert_eq!(named, ["", "pods", "nodes", "ops", "flows"], "\"\" stands for the story `plugins`");
}

#[test]
fn plugins_replace_every_target_once_and_are_held_to_their_grants() {
    tells("plugins", 3, &["kind: Secret", "MutationDenied", "6 of 6 targets went once and were replaced once"]);
}

#[test]
fn pods_keep_their_bounds_and_hold_at_a_pause_and_a_failure() {
    let restarted = "container restarted -> operation over -> in traffic again";
    tells("pods", 13, &["4 x web-", "after MaxUnavailable", "maxUnavailable: 34%", restarted, "RestartFailed"]);
}

#[test]
fn nodes_are_rebooted_once_and_two_at_a_time() {
    tells("nodes", 5, &["3 nodes are healthy, and node-3 failed", "EvictionBlocked"]);
}

#[test]
fn ops_jobs_reboot_stop_run_scripts_and_leave_files_and_images() {
    tells("ops", 9, &["409 Primus.00010", "2 nodes say that their timers are off", "/library/busybox with the tag"]);
}

#[test]
fn flows_retry_branch_end_and_say_what_to_type() {
    let words =
        ["kind: JobTemplate", "no table orders", "NotNeeded", "4 of 4 nodes had one pod", "oarlock watch jf/release"];
    tells("flows", 7, &words);
}

#[test]
fn a_demo_without_plugins_names_the_command_that_builds_them() {
    let ended = demo("plugins", env!("CARGO_MANIFEST_DIR").into());
    let errors = String::from_utf8_lossy(&ended.stderr).into_owned();
    assert_eq!(ended.status.code(), Some(1), "{errors}");
    assert!(errors.contains("replace.wasm") && errors.contains("cargo xtask demo"), "{errors}");
}
