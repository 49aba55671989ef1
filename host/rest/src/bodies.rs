//! Reads request bodies as they arrive, within one byte budget. Source: docs/opsjob-rest.md 8.
//!
//! Each byte is reserved before it is stored, so the length that a client announces does not matter. One namespace gets at most a quarter
//! of the budget. Another quarter is only for callers with rights in the whole cluster. A client that sends too slowly is refused.

use std::time::Duration;

use axum::body::{Body, Bytes};
use http_body_util::BodyExt as _;
use oarlock_core::ops_job::refusal::OpsRefusal;
use tokio::time::{Instant, timeout_at};

use crate::connections::BodyAwaited;
use crate::room::{BytePlaces, ByteRoom, Sharer};
use crate::turns::KeyedTurns;

/// The byte budget of all bodies.
pub(crate) const ROOM: usize = 16 * 1024 * 1024;
/// The most bodies of one key that are read at once, and the longest time that another body of the key waits.
const AT_ONCE: usize = 16;
const WAITS: Duration = Duration::from_secs(2);
/// The longest time for a body: of a caller with rights in the whole cluster, and of all other callers, whose bodies are small.
const WHOLE_WITHIN: Duration = Duration::from_secs(20);
const SMALL_WITHIN: Duration = Duration::from_secs(8);
/// The lowest rate of a client in bytes a second, and the time before the rate counts.
const PACE: u64 = 8 * 1024;
const PACE_AFTER: Duration = Duration::from_secs(5);
/// The bytes beyond the limit that are read and dropped. A client reads its refusal only after it has sent the whole body.
const NOT_KEPT: usize = 2 * 1024 * 1024;

/// The byte budget of all bodies, and the concurrency limit of each key.
pub(crate) struct Bodies {
    room: ByteRoom,
    turns: KeyedTurns,
}

/// The sender of a body.
pub(crate) struct Sender {
    pub(crate) sharer: Sharer,
    /// The most bytes of the body.
    pub(crate) most: usize,
    /// The connection of the sender. The server may close it for another connection while it waits for the body.
    pub(crate) connection: Option<BodyAwaited>,
}

/// A body that was read. It holds its reservation until it is dropped.
pub(crate) struct Taken {
    pub(crate) bytes: Vec<u8>,
    /// True if the body ended within its limit.
    pub(crate) is_whole: bool,
    _places: BytePlaces,
}

#[cfg(test)]
impl std::fmt::Debug for Taken {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(out, "{} bytes", self.bytes.len())
    }
}

impl Default for Bodies {
    fn default() -> Self {
        Self { room: ByteRoom::of(ROOM), turns: KeyedTurns::of(AT_ONCE, WAITS, "bodies") }
    }
}

impl Bodies {
    /// Reads a body.
    ///
    /// # Errors
    /// If the budget has no bytes left, or the body arrives too slowly or ends early.
    pub(crate) async fn take(&self, mut body: Body, sender: &Sender) -> Result<Taken, OpsRefusal> {
        let _turn = self.turns.take(&sender.sharer.key).await?;
        let shares = self.room.shares(&sender.sharer, "bodies that are being read");
        let (mut bytes, mut places, mut is_whole) = (Vec::new(), BytePlaces::default(), true);
        let (mut pace, mut received) = (Pace::of(sender), 0_usize);
        while let Some(more) = pace.next(&mut body, received).await? {
            received = received.saturating_add(more.len());
            let left = sender.most.saturating_sub(bytes.len());
            let kept = more.get(..left).unwrap_or(&more);
            is_whole &= kept.len() == more.len();
            if !kept.is_empty() {
                let began = Instant::now();
                shares.take(kept.len(), &mut places).await?;
                pace.pause(began.elapsed());
                bytes.extend_from_slice(kept);
            }
            if received > sender.most.saturating_add(NOT_KEPT) {
                break;
            }
        }
        Ok(Taken { bytes, is_whole, _places: places })
    }
}

/// The deadline and the lowest rate of one body.
struct Pace<'a> {
    began: Instant,
    within: Duration,
    connection: Option<&'a BodyAwaited>,
}

