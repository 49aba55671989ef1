//! The custom resources as types of the Kubernetes client.

use std::borrow::Cow;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::core::NamespaceResourceScope;
use oarlock_api::{OARLOCK_GROUP, OPERATION_JOB_GROUP, OperationJob, OperationRecord, VERSION};
use serde::{Deserialize, Serialize};

/// An OperationJob in a cluster.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(transparent)]
pub(in crate::commands) struct StoredJob(pub(super) OperationJob);

/// An OperationRecord in a cluster.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(transparent)]
pub(in crate::commands) struct StoredRecord(pub(super) OperationRecord);

impl kube::Resource for StoredJob {
    type DynamicType = ();
    type Scope = NamespaceResourceScope;

    fn kind((): &()) -> Cow<'_, str> {
        "OperationJob".into()
    }

    fn group((): &()) -> Cow<'_, str> {
        OPERATION_JOB_GROUP.into()
    }

    fn version((): &()) -> Cow<'_, str> {
        VERSION.into()
    }

    fn plural((): &()) -> Cow<'_, str> {
        "operationjobs".into()
    }

    fn meta(&self) -> &ObjectMeta {
        &self.0.metadata
    }

    fn meta_mut(&mut self) -> &mut ObjectMeta {
        &mut self.0.metadata
    }
}

impl kube::Resource for StoredRecord {
    type DynamicType = ();
    type Scope = NamespaceResourceScope;

    fn kind((): &()) -> Cow<'_, str> {
        "OperationRecord".into()
    }

    fn group((): &()) -> Cow<'_, str> {
        OARLOCK_GROUP.into()
    }

    fn version((): &()) -> Cow<'_, str> {
        VERSION.into()
    }

    fn plural((): &()) -> Cow<'_, str> {
        "operationrecords".into()
    }

    fn meta(&self) -> &ObjectMeta {
        &self.0.metadata
    }

    fn meta_mut(&mut self) -> &mut ObjectMeta {
        &mut self.0.metadata
    }
}
