//! Budgets for the events, live reads and writes that a plugin causes in a namespace, over all its jobs there.
//!
//! Each budget has one bucket of tokens. The host charges for an action afterwards, so that it never carries out half
//! of a plugin's answer. A plugin that is over budget waits in that namespace until it is within the budget again. Source:
//! docs/operationjob.md 3.4.5.

use std::collections::BTreeMap;

use k8s_openapi::jiff::Timestamp;

use crate::object::time::after_millis;

/// A resource that the budgets limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Limited {
    /// Events that a plugin proposes.
    Events,
    /// Live reads that a plugin asks for.
    Reads,
    /// Writes that a plugin proposes, as they are sent.
    Writes,
}

impl Limited {
    /// Returns `events`, `reads` or `writes`.
    pub fn word(self) -> &'static str {
        match self {
            Self::Events => "events",
            Self::Reads => "reads",
            Self::Writes => "writes",
        }
    }

    /// Returns the tokens that come in a second, and the most tokens that a bucket keeps. A job with 10,000 targets
    /// that starts 200 targets a second, each with three writes and three events, stays within them.
    fn rate(self) -> (i64, i64) {
        match self {
            Self::Events => (600, 6_000),
            Self::Reads => (200, 4_000),
            Self::Writes => (600, 6_000),
        }
    }
}

/// Number of payers above which the host forgets payers with full buckets.
const MANY: usize = 100;

/// The payer of a budget: a plugin, for its jobs in one namespace.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Payer {
    /// The name of the plugin.
    pub plugin: String,
    /// The namespace of the jobs.
    pub namespace: String,
}

/// Tokens of one payer for one resource, in thousandths.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Bucket {
    left: i64,
    at: Timestamp,
}

impl Bucket {
    /// Returns the tokens that are left, with the tokens that came by `now`.
    fn with_tokens_until(&self, now: Timestamp, what: Limited) -> i64 {
        let (per_second, most) = what.rate();
        let passed = now.duration_since(self.at).as_millis().max(0);
        let came = i64::try_from(passed).unwrap_or(i64::MAX).saturating_mul(per_second);
        self.left.saturating_add(came).min(most.saturating_mul(1_000))
    }
}

/// The budgets of all plugins.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Budgets {
    buckets: BTreeMap<Payer, BTreeMap<Limited, Bucket>>,
    /// Number of actions that waited or were dropped since the last count, by plugin and resource.
    limited: BTreeMap<(String, Limited), u64>,
}

impl Budgets {
    /// Pays for actions that were done, and puts the payer over budget if necessary.
    pub fn pay(&mut self, payer: &Payer, what: Limited, count: usize, now: Timestamp) {
        if count > 0 {
            let bucket = self.bucket(payer, what, now);
            let cost = i64::try_from(count).unwrap_or(i64::MAX).saturating_mul(1_000);
            bucket.left = bucket.left.saturating_sub(cost);
        }
    }

    /// Pays for as many of `count` actions as there are tokens, and returns their number.
    pub fn pay_for_some(&mut self, payer: &Payer, what: Limited, count: usize, now: Timestamp) -> usize {
        let left = usize::try_from(self.bucket(payer, what, now).left / 1_000).unwrap_or(0);
        let paid = count.min(left);
        self.pay(payer, what, paid, now);
        self.note_limited(payer, what, count.saturating_sub(paid));
        paid
    }

    /// Returns the time at which the plugin is no longer over its budgets for writes and live reads, and the resource
    /// that takes longest. `None` if it is not over budget.
    pub fn over_budget_until(&mut self, payer: &Payer, now: Timestamp) -> Option<(Timestamp, Limited)> {
        let waits = [Limited::Reads, Limited::Writes].into_iter().filter_map(|what| {
            let over_budget =
                self.bucket(payer, what, now).left.checked_neg().filter(|over_budget| *over_budget > 0)?;
            let (per_second, _) = what.rate();
            Some((after_millis(now, over_budget.checked_div(per_second)?.saturating_add(1)), what))
        });
        waits.max()
    }

    /// Counts actions that had to wait or were dropped.
    pub fn note_limited(&mut self, payer: &Payer, what: Limited, count: usize) {
        if count > 0 {
            let noted = self.limited.entry((payer.plugin.clone(), what)).or_default();
            *noted = noted.saturating_add(count as u64);
        }
    }

    /// Returns the number of actions that waited or were dropped since the last call.
    pub fn take_limited(&mut self) -> BTreeMap<(String, Limited), u64> {
        std::mem::take(&mut self.limited)
    }

