//! The Helm chart on real nodes: it adopts what kubectl has installed, and is upgraded, rolled back and uninstalled
//! while jobs are in flight.

use std::collections::BTreeSet;
use std::process::{Command, Output, Stdio};

use anyhow::{Context as _, ensure};
use serde_json::{Value, json};

use crate::documents::text_at;
use crate::pods::{until_pods, workload};
use crate::scenario::Scenario;
use crate::shared_cluster::{AUTHORITIES, EXPORT_SECRET, variable};

const CHART: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../deploy/helm/oarlock");
const HOST: &str = "oarlock-system";

/// Helm with the values that match the flags of the installed manifests.
struct Release<'a> {
    scenario: &'a Scenario,
    values: Vec<String>,
}

impl<'a> Release<'a> {
    fn new(scenario: &'a Scenario) -> anyhow::Result<Self> {
        let grants = variable("OARLOCK_NODES_GRANTS")?;
        let printed =
            scenario.cluster.oarlock(&["manifests", "--only-grants", "--grants", &grants.display().to_string()])?;
        ensure!(printed.status.success(), "{}", String::from_utf8_lossy(&printed.stderr));
        let granted = scenario.cluster.folder_of(&scenario.namespace)?.join("granted.yaml");
        std::fs::write(&granted, printed.stdout).context("cannot write the grants")?;
        let exports = oarlock_nodes::layout::EXPORTS;
        let values = [
            "image.repository=oarlock",
            "image.tag=latest",
            "plugins.replace.enabled=false",
            "flows.enabled=true",
            "flows.allNamespaces=true",
            "ops.enabled=true",
            "drain.timeout=5s",
            "server.enabled=true",
            "data.claim=oarlock-data",
        ];
        let own = [
            format!("export.registry={exports}"),
            format!("export.secret={EXPORT_SECRET}"),
            format!("ca={AUTHORITIES}"),
        ];
        let values = values.into_iter().map(str::to_owned).chain(own).flat_map(|value| ["--set".to_owned(), value]);
        let values = values.chain(["--set-file".to_owned(), format!("grants={}", granted.display())]).collect();
        Ok(Self { scenario, values })
    }

    fn command(&self, arguments: &[&str]) -> anyhow::Result<Command> {
        let folder = self.scenario.cluster.folder_of(&self.scenario.namespace)?;
        let mut command = Command::new(variable("OARLOCK_NODES_HELM")?);
        command.args(arguments).args(["--namespace", HOST, "--kubeconfig"]).arg(self.scenario.cluster.kubeconfig());
        command.env("HOME", folder).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        Ok(command)
    }

    fn apply(&self, verb: &str, more: &[&str]) -> anyhow::Result<Command> {
        self.apply_chart(CHART, verb, more)
    }

    /// Returns the command that adopts what kubectl has installed, by the chart and the image of the earlier release if
    /// `cargo xtask test release` names one.
    fn adopt(&self) -> anyhow::Result<Command> {
        let adopts = ["--take-ownership", "--server-side=false"];
        match variable("OARLOCK_NODES_EARLIER_CHART") {
            Ok(chart) => {
                let image = ["--set", "image.tag=earlier"];
                self.apply_chart(&chart.display().to_string(), "install", &[adopts, image].concat())
            }
            Err(_) => self.apply("install", &adopts),
        }
    }

    fn apply_chart(&self, chart: &str, verb: &str, more: &[&str]) -> anyhow::Result<Command> {
        let mut command = self.command(&[verb, "oarlock", chart, "--wait", "--timeout", "4m"])?;
        command.args(&self.values).args(more);
        Ok(command)
    }

    fn rollback(&self, revision: &str) -> anyhow::Result<()> {
        succeeds(&self.command(&["rollback", "oarlock", revision, "--wait", "--timeout", "4m"])?.output()?)
    }
}

