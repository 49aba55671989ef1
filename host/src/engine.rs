//! The engine: runs the rounds of one kind whose plans are pure functions.
//!
//! A round observes an object and its children, plans, makes the reads that the plan asks for and plans again, sends the
//! plan's writes, and stores the status. Writes and events that depend on the new status follow only after it is stored.
//! After a failed write, the engine plans once more, so that the status can say so, and repeats the round later.

use std::collections::BTreeSet;
use std::sync::Arc;

use futures::future::join_all;
use k8s_openapi::jiff::Timestamp;
use oarlock_core::cache::object_cache::CachedObject as _;
use oarlock_core::kind::locks::TargetLocks;
use oarlock_core::kind::plan::{KindPlan, NewStatus, StoreTime, Trouble};
use oarlock_core::kind::plan_kind::{PlanKind, Seen};
use oarlock_core::object::api_object::ObjectKey;
use oarlock_core::requests::reads::{Answers, KeptObjects, Pending, Read, ReadFailed};
use oarlock_core::requests::writes::{EventNote, FailedWrite, Recorded, Stopped, Write};
use oarlock_kube::kinds::KindPort;
use oarlock_kube::lease::fence::Fence;
use parking_lot::RwLock;
use serde_json::Value;
use tokio::time::{Duration, Instant, sleep};
use tracing::Instrument as _;

use crate::metrics::Metrics;
use crate::reconcilers::{NextRound, Reconcile};
use crate::round_trouble::RoundTrouble;
use crate::status_rate_limit::{SharedRateLimit, StatusRateLimit, StatusWrite};
use crate::traces::SPANS;

/// The wait before the next attempt to list the objects, if a list failed at the start of a term.
const READ_AGAIN: Duration = Duration::from_secs(1);
/// The most plans of one round. A plan that still asks after so many answers would ask forever.
const PLANS: usize = 16;

/// The host's own part in the rounds of a kind: answers that no API server has, and side effects in this process.
pub(crate) trait HostSide<K: PlanKind>: Send + Sync + 'static {
    /// Answers a read of an object that exists only in this process.
    fn answer(
        &self,
        read: &Read,
        round: &RoundView<'_, K>,
    ) -> impl Future<Output = Result<KeptObjects, ReadFailed>> + Send {
        let _ = round;
        let message = format!("this host has no {}", read.kind.kind);
        async { Err(ReadFailed { message, is_refused: true, retry_after: None }) }
    }

    /// Handles a write right before it is sent.
    fn sends(&self, object: &K::Object, write: &Write) {
        let _ = (object, write);
    }

    /// Handles a status after it is stored.
    fn stored(&self, object: &K::Object, status: &NewStatus) {
        let _ = (object, status);
    }

    /// Handles the end of the first complete list of a term.
    fn has_seen_all(&self) {}
}

/// The view that a round has of its object.
pub(crate) struct RoundView<'a, K: PlanKind> {
    pub(crate) object: &'a Arc<K::Object>,
    pub(crate) children: &'a [Arc<K::Child>],
    pub(crate) answers: &'a Answers,
    pub(crate) now: Timestamp,
}

/// The rounds of one kind in one term.
pub(crate) struct KindEngine<K: PlanKind, H> {
    port: KindPort<K>,
    host: H,
    fence: Fence,
    metrics: Arc<Metrics>,
    locks: RwLock<TargetLocks>,
    shared_limit: SharedRateLimit<ObjectKey>,
}

/// The state that a term keeps of an object between two rounds.
#[derive(Debug)]
pub(crate) struct EngineMemory<K: PlanKind> {
    /// The UID of the object.
    uid: String,
    plan: K::Memory,
    pace: StatusRateLimit,
}

impl<K: PlanKind> Default for EngineMemory<K> {
    fn default() -> Self {
        Self { uid: String::new(), plan: K::Memory::default(), pace: StatusRateLimit::default() }
    }
}

