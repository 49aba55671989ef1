//! OpsJobs over HTTP on real nodes: through the Service, with TLS, and with the token of an account that may use them.

use std::cell::RefCell;
use std::io::{BufRead as _, BufReader, Read as _};
use std::process::{Child, ChildStdout, Command, Output, Stdio};

use anyhow::{Context as _, bail, ensure};
use oarlock_nodes::layout::IMAGES;
use serde_json::{Value, json};

use crate::documents::{outputs_of, text_at};
use crate::reboots::boots;
use crate::scenario::Scenario;
use crate::shared_cluster::{SharedCluster, pull_secret};

/// A client of the API. It reaches the Service through a forwarded port.
pub(crate) struct Client<'a> {
    scenario: &'a Scenario,
    forwarded: RefCell<Forwarded>,
    token: String,
}

/// A port of this machine that leads to a pod of the Service. The process ends if the pod ends or does not listen yet.
struct Forwarded {
    process: Child,
    /// The output of the process, which ends if nobody reads it.
    _said: BufReader<ChildStdout>,
    server: String,
}

impl Drop for Forwarded {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

impl Forwarded {
    fn new(scenario: &Scenario) -> anyhow::Result<Self> {
        let mut command = scenario.cluster.kubectl_command();
        command.args(["--namespace", "oarlock-system", "port-forward", "service/oarlock-rest", ":443"]);
        let mut process = command.stdout(Stdio::piped()).spawn().context("cannot run kubectl port-forward")?;
        let mut said = BufReader::new(process.stdout.take().context("kubectl port-forward has no output")?);
        // The output is like `Forwarding from 127.0.0.1:40123 -> 8443`.
        let port = said.by_ref().lines().map_while(Result::ok).find_map(|line| {
            let (_, rest) = line.split_once("127.0.0.1:")?;
            rest.split_whitespace().next().map(str::to_owned)
        });
        let server = port.map(|port| format!("https://localhost:{port}")).unwrap_or_default();
        let forwarded = Self { process, _said: said, server };
        ensure!(!forwarded.server.is_empty(), "kubectl port-forward names no port");
        Ok(forwarded)
    }
}

impl<'a> Client<'a> {
    /// Creates a client for an account of the scenario, with a token from kubectl.
    fn new(scenario: &'a Scenario, account: &str) -> anyhow::Result<Self> {
        let token = scenario.kubectl(&["create", "token", account, "--audience", "oarlock"])?.trim().to_owned();
        Ok(Self { scenario, forwarded: RefCell::new(Forwarded::new(scenario)?), token })
    }

    /// Returns the address of the API. Starts the forwarding again if it has ended.
    fn server(&self) -> anyhow::Result<String> {
        let mut forwarded = self.forwarded.borrow_mut();
        if forwarded.process.try_wait().context("cannot ask for kubectl port-forward")?.is_some() {
            *forwarded = Forwarded::new(self.scenario)?;
        }
        Ok(forwarded.server.clone())
    }

    /// Calls the API with curl. Returns the status and the body of the answer.
    fn call(&self, method: &str, path: &str, body: Option<&Value>) -> anyhow::Result<(u16, Value)> {
        let mut command = Command::new("curl");
        command.args(["--silent", "--show-error", "--max-time", "60", "--write-out", "\n%{http_code}", "--cacert"]);
        command.arg(self.scenario.cluster.authority()).args(["--request", method]);
        command.args(["--header", &format!("Authorization: Bearer {}", self.token)]);
        if let Some(body) = body {
            command.args(["--data", &body.to_string()]);
        }
        command.arg(format!("{}/api/v1/opsjobs{path}", self.server()?));
        let output = command.output().context("cannot run curl")?;
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        ensure!(output.status.success(), "curl: {}", String::from_utf8_lossy(&output.stderr));
        let (body, status) = said.rsplit_once('\n').context("curl tells no status")?;
        let body = if body.is_empty() { Value::Null } else { serde_json::from_str(body).context("no JSON")? };
        Ok((status.parse().context("no status")?, body))
    }

