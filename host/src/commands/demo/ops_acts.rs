//! The acts of the story of OpsJobs by REST, in order: a reboot, another one of the same node that is refused, a check that is stopped, a
//! script of a template, the logs of a workload, its image in another registry, and a list.
//!
//! Requests are those of curl, as whoever has a client of the API would send them. What came of it is judged by the nodes and the world's
//! ledger.

use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context as _, bail};
use serde_json::{Value, json};
use tokio::process::Command;
use tokio::time::{Instant, sleep};

use super::checks::Checks;
use super::play::Play;
use super::stage::{RestPlace, Scenery};
use crate::commands::ops::follow_by_rest;

/// What is on the stage.
pub(super) const SCENERY: Scenery = Scenery {
    plugins: &["addon", "dumplog", "exportimage", "preflight", "reboot"],
    grants: concat!(
        include_str!("../../../../plugins/addon/grant.yaml"),
        include_str!("../../../../plugins/dumplog/grant.yaml"),
        include_str!("../../../../plugins/exportimage/grant.yaml"),
        include_str!("../../../../plugins/preflight/grant.yaml"),
        include_str!("../../../../plugins/reboot/grant.yaml")
    ),
    collaset: 4,
    deployment: 1,
    nodes: 3,
    kruise: false,
    rest: true,
};

/// The node that is rebooted.
const NODE: &str = "node-0";
/// Generous, since a machine that also compiles something is slow.
const ACT_ENDS_WITHIN: Duration = Duration::from_secs(60);
const ASK_EVERY: Duration = Duration::from_millis(100);

/// What an addon runs.
const TEMPLATE: &str = "\
apiVersion: oarlock.dev/v1alpha1
kind: AddonTemplate
metadata: {name: disable-os-upgrade}
spec:
  interpreter: /bin/sh
  script: |
    # sim: output timers are off
    systemctl disable --now apt-daily-upgrade.timer && echo timers are off
";

/// Whose logs are collected.
const TALKERS: &str = "\
apiVersion: apps/v1
kind: StatefulSet
metadata: {name: talkers, namespace: default}
spec:
  serviceName: talkers
  replicas: 2
  selector: {matchLabels: {app: talkers}}
  template:
    metadata: {labels: {app: talkers}}
    spec:
      containers:
      - {name: main, image: busybox, command: [sh, -c, 'echo begin; while true; do echo tick; sleep 1; done']}
";

/// The story while it is told.
struct OpsActs<'a> {
    play: &'a Play,
    rest: &'a RestPlace,
    checks: Checks,
}

/// An answer of curl.
struct Answer {
    status: u16,
    body: Value,
}

impl Answer {
    fn text(&self, field: &str) -> &str {
        self.body.get(field).and_then(Value::as_str).unwrap_or_default()
    }

    fn output(&self, name: &str) -> &str {
        let outputs = self.body.get("outputs").and_then(Value::as_array).into_iter().flatten();
        let found = outputs.into_iter().find(|output| output.get("name").is_some_and(|own| own == name));
        found.and_then(|output| output.get("value")?.as_str()).unwrap_or_default()
    }
}

/// Tells the story; yields whether all its checks hold.
pub(super) async fn tell(play: &Play) -> anyhow::Result<bool> {
    let rest = play.stage.rest().context("the REST API is not served")?;
    let mut acts = OpsActs { play, rest, checks: Checks::default() };
    let told = acts.all().await;
    acts.play.screen.title("Results, by the nodes and the ledger of the simulated world").await?;
    acts.play.screen.say(&acts.checks.to_string()).await?;
    told.map(|()| acts.checks.all_hold())
}

