//! Limits the bytes of OpsJobs that are written for each caller, because etcd keeps each version of an object until compaction. Source:
//! docs/opsjob-rest.md 12.
//!
//! Takes the observed versions of jobs; yields whether the server may create another job, or write a status that can wait. Times are durations since
//! the meter's owner started. May not read a clock.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use crate::object::quota_key::QuotaKey;

/// The bytes that may be written at once, and the bytes that are added each second.
const BURST: i64 = 16 * 1024 * 1024;
const A_SECOND: i64 = 64 * 1024;
/// The usual number of writes of a job and its OperationJob until both are gone. The job pays for all of them at its creation.
pub const WRITES: u64 = 10;
/// The number of payers at which the meter forgets payers that owe nothing.
const PAYERS: usize = 1_000;

/// The payer of a job: its key, and for a namespace also the ServiceAccount, which may use half.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum MeteredPayer {
    Key(QuotaKey),
    Account(String),
}

impl MeteredPayer {
    const fn share(&self) -> i64 {
        match self {
            Self::Key(_) => 1,
            Self::Account(_) => 2,
        }
    }
}

/// The bytes that a payer may still write, as of a time.
#[derive(Clone, Copy, Debug)]
struct Level {
    bytes: i64,
    at: Duration,
}

/// A job whose versions are counted.
#[derive(Debug)]
struct Metered {
    payers: Vec<MeteredPayer>,
    version: u64,
    /// Bytes that were paid for at the job's creation.
    paid: u64,
}

/// A job that will be created, or was created.
#[derive(Clone, Copy, Debug)]
pub struct MeteredJob<'a> {
    /// Quota key of the job.
    pub key: &'a QuotaKey,
    /// The name of the user who creates the job.
    pub user_name: &'a str,
    /// The bytes of the job's object.
    pub bytes: u64,
}

impl MeteredJob<'_> {
    fn payers(&self) -> Vec<MeteredPayer> {
        let account = match self.key {
            QuotaKey::Namespace(_) => Some(MeteredPayer::Account(self.user_name.to_owned())),
            QuotaKey::User(_) => None,
        };
        std::iter::once(MeteredPayer::Key(self.key.clone())).chain(account).collect()
    }

    fn price(&self) -> u64 {
        self.bytes.saturating_mul(WRITES)
    }
}

/// Counts the bytes that are written.
#[derive(Debug, Default)]
pub struct WriteMeter {
    levels: HashMap<MeteredPayer, Level>,
    jobs: HashMap<String, Metered>,
}

fn signed(bytes: u64) -> i64 {
    i64::try_from(bytes).unwrap_or(i64::MAX)
}

impl WriteMeter {
    fn level(&self, payer: &MeteredPayer, now: Duration) -> i64 {
        let most = BURST / payer.share();
        let Some(level) = self.levels.get(payer) else { return most };
        let passed = i64::try_from(now.saturating_sub(level.at).as_millis()).unwrap_or(i64::MAX);
        let gained = passed.saturating_mul(A_SECOND / payer.share()) / 1_000;
        level.bytes.saturating_add(gained).min(most)
    }

    fn charge(&mut self, payers: &[MeteredPayer], bytes: i64, now: Duration) {
        for payer in payers {
            let bytes = self.level(payer, now).saturating_sub(bytes).min(BURST / payer.share());
            self.levels.insert(payer.clone(), Level { bytes, at: now });
        }
        if self.levels.len() > PAYERS {
            let full: HashSet<MeteredPayer> =
                self.levels.keys().filter(|payer| self.is_full(payer, now)).cloned().collect();
            self.levels.retain(|payer, _| !full.contains(payer));
        }
    }

    fn is_full(&self, payer: &MeteredPayer, now: Duration) -> bool {
        self.level(payer, now) >= BURST / payer.share()
    }

    /// Returns the seconds until all payers have this number of bytes. A price above the burst needs only a full burst.
    fn wait(&self, payers: &[MeteredPayer], bytes: i64, now: Duration) -> u64 {
        let of = |payer: &MeteredPayer| {
            let missing = bytes.min(BURST / payer.share()).saturating_sub(self.level(payer, now)).max(0);
            u64::try_from(missing).unwrap_or(0).div_ceil(A_SECOND.unsigned_abs() / payer.share().unsigned_abs())
        };
        payers.iter().map(of).max().unwrap_or(0)
    }

