//! Limits the number and the bytes of OpsJobs of callers without permissions in the whole cluster. Source: docs/opsjob-rest.md 12.
//!
//! OpsJobs are cluster-scoped, so no ResourceQuota counts them. Takes the current usage; yields a refusal that names it, or nothing. May not read
//! anything.

use k8s_openapi::jiff::Timestamp;
use serde_json::{Map, Value};

use crate::object::fields::text;
use crate::object::quota_key::{QUOTA_KEY, QuotaKey};
use crate::ops_job::refusal::{Code, OpsRefusal};

/// The value of the annotation [`QUOTA_KEY`] if the caller has permissions in the whole cluster.
pub const EXEMPT: &str = "none";
/// The most bytes of the input `label`.
pub const LABEL: usize = 4 * 1024;
/// The most bytes of all inputs except scripts.
const INPUTS: usize = 256 * 1024;
/// Seconds after which a caller may retry if some of its jobs disappear by themselves.
const AGAIN: u64 = 60;
/// The bytes of a stored object in addition to its document: its managed fields and its key.
pub const OF_OBJECT: u64 = 1_024;

/// A number of jobs and of their stored bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StoredAmount {
    /// Jobs that live or are kept.
    pub jobs: u64,
    /// Stored bytes of the jobs.
    pub bytes: u64,
}

impl StoredAmount {
    /// Returns the amount of one job with this size.
    pub const fn one(bytes: u64) -> Self {
        Self { jobs: 1, bytes }
    }

    /// Returns the sum of both amounts.
    #[must_use]
    pub const fn and(self, other: Self) -> Self {
        Self { jobs: self.jobs.saturating_add(other.jobs), bytes: self.bytes.saturating_add(other.bytes) }
    }

    /// Returns this amount less the other amount, but never less than 0.
    #[must_use]
    pub const fn without(self, other: Self) -> Self {
        Self { jobs: self.jobs.saturating_sub(other.jobs), bytes: self.bytes.saturating_sub(other.bytes) }
    }

    const fn part(self, of: u64) -> Self {
        Self { jobs: self.jobs / of, bytes: self.bytes / of }
    }

    /// Returns the amount plus `spare`, for each part that is not zero.
    const fn with_spare(self, spare: Self) -> Self {
        Self {
            jobs: if self.jobs == 0 { 0 } else { self.jobs.saturating_add(spare.jobs) },
            bytes: if self.bytes == 0 { 0 } else { self.bytes.saturating_add(spare.bytes) },
        }
    }

    const fn is_within(self, most: Self) -> bool {
        self.jobs <= most.jobs && self.bytes <= most.bytes
    }
}

/// The limits on live and kept jobs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QuotaBounds {
    /// The limit of one key. One ServiceAccount of a namespace may use half of it.
    pub of_key: StoredAmount,
    /// The limit of all these callers together. It leaves the rest of the cluster's storage to callers with permissions in the whole cluster.
    pub of_all: StoredAmount,
}

impl Default for QuotaBounds {
    fn default() -> Self {
        const MIB: u64 = 1024 * 1024;
        Self {
            of_key: StoredAmount { jobs: 200, bytes: 16 * MIB },
            of_all: StoredAmount { jobs: 3_000, bytes: 192 * MIB },
        }
    }
}

/// The amounts in use before a request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// The amount of the caller's key.
    pub key: StoredAmount,
    /// The amount of the caller's own ServiceAccount.
    pub account: StoredAmount,
    /// The amount of all callers that count.
    pub all: StoredAmount,
    /// True if some jobs of the key disappear by themselves: they still live, or have a time to live.
    pub shrinks: bool,
}

/// The limit that is used up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Share {
    /// The limit of one ServiceAccount, which is half of its namespace's limit.
    Account,
    /// The limit of all ServiceAccounts of a namespace, or of a user.
    Key,
    /// The limit of all callers together.
    All,
}

