//! The story of OpsJobs by REST. The user reboots a node, tries to reboot the node twice, and stops a check. Then the
//! user runs the script of a template, collects the logs of a workload, exports its image, and lists all jobs.
//!
//! The user sends the requests with curl. The nodes and the ledger judge the outcome.

use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::time::Duration;

use anyhow::Context as _;
use k8s_openapi::api::authentication::v1::{TokenRequest, TokenRequestSpec};
use k8s_openapi::api::core::v1::ServiceAccount;
use kube::api::{Api, PostParams};
use serde_json::{Value, json};

use crate::environment::Needs;
use crate::play::{Play, until, until_every};
use crate::seen::serves;
use crate::snapshot::{array, text};

pub(crate) const NEEDS: Needs = Needs {
    plugins: &["addon", "dumplog", "exportimage", "preflight", "reboot"],
    collaset: 4,
    deployment: 1,
    nodes: 3,
};

/// The command of the server.
const SERVER: &str = "server --listen 127.0.0.1:0 --health 127.0.0.1:0 --data data --log warn,oarlock::rest=info";
/// The node that is rebooted.
const NODE: &str = "node-0";
/// The interval of dry runs while the server does not serve a type yet. It stays below the rate at which one user may write.
const DRY_RUN_EVERY: Duration = Duration::from_millis(500);
/// `# sim: sleep 600`, in base 64. On a node of the cluster in memory, a script does what such a note says.
const SLEEPS: &str = "IyBzaW06IHNsZWVwIDYwMA==";

/// The account of the user, who may do everything.
const ACCOUNT: &str = "\
{apiVersion: v1, kind: ServiceAccount, metadata: {name: ops-admin, namespace: default}}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: ops-admin}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: cluster-admin}
subjects: [{kind: ServiceAccount, name: ops-admin, namespace: default}]
";

/// The script of an addon.
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

/// The workload whose logs are collected. REGISTRY is the registry of images.
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
      - {name: main, image: REGISTRY/library/busybox, command: [sh, -c, 'echo begin; while true; do echo tick; sleep 1; done']}
";

/// A story with the address of the server.
struct Ops<'a> {
    play: &'a mut Play,
    url: String,
}

/// The answer to a request.
struct Answer {
    status: String,
    body: Value,
}

impl Answer {
    fn output(&self, name: &str) -> &str {
        let found = array(&self.body, "/outputs").iter().find(|output| text(output, "/name") == name);
        found.map(|output| text(output, "/value")).unwrap_or_default()
    }
}

pub(crate) async fn tell(play: &mut Play) -> anyhow::Result<()> {
    play.environment.start(SERVER)?;
    let served = |log: &str| Some(log.split_once("OpsJobs is served url=\"")?.1.split_once('"')?.0.to_owned());
    let url = play.environment.until_logged("server", "serving", served).await?;
    let told = format!(
        "A Kubernetes API in memory with 3 nodes, and a host that gets the plugins addon, dumplog, exportimage, preflight and reboot. A server\n\
         beside it serves OpsJobs by REST at {url}, with a page about it at {url}/docs. Who asks, a token says that the API server made:"
    );
    play.say(&told).await?;
    play.command("kubectl create token ops-admin --audience oarlock > token", "").await?;
    write_token(play).await?;
    play.say(&format!("It is in {}.", play.environment.path("token").display())).await?;
    for plugin in NEEDS.plugins {
        play.drop_plugin(plugin).await?;
    }
    let mut ops = Ops { play, url };
    ops.reboot().await?;
    ops.stop_a_check().await?;
    ops.run_scripts().await?;
    ops.collect_logs().await?;
    ops.export_image().await?;
    ops.list().await
}

async fn write_token(play: &Play) -> anyhow::Result<()> {
    play.apply_silently(ACCOUNT).await?;
    let spec = TokenRequestSpec { audiences: vec!["oarlock".to_owned()], ..TokenRequestSpec::default() };
    let request = TokenRequest { spec, ..TokenRequest::default() };
    let accounts: Api<ServiceAccount> = Api::default_namespaced(play.environment.client.clone());
    let made = accounts.create_token_request("ops-admin", &PostParams::default(), &request).await?;
    let token = made.status.context("the token request has no answer")?.token;
    let mut options = std::fs::OpenOptions::new();
    options.write(true).create(true).mode(0o600).open(play.environment.path("token"))?.write_all(token.as_bytes())?;
    Ok(())
}

