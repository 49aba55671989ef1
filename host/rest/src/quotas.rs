//! Reserves storage for the jobs of callers without rights in the whole cluster. Source: docs/opsjob-rest.md 12.
//!
//! Decides from the cache whether a request may make a job, deletes ended jobs to make room for it, or refuses it. Requests in progress
//! count too, so concurrent requests get no more than sequential ones.

use std::collections::HashMap;
use std::time::Duration;

use kube::api::{DeleteParams, Patch, PatchParams, Preconditions};
use oarlock_core::object::quota_key::QuotaKey;
use oarlock_core::ops_job::create_decision::CallerBounds;
use oarlock_core::ops_job::gone::{GONE_BY, GoneBy};
use oarlock_core::ops_job::quota::{EndedJob, OverQuota, QuotaBounds, StoredAmount, Usage, check_room};
use oarlock_core::ops_job::refusal::{Code, OpsRefusal};
use oarlock_core::ops_job::row_meter::{JOBS, RowMeter};
use oarlock_core::ops_job::write_meter::MeteredJob;
use oarlock_kube::ops::Ops;
use parking_lot::Mutex;
use serde_json::json;
use tokio::time::{Instant, sleep};

use crate::caller::Caller;
use crate::errors::{of_history, of_request};
use crate::state::RestState;

/// The longest wait of a request until ended jobs are deleted, and the time between two checks.
const GO_WITHIN: Duration = Duration::from_secs(5);
const LOOKS_EACH: Duration = Duration::from_millis(50);
/// The `Retry-After` seconds of a request that still waits for deletions.
const AGAIN: u64 = 2;

/// The jobs that were admitted but are not in the cache yet, and the limits for them.
pub(crate) struct Quotas {
    bounds: QuotaBounds,
    max_ttl: i64,
    /// The amounts by user name.
    pending: Mutex<HashMap<String, StoredAmount>>,
    /// The meter for bodies in rows of the table `audit`.
    rows: Mutex<RowMeter>,
    /// The meter for jobs: the history keeps a row of each job.
    jobs: Mutex<RowMeter>,
    began: Instant,
}

/// The reservation for a job that is being made. If it is dropped before the job is made, it refunds its write cost.
pub(crate) struct RoomOfJob<'a> {
    quotas: &'a Quotas,
    ops: &'a Ops,
    pub(crate) key: QuotaKey,
    user_name: String,
    bytes: u64,
    is_made: bool,
}

impl RoomOfJob<'_> {
    fn metered(&self) -> MeteredJob<'_> {
        MeteredJob { key: &self.key, user_name: &self.user_name, bytes: self.bytes }
    }

    /// Records that the job was made. Call it before the cache takes the job.
    pub(crate) fn made(&mut self, uid: &str, version: u64) {
        self.is_made = true;
        self.ops.meter(|meter, _| meter.made(uid, version, &self.metered()));
    }
}

impl Drop for RoomOfJob<'_> {
    fn drop(&mut self) {
        let mut pending = self.quotas.pending.lock();
        if let Some(amount) = pending.get_mut(&self.user_name) {
            *amount = amount.without(StoredAmount::one(self.bytes));
            if amount.jobs == 0 {
                pending.remove(&self.user_name);
            }
        }
        drop(pending);
        if !self.is_made {
            self.ops.meter(|meter, now| meter.give_back(&self.metered(), now));
        }
    }
}

/// An ended job that may be deleted.
struct Leaves {
    name: String,
    uid: String,
    version: String,
}

impl Quotas {
    pub(crate) fn new(bounds: QuotaBounds, max_ttl: i64) -> Self {
        let [rows, jobs] = [RowMeter::of_bytes(), RowMeter::of_jobs()].map(Mutex::new);
        Self { bounds, max_ttl, pending: Mutex::default(), rows, jobs, began: Instant::now() }
    }

