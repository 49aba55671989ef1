//! `oarlock holds`: lists the holds of jobs on pods, and removes those that no job will remove.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::process::ExitCode;

use anyhow::Context as _;
use clap::Args;
use k8s_openapi::api::core::v1::Secret;
use kube::Client;
use kube::api::{Api, ApiResource, DynamicObject, GroupVersionKind, ListParams, Patch, PatchParams};
use kube::core::PartialObjectMeta;
use oarlock_core::object::api_object::{Kind, Object};
use oarlock_core::object::hold_keys::{HoldKeys, HoldOf};
use oarlock_core::operation_job::holds::{HELD, HOLD, IS_HELD, marks_in, release};
use oarlock_kube::transport::client::connect;
use oarlock_kube::{HOLD_KEYS, HOLD_SECRET};
use oarlock_view::escaped;
use serde::Serialize;
use serde_json::{Value, json};

use super::host::ClusterArgs;
use super::jobs::every_page;
use super::output::print;
use crate::manifests::HOST_NAMESPACE;

const EXAMPLES: &str = "\
Examples:
  oarlock holds -A                         every hold, with its pod and job, and whether a key of the host proves it
  oarlock holds -n shop --let-go           remove proved holds of deleted jobs in a namespace
  oarlock holds -A --job UID --let-go      remove proved holds of one job, which may still exist
  oarlock holds -A --unproved --let-go     remove holds of deleted jobs that no key proves, after you lost the key

The host removes its own holds. Use this command for holds that the host cannot remove: holds whose key is lost, and holds that
an earlier version of the host left. Read the list before you use --unproved --let-go. Anybody who may write a pod can write a
hold that no key proves, and the command then removes the labels, annotations and finalizers that this hold names.";

/// Arguments of `oarlock holds`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct HoldsArgs {
    /// Namespace [default: the namespace of the context]
    #[arg(short, long, value_name = "NAMESPACE", conflicts_with = "all_namespaces")]
    namespace: Option<String>,
    /// All namespaces
    #[arg(short = 'A', long)]
    all_namespaces: bool,
    /// Only holds of the job with this UID, also if the job no longer exists
    #[arg(long, value_name = "UID")]
    job: Option<String>,
    /// Only holds on the pod of this name
    #[arg(long, value_name = "NAME")]
    pod: Option<String>,
    /// Only holds that no key of the host proves
    #[arg(long)]
    unproved: bool,
    /// Remove the holds: without --unproved only holds that a key proves, and without --job only holds of jobs that no
    /// longer exist
    #[arg(long)]
    let_go: bool,
    /// Namespace of the host, where the Secret oarlock-holds is
    #[arg(long, value_name = "NAMESPACE", default_value = HOST_NAMESPACE)]
    host_namespace: String,
    /// Print JSON
    #[arg(short, long, value_enum)]
    output: Option<HoldsFormat>,
    #[command(flatten)]
    cluster: ClusterArgs,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum HoldsFormat {
    Json,
}

/// A hold in the list.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
struct FoundHold {
    namespace: String,
    pod: String,
    job_uid: String,
    /// Namespace and name of the job; `None` if the job no longer exists.
    job: Option<String>,
    marks: Vec<String>,
    /// Whether a key proves the hold; `None` if the keys cannot be read.
    proved: Option<bool>,
    /// The name of the key that proves the hold.
    #[serde(skip_serializing_if = "Option::is_none")]
    key: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    let_go: Option<bool>,
}