impl Ops<'_> {
    async fn reboot(&mut self) -> anyhow::Result<()> {
        self.play.act("A node is drained and rebooted", "").await?;
        let body = json!({"name": "reboot-node", "type": "reboot",
            "inputs": [{"name": "node", "value": NODE}, {"name": "drain", "value": "true"}], "ttlSecondsAfterFinished": 3600});
        let id = self.create(&body).await?;
        self.play.check(id.starts_with("reboot-node-"), &format!("job {id} was made")).await?;
        self.play.say("Another job on that node is refused as long as this one has it:").await?;
        let other = self.curl("POST", "/api/v1/opsjobs", Some(&body)).await?;
        let is_named = text(&other.body, "/errorMessage").contains(&id);
        let observed = format!("the second one got {} {}", other.status, text(&other.body, "/errorCode"));
        self.play.check(other.status == "409" && is_named, &observed).await?;
        let server = format!("--server {} --token-file token", self.url);
        self.play.follow(&format!("oarlock ops watch {id} {server}"), async |_| Ok(())).await?;
        let reboots = self.play.environment.ledger().reboots();
        let once = reboots.len() == 1 && reboots.get(NODE) == Some(&1);
        self.play.check(once, &format!("{NODE} was rebooted once, and no other node: {reboots:?}")).await
    }

    async fn stop_a_check(&mut self) -> anyhow::Result<()> {
        self.play.act("A check of all nodes is stopped", "").await?;
        let body = json!({"name": "preflight-check", "type": "preflight", "inputs": [{"name": "cluster", "value": "local"}],
            "image": "busybox", "entryPoint": SLEEPS, "timeoutSecond": 7200});
        let id = self.create(&body).await?;
        self.until(&id, "Running").await?;
        let stopped = self.curl("POST", &format!("/api/v1/opsjobs/{id}/stop"), None).await?;
        let ended = self.ended(&id, "Failed").await?;
        let is_stopped = array(&ended.body, "/conditions").iter().any(|one| text(one, "/reason") == "Stopped");
        self.play.check(stopped.status == "200" && is_stopped, "it was stopped, and says so").await
    }

    async fn run_scripts(&mut self) -> anyhow::Result<()> {
        let shows = "What a script does on a node of this cluster in memory, a note in it says:";
        self.play.act("The script of a template runs on two nodes", shows).await?;
        self.play.apply(TEMPLATE).await?;
        let body = json!({"name": "addon-upgrade", "type": "addon", "batchCount": 2, "availableRatio": 1.0,
            "inputs": [{"name": "node", "value": "node-1"}, {"name": "node", "value": "node-2"},
                {"name": "addon.template", "value": "disable-os-upgrade"}]});
        let id = self.create(&body).await?;
        let said = self.ended(&id, "Succeeded").await?.body.to_string().matches("timers are off").count();
        self.play.check(said == 2, &format!("{said} nodes say that their timers are off")).await
    }

    async fn collect_logs(&mut self) -> anyhow::Result<()> {
        self.play.act("The logs of a workload are one file", "").await?;
        self.play.apply(&TALKERS.replace("REGISTRY", &self.play.environment.registry)).await?;
        until("the pods of talkers to be Ready", async || {
            let pods = self.play.pods("talkers").await?;
            Ok((pods.iter().filter(|pod| serves(pod)).count() == 2).then_some(()))
        })
        .await?;
        let body = json!({"name": "dump-log", "type": "dumplog",
            "inputs": [{"name": "workload", "value": "default/statefulset/talkers"}], "timeoutSecond": 600});
        let id = self.create(&body).await?;
        let ended = self.ended(&id, "Succeeded").await?;
        let printed = self.play.typed(&format!("curl -s '{}'", ended.output("endpoint")), "").await?;
        let times: Vec<&str> = printed.lines().filter_map(|line| line.split(' ').next()).collect();
        let pods = ["talkers-0", "talkers-1"].iter().filter(|pod| printed.contains(**pod)).count();
        let holds = pods == 2 && times.is_sorted() && times.len() >= 4;
        self.play.check(holds, &format!("{} lines of {pods} pods, in the order of their times", times.len())).await
    }

    async fn export_image(&mut self) -> anyhow::Result<()> {
        self.play.act("The image of a workload is in another registry", "").await?;
        let body = json!({"name": "export-workload-image", "type": "exportimage",
            "inputs": [{"name": "workload", "value": "default/statefulset/talkers"}], "timeoutSecond": 3600});
        let id = self.create(&body).await?;
        let ended = self.ended(&id, "Succeeded").await?;
        let (registry, image) = ended.output("target").split_once('/').unwrap_or_default();
        let (name, tag) = image.rsplit_once(':').unwrap_or_default();
        let tags = self.play.typed(&format!("curl -s 'http://{registry}/v2/{name}/tags/list'"), "").await?;
        let is_there = name.ends_with("/library/busybox") && tag.len() == 8 && tags.contains(&format!("{tag:?}"));
        self.play.check(is_there, &format!("the registry has {name} with the tag {tag}")).await
    }

    async fn list(&mut self) -> anyhow::Result<()> {
        self.play.act("What there was", "").await?;
        let listed = self.curl("GET", "/api/v1/opsjobs?sortBy=creationTime&order=asc", None).await?;
        let count = listed.body.get("totalCount").and_then(Value::as_u64).unwrap_or(0);
        self.play.check(count == 5, &format!("{count} jobs are listed")).await?;
        let left = self.play.nodes().await?.iter().filter(|node| !serves(node)).count();
        self.play.check(left == 0, &format!("{left} nodes are left cordoned")).await
    }

    /// Creates a job and shows the request. Returns the id of the job.
    async fn create(&self, body: &Value) -> anyhow::Result<String> {
        // The server hears a moment later than the host that a plugin serves. Dry runs count against the rate of writes.
        until_every(DRY_RUN_EVERY, "the server to take the job", async || {
            let tried = self.ask("POST", "/api/v1/opsjobs?dryRun=All", Some(body)).await?;
            Ok((tried.status == "200").then_some(()))
        })
        .await?;
        Ok(text(&self.curl("POST", "/api/v1/opsjobs", Some(body)).await?.body, "/jobId").to_owned())
    }

    /// Sends a request, and shows it with its answer.
    async fn curl(&self, method: &str, path: &str, body: Option<&Value>) -> anyhow::Result<Answer> {
        self.play.command(&self.line(method, path, body), "").await?;
        let answer = self.ask(method, path, body).await?;
        let shown = if answer.body.is_null() { String::new() } else { format!(" {}", answer.body) };
        self.play.say(&format!("{}{shown}", answer.status)).await?;
        Ok(answer)
    }

    fn line(&self, method: &str, path: &str, body: Option<&Value>) -> String {
        let body = body.map(|body| format!(" -d '{body}'")).unwrap_or_default();
        format!("curl -X {method} -H \"Authorization: Bearer $(cat token)\" '{}{path}'{body}", self.url)
    }

    async fn ask(&self, method: &str, path: &str, body: Option<&Value>) -> anyhow::Result<Answer> {
        let line = self.line(method, path, body);
        let printed = self.play.run(&format!("{line} -sS --max-time 20 -w '\\n%{{http_code}}'"), "").await?;
        let (body, status) = printed.rsplit_once('\n').context("curl has no answer: is it installed?")?;
        Ok(Answer { status: status.to_owned(), body: serde_json::from_str(body).unwrap_or(Value::Null) })
    }

    /// Waits until a job is in a phase.
    async fn until(&self, id: &str, phase: &str) -> anyhow::Result<()> {
        until(&format!("{id} to be {phase}"), async || {
            let now = self.ask("GET", &format!("/api/v1/opsjobs/{id}"), None).await?;
            Ok((text(&now.body, "/phase") == phase).then_some(()))
        })
        .await?;
        self.play.change(&format!("it is {phase}"))
    }

    /// Waits until a job has ended so, and shows it.
    async fn ended(&self, id: &str, phase: &str) -> anyhow::Result<Answer> {
        self.until(id, phase).await?;
        self.curl("GET", &format!("/api/v1/opsjobs/{id}"), None).await
    }
}
