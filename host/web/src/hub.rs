//! The open pages. All viewers with the same sight of an address share one page, which is rendered once for each change.
//!
//! A page is rendered at most once a second, and viewers share the bytes of its changes. Nothing queues for a slow viewer: whenever its connection has room, it gets the changes from
//! what it has to what is newest then.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use axum::body::Bytes;
use oarlock_core::object::memory::{MemoryBudget, NamespaceShares};
use oarlock_page::{PageAddress, PageContent, StreamEvent};
use parking_lot::Mutex;
use tokio::sync::watch;
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;

use crate::shown::Shown;
use crate::sight::Sight;

/// The shortest time between two contents of a page.
const AT_MOST_EVERY: Duration = Duration::from_secs(1);
/// The longest time between two looks at what may have changed beside objects.
const LOOK_AGAIN: Duration = Duration::from_secs(5);
/// How long a page without viewers is kept, so that a browser that opens its stream gets only the changes.
const KEPT: Duration = Duration::from_secs(60);
/// The memory limit from which the room for pages follows: a quarter of it, which is 64 MiB. Viewers of one namespace may take a quarter of
/// the room.
const MEMORY: u64 = 256 * 1024 * 1024;
/// The number of contents that a page remembers, for browsers that open their stream a little late.
const RECENT: usize = 4;
/// The number of changes to the newest content whose bytes a page remembers. Most viewers have the content before it.
const CHANGES: usize = 2;

/// An address, and the part of it that its viewers may see.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Scene {
    /// The address as text.
    pub(crate) address: String,
    /// The part that the viewers may see.
    pub(crate) sight: Sight,
}

/// A page that some viewers look at.
pub(crate) struct OpenPage {
    address: PageAddress,
    sight: Sight,
    newest: watch::Sender<Arc<PageContent>>,
    recent: Mutex<VecDeque<(String, Arc<PageContent>)>>,
    changes: Mutex<Vec<PageChange>>,
    used: Mutex<Instant>,
    /// The key of the viewer who opened the page, and the bytes that count for it.
    counted: Mutex<(String, usize)>,
}

/// The bytes of the events that turn one content of a page into another one.
struct PageChange {
    before: Arc<PageContent>,
    now: Arc<PageContent>,
    /// The place of the page in the stream, which the events have.
    of: usize,
    bytes: Bytes,
}

impl OpenPage {
    /// Returns a page that nobody looks at yet. `key` is the key whose quota it uses.
    fn new(address: &PageAddress, sight: &Sight, content: PageContent, key: &str) -> Self {
        let content = Arc::new(content);
        Self {
            address: address.clone(),
            sight: sight.clone(),
            recent: Mutex::new(VecDeque::from([(content.version(), content.clone())])),
            changes: Mutex::default(),
            newest: watch::Sender::new(content),
            used: Mutex::new(Instant::now()),
            counted: Mutex::new((key.to_owned(), 0)),
        }
    }

    /// Returns the newest content, and reports later ones.
    pub(crate) fn watch(&self) -> watch::Receiver<Arc<PageContent>> {
        *self.used.lock() = Instant::now();
        self.newest.subscribe()
    }

    /// Returns the newest content.
    pub(crate) fn newest(&self) -> Arc<PageContent> {
        *self.used.lock() = Instant::now();
        self.newest.borrow().clone()
    }

    /// Returns the content with this version, if the page remembers it.
    pub(crate) fn with_version(&self, version: &str) -> Option<Arc<PageContent>> {
        self.recent.lock().iter().find(|(known, _)| known == version).map(|(_, content)| content.clone())
    }

    /// Returns the bytes of the events that turn one content into another one. `of` is the place of the page in the stream.
    pub(crate) fn changes(&self, before: &Arc<PageContent>, now: &Arc<PageContent>, of: usize) -> Bytes {
        let mut changes = self.changes.lock();
        changes.retain(|known| Arc::ptr_eq(&known.now, now));
        if let Some(known) = changes.iter().find(|known| known.of == of && Arc::ptr_eq(&known.before, before)) {
            return known.bytes.clone();
        }
        let bytes = Bytes::from(now.changes_since(before, of).iter().map(StreamEvent::wire).collect::<String>());
        if changes.len() < CHANGES {
            changes.push(PageChange { before: before.clone(), now: now.clone(), of, bytes: bytes.clone() });
        }
        bytes
    }

    fn take(&self, content: PageContent) {
        let (version, content) = (content.version(), Arc::new(content));
        let mut recent = self.recent.lock();
        if recent.back().is_some_and(|(last, _)| *last == version) {
            return;
        }
        recent.push_back((version, content.clone()));
        if recent.len() > RECENT {
            recent.pop_front();
        }
        drop(recent);
        self.newest.send_replace(content);
    }

    fn is_idle(&self) -> bool {
        self.newest.receiver_count() == 0 && self.used.lock().elapsed() > KEPT
    }
}

/// The open pages of a process.
pub(crate) struct Hub {
    shown: Arc<Shown>,
    pages: Mutex<Pages>,
}

struct Pages {
    open: HashMap<Scene, Arc<OpenPage>>,
    shares: NamespaceShares,
}

impl Default for Pages {
    fn default() -> Self {
        let room = MemoryBudget::default();
        room.bound(MEMORY);
        Self { open: HashMap::new(), shares: NamespaceShares::within(&room) }
    }
}

