//! Limits the connections of the listener: their number, and how long an answer may stay unread. Source: docs/opsjob-rest.md 8.
//!
//! A connection costs a file descriptor before the server knows its client. A connection above the limit closes the connection that has
//! been silent for longest. So a client that only holds connections does not delay an active client.

use std::collections::HashMap;
use std::future::poll_fn;
use std::io::{Error, ErrorKind, IoSlice};
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum_server::accept::Accept;
use futures::future::BoxFuture;
use futures::task::AtomicWaker;
use http::{Request, Version};
use parking_lot::Mutex;
use socket2::SockRef;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, ReadBuf};
use tokio::net::TcpStream;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, Sleep, sleep};
use tokio_util::sync::PollSemaphore;
use tower::Service;

use crate::proxies::Proxies;

/// The most open connections that are not from trusted proxies, in all and from one address.
const MOST: usize = 512;
const OF_ADDRESS: usize = 32;
/// The most open connections from trusted proxies.
const OF_PROXIES: usize = 256;
/// The most connections that may wait to be closed, beside the open ones.
const CLOSING: usize = 32;
/// The socket buffers of each connection in the kernel: for received bytes, and for sent bytes. The kernel counts the buffers as memory of
/// this process, and doubles each size.
const RECEIVED: usize = 16 * 1024;
const SENT: usize = 32 * 1024;
/// The send buffer of a client that has read this many bytes of its connection. With 32 KiB for each round trip, a file takes long.
const SENT_OF_READERS: usize = 256 * 1024;
const READER_AFTER: u64 = 1024 * 1024;
/// The most connections with the large send buffer.
const READERS: usize = 32;
/// The most connections at one time.
pub(crate) const ALL: usize = MOST + OF_PROXIES + CLOSING;
/// The most requests in progress on streams of HTTP/2.
pub(crate) const STREAMS: usize = 256;
/// The most bytes of the socket buffers of all connections.
pub(crate) const MOST_BYTES: usize = 2 * (ALL * (RECEIVED + SENT) + READERS * SENT_OF_READERS);
/// How long a client may take to read its last answer and close its side. The connection keeps its slot until then, because the kernel
/// keeps the unread bytes. After that, the kernel drops them.
const CLOSES_WITHIN: Duration = Duration::from_secs(30);
/// The time between two checks of a connection that ends.
const LOOKS_EACH: Duration = Duration::from_millis(100);
/// How long a client may take to read `READ_IN_THAT` bytes of an answer that waits for it: 4 KiB a second.
const UNREAD: Duration = Duration::from_secs(30);
const READ_IN_THAT: u64 = 120 * 1024;

/// The origin by which connections are counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Place {
    /// All trusted proxies.
    Proxies,
    /// An IPv4 address, or an IPv6 network of 64 bits.
    Address(IpAddr),
}

/// All open connections. Clones share one table.
#[derive(Clone)]
pub(crate) struct Connections(Arc<Shared>);

struct Shared {
    proxies: Proxies,
    table: Mutex<Table>,
    began: Instant,
    closed: AtomicU64,
    readers: Arc<Semaphore>,
    streams: Arc<Semaphore>,
}

#[derive(Default)]
struct Table {
    next: u64,
    open: HashMap<u64, Arc<Link>>,
}

/// One open connection.
struct Link {
    place: Place,
    /// The time of the last byte in either direction, in milliseconds since the start.
    spoke: AtomicU64,
    /// The number of requests whose answers are in progress.
    busy: AtomicU64,
    /// The number of requests that have begun.
    requests: AtomicU64,
    is_closed: AtomicBool,
    waker: AtomicWaker,
}

impl Link {
    /// Becomes ready once the connection must close for another connection.
    fn made_place(&self, context: &Context<'_>) -> Poll<()> {
        self.waker.register(context.waker());
        if self.is_closed.load(Ordering::Acquire) { Poll::Ready(()) } else { Poll::Pending }
    }