    /// Returns the amounts in use, including the requests in progress.
    fn usage(&self, ops: &Ops, user_name: &str, pending: &HashMap<String, StoredAmount>) -> Usage {
        let own = QuotaKey::of(user_name);
        let mut usage = Usage::default();
        for job in ops.jobs() {
            let Some(key) = &job.counts_for else { continue };
            let amount = StoredAmount::one(job.stored_bytes);
            usage.all = usage.all.and(amount);
            if *key == own {
                usage.key = usage.key.and(amount);
                usage.shrinks |= job.is_live() || job.view.ttl.is_some();
                if job.summary.user_name == user_name {
                    usage.account = usage.account.and(amount);
                }
            }
        }
        for (name, amount) in pending {
            usage.all = usage.all.and(*amount);
            if QuotaKey::of(name) == own {
                usage.key = usage.key.and(*amount);
            }
            if name == user_name {
                usage.account = usage.account.and(*amount);
            }
        }
        usage
    }

    /// Reserves room if there is some. The reservation lasts until it is dropped.
    fn take<'a>(
        &'a self,
        ops: &'a Ops,
        user_name: &str,
        bytes: u64,
    ) -> Result<Result<RoomOfJob<'a>, OpsRefusal>, Box<OverQuota>> {
        let key = QuotaKey::of(user_name);
        let mut pending = self.pending.lock();
        check_room(user_name, bytes, &self.usage(ops, user_name, &pending), &self.bounds)?;
        let metered = MeteredJob { key: &key, user_name, bytes };
        if let Err(wait) = ops.meter(|meter, now| meter.pay(&metered, now)) {
            let message = format!(
                "{key} creates OpsJobs too fast for etcd, and this OpsJob has {} KiB: try again in {wait} s",
                bytes.div_ceil(1024)
            );
            return Ok(Err(OpsRefusal::new(Code::TooMany, message).after(wait)));
        }
        let amount = pending.entry(user_name.to_owned()).or_default();
        *amount = amount.and(StoredAmount::one(bytes));
        Ok(Ok(RoomOfJob { quotas: self, ops, key, user_name: user_name.to_owned(), bytes, is_made: false }))
    }
}

impl RestState {
    /// Returns the limits of a caller.
    pub(crate) async fn bounds_of(&self, caller: &Caller) -> Result<CallerBounds, OpsRefusal> {
        Ok(match self.rights.is_cluster_wide(caller).await? {
            true => CallerBounds::None,
            false => CallerBounds::Tenant { max_ttl: self.quotas.max_ttl },
        })
    }

    /// Returns true if the audit row of a request may store this many bytes of its body. Otherwise the row stores a digest.
    pub(crate) async fn keeps_body(&self, caller: &Caller, bytes: usize) -> Result<bool, OpsRefusal> {
        let Quotas { rows, began, .. } = &self.quotas;
        let is_counted = self.history.is_some() && !self.rights.is_cluster_wide(caller).await?;
        Ok(!is_counted || rows.lock().takes(&QuotaKey::of(&caller.name), bytes as u64, began.elapsed()))
    }

    /// Counts a job for which the history will keep a row.
    ///
    /// # Errors
    /// If the caller's key has used up its daily jobs.
    pub(crate) fn take_row(&self, caller: &Caller) -> Result<(), OpsRefusal> {
        let (Quotas { jobs, began, .. }, key) = (&self.quotas, QuotaKey::of(&caller.name));
        let mut jobs = jobs.lock();
        if self.history.is_none() || jobs.takes(&key, 1, began.elapsed()) {
            return Ok(());
        }
        let wait = jobs.one_more().as_secs().saturating_add(1);
        let message = format!(
            "{key} has created {JOBS} OpsJobs in a day, which is the limit because the history keeps each job: try again in {wait} s"
        );
        Err(OpsRefusal::new(Code::TooMany, message).after(wait))
    }

