//! Holds the bytes of answers until their clients have read them. Source: docs/opsjob-rest.md 8.
//!
//! A client may read as slowly as `connections` allows, and its answer stays in memory for that time. The limit on connections bounds small
//! answers. A larger answer reserves its bytes in a budget before the server sends it.

use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::response::{IntoResponse as _, Response};
use http::{HeaderValue, header};
use oarlock_core::object::quota_key::QuotaKey;
use oarlock_core::ops_job::refusal::OpsRefusal;
use serde::Serialize;

use crate::caller::Caller;
use crate::room::{BytePlaces, ByteRoom, Sharer, WAITS};
use crate::state::RestState;

/// The byte budget of all answers that are not small.
pub(crate) const ROOM: usize = 32 * 1024 * 1024;
/// The most bytes of a small answer. A small answer reserves nothing.
const SMALL: usize = 32 * 1024;

/// The byte budget of all answers.
pub(crate) struct AnswerRoom(ByteRoom);

/// The text of an answer with its reservation. Both are dropped once the client has read the text or has disconnected.
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
    /// Returns a text as the bytes of a body that hold their reservation.
    ///
    /// # Errors
    /// If the text is larger than the share of one key, or other answers use up the budget.
    async fn reserved(&self, text: Vec<u8>, sharer: &Sharer, waits: Duration) -> Result<Bytes, OpsRefusal> {
        let most = self.0.of_one();
        if text.len() > most && !sharer.is_wide {
            let (mib, most) = (text.len().div_ceil(1024 * 1024), most / (1024 * 1024));
            let message =
                format!("the answer has {mib} MiB, and {most} MiB is the most: ask for fewer jobs with limit");
            return Err(OpsRefusal::bad(message));
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

/// Returns a small value as a JSON answer.
pub(crate) fn json_of(value: &impl Serialize) -> Response {
    as_json(text_of(value).into())
}

fn as_json(text: Bytes) -> Response {
    ([(header::CONTENT_TYPE, HeaderValue::from_static("application/json"))], Body::from(text)).into_response()
}

impl RestState {
    /// Returns JSON text as an answer that holds its reservation until the client has read it.
    ///
    /// # Errors
    /// If the budget has no bytes left for the answer.
    pub(crate) async fn answer_of(&self, caller: &Caller, text: Vec<u8>) -> Result<Response, OpsRefusal> {
        self.answer_within(caller, text, WAITS).await
    }

    /// Returns JSON text as an answer, after waiting at most `waits` for its reservation.
    ///
    /// # Errors
    /// If the budget has no bytes left for the answer.
    pub(crate) async fn answer_within(
        &self,
        caller: &Caller,
        text: Vec<u8>,
        waits: Duration,
    ) -> Result<Response, OpsRefusal> {
        if text.len() <= SMALL {
            return Ok(as_json(text.into()));
        }
        Ok(as_json(self.answers.reserved(text, &self.sharer(caller).await?, waits).await?))
    }

    /// Returns the quota key of a caller, and whether the caller has rights in the whole cluster.
    ///
    /// # Errors
    /// If the API server does not answer the access review.
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
            held.push(answers.reserved(vec![b' '; 2 * MIB], &team, WAITS).await.unwrap());
        }
        let refused = answers.reserved(vec![b' '; SMALL + 1], &team, WAITS).await.unwrap_err();
        assert_eq!((refused.code, refused.retry_after), (Code::TooMany, Some(1)), "{}", refused.message);
        assert!(answers.reserved(vec![b' '; 2 * MIB], &other, WAITS).await.is_ok());
        // A slice that the server has not sent yet keeps the memory of the whole text, and its reservation.
        let rest = held.pop().unwrap().split_off(MIB);
        assert!(answers.reserved(vec![b' '; 2 * MIB], &team, WAITS).await.is_err());
        drop(rest);
        assert!(answers.reserved(vec![b' '; 2 * MIB], &team, WAITS).await.is_ok());
        drop(held);
        assert_eq!(answers.0.free(), ROOM);
    }

    #[tokio::test(start_paused = true)]
    async fn an_answer_above_the_share_of_a_namespace_is_refused_with_the_way_to_ask_for_less() {
        let answers = AnswerRoom::default();
        let text = vec![b' '; 8 * MIB + 1];
        let refused = answers.reserved(text.clone(), &sharer("alice", false), WAITS).await.unwrap_err();
        assert_eq!(refused.code, Code::BadRequest);
        assert_eq!(refused.message, "the answer has 9 MiB, and 8 MiB is the most: ask for fewer jobs with limit");
        assert_eq!(answers.reserved(text, &sharer("admin", true), WAITS).await.unwrap().len(), 8 * MIB + 1);
    }
}
