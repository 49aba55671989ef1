//! The labels, condition types and API names that the simulated controllers use. They belong to KusionStack's CollaSet, to
//! Kubernetes and to Oarlock.

/// Requests the replacement of a pod. When the replacement is judged, an empty value counts as absent.
pub const TO_REPLACE: &str = "collaset.kusionstack.io/to-replace";
/// On an origin: the instance id of its replacement.
pub const PAIR_NEW_ID: &str = "collaset.kusionstack.io/replace-pair-new-id";
/// On a new pod: the name of the pod that it replaces.
pub const PAIR_ORIGIN_NAME: &str = "collaset.kusionstack.io/replace-pair-origin-name";
/// A number that is unique among the pods of a CollaSet.
pub const INSTANCE_ID: &str = "collaset.kusionstack.io/instance-id";
/// Requests the deletion of a pod.
pub const TO_DELETE: &str = "collaset.kusionstack.io/to-delete";
/// Marks a pod that serves. Only the presence of the label counts.
pub const SERVICE_AVAILABLE: &str = "podopslifecycle.kusionstack.io/service-available";
/// Domain of the labels of the PodOpsLifecycle.
pub const LIFECYCLE: &str = "podopslifecycle.kusionstack.io";
/// Prefix of the finalizers with which traffic controllers keep a pod until it is drained.
pub const PROT_FINALIZERS: &str = "prot.podopslifecycle.kusionstack.io";
/// The condition that decides whether a KusionStack pod gets traffic.
pub const SERVICE_READY: &str = "pod.kusionstack.io/service-ready";
/// Marks a pod that belongs to a KusionStack workload.
pub const CONTROL: &str = "kusionstack.io/control";
/// The revision of the template from which a pod was created.
pub const REVISION: &str = "controller-revision-hash";
/// On a ReplicaSet: the number of its Deployment's template, counted from the first one.
pub(crate) const DEPLOYMENT_REVISION: &str = "deployment.kubernetes.io/revision";
/// The hash of a Deployment's template.
pub const TEMPLATE_HASH: &str = "pod-template-hash";
/// On a StatefulSet's pod: its own name.
pub const STATEFUL_POD: &str = "statefulset.kubernetes.io/pod-name";
/// The ordinal of a StatefulSet's pod.
pub const POD_INDEX: &str = "apps.kubernetes.io/pod-index";
/// The condition that the eviction API sets before it deletes a pod.
pub const DISRUPTION_TARGET: &str = "DisruptionTarget";
/// The reason of `DisruptionTarget` if the eviction API set it.
pub const EVICTED_BY_API: &str = "EvictionByEvictionAPI";
/// Group and version of the CollaSet.
pub const KUSION_API: &str = "apps.kusionstack.io/v1alpha1";
/// On a task pod: the name of the task.
pub const TASK: &str = "oarlock.dev/task";
/// On a task pod: the kind of the task.
pub const TASK_KIND: &str = "oarlock.dev/task-kind";
/// The task kind that runs a command on its node once.
pub const RUN_ON_NODE: &str = "run-on-node";
/// On a task pod: a built-in command of the host.
pub(crate) const TASK_BUILTIN: &str = "oarlock.dev/builtin";
/// On a task pod: namespace and name of its job.
pub(crate) const TASK_JOB: &str = "oarlock.dev/job";
/// The completion index of an Indexed Job's pod, as an annotation and as a label.
pub const COMPLETION_INDEX: &str = "batch.kubernetes.io/job-completion-index";