    /// Calls the API. Returns the body if the status is 200, and an error otherwise.
    fn done(&self, method: &str, path: &str, body: Option<&Value>) -> anyhow::Result<Value> {
        match self.call(method, path, body)? {
            (200, answer) => Ok(answer),
            (status, answer) => bail!("{method} {path}: {status} {answer}"),
        }
    }

    /// Runs `oarlock` against this server, with the same token.
    fn oarlock(&self, arguments: &[&str]) -> anyhow::Result<Output> {
        let cluster = &self.scenario.cluster;
        let token = cluster.folder_of(&self.scenario.namespace)?.join("token");
        std::fs::write(&token, &self.token).context("cannot write the token")?;
        let (authority, token) = (cluster.authority().display().to_string(), token.display().to_string());
        let server = self.server()?;
        let to_server = ["--server", server.as_str(), "--ca-file", &authority, "--token-file", &token];
        cluster.oarlock(&[arguments, &to_server].concat())
    }

    fn create(&self, body: &Value) -> anyhow::Result<String> {
        Ok(text_at(&self.done("POST", "", Some(body))?, "/jobId").to_owned())
    }

    pub(crate) fn until(&self, id: &str, phases: &[&str]) -> anyhow::Result<Value> {
        self.scenario.until(&format!("{id} is {phases:?}"), || {
            let job = self.done("GET", &format!("/{id}"), None)?;
            Ok(phases.contains(&text_at(&job, "/phase")).then_some(job))
        })
    }
}

/// Creates an account of the scenario that may do everything with OpsJobs, and runs `ask` once both replicas are ready.
pub(crate) fn as_ops_bot<T>(
    scenario: &Scenario,
    ask: impl FnOnce(&Client<'_>) -> anyhow::Result<T>,
) -> anyhow::Result<T> {
    let account = format!("{}:ops-bot", scenario.namespace);
    scenario.kubectl(&["create", "serviceaccount", "ops-bot"])?;
    let binding = format!("ops-bot-{}", scenario.namespace);
    let operator = ["--clusterrole", "oarlock-ops-operator", "--serviceaccount", account.as_str()];
    scenario.cluster.kubectl(&[["create", "clusterrolebinding", binding.as_str()].as_slice(), &operator].concat())?;
    let asked = scenario.cluster.until_deployed().and_then(|()| ask(&Client::new(scenario, "ops-bot")?));
    scenario.cluster.kubectl(&["delete", "clusterrolebinding", &binding])?;
    asked
}

/// Tests every call as an account with only the operator role, with the bodies of requirements/opsjob-api.md for
/// preflight and reboot.
pub(crate) fn ops_jobs_are_made_followed_stopped_and_deleted_by_rest(scenario: &Scenario) -> anyhow::Result<()> {
    let [first, second] = scenario.nodes.as_slice() else { bail!("two nodes are needed") };
    scenario.kubectl(&["create", "serviceaccount", "ops-bot"])?;
    let client = Client::new(scenario, "ops-bot")?;
    let reboot = json!({"name": "reboot-node", "type": "reboot", "inputs": [{"name": "node", "value": first}], "ttlSecondsAfterFinished": 3600});
    let (status, refused) = client.call("POST", "", Some(&reboot))?;
    ensure!(status == 403 && text_at(&refused, "/errorCode") == "Primus.00003", "{status} {refused}");
    let account = format!("{}:ops-bot", scenario.namespace);
    let binding = format!("rest-{}", scenario.namespace);
    let role = ["--clusterrole", "oarlock-ops-operator", "--serviceaccount", &account];
    scenario.kubectl(&[["create", "clusterrolebinding", binding.as_str()].as_slice(), &role].concat())?;
    let outcome = play(&client, first, second, &reboot);
    scenario.kubectl(&["delete", "clusterrolebinding", &binding])?;
    outcome
}

fn play(client: &Client<'_>, first: &str, second: &str, reboot: &Value) -> anyhow::Result<()> {
    let scenario = client.scenario;
    let before = boots(scenario)?;
    // The host caches the earlier refusal for some seconds, so the first creation is repeated.
    let check = json!({
        "name": "preflight-check", "type": "preflight",
        "inputs": [{"name": "node", "value": first}, {"name": "node", "value": second}],
        "resource": {"cpu": "100m", "memory": "32Mi"}, "image": "busybox",
        // `test "$CHECK_DISK" = true && test -d /var/log && test $(nproc) -ge 1`
        "entryPoint": "dGVzdCAiJENIRUNLX0RJU0siID0gdHJ1ZSAmJiB0ZXN0IC1kIC92YXIvbG9nICYmIHRlc3QgJChucHJvYykgLWdlIDEK",
        "env": {"CHECK_DISK": "true"}, "hostpath": ["/var/log"],
        "ttlSecondsAfterFinished": 3600, "timeoutSecond": 7200, "isTolerateAll": true,
    });
    let id = scenario.until("the account may make jobs", || Ok(Some(client.create(&check)?)))?;
    let job = client.until(&id, &["Succeeded", "Failed"])?;
    ensure!(text_at(&job, "/phase") == "Succeeded" && text_at(&job, "/env/CHECK_DISK") == "true", "{job:#}");
    ensure!(
        text_at(&job, "/userName").ends_with(":ops-bot") && text_at(&job, "/jobName") == "preflight-check",
        "{job:#}"
    );

    let booted = client.create(reboot)?;
    let (status, refused) = client.call("POST", "", Some(reboot))?;
    ensure!(status == 409 && text_at(&refused, "/errorCode") == "Primus.00010", "{status} {refused}");
    ensure!(text_at(&refused, "/errorMessage").contains(&booted), "{refused}");
    let watched = client.oarlock(&["ops", "watch", &booted])?;
    let said = String::from_utf8_lossy(&watched.stdout).into_owned();
    ensure!(
        watched.status.success() && said.contains("Succeeded"),
        "{said}{}",
        String::from_utf8_lossy(&watched.stderr)
    );
    let after = boots(scenario)?;
    let more = before.iter().zip(&after).map(|(before, after)| after - before);
    ensure!(more.collect::<Vec<_>>() == [1, 0], "{before:?} and {after:?}");

    // A check that never ends must be stoppable.
    let endless = json!({"name": "endless", "type": "preflight", "inputs": [{"name": "node", "value": second}],
        "image": "busybox", "entryPoint": "c2xlZXAgMzYwMAo=", "isTolerateAll": true});
    let stopped = client.create(&endless)?;
    client.until(&stopped, &["Running"])?;
    ensure!(client.done("POST", &format!("/{stopped}/stop"), None)?.is_null(), "stop has a body");
    client.until(&stopped, &["Failed"])?;
    let list = client.done("GET", &format!("?userName={}:ops-bot&order=asc", scenario.namespace), None)?;
    let items = list.pointer("/items").and_then(Value::as_array).into_iter().flatten();
    let told: Vec<_> = items.map(|item| (text_at(item, "/jobId"), text_at(item, "/phase"))).collect();
    let wanted = [(id.as_str(), "Succeeded"), (booted.as_str(), "Succeeded"), (stopped.as_str(), "Failed")];
    ensure!(told == wanted && list.get("totalCount") == Some(&json!(3)), "{list:#}");
    for id in [&id, &booted, &stopped] {
        ensure!(client.done("DELETE", &format!("/{id}"), None)?.is_null(), "delete has a body");
        scenario.until(&format!("{id} is gone"), || {
            let found = scenario.cluster.kubectl(&["get", "opsjobs", id, "--ignore-not-found", "-o", "name"])?;
            Ok(found.is_empty().then_some(()))
        })?;
        // The history must have the job, whichever replica answers.
        let gone = client.done("GET", &format!("/{id}"), None)?;
        ensure!(!text_at(&gone, "/deletionTime").is_empty() && !text_at(&gone, "/endTime").is_empty(), "{gone:#}");
    }
    Ok(())
}

/// Tests the bodies of requirements/opsjob-api.md for an addon, a dumplog and an exportimage, and their results: a line
/// on the node, the log, and the image in the registry.
pub(crate) fn an_addon_a_dumplog_and_an_export_are_made_by_rest(scenario: &Scenario) -> anyhow::Result<()> {
    let [node] = scenario.nodes.as_slice() else { bail!("one node is needed") };
    let (workspace, template) = (scenario.namespace.as_str(), format!("upgrade-{}", scenario.namespace));
    let label = format!("node-restriction.kubernetes.io/workspace={workspace}");
    scenario.cluster.kubectl(&["label", "node", node, &label])?;
    let script = "echo upgraded >> /var/lib/oarlock/by-rest.log\n";
    let document = json!({"apiVersion": "oarlock.dev/v1alpha1", "kind": "AddonTemplate", "metadata": {"name": template},
        "spec": {"script": script, "interpreter": "/bin/sh"}});
    scenario.cluster.apply_text(&document.to_string())?;
    scenario.apply(&pull_secret("pull", IMAGES, None))?;
    let container = json!({"name": "main", "image": format!("{IMAGES}/library/busybox:latest"),
        "command": ["sh", "-c", "seq 1000; sleep 3600"]});
    let (name, secrets) = (format!("training-{workspace}"), json!([{"name": "pull"}]));
    scenario.apply(&json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name},
        "spec": {"containers": [container], "imagePullSecrets": secrets}}))?;
    let pod = scenario.until_is("pods", &name, "/status/phase", &["Running"])?;
    let (_, digest) = text_at(&pod, "/status/containerStatuses/0/imageID").split_once('@').context("no digest")?;

    scenario.kubectl(&["create", "serviceaccount", "ops-bot"])?;
    let account = format!("{workspace}:ops-bot");
    let role = ["create", "role", "owner", "--verb", "get", "--resource", "pods,pods/log,secrets"];
    scenario.kubectl(&role)?;
    scenario.kubectl(&["create", "rolebinding", "owner", "--role", "owner", "--serviceaccount", &account])?;
    let (binding, operator) = (format!("rest-{workspace}"), ["--clusterrole", "oarlock-ops-operator"]);
    let of_account = ["--serviceaccount", account.as_str()];
    scenario
        .kubectl(&[["create", "clusterrolebinding", binding.as_str()].as_slice(), &operator, &of_account].concat())?;
    let client = Client::new(scenario, "ops-bot")?;
    let outcome = play_others(&client, (workspace, &template), (&name, digest));
    scenario.cluster.kubectl(&["delete", "clusterrolebinding", &binding])?;
    scenario.cluster.kubectl(&["delete", "addontemplate", &template])?;
    scenario.cluster.kubectl(&["label", "node", node, "node-restriction.kubernetes.io/workspace-"])?;
    outcome?;
    ensure!(
        scenario.cluster.file_of(node, "by-rest.log") == "upgraded\n",
        "{}",
        scenario.cluster.file_of(node, "by-rest.log")
    );
    Ok(())
}

