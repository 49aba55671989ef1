//! The memory limit of the host: from its argument, or from its container.

use std::path::Path;

/// The smallest limit. The host itself would not fit into its share of a smaller limit.
const LEAST: u64 = 128 << 20;

/// Returns the limit of the container of this process, if the container has one.
pub(super) fn of_container() -> Option<u64> {
    limit_in(Path::new("/sys/fs/cgroup/memory.max"))
}

fn limit_in(file: &Path) -> Option<u64> {
    // The file contains `max` if there is no limit.
    std::fs::read_to_string(file).ok()?.trim().parse().ok()
}

/// Parses a size: bytes, or a number with `Ki`, `Mi` or `Gi`.
pub(super) fn parse(text: &str) -> Result<u64, String> {
    let units = [("Ki", 10_u32), ("Mi", 20), ("Gi", 30)];
    let (number, shift) =
        units.iter().find_map(|(unit, shift)| Some((text.strip_suffix(unit)?, *shift))).unwrap_or((text, 0));
    let bytes = number.parse::<u64>().ok().and_then(|number| number.checked_mul(1 << shift));
    match bytes {
        Some(bytes) if bytes >= LEAST => Ok(bytes),
        Some(_) => Err(format!("at least {}Mi are needed", LEAST >> 20)),
        None => Err("write a size such as 512Mi or 1Gi".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_as_kubernetes_writes_them() {
        assert_eq!(parse("512Mi"), Ok(512 << 20));
        assert_eq!(parse("1Gi"), Ok(1 << 30));
        assert_eq!(parse("268435456"), Ok(256 << 20));
        for wrong in ["", "512M", "-1Mi", "1.5Gi", "99999999999999Gi", "64Mi"] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_container_without_a_limit_has_none() {
        let file = std::env::temp_dir().join(format!("oarlock-memory-max-{}", std::process::id()));
        std::fs::write(&file, "536870912\n").unwrap();
        assert_eq!(limit_in(&file), Some(512 << 20));
        std::fs::write(&file, "max\n").unwrap();
        assert_eq!(limit_in(&file), None);
        std::fs::remove_file(file).unwrap();
    }
}
