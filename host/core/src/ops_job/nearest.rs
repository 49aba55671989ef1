//! Finds the word that a user may have meant.

use strsim::damerau_levenshtein;

/// The most letters that may differ.
pub(super) const WRONG: usize = 3;

/// Returns the known word that is closest to `word`, if it is close enough.
pub(super) fn nearest<'a>(word: &str, known: &[&'a str]) -> Option<&'a str> {
    let lower = word.chars().take(64).collect::<String>().to_ascii_lowercase();
    let distance = |known: &&'a str| (damerau_levenshtein(&lower, &known.to_ascii_lowercase()), *known);
    let (distance, known) = known.iter().map(distance).min()?;
    (distance <= WRONG.min(lower.chars().count().saturating_sub(1))).then_some(known)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_with_few_wrong_letters_is_near_and_another_word_is_not() {
        assert_eq!(nearest("batchcount", &["name", "batchCount"]), Some("batchCount"));
        assert_eq!(nearest("nodes", &["node", "node.host"]), Some("node"));
        assert_eq!(nearest("x", &["cpu"]), None);
        assert_eq!(nearest(&"ä".repeat(100), &["cpu"]), None);
        assert_eq!(nearest("ä", &["a"]), None, "it has one letter");
    }
}
