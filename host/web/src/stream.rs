//! The stream of events of a browser: the changes of up to 20 pages, as long as the viewer may see them.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body, Bytes};
use futures::future::{Either, select, select_all};
use futures::stream;
use oarlock_page::{PageAddress, PageContent, StreamEvent};
use tokio::sync::watch;
use tokio::time::{Instant, interval, sleep_until};

use crate::hub::OpenPage;
use crate::sight::{Sight, SightFailed, sight};
use crate::slots::PageSlot;
use crate::state::WebState;
use crate::viewer::{NoViewer, PageViewer};

/// The time between two signs of life.
const BEAT: Duration = Duration::from_secs(15);
/// The time between two checks of the viewer's rights.
const ASKED_AGAIN: Duration = Duration::from_secs(10);
/// The most streams at one time: of one user or namespace, and of all.
pub(crate) const STREAMS: (usize, usize) = (128, 512);

/// A page in a stream, as a browser asks for it.
pub(crate) struct Followed {
    /// The page. `None` if the text of the browser is no address.
    pub(crate) address: Option<PageAddress>,
    /// The version that the browser shows.
    pub(crate) version: String,
}

/// A page of which a stream sends the changes.
struct Subscription {
    address: PageAddress,
    page: Arc<OpenPage>,
    newest: watch::Receiver<Arc<PageContent>>,
    /// The content that the browser has.
    has: Option<Arc<PageContent>>,
}

/// The state of a stream between two chunks.
struct Sending {
    web: Arc<WebState>,
    viewer: PageViewer,
    /// The pages, by their places in the query. `None` for a page that the viewer may not see.
    pages: Vec<Option<Subscription>>,
    /// The bytes of the events that the connection has not taken yet.
    ready: VecDeque<Bytes>,
    beat: tokio::time::Interval,
    ask: Instant,
    is_over: bool,
    _slot: PageSlot,
}

/// Returns the body of a stream with the changes of these pages.
pub(crate) async fn body(web: Arc<WebState>, viewer: PageViewer, followed: Vec<Followed>, slot: PageSlot) -> Body {
    let mut sending = Sending {
        beat: interval(BEAT),
        ask: Instant::now() + ASKED_AGAIN,
        web,
        viewer,
        pages: Vec::new(),
        ready: VecDeque::new(),
        is_over: false,
        _slot: slot,
    };
    for Followed { address, version } in followed {
        let subscription = match address {
            Some(address) => sending.subscribe(address, &version).await,
            None => None,
        };
        sending.pages.push(subscription);
    }
    Body::from_stream(stream::unfold(sending, |mut sending| async {
        let chunk = sending.next().await?;
        Some((Ok::<_, Infallible>(chunk), sending))
    }))
}

impl Sending {
    /// Returns the page, if the viewer may see it. Otherwise the stream of the page ends.
    async fn subscribe(&mut self, address: PageAddress, version: &str) -> Option<Subscription> {
        let of = self.pages.len();
        let page = match sight(&self.web.rest, &self.viewer, &address).await {
            Ok(sight) => self.web.open(&self.viewer, &address, sight).map_err(|refusal| refusal.message),
            Err(failed) => Err(failed.sentence()),
        };
        match page {
            Ok(page) => Some(Subscription { newest: page.watch(), has: page.with_version(version), page, address }),
            Err(text) => {
                self.send(&StreamEvent::End { of: Some(of), text });
                None
            }
        }
    }

    /// Returns the next bytes, once there are any. Returns `None` at the end of the stream.
    async fn next(&mut self) -> Option<Bytes> {
        loop {
            if let Some(bytes) = self.ready.pop_front() {
                return Some(bytes);
            }
            if self.is_over {
                return None;
            }
            self.collect();
            if self.ready.is_empty() {
                self.wait().await;
            }
        }
    }

    /// Collects the changes of all pages since the browser got the last ones.
    fn collect(&mut self) {
        for (of, page) in self.pages.iter_mut().enumerate() {
            let Some(page) = page else { continue };
            let newest = page.newest.borrow_and_update().clone();
            match &page.has {
                Some(has) if Arc::ptr_eq(has, &newest) => {}
                Some(has) => {
                    let bytes = page.page.changes(has, &newest, of);
                    self.ready.extend(Some(bytes).filter(|bytes| !bytes.is_empty()));
                }
                None => self.ready.push_back(Bytes::from(StreamEvent::Resync { of }.wire())),
            }
            page.has = Some(newest);
        }
    }

    /// Waits for a change, for the next sign of life, or for the next check of rights.
    async fn wait(&mut self) {
        let now = self.web.now();
        if now >= self.viewer.until {
            let text = "The session has ended. Log in again.".to_owned();
            return self.end(&StreamEvent::End { of: None, text });
        }
        let changed = self.pages.iter_mut().flatten().map(|page| Box::pin(page.newest.changed()));
        let changed: Vec<_> = changed.collect();
        let changed =
            async { if changed.is_empty() { std::future::pending().await } else { drop(select_all(changed).await) } };
        let turn = async {
            tokio::select! {
                _ = self.beat.tick() => Turn::Beat,
                () = sleep_until(self.ask) => Turn::Ask,
                () = self.web.stop.cancelled() => Turn::Stop,
            }
        };
        let turn = match select(pin!(changed), pin!(turn)).await {
            Either::Left(_) => return,
            Either::Right((turn, _)) => turn,
        };
        match turn {
            Turn::Beat => self.send(&StreamEvent::Beat),
            Turn::Ask => self.ask_again().await,
            // The browser opens a new stream, from another server if there is one.
            Turn::Stop => self.is_over = true,
        }
    }

    fn send(&mut self, event: &StreamEvent) {
        self.ready.push_back(Bytes::from(event.wire()));
    }

    fn end(&mut self, event: &StreamEvent) {
        self.send(event);
        self.is_over = true;
    }

    /// Ends the streams of pages that the viewer may no longer see.
    async fn ask_again(&mut self) {
        self.ask = Instant::now() + ASKED_AGAIN;
        if let Err(NoViewer::Expired(text)) = self.viewer.check(&self.web.rest).await {
            return self.end(&StreamEvent::End { of: None, text });
        }
        let addresses: Vec<_> = self.pages.iter().map(|page| page.as_ref().map(|page| page.address.clone())).collect();
        for (of, address) in addresses.into_iter().enumerate() {
            let Some(address) = address else { continue };
            match sight(&self.web.rest, &self.viewer, &address).await {
                Ok(sight) => self.see(of, &address, sight),
                Err(SightFailed::Unanswered(_)) => {}
                Err(failed) => {
                    self.send(&StreamEvent::End { of: Some(of), text: failed.sentence() });
                    if let Some(page) = self.pages.get_mut(of) {
                        *page = None;
                    }
                }
            }
        }
    }

    /// Shows a page from now on as far as this sight goes.
    fn see(&mut self, of: usize, address: &PageAddress, sight: Sight) {
        let Some(Some(page)) = self.pages.get_mut(of) else { return };
        // Without room for the other page, the next check tries again. The browser then has the last content.
        let Ok(open) = self.web.open(&self.viewer, address, sight) else { return };
        page.newest = open.watch();
        page.page = open;
    }
}

/// The event that a stream waits for beside changes.
enum Turn {
    Beat,
    Ask,
    Stop,
}
