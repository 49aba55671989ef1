//! The pods and ConfigMaps of tasks, as documents.
//!
//! Takes a task and its target; yields the pod that runs the task, from the host's own template. The values of a plugin
//! are only data in the pod. A script is a file in the pod, from a ConfigMap (`requests::scripts`), and never an
//! argument. May not decide whether the pod is made.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Map, Value, json};
use sha2::{Digest, Sha256};

use crate::object::task_pod::{CONTAINER, JOB_UID, TARGET_INDEX, TASK, TASK_KIND};
use crate::operation_job::round::context::Target;
use crate::operation_job::tasks::settings::CommitRegistry;
use crate::plugin::host_path::covered_in;
use crate::plugin::names::mebibytes;
use crate::plugin::task::{CheckPod, CommitContainer, RunOnNode, ScriptSource, TASK_DIRECTORY, Task, TaskRequest};
use crate::requests::scripts::{self, SCRIPT, sha256};

/// Annotation of a pod that names the host's own command in it.
pub(crate) const BUILTIN: &str = "oarlock.dev/builtin";
/// Annotation that names the job, for people.
pub(crate) const JOB: &str = "oarlock.dev/job";

/// Name of the script file in its directory.
const SCRIPT_FILE: &str = "script";
/// Directory of the registry's Secret in the pod of a task.
const REGISTRY_DIRECTORY: &str = "/registry";
/// Seconds that a command has to end after it is asked to end.
const GRACE_SECONDS: u32 = 10;
/// Seconds that a pod may take beyond the command's timeout before the kubelet ends it. The command on the node ends
/// itself earlier.
const SLACK_SECONDS: u32 = 60;

/// Resources that a check requests if its `resources` do not name them. `LIMITS` bounds their use, so that no check
/// takes a node from the pods that run there.
const REQUESTS: [(&str, &str); 3] = [("cpu", "100m"), ("memory", "64Mi"), ("ephemeral-storage", "64Mi")];
const LIMITS: [(&str, &str); 3] = [("cpu", "1"), ("memory", "512Mi"), ("ephemeral-storage", "1Gi")];

/// Returns the name of a task's pod, which is also the ID of its command on the node. One job, target and task name
/// always give the same name.
pub(crate) fn pod_name(job_uid: &str, target: &str, task: &str) -> String {
    let hash = Sha256::digest(json!([job_uid, target, task]).to_string().as_bytes());
    let hex: String = hash.iter().take(10).map(|byte| format!("{byte:02x}")).collect();
    format!("oarlock-run-{hex}")
}

fn script_path() -> String {
    format!("{TASK_DIRECTORY}/{SCRIPT_FILE}")
}

/// Returns the digest of a task's script.
fn digest_of(task: &Task) -> Option<String> {
    task.script().map(|script| match script {
        ScriptSource::Text(text) => sha256(text),
        ScriptSource::Stored(digest) => digest.as_str().to_owned(),
    })
}

