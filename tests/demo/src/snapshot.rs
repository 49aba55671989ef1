//! One moment of the cluster as a user sees it: pods or nodes, and the targets of a job, as rows of text. Pure.

use oarlock_sim::world::labels;
use serde_json::{Map, Value};

/// One moment.
#[derive(Clone, Debug, Default)]
pub(crate) struct Snapshot {
    /// The pods of an app, oldest first, or the nodes: their names, and their rows.
    objects: Vec<(String, String)>,
    /// The word for the objects.
    noun: &'static str,
    /// The targets of the job, in its order.
    pub(crate) targets: Vec<Target>,
    /// `status.progress` of the job. It is empty before the first status.
    pub(crate) progress: String,
}

/// One target of the job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Target {
    pub(crate) name: String,
    pub(crate) progress: String,
    /// The new pod, or the reason why there is none.
    pub(crate) detail: String,
}

impl Target {
    /// Returns true if the target has ended.
    pub(crate) fn has_ended(&self) -> bool {
        has_ended(&self.progress)
    }

    fn of(name: &str, detail: &Value) -> Self {
        let progress = detail.pointer("/progress").and_then(Value::as_str).unwrap_or("Pending").to_owned();
        let explained = match (detail.get("error"), text(detail, "/extraInfo/NewPod")) {
            (Some(error), _) => format!("{}: {}", text(error, "/reason"), text(error, "/message")),
            (None, "") => String::new(),
            (None, pod) => format!("new pod {pod}"),
        };
        Self { name: name.to_owned(), progress, detail: explained }
    }
}

impl Snapshot {
    pub(crate) fn of_pods(pods: &[Value], job: &Value) -> Self {
        let moment = Self::of(job, "pod");
        let details = array(job, "/status/targetDetails");
        let objects = pods.iter().map(|pod| pod_row(pod, details, &moment.targets)).collect();
        Self { objects, ..moment }
    }

    pub(crate) fn of_nodes(nodes: &[Value], job: &Value) -> Self {
        Self { objects: nodes.iter().map(node_row).collect(), ..Self::of(job, "node") }
    }

    fn of(job: &Value, noun: &'static str) -> Self {
        let details = array(job, "/status/targetDetails");
        // The targets of a selector are named in the status alone.
        let named = Some(array(job, "/spec/targets")).filter(|named| !named.is_empty()).unwrap_or(details);
        let detail = |name: &str| details.iter().find(|detail| text(detail, "/name") == name).unwrap_or(&Value::Null);
        let targets = named.iter().map(|one| Target::of(text(one, "/name"), detail(text(one, "/name")))).collect();
        Self { objects: Vec::new(), noun, targets, progress: text(job, "/status/progress").to_owned() }
    }

    /// Returns the number of ended targets.
    pub(crate) fn ended(&self) -> usize {
        self.targets.iter().filter(|target| target.has_ended()).count()
    }

    /// Returns true if the job has ended.
    pub(crate) fn has_ended(&self) -> bool {
        has_ended(&self.progress)
    }

    /// Returns the names of the targets that failed.
    pub(crate) fn failed(&self) -> Vec<&str> {
        self.targets.iter().filter(|target| target.progress == "Failed").map(|target| target.name.as_str()).collect()
    }

    /// Returns one line for each thing that differs.
    pub(crate) fn changes_since(&self, before: &Self) -> Vec<String> {
        let noun = self.noun;
        let changed = self.objects.iter().filter(|row| !before.objects.contains(row));
        let mut lines: Vec<String> = changed.map(|(name, row)| format!("{noun:<6} {name:<22} {row}")).collect();
        let is_here = |name: &String| self.objects.iter().any(|(own, _)| own == name);
        let gone = before.objects.iter().filter(|(name, _)| !is_here(name));
        lines.extend(gone.map(|(name, _)| format!("{noun:<6} {name:<22}      gone")));
        let targets = self.targets.iter().filter(|target| !before.targets.contains(target));
        lines.extend(targets.map(|one| format!("target {:<22}      {:<18} {}", one.name, one.progress, one.detail)));
        lines.iter().map(|line| line.trim_end().to_owned()).collect()
    }
}

/// Returns the names and UIDs, by which the ledger knows pods.
pub(crate) fn identities(objects: &[Value]) -> Vec<(String, String)> {
    let of = |object: &Value, field: &str| text(object, &format!("/metadata/{field}")).to_owned();
    objects.iter().map(|object| (of(object, "name"), of(object, "uid"))).collect()
}

/// Returns the text at a JSON pointer, or an empty text.
pub(crate) fn text<'a>(value: &'a Value, pointer: &str) -> &'a str {
    value.pointer(pointer).and_then(Value::as_str).unwrap_or_default()
}

