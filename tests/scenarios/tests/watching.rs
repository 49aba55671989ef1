//! `oarlock run`, `get`, `watch` and `plan` as people use them: in a terminal, in a pipe, and as a kubectl plugin. Another process serves the cluster
//! in memory.

#[path = "watching/planned.rs"]
mod planned;
#[path = "watching/plans.rs"]
mod plans;
#[path = "watching/plans_large.rs"]
mod plans_large;
#[path = "watching/plans_neighbours.rs"]
mod plans_neighbours;
#[path = "watching/plans_nodes.rs"]
mod plans_nodes;
#[path = "watching/plans_real.rs"]
mod plans_real;

use std::path::Path;
use std::process::Output;
use std::time::Duration;

use anyhow::{Context as _, bail, ensure};
use oarlock_scenarios::dev::Dev;
use oarlock_scenarios::host_process::host_binary;
use oarlock_scenarios::terminal::Terminal;
use serde_json::{Value, json};

/// The longest wait. Each step takes about a second; a busy machine is slower.
const SOON: Duration = Duration::from_secs(60);
const UP: &str = "\u{1b}[A";
const DOWN: &str = "\u{1b}[B";
const END: &str = "\u{1b}[F";
const CTRL_C: &str = "\u{3}";

/// Runs `oarlock` with these arguments against the cluster of `dev` until it ends.
async fn oarlock(dev: &Dev, arguments: &[&str]) -> anyhow::Result<Output> {
    let mut command = tokio::process::Command::new(host_binary()?);
    command
        .env("KUBECONFIG", dev.folder.join("kubeconfig"))
        .env("HOME", &dev.folder)
        .args(arguments)
        .kill_on_drop(true);
    match tokio::time::timeout(SOON, command.output()).await {
        Ok(output) => output.context("oarlock does not run"),
        Err(_) => {
            let jobs = dev.kubectl(&["get", "opj,pods", "-o", "yaml"])?;
            bail!("oarlock {arguments:?} goes on after {SOON:?}:\n{jobs}\n{}", dev.child.tail(30))
        }
    }
}

/// Returns the output of a command that must have succeeded.
fn printed(output: &Output) -> anyhow::Result<String> {
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    ensure!(output.status.success(), "{}: {text}{}", output.status, String::from_utf8_lossy(&output.stderr));
    Ok(text)
}

fn in_terminal(dev: &Dev, arguments: &[&str], size: (u16, u16)) -> anyhow::Result<Terminal> {
    let command = pty_process::blocking::Command::new(host_binary()?)
        .env("KUBECONFIG", dev.folder.join("kubeconfig"))
        .env("HOME", &dev.folder)
        .env("TERM", "xterm-256color")
        .args(arguments);
    Terminal::start(command, size)
}

fn pods(dev: &Dev) -> anyhow::Result<Vec<String>> {
    let names = dev.kubectl(&["get", "pods", "-l", "app=foo", "-o", "jsonpath={.items[*].metadata.name}"])?;
    Ok(names.split_whitespace().map(str::to_owned).collect())
}

fn has(lines: &[String], words: &str) -> bool {
    lines.iter().any(|line| line.contains(words))
}

