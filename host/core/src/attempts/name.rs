//! Names of children. Source: docs/jobflow.md 2.1.

use crate::object::canonical::digest;

/// The longest name of a Job. Its pods carry the name as a label.
const LONGEST: usize = 63;
/// The longest name of an Indexed Job. The name, `-` and the number of a pod are the host name of that pod.
const LONGEST_INDEXED: usize = 52;
const DIGITS: usize = 10;

/// Identity of an attempt, from which the name of its child follows.
#[derive(Clone, Copy, Debug)]
pub struct AttemptOf<'a> {
    /// Kind of the owner.
    pub kind: &'a str,
    /// Name of the owner.
    pub parent: &'a str,
    /// Name of the unit.
    pub unit: &'a str,
    /// Number of the attempt, from 0.
    pub attempt: u32,
}

impl AttemptOf<'_> {
    /// Returns the name of the attempt's child. `is_taken` says whether another unit's first attempt has that name.
    pub fn name(self, is_indexed: bool, is_taken: impl Fn(&str) -> bool) -> String {
        let Self { parent, unit, attempt, .. } = self;
        let plain = match attempt {
            0 => format!("{parent}-{unit}"),
            attempt => format!("{parent}-{unit}-r{attempt}"),
        };
        let fits =
            if is_indexed { plain.len() <= LONGEST_INDEXED && !plain.contains('.') } else { plain.len() <= LONGEST };
        if fits && (attempt == 0 || !is_taken(&plain)) {
            return plain;
        }
        self.hashed(&plain, is_indexed)
    }

    /// Returns the beginning of the plain name with a digest of all parts.
    fn hashed(self, plain: &str, is_indexed: bool) -> String {
        let Self { kind, parent, unit, attempt } = self;
        let longest = if is_indexed { LONGEST_INDEXED } else { LONGEST };
        let kept = longest.saturating_sub(DIGITS).saturating_sub(1);
        let end = (0..=kept.min(plain.len())).rev().find(|end| plain.is_char_boundary(*end)).unwrap_or(0);
        let head = plain.get(..end).unwrap_or_default().trim_end_matches(['-', '.']);
        // A host name has no dot.
        let head = if is_indexed { head.replace('.', "-") } else { head.to_owned() };
        let whole = [kind, parent, unit, &attempt.to_string()].join("\0");
        format!("{head}-{}", digest(whole.as_bytes(), DIGITS))
    }

    /// Returns true if a child of this name can belong to the attempt. Anyone may write the label with the attempt number, but nobody can change a
    /// name.
    pub fn may_have(self, name: &str) -> bool {
        let Self { parent, unit, attempt, .. } = self;
        let rest = name.strip_prefix(parent).and_then(|rest| rest.strip_prefix('-')?.strip_prefix(unit));
        let is_plain = rest.is_some_and(|rest| match attempt {
            0 => rest.is_empty(),
            attempt => rest.strip_prefix("-r").is_some_and(|number| number == attempt.to_string()),
        });
        // When the child was made, another unit may have had the plain name, or the Job may have been Indexed.
        let hashed = |is_indexed| name == self.name(is_indexed, |_| true);
        is_plain && name.len() <= LONGEST || hashed(false) || hashed(true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of<'a>(parent: &'a str, unit: &'a str, attempt: u32) -> AttemptOf<'a> {
        AttemptOf { kind: "JobFlow", parent, unit, attempt }
    }

    #[test]
    fn the_name_of_an_indexed_job_is_the_host_name_of_its_pods_with_their_number() {
        let none = |_: &str| false;
        let long = of("nightly-billing-reconciliation-eu", "collect-invoices-of-tenants", 0).name(true, none);
        assert!(long.len() <= 52 && long.starts_with("nightly-billing-reconciliation-eu-collect-"), "{long}");
        let dotted = of("nightly", "shards.v2", 0).name(true, none);
        assert!(dotted.starts_with("nightly-shards-v2-") && !dotted.contains('.'), "{dotted}");
        assert_eq!(of("nightly", "shards", 1).name(true, none), "nightly-shards-r1");
        assert_eq!(of("nightly", "shards.v2", 0).name(false, none), "nightly-shards.v2");
    }

    #[test]
    fn a_child_has_a_name_that_its_attempt_can_have_been_given() {
        let (long, step) = ("f".repeat(60), "s".repeat(20));
        for attempt in [0, 1, 70] {
            for (parent, unit) in [("f", "a"), ("f-a", "r1"), (&*long, &*step)] {
                for (taken, indexed) in [(false, false), (true, false), (false, true), (true, true)] {
                    let name = of(parent, unit, attempt).name(indexed, |_| taken);
                    assert!(of(parent, unit, attempt).may_have(&name), "{name}");
                    assert!(!of(parent, unit, attempt + 1).may_have(&name), "{name}");
                    assert!(!of(parent, "b", attempt).may_have(&name), "{name}");
                }
            }
        }
        for name in ["f-a-r01", "f-a-r", "f-a-r1-", "f-a", "fa-r1", "", "-", "f"] {
            assert!(!of("f", "a", 1).may_have(name), "{name}");
        }
        let too_long = format!("{long}-{step}");
        assert!(!of(&long, &step, 0).may_have(&too_long));
    }

    #[test]
    fn short_names_are_plain_and_long_ones_end_in_a_digest() {
        let none = |_: &str| false;
        assert_eq!(of("f", "a", 0).name(false, none), "f-a");
        assert_eq!(of("f", "a", 2).name(false, none), "f-a-r2");
        let long = of(&"f".repeat(60), &"s".repeat(20), 0).name(false, none);
        assert_eq!(long.len(), 63);
        assert_ne!(long, of(&"f".repeat(60), &"s".repeat(20), 1).name(false, none));
        assert_ne!(long, AttemptOf { kind: "DaemonJob", ..of(&"f".repeat(60), &"s".repeat(20), 0) }.name(false, none));
    }

    #[test]
    fn a_retry_never_takes_the_name_of_another_step() {
        let name = of("f", "a", 1).name(false, |name| name == "f-a-r1");
        assert!(name.starts_with("f-a-r1-") && name.len() == "f-a-r1-".len() + DIGITS, "{name}");
    }

    #[test]
    fn a_cut_leaves_no_dash_or_dot_before_the_digest() {
        let name = of(&format!("{}.-x", "f".repeat(50)), &"s".repeat(20), 0).name(false, |_| false);
        assert!(name.starts_with(&format!("{}-", "f".repeat(50))), "{name}");
    }
}
