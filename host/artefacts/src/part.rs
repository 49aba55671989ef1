//! Turns the log of a container into a part: each line begins with its time and its place, and no line is earlier than the line above it.
//!
//! Reads a log with timestamps, as the API server sends it. A line may be endless, so no line is held as a whole. Each line of a log begins
//! with a time. So error messages of a kubelet or a proxy are not mistaken for a log.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use futures::io::{AsyncBufRead, AsyncBufReadExt as _};
use tokio::time::{Duration, timeout};

use crate::failed::ArtefactsFailed;
use crate::line_time::LineTime;
use crate::upload::Upload;

/// The longest time that a log may be silent while it is read.
const PATIENCE: Duration = Duration::from_secs(60);
/// The most bytes of a time at the beginning of a line.
const TOKEN: usize = 64;
/// The most bytes of consecutive lines that are too late. A node whose clock was wrong for a while then loses only its wrong lines.
const MOST_LATE: u64 = 16 * 1024 * 1024;
/// The most bytes that are kept of a message in place of a log.
const MOST_WORDS: usize = 512;
/// The bytes below which a job without room counts as short. Parts end with a whole line, so the last bytes often stay unused.
const NOTHING_LEFT: u64 = 1024 * 1024;

/// The identity and the limits of a log.
#[derive(Debug)]
pub struct PartOf<'a> {
    /// The text after the time of each line: `namespace/pod/container`.
    pub label: &'a str,
    /// The time of leading lines without a time.
    pub began: LineTime,
    /// The latest time of lines that are copied.
    pub until: LineTime,
    /// The log's reservation in the room of its job.
    pub room: &'a RoomOfPart<'a>,
}

/// The room for all logs of a job, in bytes.
#[derive(Debug)]
pub struct LogRoom {
    left: AtomicU64,
    was_short: AtomicBool,
    /// The bytes of the stored parts of this job.
    kept: AtomicU64,
    /// The room for the logs of all jobs of the owner.
    of_owner: Option<Arc<OwnerLogs>>,
}

impl Drop for LogRoom {
    /// Returns the room to the owner, because the job and its parts are gone.
    fn drop(&mut self) {
        if let Some(owner) = &self.of_owner {
            owner.remove(*self.kept.get_mut());
        }
    }
}

/// The room for the logs of all jobs of one owner, in bytes.
#[derive(Debug, Default)]
pub struct OwnerLogs {
    left: AtomicU64,
    /// The bytes of the owner's stored parts.
    taken: AtomicU64,
}

impl OwnerLogs {
    /// Sets the room for all parts. Stored parts count against it.
    pub fn allow(&self, bytes: u64) {
        self.left.store(bytes.saturating_sub(self.taken.load(Ordering::Relaxed)), Ordering::Relaxed);
    }

    /// Adds the bytes of stored parts.
    fn add(&self, bytes: u64) {
        self.taken.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Subtracts the bytes of removed parts.
    fn remove(&self, bytes: u64) {
        let less = |taken: u64| Some(taken.saturating_sub(bytes));
        let _always = self.taken.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less);
    }

    /// Returns true if no room is left.
    pub fn is_used_up(&self) -> bool {
        self.left.load(Ordering::Relaxed) == 0
    }
}

impl LogRoom {
    /// Returns a room of this many bytes.
    pub fn of(bytes: u64) -> Self {
        Self {
            left: AtomicU64::new(bytes),
            was_short: AtomicBool::new(bytes < NOTHING_LEFT),
            kept: AtomicU64::new(0),
            of_owner: None,
        }
    }

    /// Returns a room of this many bytes within the room of the owner. The stored bytes count against it.
    pub fn within(bytes: u64, stored: u64, owner: Arc<OwnerLogs>) -> Self {
        owner.add(stored);
        let mut room = Self::of(bytes.saturating_sub(stored));
        (room.kept, room.of_owner) = (AtomicU64::new(stored), Some(owner));
        room
    }

    /// Returns an empty reservation for a new part.
    pub fn of_part(&self) -> RoomOfPart<'_> {
        RoomOfPart { of: self, taken: AtomicU64::new(0), of_owner: AtomicU64::new(0) }
    }

    /// Returns true if some log was cut for lack of room.
    pub fn was_short(&self) -> bool {
        self.was_short.load(Ordering::Relaxed)
    }
}

/// The room that a part has taken. If it is dropped before [`RoomOfPart::keep`], it returns the room.
#[derive(Debug)]
pub struct RoomOfPart<'a> {
    of: &'a LogRoom,
    taken: AtomicU64,
    /// The bytes taken from the room of the owner.
    of_owner: AtomicU64,
}