#[tokio::test]
async fn a_job_is_run_watched_to_its_partition_and_to_its_end_in_a_terminal() -> anyhow::Result<()> {
    let mut dev = Dev::start("terminal")?;
    dev.until_ready().await?;
    let names = pods(&dev)?;
    let run = ["run", "Replace", "--target", &names[0], &names[1], "--name", "x", "--partition", "1", "--watch"];
    let mut terminal = in_terminal(&dev, &run, (80, 24))?;
    let lines = terminal.until("the partition", SOON, |lines| has(lines, "waits for Partition")).await?;
    ensure!(terminal.is_full_screen(), "{lines:#?}");
    ensure!(lines[0].starts_with("default/x") && lines[0].ends_with("Processing"), "{lines:#?}");
    ensure!(has(&lines, "= 1 succeeded  . 1 pending") && has(&lines, "] 50%") | has(&lines, "]  50%"), "{lines:#?}");
    ensure!(has(&lines, "new pod "), "the new pod of the first target: {lines:#?}");
    // Pending targets are listed before targets that have succeeded.
    terminal.press(DOWN)?;
    terminal.until("the chosen target", SOON, |lines| has(lines, &format!("{} Succeeded: new pod", names[0]))).await?;
    terminal.press(UP)?;
    terminal.press("f")?;
    terminal.until("the next filter", SOON, |lines| has(lines, "needs eyes 0-0 of 0")).await?;
    terminal.resize((40, 10))?;
    terminal
        .until("a small frame", SOON, |lines| lines.len() == 10 && has(lines, "= 1 succeeded  . 1 pending"))
        .await?;
    terminal.resize((100, 30))?;
    terminal.until("a large frame", SOON, |lines| has(lines, "Replace, by replace")).await?;
    dev.kubectl(&["patch", "opj", "x", "--type=merge", "-p", r#"{"spec":{"partition":2}}"#])?;
    let status = terminal.ended(SOON).await?;
    let lines = terminal.until("the end", SOON, |lines| has(lines, "Progress:")).await?;
    ensure!(status.code() == Some(0) && !terminal.is_full_screen(), "{status}: {lines:#?}");
    ensure!(has(&lines, "2 succeeded"), "{lines:#?}");
    Ok(())
}

#[tokio::test]
async fn leaving_a_watch_gives_the_terminal_back_and_leaves_the_job_alone() -> anyhow::Result<()> {
    let mut dev = Dev::start("leave")?;
    dev.until_ready().await?;
    let created = printed(&oarlock(&dev, &["run", "Nope", "--target", "a", "--name", "x"]).await?)?;
    ensure!(created == "opj/x created; `oarlock watch opj/x -n default` follows it\n", "{created}");
    for key in ["q", CTRL_C] {
        let mut terminal = in_terminal(&dev, &["watch", "opj/x"], (80, 24))?;
        terminal.until("what it waits for", SOON, |lines| has(lines, "waits for NoPlugin")).await?;
        terminal.press(key)?;
        let status = terminal.ended(SOON).await?;
        let lines = terminal.until("a word", SOON, |lines| has(lines, "The job goes on")).await?;
        ensure!(status.code() == Some(3) && !terminal.is_full_screen(), "{status}: {lines:#?}");
    }
    // A deleted job ends the watch with a message. A job that never existed is an error with its fix.
    let mut terminal = in_terminal(&dev, &["watch", "x"], (80, 24))?;
    terminal.until("the job", SOON, |lines| has(lines, "default/x")).await?;
    dev.kubectl(&["delete", "opj", "x"])?;
    let status = terminal.ended(SOON).await?;
    let lines = terminal.until("a word", SOON, |lines| has(lines, "deleted before it ended")).await?;
    ensure!(status.code() == Some(3), "{status}: {lines:#?}");
    let missing = oarlock(&dev, &["watch", "x"]).await?;
    let said = String::from_utf8_lossy(&missing.stderr).into_owned();
    ensure!(
        missing.status.code() == Some(3) && said.contains("there is no job x in namespace default; `oarlock get -A`"),
        "{said}"
    );
    Ok(())
}

#[tokio::test]
async fn a_cluster_that_goes_away_is_said_on_the_screen_and_asked_again() -> anyhow::Result<()> {
    let mut dev = Dev::start("away")?;
    dev.until_ready().await?;
    printed(&oarlock(&dev, &["run", "Nope", "--target", "a", "--name", "x"]).await?)?;
    let mut terminal = in_terminal(&dev, &["watch", "x"], (80, 24))?;
    terminal.until("what it waits for", SOON, |lines| has(lines, "waits for NoPlugin")).await?;
    dev.child.kill();
    terminal.until("the loss", SOON, |lines| has(lines, "disconnected for ")).await?;
    ensure!(has(&terminal.lines(), "default/x"), "the last view stays: {:#?}", terminal.lines());
    terminal.press("q")?;
    ensure!(terminal.ended(SOON).await?.code() == Some(3));
    let gone = oarlock(&dev, &["get"]).await?;
    let said = String::from_utf8_lossy(&gone.stderr).into_owned();
    ensure!(
        gone.status.code() == Some(1) && said.contains("is not reached; check --context and --kubeconfig"),
        "{said}"
    );
    Ok(())
}

#[tokio::test]
async fn ten_thousand_targets_are_shown_and_scrolled_in_a_terminal() -> anyhow::Result<()> {
    let mut dev = Dev::start("large")?;
    dev.until_ready().await?;
    let targets: Vec<Value> = (0..10_000).map(|at| json!({"name": format!("web-7d9f8c6b5d-{at:05}")})).collect();
    let job = json!({"apiVersion": "apps.kusionstack.io/v1alpha1", "kind": "OperationJob", "metadata": {"name": "large"},
        "spec": {"action": "Nope", "targets": targets}});
    let file = dev.folder.join("large.json");
    std::fs::write(&file, job.to_string())?;
    dev.kubectl(&["create", "-f", &file.to_string_lossy()])?;
    let terminal = in_terminal(&dev, &["watch", "opj/large"], (80, 24))?;
    let lines = terminal.until("the job", SOON, |lines| has(lines, "waits for NoPlugin")).await?;
    ensure!(has(&lines, ". 10000 pending") && has(&lines, "of 10000 | f filter"), "{lines:#?}");
    ensure!(!has(&lines, "not read"), "what has not started has no detail to miss: {lines:#?}");
    terminal.press(END)?;
    terminal
        .until("the last target", SOON, |lines| has(lines, "web-7d9f8c6b5d-09999") && has(lines, "-10000 of 10000"))
        .await?;
    let text = printed(&oarlock(&dev, &["get", "large", "-o", "json"]).await?)?;
    let document: Value = serde_json::from_str(&text)?;
    ensure!(document["targets"].as_array().is_some_and(|targets| targets.len() == 10_000), "{}", &text[..200]);
    Ok(())
}

#[tokio::test]
async fn a_pipe_has_a_line_for_each_change_and_a_script_an_object_and_the_exit_code() -> anyhow::Result<()> {
    let mut dev = Dev::start("pipe")?;
    dev.until_ready().await?;
    let names = pods(&dev)?;
    let output = oarlock(&dev, &["run", "Replace", "-t", &names[0], "--name", "a", "--watch"]).await?;
    let text = printed(&output)?;
    ensure!(text.lines().all(|line| line.contains("Z  job     a ") || line.contains("Z  target  ")), "{text}");
    let last = text.lines().rev().take(2).collect::<String>();
    ensure!(last.contains(&names[0]) && last.contains("Succeeded") && last.contains("1 of 1; 1 succeeded"), "{text}");
    let failing = oarlock(&dev, &["run", "Replace", "-t", "never-there", "--name", "b", "-w", "-o", "json"]).await?;
    ensure!(failing.status.code() == Some(1), "{failing:?}");
    let lines: Vec<Value> =
        String::from_utf8_lossy(&failing.stdout).lines().map(serde_json::from_str).collect::<Result<_, _>>()?;
    ensure!(lines[0]["type"] == "job" && lines[0]["job"]["action"] == "Replace", "{lines:#?}");
    let target = lines.iter().rfind(|line| line["type"] == "target").context("no target")?;
    ensure!(target["target"]["error"]["reason"] == "PodNotFound", "{lines:#?}");
    let list = printed(&oarlock(&dev, &["get"]).await?)?;
    ensure!(list.lines().count() == 3 && list.starts_with("NAME   ACTION    PROGRESS    DONE"), "{list}");
    // A reader that closes the pipe early, as `head` does, causes no error.
    for arguments in [["get", "-A"], ["watch", "a"]] {
        let (reader, writer) = std::io::pipe()?;
        drop(reader);
        let mut command = tokio::process::Command::new(host_binary()?);
        command.env("KUBECONFIG", dev.folder.join("kubeconfig")).env("HOME", &dev.folder).args(arguments);
        let child = command.stdout(writer).stderr(std::process::Stdio::piped()).spawn()?;
        let output = child.wait_with_output().await?;
        ensure!(output.status.success() && output.stderr.is_empty(), "{arguments:?}: {output:?}");
    }
    let refused = oarlock(&dev, &["run", "Replace", "-t", "a", "a"]).await?;
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    ensure!(said.starts_with("error: the cluster refuses the job: ") && said.contains("duplicate \"a\""), "{said}");
    let job = printed(&oarlock(&dev, &["run", "Replace", "-l", "app=foo", "--parallelism", "10%", "--print"]).await?)?;
    ensure!(
        job.contains("generateName: replace-") && job.contains("parallelism: 10%") && !job.contains("null"),
        "{job}"
    );
    Ok(())
}

#[tokio::test]
async fn a_run_names_the_pods_that_are_there_by_their_uids_and_a_pod_made_anew_is_left_alone() -> anyhow::Result<()> {
    let mut dev = Dev::start("uids")?;
    dev.until_ready().await?;
    let names = pods(&dev)?;
    let uid = dev.kubectl(&["get", "pod", &names[0], "-o", "jsonpath={.metadata.uid}"])?;
    let line = ["run", "Replace", "-t", &names[0], "never-there", "--name", "u", "--paused", "-o", "json"];
    for more in [&["--print"][..], &[]] {
        let job: Value = serde_json::from_str(&printed(&oarlock(&dev, &[&line[..], more].concat()).await?)?)?;
        let named = serde_json::json!([{"name": names[0], "uid": uid}, {"name": "never-there"}]);
        ensure!(job["spec"]["targets"] == named, "{job:#}");
    }
    dev.kubectl(&["delete", "pod", &names[0], "--wait=true"])?;
    let anew = serde_json::json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": names[0]},
        "spec": {"containers": [{"name": "c", "image": "i"}]}});
    let file = dev.folder.join("anew.json");
    std::fs::write(&file, anew.to_string())?;
    dev.kubectl(&["create", "-f", &file.display().to_string()])?;
    dev.kubectl(&["patch", "opj", "u", "--type=merge", "-p", "{\"spec\":{\"paused\":false}}"])?;
    let watched = oarlock(&dev, &["watch", "opj/u", "-o", "json"]).await?;
    let lines = String::from_utf8_lossy(&watched.stdout).into_owned();
    ensure!(
        watched.status.code() == Some(1)
            && lines.contains(&format!("names UID {uid}, and the pod of that name has UID ")),
        "{lines}"
    );
    Ok(())
}