/// Returns the list at a JSON pointer, or an empty list.
pub(crate) fn array<'a>(value: &'a Value, pointer: &str) -> &'a [Value] {
    value.pointer(pointer).and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default()
}

/// Returns true if a pod or a node is Ready.
pub(crate) fn is_ready(object: &Value) -> bool {
    array(object, "/status/conditions")
        .iter()
        .any(|one| text(one, "/type") == "Ready" && text(one, "/status") == "True")
}

/// Returns the keys of the labels or of the annotations of an object.
pub(crate) fn keys<'a>(object: &'a Value, of: &str) -> impl Iterator<Item = &'a String> {
    object.pointer(&format!("/metadata/{of}")).and_then(Value::as_object).into_iter().flat_map(Map::keys)
}

/// Returns true if a label says that an operation works on the pod.
pub(crate) fn is_operated_on(pod: &Value) -> bool {
    keys(pod, "labels").any(|key| key.contains(&format!(".{}/", labels::LIFECYCLE)))
}

/// Returns true if the pod gets traffic.
pub(crate) fn is_in_traffic(pod: &Value) -> bool {
    keys(pod, "labels").any(|key| key == labels::SERVICE_AVAILABLE)
}

/// Returns the number of restarts of all containers of a pod.
pub(crate) fn restarts(pod: &Value) -> i64 {
    let count = |status: &Value| status.get("restartCount").and_then(Value::as_i64);
    array(pod, "/status/containerStatuses").iter().filter_map(count).sum()
}

fn has_ended(progress: &str) -> bool {
    matches!(progress, "Succeeded" | "Failed")
}

/// Returns the name and the columns of a node.
fn node_row(node: &Value) -> (String, String) {
    let ready = if is_ready(node) { "Ready" } else { "NotReady" };
    let cordoned =
        if node.pointer("/spec/unschedulable") == Some(&Value::Bool(true)) { ",SchedulingDisabled" } else { "" };
    // The last digits tell boot ids of this world apart.
    let boot_id: String = text(node, "/status/nodeInfo/bootID").chars().skip(24).collect();
    (text(node, "/metadata/name").to_owned(), format!("     {:<18} boot id ...{boot_id}", format!("{ready}{cordoned}")))
}

/// Returns the name and the columns of a pod.
fn pod_row(pod: &Value, details: &[Value], targets: &[Target]) -> (String, String) {
    let name = text(pod, "/metadata/name");
    let status = match (text(pod, "/metadata/deletionTimestamp"), text(pod, "/status/phase")) {
        ("", "Pending") => "ContainerCreating",
        ("", phase) => phase,
        _ => "Terminating",
    };
    let wanted = array(pod, "/spec/containers").len();
    let ready = format!("{}/{wanted}", if is_ready(pod) { wanted } else { 0 });
    let origin = details.iter().find(|detail| text(detail, "/extraInfo/NewPod") == name);
    let is_target = targets.iter().any(|target| target.name == name);
    let marks = [
        origin.map(|origin| format!("takes the place of {}", text(origin, "/name"))),
        (origin.is_none() && is_target).then(|| "target".to_owned()),
        (is_operated_on(pod) && !is_in_traffic(pod)).then(|| "out of traffic".to_owned()),
        Some(restarts(pod)).filter(|times| *times > 0).map(|times| format!("restarted {times}x")),
    ];
    let marks: Vec<String> = marks.into_iter().flatten().collect();
    (name.to_owned(), format!("{ready:<4} {status:<18} {}", marks.join(", ")))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_pod_and_its_target_tell_of_each_other_and_only_what_differs_becomes_a_line() {
        let job = json!({
            "spec": {"targets": [{"name": "a"}, {"name": "b"}]},
            "status": {"progress": "Processing", "targetDetails": [
                {"name": "a", "progress": "Succeeded", "extraInfo": {"NewPod": "c"}},
                {"name": "b", "progress": "Failed", "error": {"reason": "PodNotFound", "message": "it is gone"}}]},
        });
        let pod = |name: &str| {
            json!({"metadata": {"name": name}, "spec": {"containers": [{"name": "app"}]},
                "status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}})
        };
        let before = Snapshot::of_pods(&[pod("a"), pod("d")], &json!({"spec": job["spec"]}));
        let now = Snapshot::of_pods(&[pod("c"), pod("d")], &job);
        assert_eq!((now.ended(), now.has_ended(), now.failed()), (2, false, vec!["b"]));
        let lines: Vec<String> = now
            .changes_since(&before)
            .iter()
            .map(|line| line.split_whitespace().collect::<Vec<_>>().join(" "))
            .collect();
        let expected = [
            "pod c 1/1 Running takes the place of a",
            "pod a gone",
            "target a Succeeded new pod c",
            "target b Failed PodNotFound: it is gone",
        ];
        assert_eq!(lines, expected);
    }
}