impl Pages {
    /// Counts the bytes of a page. Returns false if there is no room for it.
    fn count(&mut self, page: &OpenPage, bytes: usize) -> bool {
        let mut counted = page.counted.lock();
        let is_admitted = self.shares.admit(&counted.0, counted.1, bytes).is_ok();
        counted.1 = if is_admitted { bytes } else { 0 };
        is_admitted
    }

    /// Drops the pages to which this applies.
    fn shed(&mut self, is_over: impl Fn(&OpenPage) -> bool) {
        let Self { open, shares } = self;
        open.retain(|_, page| {
            let is_over = is_over(page);
            if is_over {
                let (key, bytes) = &*page.counted.lock();
                shares.count(key, *bytes, 0);
            }
            !is_over
        });
    }
}

/// Returns the bytes of a page, with those of the contents and changes that it remembers.
fn bytes_of(content: &PageContent) -> usize {
    content.fragments().map(|fragment| fragment.html.len()).sum::<usize>().saturating_mul(RECENT + CHANGES)
}

impl Hub {
    /// Returns a hub without pages.
    pub(crate) fn new(shown: Arc<Shown>) -> Self {
        Self { shown, pages: Mutex::default() }
    }

    /// Returns the page of an address as viewers with this sight see it. `key` is the key whose quota the page uses. Returns `None` if the
    /// viewers of this key, or all viewers, have too many pages open.
    pub(crate) fn open(&self, address: &PageAddress, sight: Sight, key: &str) -> Option<Arc<OpenPage>> {
        let scene = Scene { address: address.to_string(), sight };
        if let Some(page) = self.pages.lock().open.get(&scene) {
            return Some(page.clone());
        }
        let content = self.shown.content(address, &scene.sight);
        let bytes = bytes_of(&content);
        let page = Arc::new(OpenPage::new(address, &scene.sight, content, key));
        let mut pages = self.pages.lock();
        if !pages.count(&page, bytes) {
            pages.shed(|page| page.newest.receiver_count() == 0);
            if !pages.count(&page, bytes) {
                return None;
            }
        }
        if let Some(other) = pages.open.insert(scene, page.clone()) {
            let (key, bytes) = &*other.counted.lock();
            pages.shares.count(key, *bytes, 0);
        }
        Some(page)
    }

    /// Keeps the pages up to date until `stop`.
    pub(crate) async fn run(self: Arc<Self>, stop: CancellationToken) {
        loop {
            let next = async {
                tokio::select! {
                    () = self.shown.changed() => {}
                    // Some pages depend on the time or on the leader, not only on objects.
                    () = sleep(LOOK_AGAIN) => {}
                }
            };
            if stop.run_until_cancelled(next).await.is_none() {
                return;
            }
            let hub = self.clone();
            // Rendering a job of 10,000 targets takes milliseconds, in which this process answers others.
            if let Err(error) = tokio::task::spawn_blocking(move || hub.render()).await {
                tracing::error!(%error, "rendering the pages panicked");
            }
            if stop.run_until_cancelled(sleep(AT_MOST_EVERY)).await.is_none() {
                return;
            }
        }
    }

    /// Renders the pages that show a changed object.
    fn render(&self) {
        let changed = self.shown.take_changes();
        let pages: Vec<Arc<OpenPage>> = {
            let mut pages = self.pages.lock();
            pages.shed(OpenPage::is_idle);
            pages.open.values().cloned().collect()
        };
        for page in pages {
            if self.shown.concerns(&page.address, &changed) {
                let content = self.shown.content(&page.address, &page.sight);
                // A page that grows beyond the room stays until its viewers go.
                let _ = self.pages.lock().count(&page, bytes_of(&content));
                page.take(content);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::jiff::Timestamp;
    use oarlock_page::{JobQuery, list_content};

    use super::*;

    #[test]
    fn viewers_share_the_bytes_of_a_change_and_each_gets_the_changes_of_its_own_content() {
        let query = JobQuery::default();
        let content = |text: &str| {
            Arc::new(list_content([], &JobQuery { text: text.to_owned(), ..query.clone() }, Timestamp::UNIX_EPOCH))
        };
        let [old, older, now] = ["a", "b", "c"].map(content);
        let page = OpenPage::new(&PageAddress::Jobs(query.clone()), &Sight::Whole, (*old).clone(), "viewer");
        let first = page.changes(&old, &now, 0);
        assert_eq!(page.changes(&old, &now, 0).as_ptr(), first.as_ptr());
        for (before, of) in [(&old, 1), (&older, 0), (&older, 2)] {
            let wire: String = now.changes_since(before, of).iter().map(StreamEvent::wire).collect();
            assert_eq!(page.changes(before, &now, of), wire.as_bytes());
        }
        assert!(page.changes.lock().len() <= CHANGES);
        page.changes(&now, &older, 0);
        assert_eq!(page.changes.lock().len(), 1, "the page forgets changes to an older content");
    }

    #[tokio::test]
    async fn a_viewer_who_opens_very_many_pages_takes_no_room_of_others() {
        let query = JobQuery::default();
        let page = |key: &str| {
            let content = list_content([], &query, Timestamp::UNIX_EPOCH);
            OpenPage::new(&PageAddress::Jobs(query.clone()), &Sight::Whole, content, key)
        };
        let (mut pages, megabyte) = (Pages::default(), 1024 * 1024);
        let opened = |pages: &mut Pages, key: &str| (0..100).filter(|_| pages.count(&page(key), megabyte)).count();
        assert_eq!((opened(&mut pages, "many"), opened(&mut pages, "few")), (16, 16));
        let gone = page("many");
        assert!(!pages.count(&gone, megabyte), "the room of this viewer is used up");
    }
}