    fn close(&self) {
        self.is_closed.store(true, Ordering::Release);
        self.waker.wake();
    }
}

/// The slot of a connection. It is released on drop.
struct Open {
    connections: Connections,
    number: u64,
    link: Arc<Link>,
}

impl Open {
    /// Records that a byte went in either direction.
    fn spoke(&self) {
        self.link.spoke.store(self.connections.now(), Ordering::Relaxed);
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        self.connections.0.table.lock().open.remove(&self.number);
    }
}

/// The slot of a request. It is released on drop.
pub(crate) struct StreamPlace(#[expect(dead_code, reason = "held until it is dropped")] Option<OwnedSemaphorePermit>);

/// Returns true if a connection from the second place counts against a limit of the first.
type Counts = fn(&Place, &Place) -> bool;

impl Connections {
    pub(crate) fn of(proxies: Proxies) -> Self {
        let (table, closed) = (Mutex::default(), AtomicU64::new(0));
        let readers = Arc::new(Semaphore::new(READERS));
        let streams = Arc::new(Semaphore::new(STREAMS));
        Self(Arc::new(Shared { proxies, table, began: Instant::now(), closed, readers, streams }))
    }

    /// Returns a slot for a request, or `None` if too many streams have one. A request of HTTP/1 has the slot of its connection.
    pub(crate) fn stream_place(&self, version: Version) -> Option<StreamPlace> {
        if version < Version::HTTP_2 {
            return Some(StreamPlace(None));
        }
        self.0.streams.clone().try_acquire_owned().ok().map(|place| StreamPlace(Some(place)))
    }

    /// Admits a connection. Above a limit, it closes the silent connection of that limit that was silent for longest. Returns `None` if all
    /// connections are busy.
    fn take(&self, peer: SocketAddr) -> Option<Open> {
        let place = self.place(peer.ip());
        let mut table = self.0.table.lock();
        let bounds: &[(usize, Counts)] = match place {
            Place::Proxies => &[(OF_PROXIES, |own, other| own == other)],
            Place::Address(_) => {
                &[(OF_ADDRESS, |own, other| own == other), (MOST, |_, other| *other != Place::Proxies)]
            }
        };
        for (most, is_counted) in bounds {
            let counted = || table.open.iter().filter(|(_, link)| is_counted(&place, &link.place));
            if counted().count() < *most {
                continue;
            }
            self.0.closed.fetch_add(1, Ordering::Relaxed);
            let silent = counted().filter(|(_, link)| link.busy.load(Ordering::Acquire) == 0);
            let oldest = silent.min_by_key(|(number, link)| (link.spoke.load(Ordering::Relaxed), **number));
            let oldest = oldest.map(|(number, _)| *number)?;
            if let Some(link) = table.open.remove(&oldest) {
                link.close();
            }
        }
        let number = table.next;
        table.next = number.wrapping_add(1);
        let [spoke, busy, requests] = [self.now(), 0, 0].map(AtomicU64::new);
        let link = Link { place, spoke, busy, requests, is_closed: AtomicBool::new(false), waker: AtomicWaker::new() };
        let link = Arc::new(link);
        table.open.insert(number, link.clone());
        Some(Open { connections: self.clone(), number, link })
    }

    fn place(&self, address: IpAddr) -> Place {
        let address = address.to_canonical();
        match address {
            _ if self.0.proxies.has(address) => Place::Proxies,
            IpAddr::V4(_) => Place::Address(address),
            IpAddr::V6(own) => {
                let [a, b, c, d, ..] = own.segments();
                Place::Address(IpAddr::V6(Ipv6Addr::new(a, b, c, d, 0, 0, 0, 0)))
            }
        }
    }

    /// Returns the number of connections that were closed or refused because there were too many.
    pub(crate) fn closed(&self) -> u64 {
        self.0.closed.load(Ordering::Relaxed)
    }

    fn now(&self) -> u64 {
        u64::try_from(self.0.began.elapsed().as_millis()).unwrap_or(u64::MAX)
    }
}

/// Makes services for connections, and bounds their number by a semaphore. The listener accepts the next connection only after another one
/// has closed, so file descriptors do not run out.
pub(crate) struct Paced<M> {
    make: M,
    places: PollSemaphore,
    next: Option<OwnedSemaphorePermit>,
}

impl<M> Paced<M> {
    pub(crate) fn of(make: M, connections: &Connections) -> Self {
        let of_proxies = if connections.0.proxies.is_empty() { 0 } else { OF_PROXIES };
        let places = Arc::new(Semaphore::new(MOST.saturating_add(of_proxies).saturating_add(CLOSING)));
        Self { make, places: PollSemaphore::new(places), next: None }
    }
}

impl<M, R> Service<R> for Paced<M>
where
    M: Service<R>,
    M::Future: Send + 'static,
{
    type Response = ServiceWithPlace<M::Response>;
    type Error = M::Error;
    type Future = BoxFuture<'static, Result<ServiceWithPlace<M::Response>, M::Error>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), M::Error>> {
        if self.next.is_none() {
            self.next = ready!(self.places.poll_acquire(context));
        }
        self.make.poll_ready(context)
    }

    fn call(&mut self, peer: R) -> Self::Future {
        let (made, place) = (self.make.call(peer), self.next.take());
        Box::pin(async move { Ok(ServiceWithPlace { service: made.await?, _place: Arc::new(place) }) })
    }
}

