//! The screen of the demo: a table and a bar that change in place on a terminal, one line for each change elsewhere.

use std::io::{IsTerminal as _, Write as _};
use std::time::{Duration, Instant};

use anyhow::Context as _;
use comfy_table::{Table, presets};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use super::snapshot::Snapshot;

/// Time to read a paragraph before the next one, on a terminal.
const READING: Duration = Duration::from_millis(700);

/// The output of the demo.
pub(super) struct Screen {
    began: Instant,
    /// True on a terminal, false in a file.
    live: bool,
    pause: Duration,
}

impl Screen {
    /// Standard output. `hurried` skips the pauses for reading.
    pub(super) fn new(hurried: bool) -> Self {
        let live = std::io::stdout().is_terminal();
        Self { began: Instant::now(), live, pause: if live && !hurried { READING } else { Duration::ZERO } }
    }

    /// Begins a part of the demo.
    pub(super) async fn title(&self, text: &str) -> anyhow::Result<()> {
        tokio::time::sleep(self.pause).await;
        self.line(&format!("\n{}\n{}", self.bold(text), "-".repeat(text.chars().count())))
    }

    /// A paragraph.
    pub(super) async fn say(&self, text: &str) -> anyhow::Result<()> {
        self.line(text)?;
        tokio::time::sleep(self.pause).await;
        Ok(())
    }

    /// A command of the user, and its input.
    pub(super) async fn command(&self, command: &str, input: &str) -> anyhow::Result<()> {
        let input: String = input.lines().map(|line| format!("\n    {line}")).collect();
        self.say(&format!("{}{input}", self.bold(&format!("$ {command}")))).await
    }

    /// Starts a view of a job.
    pub(super) fn view(&self) -> anyhow::Result<View<'_>> {
        self.line("")?;
        Ok(View { screen: self, bar: self.bar("targets")?, last: Snapshot::default() })
    }

    /// A bar below a message, for so many of a thing that ended; hidden where there is no terminal.
    pub(super) fn bar(&self, things: &str) -> anyhow::Result<ProgressBar> {
        let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::hidden());
        if self.live {
            let form = format!("{{msg}}\n  [{{bar:40}}] {{pos}} of {{len}} {things} ended, {{elapsed}}");
            let style = ProgressStyle::with_template(&form).context("the form of the progress bar is wrong")?;
            bar.set_style(style.progress_chars("=> "));
            bar.set_draw_target(ProgressDrawTarget::stdout());
        }
        Ok(bar)
    }

    /// True on a terminal, false in a file.
    pub(super) fn is_live(&self) -> bool {
        self.live
    }

    /// A line about a change, after the time since the begin.
    pub(super) fn change(&self, text: &str) -> anyhow::Result<()> {
        self.line(&format!("{:>8.2}s  {text}", self.began.elapsed().as_secs_f64()))
    }

    /// Prints lines at once.
    pub(super) fn line(&self, text: &str) -> anyhow::Result<()> {
        let mut out = std::io::stdout().lock();
        writeln!(out, "{text}").and_then(|()| out.flush()).context("cannot write to standard output")
    }

    fn bold(&self, text: &str) -> String {
        if self.live { format!("\x1b[1m{text}\x1b[0m") } else { text.to_owned() }
    }
}

/// Pods and targets as they change.
pub(super) struct View<'a> {
    screen: &'a Screen,
    bar: ProgressBar,
    last: Snapshot,
}

impl View<'_> {
    /// Shows a newer snapshot.
    pub(super) fn show(&mut self, now: &Snapshot) -> anyhow::Result<()> {
        if *now == self.last {
            return Ok(());
        }
        if self.screen.live {
            self.bar.set_message(tables(now));
            self.bar.set_length(now.targets.len() as u64);
            self.bar.set_position(now.ended() as u64);
        } else {
            changes(&self.last, now).iter().try_for_each(|line| self.screen.change(line))?;
        }
        self.last = now.clone();
        Ok(())
    }

    /// Leaves the last state on the terminal.
    pub(super) fn close(self) -> anyhow::Result<()> {
        self.bar.abandon();
        self.screen.line("")
    }
}

/// Both tables, as kubectl would print them.
fn tables(now: &Snapshot) -> String {
    let mut pods = Table::new();
    pods.load_preset(presets::NOTHING).set_header([now.shows.noun().to_uppercase().as_str(), "READY", "STATUS", ""]);
    for row in &now.pods {
        pods.add_row([&row.name, &row.ready, &row.status, &row.part]);
    }
    let mut targets = Table::new();
    targets.load_preset(presets::NOTHING).set_header(["TARGET", "PROGRESS", ""]);
    for row in &now.targets {
        targets.add_row([&row.name, &row.progress, &row.detail]);
    }
    format!("{pods}\n\n{targets}\n")
}

/// One line for each thing that differs.
fn changes(before: &Snapshot, now: &Snapshot) -> Vec<String> {
    let mut lines = Vec::new();
    let noun = now.shows.noun();
    for row in now.pods.iter().filter(|row| !before.pods.contains(row)) {
        lines.push(format!("{noun:<6} {:<22} {:<4} {:<18} {}", row.name, row.ready, row.status, row.part));
    }
    for row in before.pods.iter().filter(|old| now.pods.iter().all(|row| row.name != old.name)) {
        lines.push(format!("{noun:<6} {:<22} {:<4} {}", row.name, "", "gone"));
    }
    for row in now.targets.iter().filter(|row| !before.targets.contains(row)) {
        lines.push(format!("target {:<22} {:<4} {:<18} {}", row.name, "", row.progress, row.detail));
    }
    lines.iter().map(|line| line.trim_end().to_owned()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::demo::snapshot::{PodRow, TargetRow};

    fn pod(name: &str, status: &str) -> PodRow {
        PodRow { name: name.into(), ready: "1/1".into(), status: status.into(), part: String::new() }
    }

    fn target(progress: &str) -> TargetRow {
        TargetRow { name: "a".into(), progress: progress.into(), detail: String::new() }
    }

    #[test]
    fn only_what_differs_becomes_a_line() {
        let progress = String::new();
        let before = Snapshot {
            pods: vec![pod("a", "Running"), pod("b", "Running")],
            targets: vec![target("Pending")],
            progress: progress.clone(),
            ..Snapshot::default()
        };
        let now = Snapshot {
            pods: vec![pod("b", "Terminating"), pod("c", "Running")],
            targets: vec![target("Pending")],
            progress,
            ..Snapshot::default()
        };
        let words: Vec<Vec<String>> =
            changes(&before, &now).iter().map(|line| line.split_whitespace().map(str::to_owned).collect()).collect();
        assert_eq!(
            words,
            [vec!["pod", "b", "1/1", "Terminating"], vec!["pod", "c", "1/1", "Running"], vec!["pod", "a", "gone"]]
        );
    }

    #[test]
    fn the_tables_name_every_pod_and_every_target() {
        let now = Snapshot { pods: vec![pod("b", "Running")], targets: vec![target("Failed")], ..Snapshot::default() };
        let text = tables(&now);
        assert!(
            text.contains("b") && text.contains("Running") && text.contains("TARGET") && text.contains("Failed"),
            "{text}"
        );
    }
}
