//! Which workloads a text may mean. Source: docs/opsjob-rest.md 4.

use futures::future::try_join_all;
use kube::Client;
use kube::api::{Api, ApiResource, DynamicObject, GroupVersionKind, ListParams};
use oarlock_core::job::spec::is_object_name;
use oarlock_core::ops_job::refusal::OpsRefusal;
use oarlock_core::ops_job::workload::WorkloadName;

use crate::errors::of_request;

/// Most of one kind that are looked at: one more than may be meant.
const OF_A_KIND: u32 = 11;

/// The workloads that `namespace/kind/name`, `namespace/name` or `name` may mean. Of the first form it is not known whether it is there.
pub(crate) async fn candidates(client: &Client, text: &str) -> Result<Vec<WorkloadName>, OpsRefusal> {
    if let Some(whole) = WorkloadName::read(text) {
        return Ok(vec![whole]);
    }
    let (namespace, name) = text.split_once('/').map_or((None, text), |(namespace, name)| (Some(namespace), name));
    if !is_object_name(name) || !namespace.is_none_or(is_object_name) {
        return Ok(Vec::new());
    }
    let params = ListParams::default().fields(&format!("metadata.name={name}")).limit(OF_A_KIND);
    let of_kind = WorkloadName::kinds().map(|kind| {
        let params = &params;
        async move {
            let (group, version) = kind.api_version.split_once('/').unwrap_or(("", &kind.api_version));
            let resource = ApiResource::from_gvk(&GroupVersionKind::gvk(group, version, &kind.kind));
            let api: Api<DynamicObject> = match namespace {
                Some(namespace) => Api::namespaced_with(client.clone(), namespace, &resource),
                None => Api::all_with(client.clone(), &resource),
            };
            let found = api.list_metadata(params).await.map_err(|error| of_request(&error, "look for the workload"))?;
            let names = found.items.into_iter().filter_map(|found| found.metadata.namespace);
            let names = names.map(|namespace| WorkloadName { kind: kind.clone(), namespace, name: name.to_owned() });
            Ok::<_, OpsRefusal>(names.collect::<Vec<_>>())
        }
    });
    Ok(try_join_all(of_kind).await?.into_iter().flatten().collect())
}