impl RoomOfPart<'_> {
    /// Takes room. Returns false if no room is left.
    fn take(&self, bytes: usize) -> bool {
        // The end of a log takes no bytes, so it must not count as a lack of room.
        if bytes == 0 {
            return true;
        }
        let take = |left: u64| (left > 0).then(|| left.saturating_sub(bytes as u64));
        let takes = |room: &AtomicU64, taken: &AtomicU64| {
            let left = room.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take);
            left.is_ok_and(|left| {
                taken.fetch_add(left.min(bytes as u64), Ordering::Relaxed);
                true
            })
        };
        let owner = self.of.of_owner.as_deref();
        let has_room =
            owner.is_none_or(|owner| takes(&owner.left, &self.of_owner)) && takes(&self.of.left, &self.taken);
        if !has_room {
            self.of.was_short.store(true, Ordering::Relaxed);
        }
        has_room
    }

    /// Keeps the room, because the part is stored.
    pub fn keep(self) {
        let kept = self.taken.swap(0, Ordering::Relaxed);
        self.of.kept.fetch_add(kept, Ordering::Relaxed);
        self.of_owner.store(0, Ordering::Relaxed);
        if let Some(owner) = &self.of.of_owner {
            owner.add(kept);
        }
    }
}

impl Drop for RoomOfPart<'_> {
    fn drop(&mut self) {
        self.of.left.fetch_add(*self.taken.get_mut(), Ordering::Relaxed);
        if let Some(owner) = &self.of.of_owner {
            owner.left.fetch_add(*self.of_owner.get_mut(), Ordering::Relaxed);
        }
    }
}

/// The reason why a part was not written.
#[derive(Debug, thiserror::Error)]
pub enum PartFailed {
    /// The log could not be read.
    #[error("the log could not be read to its end: {0}")]
    Log(#[from] std::io::Error),
    /// The log was silent for too long.
    #[error("the log was silent for {} s", PATIENCE.as_secs())]
    Silent,
    /// The answer does not begin with a time, so it is a message and not a log.
    #[error("in place of a log came: {0}")]
    NoLog(String),
    /// The answer ends with a line that has no time. So its sender broke it off with this message.
    #[error("the log broke off with: {0}")]
    BrokeOff(String),
    /// The store refused the part.
    #[error(transparent)]
    Store(#[from] ArtefactsFailed),
}

/// The size of a written part.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Written {
    /// The number of lines.
    pub lines: u64,
    /// The number of bytes, including times and labels.
    pub bytes: u64,
}

/// Writes the log of a container as a part.
///
/// # Errors
/// If the log cannot be read, the part cannot be stored, or the text is no log.
pub async fn write_part(
    mut log: impl AsyncBufRead + Unpin,
    of: &PartOf<'_>,
    into: &mut Upload,
) -> Result<Written, PartFailed> {
    let mut lines = Lines {
        of,
        last: of.began,
        token: Vec::with_capacity(TOKEN),
        place: Within::Token,
        late: 0,
        is_log: false,
        words: None,
        written: Written::default(),
    };
    let mut out = Vec::new();
    loop {
        let read = timeout(PATIENCE, log.fill_buf()).await.map_err(|_silent| PartFailed::Silent)??;
        let before = (lines.place == Within::Text, lines.written.lines);
        let (count, is_over) = match read.len() {
            0 => (0, lines.end(&mut out)),
            count => (count, lines.take(read, &mut out)),
        };
        log.consume_unpin(count);
        if let Some(failed) = lines.failed(is_over) {
            return Err(failed);
        }
        if !of.room.take(out.len()) && !out.is_empty() {
            // The status reports the missing text. A line that is cut has to end here.
            let (is_cut, lines_before) = before;
            if is_cut {
                into.write(b"\n").await?;
            }
            return Ok(Written { lines: lines_before, ..lines.written });
        }
        lines.written.bytes = lines.written.bytes.saturating_add(out.len() as u64);
        into.write(&out).await?;
        out.clear();
        if is_over {
            return Ok(lines.written);
        }
    }
}

struct Lines<'a> {
    of: &'a PartOf<'a>,
    last: LineTime,
    /// The beginning of a line, up to its first space.
    token: Vec<u8>,
    place: Within,
    /// The bytes of the lines since the last line that was not too late.
    late: u64,
    /// True once a line began with a time.
    is_log: bool,
    /// The beginning of a line without a time, while that line goes on.
    words: Option<Vec<u8>>,
    written: Written,
}

/// The position within a line.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Within {
    /// The beginning of a line, which may be a time.
    Token,
    /// Text that is copied.
    Text,
    /// Text of a line that is too late.
    Late,
    /// Text that is not part of a log.
    Words,
}