    /// Pays for the creation of a job and its usual writes.
    ///
    /// # Errors
    /// If a payer has too few bytes. The error is the number of seconds after which they suffice.
    pub fn pay(&mut self, job: &MeteredJob<'_>, now: Duration) -> Result<(), u64> {
        let (payers, price) = (job.payers(), signed(job.price()));
        match self.wait(&payers, price, now) {
            0 => {
                self.charge(&payers, price, now);
                Ok(())
            }
            wait => Err(wait),
        }
    }

    /// Returns the payment for a job that was not created.
    pub fn give_back(&mut self, job: &MeteredJob<'_>, now: Duration) {
        self.charge(&job.payers(), signed(job.price()).saturating_neg(), now);
    }

    /// Notes that a paid job was created.
    pub fn made(&mut self, uid: &str, version: u64, job: &MeteredJob<'_>) {
        let paid = job.price().saturating_sub(job.bytes);
        let known = self.jobs.entry(uid.to_owned());
        let known = known.or_insert_with(|| Metered { payers: job.payers(), version, paid: 0 });
        known.paid = known.paid.saturating_add(paid);
    }

    /// Notes a job that was written before the meter started.
    pub fn found(&mut self, uid: &str, version: u64, job: &MeteredJob<'_>) {
        self.jobs.entry(uid.to_owned()).or_insert_with(|| Metered { payers: job.payers(), version, paid: 0 });
    }

    /// Notes that a version of a job was written. The bytes paid in advance cover the version first.
    pub fn wrote(&mut self, uid: &str, version: u64, job: &MeteredJob<'_>, now: Duration) {
        let known = self.jobs.entry(uid.to_owned());
        let known = known.or_insert_with(|| Metered { payers: job.payers(), version: 0, paid: 0 });
        if known.version >= version {
            return;
        }
        known.version = version;
        let of_paid = known.paid.min(job.bytes);
        known.paid = known.paid.saturating_sub(of_paid);
        let (payers, rest) = (known.payers.clone(), job.bytes.saturating_sub(of_paid));
        if rest > 0 {
            self.charge(&payers, signed(rest), now);
        }
    }

    /// Forgets a job that is gone.
    pub fn gone(&mut self, uid: &str) {
        self.jobs.remove(uid);
    }