/// Lists the holds, and removes them if the arguments say so.
pub(crate) async fn run(args: HoldsArgs) -> anyhow::Result<ExitCode> {
    let (client, _server) = connect(&args.cluster.source()?).await?;
    let (keys, unread) = match keys(&client, &args.host_namespace).await {
        Ok(keys) => (Some(keys), None),
        Err(why) => (None, Some(format!("{why:#}"))),
    };
    let needs_keys = args.unproved || args.let_go;
    anyhow::ensure!(
        !needs_keys || keys.is_some(),
        "cannot check the holds without the keys: {}",
        unread.unwrap_or_default()
    );
    let pods: Api<DynamicObject> = if args.all_namespaces {
        Api::all_with(client.clone(), &pod_resource())
    } else {
        let namespace = args.namespace.as_deref().unwrap_or(client.default_namespace());
        Api::namespaced_with(client.clone(), namespace, &pod_resource())
    };
    let documents = documents(&pods).await?;
    // The jobs are read after the pods. A job is stored before it holds a pod, so a hold of an unknown job is of a
    // deleted job.
    let jobs = jobs(&client).await?;
    let mut found = Vec::new();
    let mut exit = ExitCode::SUCCESS;
    for mut document in documents {
        for mut hold in holds_of(&document, keys.as_ref(), &jobs) {
            let is_asked = args.job.as_ref().is_none_or(|uid| *uid == hold.job_uid)
                && args.pod.as_ref().is_none_or(|name| *name == hold.pod)
                && !(args.unproved && hold.proved != Some(false));
            if !is_asked {
                continue;
            }
            let is_meant = hold.proved == Some(!args.unproved) && (args.job.is_some() || hold.job.is_none());
            if args.let_go && is_meant {
                let seen = if args.unproved { document.clone() } else { proved_alone(&document, keys.as_ref()) };
                let taken_off = take_off(&client, &seen, &hold).await;
                hold.let_go = Some(taken_off.is_ok());
                match taken_off {
                    Ok(after) => document = after,
                    Err(why) => {
                        eprintln!("{}/{}: {}", hold.namespace, hold.pod, escaped(&format!("{why:#}")));
                        exit = ExitCode::FAILURE;
                    }
                }
            }
            found.push(hold);
        }
    }
    let text = match args.output {
        Some(HoldsFormat::Json) => serde_json::to_string_pretty(&found)? + "\n",
        None => table(&found, unread.as_deref()),
    };
    print(&text)?;
    Ok(exit)
}

fn pod_resource() -> ApiResource {
    ApiResource::erase::<k8s_openapi::api::core::v1::Pod>(&())
}

/// Reads the keys of the host.
async fn keys(client: &Client, namespace: &str) -> anyhow::Result<HoldKeys> {
    let secrets: Api<Secret> = Api::namespaced(client.clone(), namespace);
    let what = || format!("cannot read the Secret {HOLD_SECRET} in {namespace}, whose keys prove holds");
    let secret = secrets.get(HOLD_SECRET).await.with_context(what)?;
    let data = secret.data.unwrap_or_default();
    let keys = HoldKeys::of(HOLD_KEYS.iter().filter_map(|name| data.get(*name)).map(|key| key.0.as_slice()));
    anyhow::ensure!(
        !keys.is_empty(),
        "the Secret {HOLD_SECRET} in {namespace} has no key: the host that leads makes the first one"
    );
    Ok(keys)
}

/// Returns namespace and name of each job, by its UID.
async fn jobs(client: &Client) -> anyhow::Result<HashMap<String, String>> {
    let Kind { api_version, kind } = Kind::job();
    let (group, version) = api_version.split_once('/').unwrap_or(("", &api_version));
    let resource = ApiResource::from_gvk(&GroupVersionKind::gvk(group, version, &kind));
    let jobs: Api<DynamicObject> = Api::all_with(client.clone(), &resource);
    let named = |job: PartialObjectMeta<DynamicObject>| {
        let name = format!("{}/{}", job.metadata.namespace?, job.metadata.name?);
        Some((job.metadata.uid?, name))
    };
    let listed = every_page(async |page: &ListParams| jobs.list_metadata(page).await, named).await;
    Ok(listed.context("cannot list the OperationJobs of all namespaces")?.into_iter().collect())
}

