//! What a story has observed, and whether it was as said.

use std::fmt;

/// The checks of a story, in their order.
#[derive(Debug, Default)]
pub(super) struct Checks {
    all: Vec<(bool, String)>,
}

impl Checks {
    /// Adds one; yields it as a line.
    pub(super) fn add(&mut self, holds: bool, observed: &str) -> String {
        self.all.push((holds, observed.to_owned()));
        line(holds, observed)
    }

    /// True if there are any, and each of them holds.
    pub(super) fn all_hold(&self) -> bool {
        !self.all.is_empty() && self.all.iter().all(|(holds, _)| *holds)
    }
}

fn line(holds: bool, observed: &str) -> String {
    format!("  {}: {observed}", if holds { "as said" } else { "NOT AS SAID" })
}

impl fmt::Display for Checks {
    /// Those that do not hold, and how many do.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (_, observed) in self.all.iter().filter(|(holds, _)| !holds) {
            writeln!(f, "{}", line(false, observed))?;
        }
        let good = self.all.iter().filter(|(holds, _)| *holds).count();
        write!(f, "{good} of {} checks hold", self.all.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_that_does_not_hold_is_named_before_the_count() {
        let mut checks = Checks::default();
        assert!(!checks.all_hold());
        checks.add(true, "a");
        assert!(checks.all_hold());
        checks.add(false, "b is late");
        assert!(!checks.all_hold());
        assert_eq!(checks.to_string(), "  NOT AS SAID: b is late\n1 of 2 checks hold");
    }
}
