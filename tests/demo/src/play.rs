//! A story while it is told: an environment, a user who types commands, a screen, and the checks of the story.

use std::io::{IsTerminal as _, Write as _};
use std::process::Stdio;
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader};

use crate::cluster;
use crate::environment::Environment;
use crate::snapshot::{Snapshot, identities, text};

/// The interval between two looks at a condition.
const LOOK_EVERY: Duration = Duration::from_millis(50);
/// Generous, because a machine that also compiles is slow. A demo that waits longer hangs.
const HOLDS_WITHIN: Duration = Duration::from_secs(60);
/// The watches of the world and of a story may be a moment behind what a job already knows.
pub(crate) const SEEN_WITHIN: Duration = Duration::from_secs(10);
/// Time to read a paragraph before the next one, on a terminal.
const READING: Duration = Duration::from_millis(700);

/// A story while it is told.
pub(crate) struct Play {
    pub(crate) environment: Environment,
    screen: Screen,
    acts: usize,
    /// The observations, and whether each is as it was said.
    checks: Vec<(bool, String)>,
}

/// The output of the demo.
pub(crate) struct Screen {
    began: Instant,
    bold: bool,
    pause: Duration,
}

impl Screen {
    /// Standard output. If `hurried`, there are no pauses for reading.
    pub(crate) fn new(hurried: bool) -> Self {
        let bold = std::io::stdout().is_terminal();
        Self { began: Instant::now(), bold, pause: if bold && !hurried { READING } else { Duration::ZERO } }
    }

    /// Prints lines at once.
    fn line(&self, text: &str) -> anyhow::Result<()> {
        let mut out = std::io::stdout().lock();
        writeln!(out, "{text}").and_then(|()| out.flush()).context("cannot write to standard output")
    }

    fn bold(&self, text: &str) -> String {
        if self.bold { format!("\x1b[1m{text}\x1b[0m") } else { text.to_owned() }
    }

    /// Begins a part of the story.
    pub(crate) async fn title(&self, text: &str) -> anyhow::Result<()> {
        self.say(&format!("\n{}\n{}", self.bold(text), "-".repeat(text.chars().count()))).await
    }

    /// Prints a paragraph.
    async fn say(&self, text: &str) -> anyhow::Result<()> {
        self.line(text)?;
        tokio::time::sleep(self.pause).await;
        Ok(())
    }

    /// Prints a line about a change, after the time since the begin.
    fn change(&self, text: &str) -> anyhow::Result<()> {
        self.line(&format!("{:>8.2}s  {text}", self.began.elapsed().as_secs_f64()))
    }
}

impl Play {
    pub(crate) fn new(environment: Environment, screen: Screen) -> Self {
        Self { environment, screen, acts: 0, checks: Vec::new() }
    }

    /// Begins an act: its title, numbered, and what it shows.
    pub(crate) async fn act(&mut self, title: &str, shows: &str) -> anyhow::Result<()> {
        self.acts = self.acts.saturating_add(1);
        self.screen.title(&format!("{}. {title}", self.acts)).await?;
        if shows.is_empty() { Ok(()) } else { self.say(shows).await }
    }

    pub(crate) async fn title(&self, text: &str) -> anyhow::Result<()> {
        self.screen.title(text).await
    }

    pub(crate) async fn say(&self, text: &str) -> anyhow::Result<()> {
        self.screen.say(text).await
    }

    /// Shows a change, after the time since the begin.
    pub(crate) fn change(&self, text: &str) -> anyhow::Result<()> {
        self.screen.change(text)
    }

    /// Notes what was observed and whether it is as it was said, and shows it.
    pub(crate) async fn check(&mut self, holds: bool, observed: &str) -> anyhow::Result<()> {
        let line = format!("  {}: {observed}", if holds { "as said" } else { "NOT AS SAID" });
        self.checks.push((holds, line.clone()));
        self.say(&line).await
    }

