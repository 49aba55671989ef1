//! Takes in bodies as they arrive, all within one room. Source: docs/opsjob-rest.md 8.
//!
//! Each byte has its place before it is kept, so bodies take the room whatever their clients announce. No namespace has more than a
//! quarter of it, a part is for callers with rights in the whole cluster alone, and who sends too slowly is sent away.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body, Bytes};
use http_body_util::BodyExt as _;
use oarlock_core::ops_job::refusal::{Code, OpsRefusal};
use oarlock_core::shared::quota_key::QuotaKey;
use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, timeout, timeout_at};

/// Bytes of all bodies together.
const ROOM: usize = 16 * 1024 * 1024;
/// Those of callers without rights in the whole cluster.
const OF_OTHERS: usize = ROOM / 4 * 3;
/// Those of one namespace, or of one user who is in none.
const OF_ONE: usize = ROOM / 4;
/// Longest time that a body waits for its place.
const WAITS: Duration = Duration::from_secs(2);
/// Longest time that a body may take.
const WHOLE_WITHIN: Duration = Duration::from_secs(20);
/// Bytes a second that a client sends at least, and the time before that counts.
const PACE: u64 = 8 * 1024;
const PACE_AFTER: Duration = Duration::from_secs(5);
/// Bytes beyond the bound that are read and not kept: a client reads its refusal only once it has sent all.
const NOT_KEPT: usize = 2 * 1024 * 1024;

/// The room of all bodies.
pub(crate) struct Bodies {
    all: Arc<Semaphore>,
    of_others: Arc<Semaphore>,
    of_keys: Mutex<HashMap<QuotaKey, Arc<Semaphore>>>,
}

/// The sender of a body.
pub(crate) struct Sender {
    pub(crate) key: QuotaKey,
    /// He has rights in the whole cluster.
    pub(crate) is_wide: bool,
    /// Most bytes of his body.
    pub(crate) most: usize,
}

/// A body that was taken in. It has its place until it is dropped.
pub(crate) struct Taken {
    pub(crate) bytes: Vec<u8>,
    /// It ended within its bound.
    pub(crate) is_whole: bool,
    places: Places,
}

#[cfg(test)]
impl std::fmt::Debug for Taken {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(out, "{} bytes", self.bytes.len())
    }
}

/// The places of one body in each room that it counts in.
type Places = Vec<OwnedSemaphorePermit>;

impl Default for Bodies {
    fn default() -> Self {
        let (all, of_others) = (Arc::new(Semaphore::new(ROOM)), Arc::new(Semaphore::new(OF_OTHERS)));
        Self { all, of_others, of_keys: Mutex::default() }
    }
}

impl Bodies {
    /// Takes in a body.
    ///
    /// # Errors
    /// The body has no place, comes too slowly, or ends before it is whole.
    pub(crate) async fn take(&self, mut body: Body, sender: &Sender) -> Result<Taken, OpsRefusal> {
        let rooms = self.rooms(sender);
        let mut taken = Taken { bytes: Vec::new(), is_whole: true, places: Vec::new() };
        let (mut pace, mut received) = (Pace::from_now(), 0_usize);
        while let Some(bytes) = pace.next(&mut body, received).await? {
            received = received.saturating_add(bytes.len());
            let left = sender.most.saturating_sub(taken.bytes.len());
            let kept = bytes.get(..left).unwrap_or(&bytes);
            taken.is_whole &= kept.len() == bytes.len();
            if !kept.is_empty() {
                let began = Instant::now();
                take_places(&rooms, kept.len(), &mut taken.places, sender).await?;
                pace.pause(began.elapsed());
                taken.bytes.extend_from_slice(kept);
            }
            if received > sender.most.saturating_add(NOT_KEPT) {
                break;
            }
        }
        Ok(taken)
    }