#[tokio::test]
async fn kubectl_finds_the_plugin_and_asks_it_for_completions() -> anyhow::Result<()> {
    let mut dev = Dev::start("plugin")?;
    dev.until_ready().await?;
    let folder = dev.folder.join("bin");
    std::fs::create_dir_all(&folder)?;
    std::os::unix::fs::symlink(host_binary()?, folder.join("kubectl-oarlock"))?;
    std::os::unix::fs::symlink(host_binary()?, folder.join("oarlock"))?;
    let script = folder.join("kubectl_complete-oarlock");
    std::fs::write(&script, printed(&oarlock(&dev, &["completions", "kubectl"]).await?)?)?;
    executable(&script)?;
    let kubectl = |arguments: &[&str]| {
        let path = std::env::join_paths(
            std::iter::once(folder.clone()).chain(std::env::split_paths(&std::env::var_os("PATH").unwrap_or_default())),
        )?;
        printed(&dev.command(arguments).env("PATH", path).output()?)
    };
    printed(&oarlock(&dev, &["run", "Nope", "--target", "a", "--name", "x"]).await?)?;
    let listed = kubectl(&["oarlock", "get"])?;
    ensure!(listed.lines().nth(1).is_some_and(|line| line.starts_with("x ") && line.contains("Nope")), "{listed}");
    let help = kubectl(&["oarlock", "watch", "--help"])?;
    ensure!(
        help.contains("Usage: kubectl oarlock watch") && help.contains("  kubectl oarlock watch opj/web"),
        "{help}"
    );
    let words = kubectl(&["__complete", "oarlock", "wat"])?;
    ensure!(words.contains("watch\n:4"), "{words}");
    Ok(())
}

