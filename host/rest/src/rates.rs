//! Limits the request rates of callers. Source: docs/opsjob-rest.md 2.
//!
//! Accounts cost nothing: a user who may edit a namespace can make as many accounts as they like. So a request counts against the limits of
//! its user, of its namespace, and of all callers. Half of the shared limit is for callers that ask seldom, so that frequent callers do not
//! delay them.

use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use governor::clock::{Clock as _, DefaultClock};
use governor::{DefaultDirectRateLimiter, Quota, RateLimiter};
use http::Method;
use moka::future::Cache;
use oarlock_core::object::quota_key::QuotaKey;
use oarlock_core::ops_job::refusal::{Code, OpsRefusal};

use crate::caller::Caller;

/// The most user names, and the most namespaces, whose rates are remembered.
const REMEMBERED: u64 = 10_000;
/// The limits of a namespace and of all callers, as multiples of the limit of one user.
const OF_NAMESPACE: u32 = 2;
const OF_ALL: u32 = 16;
/// The rate and the burst up to which a namespace counts as one that asks seldom.
const SELDOM: Quota = Quota::per_second(NonZeroU32::MIN).allow_burst(NonZeroU32::new(10).expect("above 0"));
/// The burst of requests without effect (refused, or changing nothing) that get an audit row. After that, one request a minute gets a row.
const IDLE: NonZeroU32 = NonZeroU32::new(100).expect("above 0");

/// One rate limit for each key. Beyond [`REMEMBERED`] keys, the least used keys are forgotten and begin anew. That bounds the memory, and
/// the shared limit still bounds those keys.
pub(crate) struct KeyedLimits {
    quota: Quota,
    of_keys: Cache<String, Arc<DefaultDirectRateLimiter>>,
}

impl KeyedLimits {
    pub(crate) fn of(quota: Quota) -> Self {
        // After this idle time, a limiter equals a new one.
        let idle = quota.burst_size_replenished_in().max(Duration::from_secs(1));
        Self { quota, of_keys: Cache::builder().max_capacity(REMEMBERED).time_to_idle(idle).build() }
    }

    pub(crate) async fn check(&self, key: &str) -> Result<(), Duration> {
        let limit = self.of_keys.get_with_by_ref(key, async { Arc::new(RateLimiter::direct(self.quota)) }).await;
        check(&limit)
    }
}

fn check(limit: &DefaultDirectRateLimiter) -> Result<(), Duration> {
    limit.check().map_err(|until| until.wait_time_from(DefaultClock::default().now()))
}

/// The quotas of a rate.
pub(crate) struct RateQuotas {
    pub(crate) of_name: Quota,
    pub(crate) of_key: Quota,
    /// The shared limit a second.
    pub(crate) of_all: Quota,
}

impl RateQuotas {
    /// Returns quotas for this many requests a second of one user, with a burst of `bursts` times as many.
    fn a_second(of_name: NonZeroU32, bursts: u32) -> Self {
        let burst = |of: NonZeroU32| of.saturating_mul(NonZeroU32::new(bursts).unwrap_or(NonZeroU32::MIN));
        let of_many = |times: u32| of_name.saturating_mul(NonZeroU32::new(times).unwrap_or(NonZeroU32::MIN));
        let quota = |of: NonZeroU32| Quota::per_second(of).allow_burst(burst(of));
        Self {
            of_name: quota(of_name),
            of_key: quota(of_many(OF_NAMESPACE)),
            of_all: Quota::per_second(of_many(OF_ALL / 2)),
        }
    }
}

/// The exceeded limit, with the time to wait.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum TooOften {
    Name(Duration),
    Key(Duration),
    All(Duration),
}

/// A rate limit by name, by key, and for all callers.
pub(crate) struct Rate {
    of_names: KeyedLimits,
    of_keys: KeyedLimits,
    seldom: KeyedLimits,
    for_seldom: DefaultDirectRateLimiter,
    for_others: DefaultDirectRateLimiter,
}

impl Rate {
    /// Makes a rate limit with these quotas. `of_all` applies twice: once for callers that ask seldom, and once for all others.
    pub(crate) fn of(quotas: &RateQuotas) -> Self {
        Self {
            of_names: KeyedLimits::of(quotas.of_name),
            of_keys: KeyedLimits::of(quotas.of_key),
            seldom: KeyedLimits::of(SELDOM),
            for_seldom: RateLimiter::direct(quotas.of_all),
            for_others: RateLimiter::direct(quotas.of_all),
        }
    }

    /// Counts one request. A request that one limit refuses does not count against the next limits.
    pub(crate) async fn take(&self, name: &str, key: &QuotaKey) -> Result<(), TooOften> {
        self.of_names.check(name).await.map_err(TooOften::Name)?;
        let text = key.text();
        self.of_keys.check(&text).await.map_err(TooOften::Key)?;
        if self.seldom.check(&text).await.is_ok() && check(&self.for_seldom).is_ok() {
            return Ok(());
        }
        check(&self.for_others).map_err(TooOften::All)
    }
}

/// The rate limits of the API.
pub(crate) struct Rates {
    reads: Rate,
    writes: Rate,
    /// The limit for searches of workloads by name. Each search costs six lists.
    searches: Rate,
    /// The limit for audit rows of requests that were refused or changed nothing.
    idle: Rate,
}