/// The service of a connection. It holds the slot of the connection.
#[derive(Clone)]
pub(crate) struct ServiceWithPlace<S> {
    service: S,
    _place: Arc<Option<OwnedSemaphorePermit>>,
}

impl<R, S: Service<R>> Service<R> for ServiceWithPlace<S> {
    type Response = S::Response;
    type Error = S::Error;
    type Future = S::Future;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.service.poll_ready(context)
    }

    fn call(&mut self, request: R) -> S::Future {
        self.service.call(request)
    }
}

/// Sets small socket buffers. Connections that are not accepted yet inherit the buffers of the listener.
pub(crate) fn keep_little(socket: &SockRef<'_>) -> std::io::Result<()> {
    socket.set_send_buffer_size(SENT)?;
    socket.set_recv_buffer_size(RECEIVED)
}

/// Accepts the connections that the limits admit.
#[derive(Clone)]
pub(crate) struct BoundedAcceptor(pub(crate) Connections);

impl<S> Accept<TcpStream, S> for BoundedAcceptor {
    type Stream = WatchedStream<TcpStream>;
    type Service = Working<S>;
    type Future = std::future::Ready<std::io::Result<(Self::Stream, Self::Service)>>;

    fn accept(&self, stream: TcpStream, service: S) -> Self::Future {
        let taken = || {
            let open =
                self.0.take(stream.peer_addr()?).ok_or_else(|| Error::other("there are too many connections"))?;
            stream.set_nodelay(true)?;
            keep_little(&SockRef::from(&stream))?;
            Ok(open)
        };
        std::future::ready(taken().map(|open| {
            let working = Working { service, link: open.link.clone() };
            (WatchedStream::of(stream, open), working)
        }))
    }
}

/// Answers requests, and marks the connection as busy meanwhile.
#[derive(Clone)]
pub(crate) struct Working<S> {
    service: S,
    link: Arc<Link>,
}

struct AtWork(Arc<Link>);

impl AtWork {
    fn on(link: &Arc<Link>) -> Self {
        link.busy.fetch_add(1, Ordering::AcqRel);
        link.requests.fetch_add(1, Ordering::Relaxed);
        Self(link.clone())
    }
}

impl Drop for AtWork {
    fn drop(&mut self) {
        self.0.busy.fetch_sub(1, Ordering::AcqRel);
    }
}

/// A connection whose handler waits for a body. The connection counts as silent meanwhile, so a slow sender keeps no other client out.
#[derive(Clone)]
pub(crate) struct BodyAwaited(Arc<Link>);

