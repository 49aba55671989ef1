//! The memory that the host, its plugins and the compile helper share.
//!
//! The kernel ends a container that exceeds its limit as a whole, so each part keeps to its own share. Plugins get a quarter, the helper
//! three eighths, and the file that is being loaded an eighth. The host gets the rest.

use crate::load::vet::MAX_BYTES;
use crate::rejection::Rejection;

/// The memory of all running plugins without a limit, in MiB. It is the size of the engine's pool.
const POOL_MIB: u32 = 32 * 64;

/// The shares of a memory limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct MemoryShares {
    limit: Option<u64>,
}

impl MemoryShares {
    /// Returns the shares of a limit in bytes. `None` means no limit.
    pub(crate) fn of(limit: Option<u64>) -> Self {
        Self { limit }
    }

    /// Returns the bytes that the helper may allocate.
    pub(crate) fn helper(self) -> Option<u64> {
        self.limit.map(|limit| (limit / 8).saturating_mul(3))
    }

    /// Returns the MiB of all instances that exist at once.
    pub(crate) fn plugins_mib(self) -> u32 {
        let quarter = self.limit.map(|limit| u32::try_from((limit / 4) >> 20).unwrap_or(u32::MAX));
        quarter.unwrap_or(POOL_MIB).min(POOL_MIB)
    }

    /// Returns the bytes of the largest file.
    pub(crate) fn file(self) -> u64 {
        self.limit.map_or(MAX_BYTES, |limit| (limit / 8).min(MAX_BYTES))
    }

    /// Rejects a plugin whose instances do not fit into the share of plugins.
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

    /// Rejects a file that is too large before the host reads it.
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

    /// Returns a text about the memory of the helper and how to increase it. The text is empty without a limit.
    pub(crate) fn of_helper(self) -> String {
        let Some((share, limit)) = self.helper().zip(self.limit) else { return String::new() };
        format!(
            ": it has {} MiB, three eighths of the host's limit of {} MiB; give the host more by --memory-limit (for Python 1Gi, which \
             `languages.python` of the chart sets), or",
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
    fn a_helper_with_too_little_memory_names_the_flag_and_the_value_of_the_chart() {
        let text = MemoryShares::of(Some(512 << 20)).of_helper();
        for words in ["it has 192 MiB", "--memory-limit (for Python 1Gi, which `languages.python` of the chart sets)"] {
            assert!(text.contains(words), "{text}");
        }
        assert_eq!(MemoryShares::of(None).of_helper(), "");
    }

    #[test]
    fn without_a_limit_the_largest_plugin_fits() {
        let shares = MemoryShares::of(None);
        assert!(shares.check_instance(64).is_ok() && shares.check_file(MAX_BYTES).is_ok());
        assert!(!shares.check_file(MAX_BYTES + 1).unwrap_err().sentence.contains("--memory-limit"));
    }
}