impl OpsActs<'_> {
    async fn all(&mut self) -> anyhow::Result<()> {
        self.begin().await?;
        self.reboot().await?;
        self.stop_a_check().await?;
        self.run_scripts().await?;
        self.collect_logs().await?;
        self.export_image().await?;
        self.list().await
    }

    async fn begin(&self) -> anyhow::Result<()> {
        let RestPlace { url, token, .. } = self.rest;
        let told = format!(
            "A Kubernetes API in memory with 3 nodes, and a host that gets the plugins addon, dumplog, exportimage, preflight and reboot. It serves\n\
             OpsJobs by REST at {url}, with a page about it at {url}/docs. Who asks, a token says that the API server made:"
        );
        self.play.screen.say(&told).await?;
        self.play.screen.command("kubectl create token ops-admin --audience oarlock > token", "").await?;
        self.play.screen.say(&format!("It is in {}.", token.display())).await?;
        for plugin in SCENERY.plugins {
            self.play.drop_plugin(plugin).await?;
            self.play.stage.wait_until_serving(plugin).await?;
        }
        Ok(())
    }

    async fn reboot(&mut self) -> anyhow::Result<()> {
        self.play.screen.title("1. A node is drained and rebooted").await?;
        let body = json!({"name": "reboot-node", "type": "reboot",
            "inputs": [{"name": "node", "value": NODE}, {"name": "drain", "value": "true"}], "ttlSecondsAfterFinished": 3600});
        let made = self.curl("POST", "/api/v1/opsjobs", Some(&body)).await?;
        let id = made.text("jobId").to_owned();
        self.check(made.status == 200 && id.starts_with("reboot-node-"), &format!("job {id} was made")).await?;
        self.play.screen.say("Another job on that node is refused as long as this one has it:").await?;
        let other = self.curl("POST", "/api/v1/opsjobs", Some(&body)).await?;
        let is_named = other.text("errorMessage").contains(&id);
        let observed = format!("the second one got {} {}", other.status, other.text("errorCode"));
        self.check((other.status, is_named) == (409, true), &observed).await?;
        self.play.screen.command(&format!("oarlock ops watch {id}"), "").await?;
        follow_by_rest(&self.rest.url, &self.rest.token, &id).await?;
        let reboots = self.play.stage.ledger().reboots();
        let once = reboots.len() == 1 && reboots.get(NODE) == Some(&1);
        self.check(once, &format!("{NODE} was rebooted once, and no other node: {reboots:?}")).await
    }

    async fn stop_a_check(&mut self) -> anyhow::Result<()> {
        self.play.screen.title("2. A check of all nodes is stopped").await?;
        // sleep 600
        let body = json!({"name": "preflight-check", "type": "preflight", "inputs": [{"name": "cluster", "value": "local"}],
            "image": "busybox", "entryPoint": "c2xlZXAgNjAw", "timeoutSecond": 7200});
        let made = self.curl("POST", "/api/v1/opsjobs", Some(&body)).await?;
        let path = format!("/api/v1/opsjobs/{}", made.text("jobId"));
        self.until(&path, "Running").await?;
        let stopped = self.curl("POST", &format!("{path}/stop"), None).await?;
        self.until(&path, "Failed").await?;
        let ended = self.curl("GET", &path, None).await?;
        let is_stopped = ended.body.to_string().contains("\"reason\":\"Stopped\"");
        self.check(stopped.status == 200 && is_stopped, "it was stopped, and says so").await
    }

    async fn run_scripts(&mut self) -> anyhow::Result<()> {
        self.play.screen.title("3. The script of a template runs on two nodes").await?;
        self.play.screen.say("What a script does on a node of this cluster in memory, a note in it says:").await?;
        self.play.apply(TEMPLATE).await?;
        let body = json!({"name": "addon-upgrade", "type": "addon", "batchCount": 2, "availableRatio": 1.0,
            "inputs": [{"name": "node", "value": "node-1"}, {"name": "node", "value": "node-2"},
                {"name": "addon.template", "value": "disable-os-upgrade"}]});
        let made = self.curl("POST", "/api/v1/opsjobs", Some(&body)).await?;
        let path = format!("/api/v1/opsjobs/{}", made.text("jobId"));
        self.until(&path, "Succeeded").await?;
        let ended = self.curl("GET", &path, None).await?;
        let said = ended.body.to_string().matches("timers are off").count();
        self.check(said == 2, &format!("{said} nodes say that their timers are off")).await
    }

    async fn collect_logs(&mut self) -> anyhow::Result<()> {
        self.play.screen.title("4. The logs of a workload are one file").await?;
        self.play.apply(TALKERS).await?;
        self.until_they_talk().await?;
        let body = json!({"name": "dump-log", "type": "dumplog",
            "inputs": [{"name": "workload", "value": "default/statefulset/talkers"}], "timeoutSecond": 600});
        let made = self.curl("POST", "/api/v1/opsjobs", Some(&body)).await?;
        let path = format!("/api/v1/opsjobs/{}", made.text("jobId"));
        self.until(&path, "Succeeded").await?;
        let ended = self.curl("GET", &path, None).await?;
        let address = ended.output("endpoint");
        let text = self.read(address).await?;
        let times: Vec<&str> = text.lines().filter_map(|line| line.split(' ').next()).collect();
        let pods = ["talkers-0", "talkers-1"].iter().filter(|pod| text.contains(**pod)).count();
        let holds = pods == 2 && times.is_sorted() && times.len() >= 4;
        self.check(holds, &format!("{} lines of {pods} pods, in the order of their times", times.len())).await
    }

    async fn until_they_talk(&self) -> anyhow::Result<()> {
        let deadline = Instant::now() + ACT_ENDS_WITHIN;
        let is_ready = |pod: &Value| pod.pointer("/status/containerStatuses/0/ready") == Some(&Value::Bool(true));
        loop {
            let pods = self.play.user.pods("talkers").await?;
            if pods.iter().filter(|pod| is_ready(&json!(pod))).count() == 2 {
                return Ok(());
            }
            if Instant::now() > deadline {
                bail!("timed out after {ACT_ENDS_WITHIN:?} waiting for the pods of talkers");
            }
            sleep(ASK_EVERY).await;
        }
    }

    async fn export_image(&mut self) -> anyhow::Result<()> {
        self.play.screen.title("5. The image of a workload is in another registry").await?;
        let body = json!({"name": "export-workload-image", "type": "exportimage",
            "inputs": [{"name": "workload", "value": "default/statefulset/talkers"}], "timeoutSecond": 3600});
        let made = self.curl("POST", "/api/v1/opsjobs", Some(&body)).await?;
        let path = format!("/api/v1/opsjobs/{}", made.text("jobId"));
        self.until(&path, "Succeeded").await?;
        let ended = self.curl("GET", &path, None).await?;
        let (registry, image) = ended.output("target").split_once('/').unwrap_or_default();
        let (name, tag) = image.rsplit_once(':').unwrap_or_default();
        let address = format!("http://{registry}/v2/{name}/tags/list");
        let text = self.read(&address).await?;
        let is_there = name == "custom/library/busybox" && tag.len() == 8 && text.contains(&format!("{tag:?}"));
        self.check(is_there, &format!("the registry has {name} with the tag {tag}")).await
    }

    async fn list(&mut self) -> anyhow::Result<()> {
        self.play.screen.title("6. What there was").await?;
        let listed = self.curl("GET", "/api/v1/opsjobs?sortBy=creationTime&order=asc", None).await?;
        let count = listed.body.get("totalCount").and_then(Value::as_u64);
        self.check(count == Some(5), &format!("{} jobs are listed", count.unwrap_or(0))).await?;
        let is_left = |node: &Value| node.pointer("/spec/unschedulable") == Some(&Value::Bool(true));
        let left = self.play.user.nodes().await?.iter().filter(|node| is_left(&json!(node))).count();
        self.check(left == 0, &format!("{left} nodes are left cordoned")).await
    }

    /// Reads what is at an address, without a token, and shows it.
    async fn read(&self, address: &str) -> anyhow::Result<String> {
        self.play.screen.command(&format!("curl '{address}'"), "").await?;
        let output =
            Command::new("curl").args(["--silent", "--show-error", "--max-time", "20", address]).output().await?;
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        self.play.screen.say(text.trim_end()).await?;
        Ok(text)
    }

    /// Sends a request, and shows it with its answer.
    async fn curl(&self, method: &str, path: &str, body: Option<&Value>) -> anyhow::Result<Answer> {
        let shown = body.map(|body| format!(" -d '{body}'")).unwrap_or_default();
        let command =
            format!("curl -X {method} -H \"Authorization: Bearer $(cat token)\" {}{path}{shown}", self.rest.url);
        self.play.screen.command(&command, "").await?;
        let answer = self.ask(method, path, body).await?;
        let text = if answer.body.is_null() { String::new() } else { answer.body.to_string() };
        self.play.screen.say(format!("{} {text}", answer.status).trim_end()).await?;
        Ok(answer)
    }

    async fn ask(&self, method: &str, path: &str, body: Option<&Value>) -> anyhow::Result<Answer> {
        let mut command = Command::new("curl");
        // Nobody else sees a header that is in a file.
        command.args([
            "--silent",
            "--show-error",
            "--max-time",
            "20",
            "--write-out",
            "\n%{http_code}",
            "--request",
            method,
        ]);
        command.arg("--header").arg(format!("@{}", self.rest.header.display())).arg(format!("{}{path}", self.rest.url));
        if let Some(body) = body {
            command.arg("--data").arg(body.to_string());
        }
        let output =
            command.stdin(Stdio::null()).output().await.context("cannot run curl: install it, and try again")?;
        let text = String::from_utf8_lossy(&output.stdout);
        let (body, status) = text.rsplit_once('\n').unwrap_or_default();
        if !output.status.success() {
            bail!("curl failed: {}", String::from_utf8_lossy(&output.stderr));
        }
        Ok(Answer { status: status.parse().unwrap_or(0), body: serde_json::from_str(body).unwrap_or(Value::Null) })
    }

    /// Waits until a job is in this phase.
    async fn until(&self, path: &str, phase: &str) -> anyhow::Result<()> {
        let deadline = Instant::now() + ACT_ENDS_WITHIN;
        loop {
            let now = self.ask("GET", path, None).await?;
            if now.text("phase") == phase {
                return self.play.screen.change(&format!("it is {phase}"));
            }
            if Instant::now() > deadline {
                bail!("timed out after {ACT_ENDS_WITHIN:?} waiting for {path} to be {phase}: {}", now.body);
            }
            sleep(ASK_EVERY).await;
        }
    }

    /// Notes what was observed, whether it is as it was said, and shows it.
    async fn check(&mut self, holds: bool, observed: &str) -> anyhow::Result<()> {
        let line = self.checks.add(holds, observed);
        self.play.screen.say(&line).await
    }
}
