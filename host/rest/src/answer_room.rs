//! Holds the bytes of answers until their clients have read them. Source: docs/opsjob-rest.md 8.
//!
//! A client may read as slowly as `connections` allows, and its answer stays in memory for that time. Small answers are bounded by the
//! number of connections. Larger ones take their place in a room before they are sent.

use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::response::{IntoResponse as _, Response};
use http::{HeaderValue, header};
use oarlock_core::ops_job::refusal::OpsRefusal;
use oarlock_core::shared::quota_key::QuotaKey;
use serde::Serialize;

use crate::Parts;
use crate::caller::Caller;
use crate::room::{BytePlaces, ByteRoom, Sharer, WAITS};

/// Bytes of all answers together that are not small.
pub(crate) const ROOM: usize = 32 * 1024 * 1024;
/// Most bytes of a small answer, which takes no place.
const SMALL: usize = 32 * 1024;

/// The room of all answers.
pub(crate) struct AnswerRoom(ByteRoom);

/// An answer's text with its places: both go once the client has read it, or has gone.
struct Held {
    text: Vec<u8>,
    _places: BytePlaces,
}

impl AsRef<[u8]> for Held {
    fn as_ref(&self) -> &[u8] {
        &self.text
    }
}

impl Default for AnswerRoom {
    fn default() -> Self {
        Self(ByteRoom::of(ROOM))
    }
}

impl AnswerRoom {
    /// Returns a text with its places as the bytes of a body.
    ///
    /// # Errors
    /// The text is larger than the part of one key, or other answers have its place.
    async fn held(&self, text: Vec<u8>, sharer: &Sharer, waits: Duration) -> Result<Bytes, OpsRefusal> {
        let most = self.0.of_one();
        if text.len() > most && !sharer.is_wide {
            let (mib, most) = (text.len().div_ceil(1024 * 1024), most / (1024 * 1024));
            let words = format!("the answer has {mib} MiB, and {most} MiB is the most: ask for fewer jobs with limit");
            return Err(OpsRefusal::bad(words));
        }
        let mut places = BytePlaces::default();
        let shares = self.0.shares(sharer, "answers that are not read yet").waiting(waits);
        shares.take(text.len().min(most), &mut places).await?;
        Ok(Bytes::from_owner(Held { text, _places: places }))
    }
}

/// Returns a value as JSON.
pub(crate) fn text_of(value: &impl Serialize) -> Vec<u8> {
    serde_json::to_vec(value).unwrap_or_default()
}

/// Returns a small value as an answer.
pub(crate) fn json_of(value: &impl Serialize) -> Response {
    as_json(text_of(value).into())
}

fn as_json(text: Bytes) -> Response {
    ([(header::CONTENT_TYPE, HeaderValue::from_static("application/json"))], Body::from(text)).into_response()
}

impl Parts {
    /// Returns JSON as an answer that has its place until it is read.
    ///
    /// # Errors
    /// The answer has no place.
    pub(crate) async fn answer_of(&self, caller: &Caller, text: Vec<u8>) -> Result<Response, OpsRefusal> {
        self.answer_within(caller, text, WAITS).await
    }

    /// Returns the same if there is a place within this time.
    ///
    /// # Errors
    /// The answer has no place.
    pub(crate) async fn answer_within(
        &self,
        caller: &Caller,
        text: Vec<u8>,
        waits: Duration,
    ) -> Result<Response, OpsRefusal> {
        if text.len() <= SMALL {
            return Ok(as_json(text.into()));
        }
        Ok(as_json(self.answers.held(text, &self.sharer(caller).await?, waits).await?))
    }

    /// Returns the key of a caller, and whether the caller has rights in the whole cluster.
    ///
    /// # Errors
    /// The API server does not say what the caller may do.
    pub(crate) async fn sharer(&self, caller: &Caller) -> Result<Sharer, OpsRefusal> {
        Ok(Sharer { key: QuotaKey::of(&caller.name), is_wide: self.rights.is_cluster_wide(caller).await? })
    }
}

#[cfg(test)]
mod tests {
    use oarlock_core::ops_job::refusal::Code;

    use super::*;

    const MIB: usize = 1024 * 1024;

    fn sharer(account: &str, is_wide: bool) -> Sharer {
        Sharer { key: QuotaKey::of(account), is_wide }
    }

    #[tokio::test(start_paused = true)]
    async fn answers_that_nobody_reads_have_a_room_of_which_a_namespace_has_a_quarter() {
        let answers = AnswerRoom::default();
        let (team, other) =
            (sharer("system:serviceaccount:team:a", false), sharer("system:serviceaccount:other:a", false));
        let mut held = Vec::new();
        for _ in 0..4 {
            held.push(answers.held(vec![b' '; 2 * MIB], &team, WAITS).await.unwrap());
        }
        let refused = answers.held(vec![b' '; SMALL + 1], &team, WAITS).await.unwrap_err();
        assert_eq!((refused.code, refused.retry_after), (Code::TooMany, Some(1)), "{}", refused.message);
        assert!(answers.held(vec![b' '; 2 * MIB], &other, WAITS).await.is_ok());
        // A part that is still to be sent keeps the memory of the whole, and its place.
        let rest = held.pop().unwrap().split_off(MIB);
        assert!(answers.held(vec![b' '; 2 * MIB], &team, WAITS).await.is_err());
        drop(rest);
        assert!(answers.held(vec![b' '; 2 * MIB], &team, WAITS).await.is_ok());
        drop(held);
        assert_eq!(answers.0.free(), ROOM);
    }

    #[tokio::test(start_paused = true)]
    async fn an_answer_above_the_share_of_a_namespace_is_refused_with_the_way_to_ask_for_less() {
        let answers = AnswerRoom::default();
        let text = vec![b' '; 8 * MIB + 1];
        let refused = answers.held(text.clone(), &sharer("alice", false), WAITS).await.unwrap_err();
        assert_eq!(refused.code, Code::BadRequest);
        assert_eq!(refused.message, "the answer has 9 MiB, and 8 MiB is the most: ask for fewer jobs with limit");
        assert_eq!(answers.held(text, &sharer("admin", true), WAITS).await.unwrap().len(), 8 * MIB + 1);
    }
}