    /// Returns how long a status of this job must wait if it only reports progress. Returns `None` if it need not wait.
    pub fn status_waits(&self, uid: &str, now: Duration) -> Option<Duration> {
        let job = self.jobs.get(uid).filter(|job| job.paid == 0)?;
        Some(Duration::from_secs(self.wait(&job.payers, 0, now))).filter(|wait| !wait.is_zero())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const KIB: u64 = 1024;

    fn of<'a>(key: &'a QuotaKey, user_name: &'a str, bytes: u64) -> MeteredJob<'a> {
        MeteredJob { key, user_name, bytes }
    }

    fn second(second: u64) -> Duration {
        Duration::from_secs(second)
    }

    #[test]
    fn a_burst_is_followed_by_so_many_bytes_a_second_and_an_account_has_half() {
        let (key, mut meter) = (QuotaKey::of("alice"), WriteMeter::default());
        let job = of(&key, "alice", 64 * KIB);
        assert_eq!((0..100).filter(|_| meter.pay(&job, second(0)).is_ok()).count(), 25);
        assert_eq!(meter.pay(&job, second(0)).unwrap_err(), 4, "384 KiB are left, and 640 are needed");
    }

    #[test]
    fn accounts_of_a_namespace_share_its_bytes() {
        let (key, mut meter) = (QuotaKey::of("system:serviceaccount:a:b"), WriteMeter::default());
        let made = |meter: &mut WriteMeter, account: &str| {
            (0..100).filter(|_| meter.pay(&of(&key, account, 64 * KIB), second(0)).is_ok()).count()
        };
        let all: Vec<usize> = (0..4).map(|number| made(&mut meter, &format!("account-{number}"))).collect();
        assert_eq!(all, [12, 12, 1, 0]);
    }

    #[test]
    fn what_was_not_made_costs_nothing_and_a_large_job_waits_for_a_whole_burst() {
        let (key, mut meter) = (QuotaKey::of("alice"), WriteMeter::default());
        let job = of(&key, "alice", 4 * 1024 * KIB);
        for _ in 0..3 {
            meter.pay(&job, second(0)).unwrap();
            meter.give_back(&job, second(0));
        }
        meter.pay(&job, second(0)).unwrap();
        assert_eq!(meter.pay(&job, second(0)).unwrap_err(), 640, "40 MiB at 64 KiB a second");
        meter.pay(&job, second(640)).unwrap();
    }

    #[test]
    fn versions_are_paid_once_and_then_owed_and_what_can_wait_waits() {
        let (key, mut meter) = (QuotaKey::of("alice"), WriteMeter::default());
        let job = of(&key, "alice", 1024 * KIB);
        meter.pay(&job, second(0)).unwrap();
        meter.wrote("u", 1, &job, second(0));
        meter.made("u", 1, &job);
        for version in 2..=9 {
            meter.wrote("u", version, &job, second(0));
            meter.wrote("u", version, &job, second(0));
        }
        assert_eq!(meter.status_waits("u", second(0)), None);
        for version in 10..=16 {
            meter.wrote("u", version, &job, second(0));
        }
        assert_eq!(meter.status_waits("u", second(0)), Some(second(16)), "one MiB is owed");
        assert_eq!(meter.status_waits("u", second(16)), None);
        meter.gone("u");
        assert_eq!(meter.status_waits("u", second(0)), None);
    }

    #[test]
    fn jobs_that_were_there_before_cost_what_is_written_from_now_on() {
        let (key, mut meter) = (QuotaKey::of("alice"), WriteMeter::default());
        let job = of(&key, "alice", 15 * 1024 * KIB);
        meter.found("u", 5, &job);
        meter.wrote("u", 5, &job, second(0));
        assert_eq!(meter.level(&MeteredPayer::Key(key.clone()), second(0)), BURST);
        meter.wrote("u", 6, &job, second(0));
        assert_eq!(meter.level(&MeteredPayer::Key(key.clone()), second(0)), 1024 * 1024);
    }

    #[test]
    fn payers_that_owe_nothing_are_forgotten() {
        let mut meter = WriteMeter::default();
        for number in 0..10 * PAYERS as u64 {
            let key = QuotaKey::User(format!("user-{number}"));
            meter.pay(&of(&key, "", 64), second(number)).unwrap();
        }
        assert!(meter.levels.len() <= PAYERS + 1, "{}", meter.levels.len());
    }

    proptest! {
        /// The bytes written in a time are bounded, in any order of requests and of status writes that can wait.
        #[test]
        fn ten_minutes_are_at_most_twice_a_burst_and_the_rate(
            acts in proptest::collection::vec((0u64..2_000, 1u64..200, 0usize..3), 1..2_000),
        ) {
            let (key, mut meter) = (QuotaKey::of("system:serviceaccount:a:b"), WriteMeter::default());
            let (mut now, mut written, mut jobs) = (Duration::ZERO, 0_u64, Vec::new());
            for (number, (millis, kib, act)) in acts.into_iter().enumerate() {
                now += Duration::from_millis(millis);
                let (job, account) = (kib * KIB, format!("account-{}", number % 7));
                if act == 0 && meter.pay(&of(&key, &account, job), now).is_ok() {
                    let uid = format!("u{number}");
                    meter.wrote(&uid, 1, &of(&key, &account, job), now);
                    meter.made(&uid, 1, &of(&key, &account, job));
                    jobs.push((uid, job, account, 1));
                    written += job;
                } else if let Some((uid, bytes, account, version)) = jobs.iter_mut().rev().nth(act) {
                    let is_usual = *version < WRITES;
                    if is_usual || meter.status_waits(uid, now).is_none() {
                        *version += 1;
                        meter.wrote(uid, *version, &of(&key, account, *bytes), now);
                        written += *bytes;
                    }
                }
            }
            let most = 2 * (BURST as u64 + A_SECOND as u64 * (now.as_secs() + 1)) + 400 * KIB;
            prop_assert!(written <= most, "{written} of {most}");
        }
    }
}