impl Target<'_> {
    /// Returns the pod that runs a task.
    pub(crate) fn task_document(&self, request: &TaskRequest, task: &Task, count: usize) -> Value {
        let digest = digest_of(task);
        let mut spec = match task {
            Task::RunOnNode(run) => self.run_on_node(request, run, digest.as_deref()),
            Task::CheckPod(check) => self.check_pod(check, count),
            Task::CollectLogs | Task::CopyImage(_) | Task::ExportImage => json!({}),
        };
        let script = digest.as_deref().map(scripts::name_of);
        let mut annotations = Map::from_iter([(JOB.to_owned(), json!(self.round.job.key.to_string()))]);
        if let Task::RunOnNode(RunOnNode { builtin: Some(builtin), .. }) = task {
            annotations.insert(BUILTIN.to_owned(), json!(builtin.word()));
        }
        if let Some(name) = &script {
            let source = json!({"name": name, "items": [{"key": scripts::TEXT, "path": SCRIPT_FILE}]});
            push(&mut spec, "/volumes", json!({"name": "script", "configMap": source}));
            push(
                &mut spec,
                "/containers/0/volumeMounts",
                json!({"name": "script", "mountPath": TASK_DIRECTORY, "readOnly": true}),
            );
        }
        let mut metadata = self.task_metadata(&request.name);
        if let Some(fields) = metadata.as_object_mut() {
            fields.insert("annotations".to_owned(), Value::Object(annotations));
        }
        if let Some(labels) = metadata.pointer_mut("/labels").and_then(Value::as_object_mut) {
            labels.insert(TASK_KIND.to_owned(), json!(request.kind));
            labels.extend(script.map(|name| (SCRIPT.to_owned(), json!(name))));
        }
        json!({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec})
    }

    /// Returns the object of a task of the host: its kind, its arguments and its target.
    pub(crate) fn host_task_document(&self, request: &TaskRequest) -> Value {
        let mut metadata = self.task_metadata(&request.name);
        if let Some(labels) = metadata.pointer_mut("/labels").and_then(Value::as_object_mut) {
            labels.insert(TASK_KIND.to_owned(), json!(request.kind));
        }
        let target = json!({"namespace": self.key.namespace, "name": self.name, "uid": self.stored.uid});
        let made = self.round.object.metadata.creation_timestamp.as_ref();
        let until = made.map(|made| made.0.to_string());
        let plugin = self.round.serving();
        let hosts = plugin.map(|plugin| plugin.grant.hosts_of_copies()).unwrap_or_default();
        let plugin = plugin.map(|plugin| {
            json!({"name": plugin.manifest.name, "manifest": plugin.manifest.tasks, "grant": plugin.grant.tasks})
        });
        let spec = json!({"kind": request.kind, "arguments": request.arguments, "target": target, "until": until, "hosts": hosts,
            "jobName": self.round.job.key.name, "plugin": plugin});
        json!({"metadata": metadata, "spec": spec})
    }

    /// Returns the ConfigMap that keeps the output of a task until its job goes.
    pub(crate) fn output_document(&self, task: &str, output: &str) -> Value {
        json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": self.task_metadata(task), "data": {"output": output}})
    }

    fn task_metadata(&self, task: &str) -> Value {
        json!({"name": pod_name(&self.round.job.uid, self.name, task), "namespace": self.round.tasks.namespace,
            "labels": {"app.kubernetes.io/name": "oarlock", JOB_UID: self.round.job.uid,
                TARGET_INDEX: self.index.to_string(), TASK: task}})
    }

    /// Returns the spec of a privileged pod, placed directly on its node, whose only program is the host's own.
    fn run_on_node(&self, request: &TaskRequest, run: &RunOnNode, digest: Option<&str>) -> Value {
        let id = pod_name(&self.round.job.uid, self.name, &request.name);
        let mut command = vec!["/oarlock".to_owned(), "node-exec".to_owned(), "--id".to_owned(), id];
        command.extend(["--timeout-seconds".to_owned(), run.timeout_seconds.to_string()]);
        if let Some(boot_id) = &run.expect_boot_id {
            command.extend(["--expect-boot-id".to_owned(), boot_id.clone()]);
        }
        if let (Some(script), Some(digest)) = (&run.script, digest) {
            command.extend(["--script".to_owned(), script_path(), "--sha256".to_owned()]);
            command.extend([digest.to_owned(), "--interpreter".to_owned(), script.interpreter.clone()]);
        }
        if let Some(builtin) = run.builtin {
            command.extend(["--builtin".to_owned(), builtin.word().to_owned()]);
        }
        let exports = self.round.tasks.exports.as_ref().filter(|_| run.commit.is_some());
        if let (Some(commit), Some(exports)) = (&run.commit, exports) {
            command.extend(self.of_commit(commit, exports));
        }
        let mut spec = json!({"nodeName": self.node(), "hostPID": true, "hostNetwork": true, "restartPolicy": "Never",
            "priorityClassName": "system-node-critical", "automountServiceAccountToken": false, "enableServiceLinks": false,
            "terminationGracePeriodSeconds": GRACE_SECONDS,
            "activeDeadlineSeconds": run.timeout_seconds.saturating_add(SLACK_SECONDS),
            "tolerations": [{"operator": "Exists"}],
            "containers": [{"name": CONTAINER, "image": self.round.tasks.image, "command": command,
                "securityContext": {"privileged": true, "runAsUser": 0, "runAsGroup": 0}}]});
        if let Some((secret, exports)) = exports.and_then(|exports| Some((exports.secret.as_ref()?, exports))) {
            // The files are in memory on the node, and go with the pod. Without the Secret, the registry says what it
            // wants.
            let authorities = format!("certs.d/{}/ca.crt", exports.registry);
            let files = [(".dockerconfigjson", "config.json"), ("ca.crt", authorities.as_str())];
            let items: Vec<Value> = files.iter().map(|(key, path)| json!({"key": key, "path": path})).collect();
            let source = json!({"secretName": secret, "defaultMode": 0o400, "optional": true, "items": items});
            push(&mut spec, "/volumes", json!({"name": "registry", "secret": source}));
            let mount = json!({"name": "registry", "mountPath": REGISTRY_DIRECTORY, "readOnly": true});
            push(&mut spec, "/containers/0/volumeMounts", mount);
        }
        spec
    }

    /// Returns the arguments of `node-exec` for a commit. None of them is secret.
    fn of_commit(&self, commit: &CommitContainer, exports: &CommitRegistry) -> Vec<String> {
        let CommitContainer { container, target } = commit;
        let (uid, registry) = (self.stored.uid.as_deref().unwrap_or_default(), &exports.registry);
        let image = format!("{registry}/{target}");
        let words = [("pod-uid", uid), ("container", container), ("image", &image)];
        let hosts = exports.hosts.iter().map(|host| ("registry-host", host.as_str()));
        let secret = exports.secret.iter().map(|_| ("registry-secret", REGISTRY_DIRECTORY));
        let all = words.into_iter().chain(hosts).chain(secret);
        all.flat_map(|(name, value)| [format!("--{name}"), value.to_owned()]).collect()
    }

    /// Returns the spec of an unprivileged pod without a token, which the scheduler puts on its node.
    fn check_pod(&self, check: &CheckPod, count: usize) -> Value {
        let own = [
            ("OARLOCK_NODE_NAME", self.name.to_owned()),
            ("OARLOCK_JOB_ID", self.round.job.uid.clone()),
            ("OARLOCK_NODE_INDEX", self.index.to_string()),
            ("OARLOCK_NODE_COUNT", count.to_string()),
        ];
        let asked = check.env.iter().filter(|(key, _)| own.iter().all(|(name, _)| name != key));
        // Kubernetes replaces `$(NAME)` by a variable, and reads `$$` as a plain `$`.
        let env = asked.map(|(key, value)| json!({"name": key, "value": value.replace('$', "$$")}));
        let env: Vec<Value> =
            env.chain(own.iter().map(|(name, value)| json!({"name": name, "value": value}))).collect();
        let command = match check.script {
            Some(_) => vec!["/bin/sh".to_owned(), script_path()],
            None => check.command.clone(),
        };
        let mut container = json!({"name": CONTAINER, "image": check.image, "env": env,
            "resources": {"requests": amounts(check, REQUESTS), "limits": amounts(check, LIMITS)},
            "terminationMessagePolicy": "FallbackToLogsOnError",
            "securityContext": {"privileged": false, "allowPrivilegeEscalation": false,
                "capabilities": {"drop": ["ALL"], "add": check.capabilities}}});
        if let Some(fields) = container.as_object_mut() {
            for (field, words) in [("command", &command), ("args", &check.args)] {
                if !words.is_empty() {
                    fields.insert(field.to_owned(), json!(words));
                }
            }
        }
        let named = json!({"matchFields": [{"key": "metadata.name", "operator": "In", "values": [self.name]}]});
        let required = json!({"nodeSelectorTerms": [named]});
        let mut spec = json!({"restartPolicy": "Never", "automountServiceAccountToken": false, "enableServiceLinks": false,
            "terminationGracePeriodSeconds": GRACE_SECONDS, "activeDeadlineSeconds": check.timeout_seconds,
            "affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}},
            "securityContext": {"seccompProfile": {"type": "RuntimeDefault"}}, "containers": [container]});
        if let (true, Some(fields)) = (check.tolerate_all, spec.as_object_mut()) {
            fields.insert("tolerations".to_owned(), json!([{"operator": "Exists"}]));
        }
        for (number, (mut mount, mut volume)) in volumes(check).enumerate() {
            for fields in [&mut mount, &mut volume].into_iter().filter_map(Value::as_object_mut) {
                fields.insert("name".to_owned(), json!(format!("volume-{number}")));
            }
            push(&mut spec, "/volumes", volume);
            push(&mut spec, "/containers/0/volumeMounts", mount);
        }
        spec
    }
}

