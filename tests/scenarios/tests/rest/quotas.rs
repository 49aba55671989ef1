//! The quotas of callers whose rights cover only some namespaces. All accounts of a namespace share one quota.

use anyhow::{Context as _, ensure};
use http::Method;
use kube::api::{Api, ApiResource, DeleteParams, DynamicObject, GroupVersionKind, Patch, PatchParams, PostParams};
use oarlock_scenarios::test_cluster::patiently;
use oarlock_support::install;
use serde_json::{Value, json};

use super::served::{Answer, FAST, PEOPLE, Served};

const JOBS: &str = "/api/v1/opsjobs";
/// Half the number of jobs that a namespace may have.
const HALF: usize = 100;

fn jobs(served: &Served) -> Api<DynamicObject> {
    let kind = ApiResource::from_gvk(&GroupVersionKind::gvk("oarlock.dev", "v1alpha1", "OpsJob"));
    Api::all_with(served.admin.clone(), &kind)
}

/// Lets all accounts of the namespace `people` reboot the nodes of a workspace, and nothing else.
async fn has_workspace(served: &Served) -> anyhow::Result<()> {
    let nodes: Api<k8s_openapi::api::core::v1::Node> = Api::all(served.admin.clone());
    let label = json!({"metadata": {"labels": {"node-restriction.kubernetes.io/workspace": "team"}}});
    nodes.patch("node-2", &PatchParams::default(), &Patch::Merge(label)).await?;
    let rules =
        json!([{"apiGroups": ["oarlock.dev"], "resources": ["opsjobs", "opsjobs/reboot"], "verbs": ["create"]}]);
    let group = format!("system:serviceaccounts:{PEOPLE}");
    for document in [
        json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "team", "labels": {"oarlock.dev/node-operations": "true"}}}),
        json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role", "metadata": {"name": "ops", "namespace": "team"}, "rules": rules}),
        json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "RoleBinding", "metadata": {"name": "ops", "namespace": "team"},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "ops"},
            "subjects": [{"kind": "Group", "name": group, "apiGroup": "rbac.authorization.k8s.io"}]}),
    ] {
        install::apply(&served.admin, &document).await?;
    }
    Ok(())
}

fn reboot(ttl: i64) -> Value {
    json!({"name": "a", "type": "reboot", "inputs": [{"name": "workspace", "value": "team"}], "ttlSecondsAfterFinished": ttl})
}

async fn rehearse(served: &Served, token: &str, body: &Value) -> anyhow::Result<Answer> {
    served.ask(Some(token), Method::POST, &format!("{JOBS}?dryRun=All"), Some(body)).await
}

/// Waits until the quota has no room for a job. The server sees a job a moment after it is stored.
async fn until_over(served: &Served, token: &str) -> anyhow::Result<Answer> {
    let mut over = None;
    let refused = patiently("there is no room", async || {
        let answer = rehearse(served, token, &reboot(0)).await?;
        let is_over = answer.status == 429;
        over = Some(answer);
        Ok(is_over)
    });
    refused.await?;
    over.context("it was asked for")
}

/// Creates half the jobs that a namespace may have. They have ended, because their nodes do not exist. The given finalizers keep them.
async fn fill(served: &Served, account: &str, finalizers: &[&str]) -> anyhow::Result<()> {
    let jobs = jobs(served);
    for number in 0..HALF {
        let document = json!({"apiVersion": "oarlock.dev/v1alpha1", "kind": "OpsJob",
            "metadata": {"name": format!("{account}-{number}"), "finalizers": finalizers},
            "spec": {"type": "reboot", "inputs": [{"name": "node", "value": "nowhere"}],
                "requester": {"id": "u", "name": format!("system:serviceaccount:{PEOPLE}:{account}")}}});
        jobs.create(&PostParams::default(), &serde_json::from_value(document)?).await?;
    }
    patiently("all have ended and hold nothing", async || {
        let all = jobs.list(&Default::default()).await?;
        let own = |job: &DynamicObject| job.metadata.name.as_deref().is_some_and(|name| name.starts_with(account));
        let holds =
            |job: &DynamicObject| job.metadata.finalizers.iter().flatten().any(|one| one == "oarlock.dev/opsjob");
        let has_ended = |job: &DynamicObject| job.data.pointer("/status/finishedAt").is_some();
        Ok(all.iter().filter(|job| own(job)).all(|job| has_ended(job) && !holds(job)))
    })
    .await
}

/// Creates jobs and deletes them. A finalizer keeps them, so that no job can make room.
async fn fill_for_good(served: &Served, account: &str) -> anyhow::Result<()> {
    fill(served, account, &["example.com/keep"]).await?;
    for number in 0..HALF {
        jobs(served).delete(&format!("{account}-{number}"), &DeleteParams::default()).await?;
    }
    let path = format!("{account}-{}", HALF - 1);
    patiently("the last one is being deleted", async || {
        Ok(jobs(served).get(&path).await?.metadata.deletion_timestamp.is_some())
    })
    .await
}