    /// Shows the checks that do not hold, and how many do. Returns true if there are checks and all hold.
    pub(crate) async fn results(&self, judges: &str) -> anyhow::Result<bool> {
        self.screen.title(&format!("Results, by {judges} of the simulated world")).await?;
        let wrong: Vec<&str> = self.checks.iter().filter(|(holds, _)| !holds).map(|(_, line)| line.as_str()).collect();
        wrong.iter().try_for_each(|line| self.screen.line(line))?;
        let (good, all) = (self.checks.len().saturating_sub(wrong.len()), self.checks.len());
        self.say(&format!("{good} of {all} checks hold")).await?;
        Ok(all > 0 && wrong.is_empty())
    }

    /// Shows a command of the user, and its input.
    pub(crate) async fn command(&self, line: &str, input: &str) -> anyhow::Result<()> {
        let input: String = input.lines().map(|line| format!("\n    {line}")).collect();
        self.say(&format!("{}{input}", self.screen.bold(&format!("$ {line}")))).await
    }

    /// Shows a command, runs it, and shows what it prints. Returns that.
    pub(crate) async fn typed(&self, line: &str, input: &str) -> anyhow::Result<String> {
        self.command(line, input).await?;
        let printed = self.run(line, input).await?;
        self.say(printed.trim_end()).await?;
        Ok(printed)
    }

    /// Runs a command, and returns what it prints.
    pub(crate) async fn run(&self, line: &str, input: &str) -> anyhow::Result<String> {
        let failed = || format!("cannot run `{line}`");
        let mut shell = self.environment.shell(line);
        let mut child = shell.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().with_context(failed)?;
        child.stdin.take().with_context(failed)?.write_all(input.as_bytes()).await.with_context(failed)?;
        let ended = tokio::time::timeout(HOLDS_WITHIN, child.wait_with_output()).await.with_context(failed)?;
        Ok(String::from_utf8_lossy(&ended.with_context(failed)?.stdout).into_owned())
    }

    /// Shows a command that follows something, and each line that it prints until it ends. `react` sees each line.
    pub(crate) async fn follow(
        &self,
        line: &str,
        mut react: impl AsyncFnMut(&str) -> anyhow::Result<()>,
    ) -> anyhow::Result<()> {
        self.command(line, "").await?;
        let mut child = self.environment.shell(line).stdin(Stdio::null()).stdout(Stdio::piped()).spawn()?;
        let mut lines = BufReader::new(child.stdout.take().context("a pipe has no reader")?).lines();
        let deadline = tokio::time::Instant::now() + HOLDS_WITHIN;
        let late = || format!("`{line}` did not end within {HOLDS_WITHIN:?}");
        while let Some(printed) = tokio::time::timeout_at(deadline, lines.next_line()).await.with_context(late)?? {
            self.screen.line(&printed)?;
            react(&printed).await?;
        }
        Ok(())
    }

    /// Copies a plugin into the directory of the host, and waits until the host serves the plugin or says why not.
    pub(crate) async fn drop_plugin(&mut self, name: &str) -> anyhow::Result<Duration> {
        let line = format!("cp {name}.wasm plugins/");
        self.command(&line, "").await?;
        self.run(&line, "").await?;
        let began = Instant::now();
        let (told, states) = (format!("plugin=\"{name}\""), ["state=Serving", "state=AwaitingGrant"]);
        let is_judged = |line: &str| line.contains(&told) && states.iter().any(|state| line.contains(state));
        let judged = |log: &str| log.lines().any(is_judged).then_some(());
        self.environment.until_logged("host", &format!("serving {name}"), judged).await?;
        Ok(began.elapsed())
    }

    /// Applies documents as a user would. An admission policy may need a moment to see the label of a namespace.
    pub(crate) async fn apply(&self, yaml: &str) -> anyhow::Result<()> {
        self.command("kubectl apply -f -", yaml).await?;
        self.apply_silently(yaml).await
    }

    pub(crate) async fn apply_silently(&self, yaml: &str) -> anyhow::Result<()> {
        let mut refused = None;
        let applied = async || match cluster::apply(&self.environment.client, yaml).await {
            Ok(()) => Ok(Some(())),
            Err(cause) => {
                refused = Some(cause);
                Ok(None)
            }
        };
        let done = until("the API server to accept what is applied", applied).await;
        done.map_err(|late| refused.unwrap_or(late))
    }

