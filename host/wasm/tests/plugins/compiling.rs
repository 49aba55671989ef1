//! The helper that compiles, and the cache of compiled code.

use std::path::{Path, PathBuf};

use oarlock_wasm::{CompileWith, Options, PluginStatus, Plugins};

use crate::components::{all_of, component};

/// Returns an empty folder for this test.
pub(crate) fn scratch(name: &str) -> PathBuf {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}-{}", std::process::id()));
    if path.exists() {
        std::fs::remove_dir_all(&path).unwrap();
    }
    std::fs::create_dir_all(&path).unwrap();
    path
}

fn helper(program: &str, arguments: &[&str]) -> CompileWith {
    CompileWith::Helper { program: program.into(), arguments: arguments.iter().map(Into::into).collect() }
}

async fn dropped(compile_with: CompileWith, cache: Option<&Path>) -> PluginStatus {
    let options = Options { compile_with, cache_dir: cache.map(Path::to_owned), ..Options::in_memory() };
    let plugins = Plugins::start(options).await.unwrap();
    plugins.set_grants(vec![all_of(&component("replace"), None)]).await;
    plugins.publish("replace", component("replace")).await.unwrap()
}

#[tokio::test]
async fn a_helper_that_breaks_down_costs_one_file_and_not_the_host() {
    for (with, reason) in [
        (helper("/nonexistent/oarlock", &[]), "CompilerUnavailable"),
        (helper("/bin/sh", &["-c", "echo no such instruction >&2; exit 1"]), "CompileFailed"),
        (helper("/bin/sh", &["-c", "kill -9 $$"]), "CompileLimitExceeded"),
        (helper("/bin/sh", &["-c", "echo this is no code"]), "CompileFailed"),
    ] {
        let status = dropped(with, None).await;
        assert_eq!(status.reason, reason, "{}", status.message);
    }
    let status = dropped(helper("/bin/sh", &["-c", "echo no such instruction >&2; exit 1"]), None).await;
    assert!(status.message.contains("no such instruction"), "{}", status.message);
}

/// Vets a component. Without a grant, the host does not compile it.
async fn vetted(cache: &Path, name: &str) {
    let options = Options { cache_dir: Some(cache.to_owned()), ..Options::in_memory() };
    let plugins = Plugins::start(options).await.unwrap();
    assert_eq!(plugins.publish(name, component(name)).await.unwrap().reason, "GrantMissing");
}

fn entries(cache: &Path) -> Vec<PathBuf> {
    let paths = std::fs::read_dir(cache).unwrap().map(|entry| entry.unwrap().path());
    // Files of compiled code have no extension.
    paths.filter(|path| path.extension().is_none() && path.file_name().is_some_and(|name| name != "key")).collect()
}

/// Returns true if the cache suffices, without a compiler.
async fn from_cache(cache: &Path) -> bool {
    let status = dropped(helper("/nonexistent/oarlock", &[]), Some(cache)).await;
    assert!(["Serving", "CompilerUnavailable"].contains(&status.reason.as_str()), "{status:?}");
    status.reason == "Serving"
}

#[tokio::test]
async fn a_damaged_entry_is_ignored_and_replaced() {
    let cache = scratch("cache-damaged");
    dropped(CompileWith::InProcess, Some(&cache)).await;
    let [entry] = entries(&cache).try_into().unwrap();
    let whole = std::fs::read(&entry).unwrap();
    for damaged in [Vec::new(), whole[..40].to_vec(), [&whole[..5000], b"\x90", &whole[5001..]].concat()] {
        std::fs::write(&entry, damaged).unwrap();
        assert!(!from_cache(&cache).await);
        assert_eq!(dropped(CompileWith::InProcess, Some(&cache)).await.reason, "Serving");
        assert_eq!(std::fs::read(&entry).unwrap(), whole);
    }
}

#[tokio::test]
async fn an_entry_of_another_host_or_component_is_ignored() {
    let (ours, theirs) = (scratch("cache-ours"), scratch("cache-theirs"));
    dropped(CompileWith::InProcess, Some(&ours)).await;
    dropped(CompileWith::InProcess, Some(&theirs)).await;
    let ([mine], [foreign]) = (entries(&ours).try_into().unwrap(), entries(&theirs).try_into().unwrap());
    std::fs::copy(&foreign, &mine).unwrap();
    assert!(!from_cache(&ours).await);
    // This file has the right key, under the name of another component.
    let plugins = Options { cache_dir: Some(theirs.clone()), ..Options::in_memory() };
    let plugins = Plugins::start(plugins).await.unwrap();
    plugins.set_grants(vec![all_of(&component("hostile"), None)]).await;
    plugins.publish("hostile", component("hostile")).await;
    let other = entries(&theirs).into_iter().find(|path| *path != foreign);
    std::fs::copy(other.unwrap(), &foreign).unwrap();
    assert!(!from_cache(&theirs).await);
}

