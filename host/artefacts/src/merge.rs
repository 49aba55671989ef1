//! Merges parts into one file, in the order of the times of their lines.
//!
//! Each part has to be sorted. The merge holds at most one window of each part in memory.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::collections::binary_heap::PeekMut;

use crate::backend::Sizes;
use crate::failed::ArtefactsFailed;
use crate::line_time::LineTime;
use crate::store::{Artefacts, LogPart, PartName, TURNS};
use crate::upload::Upload;

/// The bytes of all windows together.
const WINDOWS: usize = 16 * 1024 * 1024;
/// The most parts that are read at once. More parts are merged in several turns.
const WIDTH: usize = 512;

/// The size of a merged file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Merged {
    /// The number of lines.
    pub lines: u64,
    /// The number of bytes.
    pub bytes: u64,
}

impl Artefacts {
    /// Merges all parts of the job of this UID into one file. Lines are sorted by time, and lines of the same time by part. It calls `done`
    /// with the number of written bytes from time to time.
    ///
    /// # Errors
    /// If a part cannot be read, or the store does not confirm the file.
    pub async fn merge_parts(
        &self,
        job: &str,
        mut into: Upload,
        done: impl Fn(u64) + Send,
    ) -> Result<Merged, ArtefactsFailed> {
        self.drop_turns(job).await?;
        let sizes = self.of.sizes();
        let mut parts = self.parts(job).await?;
        let mut turn = 0_u32;
        while at_once(&parts, sizes) < parts.len() {
            let (mut merged, mut rest) = (Vec::new(), parts.as_slice());
            while !rest.is_empty() {
                let (some, later) = rest.split_at(at_once(rest, sizes).max(1));
                rest = later;
                let name = format!("{turn:010}");
                let of = PartName { job, folder: TURNS, name: &name };
                let mut upload = self.write_part(of).await?;
                merge(self, some, &mut upload, &|_| {}).await?;
                upload.finish().await?;
                merged.extend(self.find_part(of, 0).await?.map(|(part, _)| part));
                turn = turn.saturating_add(1);
            }
            parts = merged;
        }
        let lines = merge(self, &parts, &mut into, &done).await?;
        self.drop_turns(job).await?;
        Ok(Merged { lines, bytes: into.finish().await? })
    }
}

/// The bytes between two calls of `done`.
const TOLD_EACH: u64 = 64 * 1024 * 1024;

/// Returns the number of parts, from the first one on, that can be read at once. The smallest window of each part has to fit into the
/// memory, or the whole part if it is smaller.
fn at_once(parts: &[LogPart], sizes: &Sizes) -> usize {
    let mut room = WINDOWS as u64;
    let fit = parts.iter().take(WIDTH).take_while(|part| {
        let window = part.size.min(sizes.least_window as u64);
        let fits = window <= room;
        room = room.saturating_sub(window);
        fits
    });
    fit.count()
}

async fn merge(
    store: &Artefacts,
    parts: &[LogPart],
    into: &mut Upload,
    done: &(impl Fn(u64) + Send),
) -> Result<u64, ArtefactsFailed> {
    let sizes = store.of.sizes();
    let size = WINDOWS.checked_div(parts.len()).unwrap_or(WINDOWS).clamp(sizes.least_window, sizes.most_window);
    let mut windows: Vec<Window<'_>> = parts.iter().map(|part| Window::of(store, part, size)).collect();
    let mut next = BinaryHeap::new();
    for (number, window) in windows.iter_mut().enumerate() {
        next.extend(window.time().await?.map(|time| Reverse((time, number))));
    }
    let (mut lines, mut written, mut told) = (0_u64, 0_u64, 0_u64);
    while let Some(Reverse((_, number))) = next.peek().copied() {
        let Some(window) = windows.get_mut(number) else { break };
        written = written.saturating_add(window.copy_line(into).await?);
        lines = lines.saturating_add(1);
        let time = window.time().await?;
        // The next line of all is often in the same part. So its heap entry is replaced in place, which costs less than a pop and a push.
        if let Some(mut first) = next.peek_mut() {
            match time {
                Some(time) => *first = Reverse((time, number)),
                None => drop(PeekMut::pop(first)),
            }
        }
        if written.saturating_sub(told) > TOLD_EACH {
            told = written;
            done(written);
        }
    }
    Ok(lines)
}

/// A sliding window of a part.
struct Window<'a> {
    store: &'a Artefacts,
    part: &'a LogPart,
    size: usize,
    /// The number of bytes that were read from the part.
    read: u64,
    held: Vec<u8>,
    at: usize,
}

impl<'a> Window<'a> {
    fn of(store: &'a Artefacts, part: &'a LogPart, size: usize) -> Self {
        Self { store, part, size, read: 0, held: Vec::new(), at: 0 }
    }

    fn rest(&self) -> &[u8] {
        self.held.get(self.at..).unwrap_or_default()
    }

    /// Reads the next bytes. Returns false at the end of the part.
    async fn read_on(&mut self) -> Result<bool, ArtefactsFailed> {
        if self.read >= self.part.size {
            return Ok(false);
        }
        let to = self.read.saturating_add(self.size as u64).min(self.part.size);
        let more = self.store.read(&self.part.place, self.read..to).await?;
        self.held.drain(..self.at);
        self.at = 0;
        self.held.extend_from_slice(&more);
        self.read = to;
        Ok(true)
    }

    /// Returns the time of the next line, or `None` after the last line.
    async fn time(&mut self) -> Result<Option<LineTime>, ArtefactsFailed> {
        loop {
            if let Some(time) = LineTime::of_line(self.rest()) {
                return Ok(Some(time));
            }
            if !self.read_on().await? {
                return Ok(None);
            }
        }
    }

    /// Copies a line of any length. Returns its number of bytes.
    async fn copy_line(&mut self, into: &mut Upload) -> Result<u64, ArtefactsFailed> {
        let mut bytes = 0_u64;
        loop {
            let rest = self.rest();
            let (count, is_whole) = match memchr::memchr(b'\n', rest) {
                Some(end) => (end.saturating_add(1), true),
                None => (rest.len(), false),
            };
            into.write(rest.get(..count).unwrap_or_default()).await?;
            bytes = bytes.saturating_add(count as u64);
            self.at = self.at.saturating_add(count);
            if is_whole || !self.read_on().await? {
                return Ok(bytes);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use object_store::path::Path as Place;

    use super::*;
    use crate::backend::{OF_BUCKET, OF_FOLDER};

    #[test]
    fn parts_that_are_read_at_once_have_windows_that_suit_the_store_and_fit() {
        let parts = |count: usize, size: u64| vec![LogPart { place: Place::from("p"), size }; count];
        let (large, small) = (parts(700, 2 << 20), parts(700, 10 << 10));
        assert_eq!((at_once(&large, &OF_BUCKET), at_once(&large, &OF_FOLDER)), (16, WIDTH));
        assert_eq!((at_once(&small, &OF_BUCKET), at_once(&small, &OF_FOLDER)), (WIDTH, WIDTH));
        let mixed = [parts(15, 2 << 20), parts(200, 10 << 10)].concat();
        assert_eq!(at_once(&mixed, &OF_BUCKET), 15 + 102, "what is left beside 15 MiB");
        assert_eq!(at_once(&[], &OF_BUCKET), 0);
    }
}