fn play_others(
    client: &Client<'_>,
    (workspace, template): (&str, &str),
    (pod, digest): (&str, &str),
) -> anyhow::Result<()> {
    let scenario = client.scenario;
    let addon = json!({
        "name": "addon-upgrade", "type": "addon",
        "inputs": [{"name": "addon.template", "value": template}, {"name": "workspace", "value": workspace}],
        "batchCount": 2, "availableRatio": 1.0, "securityUpgrade": true, "timeoutSecond": 1800,
        "excludedNodes": ["node-1"], "ttlSecondsAfterFinished": 600, "isTolerateAll": true,
    });
    let of_workload = |name: &str, kind: &str, seconds: u32| json!({"name": name, "type": kind, "inputs": [{"name": "workload", "value": pod}], "timeoutSecond": seconds});
    let bodies = [
        addon,
        of_workload("dump-training-log", "dumplog", 1_800),
        of_workload("export-workload-image", "exportimage", 3_600),
    ];
    let mut jobs = Vec::new();
    for body in &bodies {
        let id = scenario.until("the account may make it", || Ok(Some(client.create(body)?)))?;
        let job = client.until(&id, &["Succeeded", "Failed"])?;
        ensure!(text_at(&job, "/phase") == "Succeeded", "{job:#}");
        jobs.push((id, job));
    }
    let [_, (logs, _), (_, export)] = jobs.as_slice() else { bail!("three jobs: {jobs:?}") };
    let printed = client.oarlock(&["ops", "logs", logs])?;
    let said = String::from_utf8_lossy(&printed.stdout).into_owned();
    let lines: Vec<&str> = said.lines().filter_map(|line| line.rsplit_once(' ').map(|(_, text)| text)).collect();
    let wanted: Vec<String> = (1..=1_000).map(|number| number.to_string()).collect();
    ensure!(lines == wanted, "{} lines; {}", lines.len(), String::from_utf8_lossy(&printed.stderr));
    let outputs = outputs_of(export);
    let is_said = |name: &str, value: &str| outputs.get(name).is_some_and(|said| said == value);
    ensure!(is_said("digest", digest) && is_said("status", "completed"), "{export:#}");
    ensure!(export.to_string().contains(&format!("{IMAGES}/library/busybox:latest")), "{export:#}");
    for (id, _) in &jobs {
        ensure!(client.done("DELETE", &format!("/{id}"), None)?.is_null(), "delete has a body");
    }
    Ok(())
}

