//! The memory of a host process with a limit of 256 MiB and of its helper, while the host vets and compiles costly files and runs plugins that take
//! all the memory they get.

#[path = "memory/tenant.rs"]
mod tenant;

use std::process::Command;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::RecvTimeoutError;
use std::sync::{Arc, mpsc};
use std::time::Duration;

use anyhow::{Context as _, ensure};
use oarlock_scenarios::components::{GRANTS, component};
use oarlock_scenarios::costly;
use oarlock_scenarios::host_process::host_binary;
use oarlock_scenarios::jobs::replace;
use oarlock_scenarios::test_cluster::{TestCluster, patiently, real_plane};
use oarlock_support::accounts::Account;
use oarlock_support::children::Child;
use oarlock_support::control_plane;
use serde_json::json;

const LIMIT: u64 = 256 << 20;
/// Number of pods of plugins that take all the memory they get, eight of them at once.
const GREEDY: usize = 40;
const EACH: Duration = Duration::from_millis(5);

/// Returns the memory of a process in bytes, without the pages of its files. The kernel drops these pages when it needs memory; only the process
/// itself can give back the rest.
fn own_bytes(id: u32) -> u64 {
    let text = std::fs::read_to_string(format!("/proc/{id}/status")).unwrap_or_default();
    ["RssAnon:", "RssShmem:"].iter().map(|field| kib(&text, field) << 10).sum()
}

fn kib(status: &str, field: &str) -> u64 {
    let line = status.lines().find_map(|line| line.strip_prefix(field)).unwrap_or_default();
    line.trim().trim_end_matches(" kB").parse().unwrap_or_default()
}

/// Returns the processes that this process has started.
fn children_of(id: u32) -> Vec<u32> {
    let tasks = std::fs::read_dir(format!("/proc/{id}/task")).into_iter().flatten().flatten();
    let lists = tasks.filter_map(|task| std::fs::read_to_string(task.path().join("children")).ok());
    lists.flat_map(|list| list.split_whitespace().filter_map(|id| id.parse().ok()).collect::<Vec<_>>()).collect()
}

/// The highest memory use that was observed, in bytes.
#[derive(Default)]
struct Peaks {
    host: AtomicU64,
    helper: AtomicU64,
    both: AtomicU64,
    helpers: AtomicU64,
}

