//! Misdeeds in `setup`, selected by the setting `setup`. A job cannot reach them.

use oarlock_sdk::{Failure, Registration, Relation, Result, config};

use crate::deed::{deeper, hoard, spin, trap};

/// Commits the misdeed that the setting asks for. Returns a good registration if it asks for none.
pub(crate) fn setup() -> Result<Registration> {
    let asked: Option<String> = config("/setup")?;
    let nothing = Registration::new();
    Ok(match asked.as_deref() {
        None | Some("succeed") => nothing,
        Some("trap") => trap(),
        Some("loop") => spin(),
        Some("memory-bomb") => hoard(),
        Some("deep-recursion") => nothing.exclusive(&deeper(0).to_string()),
        Some("huge-output") => nothing.exclusive(&"x".repeat(16 << 20)),
        Some("many-relations") => (0..10_000)
            .fold(nothing, |sum, n| sum.relation(Relation::pods(&format!("r{n}")).by_label("hostile.test/of"))),
        Some("same-name") => {
            let twice = || Relation::pods("twice").by_label("hostile.test/of");
            nothing.relation(twice()).relation(twice())
        }
        Some("undeclared-kind") => {
            nothing.relation(Relation::objects("keys", "v1", "Secret").by_label("hostile.test/of"))
        }
        Some("unknown-relation") => nothing.relation(Relation::pods("far").by_other("by-moonlight", "{}")),
        Some("fail") => return Err(Failure::permanent("Hostile", "It was told to refuse.")),
        Some("retry") => return Err(Failure::retryable("Hostile", "It was told to try for ever.")),
        Some(other) => {
            return Err(Failure::permanent(
                "UnknownDeed",
                format!("There is no misdeed {other} in setup; see setup.rs."),
            ));
        }
    })
}
