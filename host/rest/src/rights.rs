//! What somebody may do: the API server says it. Source: docs/opsjob-rest.md 2.

use std::sync::Arc;
use std::time::Duration;

use futures::future::try_join_all;
use k8s_openapi::api::authorization::v1::{ResourceAttributes, SubjectAccessReview, SubjectAccessReviewSpec};
use kube::Client;
use kube::api::{Api, PostParams};
use kube::core::ObjectMeta;
use moka::future::Cache;
use oarlock_core::ops_job::access::Access;
use oarlock_core::ops_job::refusal::OpsRefusal;
use oarlock_core::ops_job::spec::OpsType;
use sha2::{Digest as _, Sha256};

use crate::caller::Caller;
use crate::errors::of_request;

/// For how long an answer counts.
const KEPT: Duration = Duration::from_secs(10);
/// Most answers that are kept.
const ANSWERS: u64 = 100_000;

/// Asks what callers may do.
pub(crate) struct Rights {
    client: Client,
    answers: Cache<([u8; 32], Access), bool>,
}

impl Rights {
    pub(crate) fn new(client: Client) -> Self {
        Self { client, answers: Cache::builder().max_capacity(ANSWERS).time_to_live(KEPT).build() }
    }

    /// Whether a caller may do this.
    pub(crate) async fn has(&self, caller: &Caller, access: &Access) -> Result<bool, OpsRefusal> {
        let key = (digest(caller), access.clone());
        let asked = self.answers.try_get_with(key, self.ask(caller, access)).await;
        asked.map_err(|refusal: Arc<OpsRefusal>| OpsRefusal::clone(&refusal))
    }

    /// Whether a caller may do any of these.
    pub(crate) async fn has_any(&self, caller: &Caller, all: &[Access]) -> Result<bool, OpsRefusal> {
        for access in all {
            if self.has(caller, access).await? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Whether a caller may make OpsJobs of some type in the whole cluster. Others are bound more narrowly.
    pub(crate) async fn is_cluster_wide(&self, caller: &Caller) -> Result<bool, OpsRefusal> {
        let types: Vec<Access> = OpsType::ALL.map(|kind| Access::to_ops_jobs("create", kind.word())).into();
        Ok(self.has(caller, &Access::to_ops_jobs("create", "")).await? && self.has_any(caller, &types).await?)
    }

    /// Which of these a caller may do.
    pub(crate) async fn of(&self, caller: &Caller, all: Vec<Access>) -> Result<Vec<(Access, bool)>, OpsRefusal> {
        let asked = all.into_iter().map(|access| async move {
            let has = self.has(caller, &access).await?;
            Ok((access, has))
        });
        try_join_all(asked).await
    }

    async fn ask(&self, caller: &Caller, access: &Access) -> Result<bool, OpsRefusal> {
        let given = |text: &str| Some(text.to_owned()).filter(|text| !text.is_empty());
        let attributes = ResourceAttributes {
            verb: given(access.verb),
            group: given(&access.group),
            resource: given(&access.resource),
            subresource: given(access.subresource),
            namespace: given(&access.namespace),
            name: given(&access.name),
            ..ResourceAttributes::default()
        };
        let spec = SubjectAccessReviewSpec {
            user: Some(caller.name.clone()),
            uid: given(&caller.uid),
            groups: Some(caller.groups.clone()),
            extra: Some(caller.extra.clone()),
            resource_attributes: Some(attributes),
            ..SubjectAccessReviewSpec::default()
        };
        let review = SubjectAccessReview { metadata: ObjectMeta::default(), spec, status: None };
        let api: Api<SubjectAccessReview> = Api::all(self.client.clone());
        let answer = api.create(&PostParams::default(), &review).await;
        let answer = answer.map_err(|error| of_request(&error, "ask what the caller may do"))?;
        Ok(answer.status.is_some_and(|status| status.allowed))
    }
}

/// All that decides what somebody may do.
fn digest(caller: &Caller) -> [u8; 32] {
    let Caller { name, uid, groups, extra } = caller;
    let all = serde_json::json!([name, uid, groups, extra]);
    Sha256::digest(all.to_string()).into()
}
