//! Waits between failing retries.

use std::time::Duration;

use k8s_openapi::jiff::SignedDuration;

/// A wait that doubles with each failure in a row, up to a longest wait.
#[derive(Clone, Copy, Debug)]
pub struct Backoff {
    first: Duration,
    longest: Duration,
}

impl Backoff {
    /// Returns a backoff with these waits, in milliseconds.
    #[must_use]
    pub const fn from_millis(first: u64, longest: u64) -> Self {
        Self { first: Duration::from_millis(first), longest: Duration::from_millis(longest) }
    }

    /// Returns a backoff with these waits, in seconds.
    #[must_use]
    pub const fn from_secs(first: u64, longest: u64) -> Self {
        Self { first: Duration::from_secs(first), longest: Duration::from_secs(longest) }
    }

    /// Returns the longest wait.
    #[must_use]
    pub const fn longest(&self) -> Duration {
        self.longest
    }

    /// Returns the longest wait as a duration that can be added to an API time.
    #[must_use]
    pub fn signed_longest(&self) -> SignedDuration {
        signed(self.longest)
    }

    /// Returns the wait after a failure. `failures` is the number of failures in a row before it.
    #[must_use]
    pub fn wait(&self, failures: u32) -> Duration {
        self.first.saturating_mul(2_u32.saturating_pow(failures)).min(self.longest)
    }

    /// Returns [`Backoff::wait`] as a duration that can be added to an API time.
    #[must_use]
    pub fn signed_wait(&self, failures: u32) -> SignedDuration {
        signed(self.wait(failures))
    }
}

fn signed(wait: Duration) -> SignedDuration {
    SignedDuration::try_from(wait).unwrap_or(SignedDuration::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wait_doubles_with_each_failure_up_to_the_longest() {
        let backoff = Backoff::from_secs(5, 60);
        let waits = [0, 1, 3, 4, u32::MAX].map(|failures| backoff.wait(failures).as_secs());
        assert_eq!(waits, [5, 10, 40, 60, 60]);
        assert_eq!(backoff.signed_wait(1), SignedDuration::from_secs(10));
        let endless = Backoff::from_secs(u64::MAX, u64::MAX);
        assert_eq!(endless.signed_wait(u32::MAX), SignedDuration::MAX);
    }
}
