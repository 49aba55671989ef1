//! The custom resources of Oarlock as data, and their definitions as text.
//!
//! The types are read and written with serde. All decisions about their values are in `oarlock-core`. Source:
//! docs/operationjob.md 1, 2; docs/jobflow.md 1, 5.

mod job_record;
mod operation_job;
mod operation_record;

pub use job_record::{RECORD_UNITS, counted_units, first_record, recorded_units};
pub use operation_job::{
    Condition, Failure, FailurePolicy, IntOrPercent, OperationJob, OperationJobSpec, OperationJobStatus, OwnerSelector,
    PluginBinding, Ranges, RecordsSummary, RetryPolicy, Selection, TargetDetail, TargetError, TargetRef,
    TargetSelector,
};
pub use operation_record::{OperationRecord, OperationRecordSpec, RecordedJob};

/// The API group of OperationJob, as KusionStack has it.
pub const OPERATION_JOB_GROUP: &str = "apps.kusionstack.io";
/// The API group of the kinds that Oarlock adds.
pub const OARLOCK_GROUP: &str = "oarlock.dev";
/// The API group of JobFlow, JobTemplate and DaemonJob, as the original operator has it.
pub const FLOW_GROUP: &str = "api.practice.com";
/// The version of every kind here.
pub const VERSION: &str = "v1alpha1";
/// `apiVersion` of OperationJob.
pub const OPERATION_JOB_API_VERSION: &str = "apps.kusionstack.io/v1alpha1";
/// `apiVersion` of JobFlow, JobTemplate and DaemonJob.
pub const FLOW_API_VERSION: &str = "api.practice.com/v1alpha1";
/// `apiVersion` of OperationRecord and JobRecord.
pub const OPERATION_RECORD_API_VERSION: &str = "oarlock.dev/v1alpha1";

/// The CustomResourceDefinitions, one YAML document each, in the order in which to apply them.
pub const CRDS: [&str; 2] = [include_str!("../crds/operationjob.yaml"), include_str!("../crds/operationrecord.yaml")];
/// The CustomResourceDefinitions of flows: JobFlow, JobTemplate, DaemonJob and JobRecord, one YAML document each.
pub const FLOW_CRDS: [&str; 4] = [
    include_str!("../crds/jobflow.yaml"),
    include_str!("../crds/jobtemplate.yaml"),
    include_str!("../crds/daemonjob.yaml"),
    include_str!("../crds/jobrecord.yaml"),
];
/// The ValidatingAdmissionPolicies of JobFlow and DaemonJob, each with its binding.
pub const FLOW_ADMISSION: &str = include_str!("../crds/flows.yaml");
/// The ValidatingAdmissionPolicy of OperationJob and its binding, as YAML documents.
pub const JOB_ADMISSION: &str = include_str!("../crds/admission.yaml");
/// The ValidatingAdmissionPolicies of pods, each with its binding: to apply once the host has its roles. `OARLOCK_NAMESPACE:OARLOCK_ACCOUNT`
/// in it stands for the host's account, `OARLOCK_GRANTED` for a selector of the namespaces in which that may patch pods.
pub const POD_ADMISSION: &str = include_str!("../crds/pods.yaml");
/// The ValidatingAdmissionPolicy of nodes, with its binding: to apply where a plugin may change nodes.
pub const NODE_ADMISSION: &str = include_str!("../crds/nodes.yaml");
/// All of them but that of nodes.
pub const ADMISSION: &str = concat!(include_str!("../crds/admission.yaml"), "---\n", include_str!("../crds/pods.yaml"));
