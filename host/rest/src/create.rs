//! Creates OpsJobs on behalf of callers. Source: docs/opsjob-rest.md 4.

use std::collections::HashMap;

use http::HeaderMap;
use k8s_openapi::jiff::SignedDuration;
use kube::api::{DynamicObject, PostParams};
use oarlock_core::object::memory::text_len;
use oarlock_core::object::quota_key::{QUOTA_KEY, QuotaKey};
use oarlock_core::ops_job::body::{Body, FieldValidation};
use oarlock_core::ops_job::create_decision::{
    CallerBounds, CreateDecision, NewJob, RequestFacts, RequiredFact, decide_create,
};
use oarlock_core::ops_job::found::{Found, candidates, find};
use oarlock_core::ops_job::job_id::{bytes_of_key, job_id};
use oarlock_core::ops_job::names::{API_VERSION, HISTORY, OPS_KIND};
use oarlock_core::ops_job::published::Unpublished;
use oarlock_core::ops_job::quota::{EXEMPT, OF_OBJECT};
use oarlock_core::ops_job::refusal::{Code, OpsRefusal};
use oarlock_core::ops_job::summary::OpsSummary;
use oarlock_core::ops_job::targets::Here;
use oarlock_core::ops_job::workload::WorkloadName;
use oarlock_core::requests::reads::Answers;
use oarlock_history::REQUEST;
use ring::rand::{SecureRandom as _, SystemRandom};
use serde_json::{Value, json};

use crate::audit::FirstRow;
use crate::caller::Caller;
use crate::errors::{of_history, of_read, of_request};
use crate::query::given;
use crate::quotas::RoomOfJob;
use crate::reservations::Reservation;
use crate::room::Sharer;
use crate::state::RestState;

/// How many random ids are tried for one job.
const DRAWS: usize = 5;
/// How long after its creation a deleted job still answers for its idempotency key.
const KEY_KEPT: SignedDuration = SignedDuration::from_hours(24);
/// The most characters of an idempotency key.
const KEY: usize = 64;

/// The options of a create request.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct How {
    pub(crate) mode: FieldValidation,
    is_rehearsal: bool,
    key: Option<String>,
}

/// The result of a create request.
pub(crate) enum Made {
    /// The id of the job, made now or by an earlier request with this key, and the warnings about ignored fields.
    Job(String, Vec<String>),
    /// The job that would be made. The request was a dry run.
    Rehearsal(NewJob),
}

impl How {
    pub(crate) fn read(query: Option<&str>, headers: &HeaderMap) -> Result<Self, OpsRefusal> {
        // An empty value is refused here, because no meaning could be intended by it.
        let given = given(query, &["fieldValidation", "dryRun"])?;
        let mode = match given.get("fieldValidation") {
            None => FieldValidation::default(),
            Some(word) => {
                FieldValidation::read(word).ok_or_else(|| OpsRefusal::bad("fieldValidation: Strict, Warn or Ignore"))?
            }
        };
        let is_rehearsal = match given.get("dryRun").map(String::as_str) {
            None => false,
            Some("All") => true,
            Some(_) => return Err(OpsRefusal::bad("dryRun: All")),
        };
        let mut keys = headers.get_all("idempotency-key").iter();
        let key = match (keys.next(), keys.next()) {
            (None, _) => None,
            (Some(key), None) => {
                let is_key = |key: &&str| {
                    (1..=KEY).contains(&key.len())
                        && key.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-'))
                };
                let wrong = || OpsRefusal::bad(format!("Idempotency-Key: 1 to {KEY} of letters, digits, _ and -"));
                Some(key.to_str().ok().filter(is_key).ok_or_else(wrong)?.to_owned())
            }
            (Some(_), Some(_)) => return Err(OpsRefusal::bad("Idempotency-Key: given twice")),
        };
        Ok(Self { mode, is_rehearsal, key })
    }
}

/// A request to create a job.
pub(crate) struct CreateRequest<'a> {
    pub(crate) parts: &'a RestState,
    pub(crate) caller: &'a Caller,
    pub(crate) sharer: &'a Sharer,
    pub(crate) body: &'a Body,
    pub(crate) how: &'a How,
    /// The audit row to write before the job exists.
    pub(crate) row: Option<FirstRow>,
}

