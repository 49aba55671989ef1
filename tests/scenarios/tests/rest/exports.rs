//! The image of a workload, exported by REST: between real registries on a real control plane, and in memory.

use std::time::Duration;

use anyhow::{Context as _, ensure};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use http::{Method, Request};
use k8s_openapi::api::core::v1::{Event, Pod, Secret};
use kube::api::{Api, DynamicObject, ListParams, PostParams};
use kube::core::{ApiResource, GroupVersionKind};
use oarlock::manifests::{HostAccount, export_role};
use oarlock_registry::{Credentials, Destination, ImageCopy, Registries};
use oarlock_scenarios::image_registry::LocalRegistry;
use oarlock_scenarios::test_cluster::patiently;
use oarlock_support::install;
use serde_json::{Value, json};

use super::registry_server::{PASSWORD, Server, USER};
use super::served::{Answer, FAST, PEOPLE, Served};

const JOBS: &str = "/api/v1/opsjobs";

fn export(workload: &str) -> Value {
    json!({"name": "export-workload-image", "type": "exportimage", "inputs": [{"name": "workload", "value": workload}],
        "timeoutSecond": 3600})
}

async fn ended(served: &Served, token: &str, made: &Answer) -> anyhow::Result<Answer> {
    ensure!(made.status == 200, "{made:?}");
    served.until(token, made.text("/jobId"), |job| matches!(job.text("/phase"), "Succeeded" | "Failed")).await
}

async fn secret(served: &Served, (namespace, name): (&str, &str), registry: &str) -> anyhow::Result<()> {
    let auth = STANDARD.encode(format!("{USER}:{PASSWORD}"));
    let config = json!({"auths": {registry: {"auth": auth}}}).to_string();
    let secret = json!({"metadata": {"name": name}, "type": "kubernetes.io/dockerconfigjson", "stringData": {".dockerconfigjson": config}});
    let secrets: Api<Secret> = Api::namespaced(served.admin.clone(), namespace);
    secrets.create(&PostParams::default(), &serde_json::from_value(secret)?).await.map(drop).map_err(Into::into)
}

async fn runs(served: &Served, image: &str) -> anyhow::Result<()> {
    let pods: Api<Pod> = Api::namespaced(served.admin.clone(), PEOPLE);
    let pod = json!({"metadata": {"name": "app"}, "spec": {"imagePullSecrets": [{"name": "pull"}, {"name": "gone"}],
        "containers": [{"name": "c", "image": image}]}});
    pods.create(&PostParams::default(), &serde_json::from_value(pod)?).await?;
    patiently("the pod runs", async || {
        let status = pods.get("app").await?.status;
        Ok(status.and_then(|status| status.phase).as_deref() == Some("Running"))
    })
    .await
}

fn between(source: &str, target: &str) -> ImageCopy {
    ImageCopy {
        source: source.to_owned(),
        source_credentials: Vec::new(),
        hosts: Vec::new(),
        target: Destination { image: target.to_owned(), ..Destination::default() },
        otherwise: "other".to_owned(),
        source_base: None,
        runs: None,
        available: false,
    }
}