fn said(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

fn succeeds(output: &Output) -> anyhow::Result<()> {
    ensure!(output.status.success(), "{}", said(output));
    Ok(())
}

/// Starts a job that waits for the disruption budget of its pods.
fn start(scenario: &Scenario, name: &str) -> anyhow::Result<()> {
    scenario.apply(&budget(2))?;
    scenario.run(&["Replace", "--selector", "app=web", "--name", name])?;
    scenario.until_is("operationjobs", name, "/status/waitsFor", &["Budget web"]).map(drop)
}

fn budget(least: u32) -> Value {
    json!({"apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": {"name": "web"},
        "spec": {"minAvailable": least, "selector": {"matchLabels": {"app": "web"}}}})
}

/// Lets the job replace its pods. Checks that it replaces all of them.
fn finish(scenario: &Scenario, name: &str) -> anyhow::Result<()> {
    let before = until_pods(scenario, 2)?;
    scenario.apply(&budget(1))?;
    until_replaced(scenario, name, &before)
}

fn until_replaced(scenario: &Scenario, name: &str, before: &BTreeSet<String>) -> anyhow::Result<()> {
    let job = scenario.until_ended(name)?;
    ensure!(text_at(&job, "/status/progress") == "Succeeded", "{job:#}");
    ensure!(until_pods(scenario, 2)?.is_disjoint(before), "a pod is as old as before");
    Ok(())
}

/// Tests the life of a release while jobs are in flight. The chart adopts the host that kubectl has installed. An
/// upgrade is killed midway and repaired, a later one is rolled back, and an uninstallation is refused until the job
/// has ended.
pub(crate) fn a_release_adopts_is_upgraded_rolled_back_and_uninstalled_amid_jobs(
    scenario: &Scenario,
) -> anyhow::Result<()> {
    scenario.cluster.deploy_with_volume()?;
    scenario.apply(&workload("Deployment", &json!({"replicas": 2})))?;
    let before = until_pods(scenario, 2)?;
    start(scenario, "first")?;
    let release = Release::new(scenario)?;
    succeeds(&release.adopt()?.output()?)?;

    // The upgrade changes the pods of the host, and is killed before they are Ready.
    let mut upgrade =
        release.apply("upgrade", &["--set", "podAnnotations.upgrade=killed"])?.spawn().context("cannot run helm")?;
    scenario.until("the Deployment is changed", || {
        let found = scenario.cluster.kubectl(&["-n", HOST, "get", "deployment", "oarlock", "-o", "json"])?;
        Ok(found.contains("\"upgrade\": \"killed\"").then_some(()))
    })?;
    upgrade.kill().context("cannot kill helm")?;
    upgrade.wait().context("cannot wait for helm")?;
    ensure!(!release.apply("upgrade", &[])?.output()?.status.success(), "an upgrade that was killed is repaired first");
    release.rollback("1")?;
    succeeds(&release.apply("upgrade", &["--set", "podAnnotations.upgrade=whole"])?.output()?)?;
    ensure!(until_pods(scenario, 2)? == before, "a pod went against its budget");
    finish(scenario, "first")?;

    start(scenario, "second")?;
    release.rollback("1")?;
    let refused = release.command(&["uninstall", "oarlock"])?.output()?;
    let (log, named) = (said(&refused), format!("operationjob {}/second", scenario.namespace));
    ensure!(!refused.status.success() && log.contains(&named) && log.contains("--no-hooks"), "{log}");
    finish(scenario, "second")?;
    succeeds(&release.command(&["uninstall", "oarlock", "--wait"])?.output()?)?;
    let left = scenario.cluster.kubectl(&["-n", HOST, "get", "deployments", "-o", "name"])?;
    ensure!(left.trim().is_empty(), "{left}");
    ensure!(scenario.get("operationjobs", "second")?.is_some(), "jobs stay");

    // From no host to a served plugin.
    succeeds(&release.apply("install", &[])?.output()?)?;
    let before = until_pods(scenario, 2)?;
    scenario.run(&["Replace", "--selector", "app=web", "--name", "third"])?;
    until_replaced(scenario, "third", &before)
}
