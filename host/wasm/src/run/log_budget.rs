//! The bytes that all instances of one plugin may log.

use std::time::Instant;

use parking_lot::Mutex;

/// The bytes that all instances of one plugin may log in a second, on average.
const BYTES_PER_SECOND: f64 = 64.0 * 1024.0;

/// The bytes that a plugin may still log.
pub(crate) struct LogBudget(Mutex<(Instant, f64)>);

impl LogBudget {
    /// Returns the budget of a plugin that has logged nothing yet.
    pub(crate) fn full() -> Self {
        Self(Mutex::new((Instant::now(), BYTES_PER_SECOND)))
    }

    /// Returns true if the plugin may log this many bytes now, and counts them.
    pub(crate) fn take(&self, bytes: usize) -> bool {
        let mut state = self.0.lock();
        let now = Instant::now();
        let earned = now.duration_since(state.0).as_secs_f64() * BYTES_PER_SECOND;
        *state = (now, (state.1 + earned).min(BYTES_PER_SECOND));
        let enough = state.1 >= bytes as f64;
        if enough {
            state.1 -= bytes as f64;
        }
        enough
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flood_is_cut_off() {
        let budget = LogBudget::full();
        let kept = (0..10_000).filter(|_| budget.take(1024)).count();
        assert!((64..200).contains(&kept), "{kept}");
    }
}