    /// Reserves room for a job of this size. If there is no room, it deletes the oldest ended jobs of the same key whose rows are stored.
    pub(crate) async fn room_of(&self, caller: &Caller, bytes: u64) -> Result<RoomOfJob<'_>, OpsRefusal> {
        let take = || self.quotas.take(&self.ops, &caller.name, bytes);
        let over = match take() {
            Ok(room) => return room,
            Err(over) => over,
        };
        if !self.make_room(&caller.name, &over).await? {
            return Err(over.refusal);
        }
        let until = Instant::now() + GO_WITHIN;
        loop {
            match take() {
                Ok(room) => return room,
                Err(over) if Instant::now() >= until => {
                    let message = format!("{}; some are being deleted: try again in {AGAIN} s", over.refusal.message);
                    return Err(OpsRefusal::new(Code::TooMany, message).after(AGAIN));
                }
                Err(_) => sleep(LOOKS_EACH).await,
            }
        }
    }

    /// Checks whether a dry run finds room, or could make room by deletions.
    pub(crate) fn has_room(&self, caller: &Caller, bytes: u64) -> Result<(), OpsRefusal> {
        let pending = self.quotas.pending.lock().clone();
        let usage = self.quotas.usage(&self.ops, &caller.name, &pending);
        match check_room(&caller.name, bytes, &usage, &self.quotas.bounds) {
            Err(over) if over.evicted(self.ended(&caller.name)).is_empty() => Err(over.refusal),
            _ => Ok(()),
        }
    }

    /// Returns the ended jobs of a key that may be deleted because the history keeps them.
    fn ended(&self, user_name: &str) -> Vec<EndedJob<Leaves>> {
        let own = QuotaKey::of(user_name);
        let jobs = self.ops.jobs().into_iter();
        let jobs = jobs.filter(|job| self.history.is_some() && job.counts_for.as_ref() == Some(&own));
        jobs.filter(|job| !job.is_live() && !job.view.deleting && job.view.has_history_finalizer)
            .filter_map(|job| {
                let view = &job.view;
                Some(EndedJob {
                    finished: view.status.finished?,
                    bytes: job.stored_bytes,
                    is_own: job.summary.user_name == user_name,
                    job: Leaves { name: view.name.clone(), uid: view.uid.clone(), version: view.version.clone() },
                })
            })
            .collect()
    }

    /// Deletes ended jobs. Returns true if that makes room, or if other jobs of the key are already being deleted.
    async fn make_room(&self, user_name: &str, over: &OverQuota) -> Result<bool, OpsRefusal> {
        let Some(history) = &self.history else { return Ok(false) };
        let own = QuotaKey::of(user_name);
        let leaves = over.evicted(self.ended(user_name));
        if leaves.is_empty() {
            let is_going = |job: &oarlock_core::ops_job::stored::StoredOps| {
                job.view.deleting && !job.is_live() && job.counts_for.as_ref() == Some(&own)
            };
            return Ok(self.ops.jobs().iter().any(|job| is_going(job)));
        }
        let mut goes = false;
        for Leaves { name, uid, version } in leaves {
            let row = history.job(&name).await.map_err(|failed| of_history(&failed))?;
            if row.is_none_or(|row| row.row.uid != uid || row.row.ended.is_none()) {
                continue;
            }
            // No user deleted the job, so its row has to look like the row of an expired job.
            let said = json!({"metadata": {"uid": uid, "resourceVersion": version,
                "annotations": {GONE_BY: GoneBy::Expiry.word()}}});
            let said = self.jobs().patch(&name, &PatchParams::default(), &Patch::Merge(said)).await;
            let resource_version = match said {
                Ok(said) => said.metadata.resource_version,
                // The job has changed, or is already being deleted.
                Err(kube::Error::Api(status)) if matches!(status.code, 404 | 409) => {
                    goes = true;
                    continue;
                }
                Err(error) => return Err(of_request(&error, "say why an OpsJob that has ended goes")),
            };
            let only = Preconditions { uid: Some(uid), resource_version };
            match self.jobs().delete(&name, &DeleteParams::default().preconditions(only)).await {
                Ok(_) => {}
                Err(kube::Error::Api(status)) if matches!(status.code, 404 | 409) => {}
                Err(error) => return Err(of_request(&error, "delete an OpsJob that has ended")),
            }
            tracing::info!(job = name, user = user_name, "an OpsJob that has ended made room for another one");
            goes = true;
        }
        Ok(goes)
    }
}