/// The wait for a body. The wait ends on drop.
pub(crate) struct AwaitingBody<'a>(&'a Link);

impl BodyAwaited {
    pub(crate) fn begin(&self) -> AwaitingBody<'_> {
        self.0.busy.fetch_sub(1, Ordering::AcqRel);
        AwaitingBody(&self.0)
    }
}

impl Drop for AwaitingBody<'_> {
    fn drop(&mut self) {
        self.0.busy.fetch_add(1, Ordering::AcqRel);
    }
}

impl<B, S> Service<Request<B>> for Working<S>
where
    S: Service<Request<B>>,
    S::Future: Send + 'static,
{
    type Response = S::Response;
    type Error = S::Error;
    type Future = BoxFuture<'static, Result<S::Response, S::Error>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.service.poll_ready(context)
    }

    fn call(&mut self, mut request: Request<B>) -> Self::Future {
        request.extensions_mut().insert(BodyAwaited(self.link.clone()));
        let (answer, at_work) = (self.service.call(request), AtWork::on(&self.link));
        Box::pin(async move {
            let answer = answer.await;
            drop(at_work);
            answer
        })
    }
}

/// The bytes of an answer that a client has read since the answer first had to wait for the client.
struct Unread {
    until: Pin<Box<Sleep>>,
    read: u64,
    /// The number of requests that had begun by then. The answer to the next request has a deadline of its own.
    requests: u64,
}

/// A stream that ends when its connection must close for another one, or when its client does not read.
pub(crate) struct WatchedStream<S: Stream> {
    /// The stream and its slot. `None` once this is dropped.
    both: Option<(S, Open)>,
    /// True if the client did not read its answer.
    is_given_up: bool,
    unread: Option<Unread>,
    /// The number of bytes written.
    written: u64,
    /// The permit for the large send buffer.
    reader: Option<OwnedSemaphorePermit>,
}

/// A stream that [`WatchedStream`] can wrap.
pub(crate) trait Stream: Keeps + AsyncRead + AsyncWrite + Unpin + Send + 'static {}

impl<S: Keeps + AsyncRead + AsyncWrite + Unpin + Send + 'static> Stream for S {}

/// A stream whose unread bytes are in a buffer of the kernel.
pub(crate) trait Keeps {
    /// Sets the size of the send buffer.
    fn keep(&self, bytes: usize);

    /// Makes the kernel drop unread bytes when the stream is closed.
    fn forget(&self);

    /// Returns true if the kernel keeps nothing: the client has all bytes, and knows that no more come.
    fn is_gone(&self) -> bool;
}

impl Keeps for TcpStream {
    fn keep(&self, bytes: usize) {
        // With the old buffer, the answer only takes longer.
        let _ = SockRef::from(self).set_send_buffer_size(bytes);
    }

    fn forget(&self) {
        // The call fails if the connection is gone. Then the kernel keeps nothing.
        let _ = SockRef::from(self).set_linger(Some(Duration::ZERO));
    }

    fn is_gone(&self) -> bool {
        // A client that has closed its side may still read answers. A connection without a peer has ended on both sides.
        self.peer_addr().is_err()
    }
}

impl<S: Stream> Drop for WatchedStream<S> {
    /// Lets the client read the rest of its answer, in the slot of the connection. If the connection closes for another one, or its client
    /// does not read, the kernel drops the rest.
    fn drop(&mut self) {
        let Some((stream, open)) = self.both.take() else { return };
        let is_over = self.is_given_up || open.link.is_closed.load(Ordering::Acquire);
        match tokio::runtime::Handle::try_current() {
            Ok(runtime) if !is_over && !stream.is_gone() => drop(runtime.spawn(end(stream, open, self.reader.take()))),
            _ => stream.forget(),
        }
    }
}

