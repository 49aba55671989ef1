//! The output of a command: copies it to the pod's log, and keeps its end and its digest.

use std::collections::VecDeque;
use std::io::Write as _;

use sha2::{Digest as _, Sha256};
use tokio::io::{AsyncRead, AsyncReadExt as _};

/// The bytes of output to keep. With the rest of the result, they fit into a termination message.
const KEPT: usize = 3 * 1024;

/// The end of an output and the digest of all of it.
#[derive(Default)]
pub(super) struct Tail {
    bytes: VecDeque<u8>,
    hash: Sha256,
    length: usize,
}

impl Tail {
    fn take(&mut self, bytes: &[u8]) {
        self.hash.update(bytes);
        self.length = self.length.saturating_add(bytes.len());
        self.bytes.extend(bytes);
        let surplus = self.bytes.len().saturating_sub(KEPT);
        self.bytes.drain(..surplus);
    }

    /// Returns the SHA-256 of the whole output, in hexadecimal digits.
    pub(super) fn sha256(&self) -> String {
        self.hash.clone().finalize().iter().map(|byte| format!("{byte:02x}")).collect()
    }

    /// Returns true if the beginning is missing.
    pub(super) fn is_cut(&self) -> bool {
        self.length > self.bytes.len()
    }

    /// Returns the kept end as text.
    pub(super) fn text(&self) -> String {
        let bytes: Vec<u8> = self.bytes.iter().copied().collect();
        String::from_utf8_lossy(&bytes).into_owned()
    }
}

/// Reads two streams until both end. Keeps the bytes read so far even if the future is dropped.
pub(super) async fn read_both(mut out: impl AsyncRead + Unpin, mut err: impl AsyncRead + Unpin, tail: &mut Tail) {
    let (mut from_out, mut from_err) = (vec![0; 16 * 1024], vec![0; 16 * 1024]);
    let (mut out_open, mut err_open) = (true, true);
    while out_open || err_open {
        tokio::select! {
            read = out.read(&mut from_out), if out_open => out_open = pass_on(&from_out, read, tail),
            read = err.read(&mut from_err), if err_open => err_open = pass_on(&from_err, read, tail),
        }
    }
}

/// Takes the bytes of one read. Returns false at the end of the stream.
fn pass_on(buffer: &[u8], read: std::io::Result<usize>, tail: &mut Tail) -> bool {
    let Some(bytes) = read.ok().filter(|count| *count > 0).and_then(|count| buffer.get(..count)) else { return false };
    tail.take(bytes);
    // A command continues even if the pod's log accepts no more output.
    let _lost = std::io::stdout().write_all(bytes).is_err();
    true
}
