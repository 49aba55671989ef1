//! Checks the rights of callers with access reviews of the API server. Source: docs/opsjob-rest.md 2.

use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use futures::future::try_join_all;
use governor::Quota;
use k8s_openapi::api::authorization::v1::{ResourceAttributes, SubjectAccessReview, SubjectAccessReviewSpec};
use kube::Client;
use kube::api::{Api, PostParams};
use kube::core::ObjectMeta;
use moka::future::Cache;
use oarlock_core::object::quota_key::QuotaKey;
use oarlock_core::ops_job::access::Access;
use oarlock_core::ops_job::outline::Outline;
use oarlock_core::ops_job::refusal::{Code, OpsRefusal};
use oarlock_core::ops_job::spec::OpsType;
use sha2::{Digest as _, Sha256};

use crate::caller::Caller;
use crate::errors::of_request;
use crate::rates::{KeyedLimits, whole_seconds};

/// How long an answer is cached.
const KEPT: Duration = Duration::from_secs(10);
/// The most cached answers.
const ANSWERS: u64 = 100_000;
/// The rate limit, and the burst, for reviews of the accounts of one namespace, or of one user without a namespace.
const OF_ONE: Quota =
    Quota::per_second(NonZeroU32::new(60).expect("above 0")).allow_burst(NonZeroU32::new(300).expect("above 0"));

/// Asks the API server for the rights of callers.
pub(crate) struct Rights {
    client: Client,
    answers: Cache<([u8; 32], Access), bool>,
    questions: KeyedLimits,
}

impl Rights {
    pub(crate) fn new(client: Client) -> Self {
        let answers = Cache::builder().max_capacity(ANSWERS).time_to_live(KEPT).build();
        Self { client, answers, questions: KeyedLimits::of(OF_ONE) }
    }

    /// Returns true if a caller has this right.
    pub(crate) async fn has(&self, caller: &Caller, access: &Access) -> Result<bool, OpsRefusal> {
        let key = (digest(caller), access.clone());
        let asked = self.answers.try_get_with(key, self.ask(caller, access)).await;
        asked.map_err(|refusal: Arc<OpsRefusal>| OpsRefusal::clone(&refusal))
    }

    /// Returns true if a caller has any of these rights.
    pub(crate) async fn has_any(&self, caller: &Caller, all: &[Access]) -> Result<bool, OpsRefusal> {
        for access in all {
            if self.has(caller, access).await? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Returns true if a caller may make OpsJobs of some type in the whole cluster. Other callers have narrower bounds.
    pub(crate) async fn is_cluster_wide(&self, caller: &Caller) -> Result<bool, OpsRefusal> {
        Ok(self.has(caller, &Access::to_ops_jobs("create", "")).await?
            && self.has_any(caller, &of_types("create")).await?)
    }

    /// Returns these rights, each with whether the caller has it.
    pub(crate) async fn of(&self, caller: &Caller, all: Vec<Access>) -> Result<Vec<(Access, bool)>, OpsRefusal> {
        let asked = all.into_iter().map(|access| async move {
            let has = self.has(caller, &access).await?;
            Ok((access, has))
        });
        try_join_all(asked).await
    }

    /// Returns true if a caller may do this to jobs of at least one type in the whole cluster.
    pub(crate) async fn has_some(&self, caller: &Caller, verb: &'static str) -> Result<bool, OpsRefusal> {
        Ok(self.has(caller, &Access::to_ops_jobs(verb, "")).await? || self.has_any(caller, &of_types(verb)).await?)
    }

    /// Refuses a caller who may not make the outlined job: neither in the whole cluster nor in the namespace that the outline names.
    pub(crate) async fn check_outline(&self, caller: &Caller, outline: &Outline) -> Result<(), OpsRefusal> {
        let base = Access::to_ops_jobs("create", "");
        if let Some(place) = outline.place() {
            let types = outline.types().into_iter();
            let types: Vec<Access> =
                types.map(|kind| Access::to_ops_jobs("create", kind.word()).within(place)).collect();
            if self.has(caller, &base.clone().within(place)).await? && self.has_any(caller, &types).await? {
                return Ok(());
            }
        }
        Err(outline.denied(self.has(caller, &base).await?).refused())
    }

    async fn ask(&self, caller: &Caller, access: &Access) -> Result<bool, OpsRefusal> {
        let key = QuotaKey::of(&caller.name);
        self.questions.check(&key.text()).await.map_err(|wait| {
            let seconds = whole_seconds(wait);
            let message = format!("too many permission checks for accounts of {key}: try again in {seconds} s");
            OpsRefusal::new(Code::TooMany, message).after(seconds)
        })?;
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

fn of_types(verb: &'static str) -> Vec<Access> {
    OpsType::ALL.map(|kind| Access::to_ops_jobs(verb, kind.word())).to_vec()
}

/// Returns a digest of all facts that decide the rights of a caller.
fn digest(caller: &Caller) -> [u8; 32] {
    let Caller { name, uid, groups, extra } = caller;
    let all = serde_json::json!([name, uid, groups, extra]);
    Sha256::digest(all.to_string()).into()
}