    /// The rooms that a body counts in. Its own come first: who has no place there keeps none elsewhere.
    fn rooms(&self, sender: &Sender) -> Vec<Arc<Semaphore>> {
        let mut of_keys = self.of_keys.lock();
        // Those whom nobody has or waits for.
        of_keys.retain(|_, room| Arc::strong_count(room) > 1 || room.available_permits() < OF_ONE);
        let own = of_keys.entry(sender.key.clone()).or_insert_with(|| Arc::new(Semaphore::new(OF_ONE))).clone();
        let of_others = (!sender.is_wide).then(|| self.of_others.clone());
        std::iter::once(own).chain(of_others).chain([self.all.clone()]).collect()
    }
}

async fn take_places(
    rooms: &[Arc<Semaphore>],
    bytes: usize,
    places: &mut Places,
    sender: &Sender,
) -> Result<(), OpsRefusal> {
    let many = u32::try_from(bytes).unwrap_or(u32::MAX);
    for (index, room) in rooms.iter().enumerate() {
        let got = timeout(WAITS, room.clone().acquire_many_owned(many)).await;
        let Ok(Ok(more)) = got else {
            let (code, whose) = match index {
                0 => (Code::TooMany, format!("of {}", sender.key)),
                _ => (Code::Unreachable, "of others".to_owned()),
            };
            let words = format!("bodies {whose} that are being read have all the room there is: try again");
            return Err(OpsRefusal::new(code, words).after(1));
        };
        match places.get_mut(index) {
            Some(held) => held.merge(more),
            None => places.push(more),
        }
    }
    Ok(())
}

/// Until when a client has to have sent how much.
struct Pace {
    began: Instant,
}

impl Pace {
    fn from_now() -> Self {
        Self { began: Instant::now() }
    }

    /// The client waited for this long for its place.
    fn pause(&mut self, waited: Duration) {
        self.began += waited;
    }

    /// The next bytes; none at the end.
    async fn next(&self, body: &mut Body, received: usize) -> Result<Option<Bytes>, OpsRefusal> {
        let sent = Duration::from_millis((received as u64).saturating_mul(1_000) / PACE);
        let deadline = self.began + PACE_AFTER.saturating_add(sent).min(WHOLE_WITHIN);
        loop {
            let frame = match timeout_at(deadline, body.frame()).await {
                Ok(frame) => frame,
                Err(_) => {
                    let (whole, after) = (WHOLE_WITHIN.as_secs(), PACE_AFTER.as_secs());
                    let words = format!(
                        "the body was not there within {whole} s, or came at less than {PACE} bytes a second after {after} s"
                    );
                    return Err(OpsRefusal::bad(words));
                }
            };
            match frame.transpose() {
                Err(_) => return Err(OpsRefusal::bad("the body ended before it was whole")),
                Ok(None) => return Ok(None),
                Ok(Some(frame)) => match frame.into_data() {
                    Ok(bytes) => return Ok(Some(bytes)),
                    // Fields after a body say nothing here.
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

    use super::*;

    fn sender(account: &str, is_wide: bool) -> Sender {
        Sender { key: QuotaKey::of(account), is_wide, most: if is_wide { 2 << 20 } else { 64 << 10 } }
    }

    fn body(chunks: Vec<usize>) -> Body {
        Body::from_stream(stream::iter(chunks).map(|size| Ok::<_, Infallible>(vec![b' '; size])))
    }

    /// A body that begins and does not end.
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
            assert_eq!(bodies.all.available_permits(), ROOM - 64 * 1024);
        }
        assert_eq!(bodies.all.available_permits(), ROOM, "what is dropped gives its place back");
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
        assert_eq!(bodies.all.available_permits(), ROOM);
        let _one = bodies.take(body(vec![1]), &sender("carol", false)).await.unwrap();
        assert_eq!(bodies.of_keys.lock().len(), 1, "who sends no more is forgotten");
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
                assert_eq!(bodies.all.available_permits(), ROOM);
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

    #[tokio::test]
    async fn a_body_that_breaks_off_is_no_body() {
        let broken = stream::iter([Ok(vec![b'{']), Err("gone")]);
        let refused = Bodies::default().take(Body::from_stream(broken), &sender("alice", true)).await.unwrap_err();
        assert_eq!(refused.message, "the body ended before it was whole");
    }
}
