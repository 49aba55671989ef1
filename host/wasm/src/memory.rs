//! The memory that the host, its plugins and the compile helper share.
//!
//! A container that goes beyond its limit is ended as a whole, so each part keeps to a share of its own: a quarter is
//! the plugins', three eighths are the helper's, an eighth is the file that is loaded, and the rest is the host's.

use crate::load::vet::MAX_BYTES;
use crate::rejection::Rejection;

/// Memory of all plugins that run at once where there is no limit: as much as the engine's pool has.
const POOL_MIB: u32 = 32 * 64;

/// The shares of one limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct MemoryShares {
    limit: Option<u64>,
}

impl MemoryShares {
    /// The shares of a limit in bytes; `None` is no limit.
    pub(crate) fn of(limit: Option<u64>) -> Self {
        Self { limit }
    }

    /// Bytes that the helper may allocate.
    pub(crate) fn helper(self) -> Option<u64> {
        self.limit.map(|limit| (limit / 8).saturating_mul(3))
    }

    /// MiB of all instances that exist at once.
    pub(crate) fn plugins_mib(self) -> u32 {
        let quarter = self.limit.map(|limit| u32::try_from((limit / 4) >> 20).unwrap_or(u32::MAX));
        quarter.unwrap_or(POOL_MIB).min(POOL_MIB)
    }

    /// Bytes of the largest file.
    pub(crate) fn file(self) -> u64 {
        self.limit.map_or(MAX_BYTES, |limit| (limit / 8).min(MAX_BYTES))
    }

    /// Rejects a plugin whose instances do not fit into the share.
    pub(crate) fn check_instance(self, mib: u32) -> Result<(), Rejection> {
        let share = self.plugins_mib();
        if mib <= share {
            return Ok(());
        }
        let sentence = format!(
            "an instance may use {mib} MiB of memory, and all plugins share {share} MiB, a quarter of the host's limit; \
             grant it less by `limits.memoryMiB`, or give the host --memory-limit {}Mi or more",
            mib.saturating_mul(4)
        );
        Err(Rejection::new("MemoryLimit", sentence))
    }

    /// Rejects a file that is too large, before it is read.
    pub(crate) fn check_file(self, bytes: u64) -> Result<(), Rejection> {
        let most = self.file();
        if bytes <= most {
            return Ok(());
        }
        let (has, most) = (bytes.div_ceil(1 << 20), most >> 20);
        let cure = if bytes > MAX_BYTES {
            String::new()
        } else {
            format!(", an eighth of the host's limit; give it --memory-limit {}Mi or more", has.saturating_mul(8))
        };
        Err(Rejection::new("TooLarge", format!("the file has {has} MiB; a plugin has at most {most}{cure}")))
    }

    /// What the helper had, and how to give it more; empty where there is no limit.
    pub(crate) fn of_helper(self) -> String {
        let Some((share, limit)) = self.helper().zip(self.limit) else { return String::new() };
        format!(
            ": it has {} MiB, three eighths of the host's limit of {} MiB; give the host more by --memory-limit, or",
            share >> 20,
            limit >> 20
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_does_not_fit_into_its_share_is_refused_by_naming_what_it_needs() {
        let shares = MemoryShares::of(Some(256 << 20));
        assert_eq!((shares.helper(), shares.plugins_mib(), shares.file()), (Some(96 << 20), 64, 32 << 20));
        assert!(shares.check_instance(64).is_ok() && shares.check_file(32 << 20).is_ok());
        let instance = shares.check_instance(65).unwrap_err().sentence;
        assert!(instance.contains("65 MiB") && instance.contains("--memory-limit 260Mi"), "{instance}");
        let file = shares.check_file((32 << 20) + 1).unwrap_err().sentence;
        assert!(file.contains("33 MiB") && file.contains("--memory-limit 264Mi"), "{file}");
    }

    #[test]
    fn without_a_limit_the_largest_plugin_fits() {
        let shares = MemoryShares::of(None);
        assert!(shares.check_instance(64).is_ok() && shares.check_file(MAX_BYTES).is_ok());
        assert!(!shares.check_file(MAX_BYTES + 1).unwrap_err().sentence.contains("--memory-limit"));
    }
}