impl<'a> CreateRequest<'a> {
    /// Creates the job if the request passes all checks.
    pub(crate) async fn make(&self) -> Result<Made, OpsRefusal> {
        let digest = format!("{}:{:?}:{}", self.body.digest, self.how.mode, self.how.is_rehearsal);
        let mut id = self.draw()?;
        if self.how.key.is_some() && !self.how.is_rehearsal {
            // The id ends in a digest of the user and the key. So a job of the same user under the same key has the same end, even if its
            // name differs. Jobs of other users are skipped: their ends are a coincidence.
            let known = self.parts.ops.jobs();
            let end = id.rsplit_once('-').map_or("", |(_, end)| end);
            let own = known.iter().filter(|job| job.summary.is_of(self.caller.id(), &self.caller.name));
            let is_same = |name: &&str| name.rsplit_once('-').is_some_and(|(_, of)| of == end);
            let known = own.map(|job| job.view.name.as_str()).filter(is_same).find(|name| *name != id);
            let known = known.unwrap_or(&id);
            let is_made = self.parts.lookups.look_up(self.sharer, self.was_made(known, &digest)).await?;
            if is_made {
                return Ok(Made::Job(id, Vec::new()));
            }
        }
        let (job, bounds, _claim) = self.parts.lookups.look_up(self.sharer, self.judge(&id)).await?;
        let is_bound = bounds != CallerBounds::None;
        let bytes = (text_len(&self.document(&id, &job, &digest, None)) as u64).saturating_add(OF_OBJECT);
        if self.how.is_rehearsal {
            if is_bound {
                self.parts.has_room(self.caller, bytes)?;
            }
            return Ok(Made::Rehearsal(job));
        }
        let mut room = None;
        if is_bound {
            room = Some(self.parts.room_of(self.caller, bytes).await?);
            // A request without room must not use up the daily quota.
            self.parts.take_row(self.caller)?;
        }
        // Only an accepted request waits for its row here. A refused request gets a small row later.
        if let Some((audit, row)) = self.parts.audit.as_ref().zip(self.row.as_ref()) {
            audit.begin(row.send()).await?;
        }
        for _ in 0..DRAWS {
            let document = self.document(&id, &job, &digest, room.as_ref().map(|room| &room.key));
            match self.send(document, room.as_mut()).await {
                Ok(()) => return Ok(Made::Job(id, job.ignored)),
                Err(kube::Error::Api(status)) if status.code == 409 && self.how.key.is_some() => {
                    return if self.was_made(&id, &digest).await? {
                        Ok(Made::Job(id, job.ignored))
                    } else {
                        Err(OpsRefusal::new(
                            Code::Unreachable,
                            "the earlier job with this id is being deleted; try again",
                        )
                        .after(1))
                    };
                }
                Err(kube::Error::Api(status)) if status.code == 409 => id = self.draw()?,
                Err(error) => return Err(of_request(&error, "create the OpsJob")),
            }
        }
        Err(OpsRefusal::new(Code::Internal, "no id is free for a job of this name; choose another name"))
    }

    fn draw(&self) -> Result<String, OpsRefusal> {
        let mut bytes = [0; 6];
        match &self.how.key {
            Some(key) => bytes = bytes_of_key(&format!("{}/{}", self.caller.name, self.caller.uid), key),
            None => SystemRandom::new().fill(&mut bytes).map_err(|_| {
                OpsRefusal::new(Code::Internal, "failed to get random numbers from the operating system")
            })?,
        }
        Ok(job_id(&self.body.name, bytes))
    }

    /// Returns true if the same request has made the job of this id before.
    async fn was_made(&self, id: &str, digest: &str) -> Result<bool, OpsRefusal> {
        let stored = self.parts.jobs().get_opt(id).await.map_err(|error| of_request(&error, "read the OpsJob"))?;
        let document = match (stored, &self.parts.history) {
            (Some(stored), _) => serde_json::to_value(&stored).unwrap_or_default(),
            (None, None) => return Ok(false),
            (None, Some(history)) => {
                let gone = history.job(id).await.map_err(|failed| of_history(&failed))?;
                let since = self.parts.now().checked_sub(KEY_KEPT).unwrap_or_default();
                let Some(gone) = gone.filter(|gone| gone.row.created > since) else { return Ok(false) };
                gone.document
            }
        };
        let annotations = document.pointer("/metadata/annotations");
        let is_same = annotations.and_then(|all| all.get(REQUEST)).is_some_and(|own| own == digest);
        if is_same && OpsSummary::read(&document).is_of(self.caller.id(), &self.caller.name) {
            return Ok(true);
        }
        Err(OpsRefusal::new(
            Code::Conflict,
            "Idempotency-Key: you used this key for another request; choose another key",
        ))
    }

