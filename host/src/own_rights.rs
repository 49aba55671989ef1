//! The rights that the host's own account lacks for a grant, by questions to the API server.

use futures::{StreamExt as _, stream};
use k8s_openapi::api::authorization::v1::{ResourceAttributes, SelfSubjectAccessReview, SelfSubjectAccessReviewSpec};
use kube::Client;
use kube::api::{Api, PostParams};
use oarlock_core::plugin::grant::Grant;
use tokio::time::{Duration, timeout};

use crate::manifests::{GrantedAccess, NeededRight};

/// The most rights that the host asks about for one grant.
const MOST_ASKED: usize = 200;
/// The questions that are asked at once.
const AT_ONCE: usize = 8;
/// The longest time for all questions about one grant.
const LONGEST: Duration = Duration::from_secs(15);

/// Returns the rights that a grant needs and that this account lacks. Returns `None` if the API server does not answer, or if no role can express the
/// grant.
pub(crate) async fn lacking_rights(client: &Client, grant: &Grant) -> Option<Vec<String>> {
    let needed = GrantedAccess::of(vec![grant.clone()]).needed_rights().ok()?;
    let asked = stream::iter(needed.into_iter().take(MOST_ASKED)).map(|right| async move {
        let may = may(client, &right).await?;
        Some((!may).then(|| right.to_string()))
    });
    let answers = asked.buffered(AT_ONCE).collect::<Vec<Option<Option<String>>>>();
    let answers = timeout(LONGEST, answers).await.ok()?;
    let answers: Option<Vec<Option<String>>> = answers.into_iter().collect();
    answers.map(|answers| answers.into_iter().flatten().collect())
}

/// Returns true if this account has a right. Returns `None` if the API server does not answer.
async fn may(client: &Client, right: &NeededRight) -> Option<bool> {
    let (resource, subresource) = match right.resource.split_once('/') {
        Some((resource, below)) => (resource.to_owned(), Some(below.to_owned())),
        None => (right.resource.clone(), None),
    };
    let attributes = ResourceAttributes {
        group: Some(right.group.clone()),
        namespace: right.namespace.clone(),
        resource: Some(resource),
        subresource,
        verb: Some(right.verb.to_owned()),
        ..ResourceAttributes::default()
    };
    let spec = SelfSubjectAccessReviewSpec { resource_attributes: Some(attributes), ..Default::default() };
    let review = SelfSubjectAccessReview { spec, ..SelfSubjectAccessReview::default() };
    let answer = Api::all(client.clone()).create(&PostParams::default(), &review).await;
    answer.ok().and_then(|answer| answer.status).map(|status| status.allowed)
}
