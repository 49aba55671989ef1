//! The custom resources of Oarlock as data, and their definitions as text.
//!
//! Serde reads and writes the types. `oarlock-core` makes all decisions about their values. Source: docs/operationjob.md 1, 2;
//! docs/jobflow.md 1, 5.

mod host_account;
mod job_record;
mod operation_job;
mod operation_record;

pub use host_account::HostAccount;
pub use job_record::{RECORD_UNITS, counted_units, first_record, recorded_units};
pub use operation_job::{
    Condition, Failure, FailurePolicy, IntOrPercent, OperationJob, OperationJobSpec, OperationJobStatus, OwnerSelector,
    PluginBinding, Ranges, RecordsSummary, RetryPolicy, Selection, TargetDetail, TargetError, TargetRef,
    TargetSelector, UnreadSpec,
};
pub use operation_record::{OperationRecord, OperationRecordSpec, RecordedJob};

/// The API group of OperationJob, from KusionStack.
pub const OPERATION_JOB_GROUP: &str = "apps.kusionstack.io";
/// The API group of the kinds that Oarlock adds.
pub const OARLOCK_GROUP: &str = "oarlock.dev";
/// The API group of JobFlow, JobTemplate and DaemonJob, from the original operator.
pub const FLOW_GROUP: &str = "api.practice.com";
/// The version of every kind in this crate.
pub const VERSION: &str = "v1alpha1";
/// The `apiVersion` of OperationJob.
pub const OPERATION_JOB_API_VERSION: &str = "apps.kusionstack.io/v1alpha1";
/// The `apiVersion` of JobFlow, JobTemplate and DaemonJob.
pub const FLOW_API_VERSION: &str = "api.practice.com/v1alpha1";
/// The `apiVersion` of OperationRecord and JobRecord.
pub const OPERATION_RECORD_API_VERSION: &str = "oarlock.dev/v1alpha1";

/// The annotation of a CustomResourceDefinition with its level, a number that each change of the definition raises. An
/// upgrade never applies a lower level than the cluster serves.
pub const CRD_LEVEL: &str = "oarlock.dev/crd-level";

/// The CustomResourceDefinition of OperationJob, as a YAML document.
pub const OPERATION_JOB_CRD: &str = include_str!("../crds/operationjob.yaml");
/// The CustomResourceDefinitions, one YAML document each, in the order in which to apply them.
pub const CRDS: [&str; 3] = [OPERATION_JOB_CRD, include_str!("../crds/operationrecord.yaml"), ACTION_PLUGIN_CRD];
/// The CustomResourceDefinition of ActionPlugin, as a YAML document.
pub const ACTION_PLUGIN_CRD: &str = include_str!("../crds/actionplugin.yaml");
/// The CustomResourceDefinition of JobFlow, as a YAML document.
pub const JOB_FLOW_CRD: &str = include_str!("../crds/jobflow.yaml");
/// The CustomResourceDefinition of DaemonJob, as a YAML document.
pub const DAEMON_JOB_CRD: &str = include_str!("../crds/daemonjob.yaml");
/// The CustomResourceDefinitions of flows: JobFlow, JobTemplate, DaemonJob and JobRecord, one YAML document each.
pub const FLOW_CRDS: [&str; 4] =
    [JOB_FLOW_CRD, include_str!("../crds/jobtemplate.yaml"), DAEMON_JOB_CRD, include_str!("../crds/jobrecord.yaml")];
/// The CustomResourceDefinition of OpsJob, as a YAML document.
pub const OPS_JOB_CRD: &str = include_str!("../crds/opsjob.yaml");
/// The CustomResourceDefinitions of OpsJob and of the templates that it names.
pub const OPS_CRDS: [&str; 3] =
    [OPS_JOB_CRD, include_str!("../crds/addontemplate.yaml"), include_str!("../crds/nodetemplate.yaml")];
/// The admission policies of OpsJobs and of their OperationJobs.
pub const OPS_ADMISSION: &str = include_str!("../crds/ops.yaml");
/// The ValidatingAdmissionPolicies of JobFlow, JobTemplate and DaemonJob, each with its binding.
pub const FLOW_ADMISSION: &str = include_str!("../crds/flows.yaml");
/// The ValidatingAdmissionPolicy of OperationJob and its binding, as YAML documents.
pub const JOB_ADMISSION: &str = include_str!("../crds/admission.yaml");
/// The ValidatingAdmissionPolicy for changes of pods by the host's account, with its binding. Apply it once the host has its roles. In it,
/// `OARLOCK_NAMESPACE:OARLOCK_ACCOUNT` stands for the host's account. `OARLOCK_GRANTED` stands for a selector of the namespaces in which
/// that account may patch pods.
pub const POD_ADMISSION: &str = include_str!("../crds/pods.yaml");
/// The ValidatingAdmissionPolicy for holds of pods, with its binding. It is for hosts that do not prove their holds.
pub const HOLD_ADMISSION: &str = include_str!("../crds/pod-holds.yaml");
/// The ValidatingAdmissionPolicy for nodes, with its binding. Apply it if a plugin may change nodes.
pub const NODE_ADMISSION: &str = include_str!("../crds/nodes.yaml");
/// The ValidatingAdmissionPolicy for writes of OperationJobs by the host's account, with its binding. [`HostAccount::fill`] inserts the
/// account into this document and into each other document in this crate that names it.
pub const ACCOUNT_ADMISSION: &str = include_str!("../crds/account.yaml");
/// The ValidatingAdmissionPolicy for writes of Jobs by the host's account, with its binding. Apply it if the host creates Jobs.
pub const ACCOUNT_JOB_ADMISSION: &str = include_str!("../crds/account-jobs.yaml");
/// The ValidatingAdmissionPolicy for the label that lets jobs of a namespace work on nodes, with its binding.
pub const NAMESPACE_ADMISSION: &str = include_str!("../crds/namespaces.yaml");
/// The ValidatingAdmissionPolicy for pods in the namespace of tasks, with its binding. Apply it if that namespace exists.
pub const TASK_ADMISSION: &str = include_str!("../crds/tasks.yaml");
/// The ValidatingAdmissionPolicy for the annotation that has a job recorded, with its binding.
pub const JOB_RECORDING_ADMISSION: &str = include_str!("../crds/job-recording.yaml");
/// The ValidatingAdmissionPolicy for the specs of ActionPlugins, with its binding.
pub const ACTION_PLUGIN_ADMISSION: &str = include_str!("../crds/plugin-grants.yaml");
/// The ValidatingAdmissionPolicy for the namespace of the accounts of plugins, with its binding. In it, `OARLOCK_PLUGIN_ACCOUNTS` stands for
/// the namespace. Apply it if that namespace exists.
pub const PLUGIN_ACCOUNT_ADMISSION: &str = include_str!("../crds/plugin-accounts.yaml");
/// The admission policies of OperationJobs and of pods.
pub const ADMISSION: &str = concat!(include_str!("../crds/admission.yaml"), "---\n", include_str!("../crds/pods.yaml"));