impl Rates {
    /// Makes limits of this many requests a second. The burst is twice that for reads and four times that for writes.
    pub(crate) fn new(reads: NonZeroU32, writes: NonZeroU32) -> Self {
        let rows = Quota::per_minute(NonZeroU32::MIN).allow_burst(IDLE);
        let idle =
            RateQuotas { of_name: rows, of_key: rows, of_all: Quota::per_second(NonZeroU32::MIN).allow_burst(IDLE) };
        Self {
            reads: Rate::of(&RateQuotas::a_second(reads, 2)),
            writes: Rate::of(&RateQuotas::a_second(writes, 4)),
            searches: Rate::of(&RateQuotas::a_second(NonZeroU32::MIN, 10)),
            idle: Rate::of(&idle),
        }
    }

    /// Counts a request against its limit.
    pub(crate) async fn take(&self, caller: &Caller, method: &Method) -> Result<(), OpsRefusal> {
        let is_read = matches!(*method, Method::GET | Method::HEAD);
        counted(if is_read { &self.reads } else { &self.writes }, caller).await
    }

    /// Counts a request that was refused or changed nothing. Returns false if the request gets no row.
    pub(crate) async fn take_idle(&self, caller: &Caller) -> bool {
        counted(&self.idle, caller).await.is_ok()
    }

    /// Counts a search for workloads.
    pub(crate) async fn take_search(&self, caller: &Caller) -> Result<(), OpsRefusal> {
        counted(&self.searches, caller).await
    }
}

async fn counted(rate: &Rate, caller: &Caller) -> Result<(), OpsRefusal> {
    let key = QuotaKey::of(&caller.name);
    rate.take(&caller.name, &key).await.map_err(|refused| {
        let (whose, wait) = match refused {
            TooOften::Name(wait) => (caller.name.clone(), wait),
            TooOften::Key(wait) => (format!("all of {key}"), wait),
            TooOften::All(wait) => ("all callers".to_owned(), wait),
        };
        let seconds = whole_seconds(wait);
        OpsRefusal::new(Code::TooMany, format!("too many requests of {whose}: try again in {seconds} s")).after(seconds)
    })
}

/// Returns the seconds to wait, at least 1.
pub(crate) fn whole_seconds(wait: Duration) -> u64 {
    wait.saturating_add(Duration::from_millis(999)).as_secs().max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns a quota that regains nothing while a test runs.
    fn an_hour(many: u32) -> Quota {
        Quota::per_hour(NonZeroU32::MIN).allow_burst(NonZeroU32::new(many).unwrap())
    }

    fn rate(of_name: u32, of_key: u32, of_all: u32) -> Rate {
        let quotas = RateQuotas { of_name: an_hour(of_name), of_key: an_hour(of_key), of_all: an_hour(of_all) };
        Rate { seldom: KeyedLimits::of(an_hour(3)), ..Rate::of(&quotas) }
    }

    fn account(namespace: &str, name: usize) -> String {
        format!("system:serviceaccount:{namespace}:a{name}")
    }

    /// Returns the number of accepted requests, one of each account.
    async fn answered(rate: &Rate, namespace: &str, accounts: std::ops::Range<usize>) -> usize {
        let mut answered = 0;
        for name in accounts {
            let name = account(namespace, name);
            answered += usize::from(rate.take(&name, &QuotaKey::of(&name)).await.is_ok());
        }
        answered
    }

    #[tokio::test]
    async fn who_makes_accounts_without_end_has_no_more_than_his_namespace() {
        let rate = rate(5, 20, 1_000);
        assert_eq!(answered(&rate, "team", 0..10_000).await, 20);
        assert_eq!(answered(&rate, "other", 0..10_000).await, 20);
    }

    #[tokio::test]
    async fn what_one_account_is_refused_does_not_count_for_its_namespace() {
        let rate = rate(5, 20, 1_000);
        let eager = account("team", 0);
        for _ in 0..100 {
            let _refused_after_five = rate.take(&eager, &QuotaKey::of(&eager)).await;
        }
        assert!(matches!(rate.take(&eager, &QuotaKey::of(&eager)).await, Err(TooOften::Name(_))));
        assert_eq!(answered(&rate, "team", 1..100).await, 15, "the others of the namespace have the rest");
    }

    #[tokio::test]
    async fn who_asks_seldom_is_answered_while_others_have_all_there_is() {
        let rate = rate(50, 50, 40);
        let mut all = 0;
        for team in 0..10 {
            all += answered(&rate, &format!("eager-{team}"), 0..50).await;
        }
        assert_eq!(all, 40 + 10 * 3, "their own half, and what each may ask seldom");
        assert_eq!(answered(&rate, "calm", 0..3).await, 3);
        assert_eq!(answered(&rate, "calm", 3..6).await, 0, "it asks no more seldom than they");
    }

    #[tokio::test]
    async fn ten_thousand_accounts_and_more_take_bounded_memory() {
        let rate = rate(5, 30_000, 30_000);
        answered(&rate, "team", 0..25_000).await;
        rate.of_names.of_keys.run_pending_tasks().await;
        assert!(rate.of_names.of_keys.entry_count() <= REMEMBERED);
    }
}