/// Returns the metadata of all pods with an annotation that looks like a hold.
async fn documents(pods: &Api<DynamicObject>) -> anyhow::Result<Vec<Value>> {
    let document = |pod: PartialObjectMeta<DynamicObject>| {
        let is_held = pod.metadata.annotations.iter().flatten().any(|(key, _)| key.starts_with(HOLD));
        is_held.then(|| json!({"metadata": pod.metadata}))
    };
    every_page(async |page: &ListParams| pods.list_metadata(page).await, document).await.context("cannot list pods")
}

fn text<'a>(document: &'a Value, pointer: &str) -> &'a str {
    document.pointer(pointer).and_then(Value::as_str).unwrap_or_default()
}

/// Returns the holds of a pod, proved or not.
fn holds_of(document: &Value, keys: Option<&HoldKeys>, jobs: &HashMap<String, String>) -> Vec<FoundHold> {
    let (namespace, pod) = (text(document, "/metadata/namespace"), text(document, "/metadata/uid"));
    let annotations = document.pointer("/metadata/annotations").and_then(Value::as_object).into_iter().flatten();
    let holds = annotations.filter_map(|(key, text)| Some((key.strip_prefix(HOLD)?, text.as_str()?)));
    let found = holds.map(|(job, list)| {
        let prover = keys.map(|keys| keys.prover(HoldOf { job, namespace, pod }, list));
        FoundHold {
            namespace: namespace.to_owned(),
            pod: text(document, "/metadata/name").to_owned(),
            job_uid: job.to_owned(),
            job: jobs.get(job).cloned(),
            marks: marks_in(list).into_iter().collect(),
            proved: prover.map(|prover| prover.is_some()),
            key: prover.flatten().and_then(|place| HOLD_KEYS.get(place).copied()),
            let_go: None,
        }
    });
    found.collect()
}

/// Returns the pod without the holds that no key proves. An unproved hold must not keep a mark of a hold that the
/// command removes.
fn proved_alone(document: &Value, keys: Option<&HoldKeys>) -> Value {
    let mut document = document.clone();
    let unproved = holds_of(&document, keys, &HashMap::new()).into_iter().filter(|hold| hold.proved != Some(true));
    let unproved: Vec<String> = unproved.map(|hold| format!("{HOLD}{}", hold.job_uid)).collect();
    if let Some(annotations) = document.pointer_mut("/metadata/annotations").and_then(Value::as_object_mut) {
        annotations.retain(|key, _| !unproved.contains(key));
    }
    document
}

/// Removes a hold, with all marks that no other hold lists. Returns the changed pod.
async fn take_off(client: &Client, document: &Value, hold: &FoundHold) -> anyhow::Result<Value> {
    let Some(body) = patch_of(document, &hold.job_uid) else { return Ok(document.clone()) };
    let pods: Api<DynamicObject> = Api::namespaced_with(client.clone(), &hold.namespace, &pod_resource());
    let options = PatchParams::default();
    let patched = if body.is_array() {
        pods.patch(&hold.pod, &options, &Patch::<()>::Json(serde_json::from_value(body)?)).await
    } else {
        pods.patch(&hold.pod, &options, &Patch::Merge(body)).await
    };
    match patched {
        Ok(pod) => Ok(json!({"metadata": pod.metadata})),
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(document.clone()),
        Err(error) => Err(error).context("cannot take off the hold"),
    }
}

/// Returns the patch that removes a hold.
fn patch_of(document: &Value, job: &str) -> Option<Value> {
    let is_labelled =
        document.pointer("/metadata/labels").is_some_and(|labels| labels.get(HELD).is_some_and(|held| held == IS_HELD));
    // The label marks the holds as real: here an admin vouches for them.
    let mut held = document.clone();
    held.pointer_mut("/metadata")?.as_object_mut()?.entry("labels").or_insert_with(|| json!({}))[HELD] = json!(IS_HELD);
    let mut body = release(&Object::slim(&held, &Kind::pod(), &[])?, job)?;
    if let Some(steps) = body.as_array_mut().filter(|_| !is_labelled) {
        steps.retain(|step| !text(step, "/path").starts_with("/metadata/labels/"));
    }
    Some(body)
}