    /// Returns the bucket, with the tokens that came by `now`.
    fn bucket(&mut self, payer: &Payer, what: Limited, now: Timestamp) -> &mut Bucket {
        let (_, most) = what.rate();
        if !self.buckets.contains_key(payer) {
            self.forget_full(now);
        }
        let of_payer = self.buckets.entry(payer.clone()).or_default();
        let bucket = of_payer.entry(what).or_insert(Bucket { left: most.saturating_mul(1_000), at: now });
        bucket.left = bucket.with_tokens_until(now, what);
        bucket.at = now;
        bucket
    }

    /// Forgets payers with full buckets, once there are many payers. A new payer starts with full buckets anyway.
    fn forget_full(&mut self, now: Timestamp) {
        if self.buckets.len() >= MANY {
            let is_full = |(what, bucket): (&Limited, &Bucket)| {
                let (_, most) = what.rate();
                bucket.with_tokens_until(now, *what) >= most.saturating_mul(1_000)
            };
            self.buckets.retain(|_, buckets| !buckets.iter().all(is_full));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(milliseconds: i64) -> Timestamp {
        Timestamp::from_millisecond(milliseconds).unwrap()
    }

    fn payer(plugin: &str) -> Payer {
        Payer { plugin: plugin.into(), namespace: "d".into() }
    }

    #[test]
    fn a_job_of_ten_thousand_targets_at_full_rate_is_never_held_up() {
        let mut budgets = Budgets::default();
        for second in 0..50 {
            assert_eq!(budgets.over_budget_until(&payer("replace"), at(second * 1_000)), None);
            budgets.pay(&payer("replace"), Limited::Writes, 600, at(second * 1_000));
            assert_eq!(budgets.pay_for_some(&payer("replace"), Limited::Events, 600, at(second * 1_000)), 600);
        }
        assert!(budgets.take_limited().is_empty());
    }

    #[test]
    fn a_debt_is_over_once_as_many_tokens_have_come() {
        let mut budgets = Budgets::default();
        budgets.pay(&payer("p"), Limited::Writes, 6_000 + 1_200, at(0));
        let (until, what) = budgets.over_budget_until(&payer("p"), at(0)).unwrap();
        assert_eq!((until, what), (at(2_001), Limited::Writes));
        assert_eq!(budgets.over_budget_until(&payer("p"), until), None);
        assert_eq!(budgets.over_budget_until(&payer("another"), at(0)), None, "each plugin has its own");
    }

    #[test]
    fn what_there_is_no_token_for_is_left_out_and_counted() {
        let mut budgets = Budgets::default();
        assert_eq!(budgets.pay_for_some(&payer("p"), Limited::Events, 7_000, at(0)), 6_000);
        assert_eq!(budgets.pay_for_some(&payer("p"), Limited::Events, 10, at(5)), 3);
        assert_eq!(budgets.take_limited(), [(("p".to_owned(), Limited::Events), 1_007)].into());
        assert!(budgets.take_limited().is_empty());
    }

    #[test]
    fn a_clock_that_jumps_neither_fills_a_bucket_twice_nor_empties_it() {
        let mut budgets = Budgets::default();
        budgets.pay(&payer("p"), Limited::Reads, 4_000, at(10_000));
        assert_eq!(budgets.pay_for_some(&payer("p"), Limited::Reads, 1, at(0)), 0);
        assert_eq!(budgets.pay_for_some(&payer("p"), Limited::Reads, 9_999, Timestamp::MAX), 4_000);
    }

    #[test]
    fn the_debt_of_one_namespace_is_no_debt_of_another() {
        let mut budgets = Budgets::default();
        budgets.pay(&payer("p"), Limited::Writes, 60_000, at(0));
        let elsewhere = Payer { namespace: "e".into(), ..payer("p") };
        assert_eq!(budgets.over_budget_until(&elsewhere, at(0)), None);
        assert!(budgets.over_budget_until(&payer("p"), at(0)).is_some());
    }

    #[test]
    fn who_owes_nothing_is_forgotten_once_there_are_many() {
        let mut budgets = Budgets::default();
        budgets.pay(&payer("p"), Limited::Writes, 60_000, at(0));
        for number in 0..1_000 {
            let payer = Payer { namespace: number.to_string(), ..payer("q") };
            budgets.pay(&payer, Limited::Writes, 1, at(number * 100));
        }
        assert!(budgets.buckets.len() <= MANY, "{}", budgets.buckets.len());
        budgets.pay(&payer("p"), Limited::Writes, 60_000, at(0));
        assert!(budgets.over_budget_until(&payer("p"), at(0)).is_some());
    }
}
