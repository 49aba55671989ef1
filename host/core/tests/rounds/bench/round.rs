//! One round, from its reads to its decisions, as `host/src/round.rs` runs it.

use std::sync::Arc;

use oarlock_api::{OperationJob, OperationRecord};
use oarlock_core::object::api_object::Kind;
use oarlock_core::object::time::after_millis;
use oarlock_core::operation_job::round::context::{Observed, Round};
use oarlock_core::operation_job::round::decide::{WriteSpan, commit};
use oarlock_core::operation_job::round::open_round::OpenRound;
use oarlock_core::operation_job::round::refresh::{Refresh, refresh};
use oarlock_core::plugin::visit::{Answer, Visit};
use oarlock_core::requests::live_reads::{LiveRead, LiveReads, ReadFailure};

use crate::bench::Bench;
use crate::bench::weather::Look;

impl Bench {
    fn read_live(&mut self) -> LiveReads {
        let mut live = LiveReads::default();
        for read in self.memory.work.all_reads(&self.memory.decisions.selecting) {
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

    /// Returns the records as the host lists them.
    pub(crate) fn read_records(&self) -> Vec<OperationRecord> {
        let stored = self.records.values().filter_map(|record| serde_json::from_value(record.clone()).ok());
        let mut records: Vec<OperationRecord> = stored.collect();
        records.sort_by_key(|record| record.record.shard);
        records
    }

    /// Runs one round. `answer` is the plugin.
    pub(crate) fn round(&mut self, answer: &mut dyn FnMut(&Visit) -> Answer) {
        self.next = None;
        if self.job_is_gone {
            return;
        }
        let job: OperationJob = serde_json::from_value(self.job.clone()).unwrap();
        let records = self.memory.stored.operation_records.wanted.then(|| self.read_records());
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
        let (mut open, events) = OpenRound::open(&round, &mut self.memory, refreshed, &tables, &mut self.queue);
        self.event_reasons.extend(events.into_iter().map(|event| event.reason));
        let serves = round.serving().is_some() && self.weather.plugin();
        while open.updates().len() < self.visits_in_time
            && let Some(mut next) = open.next_visit(&self.memory.stored, &mut self.memory.targets, serves)
        {
            let answered = next.visit.take().map(|visit| answer(&visit));
            open.judge(next, answered, &self.memory.stored, &mut self.memory.targets);
        }
        let mut decision = open.conclude(&mut self.memory);
        std::mem::take(&mut self.memory.targets.woken).into_iter().for_each(|(_, index)| self.requeue(index));
        if !decision.record.is_empty() && !self.weather.records() {
            self.memory.drop_decisions();
            let wait = 50i64.saturating_mul(1 << self.tries.min(9));
            self.tries += 1;
            self.next = Some(after_millis(self.now, wait));
            return;
        }
        self.tries = 0;
        decision.commit.operation_records = self.store_record(&decision.record);
        for (_, target) in self.memory.stored.ended_by(&decision.commit) {
            let reason = target.error.as_ref().map(|error| format!("/{}", error.reason));
            self.ended.push(target.progress.word().to_owned() + &reason.unwrap_or_default());
        }
        let events =
            commit(&round, decision.commit, &mut self.memory, &tables, WriteSpan { began: self.now, ended: self.now });
        self.event_reasons.extend(events.into_iter().map(|event| event.reason));
        decision.entries.into_iter().for_each(|entry| self.queue.push(entry));
        self.next = self.memory.next(decision.requeue_at, decision.must_wait);
        self.send();
    }

    /// Runs rounds until nothing is due at once.
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
