//! Names of children. Source: docs/jobflow.md 2.1.

use crate::child::canonical::digest;

/// Longest name of a Job, whose pods carry it as a label.
const LONGEST: usize = 63;
/// Bytes that are kept of a longer one, before `-` and the digest.
const KEPT: usize = 52;
const DIGITS: usize = 10;

/// The name of the child for attempt `attempt` (0 is the first) of `unit`. `is_taken` says whether another unit's first
/// attempt has that name.
pub fn child_name(kind: &str, parent: &str, unit: &str, attempt: u32, is_taken: impl Fn(&str) -> bool) -> String {
    let plain = match attempt {
        0 => format!("{parent}-{unit}"),
        attempt => format!("{parent}-{unit}-r{attempt}"),
    };
    if plain.len() <= LONGEST && (attempt == 0 || !is_taken(&plain)) {
        return plain;
    }
    let end = (0..=KEPT.min(plain.len())).rev().find(|end| plain.is_char_boundary(*end)).unwrap_or(0);
    let head = plain.get(..end).unwrap_or_default().trim_end_matches(['-', '.']);
    let whole = [kind, parent, unit, &attempt.to_string()].join("\0");
    format!("{head}-{}", digest(whole.as_bytes(), DIGITS))
}

/// Whether a child of this name can be that attempt of `unit`: anybody may write the label with the number, and nobody can
/// change a name.
pub fn is_child_name(name: &str, kind: &str, parent: &str, (unit, attempt): (&str, u32)) -> bool {
    let rest = name.strip_prefix(parent).and_then(|rest| rest.strip_prefix('-')?.strip_prefix(unit));
    let is_plain = rest.is_some_and(|rest| match attempt {
        0 => rest.is_empty(),
        attempt => rest.strip_prefix("-r").is_some_and(|number| number == attempt.to_string()),
    });
    // Another unit may have had the plain name when the child was made.
    is_plain && name.len() <= LONGEST || name == child_name(kind, parent, unit, attempt, |_| true)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_child_has_a_name_that_its_attempt_can_have_been_given() {
        let (long, step) = ("f".repeat(60), "s".repeat(20));
        for attempt in [0, 1, 70] {
            for (parent, unit) in [("f", "a"), ("f-a", "r1"), (&*long, &*step)] {
                for taken in [false, true] {
                    let name = child_name("JobFlow", parent, unit, attempt, |_| taken);
                    assert!(is_child_name(&name, "JobFlow", parent, (unit, attempt)), "{name}");
                    assert!(!is_child_name(&name, "JobFlow", parent, (unit, attempt + 1)), "{name}");
                    assert!(!is_child_name(&name, "JobFlow", parent, ("b", attempt)), "{name}");
                }
            }
        }
        for name in ["f-a-r01", "f-a-r", "f-a-r1-", "f-a", "fa-r1", "", "-", "f"] {
            assert!(!is_child_name(name, "JobFlow", "f", ("a", 1)), "{name}");
        }
        let too_long = format!("{long}-{step}");
        assert!(!is_child_name(&too_long, "JobFlow", &long, (&step, 0)));
    }

    #[test]
    fn short_names_are_plain_and_long_ones_end_in_a_digest() {
        let none = |_: &str| false;
        assert_eq!(child_name("JobFlow", "f", "a", 0, none), "f-a");
        assert_eq!(child_name("JobFlow", "f", "a", 2, none), "f-a-r2");
        let long = child_name("JobFlow", &"f".repeat(60), &"s".repeat(20), 0, none);
        assert_eq!(long.len(), 63);
        assert_ne!(long, child_name("JobFlow", &"f".repeat(60), &"s".repeat(20), 1, none));
        assert_ne!(long, child_name("DaemonJob", &"f".repeat(60), &"s".repeat(20), 0, none));
    }

    #[test]
    fn a_retry_never_takes_the_name_of_another_step() {
        let name = child_name("JobFlow", "f", "a", 1, |name| name == "f-a-r1");
        assert!(name.starts_with("f-a-r1-") && name.len() == "f-a-r1-".len() + DIGITS, "{name}");
    }

    #[test]
    fn a_cut_leaves_no_dash_or_dot_before_the_digest() {
        let name = child_name("JobFlow", &format!("{}.-x", "f".repeat(50)), &"s".repeat(20), 0, |_| false);
        assert!(name.starts_with(&format!("{}-", "f".repeat(50))), "{name}");
    }
}
