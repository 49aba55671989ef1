//! How often somebody may ask. Source: docs/opsjob-rest.md 2.

use std::num::NonZeroU32;
use std::time::Duration;

use governor::clock::{Clock as _, DefaultClock};
use governor::{DefaultKeyedRateLimiter, Quota, RateLimiter};
use http::Method;
use oarlock_core::ops_job::refusal::{Code, OpsRefusal};

/// Callers of whom is remembered how often they asked, before those who may ask as they like are forgotten.
const CALLERS: usize = 10_000;

/// Requests of a caller that are refused at once and have a row each; then one a minute has.
const REFUSALS: NonZeroU32 = NonZeroU32::new(100).unwrap();

/// The rates of each caller.
pub(crate) struct Rates {
    reads: DefaultKeyedRateLimiter<String>,
    writes: DefaultKeyedRateLimiter<String>,
    /// Looking for workloads by name costs six lists.
    searches: DefaultKeyedRateLimiter<String>,
    /// Rows of requests that were refused.
    refusals: DefaultKeyedRateLimiter<String>,
}

impl Rates {
    /// With so many requests a second, and a burst of twice as many reads and four times as many writes.
    pub(crate) fn new(reads: NonZeroU32, writes: NonZeroU32) -> Self {
        let keyed = |per_second: NonZeroU32, bursts: u32| {
            let burst = per_second.saturating_mul(NonZeroU32::new(bursts).unwrap_or(NonZeroU32::MIN));
            RateLimiter::keyed(Quota::per_second(per_second).allow_burst(burst))
        };
        let a_minute = Quota::per_minute(NonZeroU32::MIN).allow_burst(REFUSALS);
        let refusals = RateLimiter::keyed(a_minute);
        Self { reads: keyed(reads, 2), writes: keyed(writes, 4), searches: keyed(NonZeroU32::MIN, 10), refusals }
    }

    /// Counts a request.
    pub(crate) fn take(&self, caller: &str, method: &Method) -> Result<(), OpsRefusal> {
        let is_read = matches!(*method, Method::GET | Method::HEAD);
        check(if is_read { &self.reads } else { &self.writes }, caller)
    }

    /// Counts a request that was refused; false where its row is one too many.
    pub(crate) fn take_refusal(&self, caller: &str) -> bool {
        check(&self.refusals, caller).is_ok()
    }

    /// Counts a search for workloads.
    pub(crate) fn take_search(&self, caller: &str) -> Result<(), OpsRefusal> {
        check(&self.searches, caller)
    }
}

fn check(rates: &DefaultKeyedRateLimiter<String>, caller: &str) -> Result<(), OpsRefusal> {
    if rates.len() > CALLERS {
        rates.retain_recent();
    }
    rates.check_key(&caller.to_owned()).map_err(|until| {
        let wait = until.wait_time_from(DefaultClock::default().now());
        let seconds = wait.saturating_add(Duration::from_millis(999)).as_secs().max(1);
        OpsRefusal::new(Code::TooMany, format!("too many requests of {caller}: try again in {seconds} s"))
            .after(seconds)
    })
}
