//! A made-up visit, which shows whether a new version of a plugin works at all before it replaces a version that serves.

use std::collections::BTreeMap;
use std::sync::Arc;

use oarlock_core::object::api_object::{Kind, Object, ObjectKey};
use oarlock_core::plugin::manifest::Manifest;
use oarlock_core::plugin::visit::{Answer, Call, JobFacts, ReadRefusal, Reads, TargetFacts, Trap, Visit};
use serde_json::Value;

use crate::plugin::Plugin;

/// The namespace and name of the made-up job and target.
const PROBE: &str = "oarlock-probe";
/// The UID of the made-up job and target.
const UID: &str = "00000000-0000-0000-0000-000000000000";

/// Reads that have no answer yet. Every plugin meets such reads.
struct NoReads;

impl Reads for NoReads {
    fn related(&self, _relation: &str, _live: bool) -> Result<Vec<Arc<Object>>, ReadRefusal> {
        Err(ReadRefusal::Unavailable)
    }

    fn get(&self, _key: &ObjectKey, _live: bool) -> Result<Option<Arc<Object>>, ReadRefusal> {
        Err(ReadRefusal::Unavailable)
    }

    fn serves(&self, _kind: &Kind) -> Result<bool, ReadRefusal> {
        Err(ReadRefusal::Unavailable)
    }
}

/// Visits a target whose object is gone. Every plugin meets such targets, so only a trap speaks against it.
pub(crate) async fn probe(plugin: &Plugin) -> Result<(), Trap> {
    let visit = made_up(plugin.manifest());
    match plugin.session().call(visit).await {
        Answer::Trapped(trap) => Err(trap),
        Answer::Proposed(_) | Answer::Reported { .. } | Answer::Failed(_) => Ok(()),
    }
}

fn made_up(manifest: &Manifest) -> Visit {
    let job = JobFacts {
        namespace: PROBE.to_owned(),
        name: PROBE.to_owned(),
        uid: UID.to_owned(),
        action: manifest.action.clone(),
        now_ms: 1,
        parameters: Value::Object(serde_json::Map::new()),
        target_count: 1,
        cancelled: false,
    };
    let kind = manifest.target.first().map(|target| target.kind().kind).unwrap_or_default();
    let target = TargetFacts {
        name: PROBE.to_owned(),
        index: 0,
        kind,
        uid: Some(UID.to_owned()),
        object: None,
        containers: Vec::new(),
        extras: BTreeMap::new(),
        attempt: 1,
        call_try: 1,
        started_ms: 1,
        deadline_ms: None,
        tasks: BTreeMap::new(),
    };
    Visit { job: Arc::new(job), target, call: Call::OperateThenProgress, reads: Arc::new(NoReads) }
}
