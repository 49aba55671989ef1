//! Counts the bytes that a process has received over TCP.
//!
//! `/proc/<pid>/io` counts only reads of files and not of sockets, so this module uses the kernel's socket diagnosis, as `ss` does.
//! It reads the connections several times a second. It misses bytes that a connection received between the last read and its end,
//! and connections that live for a shorter time.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use parking_lot::Mutex;
use rustix::fd::OwnedFd;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketType, netlink, recv, send, socket, sockopt};
use tokio::task::AbortHandle;

/// The time between two reads of the connections.
const LOOK_EVERY: Duration = Duration::from_millis(200);
/// `SOCK_DIAG_BY_FAMILY`: the type of the question and of each answer.
const BY_FAMILY: u16 = 20;
/// `NLMSG_DONE` and `NLMSG_ERROR`.
const LAST: [u16; 2] = [3, 2];
/// `NLM_F_REQUEST | NLM_F_DUMP`.
const DUMP: u16 = 0x301;
/// `INET_DIAG_INFO`: the attribute with a `tcp_info`.
const INFO: u16 = 2;
/// Offsets: the inode in an answer, the start of an answer's attributes, and the received bytes in a `tcp_info`.
const INODE_AT: usize = 68;
const ATTRIBUTES_AT: usize = 72;
const RECEIVED_AT: usize = 128;

/// Counts bytes until it is dropped.
pub(crate) struct Received {
    process: u32,
    /// Received bytes, by the inode of the socket.
    seen: Arc<Mutex<BTreeMap<u32, u64>>>,
    looking: AbortHandle,
}

impl Received {
    /// Starts to count the received bytes of `process`.
    pub(crate) fn by(process: u32) -> Self {
        let seen = Arc::<Mutex<BTreeMap<u32, u64>>>::default();
        let mine = seen.clone();
        let looking = tokio::spawn(async move {
            loop {
                // The caller notices a kernel without socket diagnosis when it asks for the total.
                let _ = look(process, &mine);
                tokio::time::sleep(LOOK_EVERY).await;
            }
        });
        Self { process, seen, looking: looking.abort_handle() }
    }

    /// Returns all bytes so far. Returns `None` if the kernel has no socket diagnosis.
    pub(crate) fn total(&self) -> Option<u64> {
        look(self.process, &self.seen).ok()?;
        Some(self.seen.lock().values().sum())
    }
}

impl Drop for Received {
    fn drop(&mut self) {
        self.looking.abort();
    }
}

fn look(process: u32, seen: &Mutex<BTreeMap<u32, u64>>) -> anyhow::Result<()> {
    let own = sockets(process)?;
    let mut all = BTreeMap::new();
    for family in [AddressFamily::INET, AddressFamily::INET6] {
        ask(u8::try_from(family.as_raw())?, &mut all)?;
    }
    seen.lock().extend(all.into_iter().filter(|(inode, _)| own.contains(inode)));
    Ok(())
}

/// Returns the inodes of the sockets that a process has open.
fn sockets(process: u32) -> anyhow::Result<BTreeSet<u32>> {
    let open = std::fs::read_dir(format!("/proc/{process}/fd")).context("cannot see the sockets of the process")?;
    let inode = |entry: std::fs::DirEntry| {
        let name = std::fs::read_link(entry.path()).ok()?;
        name.to_str()?.strip_prefix("socket:[")?.strip_suffix(']')?.parse().ok()
    };
    Ok(open.filter_map(Result::ok).filter_map(inode).collect())
}

/// Reads all TCP sockets of one family and stores the bytes that each has received.
fn ask(family: u8, all: &mut BTreeMap<u32, u64>) -> anyhow::Result<()> {
    let link: OwnedFd = socket(AddressFamily::NETLINK, SocketType::DGRAM, Some(netlink::SOCK_DIAG))?;
    sockopt::set_socket_timeout(&link, sockopt::Timeout::Recv, Some(Duration::from_secs(2)))?;
    send(&link, &question(family), SendFlags::empty())?;
    let mut buffer = vec![0; 1 << 16];
    loop {
        let (length, _) = recv(&link, buffer.as_mut_slice(), RecvFlags::empty())?;
        if note(buffer.get(..length).unwrap_or_default(), all) {
            return Ok(());
        }
    }
}

/// Returns a netlink header and an `inet_diag_req_v2` for TCP in every state, with `tcp_info`.
fn question(family: u8) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(72);
    bytes.extend(72_u32.to_ne_bytes());
    bytes.extend(BY_FAMILY.to_ne_bytes());
    bytes.extend(DUMP.to_ne_bytes());
    bytes.extend([0; 8]);
    bytes.extend([family, 6, 1 << (INFO - 1), 0]);
    bytes.extend(u32::MAX.to_ne_bytes());
    bytes.resize(72, 0);
    bytes
}

/// Reads the answers of one datagram. Returns true if the last answer was among them.
fn note(mut datagram: &[u8], all: &mut BTreeMap<u32, u64>) -> bool {
    while let (Some(length), Some(kind)) = (word(datagram, 0), half(datagram, 4)) {
        let length = length as usize;
        let Some(answer) = datagram.get(16..length) else { return true };
        if LAST.contains(&kind) {
            return true;
        }
        if let (Some(inode), Some(received)) = (word(answer, INODE_AT), received(answer)) {
            all.insert(inode, received);
        }
        datagram = datagram.get(length.next_multiple_of(4)..).unwrap_or_default();
    }
    false
}

fn received(answer: &[u8]) -> Option<u64> {
    let mut attributes = answer.get(ATTRIBUTES_AT..)?;
    while let (Some(length), Some(kind)) = (half(attributes, 0), half(attributes, 2)) {
        let length = usize::from(length).max(4);
        if kind == INFO {
            let bytes = attributes.get(4 + RECEIVED_AT..4 + RECEIVED_AT + 8)?;
            return bytes.try_into().ok().map(u64::from_ne_bytes);
        }
        attributes = attributes.get(length.next_multiple_of(4)..)?;
    }
    None
}

fn word(bytes: &[u8], at: usize) -> Option<u32> {
    bytes.get(at..at + 4)?.try_into().ok().map(u32::from_ne_bytes)
}

fn half(bytes: &[u8], at: usize) -> Option<u16> {
    bytes.get(at..at + 2)?.try_into().ok().map(u16::from_ne_bytes)
}

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Write as _};
    use std::net::{TcpListener, TcpStream};

    use super::*;

    #[test]
    fn bytes_of_an_open_connection_are_counted_once() {
        let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let mut near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (mut far, _) = listener.accept().unwrap();
        far.write_all(&[7; 5000]).unwrap();
        near.read_exact(&mut [0; 5000]).unwrap();
        let seen = Mutex::default();
        look(std::process::id(), &seen).unwrap();
        look(std::process::id(), &seen).unwrap();
        assert!(seen.lock().values().any(|bytes| *bytes == 5000), "{seen:?}");
    }
}
