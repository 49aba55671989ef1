//! The peak use of each limit by the calls of one plugin.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::run::limits::{Meter, Use};

/// The names of the limits, as in a manifest.
const LIMITS: [&str; 5] = ["callMilliseconds", "memoryMiB", "outputBytes", "logBytes", "hostCalls"];

/// The peak use of each limit, in percent of the limit. A new grant begins anew, because it may have other limits.
#[derive(Debug, Default)]
pub(crate) struct PeakUse([AtomicU32; LIMITS.len()]);

impl PeakUse {
    /// Takes the use of a call that has ended.
    pub(crate) fn note(&self, meter: &Meter) {
        for (peak, Use { used, most }) in self.0.iter().zip(meter.used()) {
            let percent = (u64::from(used) * 100).div_ceil(u64::from(most.max(1))).min(100);
            peak.fetch_max(u32::try_from(percent).unwrap_or(100), Ordering::Relaxed);
        }
    }

    /// Returns the peaks, rounded up to tens, by the name of the limit. A limit that no call has used is missing.
    pub(crate) fn in_tens(&self) -> BTreeMap<String, u8> {
        let peaks = self.0.iter().map(|peak| peak.load(Ordering::Relaxed).min(100).div_ceil(10) * 10);
        let named = LIMITS.iter().zip(peaks).filter(|(_, peak)| *peak > 0);
        named.map(|(name, peak)| ((*name).to_owned(), u8::try_from(peak).unwrap_or(100))).collect()
    }
}

#[cfg(test)]
mod tests {
    use oarlock_contract::limits::{DEFAULTS, PluginLimits};

    use super::*;

    #[test]
    fn the_peak_is_that_of_the_worst_call_rounded_up_to_tens() {
        let peaks = PeakUse::default();
        let mut meter = Meter::new(PluginLimits { host_calls: 100, output_bytes: 1_000, ..DEFAULTS });
        for calls in [41, 3] {
            meter.begin();
            meter.host_call(calls).unwrap();
            meter.output(1).unwrap();
            peaks.note(&meter);
        }
        let peaks = peaks.in_tens();
        assert_eq!(
            (peaks.get("hostCalls"), peaks.get("outputBytes"), peaks.get("logBytes")),
            (Some(&50), Some(&10), None)
        );
    }
}