/// A request for which there is no room.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OverQuota {
    /// The refusal, unless the deletion of ended jobs makes room.
    pub refusal: OpsRefusal,
    /// The limit that is used up.
    pub share: Share,
    /// The least amount that has to be freed.
    over: StoredAmount,
    /// The amount to free if any job has to go. It is larger, so that not every request has to wait for the previous one.
    frees: StoredAmount,
}

/// Checks that a caller may keep one more job of this size.
///
/// # Errors
/// If a limit has no room. The refusal names the usage, the limit and the way to free room.
pub fn check_room(user_name: &str, bytes: u64, usage: &Usage, bounds: &QuotaBounds) -> Result<(), Box<OverQuota>> {
    let key = QuotaKey::of(user_name);
    let half = bounds.of_key.part(2);
    let of_account = matches!(key, QuotaKey::Namespace(_)).then(|| {
        let whose = format!("{user_name}, which may have half of what {key} has,");
        (Share::Account, whose, usage.account, half)
    });
    let others = [
        (Share::Key, key.to_string(), usage.key, bounds.of_key),
        (Share::All, "all callers without rights in the whole cluster have".to_owned(), usage.all, bounds.of_all),
    ];
    for (share, whose, used, most) in of_account.into_iter().chain(others) {
        let wanted = used.and(StoredAmount::one(bytes));
        if wanted.is_within(most) {
            continue;
        }
        let has = if share == Share::All { "" } else { " has" };
        let message = format!(
            "{whose}{has} {} of {} OpsJobs, with {} of {} KiB, and this OpsJob needs {} KiB: {}",
            used.jobs,
            most.jobs,
            used.bytes / 1024,
            most.bytes / 1024,
            bytes.div_ceil(1024),
            "delete OpsJobs that have ended (DELETE /api/v1/opsjobs/JOBID), or give them a shorter ttlSecondsAfterFinished",
        );
        let refusal = OpsRefusal::new(Code::TooMany, message);
        let refusal = if usage.shrinks || share == Share::All { refusal.after(AGAIN) } else { refusal };
        let over = wanted.without(most);
        return Err(Box::new(OverQuota { refusal, share, over, frees: over.with_spare(most.part(10)) }));
    }
    Ok(())
}

/// A job that has ended and may be deleted before its time to live is over.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EndedJob<T> {
    /// Time at which the job ended.
    pub finished: Timestamp,
    /// Stored bytes of the job.
    pub bytes: u64,
    /// True if the job belongs to the caller's own ServiceAccount, not to another one of its namespace.
    pub is_own: bool,
    /// The name by which the caller knows the job.
    pub job: T,
}

impl OverQuota {
    /// Returns the ended jobs to delete, oldest first. Returns none if they would not make enough room.
    pub fn evicted<T>(&self, mut ended: Vec<EndedJob<T>>) -> Vec<T> {
        ended.retain(|job| job.is_own || self.share != Share::Account);
        ended.sort_by_key(|job| job.finished);
        let (mut freed, mut gone) = (StoredAmount::default(), Vec::new());
        for job in ended {
            if self.frees.is_within(freed) {
                break;
            }
            freed = freed.and(StoredAmount::one(job.bytes));
            gone.push(job.job);
        }
        if self.over.is_within(freed) { gone } else { Vec::new() }
    }
}

/// Checks the limits for callers without permissions in the whole cluster.
///
/// # Errors
/// If a field exceeds its limit. The refusal names both.
pub fn check_tenant(spec: &Map<String, Value>, max_ttl: i64) -> Result<(), OpsRefusal> {
    const ONLY: &str = "only callers with rights in the whole cluster may ask for more";
    let ttl = spec.get("ttlSecondsAfterFinished").and_then(Value::as_i64);
    if let Some(ttl) = ttl.filter(|ttl| !(0..=max_ttl).contains(ttl)) {
        let for_ever = if ttl < 0 { ", which means forever" } else { "" };
        let rule = format!("must be 0 to {max_ttl} s (--max-ttl), but is {ttl}{for_ever}; {ONLY}");
        return Err(OpsRefusal::bad(format!("ttlSecondsAfterFinished: {rule}")));
    }
    let inputs = spec.get("inputs").and_then(Value::as_array).into_iter().flatten();
    let counted = inputs.filter(|input| text(input, "/name") != Some("script"));
    let bytes: usize = counted.filter_map(|input| text(input, "/value")).map(str::len).sum();
    if bytes > INPUTS {
        let rule = format!("{bytes} bytes without scripts, of at most {INPUTS}; {ONLY}");
        return Err(OpsRefusal::bad(format!("inputs: {rule}")));
    }
    Ok(())
}

