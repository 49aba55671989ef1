//! The free space of the volume of files, and the share of it that one owner may take. Source: docs/opsjob.md 5.

use std::fmt;
use std::io;
use std::path::Path;
use std::str::FromStr;

/// The reciprocal of the part of a volume's bytes and inodes that has to stay free for a new file: a fifth. The history, which may be on
/// the same volume, uses that part.
const FREE: u64 = 5;
/// The bytes that are written between two checks of the free space.
pub(crate) const LOOKS_EACH: u64 = 16 * 1024 * 1024;

/// The space of a volume, in bytes and inodes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct VolumeSpace {
    /// The used and the free bytes. Blocks that are reserved for other users do not count, as in `df`.
    pub total: u64,
    /// The bytes that this process may still write.
    pub free: u64,
    /// The used and the free inodes. It is 0 if the filesystem makes inodes on demand, as btrfs does.
    pub inodes: u64,
    /// The inodes that this process may still take.
    pub free_inodes: u64,
}

impl VolumeSpace {
    /// Returns the space of the volume of a folder.
    ///
    /// # Errors
    /// If the system cannot tell the space.
    pub fn of(folder: &Path) -> io::Result<Self> {
        let said = rustix::fs::statvfs(folder)?;
        let bytes = |blocks: u64| blocks.saturating_mul(said.f_frsize);
        let with_used = |all: u64, free: u64, available: u64| all.saturating_sub(free).saturating_add(available);
        Ok(Self {
            total: bytes(with_used(said.f_blocks, said.f_bfree, said.f_bavail)),
            free: bytes(said.f_bavail),
            inodes: with_used(said.f_files, said.f_ffree, said.f_favail),
            free_inodes: said.f_favail,
        })
    }

    /// Returns the reason why no file may be begun or continued, or `None` if there is room. The reason is that too few bytes or inodes are
    /// free.
    pub fn scarce(self) -> Option<String> {
        let percent = |free: u64, all: u64| u128::from(free).saturating_mul(100).checked_div(u128::from(all));
        let (all, free, of_what) = match self {
            Self { total, free, .. } if free < total / FREE => (total, free, ""),
            Self { inodes, free_inodes, .. } if free_inodes < inodes / FREE => (inodes, free_inodes, "of its inodes "),
            _ => return None,
        };
        // The sentence is part of a status. It has only whole percents, so that the status is not written at each check.
        Some(format!(
            "the volume of files has {} % {of_what}free, and below {} % none is written: an admin removes some or enlarges it",
            percent(free, all).unwrap_or(100),
            100 / FREE
        ))
    }
}

/// Returns the whole mebibytes of a number of bytes.
pub(crate) const fn mebibytes(bytes: u64) -> u64 {
    bytes / (1024 * 1024)
}

/// A function that returns the space of a volume.
pub(crate) type SpaceProbe = Box<dyn Fn() -> io::Result<VolumeSpace> + Send + Sync>;

/// The largest share of one owner's files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FilesShare {
    /// A percentage of the volume.
    Percent(u8),
    /// A number of bytes.
    Bytes(u64),
}

impl FromStr for FilesShare {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || "write a part of the volume such as 25%, or a size such as 64Gi".to_owned();
        if let Some(percent) = text.strip_suffix('%') {
            let percent = percent.parse().ok().filter(|percent| (1..=100).contains(percent));
            return percent.map(Self::Percent).ok_or_else(wrong);
        }
        let units = [("Mi", 20_u32), ("Gi", 30), ("Ti", 40)];
        let found = units.iter().find_map(|(unit, shift)| Some((text.strip_suffix(unit)?, *shift)));
        let (number, shift) = found.ok_or_else(wrong)?;
        let bytes = number.parse::<u64>().ok().and_then(|number| number.checked_mul(1_u64.checked_shl(shift)?));
        bytes.filter(|bytes| *bytes > 0).map(Self::Bytes).ok_or_else(wrong)
    }
}

impl fmt::Display for FilesShare {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Percent(percent) => write!(out, "{percent}%"),
            Self::Bytes(bytes) => write!(out, "{}Mi", mebibytes(*bytes)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_volume_with_less_than_a_fifth_free_takes_no_file() {
        let space = |free: u64| VolumeSpace { total: 1_000 << 20, free: free << 20, ..VolumeSpace::default() };
        assert_eq!(space(200).scarce(), None);
        let message = space(199).scarce().unwrap();
        assert!(message.contains("has 19 % free, and below 20 %"), "{message}");
        assert_eq!(VolumeSpace::default().scarce(), None);
        assert!(VolumeSpace::of(Path::new("/")).unwrap().total > 0);
    }

    #[test]
    fn a_volume_with_less_than_a_fifth_of_its_inodes_free_takes_no_file_unless_it_has_no_number_of_them() {
        let space = |inodes: u64, free_inodes: u64| VolumeSpace { total: 10, free: 10, inodes, free_inodes };
        assert_eq!(space(1_000, 200).scarce(), None);
        let message = space(1_000, 199).scarce().unwrap();
        assert!(message.contains("has 19 % of its inodes free, and below 20 %"), "{message}");
        assert!(space(1_000, 0).scarce().unwrap().contains("has 0 % of its inodes free"));
        assert_eq!(space(0, 0).scarce(), None, "btrfs has no number of inodes");
        assert_eq!(space(u64::MAX, u64::MAX).scarce(), None, "CephFS knows no number of free inodes");
        let full = VolumeSpace { free: 1, ..space(1_000, 0) };
        assert!(full.scarce().unwrap().contains("has 10 % free"), "bytes are named first");
        let root = VolumeSpace::of(Path::new("/")).unwrap();
        assert!(root.free_inodes <= root.inodes);
    }

    #[test]
    fn a_share_is_a_part_of_the_volume_or_a_size() {
        for (text, share) in [("25%", FilesShare::Percent(25)), ("64Gi", FilesShare::Bytes(64 << 30))] {
            assert_eq!(text.parse::<FilesShare>().unwrap(), share);
            assert_eq!(share.to_string().parse::<FilesShare>().unwrap(), share);
        }
        for wrong in ["", "0%", "101%", "25", "0Gi", "-1Gi", "99999999999999999Ti"] {
            assert!(wrong.parse::<FilesShare>().is_err(), "{wrong}");
        }
    }
}