#[cfg(unix)]
#[tokio::test]
async fn the_key_and_the_code_are_private() {
    use std::os::unix::fs::PermissionsExt;
    let cache = scratch("cache-private").join("compiled");
    dropped(CompileWith::InProcess, Some(&cache)).await;
    let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!((mode(&cache), mode(&cache.join("key"))), (0o700, 0o600));
    assert_eq!(entries(&cache).iter().map(|path| mode(path)).collect::<Vec<_>>(), [0o600]);
}

#[cfg(unix)]
#[tokio::test]
async fn a_directory_or_a_key_that_somebody_else_may_have_made_is_not_trusted() {
    use std::os::unix::fs::PermissionsExt;
    let cache = scratch("cache-known-key");
    dropped(CompileWith::InProcess, Some(&cache)).await;
    assert!(from_cache(&cache).await);
    std::fs::set_permissions(cache.join("key"), PermissionsExt::from_mode(0o644)).unwrap();
    assert!(!from_cache(&cache).await, "who reads the key can sign code");
    let key = std::fs::metadata(cache.join("key")).unwrap();
    assert_eq!(key.permissions().mode() & 0o777, 0o600, "it was made anew");

    let linked = scratch("cache-linked").join("compiled");
    std::os::unix::fs::symlink(&cache, &linked).unwrap();
    let options = Options { cache_dir: Some(linked), ..Options::in_memory() };
    let refused = Plugins::start(options).await.err().map(|error| whole(&error)).unwrap_or_default();
    assert!(refused.contains("or is a link; choose one of the host's own"), "{refused}");
}

/// Returns the message of an error with its causes.
fn whole(error: &dyn std::error::Error) -> String {
    match error.source() {
        Some(source) => format!("{error}: {}", whole(source)),
        None => error.to_string(),
    }
}

#[tokio::test]
async fn what_the_helper_hands_over_is_bounded() {
    let cache = scratch("endless");
    vetted(&cache, "replace").await;
    let endless = helper("/bin/sh", &["-c", "printf +; exec head -c 300000000 /dev/zero"]);
    let status = dropped(endless, Some(&cache)).await;
    assert_eq!(status.reason, "CompileLimitExceeded", "{}", status.message);
    assert!(status.message.contains("more than 128 MiB of code"), "{}", status.message);
}

#[tokio::test]
async fn the_helper_knows_nothing_of_the_hosts_environment() {
    let tells = helper("/bin/sh", &["-c", "echo \"$HOME$CARGO_MANIFEST_DIR in $(pwd)\" >&2; exit 1"]);
    let status = dropped(tells, None).await;
    assert!(status.message.contains("does not compile: in /;"), "{}", status.message);
}

/// Returns a helper that appends a line to the file `calls` at each call and does nothing else.
fn counting(calls: &Path) -> CompileWith {
    helper("/bin/sh", &["-c", &format!("cat > /dev/null; echo $0 >> {}; exit 1", calls.display())])
}

#[tokio::test]
async fn nothing_is_compiled_before_it_is_granted() {
    let cache = scratch("ungranted");
    vetted(&cache, "replace").await;
    let calls = cache.join("calls");
    let options = Options { compile_with: counting(&calls), cache_dir: Some(cache), ..Options::in_memory() };
    let plugins = Plugins::start(options).await.unwrap();
    let status = plugins.publish("replace", component("replace")).await.unwrap();
    assert_eq!((status.reason.as_str(), status.action.as_deref()), ("GrantMissing", Some("Replace")));
    assert!(!calls.exists());
    plugins.set_grants(vec![all_of(&component("replace"), None)]).await;
    assert_eq!(plugins.list()[0].reason, "CompileFailed");
    assert_eq!(std::fs::read_to_string(&calls).unwrap(), "compile\n");
}

#[tokio::test]
async fn a_component_that_cost_the_helper_much_is_left_alone_for_a_while_also_by_the_next_host() {
    let cache = scratch("failed");
    let calls = cache.join("calls");
    for _ in 0..3 {
        let status = dropped(counting(&calls), Some(&cache)).await;
        assert_eq!(status.reason, "CompileFailed", "{status:?}");
    }
    assert_eq!(std::fs::read_to_string(&calls).unwrap(), "vet\n");
}

#[tokio::test]
async fn a_rejection_by_the_helper_keeps_its_word_and_its_sentence() {
    let reply = r#"printf -- '-{"reason":"TooDeep","sentence":"it is nested; rebuild it","retryable":false}'"#;
    let status = dropped(helper("/bin/sh", &["-c", reply]), None).await;
    assert_eq!((status.reason.as_str(), status.message.as_str()), ("TooDeep", "it is nested; rebuild it"));
}