fn table(found: &[FoundHold], unread: Option<&str>) -> String {
    let rows = found.iter().map(|hold| {
        let proved = match (hold.proved, hold.key) {
            (Some(true), Some("previous")) => "by previous",
            (Some(true), _) => "yes",
            (Some(false), _) => "no",
            (None, _) => "?",
        };
        let job = hold.job.clone().unwrap_or_else(|| format!("gone ({})", hold.job_uid));
        let marks = if hold.marks.is_empty() { "-".to_owned() } else { hold.marks.join(",") };
        let marks = match hold.let_go {
            Some(true) => format!("{marks} (taken off)"),
            Some(false) => format!("{marks} (failed)"),
            None => marks,
        };
        // A user who may write pods could put terminal control characters into these texts.
        [format!("{}/{}", hold.namespace, hold.pod), job, proved.to_owned(), marks]
            .map(|cell| escaped(&cell).into_owned())
    });
    let header = ["POD", "JOB", "PROVED", "MARKS"].map(str::to_owned);
    let rows: Vec<[String; 4]> = std::iter::once(header).chain(rows).collect();
    let mut text = String::new();
    if found.is_empty() {
        text.push_str("no pod is held\n");
    } else {
        let width = |column: usize| {
            rows.iter().filter_map(|row| row.get(column)).map(|cell| cell.chars().count()).max().unwrap_or(0)
        };
        let [pod, job, proved] = [width(0), width(1), width(2)];
        for [a, b, c, d] in &rows {
            // Writing to a string cannot fail.
            let _ = writeln!(text, "{a:pod$}  {b:job$}  {c:proved$}  {d}");
        }
    }
    unread.into_iter().for_each(|why| text.push_str(&format!("whether they are proved is not known: {why}\n")));
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(labels: Value) -> Value {
        json!({"metadata": {"name": "a", "namespace": "d", "uid": "u", "resourceVersion": "5", "labels": labels, "finalizers": ["f"],
            "annotations": {"hold.oarlock.dev/j": "[\"finalizer:f\",\"label:l\",\"mac:x\"]", "other": "[]"}}})
    }

    #[test]
    fn a_hold_is_listed_with_its_marks_whoever_wrote_it() {
        let keys = HoldKeys::of([[7_u8; 32].as_slice()]);
        let jobs = HashMap::from([("j".to_owned(), "d/job".to_owned())]);
        let found = holds_of(&pod(json!({})), Some(&keys), &jobs);
        let [hold] = found.as_slice() else { panic!("{found:?}") };
        assert_eq!(
            (hold.marks.join(" "), hold.proved, hold.job.as_deref()),
            ("finalizer:f label:l".into(), Some(false), Some("d/job"))
        );
        let text = table(&found, Some("why"));
        assert!(
            text.contains("d/a  d/job  no      finalizer:f,label:l\n") && text.contains("not known: why"),
            "{text}"
        );
        assert_eq!(table(&[], None), "no pod is held\n");
        let forged = FoundHold { marks: vec!["label:a\nd/b  d/job  yes  -\u{1b}[2J".to_owned()], ..found[0].clone() };
        assert_eq!(table(&[forged], None).lines().count(), 2, "nobody writes a row of his own");
    }

    #[test]
    fn an_admin_lets_go_of_a_hold_whether_its_pod_is_labelled_and_terminating_or_not() {
        let body = patch_of(&pod(json!({"l": "x"})), "j").unwrap();
        assert_eq!(body["metadata"]["finalizers"], json!([]));
        assert_eq!(body["metadata"]["labels"]["l"], Value::Null);
        for (labels, steps) in [(json!({}), 5), (json!({HELD: IS_HELD}), 6)] {
            let mut terminating = pod(labels);
            terminating["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
            assert_eq!(patch_of(&terminating, "j").unwrap().as_array().map(Vec::len), Some(steps));
        }
        assert_eq!(patch_of(&pod(json!({})), "k"), None);
    }
}
