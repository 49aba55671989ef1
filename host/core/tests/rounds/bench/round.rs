//! One round, from what is read to what is decided, as `host/src/round.rs` makes it.

use std::sync::Arc;

use oarlock_api::{OperationJob, OperationRecord};
use oarlock_core::cluster::live_reads::{LiveRead, LiveReads, ReadFailure};
use oarlock_core::cluster::object::Kind;
use oarlock_core::job::time::after_millis;
use oarlock_core::plugin::visit::{Answer, Visit};
use oarlock_core::round::calls::PlannedCall;
use oarlock_core::round::context::{Observed, Round};
use oarlock_core::round::decide::{commit, conclude};
use oarlock_core::round::plan::prepare;
use oarlock_core::round::refresh::{Refresh, refresh};
use oarlock_core::shared::tables::lock;

use crate::bench::Bench;
use crate::bench::weather::Look;

impl Bench {
    fn read_live(&mut self) -> LiveReads {
        let mut live = LiveReads::default();
        for read in self.memory.live_reads() {
            let failed = match self.weather.look(&read) {
                Look::Answered => None,
                Look::Silent => Some(false),
                Look::Refused => Some(true),
            };
            let Some(refused) = failed else {
                if let LiveRead::Controllers { namespace } = &read {
                    let unresolved = self.store.unresolved(&Kind::pod(), namespace);
                    unresolved.iter().for_each(|owner| self.store.learn_root(namespace, &owner.uid, owner));
                }
                if let LiveRead::Selection { kind, namespace, query } = &read {
                    let found = self.selects(kind, namespace.as_deref(), query);
                    live.selections.insert(read.clone(), found);
                }
                if let LiveRead::Object(key) = &read
                    && !self.store.keeps(&key.kind)
                {
                    live.objects.insert(key.clone(), self.unwatched.get(key).cloned());
                }
                live.answered.insert(read);
                continue;
            };
            live.failed.insert(read, ReadFailure { message: "the weather is bad".into(), refused });
        }
        live
    }

    /// The records as the host lists them.
    pub(crate) fn read_records(&self) -> Vec<OperationRecord> {
        let stored = self.records.values().filter_map(|record| serde_json::from_value(record.clone()).ok());
        let mut records: Vec<OperationRecord> = stored.collect();
        records.sort_by_key(|record| record.record.shard);
        records
    }

    /// One round. `answer` is the plugin.
    pub(crate) fn round(&mut self, answer: &mut dyn FnMut(&Visit) -> Answer) {
        self.next = None;
        if self.job_is_gone {
            return;
        }
        let job: OperationJob = serde_json::from_value(self.job.clone()).unwrap();
        let records = self.memory.shards.wanted.then(|| self.read_records());
        let observed = Observed {
            now: self.now,
            job: Some(Arc::new(job.clone())),
            records,
            live: self.read_live(),
            served: self.served.clone(),
            namespace_terminating: self.namespace_terminating,
            node_operations: self.node_operations,
            tasks: self.tasks.clone(),
        };
        let (found, store, tables) = (self.found.clone(), self.store.clone(), self.tables.clone());
        let refreshed = refresh(&mut self.memory, &job, &observed);
        if refreshed == Refresh::NeedsRecords {
            self.next = Some(self.now);
            return;
        }
        let round = Round::begin(&Self::key(), &observed, &found, &store, &mut self.memory).unwrap();
        let (plan, events) = prepare(&round, &mut self.memory, refreshed, &tables, &mut self.queue);
        self.told.extend(events.into_iter().map(|event| event.reason));
        let facts = round.job_facts(&self.memory);
        let mut verdicts = Vec::new();
        let there = round.serving().is_some() && self.weather.plugin();
        for (index, planned) in plan.visits.iter().take(self.visits_in_time) {
            let mut known = self.memory.targets.remove(index).unwrap_or_default();
            let call = PlannedCall { target: round.target(*index, &self.memory).unwrap(), planned };
            let verdict = if there && call.wants_plugin(&known) {
                let (visit, reads) = call.input(&facts, &self.memory, &known, &tables);
                let answered = answer(&visit);
                call.judge(Some((answered, &reads)), &mut known, &mut lock(&tables))
            } else {
                call.judge(None, &mut known, &mut lock(&tables))
            };
            verdicts.push((*index, verdict));
            self.memory.targets.insert(*index, known);
        }
        plan.visits_made(verdicts.len(), &mut self.memory);
        let mut decision = conclude(&round, plan, verdicts, &mut self.memory, &tables);
        std::mem::take(&mut self.memory.woken).into_iter().for_each(|(_, index)| self.memory.turn_to(index));
        if !decision.record.is_empty() && !self.weather.records() {
            self.memory.forget_plan();
            let wait = 50i64.saturating_mul(1 << self.tries.min(9));
            self.tries += 1;
            self.next = Some(after_millis(self.now, wait));
            return;
        }
        self.tries = 0;
        decision.commit.shards = self.store_record(&decision.record);
        for (_, target) in self.memory.ended_by(&decision.commit) {
            let reason = target.error.as_ref().map(|error| format!("/{}", error.reason));
            self.ended.push(target.progress.word().to_owned() + &reason.unwrap_or_default());
        }
        let events = commit(&round, decision.commit, &mut self.memory, &tables, (self.now, self.now));
        self.told.extend(events.into_iter().map(|event| event.reason));
        decision.entries.into_iter().for_each(|entry| self.queue.push(entry));
        self.next = self.memory.next(decision.requeue, decision.rests);
        self.send();
    }

    /// Rounds until nothing is due at once.
    pub(crate) fn settle(&mut self, answer: &mut dyn FnMut(&Visit) -> Answer) {
        for _ in 0..50 {
            self.round(answer);
            if self.next.is_none_or(|time| time > self.now) {
                return;
            }
        }
        panic!("the job never comes to rest: {:#?}", self.memory);
    }
}