fn executable(path: &Path) -> anyhow::Result<()> {
    use std::os::unix::fs::PermissionsExt as _;
    Ok(std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755))?)
}

#[tokio::test]
async fn an_ops_job_is_shown_and_followed_to_its_end_as_other_jobs_are() -> anyhow::Result<()> {
    let mut dev = Dev::start("ops")?;
    dev.until_ready().await?;
    let node = dev.kubectl(&["get", "nodes", "-o", "jsonpath={.items[0].metadata.name}"])?;
    let create = |name: &str, node: &str| {
        let job = json!({"apiVersion": "oarlock.dev/v1alpha1", "kind": "OpsJob", "metadata": {"name": name},
            "spec": {"type": "reboot", "inputs": [{"name": "node", "value": node}]}});
        let file = dev.folder.join(format!("{name}.json"));
        std::fs::write(&file, job.to_string())?;
        dev.kubectl(&["create", "-f", &file.display().to_string()])
    };
    create("lost", "never-there")?;
    let watched = oarlock(&dev, &["watch", "ops/lost"]).await?;
    let text = String::from_utf8_lossy(&watched.stdout).into_owned();
    ensure!(watched.status.code() == Some(1), "{watched:?}");
    ensure!(text.contains("NodeNotFound: there is no node never-there"), "{text}");
    create("boot", &node)?;
    dev.kubectl(&["wait", "ops/boot", "--for=condition=ActionAvailable=False", "--timeout=60s"])?;
    let text = printed(&oarlock(&dev, &["get", "ops/boot"]).await?)?;
    ensure!(text.contains("Job:          ops/boot") && text.contains("ActionAvailable=False"), "{text}");
    ensure!(text.lines().any(|line| line.starts_with(&node) && line.contains("Pending")), "{text}");
    let job: Value = serde_json::from_str(&printed(&oarlock(&dev, &["get", "OpsJob/boot", "-o", "json"]).await?)?)?;
    ensure!(job["targets"][0]["name"] == json!(node) && job["counts"]["total"] == 1, "{job:#}");
    dev.kubectl(&["patch", "ops", "boot", "--type=merge", "-p", r#"{"spec":{"stop":true}}"#])?;
    let watched = oarlock(&dev, &["watch", "ops/boot", "-o", "json"]).await?;
    let text = String::from_utf8_lossy(&watched.stdout).into_owned();
    ensure!(watched.status.code() == Some(1) && text.contains("\"reason\":\"Stopped\""), "{text}");
    let none = oarlock(&dev, &["get", "ops/none"]).await?;
    let said = String::from_utf8_lossy(&none.stderr).into_owned();
    ensure!(said.contains("there is no ops/none; `kubectl get ops` lists"), "{said}");
    Ok(())
}