impl Peaks {
    /// Measures until the sender of `stop` is dropped.
    fn watch(&self, host: u32, stop: &mpsc::Receiver<()>) {
        let mut last = 0;
        while stop.recv_timeout(EACH) == Err(RecvTimeoutError::Timeout) {
            let own = own_bytes(host);
            let helpers = children_of(host);
            let theirs = helpers.iter().map(|id| own_bytes(*id)).sum::<u64>();
            if let Some(id) = helpers.first().filter(|id| **id != last) {
                last = *id;
                self.helpers.fetch_add(1, Ordering::Relaxed);
            }
            self.host.fetch_max(own, Ordering::Relaxed);
            self.helper.fetch_max(theirs, Ordering::Relaxed);
            self.both.fetch_max(own + theirs, Ordering::Relaxed);
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn host_and_helper_stay_within_their_limit_whatever_is_vetted_compiled_or_run() -> anyhow::Result<()> {
    let plane = real_plane(control_plane::Options::default()).await?;
    let cluster = TestCluster::real(plane.clone(), "memory").await?;
    let folder = plane.folder().join("memory");
    let plugins = folder.join("plugins");
    std::fs::create_dir_all(&plugins)?;
    std::fs::write(plugins.join("replace.wasm"), component("replace")?)?;
    let files = costly::files()?;
    let names: Vec<&str> = files.iter().map(|file| file.name).collect();
    std::fs::write(folder.join("grants.yaml"), format!("{GRANTS}\n{}", costly::grants(&names)))?;
    let mut command = Command::new(host_binary()?);
    command.args(["host", "--identity", "memory", "--listen", "127.0.0.1:0", "--memory-limit", "256Mi"]);
    command.arg("--plugins").arg(&plugins).arg("--kubeconfig").arg(plane.kubeconfig(Account::Host)?);
    command.env("XDG_CACHE_HOME", folder.join("cache"));
    let log = folder.join("host.log");
    let mut host = Child::spawn("oarlock", command, log.clone())?;
    let peaks = Arc::<Peaks>::default();
    let (watching, id) = (peaks.clone(), host.id());
    let (stop, stopped) = mpsc::channel();
    let watcher = std::thread::spawn(move || watching.watch(id, &stopped));
    for file in &files {
        let partial = plugins.join(".partial");
        std::fs::write(&partial, &file.bytes)?;
        std::fs::rename(partial, plugins.join(format!("{}.wasm", file.name)))?;
        told(&log, file).await.with_context(|| host.tail(20))?;
        println!("{}: {}", file.name, figures(&peaks));
    }
    run_greedy(&cluster).await.with_context(|| host.tail(20))?;
    println!("{GREEDY} targets that take what they get: {}", figures(&peaks));
    ensure!(host.ended()?.is_none(), "the host ended:\n{}", host.tail(20));
    drop(stop);
    ensure!(watcher.join().is_ok(), "nobody looked on");
    let status = std::fs::read_to_string(format!("/proc/{id}/status"))?;
    println!("the host with the pages of its files: {} MiB at most", kib(&status, "VmHWM:") >> 10);
    ensure!(peaks.helpers.load(Ordering::Relaxed) > files.len() as u64, "helpers were seen: {}", figures(&peaks));
    ensure!(peaks.helper.load(Ordering::Relaxed) > 16 << 20, "a helper at work was seen: {}", figures(&peaks));
    let both = peaks.both.load(Ordering::Relaxed);
    ensure!(both <= LIMIT, "host and helper had {} MiB", both >> 20);
    cluster.finish().await
}

fn figures(peaks: &Peaks) -> String {
    let mib = |peak: &AtomicU64| peak.load(Ordering::Relaxed) >> 20;
    let (host, helper, both) = (mib(&peaks.host), mib(&peaks.helper), mib(&peaks.both));
    let helpers = peaks.helpers.load(Ordering::Relaxed);
    format!("host {host} MiB, helper {helper} MiB, both at once {both} MiB at most so far; {helpers} helpers")
}

/// Waits until the log names the state of a file.
async fn told(log: &std::path::Path, file: &costly::Costly) -> anyhow::Result<()> {
    let source = format!("{}.wasm", file.name);
    let told = patiently(&source, async || {
        let text = std::fs::read_to_string(log)?;
        let mut lines = text.lines().filter(|line| line.contains(&source) && line.contains("reason="));
        Ok(lines.any(|line| {
            println!("{}", line.get(line.find(": ").unwrap_or(0)..).unwrap_or_default());
            true
        }))
    });
    // The time limit of a helper plus its start.
    tokio::time::timeout(Duration::from_secs(150), told).await.with_context(|| format!("{source}: no state"))??;
    let text = std::fs::read_to_string(log)?;
    let says = |line: &str| line.contains(&source) && file.told.iter().any(|word| line.contains(word));
    ensure!(text.lines().any(says), "{source} is none of {:?}", file.told);
    Ok(())
}

/// Runs jobs whose plugin takes memory until it is stopped, and a job of another plugin beside them.
async fn run_greedy(cluster: &TestCluster) -> anyhow::Result<()> {
    let deeds =
        ["memory-bomb-in-operate", "huge-output-in-operate", "huge-extra-in-operate", "many-mutations-in-operate"];
    for number in 0..GREEDY {
        cluster.seedbed.bare_pod(&format!("greedy-{number}")).await?;
    }
    let set = cluster.seedbed.deployment("web", 3).await?;
    cluster.world.settled(&set, Duration::from_secs(180)).await?;
    for (job, deed) in deeds.iter().enumerate() {
        let each = GREEDY / deeds.len();
        let targets = (job * each..(job + 1) * each).map(|number| json!({"name": format!("greedy-{number}")}));
        let targets: Vec<_> = targets.collect();
        let spec = json!({"action": "ORDINARY", "targets": targets, "parameters": {"do": deed}});
        cluster.create_job(&format!("greedy-{job}"), spec).await?;
    }
    cluster.create_job("web", replace(&cluster.pod_names("web").await?, json!({}))).await?;
    for job in 0..deeds.len() {
        cluster.until_progress(&format!("greedy-{job}"), "Failed").await?;
    }
    cluster.until_progress("web", "Succeeded").await?;
    Ok(())
}