    /// Collects the facts that the decision needs, in the order in which it asks for them.
    async fn judge(&self, id: &str) -> Result<(NewJob, CallerBounds, Option<Reservation<'a>>), OpsRefusal> {
        let parts = self.parts;
        let (mut facts, mut reservation) = (RequestFacts::default(), None);
        let host = (parts.host)();
        let node = host.as_ref().ok().and_then(|host| host.node.as_deref());
        let here = Here { cluster: &parts.cluster, node };
        loop {
            match decide_create(self.body, &facts, here)? {
                // The decision asks for the bounds before it accepts a job.
                CreateDecision::Accepted(job) => {
                    return Ok((job, facts.bounds.unwrap_or(CallerBounds::None), reservation));
                }
                CreateDecision::NeedsFact(RequiredFact::Service) => {
                    let unknown = |why: &Unpublished| OpsRefusal::new(Code::Unreachable, why.describe()).after(1);
                    facts.service = Some(host.as_ref().map_err(unknown)?.service(&self.body.asked));
                }
                CreateDecision::NeedsFact(RequiredFact::Locked(locks)) => {
                    parts.check_listed()?;
                    let reserved = parts.reservations.take(id, locks, &parts.ops);
                    facts.locked_target = Some(match reserved {
                        Ok(reserved) => {
                            reservation = Some(reserved).filter(|_| !self.how.is_rehearsal);
                            None
                        }
                        Err(locked) => Some(locked),
                    });
                }
                CreateDecision::NeedsFact(need) => self.find_out(need, &mut facts).await?,
            }
        }
    }

    async fn find_out(&self, need: RequiredFact, facts: &mut RequestFacts) -> Result<(), OpsRefusal> {
        let parts = self.parts;
        match need {
            RequiredFact::Rights(all) => facts.rights.extend(parts.rights.of(self.caller, all).await?),
            RequiredFact::NodeOperations(namespace) => {
                let is_so = parts.gives_node_operations(&namespace).await?;
                facts.node_operations.insert(namespace, is_so);
            }
            RequiredFact::Bounds => facts.bounds = Some(parts.bounds_of(self.caller).await?),
            RequiredFact::Candidates(text) => {
                if WorkloadName::read(&text).is_none() {
                    parts.rates.take_search(self.caller).await?;
                }
                let found = parts.ops.cluster().ask(|answers| candidates(&text, answers)).await;
                facts.candidates.insert(text, found.map_err(|failed| of_read(&failed))?);
            }
            RequiredFact::Found(workloads) => {
                let workloads: Vec<String> = workloads.iter().map(WorkloadName::text).collect();
                let find = |answers: &Answers| find(&self.body.asked, &workloads, parts.system, answers);
                let found = async { parts.ops.cluster().ask(find).await.map_err(|failed| of_read(&failed)) };
                let (gap, found) = futures::try_join!(parts.policy_gap(), found)?;
                facts.found = Some(Found { gap, ..found });
            }
            RequiredFact::Service | RequiredFact::Locked(_) => {}
        }
        Ok(())
    }

    /// Returns the job to create, with an annotation for the key that it counts against.
    fn document(&self, id: &str, job: &NewJob, digest: &str, key: Option<&QuotaKey>) -> Value {
        let mut spec = job.spec.clone();
        spec.insert("requester".to_owned(), json!({"id": self.caller.id(), "name": self.caller.name}));
        spec.extend(
            job.resolved.fields(job.workspace.as_deref()).into_iter().map(|(field, value)| (field.to_owned(), value)),
        );
        let request = self.how.key.as_ref().map(|_| (REQUEST.to_owned(), json!(digest)));
        let counts = (QUOTA_KEY.to_owned(), json!(key.map_or_else(|| EXEMPT.to_owned(), QuotaKey::text)));
        let annotations: HashMap<String, Value> = request.into_iter().chain([counts]).collect();
        // The job has the finalizer from the start. So its id stays readable for as long as the history keeps jobs.
        let finalizers: Vec<&str> = self.parts.history.iter().map(|_| HISTORY).collect();
        json!({"apiVersion": API_VERSION, "kind": OPS_KIND,
            "metadata": {"name": id, "annotations": annotations, "finalizers": finalizers}, "spec": spec})
    }

    async fn send(&self, document: Value, room: Option<&mut RoomOfJob<'_>>) -> Result<(), kube::Error> {
        let document: DynamicObject = serde_json::from_value(document).map_err(kube::Error::SerdeError)?;
        let made = self.parts.jobs().create(&PostParams::default(), &document).await?;
        if let Some((room, uid)) = room.zip(made.metadata.uid.as_deref()) {
            let version = made.metadata.resource_version.as_deref().and_then(|version| version.parse().ok());
            room.made(uid, version.unwrap_or(0));
        }
        // The cache takes the job at once, so that the next request finds it.
        self.parts.ops.take(&serde_json::to_value(&made).unwrap_or_default());
        Ok(())
    }
}
