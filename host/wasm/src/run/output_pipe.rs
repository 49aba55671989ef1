//! Keeps the standard output and standard error of a plugin up to a limit.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use parking_lot::Mutex;
use tokio::io::AsyncWrite;
use wasmtime_wasi::async_trait;
use wasmtime_wasi::cli::{IsTerminal, StdoutStream};
use wasmtime_wasi::p2::{OutputStream, Pollable, StreamResult};

/// The most bytes of a call's output that are kept.
const KEPT_BYTES: usize = 16 * 1024;

/// The text that a call has written so far. Output beyond the limit is dropped without an error, because a plugin may not fail for its
/// output.
#[derive(Clone, Default)]
pub(crate) struct OutputPipe(Arc<Mutex<Written>>);

#[derive(Default)]
struct Written {
    kept: Vec<u8>,
    is_cut: bool,
}

impl OutputPipe {
    /// Takes the output since the last call, and returns whether some output was dropped.
    pub(crate) fn take(&self) -> (String, bool) {
        let Written { kept, is_cut } = std::mem::take(&mut *self.0.lock());
        (String::from_utf8_lossy(&kept).into_owned(), is_cut)
    }

    fn keep(&self, bytes: &[u8]) {
        let mut written = self.0.lock();
        let room = KEPT_BYTES.saturating_sub(written.kept.len()).min(bytes.len());
        written.kept.extend_from_slice(bytes.get(..room).unwrap_or_default());
        written.is_cut |= room < bytes.len();
    }
}

impl IsTerminal for OutputPipe {
    fn is_terminal(&self) -> bool {
        false
    }
}

impl StdoutStream for OutputPipe {
    fn async_stream(&self) -> Box<dyn AsyncWrite + Send + Sync> {
        Box::new(self.clone())
    }

    fn p2_stream(&self) -> Box<dyn OutputStream> {
        Box::new(self.clone())
    }
}

impl OutputStream for OutputPipe {
    fn write(&mut self, bytes: bytes::Bytes) -> StreamResult<()> {
        self.keep(&bytes);
        Ok(())
    }

    fn flush(&mut self) -> StreamResult<()> {
        Ok(())
    }

    fn check_write(&mut self) -> StreamResult<usize> {
        Ok(KEPT_BYTES)
    }
}

#[async_trait]
impl Pollable for OutputPipe {
    async fn ready(&mut self) {}
}

impl AsyncWrite for OutputPipe {
    fn poll_write(self: Pin<&mut Self>, _: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.keep(bytes);
        Poll::Ready(Ok(bytes.len()))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_beyond_the_limit_is_dropped_and_said() {
        let pipe = OutputPipe::default();
        pipe.keep(b"one\n");
        assert_eq!(pipe.take(), ("one\n".to_owned(), false));
        pipe.keep(&[b'x'; KEPT_BYTES + 1]);
        let (kept, is_cut) = pipe.take();
        assert!(is_cut && kept.len() == KEPT_BYTES);
    }
}
