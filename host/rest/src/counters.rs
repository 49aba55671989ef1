//! The counters of the API for metrics, and of the requests that get no log line each. Source: docs/opsjob-rest.md 8.

use std::collections::BTreeMap;
use std::num::NonZeroU32;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use governor::{DefaultDirectRateLimiter, Quota, RateLimiter};
use http::{Method, StatusCode};
use parking_lot::Mutex;

/// The rate limit for log lines about requests of callers that have no right on OpsJobs.
const LINES: Quota = Quota::per_second(NonZeroU32::MIN).allow_burst(NonZeroU32::new(10).expect("above 0"));

/// Counts since the process began.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RestCounts {
    /// The write requests that were refused before their callers had shown any right on OpsJobs.
    pub unentitled: u64,
    /// The connections that were closed or refused because there were too many.
    pub closed_connections: u64,
}

/// The upper bounds of the buckets of answer times, in seconds. A request takes at most 30 s.
pub const ANSWER_BOUNDS: [f64; 10] = [0.005, 0.02, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0, 30.0];

/// The answers with one status code to requests of one method.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Answered {
    /// The method. All methods that the API does not know are `Other`.
    pub method: &'static str,
    /// The status code.
    pub code: u16,
    /// The number of answers.
    pub count: u64,
    /// The sum of their times, in seconds.
    pub seconds: f64,
    /// The numbers of answers within each of [`ANSWER_BOUNDS`] and above the bound before it.
    pub buckets: [u64; ANSWER_BOUNDS.len()],
}

/// Counts the answers and their times.
#[derive(Debug, Default)]
pub(crate) struct AnswerTimes(Mutex<BTreeMap<(&'static str, u16), Answered>>);

impl AnswerTimes {
    /// Counts an answer.
    pub(crate) fn count(&self, method: &Method, code: StatusCode, took: Duration) {
        let known = ["GET", "POST", "DELETE", "HEAD", "OPTIONS"];
        let method = known.into_iter().find(|known| *known == method.as_str()).unwrap_or("Other");
        let fresh = Answered { method, code: code.as_u16(), count: 0, seconds: 0.0, buckets: [0; ANSWER_BOUNDS.len()] };
        let mut answers = self.0.lock();
        let answered = answers.entry((method, fresh.code)).or_insert(fresh);
        let seconds = took.as_secs_f64();
        answered.count += 1;
        answered.seconds += seconds;
        let bounds = ANSWER_BOUNDS.iter().zip(&mut answered.buckets);
        bounds.filter(|(bound, _)| seconds <= **bound).take(1).for_each(|(_, bucket)| *bucket += 1);
    }

    /// Returns all answers so far, by method and code.
    pub(crate) fn all(&self) -> Vec<Answered> {
        self.0.lock().values().copied().collect()
    }
}

/// Counts the requests of callers that have no right on OpsJobs.
pub(crate) struct Unentitled {
    all: AtomicU64,
    /// The requests without a log line since the last log line.
    silent: AtomicU64,
    lines: DefaultDirectRateLimiter,
}

impl Default for Unentitled {
    fn default() -> Self {
        Self { all: AtomicU64::default(), silent: AtomicU64::default(), lines: RateLimiter::direct(LINES) }
    }
}

impl Unentitled {
    /// Counts a request. Returns the number of requests before it without a log line, or `None` if this request gets no line either.
    pub(crate) fn count(&self) -> Option<u64> {
        self.all.fetch_add(1, Ordering::Relaxed);
        if self.lines.check().is_ok() {
            return Some(self.silent.swap(0, Ordering::Relaxed));
        }
        self.silent.fetch_add(1, Ordering::Relaxed);
        None
    }

    /// Returns the number of all these requests.
    pub(crate) fn all(&self) -> u64 {
        self.all.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_counts_in_the_bucket_of_its_time_and_an_unknown_method_is_other() {
        let answers = AnswerTimes::default();
        for millis in [1, 5, 300, 60_000] {
            answers.count(&Method::GET, StatusCode::OK, Duration::from_millis(millis));
        }
        answers.count(&Method::from_bytes(b"BREW").unwrap(), StatusCode::NOT_FOUND, Duration::ZERO);
        let all = answers.all();
        let [get, other] = all.as_slice() else { panic!("{all:?}") };
        assert_eq!((get.method, get.code, get.count), ("GET", 200, 4));
        assert_eq!(get.buckets, [2, 0, 0, 0, 0, 1, 0, 0, 0, 0], "the answer after a minute is in no bucket");
        assert_eq!((other.method, other.code, other.count), ("Other", 404, 1));
    }

    #[test]
    fn each_is_counted_and_few_have_a_line() {
        let unentitled = Unentitled::default();
        let lines = (0..10_000).filter_map(|_| unentitled.count()).count();
        assert!((10..1_000).contains(&lines), "{lines}");
        assert_eq!(unentitled.all(), 10_000);
        assert!(unentitled.silent.load(Ordering::Relaxed) > 0);
    }
}