/// The steps that follow once a status is stored.
struct AfterStatus {
    writes: Vec<Write>,
    events: Vec<EventNote>,
}

impl<K: PlanKind, H: HostSide<K>> KindEngine<K, H> {
    /// Begins the term that `fence` guards.
    pub(crate) fn begin(port: KindPort<K>, host: H, fence: Fence, metrics: Arc<Metrics>) -> Self {
        let shared_limit = SharedRateLimit::default();
        Self { port, host, fence, metrics, locks: RwLock::default(), shared_limit }
    }

    fn now(&self) -> Timestamp {
        self.port.cluster().clock().now()
    }

    /// Releases the locks of other objects of this name, after a live read shows that they are deleted. The watch alone
    /// is not enough, because the API server may not serve the kind for a moment.
    async fn release_others(&self, key: &ObjectKey, uid: &str) -> Result<(), RoundTrouble> {
        let others = self.locks.read().others(&holder_name(key), uid);
        if others.is_empty() {
            return Ok(());
        }
        let stored = self.port.read_again(key).await.map_err(RoundTrouble::of_read)?;
        let mut locks = self.locks.write();
        others.iter().filter(|other| stored.as_ref() != Some(*other)).for_each(|other| locks.release(other));
        Ok(())
    }

    /// Plans, after the reads that the plan asks for. Adds their answers to those of the round.
    async fn plan(&self, about: PlanInput<'_, K>, answers: &mut Answers) -> Result<KindPlan<K::Memory>, RoundTrouble> {
        let object = about.object;
        for _ in 0..PLANS {
            let children = self.port.cache().children(object);
            let round = RoundView { object, children: &children, answers, now: self.now() };
            let reads = match self.plan_once(about, &round) {
                Ok(Some(plan)) => return Ok(plan),
                // Another object has taken a lock meanwhile.
                Ok(None) => continue,
                Err(Pending::Failed(failed)) => return Err(RoundTrouble::of_read(failed)),
                Err(Pending::Reads(reads)) => reads,
            };
            let read = self.read(reads, &round).await;
            read.into_iter().for_each(|(read, answer)| answers.insert(read, answer));
        }
        Err(RoundTrouble::new("the plan still asks for reads after all answers"))
    }

    /// Plans, and changes the locks of the object as the plan says. Returns `None` if another object has taken one of these locks since the
    /// plan saw them.
    fn plan_once(
        &self,
        about: PlanInput<'_, K>,
        round: &RoundView<'_, K>,
    ) -> Result<Option<KindPlan<K::Memory>>, Pending> {
        let PlanInput { object, memory, failed } = about;
        let RoundView { children, answers, now, .. } = *round;
        let plan = {
            // Plans of other objects may run at the same time.
            let locks = self.locks.read();
            let plan =
                self.port.kind().plan(&Seen { object, children, memory, answers, failed, locks: &locks, now })?;
            if locks.is_applied(object.uid(), &plan.locks) {
                return Ok(Some(plan));
            }
            plan
        };
        let changed = self.locks.write().apply(object.uid(), &holder_name(&object.key()), &plan.locks);
        Ok(changed.is_ok().then_some(plan))
    }

    /// Makes these reads at the same time. Returns each with its answer.
    async fn read(
        &self,
        reads: BTreeSet<Read>,
        round: &RoundView<'_, K>,
    ) -> Vec<(Read, Result<KeptObjects, ReadFailed>)> {
        let read = reads.into_iter().map(|read| async move {
            let answer = match read.is_of_host() {
                true => self.host.answer(&read, round).await,
                false => self.port.cluster().answer(&read).await,
            };
            // A newer view of the object itself leads to another round.
            if let (Ok(kept), true) = (&answer, read == Read::one(round.object.key())) {
                kept.one::<Value>().iter().for_each(|document| self.port.take(document));
            }
            (read, answer)
        });
        join_all(read).await
    }

