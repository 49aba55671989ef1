//! Permissions of each caller, tested with the tokens and roles of real ServiceAccounts.

use anyhow::ensure;
use http::Method;
use kube::api::{Api, DeleteParams, Patch, PatchParams};
use serde_json::{Value, json};

use super::served::{FAST, PEOPLE, Served};

const JOBS: &str = "/api/v1/opsjobs";

fn rule(resources: &[&str], verbs: &[&str]) -> Value {
    json!({"apiGroups": ["oarlock.dev"], "resources": resources, "verbs": verbs})
}

fn reboot(inputs: &[(&str, &str)]) -> Value {
    let inputs: Vec<Value> = inputs.iter().map(|(name, value)| json!({"name": name, "value": value})).collect();
    json!({"name": "a", "type": "reboot", "inputs": inputs})
}

fn preflight(node: &str) -> Value {
    json!({"name": "a", "type": "preflight", "inputs": [{"name": "node", "value": node}], "image": "busybox", "entryPoint": "c2xlZXAgNjAw"})
}

/// A caller and the token of its account.
struct Caller<'a> {
    served: &'a Served,
    token: String,
}

impl Caller<'_> {
    async fn status(&self, method: Method, path: &str, body: Option<&Value>) -> anyhow::Result<u16> {
        Ok(self.served.ask(Some(&self.token), method, path, body).await?.status)
    }

    /// Creates a job. Returns its id, or the status of the refusal.
    async fn make(&self, body: &Value) -> anyhow::Result<Result<String, u16>> {
        let answer = self.served.ask(Some(&self.token), Method::POST, JOBS, Some(body)).await?;
        Ok(if answer.status == 200 { Ok(answer.text("/jobId").to_owned()) } else { Err(answer.status) })
    }

    async fn listed(&self, query: &str) -> anyhow::Result<u64> {
        let answer = self.served.ask(Some(&self.token), Method::GET, &format!("{JOBS}?{query}"), None).await?;
        ensure!(answer.status == 200, "{answer:?}");
        Ok(answer.at("/totalCount").as_u64().unwrap_or(0))
    }
}

async fn caller<'a>(served: &'a Served, name: &str, rules: &[Value]) -> anyhow::Result<Caller<'a>> {
    let token = served.token(name).await?;
    if !rules.is_empty() {
        served.allow(name, &json!(rules)).await?;
    }
    Ok(Caller { served, token })
}

async fn play(served: &Served) -> anyhow::Result<()> {
    // Callers without a valid token.
    for token in [None, Some("x"), Some("a.b.c"), Some("e30.e30.e30")] {
        let answer = served.ask(token, Method::GET, JOBS, None).await?;
        let asks = answer.headers.get("www-authenticate").is_some_and(|way| way == "Bearer");
        ensure!(answer.refusal().0 == 401 && answer.refusal().1 == "Primus.00009" && asks, "{answer:?}");
    }
    let elsewhere = served.token_for("nobody", "elsewhere").await?;
    ensure!(served.ask(Some(&elsewhere), Method::GET, JOBS, None).await?.status == 401, "a token for somebody else");
    // A caller without rights lists only its own jobs, of which there are none. It may not create a job.
    let nobody = caller(served, "nobody", &[]).await?;
    ensure!(nobody.listed("").await? == 0, "nothing is his");
    ensure!(nobody.make(&reboot(&[("node", "node-0")])).await? == Err(403), "no right");
    // Rights on types.
    let checker = caller(served, "checker", &[rule(&["opsjobs", "opsjobs/preflight"], &["create"])]).await?;
    ensure!(checker.make(&reboot(&[("node", "node-0")])).await? == Err(403), "not of that type");
    let Ok(job) = checker.make(&preflight("node-0")).await? else { anyhow::bail!("of his type") };
    let path = format!("{JOBS}/{job}");
    // Who sees the job.
    ensure!(checker.status(Method::GET, &path, None).await? == 200, "its owner does");
    ensure!(checker.listed("").await? == 1, "and lists it");
    for (method, path) in
        [(Method::GET, path.clone()), (Method::POST, format!("{path}/stop")), (Method::DELETE, path.clone())]
    {
        ensure!(nobody.status(method.clone(), &path, None).await? == 404, "{method}: nobody else");
    }
    let reader = caller(served, "reader", &[rule(&["opsjobs/preflight"], &["get", "list"])]).await?;
    ensure!(reader.status(Method::GET, &path, None).await? == 200, "whoever may get its type");
    ensure!(reader.listed("").await? == 1, "and list it");
    ensure!(reader.status(Method::POST, &format!("{path}/stop"), None).await? == 403, "but not stop it");
    ensure!(reader.status(Method::DELETE, &path, None).await? == 403, "nor delete it");
    let stopper = caller(served, "stopper", &[rule(&["opsjobs"], &["get", "list", "update", "delete"])]).await?;
    ensure!(stopper.status(Method::POST, &format!("{path}/stop"), None).await? == 200, "whoever may update it");
    ensure!(stopper.status(Method::DELETE, &path, None).await? == 200, "and delete it");
    // A workload that the caller may not read counts as missing.
    let rebooter = rule(&["opsjobs", "opsjobs/reboot"], &["create"]);
    let pods = json!({"apiGroups": [""], "resources": ["pods"], "verbs": ["get"]});
    let blind = caller(served, "blind", std::slice::from_ref(&rebooter)).await?;
    let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "lone", "namespace": PEOPLE},
        "spec": {"nodeName": "node-1", "containers": [{"name": "c", "image": "busybox"}]}});
    oarlock_support::install::apply(&served.admin, &pod).await?;
    // Only a running pod names its node, and a control plane without kubelets runs no pod.
    let running = Patch::Merge(json!({"status": {"phase": "Running"}}));
    let all: Api<k8s_openapi::api::core::v1::Pod> = Api::namespaced(served.admin.clone(), PEOPLE);
    all.patch_status("lone", &PatchParams::default(), &running).await?;
    for words in ["lone", "people/lone", "people/pod/lone", "people/pods/lone"] {
        ensure!(blind.make(&reboot(&[("workload", words)])).await? == Err(404), "{words}");
    }
    let seeing = caller(served, "seeing", &[rebooter, pods]).await?;
    for words in ["lone", "people/lone", "people/po/lone"] {
        let path = format!("{JOBS}?dryRun=All");
        let answer =
            served.ask(Some(&seeing.token), Method::POST, &path, Some(&reboot(&[("workload", words)]))).await?;
        ensure!(answer.status == 200 && answer.text("/targets/0/name") == "node-1", "{words}: {answer:?}");
    }
    in_a_workspace(served).await?;
    // The token of a deleted account becomes invalid within a minute.
    let accounts: Api<k8s_openapi::api::core::v1::ServiceAccount> = Api::namespaced(served.admin.clone(), PEOPLE);
    accounts.delete("checker", &DeleteParams::default()).await?;
    let gone = oarlock_scenarios::test_cluster::patiently("its token is no longer taken", async || {
        Ok(checker.status(Method::GET, JOBS, None).await? == 401)
    });
    gone.await
}