impl Lines<'_> {
    /// Takes a piece of a log. Returns true if the rest of the log can be skipped: too many bytes in a row were too late, or the text is no
    /// log.
    fn take(&mut self, mut bytes: &[u8], out: &mut Vec<u8>) -> bool {
        while !bytes.is_empty() {
            if self.late > MOST_LATE {
                return true;
            }
            if self.place != Within::Token {
                let (now, later) = match memchr::memchr(b'\n', bytes) {
                    Some(end) => bytes.split_at(end.saturating_add(1)),
                    None => (bytes, &[][..]),
                };
                self.note(now);
                match self.place {
                    Within::Words if self.has_all_words() => return true,
                    Within::Words => {}
                    Within::Text => out.extend_from_slice(now),
                    _ => self.late = self.late.saturating_add(now.len() as u64),
                }
                if now.last() == Some(&b'\n') && self.place != Within::Words {
                    (self.place, self.words) = (Within::Token, None);
                }
                bytes = later;
                continue;
            }
            // Most lines begin with a time in the form of parts. Such a time is read in place, without a copy.
            if self.token.is_empty()
                && let Some((time, text)) = LineTime::before_text(bytes)
            {
                self.begin_line(out, Some(time));
                bytes = text;
                continue;
            }
            let room = TOKEN.saturating_sub(self.token.len());
            let searched = bytes.get(..room.min(bytes.len())).unwrap_or_default();
            let end = searched.iter().position(|byte| matches!(byte, b' ' | b'\n'));
            let Some(end) = end else {
                self.token.extend_from_slice(searched);
                bytes = bytes.get(searched.len()..).unwrap_or_default();
                // No time is that long.
                if self.token.len() >= TOKEN {
                    self.begin_line(out, None);
                }
                continue;
            };
            self.token.extend_from_slice(searched.get(..end).unwrap_or_default());
            let time = LineTime::read(&self.token);
            self.begin_line(out, time);
            // The output already has a space after the time. Any other byte that ended the token belongs to the line.
            let skip = usize::from(time.is_some() && searched.get(end) == Some(&b' '));
            bytes = bytes.get(end.saturating_add(skip)..).unwrap_or_default();
        }
        false
    }

    /// Begins a line. A line after the end time is skipped, and so is a line without a time that follows it. A token that is no time
    /// becomes the beginning of the text.
    fn begin_line(&mut self, out: &mut Vec<u8>, time: Option<LineTime>) {
        self.words = time.is_none().then(|| self.token.clone());
        self.is_log |= time.is_some();
        if !self.is_log {
            self.token.clear();
            self.place = Within::Words;
            return;
        }
        if time.map_or(self.late > 0, |time| time > self.of.until) {
            self.late = self.late.saturating_add(self.token.len() as u64);
            self.token.clear();
            self.place = Within::Late;
            return;
        }
        self.late = 0;
        // If the clock runs backwards, the lines keep their order.
        self.last = time.unwrap_or(self.last).max(self.last);
        out.extend_from_slice(self.last.as_bytes());
        out.push(b' ');
        out.extend_from_slice(self.of.label.as_bytes());
        out.push(b' ');
        let text = std::mem::take(&mut self.token);
        if time.is_none() {
            out.extend_from_slice(&text);
        }
        self.place = Within::Text;
        self.written.lines = self.written.lines.saturating_add(1);
    }

    /// Keeps the beginning of a line without a time.
    fn note(&mut self, bytes: &[u8]) {
        if let Some(words) = &mut self.words {
            let room = MOST_WORDS.saturating_sub(words.len());
            words.extend_from_slice(bytes.get(..room.min(bytes.len())).unwrap_or_default());
        }
    }

    fn has_all_words(&self) -> bool {
        self.words.as_ref().is_some_and(|words| words.len() >= MOST_WORDS)
    }

    /// Returns the failure if the text was no log, or not the whole log.
    fn failed(&self, is_over: bool) -> Option<PartFailed> {
        let words = self.words.as_ref().filter(|_| is_over)?;
        let said: String =
            String::from_utf8_lossy(words).chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
        let said = said.trim().to_owned();
        match self.place {
            Within::Words => Some(PartFailed::NoLog(said)),
            Within::Text => Some(PartFailed::BrokeOff(said)),
            Within::Token | Within::Late => None,
        }
    }

    /// Ends the last line, which may lack its newline.
    fn end(&mut self, out: &mut Vec<u8>) -> bool {
        if !self.token.is_empty() {
            self.begin_line(out, LineTime::read(&self.token));
        }
        if self.place == Within::Text {
            out.push(b'\n');
        }
        true
    }
}
