//! Labels, condition types and API names that the world's controllers use: those of KusionStack's CollaSet and of
//! Kubernetes.

/// Asks for the replacement of a pod; an empty value counts as absent when its replacement is judged.
pub const TO_REPLACE: &str = "collaset.kusionstack.io/to-replace";
/// On an origin: the instance id of the pod that replaces it.
pub const PAIR_NEW_ID: &str = "collaset.kusionstack.io/replace-pair-new-id";
/// On a new pod: the name of the pod that it replaces.
pub const PAIR_ORIGIN_NAME: &str = "collaset.kusionstack.io/replace-pair-origin-name";
/// A number that one pod of a CollaSet bears alone.
pub const INSTANCE_ID: &str = "collaset.kusionstack.io/instance-id";
/// Asks for the deletion of a pod.
pub const TO_DELETE: &str = "collaset.kusionstack.io/to-delete";
/// The pod serves; presence counts.
pub const SERVICE_AVAILABLE: &str = "podopslifecycle.kusionstack.io/service-available";
/// Domain of the labels of the PodOpsLifecycle.
pub const LIFECYCLE: &str = "podopslifecycle.kusionstack.io";
/// Begin of the finalizers by which controllers of traffic keep a pod until it is drained.
pub const PROT_FINALIZERS: &str = "prot.podopslifecycle.kusionstack.io";
/// The condition by which a pod of KusionStack gets traffic or none.
pub const SERVICE_READY: &str = "pod.kusionstack.io/service-ready";
/// The pod belongs to a KusionStack workload.
pub const CONTROL: &str = "kusionstack.io/control";
/// The revision of the template that a pod was made from.
pub const REVISION: &str = "controller-revision-hash";
/// On a ReplicaSet: the how-manieth template of its Deployment it was made from.
pub(crate) const DEPLOYMENT_REVISION: &str = "deployment.kubernetes.io/revision";
/// The revision of a Deployment's template.
pub const TEMPLATE_HASH: &str = "pod-template-hash";
/// The name of a StatefulSet's pod, as a label.
pub const STATEFUL_POD: &str = "statefulset.kubernetes.io/pod-name";
/// The ordinal of a StatefulSet's pod.
pub const POD_INDEX: &str = "apps.kubernetes.io/pod-index";
/// The condition that the eviction API sets before it deletes.
pub const DISRUPTION_TARGET: &str = "DisruptionTarget";
/// Its reason when the eviction API set it.
pub const EVICTED_BY_API: &str = "EvictionByEvictionAPI";
/// Group and version of the CollaSet.
pub const KUSION_API: &str = "apps.kusionstack.io/v1alpha1";
/// On the pod of a task: the name of the task.
pub const TASK: &str = "oarlock.dev/task";
/// On the pod of a task: its kind.
pub const TASK_KIND: &str = "oarlock.dev/task-kind";
/// The kind of a task that runs a command on its node, once.
pub const RUN_ON_NODE: &str = "run-on-node";
/// On the pod of a task: a command of the host.
pub(crate) const TASK_BUILTIN: &str = "oarlock.dev/builtin";
/// On the pod of a task: namespace and name of its job.
pub(crate) const TASK_JOB: &str = "oarlock.dev/job";
/// The completion index of a pod of an Indexed Job, as an annotation and as a label.
pub const COMPLETION_INDEX: &str = "batch.kubernetes.io/job-completion-index";
