//! Seals the token of a viewer into the value of a cookie, so that the server keeps no sessions.
//!
//! The key comes from the keys of the Secret `oarlock-rest` by HKDF. So every server opens the cookies of every other one, and a key that an
//! admin removes ends the sessions.

use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use ring::aead::{AES_256_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use ring::hkdf::{HKDF_SHA256, Salt};
use ring::rand::{SecureRandom as _, SystemRandom};

/// The purpose of the derived keys. Another purpose gives other keys.
const PURPOSE: &[u8] = b"oarlock: the cookie of a page";
/// The longest session.
const SESSION: Duration = Duration::from_secs(8 * 3_600);
/// The most bytes of a cookie's value. Browsers drop cookies of more than 4 KiB.
const MOST: usize = 3_584 - 64;
/// The bytes of the time at which a session ends.
const TIME: usize = size_of::<i64>();

/// The reason why a token gets no cookie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unsealed {
    /// The token is too long for a cookie.
    TooLong,
    /// The system gives no random numbers, or a key is unusable.
    Failed,
}

/// The token of a viewer, and the end of the session.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct PageSession {
    /// The token.
    pub(crate) token: String,
    /// The end of the session, in seconds since 1970.
    pub(crate) until: i64,
}

impl PageSession {
    /// Returns the session of a token that begins now. It ends after 8 hours, and never after the token.
    pub(crate) fn begin(token: &str, expires: Option<i64>, now: i64) -> Self {
        let longest = now.saturating_add(i64::try_from(SESSION.as_secs()).unwrap_or(i64::MAX));
        Self { token: token.to_owned(), until: expires.map_or(longest, |expires| expires.min(longest)) }
    }

    /// Returns the session as the value of a cookie. `keys` has the current key first.
    pub(crate) fn seal(&self, keys: &[Vec<u8>]) -> Result<String, Unsealed> {
        let key = keys.first().and_then(|key| derived(key)).ok_or(Unsealed::Failed)?;
        let mut nonce = [0; NONCE_LEN];
        SystemRandom::new().fill(&mut nonce).map_err(|_| Unsealed::Failed)?;
        let mut sealed = self.until.to_be_bytes().to_vec();
        sealed.extend_from_slice(self.token.as_bytes());
        let with = Nonce::assume_unique_for_key(nonce);
        key.seal_in_place_append_tag(with, Aad::empty(), &mut sealed).map_err(|_| Unsealed::Failed)?;
        let value = URL_SAFE_NO_PAD.encode([nonce.as_slice(), &sealed].concat());
        if value.len() > MOST { Err(Unsealed::TooLong) } else { Ok(value) }
    }

    /// Returns the session in the value of a cookie, if one of the keys has sealed it and it has not ended.
    pub(crate) fn open(value: &str, keys: &[Vec<u8>], now: i64) -> Option<Self> {
        let bytes = URL_SAFE_NO_PAD.decode(Some(value).filter(|value| value.len() <= MOST)?).ok()?;
        let (nonce, sealed) = bytes.split_at_checked(NONCE_LEN)?;
        let nonce: [u8; NONCE_LEN] = nonce.try_into().ok()?;
        let opened = keys.iter().find_map(|key| {
            let mut sealed = sealed.to_vec();
            let opened = derived(key)?.open_in_place(Nonce::assume_unique_for_key(nonce), Aad::empty(), &mut sealed);
            opened.ok().map(|opened| opened.to_vec())
        })?;
        let (until, token) = opened.split_at_checked(TIME)?;
        let until = i64::from_be_bytes(until.try_into().ok()?);
        let token = String::from_utf8(token.to_vec()).ok()?;
        (now < until).then_some(Self { token, until })
    }
}

/// Returns the key for cookies that follows from a key of the Secret.
fn derived(key: &[u8]) -> Option<LessSafeKey> {
    let made = Salt::new(HKDF_SHA256, &[]).extract(key);
    let expanded = made.expand(&[PURPOSE], &AES_256_GCM).ok()?;
    Some(LessSafeKey::new(UnboundKey::from(expanded)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keys(of: &[u8]) -> Vec<Vec<u8>> {
        of.iter().map(|byte| vec![*byte; 32]).collect()
    }

    #[test]
    fn a_session_is_opened_by_its_key_until_it_ends_and_by_no_other_key() {
        let session = PageSession::begin("a.b.c", Some(1_000), 0);
        let sealed = session.seal(&keys(&[1])).unwrap();
        for (own, now, opens) in
            [(&[1][..], 999, true), (&[2, 1], 0, true), (&[1], 1_000, false), (&[2], 0, false), (&[], 0, false)]
        {
            assert_eq!(PageSession::open(&sealed, &keys(own), now).is_some(), opens, "{own:?} {now}");
        }
        assert_eq!(PageSession::open(&sealed, &keys(&[1]), 0).unwrap().token, "a.b.c");
        assert!(!sealed.contains("a.b.c") && sealed != session.seal(&keys(&[1])).unwrap());
    }

    #[test]
    fn a_session_lasts_eight_hours_and_never_longer_than_its_token() {
        let hours = 3_600;
        for (expires, until) in [(None, 8 * hours), (Some(hours), hours), (Some(24 * hours), 8 * hours)] {
            assert_eq!(PageSession::begin("t", expires, 0).until, until);
        }
    }

    #[test]
    fn a_changed_cookie_and_one_that_nobody_sealed_open_nothing() {
        let sealed = PageSession::begin("token", None, 0).seal(&keys(&[1])).unwrap();
        for place in 0..sealed.len() {
            let mut changed = sealed.clone().into_bytes();
            changed[place] = if changed[place] == b'A' { b'B' } else { b'A' };
            let changed = String::from_utf8(changed).unwrap();
            assert!(PageSession::open(&changed, &keys(&[1]), 0).is_none(), "{place}");
        }
        for wrong in ["", "A", "====", "\u{202e}", &"A".repeat(100_000)] {
            assert!(PageSession::open(wrong, &keys(&[1]), 0).is_none());
        }
    }

    #[test]
    fn a_token_that_is_too_long_for_a_cookie_is_refused() {
        let of = |length: usize| PageSession::begin(&"x".repeat(length), None, 0).seal(&keys(&[1]));
        assert!(of(2_500).unwrap().len() <= MOST);
        assert_eq!(of(2_700), Err(Unsealed::TooLong));
        assert_eq!(PageSession::begin("x", None, 0).seal(&[]), Err(Unsealed::Failed));
    }
}