/// Ends a connection whose client may still read. It keeps the permit for the large send buffer meanwhile.
async fn end<S: Stream>(mut stream: S, open: Open, _reader: Option<OwnedSemaphorePermit>) {
    let until = Instant::now() + CLOSES_WITHIN;
    // This tells the client that no more bytes come. A failure means that the connection is gone.
    let _ = stream.shutdown().await;
    let (mut unread, mut sends) = ([0; 1_024], true);
    while Instant::now() < until && !open.link.is_closed.load(Ordering::Acquire) && !stream.is_gone() {
        tokio::select! {
            () = poll_fn(|context| open.link.made_place(context)) => {}
            // If nobody read these bytes, the kernel would reset the connection.
            read = stream.read(&mut unread), if sends => sends = matches!(read, Ok(1..)),
            () = sleep(LOOKS_EACH) => {}
        }
    }
    stream.forget();
}

impl<S: Stream> WatchedStream<S> {
    fn of(stream: S, open: Open) -> Self {
        Self { both: Some((stream, open)), is_given_up: false, unread: None, written: 0, reader: None }
    }

    /// Returns the stream, or an error if the connection must close for another one.
    fn checked(&mut self, context: &Context<'_>) -> std::io::Result<&mut S> {
        let closed = || Error::new(ErrorKind::ConnectionAborted, "there are too many connections");
        let (stream, open) = self.both.as_mut().ok_or_else(closed)?;
        if open.link.made_place(context).is_ready() { Err(closed()) } else { Ok(stream) }
    }

    /// Records bytes that the client has sent.
    fn spoke(&self) {
        self.both.iter().for_each(|(_, open)| open.spoke());
    }

    /// Counts bytes that the kernel accepted for the client. A client that has read much gets a larger buffer.
    fn count(&mut self, bytes: usize) {
        self.written = self.written.saturating_add(bytes as u64);
        let Some((stream, open)) = &self.both else { return };
        open.spoke();
        if self.reader.is_none() && self.written > READER_AFTER {
            self.reader = open.connections.0.readers.clone().try_acquire_owned().ok();
            if self.reader.is_some() {
                stream.keep(SENT_OF_READERS);
            }
        }
    }

    /// Returns the result of a write, or an error if the client does not read its answer.
    fn written(
        &mut self,
        context: &mut Context<'_>,
        write: Poll<std::io::Result<usize>>,
    ) -> Poll<std::io::Result<usize>> {
        match write {
            Poll::Ready(Ok(bytes)) => {
                self.count(bytes);
                if let Some(unread) = &mut self.unread {
                    unread.read = unread.read.saturating_add(bytes as u64);
                    if unread.read >= READ_IN_THAT {
                        self.unread = None;
                    }
                }
                write
            }
            Poll::Ready(Err(_)) => write,
            Poll::Pending => {
                let requests = self.both.as_ref().map_or(0, |(_, open)| open.link.requests.load(Ordering::Relaxed));
                self.unread = self.unread.take().filter(|unread| unread.requests == requests);
                let begin = || Unread { until: Box::pin(sleep(UNREAD)), read: 0, requests };
                let unread = self.unread.get_or_insert_with(begin);
                ready!(unread.until.as_mut().poll(context));
                self.is_given_up = true;
                Poll::Ready(Err(Error::new(ErrorKind::TimedOut, "the client does not read its answer")))
            }
        }
    }
}

impl<S: Stream> AsyncRead for WatchedStream<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<std::io::Result<()>> {
        let before = buffer.filled().len();
        ready!(Pin::new(self.checked(context)?).poll_read(context, buffer))?;
        if buffer.filled().len() > before {
            self.spoke();
        }
        Poll::Ready(Ok(()))
    }
}

impl<S: Stream> AsyncWrite for WatchedStream<S> {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, buffer: &[u8]) -> Poll<std::io::Result<usize>> {
        let write = Pin::new(self.checked(context)?).poll_write(context, buffer);
        self.written(context, write)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffers: &[IoSlice<'_>],
    ) -> Poll<std::io::Result<usize>> {
        let write = Pin::new(self.checked(context)?).poll_write_vectored(context, buffers);
        self.written(context, write)
    }