/// Tests a single replica, with its history on a volume, that reboots both nodes that it may run on. The replica moves
/// together with its file, its own node comes last, and the history keeps the job after its deletion.
pub(crate) fn a_host_with_its_history_on_a_volume_is_drained_by_its_own_job_and_forgets_nothing(
    scenario: &Scenario,
) -> anyhow::Result<()> {
    scenario.cluster.deploy_with_volume()?;
    let nodes = SharedCluster::calm();
    let boots = || nodes.iter().map(|node| scenario.cluster.boots(node)).collect::<anyhow::Result<Vec<usize>>>();
    let before = boots()?;
    let mut inputs: Vec<Value> = nodes.iter().map(|node| json!({"name": "node", "value": node})).collect();
    inputs.push(json!({"name": "drain", "value": "true"}));
    let spec = json!({"type": "reboot", "inputs": inputs});
    scenario.apply(&json!({"apiVersion": "oarlock.dev/v1alpha1", "kind": "OpsJob", "metadata": {"name": "own-node"}, "spec": spec}))?;
    let ended = scenario.until_is("opsjobs", "own-node", "/status/phase", &["Succeeded", "Failed"])?;
    ensure!(text_at(&ended, "/status/phase") == "Succeeded", "{ended:#}");
    let after = boots()?;
    ensure!(before.iter().zip(&after).all(|(before, after)| before + 1 == *after), "{before:?} and {after:?}");
    scenario.kubectl(&["delete", "opsjobs", "own-node", "--timeout=120s"])?;

    let (known, listed) = as_ops_bot(scenario, |client| {
        let known = client.until("own-node", &["Succeeded"])?;
        Ok((known, client.done("GET", "?jobName=own-node&type=reboot&deleted=true", None)?))
    })?;
    ensure!(!text_at(&known, "/deletionTime").is_empty(), "{known:#}");
    ensure!(listed.get("totalCount") == Some(&json!(1)), "{listed:#}");
    Ok(())
}