/// Returns the key that a job counts against: the key that REST noted, or the requester of a job without a note. Returns `None` for a job whose
/// author has permissions in the whole cluster.
pub fn counted_key(document: &Value) -> Option<QuotaKey> {
    let annotation = document.pointer("/metadata/annotations").and_then(|all| all.get(QUOTA_KEY));
    match annotation.and_then(Value::as_str) {
        Some(noted) => QuotaKey::read(noted),
        None => text(document, "/spec/requester/name").filter(|name| !name.is_empty()).map(QuotaKey::of),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    const ACCOUNT: &str = "system:serviceaccount:team-a:builder";

    fn bounds() -> QuotaBounds {
        QuotaBounds::default()
    }

    fn jobs(jobs: u64) -> StoredAmount {
        StoredAmount { jobs, bytes: jobs * 2_048 }
    }

    #[test]
    fn an_account_has_half_of_its_namespace_and_a_user_has_all() {
        let used = Usage { key: jobs(100), account: jobs(100), all: jobs(100), shrinks: false };
        let over = check_room(ACCOUNT, 2_048, &used, &bounds()).unwrap_err();
        assert_eq!((over.share, over.refusal.code.status(), over.refusal.retry_after), (Share::Account, 429, None));
        for part in [ACCOUNT, "namespace team-a", "100 of 100 OpsJobs", "200 of 8192 KiB", "DELETE"] {
            assert!(over.refusal.message.contains(part), "{}", over.refusal.message);
        }
        let other = Usage { account: StoredAmount::default(), ..used };
        check_room(ACCOUNT, 2_048, &other, &bounds()).unwrap();
        check_room("alice", 2_048, &used, &bounds()).unwrap();
    }

    #[test]
    fn a_namespace_is_refused_at_its_bounds_of_jobs_and_of_bytes() {
        let used = Usage { key: jobs(200), all: jobs(200), shrinks: true, ..Usage::default() };
        let over = check_room(ACCOUNT, 1, &used, &bounds()).unwrap_err();
        assert_eq!((over.share, over.refusal.retry_after), (Share::Key, Some(AGAIN)));
        assert!(
            over.refusal.message.starts_with("namespace team-a has 200 of 200 OpsJobs"),
            "{}",
            over.refusal.message
        );
        let large = StoredAmount { jobs: 1, bytes: 16 * 1024 * 1024 - 10 };
        let used = Usage { key: large, all: large, ..Usage::default() };
        check_room(ACCOUNT, 10, &used, &bounds()).unwrap();
        assert_eq!(check_room(ACCOUNT, 11, &used, &bounds()).unwrap_err().over, StoredAmount { jobs: 0, bytes: 1 });
    }

    #[test]
    fn all_together_leave_room_for_callers_of_the_whole_cluster() {
        let used = Usage { all: jobs(3_000), ..Usage::default() };
        let over = check_room("alice", 1, &used, &bounds()).unwrap_err();
        assert!(over.refusal.message.starts_with("all callers without rights in the whole cluster have 3000 of 3000"));
        assert_eq!((over.share, over.refusal.retry_after), (Share::All, Some(AGAIN)));
    }

    fn ended(second: i64, bytes: u64, is_own: bool) -> EndedJob<i64> {
        EndedJob { finished: Timestamp::from_second(second).unwrap(), bytes, is_own, job: second }
    }

    #[test]
    fn the_oldest_jobs_that_have_ended_go_and_a_tenth_more_than_has_to() {
        let used = Usage { key: jobs(200), all: jobs(200), ..Usage::default() };
        let over = check_room(ACCOUNT, 2_048, &used, &bounds()).unwrap_err();
        let all: Vec<_> = (0..60).rev().map(|second| ended(second, 2_048, second % 2 == 0)).collect();
        assert_eq!(over.evicted(all), (0..21).collect::<Vec<_>>());
        assert_eq!(over.evicted(vec![ended(5, 1, true)]), [5], "what there is, where that is enough");
        assert!(over.evicted(Vec::<EndedJob<i64>>::new()).is_empty());
    }

    #[test]
    fn jobs_of_other_accounts_make_no_room_for_an_account_over_its_half_and_none_goes_in_vain() {
        let used = Usage { key: jobs(120), account: jobs(102), all: jobs(120), ..Usage::default() };
        let over = check_room(ACCOUNT, 2_048, &used, &bounds()).unwrap_err();
        let of = |own: i64| (0..20).map(|second| ended(second, 2_048, second < own)).collect::<Vec<_>>();
        assert_eq!(over.evicted(of(2)), Vec::<i64>::new(), "three have to go");
        assert_eq!(over.evicted(of(4)), [0, 1, 2, 3]);
    }

    #[test]
    fn a_time_to_live_above_the_bound_is_refused_and_names_it() {
        let asked = |spec: Value| check_tenant(spec.as_object().unwrap(), 604_800).map_err(|why| why.message);
        for fine in [json!({}), json!({"ttlSecondsAfterFinished": 0}), json!({"ttlSecondsAfterFinished": 604_800})] {
            asked(fine).unwrap();
        }
        for wrong in [-1, 604_801, i64::from(i32::MAX)] {
            let why = asked(json!({"ttlSecondsAfterFinished": wrong})).unwrap_err();
            assert!(why.contains("0 to 604800 s (--max-ttl)") && why.contains(&wrong.to_string()), "{why}");
        }
    }

    #[test]
    fn inputs_are_bounded_together_without_scripts() {
        let of = |name: &str, count: usize| {
            let inputs: Vec<_> = (0..count).map(|_| json!({"name": name, "value": "x".repeat(64 * 1024)})).collect();
            let spec = json!({"inputs": inputs});
            check_tenant(spec.as_object().unwrap(), 604_800)
        };
        of("node", 4).unwrap();
        of("script", 8).unwrap();
        assert!(of("node", 5).unwrap_err().message.contains("327680 bytes without scripts, of at most 262144"));
    }

    #[test]
    fn a_job_counts_against_what_rest_noted_and_else_against_its_requester() {
        let of = |annotations: Value, name: &str| {
            counted_key(&json!({"metadata": {"annotations": annotations}, "spec": {"requester": {"name": name}}}))
        };
        assert_eq!(of(json!({}), ACCOUNT), Some(QuotaKey::Namespace("team-a".to_owned())));
        assert_eq!(of(json!({QUOTA_KEY: EXEMPT}), ACCOUNT), None);
        assert_eq!(of(json!({QUOTA_KEY: "user/bob"}), ACCOUNT), Some(QuotaKey::User("bob".to_owned())));
        assert_eq!(of(json!(null), ""), None, "kubectl writers have rights in the whole cluster");
    }

    proptest! {
        #[test]
        fn what_is_let_in_stays_within_the_bounds_and_what_goes_makes_room(
            own in 0u64..300, others in 0u64..300, sizes in proptest::collection::vec(1u64..200_000, 0..300),
        ) {
            let key = jobs(own).and(jobs(others));
            let used = Usage { key, account: jobs(own), all: key, shrinks: false };
            match check_room(ACCOUNT, 2_048, &used, &bounds()) {
                Ok(()) => prop_assert!(own < 100 && own + others < 200),
                Err(over) => {
                    let ended = sizes.iter().enumerate().map(|(at, bytes)| ended(at as i64, *bytes, true)).collect();
                    let gone: Vec<i64> = over.evicted(ended);
                    let freed = gone.iter().fold(StoredAmount::default(), |freed, at| freed.and(StoredAmount::one(sizes[*at as usize])));
                    prop_assert!(gone.is_empty() || over.over.is_within(freed));
                }
            }
        }
    }
}
