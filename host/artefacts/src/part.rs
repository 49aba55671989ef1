//! Turns the log of a container into a part: each line begins with its time and its place, and no line comes before the one
//! above it.
//!
//! Takes a log as the API shows it, with times; yields what was written. May not hold a whole line: some have no end.

use std::sync::atomic::{AtomicU64, Ordering};

use futures::io::{AsyncBufRead, AsyncBufReadExt as _};
use tokio::time::{Duration, timeout};

use crate::stamp::Stamp;
use crate::store::ArtefactsFailed;
use crate::upload::Upload;

/// Longest time that a log may be silent while it is read.
const PATIENCE: Duration = Duration::from_secs(60);
/// Most bytes of what may be a time.
const TOKEN: usize = 64;

/// Whose log it is, and how much of it is taken.
#[derive(Debug)]
pub struct PartOf<'a> {
    /// What each of its lines says after the time: `namespace/pod/container`.
    pub label: &'a str,
    /// The time of lines that have none.
    pub began: Stamp,
    /// The last time that is taken.
    pub until: Stamp,
    /// The room that is left for all logs of a job.
    pub room: &'a LogRoom,
}

/// The bytes that all logs of a job may take together.
#[derive(Debug)]
pub struct LogRoom(AtomicU64);

impl LogRoom {
    /// So many.
    pub fn of(bytes: u64) -> Self {
        Self(AtomicU64::new(bytes))
    }

    /// Takes some of it; false where there is none left.
    fn take(&self, bytes: usize) -> bool {
        let take = |left: u64| (left > 0).then(|| left.saturating_sub(bytes as u64));
        self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take).is_ok()
    }

    /// Gives back what a part had taken that was not kept.
    pub fn give_back(&self, bytes: u64) {
        self.0.fetch_add(bytes, Ordering::Relaxed);
    }

    /// True where nothing more is taken.
    pub fn is_used_up(&self) -> bool {
        self.0.load(Ordering::Relaxed) == 0
    }
}

/// Why a part was not written.
#[derive(Debug, thiserror::Error)]
pub enum PartFailed {
    /// The log could not be read.
    #[error("the log could not be read to its end: {0}")]
    Log(#[from] std::io::Error),
    /// The log was silent for too long.
    #[error("the log was silent for {} s", PATIENCE.as_secs())]
    Silent,
    /// The store did not take it.
    #[error(transparent)]
    Store(#[from] ArtefactsFailed),
}

/// What was written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Written {
    /// Lines.
    pub lines: u64,
    /// Bytes, those of times and labels among them.
    pub bytes: u64,
}

/// Writes the log of a container as a part.
///
/// # Errors
/// What could not be read or stored.
pub async fn write_part(
    mut log: impl AsyncBufRead + Unpin,
    of: &PartOf<'_>,
    into: &mut Upload,
) -> Result<Written, PartFailed> {
    let mut lines =
        Lines { of, last: of.began, token: Vec::with_capacity(TOKEN), within: false, written: Written::default() };
    let mut out = Vec::new();
    loop {
        let read = timeout(PATIENCE, log.fill_buf()).await.map_err(|_silent| PartFailed::Silent)??;
        let before = (lines.within, lines.written.lines);
        let (count, is_over) = match read.len() {
            0 => (0, lines.end(&mut out)),
            count => (count, lines.take(read, &mut out)),
        };
        log.consume_unpin(count);
        if !of.room.take(out.len()) && !out.is_empty() {
            // What is missing is said of the whole; a line that is cut ends here.
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
    last: Stamp,
    /// The beginning of a line, up to its first space.
    token: Vec<u8>,
    /// The text of a line is being copied.
    within: bool,
    written: Written,
}

impl Lines<'_> {
    /// Takes a piece of a log. True once all that follows is too late.
    fn take(&mut self, mut bytes: &[u8], out: &mut Vec<u8>) -> bool {
        while !bytes.is_empty() {
            if self.within {
                let (now, later) = match memchr::memchr(b'\n', bytes) {
                    Some(end) => bytes.split_at(end.saturating_add(1)),
                    None => (bytes, &[][..]),
                };
                out.extend_from_slice(now);
                self.within = now.last() != Some(&b'\n');
                bytes = later;
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
            let stamp = Stamp::read(&self.token);
            if stamp.is_some_and(|stamp| stamp.max(self.last) > self.of.until) {
                return true;
            }
            self.begin_line(out, stamp);
            // The space after a time is ours already; whatever else ended the token belongs to the line.
            let skip = usize::from(stamp.is_some() && searched.get(end) == Some(&b' '));
            bytes = bytes.get(end.saturating_add(skip)..).unwrap_or_default();
        }
        false
    }

    /// Begins a line with its time and place. What was no time is the beginning of its text.
    fn begin_line(&mut self, out: &mut Vec<u8>, stamp: Option<Stamp>) {
        // A clock that ran backwards does not tear a stream apart.
        self.last = stamp.unwrap_or(self.last).max(self.last);
        out.extend_from_slice(self.last.as_bytes());
        out.push(b' ');
        out.extend_from_slice(self.of.label.as_bytes());
        out.push(b' ');
        let text = std::mem::take(&mut self.token);
        if stamp.is_none() {
            out.extend_from_slice(&text);
        }
        self.within = true;
        self.written.lines = self.written.lines.saturating_add(1);
    }

    /// Ends the last line, which may lack its end.
    fn end(&mut self, out: &mut Vec<u8>) -> bool {
        if !self.token.is_empty() {
            let stamp = Stamp::read(&self.token);
            if stamp.is_none_or(|stamp| stamp.max(self.last) <= self.of.until) {
                self.begin_line(out, stamp);
            }
        }
        if self.within {
            out.push(b'\n');
            self.within = false;
        }
        true
    }
}