/// Returns the resource amounts of a check: those that it names, and `others` for the rest. Its `/dev/shm` counts as
/// memory too.
fn amounts(check: &CheckPod, others: [(&str, &str); 3]) -> BTreeMap<String, String> {
    let shared = check.shared_memory.as_deref().and_then(mebibytes).unwrap_or(0);
    let with_shared = |name: &str, amount: &str| match mebibytes(amount).filter(|_| name == "memory" && shared > 0) {
        Some(own) => format!("{}Mi", own.saturating_add(shared)),
        None => amount.to_owned(),
    };
    let others = others.into_iter().map(|(name, amount)| (name.to_owned(), with_shared(name, amount)));
    others.chain(check.resources.clone()).collect()
}

/// Returns the volumes of a check beside its script. Each is a mount and a volume, both without their name.
fn volumes(check: &CheckPod) -> impl Iterator<Item = (Value, Value)> {
    let shared = check.shared_memory.iter().map(|size| {
        let mount = json!({"mountPath": "/dev/shm", "readOnly": false});
        (mount, json!({"emptyDir": {"medium": "Memory", "sizeLimit": size}}))
    });
    let paths = check.host_paths.iter().map(|path| {
        // Otherwise the check could write to filesystems that are mounted below the path on the node.
        let mount = json!({"mountPath": path, "readOnly": true, "recursiveReadOnly": "IfPossible"});
        (mount, json!({"hostPath": {"path": path, "type": "Directory"}}))
    });
    let covered: BTreeSet<&str> = check.host_paths.iter().flat_map(|path| covered_in(path)).collect();
    let covers = covered
        .into_iter()
        .map(|path| (json!({"mountPath": path, "readOnly": true}), json!({"emptyDir": {"sizeLimit": "1Mi"}})));
    shared.chain(paths).chain(covers)
}

/// Adds an item to the list at a pointer. The parent of the list must exist.
fn push(document: &mut Value, pointer: &str, item: Value) {
    let Some((parent, field)) = pointer.rsplit_once('/') else { return };
    let parent = document.pointer_mut(parent).and_then(Value::as_object_mut);
    let list = parent.map(|parent| parent.entry(field).or_insert_with(|| json!([])));
    if let Some(list) = list.and_then(Value::as_array_mut) {
        list.push(item);
    }
}