async fn kept(served: &Served, account: &str) -> anyhow::Result<usize> {
    let all = jobs(served).list(&Default::default()).await?;
    Ok(all.iter().filter(|job| job.metadata.name.as_deref().is_some_and(|name| name.starts_with(account))).count())
}

#[tokio::test(flavor = "multi_thread")]
async fn accounts_of_one_namespace_share_its_quota_and_those_of_another_go_on() -> anyhow::Result<()> {
    let served = Served::in_memory(&FAST).await?;
    has_workspace(&served).await?;
    let (one, two) = (served.token("one").await?, served.token("two").await?);
    ensure!(rehearse(&served, &one, &reboot(0)).await?.status == 200, "there is room");
    fill_for_good(&served, "one").await?;
    let over = until_over(&served, &one).await?;
    let (status, code, words) = over.refusal();
    ensure!((status, code) == (429, "Primus.00008") && over.headers.contains_key("retry-after"), "{over:?}");
    ensure!(
        words.contains("people:one") && words.contains("100 of 100 OpsJobs") && words.contains("DELETE"),
        "{words}"
    );
    ensure!(rehearse(&served, &two, &reboot(0)).await?.status == 200, "another account has the other half");
    fill_for_good(&served, "two").await?;
    let three = served.token("three").await?;
    let over = until_over(&served, &three).await?;
    ensure!(over.status == 429 && over.refusal().2.starts_with("namespace people has 200 of 200"), "{over:?}");
    // A caller with rights in the whole cluster goes on, even an account of that namespace.
    let admin = served.token("admin").await?;
    let made = served.ask(Some(&admin), Method::POST, JOBS, Some(&reboot(-1))).await?;
    ensure!(made.status == 200, "{made:?}");
    let annotation = jobs(&served).get(made.text("/jobId")).await?.metadata.annotations.unwrap_or_default();
    ensure!(annotation.get("oarlock.dev/quota-key").is_some_and(|key| key == "none"), "{annotation:?}");
    ensure!(kept(&served, "one").await? == HALF, "nothing went");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn jobs_that_have_ended_make_room_for_others_of_the_same_account_once_the_history_has_them() -> anyhow::Result<()>
{
    let folder = std::env::temp_dir().join(format!("oarlock-quotas-{}", std::process::id()));
    let history = format!("--history=sqlite:{}", folder.join("history.db").display());
    let served = Served::in_memory(&[FAST[0], FAST[1], &history, "--max-ttl=60"]).await?;
    has_workspace(&served).await?;
    let (one, admin) = (served.token("one").await?, served.token("admin").await?);
    // The caller may ask for a time to live between 0 and `--max-ttl`.
    for ttl in [-1, 61] {
        let refused = rehearse(&served, &one, &reboot(ttl)).await?;
        ensure!(refused.status == 400 && refused.refusal().2.contains("0 to 60 s (--max-ttl)"), "{refused:?}");
        ensure!(rehearse(&served, &admin, &reboot(ttl)).await?.status == 200, "the admin may");
    }
    let mut labelled = reboot(0);
    labelled["inputs"] = json!([{"name": "workspace", "value": "team"}, {"name": "label", "value": "x".repeat(4_097)}]);
    for token in [&one, &admin] {
        let refused = rehearse(&served, token, &labelled).await?;
        ensure!(refused.status == 400, "a label has 4 KiB");
        ensure!(refused.refusal().2.contains("at most 4096 bytes, and this one has 4097"), "{refused:?}");
    }
    fill(&served, "one", &[]).await?;
    let mut made = None;
    let makes = patiently("the rows of some are stored, and they make room", async || {
        let answer = served.ask(Some(&one), Method::POST, JOBS, Some(&reboot(60))).await?;
        ensure!(matches!(answer.status, 200 | 429), "{answer:?}");
        let is_made = answer.status == 200;
        made = Some(answer);
        Ok(is_made)
    });
    makes.await?;
    let made = made.context("it was asked for")?;
    let left = kept(&served, "one").await?;
    ensure!((HALF / 2..HALF).contains(&left), "the oldest went, and no more than a tenth beside it: {left}");
    let job = jobs(&served).get(made.text("/jobId")).await?;
    let annotations = job.metadata.annotations.unwrap_or_default();
    ensure!(annotations.get("oarlock.dev/quota-key").is_some_and(|key| key == "namespace/people"), "{annotations:?}");
    let gone = served.ask(Some(&admin), Method::GET, &format!("{JOBS}?limit=200"), None).await?;
    ensure!(*gone.at("/totalCount") == json!(HALF + 1), "the history has what went: {gone:?}");
    drop(served);
    std::fs::remove_dir_all(folder).map_err(Into::into)
}