fn credentials() -> Credentials {
    Credentials { username: USER.into(), password: PASSWORD.into() }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_image_is_copied_between_registries_with_the_secrets_that_the_caller_may_read() -> anyhow::Result<()> {
    let (source, target, memory) = (Server::private(), Server::closed(), LocalRegistry::start()?);
    let image = format!("{}/team/app:1", source.address);
    let mut push = between(&format!("{}/made/up:1", memory.address), &image);
    push.target.credentials = Some(credentials());
    let pushed = Registries::new()?.copy(&push, |_| {}).await?;
    let folder = std::env::temp_dir().join(format!("oarlock-export-ca-{}", std::process::id()));
    std::fs::write(&folder, target.ca.as_deref().context("it has an authority")?)?;
    let (registry, ca) = (format!("--export-registry={}", target.address), format!("--export-ca={}", folder.display()));
    let served = Served::real(&[FAST[0], FAST[1], &registry, &ca, "--export-secret=push"]).await?;
    for document in install::documents(&export_role("push", &HostAccount::default())?)? {
        install::apply(&served.admin, &document).await?;
    }
    secret(&served, ("oarlock-system", "push"), &target.address).await?;
    secret(&served, (PEOPLE, "pull"), &source.address).await?;
    runs(&served, &image).await?;
    let rules = |more: Value| {
        let own = json!({"apiGroups": ["oarlock.dev"], "resources": ["opsjobs", "opsjobs/exportimage"], "verbs": ["create", "get"]});
        let pods = json!({"apiGroups": [""], "resources": ["pods"], "verbs": ["get"]});
        [own, pods].into_iter().chain(more.as_array().cloned().unwrap_or_default()).collect::<Value>()
    };
    served.allow("stranger", &rules(json!([]))).await?;
    let secrets = json!([{"apiGroups": [""], "resources": ["secrets"], "resourceNames": ["pull"], "verbs": ["get"]}]);
    served.allow("owner", &rules(secrets)).await?;
    let (stranger, owner) = (served.token("stranger").await?, served.token("owner").await?);

    // The plugin has no grant for that registry yet.
    let made = served.ask(Some(&owner), Method::POST, JOBS, Some(&export("people/pod/app"))).await?;
    let job = ended(&served, &owner, &made).await?;
    let told = job.body.to_string();
    ensure!(job.text("/phase") == "Failed" && told.contains("is not granted to plugin exportimage"), "{job:?}");
    served.grant(&format!(
        "apiVersion: oarlock.dev/v1alpha1\nkind: ActionPlugin\nmetadata: {{name: exportimage}}\nspec:\n  anyVersion: true\n  \
         namespaces: [people]\n  tasks: [{{name: copy-image, registries: [\"{}\"]}}]\n",
        source.address
    ))?;

    // Without permission to read the Secret, the host pulls the image without credentials.
    let body = export("people/pod/app");
    let refused = patiently("the grant is read", async || {
        let made = served.ask(Some(&stranger), Method::POST, JOBS, Some(&body)).await?;
        let job = ended(&served, &stranger, &made).await?;
        Ok(job.output("message").contains("not exported") && job.body.to_string().contains("Unauthorized"))
    });
    refused.await?;
    // A workload can be named without its place if the caller may read only one workload of that name.
    let made = served.ask(Some(&owner), Method::POST, JOBS, Some(&export("app"))).await?;
    let job = ended(&served, &owner, &made).await?;
    ensure!(job.text("/phase") == "Succeeded" && job.output("status") == "completed", "{job:?}");
    ensure!(job.output("digest") == pushed.digest, "{job:?} {pushed:?}");
    let inputs = job.at("/inputs").to_string();
    ensure!(inputs.contains(&json!({"name": "image", "value": image}).to_string()), "{inputs}");
    let place = format!("{}/custom/{}/team/app:", target.address, source.address.replace(':', "-"));
    ensure!(job.output("target").starts_with(&place), "{job:?}");

    // The other registry has the whole image.
    let back = ImageCopy {
        source_credentials: vec![credentials()],
        source_base: Some(format!("https://{}", target.address)),
        ..between(job.output("target"), &format!("{}/custom/back:1", memory.address))
    };
    let client = Registries::new()?.trusting(target.ca.as_deref().context("it has an authority")?)?;
    ensure!(client.copy(&back, |_| {}).await?.digest == pushed.digest, "it is another image");

    // With kubectl, the API server checks the writer's permission for each Secret.
    let spec = json!({"type": "exportimage", "inputs": [{"name": "workload", "value": "people/pod/app"}],
        "pullSecrets": [{"namespace": PEOPLE, "name": "pull"}]});
    for (who, is_made) in [("stranger", false), ("owner", true)] {
        let body = json!({"apiVersion": "oarlock.dev/v1alpha1", "kind": "OpsJob", "metadata": {"name": format!("of-{who}")}, "spec": spec});
        let request = Request::post("/apis/oarlock.dev/v1alpha1/opsjobs").header("content-type", "application/json");
        let request = request.header("impersonate-user", format!("system:serviceaccount:{PEOPLE}:{who}"));
        let made = served.admin.request_text(request.body(body.to_string().into_bytes())?).await;
        match made {
            Ok(_) => ensure!(is_made, "{who} made it"),
            Err(error) => {
                ensure!(!is_made && error.to_string().contains("may not get each of these Secrets"), "{error}")
            }
        }
    }
    let resource = ApiResource::from_gvk(&GroupVersionKind::gvk("oarlock.dev", "v1alpha1", "OpsJob"));
    let jobs: Api<DynamicObject> = Api::all_with(served.admin.clone(), &resource);
    patiently("it ends well", async || {
        let job = jobs.get("of-owner").await?;
        Ok(job.data.pointer("/status/phase").is_some_and(|phase| phase == "Succeeded"))
    })
    .await?;
    let _gone = std::fs::remove_file(&folder);
    no_password(&served, &jobs).await
}

/// Fails if the password is in an argument, variable, log, event, job, record or status.
async fn no_password(served: &Served, jobs: &Api<DynamicObject>) -> anyhow::Result<()> {
    // Events and log lines can be late.
    tokio::time::sleep(Duration::from_secs(1)).await;
    let process = format!("/proc/{}", served.child.id());
    let files = [process.clone() + "/cmdline", process + "/environ", served.log().display().to_string()];
    let mut texts = Vec::new();
    for file in files {
        texts.push((file.clone(), String::from_utf8_lossy(&std::fs::read(&file)?).into_owned()));
    }
    let all = ListParams::default();
    let events: Api<Event> = Api::all(served.admin.clone());
    texts.push(("events".to_owned(), serde_json::to_string(&events.list(&all).await?.items)?));
    texts.push(("jobs".to_owned(), serde_json::to_string(&jobs.list(&all).await?.items)?));
    for (group, kind) in [("apps.kusionstack.io", "OperationJob"), ("oarlock.dev", "OperationRecord")] {
        let resource = ApiResource::from_gvk(&GroupVersionKind::gvk(group, "v1alpha1", kind));
        let of_kind: Api<DynamicObject> = Api::all_with(served.admin.clone(), &resource);
        texts.push((kind.to_owned(), of_kind.list(&all).await.map(|list| serde_json::to_string(&list.items))??));
    }
    let secrets = [PASSWORD.to_owned(), STANDARD.encode(format!("{USER}:{PASSWORD}"))];
    for (place, text) in texts {
        ensure!(!secrets.iter().any(|secret| text.contains(secret)), "the password is in {place}");
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cluster_in_memory_has_a_registry_to_export_to() -> anyhow::Result<()> {
    let served = Served::in_memory(&FAST).await?;
    let admin = served.token("admin").await?;
    let made = served.ask(Some(&admin), Method::POST, JOBS, Some(&export("default/deployment/web"))).await?;
    let job = ended(&served, &admin, &made).await?;
    ensure!(job.text("/phase") == "Succeeded" && job.output("target").contains("/custom/"), "{job:?}");
    let mut other = export("default/deployment/web");
    let inputs = other.get_mut("inputs").and_then(Value::as_array_mut).context("inputs")?;
    inputs.push(json!({"name": "container", "value": "side"}));
    let refused = served.ask(Some(&admin), Method::POST, JOBS, Some(&other)).await?;
    let (status, _, message) = refused.refusal();
    ensure!(status == 400 && message.contains("has no container side: it has"), "{refused:?}");
    Ok(())
}