    /// Patches the spec of a job as a user would.
    pub(crate) async fn patch_job(&self, job: &str, spec: &Value) -> anyhow::Result<()> {
        self.command(&format!("kubectl patch opj {job} --type merge -p '{{\"spec\":{spec}}}'"), "").await?;
        cluster::patch(&self.environment.client, ("OperationJob", job), json!({ "spec": spec })).await
    }

    /// Returns the pods of an app, oldest first.
    pub(crate) async fn pods(&self, app: &str) -> anyhow::Result<Vec<Value>> {
        cluster::list(&self.environment.client, "Pod", &format!("app={app}")).await
    }

    pub(crate) async fn nodes(&self) -> anyhow::Result<Vec<Value>> {
        cluster::list(&self.environment.client, "Node", "").await
    }

    /// Shows the targets of a job, and all nodes or the pods of an app, as they change until `enough` holds.
    pub(crate) async fn watch(
        &self,
        (job, shown): (&str, &str),
        what: &str,
        enough: impl Fn(&Snapshot) -> bool,
    ) -> anyhow::Result<Snapshot> {
        self.screen.line("")?;
        let mut last = Snapshot::default();
        let what = format!("{what} of job {job}");
        let found = until(&what, async || {
            let job = cluster::get(&self.environment.client, "OperationJob", job).await?;
            let now = match shown {
                "nodes" => Snapshot::of_nodes(&self.nodes().await?, &job),
                app => Snapshot::of_pods(&self.pods(app).await?, &job),
            };
            now.changes_since(&last).iter().try_for_each(|line| self.screen.change(line))?;
            last = now;
            Ok(enough(&last).then(|| last.clone()))
        });
        let found = found.await?;
        self.screen.line("")?;
        Ok(found)
    }

    /// Waits until a condition of a job has a reason.
    pub(crate) async fn until_condition(&self, job: &str, kind: &str, reason: &str) -> anyhow::Result<()> {
        until(&format!("job {job} to say {kind} with reason {reason}"), async || {
            let job = cluster::get(&self.environment.client, "OperationJob", job).await?;
            let mut conditions = job.pointer("/status/conditions").and_then(Value::as_array).into_iter().flatten();
            Ok(conditions.any(|one| text(one, "/type") == kind && text(one, "/reason") == reason).then_some(()))
        })
        .await
    }

    /// Checks by the ledger that each of these pods was replaced exactly once, and that no other pod was lost.
    pub(crate) async fn check_replaced(&mut self, pods: &[Value]) -> anyhow::Result<()> {
        let verdict = self.environment.ledger().verdict_within(&identities(pods), SEEN_WITHIN).await;
        self.check(!pods.is_empty() && verdict.is_clean(), &verdict.to_string()).await
    }
}

/// Asks until there is an answer, and returns it.
pub(crate) async fn until<T>(what: &str, ask: impl AsyncFnMut() -> anyhow::Result<Option<T>>) -> anyhow::Result<T> {
    until_every(LOOK_EVERY, what, ask).await
}

/// Asks at this interval until there is an answer, and returns it.
pub(crate) async fn until_every<T>(
    interval: Duration,
    what: &str,
    mut ask: impl AsyncFnMut() -> anyhow::Result<Option<T>>,
) -> anyhow::Result<T> {
    let deadline = tokio::time::Instant::now() + HOLDS_WITHIN;
    loop {
        if let Some(answer) = ask().await? {
            return Ok(answer);
        }
        ensure!(tokio::time::Instant::now() < deadline, "timed out after {HOLDS_WITHIN:?} waiting for {what}");
        tokio::time::sleep(interval).await;
    }
}

/// Returns an OperationJob on pods as a user writes it. `more` is further lines of its spec.
pub(crate) fn job(name: &str, action: &str, more: &str, pods: &[Value]) -> String {
    let targets: String = pods.iter().map(|pod| format!("\n  - name: {}", text(pod, "/metadata/name"))).collect();
    format!("{}{more}\n  targets:{targets}\n", head(name, action))
}

/// Returns the first lines of an OperationJob, up to its action.
pub(crate) fn head(name: &str, action: &str) -> String {
    format!(
        "apiVersion: apps.kusionstack.io/v1alpha1\nkind: OperationJob\nmetadata:\n  name: {name}\n  namespace: {}\n\
         spec:\n  action: {action}",
        crate::environment::NAMESPACE
    )
}