/// A RoleBinding in the namespace of a workspace gives rights over the nodes of that workspace only, and only if the namespace has the label.
async fn in_a_workspace(served: &Served) -> anyhow::Result<()> {
    let nodes: Api<k8s_openapi::api::core::v1::Node> = Api::all(served.admin.clone());
    let label = json!({"metadata": {"labels": {"node-restriction.kubernetes.io/workspace": "team"}}});
    nodes.patch("node-2", &PatchParams::default(), &Patch::Merge(label)).await?;
    let member = caller(served, "member", &[]).await?;
    let own = "system:serviceaccount:people:member";
    for document in [
        json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "team"}}),
        json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role", "metadata": {"name": "ops", "namespace": "team"},
            "rules": [rule(&["opsjobs", "opsjobs/reboot"], &["create", "list"])]}),
        json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "RoleBinding", "metadata": {"name": "ops", "namespace": "team"},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "ops"},
            "subjects": [{"kind": "User", "name": own, "apiGroup": "rbac.authorization.k8s.io"}]}),
    ] {
        oarlock_support::install::apply(&served.admin, &document).await?;
    }
    ensure!(member.make(&reboot(&[("workspace", "team")])).await? == Err(403), "the namespace does not say so");
    let label = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "team", "labels": {"oarlock.dev/node-operations": "true"}}});
    oarlock_support::install::apply(&served.admin, &label).await?;
    let admin = Caller { served, token: served.token("admin").await? };
    let Ok(other) = admin.make(&preflight("node-2")).await? else { anyhow::bail!("the admin may") };
    ensure!(member.listed("workspaceId=team").await? == 1, "what is on its nodes");
    ensure!(member.listed("").await? == 0, "and nothing else");
    ensure!(admin.status(Method::DELETE, &format!("{JOBS}/{other}"), None).await? == 200, "the admin deletes it");
    served.until_gone(&other).await?;
    ensure!(member.make(&reboot(&[("cluster", "local")])).await? == Err(403), "all nodes are not of the workspace");
    ensure!(member.make(&reboot(&[("node", "node-0")])).await? == Err(403), "nor is another node");
    ensure!(member.make(&reboot(&[("node", "node-0"), ("workspace", "team")])).await? == Err(400), "nor beside it");
    ensure!(member.make(&reboot(&[("workspace", "team")])).await?.is_ok(), "its own nodes are");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn each_caller_may_do_what_the_roles_say_and_sees_no_more() -> anyhow::Result<()> {
    play(&Served::in_memory(&FAST).await?).await
}

#[tokio::test(flavor = "multi_thread")]
async fn each_caller_may_do_so_on_a_real_control_plane() -> anyhow::Result<()> {
    play(&Served::real(&FAST).await?).await
}

#[tokio::test(flavor = "multi_thread")]
async fn whoever_asks_too_often_waits_and_nobody_else_does() -> anyhow::Result<()> {
    let served = Served::in_memory(&["--write-rate=1", "--read-rate=1000"]).await?;
    let (eager, calm) = (served.token("eager").await?, served.token("calm").await?);
    let mut refused = None;
    for _ in 0..40 {
        let answer = served.ask(Some(&eager), Method::POST, JOBS, Some(&json!({}))).await?;
        if answer.status == 429 {
            refused = Some(answer);
            break;
        }
    }
    let Some(refused) = refused else { anyhow::bail!("it was never refused") };
    ensure!(refused.refusal().1 == "Primus.00008" && refused.headers.contains_key("retry-after"), "{refused:?}");
    ensure!(
        served.ask(Some(&calm), Method::POST, JOBS, Some(&json!({}))).await?.status == 403,
        "another one is answered"
    );
    Ok(())
}