impl<'a> Pace<'a> {
    /// Starts the clock of a body.
    fn of(sender: &'a Sender) -> Self {
        let within = if sender.sharer.is_wide { WHOLE_WITHIN } else { SMALL_WITHIN };
        Self { began: Instant::now(), within, connection: sender.connection.as_ref() }
    }

    /// Extends the deadline by the time that the body waited for its reservation.
    fn pause(&mut self, waited: Duration) {
        self.began += waited;
    }

    /// Returns the next bytes of the body, or `None` at its end.
    async fn next(&self, body: &mut Body, received: usize) -> Result<Option<Bytes>, OpsRefusal> {
        let sent = Duration::from_millis((received as u64).saturating_mul(1_000) / PACE);
        let deadline = self.began + PACE_AFTER.saturating_add(sent).min(self.within);
        let _waits = self.connection.map(BodyAwaited::begin);
        loop {
            let frame = match timeout_at(deadline, body.frame()).await {
                Ok(frame) => frame,
                Err(_) => {
                    let (whole, after) = (self.within.as_secs(), PACE_AFTER.as_secs());
                    let message = format!(
                        "the body did not arrive within {whole} s, or arrived at less than {PACE} bytes a second after {after} s"
                    );
                    return Err(OpsRefusal::bad(message));
                }
            };
            match frame.transpose() {
                Err(_) => return Err(OpsRefusal::bad("the body ended early, so it is incomplete")),
                Ok(None) => return Ok(None),
                Ok(Some(frame)) => match frame.into_data() {
                    Ok(bytes) => return Ok(Some(bytes)),
                    // Trailers have no meaning for this API.
                    Err(_trailers) => {}
                },
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use futures::{StreamExt as _, stream};
    use oarlock_core::object::quota_key::QuotaKey;
    use oarlock_core::ops_job::refusal::Code;

    use super::*;

    fn sender(account: &str, is_wide: bool) -> Sender {
        let sharer = Sharer { key: QuotaKey::of(account), is_wide };
        Sender { sharer, most: if is_wide { 2 << 20 } else { 64 << 10 }, connection: None }
    }

    fn body(chunks: Vec<usize>) -> Body {
        Body::from_stream(stream::iter(chunks).map(|size| Ok::<_, Infallible>(vec![b' '; size])))
    }

    /// Returns a body that begins and never ends.
    fn unfinished(bytes: usize) -> Body {
        let first = stream::iter([Ok::<_, Infallible>(vec![b' '; bytes])]);
        Body::from_stream(first.chain(stream::pending()))
    }

    #[tokio::test]
    async fn a_body_is_the_same_in_whatever_chunks_it_comes() {
        let bodies = Bodies::default();
        for chunks in [vec![1_000], vec![1; 1_000], vec![0, 999, 0, 1], vec![]] {
            let bytes: usize = chunks.iter().sum();
            let taken = bodies.take(body(chunks), &sender("alice", false)).await.unwrap();
            assert!(taken.is_whole && taken.bytes.len() == bytes);
        }
    }

    #[tokio::test]
    async fn of_a_body_that_is_too_large_no_more_is_kept_than_its_bound() {
        let bodies = Bodies::default();
        for chunks in [vec![64 * 1024 + 1], vec![64 * 1024, 1], vec![100 * 1024; 100], vec![1024 * 1024; 1024]] {
            let taken = bodies.take(body(chunks), &sender("alice", false)).await.unwrap();
            assert!(!taken.is_whole && taken.bytes.len() == 64 * 1024);
            assert_eq!(bodies.room.free(), ROOM - 64 * 1024);
        }
        assert_eq!(bodies.room.free(), ROOM, "what is dropped gives its place back");
        let whole = bodies.take(body(vec![64 * 1024]), &sender("alice", false)).await.unwrap();
        assert!(whole.is_whole);
    }

    #[tokio::test(start_paused = true)]
    async fn a_namespace_has_a_quarter_of_the_room_and_others_the_rest() {
        let bodies = Bodies::default();
        let account = |name: usize| sender(&format!("system:serviceaccount:team:a{name}"), false);
        let mut held = Vec::new();
        for name in 0..64 {
            held.push(bodies.take(body(vec![64 * 1024]), &account(name)).await.unwrap());
        }
        let refused = bodies.take(body(vec![1]), &account(99)).await.unwrap_err();
        assert_eq!((refused.code, refused.retry_after), (Code::TooMany, Some(1)), "{}", refused.message);
        assert!(refused.message.contains("namespace team"), "{}", refused.message);
        assert!(bodies.take(body(vec![1]), &sender("system:serviceaccount:other:a", false)).await.is_ok());
        held.pop();
        assert!(bodies.take(body(vec![1]), &account(99)).await.is_ok(), "a place is free again");
    }

    #[tokio::test(start_paused = true)]
    async fn all_others_together_leave_room_for_who_has_rights_in_the_whole_cluster() {
        let bodies = Bodies::default();
        let mut held = Vec::new();
        for number in 0..192 {
            let of = sender(&format!("system:serviceaccount:team-{}:a", number / 64), false);
            held.push(bodies.take(body(vec![64 * 1024]), &of).await.unwrap());
        }
        let refused = bodies.take(body(vec![1]), &sender("carol", false)).await.unwrap_err();
        assert_eq!(refused.code, Code::Unreachable, "{}", refused.message);
        assert!(bodies.take(body(vec![2 << 20]), &sender("admin", true)).await.is_ok());
        drop(held);
        assert_eq!(bodies.room.free(), ROOM);
        let _one = bodies.take(body(vec![1]), &sender("carol", false)).await.unwrap();
        assert_eq!(bodies.room.keys(), 1, "who sends no more is forgotten");
    }

    #[tokio::test(start_paused = true)]
    async fn who_sends_too_slowly_is_sent_away_whatever_his_rights_are() {
        for is_wide in [false, true] {
            for bytes in [0, 1, 1_000] {
                let bodies = Bodies::default();
                let began = Instant::now();
                let refused = bodies.take(unfinished(bytes), &sender("alice", is_wide)).await.unwrap_err();
                assert_eq!(refused.code, Code::BadRequest);
                assert!(began.elapsed() < PACE_AFTER + Duration::from_secs(1), "{bytes}");
                assert_eq!(bodies.room.free(), ROOM);
            }
            let slow = stream::iter(0..64).then(|_| async {
                tokio::time::sleep(Duration::from_millis(400)).await;
                Ok::<_, Infallible>(vec![b' '; 1_024])
            });
            let refused = Bodies::default().take(Body::from_stream(slow), &sender("alice", is_wide)).await;
            assert_eq!(refused.unwrap_err().code, Code::BadRequest, "two and a half KiB a second");
            let steady = stream::iter(0..64).then(|_| async {
                tokio::time::sleep(Duration::from_millis(100)).await;
                Ok::<_, Infallible>(vec![b' '; 1_024])
            });
            let taken = Bodies::default().take(Body::from_stream(steady), &sender("alice", is_wide)).await;
            assert!(taken.unwrap().is_whole, "ten KiB a second");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_namespace_has_sixteen_bodies_that_are_read_at_once() {
        let (bodies, own) = (Bodies::default(), sender("system:serviceaccount:team:a", false));
        let mut slow = futures::stream::FuturesUnordered::new();
        (0..AT_ONCE).for_each(|_| slow.push(bodies.take(unfinished(1), &own)));
        assert!(tokio::time::timeout(Duration::from_secs(1), slow.next()).await.is_err(), "they are waited for");
        let refused = bodies.take(body(vec![1]), &own).await.unwrap_err();
        assert_eq!(refused.code, Code::TooMany, "{}", refused.message);
        assert!(bodies.take(body(vec![1]), &sender("system:serviceaccount:other:a", false)).await.is_ok());
        while slow.next().await.is_some() {}
        assert!(bodies.take(body(vec![1]), &own).await.is_ok());
    }

    #[tokio::test]
    async fn a_body_that_breaks_off_is_no_body() {
        let broken = stream::iter([Ok(vec![b'{']), Err("gone")]);
        let refused = Bodies::default().take(Body::from_stream(broken), &sender("alice", true)).await.unwrap_err();
        assert_eq!(refused.message, "the body ended early, so it is incomplete");
    }
}
