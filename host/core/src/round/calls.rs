//! One call of one target: what the plugin is given, and what its answer means.
//!
//! Takes a planned visit; yields the [`Visit`] that `oarlock-wasm` makes, and judges what comes back. May not call.

use std::sync::{Arc, Mutex, RwLock};

use crate::cluster::object::ObjectKey;
use crate::job::state::{TargetState, extras};
use crate::plugin::proposal::Proposal;
use crate::plugin::visit::{Answer, Call, JobFacts, TargetFacts, Visit};
use crate::round::judge::{Case, Verdict};
use crate::round::memory::JobMemory;
use crate::round::standing::{Standing, milliseconds};
use crate::round::target::{Common, Planned, asked_to_go};
use crate::shared::claims::Claims;
use crate::shared::reads::{Subject, VisitReads};

/// One call of one target.
pub struct OneCall<'a> {
    /// What the round knows of its job.
    pub standing: &'a Standing<'a>,
    /// What the targets have in common.
    pub common: &'a Common<'a>,
    /// What the plugin is told of the job.
    pub facts: &'a Arc<JobFacts>,
    /// The table of claims.
    pub claims: &'a Arc<RwLock<Claims>>,
    /// Index of the target.
    pub index: u32,
    /// Its name.
    pub name: &'a str,
    /// Its durable state.
    pub stored: &'a TargetState,
    /// What was planned.
    pub planned: &'a Planned,
}

impl OneCall<'_> {
    /// The visit, with the reads that note which looks it lacks.
    pub fn visit(&self, memory: &mut JobMemory) -> (Visit, Arc<VisitReads>) {
        let reads = Arc::new(self.reads(memory));
        let call = self.planned.call;
        (Visit { job: self.facts.clone(), target: self.target(memory), call, reads: reads.clone() }, reads)
    }

    /// What the plugin's answer means.
    pub fn judge(&self, answer: Answer, reads: &VisitReads, memory: &mut JobMemory, claims: &mut Claims) -> Verdict {
        let key = self.common.pod(self.name);
        self.case(&key).judge(answer, reads.missing(), memory.target(self.index), claims)
    }

    /// Whether the plugin is to be asked at all: a release that it refused goes on without it.
    pub fn wants_plugin(&self, memory: &mut JobMemory) -> bool {
        self.planned.call != Call::Release || !memory.target(self.index).release_alone
    }

    /// What happens without a plugin: the host lets go of what is held, and everything else waits.
    pub fn unanswered(&self) -> Verdict {
        let key = self.common.pod(self.name);
        match self.planned.call {
            Call::Release => self.case(&key).let_go(&Proposal::default()),
            _ => Verdict::default(),
        }
    }

    fn case<'b>(&'b self, key: &'b ObjectKey) -> Case<'b> {
        let (stored, planned, common) = (self.stored, self.planned, self.common);
        Case { index: self.index, key, stored, planned, common, plugin: common.plugin }
    }

    fn target(&self, memory: &mut JobMemory) -> TargetFacts {
        let containers = memory.state.names.get(self.index as usize).and_then(|target| target.containers.clone());
        TargetFacts {
            name: self.name.to_owned(),
            index: self.index,
            kind: "Pod".to_owned(),
            object: self.planned.object.clone(),
            containers: containers.unwrap_or_default(),
            extras: self.stored.extra.clone(),
            attempt: self.planned.state.attempt,
            call_try: memory.target(self.index).tries + 1,
            started_ms: self.planned.state.start.map_or(0, milliseconds),
            deadline_ms: self.common.deadline(&self.planned.state).map(milliseconds),
        }
    }

    fn reads(&self, memory: &mut JobMemory) -> VisitReads {
        let state = &self.planned.state;
        let noted = state.extra(extras::EVICTED_AT).and_then(|text| text.parse().ok());
        let seen = self.planned.object.as_deref().and_then(asked_to_go);
        let since =
            noted.or(seen).or(memory.target(self.index).evicted_at).or(state.start).unwrap_or(self.standing.now);
        let owner = state.extra(extras::OWNER).and_then(|text| {
            let (kind, _) = text.split_once('/')?;
            Some((kind.to_owned(), text.rsplit('/').next()?.to_owned()))
        });
        VisitReads {
            store: self.standing.store.clone(),
            claims: self.claims.clone(),
            looked: self.standing.looked.clone(),
            registration: Arc::new(self.common.plugin.map(|plugin| plugin.registration.clone()).unwrap_or_default()),
            subject: Subject {
                namespace: self.standing.key.namespace.clone(),
                name: self.name.to_owned(),
                uid: state.uid.clone().unwrap_or_default(),
                extras: self.stored.extra.clone(),
                job_uid: self.standing.uid().to_owned(),
                since: crate::job::state::whole(since),
                owner,
                node: state.extra(extras::NODE).map(str::to_owned),
            },
            all_live: self.planned.last_look,
            missing: Mutex::default(),
        }
    }
}
