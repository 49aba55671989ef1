//! The id of a job that REST makes: the usable part of its name, and six characters. Source: docs/opsjob-rest.md 4.

use sha2::{Digest as _, Sha256};

/// The characters at the end of an id. Without vowels they form no words, and no character resembles another.
const CHARACTERS: &[u8] = b"bcdfghjklmnpqrstvwxz2456789";
/// The number of characters at the end.
const AT_THE_END: usize = 6;
/// The most characters of the name in an id.
const OF_NAME: usize = 56;

/// Returns the id of a job with this name, from six bytes that are random or from a digest.
pub fn job_id(name: &str, bytes: [u8; AT_THE_END]) -> String {
    let mut id = String::new();
    for part in name.split(|c: char| !c.is_ascii_alphanumeric()).filter(|part| !part.is_empty()) {
        if !id.is_empty() {
            id.push('-');
        }
        id.push_str(&part.to_ascii_lowercase());
    }
    // A name in a non-Latin script leaves no usable characters.
    if id.is_empty() {
        id.push_str("job");
    }
    if id.starts_with(|c: char| c.is_ascii_digit()) {
        id.insert_str(0, "job-");
    }
    id.truncate(OF_NAME);
    let id = id.trim_end_matches('-');
    let character = |byte: &u8| CHARACTERS.get(usize::from(*byte) % CHARACTERS.len()).map(|c| char::from(*c));
    let end: String = bytes.iter().filter_map(character).collect();
    format!("{id}-{end}")
}

/// Returns the bytes of an id for a request with an idempotency key. The same user and key give the same bytes.
pub fn bytes_of_key(user: &str, key: &str) -> [u8; AT_THE_END] {
    let mut digest = Sha256::new();
    digest.update(user.as_bytes());
    digest.update([0]);
    digest.update(key.as_bytes());
    let mut bytes = [0; AT_THE_END];
    bytes.iter_mut().zip(digest.finalize()).for_each(|(byte, of)| *byte = of);
    bytes
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn an_id_begins_with_what_is_left_of_the_name() {
        for (name, begin) in [
            ("My_Job 1", "my-job-1-"),
            ("1st", "job-1st-"),
            ("--a--", "a-"),
            ("Ä b!", "b-"),
            ("\u{91cd}\u{542f}", "job-"),
            ("\u{1f680}", "job-"),
            ("\u{661}", "job-"),
        ] {
            let id = job_id(name, [0, 1, 2, 3, 4, 200]);
            assert!(id.starts_with(begin) && id.len() == begin.len() + 6, "{id}");
        }
        assert_ne!(job_id("a", bytes_of_key("u", "k")), job_id("a", bytes_of_key("u", "l")));
    }

    proptest! {
        #[test]
        fn every_id_is_a_name_of_an_object(name in "\\PC{1,120}", bytes: [u8; 6]) {
            let id = job_id(&name, bytes);
            prop_assert!(id.len() <= 63 && crate::object::key::is_object_name(&id), "{id}");
        }
    }
}