    /// Sends these writes in order. Returns the first one that failed. A write of the object itself makes another version of it, so it
    /// ends the round, and the result says so.
    async fn send_all(&self, object: &K::Object, writes: &[Write]) -> Result<Sent, FailedWrite> {
        let own = object.key();
        for write in writes {
            self.host.sends(object, write);
            let sent = self.port.send(object, write, &self.fence).await;
            sent.map_err(|stopped| FailedWrite { write: write.clone(), stopped })?;
            if *write.object() == own {
                return Ok(Sent::Own);
            }
        }
        Ok(Sent::Others)
    }

    /// Stores the status of a plan, if there is one, and then does what follows. Returns the wait if the status must wait.
    async fn store(
        &self,
        object: &K::Object,
        plan: KindPlan<K::Memory>,
        pace: &mut StatusRateLimit,
    ) -> Result<Option<Duration>, RoundTrouble> {
        let KindPlan { status, after_status, events, .. } = plan;
        let Some(status) = status else { return Ok(None) };
        if let Some(wait) = self.wait_for(&status, pace) {
            return Ok(Some(wait));
        }
        let (key, began) = (object.key(), Instant::now());
        let after = AfterStatus { writes: after_status, events };
        let persisted = self.port.persist(object, &status, after, &self.fence).await;
        let owner = self.port.kind().quota(object);
        pace.wrote(StatusWrite { key: &key, owner, ended: self.now(), took: began.elapsed() }, &self.shared_limit);
        let recorded = persisted.map_err(|stopped| RoundTrouble::of("write the status", &stopped))?;
        self.host.stored(object, &status);
        self.follow(object, recorded).await
    }

    /// Returns the wait before the status may be stored, if it must wait.
    fn wait_for(&self, status: &NewStatus, pace: &StatusRateLimit) -> Option<Duration> {
        let StoreTime::InTurn(not_before) = status.when else { return None };
        let until = |time: Timestamp| Duration::try_from(time.duration_since(self.now())).ok();
        let of_pace = pace.next(false, false).map(|due| due.saturating_duration_since(Instant::now()));
        not_before.and_then(until).max(of_pace).filter(|wait| !wait.is_zero())
    }

    /// Does what follows a status. The proof says that the status is stored.
    async fn follow(
        &self,
        object: &K::Object,
        recorded: Recorded<AfterStatus>,
    ) -> Result<Option<Duration>, RoundTrouble> {
        let AfterStatus { writes, events } = recorded.then;
        if !events.is_empty() {
            self.port.cluster().emit(events);
        }
        let sent = self.send_all(object, &writes).await;
        sent.map(|_| None).map_err(|FailedWrite { write, stopped }| RoundTrouble::of(&write.describe(), &stopped))
    }
}

/// The inputs of a plan, beside the results of the round's reads.
struct PlanInput<'a, K: PlanKind> {
    object: &'a Arc<K::Object>,
    memory: &'a K::Memory,
    failed: &'a [FailedWrite],
}

impl<K: PlanKind> Clone for PlanInput<'_, K> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<K: PlanKind> Copy for PlanInput<'_, K> {}

/// Returns the name by which the locks know an object. Objects of two namespaces may have the same name.
fn holder_name(key: &ObjectKey) -> String {
    match &key.namespace {
        Some(namespace) => format!("{namespace}/{}", key.name),
        None => key.name.clone(),
    }
}

/// The objects that writes have changed.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Sent {
    /// The object of the round, as the last one.
    Own,
    /// Other objects, or none.
    Others,
}

impl<K: PlanKind, H: HostSide<K>> Reconcile for KindEngine<K, H> {
    type Memory = EngineMemory<K>;

    fn metrics(&self) -> &Metrics {
        &self.metrics
    }

