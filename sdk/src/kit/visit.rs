//! Takes a target and what surrounds it, built word by word, and yields the
//! answers of an action. May not make any change: it shows what was proposed.

use std::collections::BTreeMap;
use std::rc::Rc;

use serde_json::{Value, json};

use super::manifest::Manifest;
use super::memory::{self, JobFacts, Scene, TargetFacts};
use super::sample::Sample;
use crate::wit::{Registration, TaskStatus};
use crate::{Failure, Job, Plugin, Proposal, Report, Result, Target};

/// When each visit takes place, unless it says otherwise: 2026-01-31T12:00:00Z.
pub const NOW: u64 = 1_769_860_800_000;

/// One visit to one target. The job is `job` of the namespace `default`, with
/// the UID `uid-of-job`; the target started one minute before [`NOW`].
#[derive(Debug, Clone)]
#[must_use = "call `operate`, `progress` or `release`"]
pub struct Visit {
    job: JobFacts,
    target: TargetFacts,
    watched: Vec<Value>,
    live: Vec<Value>,
    looked: bool,
    claimed: Vec<String>,
    unserved: Vec<String>,
    config: Value,
}

impl Visit {
    /// A visit to this object.
    pub fn to(target: &Sample) -> Self {
        let object = target.json().clone();
        let name = crate::wit::ObjectRef::from(target).name;
        let mut visit = Self::to_gone(&name);
        visit.target.object = Some(object);
        visit.object(target)
    }

    /// A visit to a target whose object is gone.
    pub fn to_gone(name: &str) -> Self {
        let parameters = json!({});
        let job = JobFacts { uid: "uid-of-job".to_owned(), now_ms: NOW, parameters, cancelled: false };
        let target = TargetFacts {
            name: name.to_owned(),
            object: None,
            containers: Vec::new(),
            extras: BTreeMap::new(),
            attempt: 1,
            call_try: 1,
            started_ms: NOW - 60_000,
            deadline_ms: None,
            tasks: BTreeMap::new(),
        };
        let (watched, live, claimed, unserved) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        Self { job, target, watched, live, looked: true, claimed, unserved, config: json!({}) }
    }

    /// Sets the parameters of the job.
    pub fn parameters(mut self, parameters: Value) -> Self {
        self.job.parameters = parameters;
        self
    }

    /// Sets the operator's settings.
    pub fn config(mut self, config: Value) -> Self {
        self.config = config;
        self
    }

    /// Sets when the visit takes place, in milliseconds since 1970.
    pub fn now_ms(mut self, now_ms: u64) -> Self {
        self.job.now_ms = now_ms;
        self
    }

    /// Has somebody ask for the job to stop.
    pub fn cancelled(mut self) -> Self {
        self.job.cancelled = true;
        self
    }

    /// Stores an extra.
    pub fn extra(mut self, key: &str, value: &str) -> Self {
        self.target.extras.insert(key.to_owned(), value.to_owned());
        self
    }

    /// Names the containers that were asked for.
    pub fn containers(mut self, names: &[&str]) -> Self {
        self.target.containers = names.iter().map(|name| (*name).to_owned()).collect();
        self
    }

    /// Sets which attempt at the target this is.
    pub fn attempt(mut self, attempt: u32) -> Self {
        self.target.attempt = attempt;
        self
    }

    /// Sets which try of the call this is.
    pub fn call_try(mut self, call_try: u32) -> Self {
        self.target.call_try = call_try;
        self
    }

    /// Sets when the host gives up on the target, in milliseconds since 1970.
    pub fn deadline_ms(mut self, deadline_ms: u64) -> Self {
        self.target.deadline_ms = Some(deadline_ms);
        self
    }

    /// Has a task of this name.
    pub fn task(mut self, name: &str, status: TaskStatus) -> Self {
        self.target.tasks.insert(name.to_owned(), status);
        self
    }

    /// Adds an object to the cluster.
    pub fn object(self, object: &Sample) -> Self {
        self.unseen(object).lost(object)
    }

    /// Adds an object that only a look at the API server shows.
    pub fn unseen(mut self, object: &Sample) -> Self {
        self.live.push(object.json().clone());
        self
    }

    /// Adds an object that is gone but still in what the host watches.
    pub fn lost(mut self, object: &Sample) -> Self {
        self.watched.push(object.json().clone());
        self
    }

    /// Has another target hold the object of this name.
    pub fn claimed(mut self, name: &str) -> Self {
        self.claimed.push(name.to_owned());
        self
    }

    /// Has the cluster not serve this kind.
    pub fn unserved(mut self, api_version: &str, kind: &str) -> Self {
        self.unserved.push(format!("{api_version} {kind}"));
        self
    }

    /// Has every live read answer `Unavailable`, as the host does the first
    /// time.
    pub fn before_look(mut self) -> Self {
        self.looked = false;
        self
    }

    /// What the action proposes.
    ///
    /// # Errors
    ///
    /// The failure of the action, or `MutationDenied` for what its manifest
    /// does not ask for.
    pub fn operate<A: Plugin>(&self) -> Result<Proposal> {
        self.call::<A, _>(A::operate).and_then(allowed::<A>)
    }

    /// What the action found.
    ///
    /// # Errors
    ///
    /// As [`Visit::operate`].
    pub fn progress<A: Plugin>(&self) -> Result<Report> {
        let report = self.call::<A, _>(A::progress)?;
        allowed::<A>(report.proposal())?;
        Ok(report)
    }

    /// What the action takes back.
    ///
    /// # Errors
    ///
    /// As [`Visit::operate`].
    pub fn release<A: Plugin>(&self) -> Result<Proposal> {
        self.call::<A, _>(A::release).and_then(allowed::<A>)
    }

    fn call<A: Plugin, T>(&self, function: fn(&Job, &Target) -> Result<T>) -> Result<T> {
        let mut scene = self.scene(manifest::<A>()?);
        scene.registration = memory::within(&Rc::new(scene.clone()), A::setup)?.into();
        let scene = Rc::new(scene);
        let (job, target) = (Job(memory::Job(Rc::clone(&scene))), Target(memory::Target(Rc::clone(&scene))));
        memory::within(&scene, || function(&job, &target))
    }

    fn scene(&self, manifest: Manifest) -> Scene {
        let Self { job, target, watched, live, looked, claimed, unserved, config } = self.clone();
        let registration = Registration { relations: Vec::new(), exclusive_extras: Vec::new() };
        Scene { manifest, registration, job, target, watched, live, looked, claimed, unserved, config }
    }
}

fn manifest<A: Plugin>() -> Result<Manifest> {
    Manifest::parse(A::MANIFEST).map_err(|error| Failure::permanent("ManifestInvalid", error.to_string()))
}

/// The proposal, if the manifest asks for all of it.
fn allowed<A: Plugin>(proposal: Proposal) -> Result<Proposal> {
    let manifest = manifest::<A>()?;
    match proposal.mutations().iter().find_map(|mutation| manifest.denies(mutation)) {
        None => Ok(proposal),
        Some(what) => {
            let message = format!("The manifest does not ask for {what}: add it to `writes`.");
            Err(Failure::permanent("MutationDenied", message))
        }
    }
}