    fn is_write_vectored(&self) -> bool {
        self.both.as_ref().is_some_and(|(stream, _)| stream.is_write_vectored())
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Pin::new(self.checked(context)?).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Pin::new(self.checked(context)?).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{DuplexStream, duplex};
    use tower::ServiceExt as _;

    use super::*;

    fn connections() -> Connections {
        Connections::of(Proxies::of(vec!["10.0.0.0/8".parse().unwrap()]))
    }

    fn peer(address: &str) -> SocketAddr {
        SocketAddr::new(address.parse().unwrap(), 4_000)
    }

    /// Opens this many connections, each from its own address.
    fn of_many(connections: &Connections, many: usize) -> Vec<Open> {
        let address = |number: usize| peer(&format!("192.0.{}.{}", number / 200, number % 200));
        (0..many).map(|number| connections.take(address(number)).unwrap()).collect()
    }

    fn is_open(open: &Open) -> bool {
        !open.link.is_closed.load(Ordering::Acquire)
    }

    #[test]
    fn one_connection_of_an_address_too_many_closes_its_oldest_silent_one() {
        let connections = connections();
        let other = connections.take(peer("192.0.2.9")).unwrap();
        let held: Vec<Open> = (0..OF_ADDRESS).map(|_| connections.take(peer("192.0.2.7")).unwrap()).collect();
        held[0].link.spoke.store(7, Ordering::Relaxed);
        held[1].link.busy.store(1, Ordering::Release);
        let _newer = [2, 3].map(|oldest| {
            let taken = connections.take(peer("192.0.2.7")).unwrap();
            let closed: Vec<usize> = (0..held.len()).filter(|at| !is_open(&held[*at])).collect();
            assert_eq!(closed, (2..=oldest).collect::<Vec<_>>(), "neither one that spoke since nor one at work");
            taken
        });
        assert!(is_open(&other));
        assert_eq!(connections.closed(), 2);
    }

    #[test]
    fn five_hundred_and_twelve_are_open_in_all_and_those_of_proxies_beside_them() {
        let connections = connections();
        let proxy = connections.take(peer("10.1.1.1")).unwrap();
        let held = of_many(&connections, MOST + 3);
        assert_eq!(held.iter().filter(|open| !is_open(open)).count(), 3);
        assert_eq!(connections.0.table.lock().open.len(), MOST + 1);
        let proxies: Vec<Open> = (0..OF_PROXIES).map(|_| connections.take(peer("10.2.2.2")).unwrap()).collect();
        assert!(!is_open(&proxy) && proxies.iter().all(is_open), "proxies make place for each other alone");
        assert_eq!(held.iter().filter(|open| !is_open(open)).count(), 3);
        drop((held, proxies, proxy));
        assert!(connections.0.table.lock().open.is_empty());
    }

    #[test]
    fn who_connects_while_all_others_are_at_work_is_not_taken_in() {
        let connections = connections();
        let held: Vec<Open> = (0..OF_ADDRESS).map(|_| connections.take(peer("192.0.2.7")).unwrap()).collect();
        let work: Vec<AtWork> = held.iter().map(|open| AtWork::on(&open.link)).collect();
        assert!(connections.take(peer("192.0.2.7")).is_none());
        assert!(connections.take(peer("192.0.2.8")).is_some(), "another address is");
        drop(work);
        assert!(connections.take(peer("192.0.2.7")).is_some());
    }

    #[test]
    fn addresses_of_one_network_count_together_where_everybody_has_very_many() {
        let connections = connections();
        let place = |address: &str| connections.place(address.parse().unwrap());
        assert_eq!(place("2001:db8::1"), place("2001:db8::ffff:1:2:3"));
        assert_ne!(place("2001:db8::1"), place("2001:db8:0:1::1"));
        assert_eq!(place("::ffff:192.0.2.7"), place("192.0.2.7"));
        assert_eq!(place("::ffff:10.0.0.1"), Place::Proxies);
    }

    #[tokio::test]
    async fn no_connection_is_taken_from_the_system_while_as_many_are_there_as_may_be() {
        let make = tower::service_fn(|_peer: ()| async { Ok::<_, std::convert::Infallible>(()) });
        let mut paced = Paced::of(make, &connections());
        let mut held = Vec::new();
        for _ in 0..MOST + OF_PROXIES + CLOSING {
            held.push(paced.ready().await.unwrap().call(()).await.unwrap());
        }
        assert!(futures::poll!(std::pin::pin!(paced.ready())).is_pending());
        held.pop();
        assert!(futures::poll!(std::pin::pin!(paced.ready())).is_ready());
    }

    impl Keeps for DuplexStream {
        fn keep(&self, _bytes: usize) {}

        fn forget(&self) {}

        fn is_gone(&self) -> bool {
            true
        }
    }

    fn watched(connections: &Connections, room: usize) -> (WatchedStream<DuplexStream>, DuplexStream) {
        let (stream, client) = duplex(room);
        (WatchedStream::of(stream, connections.take(peer("192.0.2.7")).unwrap()), client)
    }

    #[tokio::test(start_paused = true)]
    async fn an_answer_that_nobody_reads_is_given_up() {
        let (mut stream, _client) = watched(&connections(), 1_024);
        let began = Instant::now();
        let error = stream.write_all(&[0; 4_096]).await.unwrap_err();
        assert_eq!((error.kind(), began.elapsed() >= UNREAD), (ErrorKind::TimedOut, true));
    }

    #[tokio::test(start_paused = true)]
    async fn an_answer_that_is_read_byte_by_byte_is_given_up_and_one_that_is_read_steadily_is_not() {
        for (pause, is_read) in [(Duration::from_millis(200), false), (Duration::from_millis(100), true)] {
            let (mut stream, mut client) = watched(&connections(), 1_024);
            let reading = tokio::spawn(async move {
                let mut bytes = [0; 512];
                while let Ok(1..) = client.read(&mut bytes).await {
                    sleep(pause).await;
                }
            });
            assert_eq!(stream.write_all(&vec![0; 1 << 20]).await.is_ok(), is_read, "{pause:?}");
            drop(stream);
            reading.await.unwrap();
        }
    }

    #[tokio::test(start_paused = true)]
    async fn the_next_answer_of_a_connection_has_a_time_of_its_own() {
        let (mut stream, mut client) = watched(&connections(), 1_024);
        for _ in 0..3 {
            drop(AtWork::on(&stream.both.as_ref().unwrap().1.link));
            let mut read = vec![0; 4_096];
            let (written, _) = tokio::join!(stream.write_all(&[0; 4_096]), client.read_exact(&mut read));
            written.unwrap();
            sleep(2 * UNREAD).await;
        }
    }

    /// Returns the buffer sizes that were set. The kernel reports the double.
    fn kept(stream: &WatchedStream<TcpStream>) -> (usize, usize) {
        let socket = SockRef::from(&stream.both.as_ref().unwrap().0);
        (socket.recv_buffer_size().unwrap() / 2, socket.send_buffer_size().unwrap() / 2)
    }

    #[tokio::test]
    async fn the_system_keeps_little_of_a_connection_until_its_client_has_read_much() {
        let (connections, listener) = (connections(), tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap());
        let most = std::fs::read_to_string("/proc/sys/net/core/wmem_max")
            .map_or(usize::MAX, |most| most.trim().parse().unwrap());
        let acceptor = BoundedAcceptor(connections.clone());
        let _others = connections.0.readers.clone().try_acquire_many_owned(READERS as u32 - 1).unwrap();
        let mut held = Vec::new();
        for sent in [SENT_OF_READERS.min(most), SENT] {
            let mut client = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
            let (mut stream, _) = acceptor.accept(listener.accept().await.unwrap().0, ()).await.unwrap();
            assert_eq!(kept(&stream), (RECEIVED, SENT));
            let answer = vec![0; 2 * READER_AFTER as usize];
            let mut read = answer.clone();
            let (written, _) = tokio::join!(stream.write_all(&answer), client.read_exact(&mut read));
            written.unwrap();
            assert_eq!(kept(&stream), (RECEIVED, sent));
            held.push((stream, client));
        }
        drop(held);
        while connections.0.readers.available_permits() == 0 {
            sleep(LOOKS_EACH).await;
        }
    }

    /// Returns a connection with an answer that its client has not read.
    async fn answered(connections: &Connections) -> (WatchedStream<TcpStream>, TcpStream) {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let socket = tokio::net::TcpSocket::new_v4().unwrap();
        socket.set_recv_buffer_size(4_096).unwrap();
        let client = socket.connect(listener.local_addr().unwrap()).await.unwrap();
        let acceptor = BoundedAcceptor(connections.clone());
        let (mut stream, _) = acceptor.accept(listener.accept().await.unwrap().0, ()).await.unwrap();
        stream.write_all(&[7; SENT]).await.unwrap();
        (stream, client)
    }

    fn open(connections: &Connections) -> usize {
        connections.0.table.lock().open.len()
    }

    #[tokio::test]
    async fn a_connection_keeps_its_place_until_its_client_has_read_the_last_answer() {
        for closes_first in [true, false] {
            let connections = connections();
            let (stream, mut client) = answered(&connections).await;
            if closes_first {
                client.shutdown().await.unwrap();
            }
            drop(stream);
            sleep(5 * LOOKS_EACH).await;
            assert_eq!(open(&connections), 1, "a client that sends no more may still read");
            let mut all = Vec::new();
            client.read_to_end(&mut all).await.unwrap();
            assert_eq!(all.len(), SENT);
            drop(client);
            while open(&connections) > 0 {
                sleep(LOOKS_EACH).await;
            }
        }
    }

    #[tokio::test]
    async fn the_last_answer_of_a_connection_that_makes_place_is_forgotten() {
        let connections = connections();
        let (stream, mut client) = answered(&connections).await;
        client.shutdown().await.unwrap();
        let link = stream.both.as_ref().unwrap().1.link.clone();
        drop(stream);
        link.close();
        while open(&connections) > 0 {
            sleep(LOOKS_EACH).await;
        }
        let mut all = Vec::new();
        assert_eq!(client.read_to_end(&mut all).await.unwrap_err().kind(), ErrorKind::ConnectionReset);
    }

    #[test]
    fn a_connection_that_waits_for_a_body_makes_place_for_another() {
        let connections = connections();
        let held: Vec<Open> = (0..OF_ADDRESS).map(|_| connections.take(peer("192.0.2.7")).unwrap()).collect();
        let work: Vec<AtWork> = held.iter().map(|open| AtWork::on(&open.link)).collect();
        let waiting = BodyAwaited(held[3].link.clone());
        let waits = waiting.begin();
        assert!(connections.take(peer("192.0.2.7")).is_some());
        assert!(!is_open(&held[3]) && held.iter().filter(|open| is_open(open)).count() == OF_ADDRESS - 1);
        drop((waits, work));
        assert!(held.iter().all(|open| open.link.busy.load(Ordering::Acquire) == 0));
    }

    #[tokio::test]
    async fn a_connection_that_makes_place_ends_while_it_waits() {
        let connections = connections();
        let (mut stream, _client) = watched(&connections, 1_024);
        let (mut byte, link) = ([0], stream.both.as_ref().unwrap().1.link.clone());
        let (read, ()) = tokio::join!(stream.read(&mut byte), async { link.close() });
        assert_eq!(read.unwrap_err().kind(), ErrorKind::ConnectionAborted);
    }
}