    async fn ready(&self) {
        self.port.synced().await;
        while let Err(failed) = self.port.read_all().await {
            let kind = self.port.kind().objects().kind.kind;
            tracing::warn!(kind, error = failed.message, "failed to list the objects of a kind; retrying");
            sleep(READ_AGAIN).await;
        }
        self.host.has_seen_all();
        let (kind, mut objects) = (self.port.kind(), self.port.cache().all());
        // If two objects claim a lock, the first of this order has it.
        objects.sort_by_cached_key(|object| (kind.claim_order(object), object.key()));
        let mut locks = self.locks.write();
        for object in objects {
            // The other one finds out in its next round.
            let _ = locks.take(object.uid(), &holder_name(&object.key()), &kind.stored_locks(&object));
        }
    }

    /// The share is a namespace, or the user who asked for an object without a namespace.
    fn share(&self, key: &ObjectKey) -> String {
        let object = self.port.cache().get(key);
        object.map(|object| self.port.kind().share(&object).text()).unwrap_or_default()
    }

    fn all(&self) -> Vec<ObjectKey> {
        self.port.cache().all().iter().map(|object| object.key()).collect()
    }

    fn take_changed(&self) -> Vec<ObjectKey> {
        self.port.cache().take_dirty().into_iter().collect()
    }

    async fn changed(&self) {
        self.port.cache().until_dirty().await;
    }

    async fn round(
        &self,
        key: &ObjectKey,
        memory: &mut EngineMemory<K>,
        _since: Option<Instant>,
    ) -> Result<NextRound, RoundTrouble> {
        let observing = self.port.certain(key).instrument(tracing::trace_span!(target: SPANS, "observe"));
        let object = observing.await.map_err(RoundTrouble::of_read)?;
        let uid = object.as_ref().map_or("", |object| object.uid());
        if uid != memory.uid || uid.is_empty() {
            self.release_others(key, uid).await?;
            *memory = EngineMemory { uid: uid.to_owned(), ..EngineMemory::default() };
        }
        let Some(object) = object else { return Ok(NextRound::Gone) };
        let about = PlanInput { object: &object, memory: &memory.plan, failed: &[] };
        let mut answers = Answers::default();
        let planning = self.plan(about, &mut answers).instrument(tracing::trace_span!(target: SPANS, "plan"));
        let mut plan = planning.await?;
        let applying = self.send_all(&object, &plan.writes).instrument(tracing::trace_span!(target: SPANS, "apply"));
        let failed = match applying.await {
            Ok(Sent::Own) => return Ok(NextRound::After(None)),
            Ok(Sent::Others) => None,
            Err(FailedWrite { write, stopped: Stopped::LostLease }) => {
                return Err(RoundTrouble::of(&write.describe(), &Stopped::LostLease));
            }
            Err(failed) => Some(failed),
        };
        if let Some(failed) = &failed {
            plan = self.plan(PlanInput { failed: std::slice::from_ref(failed), ..about }, &mut answers).await?;
        }
        memory.plan = plan.memory.clone();
        let (again, trouble) = (plan.again, plan.trouble.take());
        // The observed state is valid even if a write failed.
        let recording = self.store(&object, plan, &mut memory.pace);
        let due = recording.instrument(tracing::trace_span!(target: SPANS, "record")).await?;
        if let Some(FailedWrite { write, stopped }) = failed {
            return Err(RoundTrouble::of(&write.describe(), &stopped));
        }
        if let Some(Trouble { message, retry_after }) = trouble {
            return Err(RoundTrouble::of_read(ReadFailed { message, is_refused: false, retry_after }));
        }
        let again = again.map(|time| Duration::try_from(time.duration_since(self.now())).unwrap_or_default());
        Ok(NextRound::After(again.into_iter().chain(due).min()))
    }

    fn ended(&self, _key: &ObjectKey, _memory: &mut EngineMemory<K>, _took: Duration) {}

    fn is_gone(&self, _key: &ObjectKey) {}
}
