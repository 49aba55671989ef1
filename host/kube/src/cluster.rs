//! The Cluster port: everything the host reads from and writes to a Kubernetes API goes through a [`Cluster`].
//!
//! Takes a client, a clock and an identity; yields observations and carries out what was decided. May not decide, and
//! may not know that plugins exist.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use kube::Client;
use oarlock_core::cluster::object::Kind;
use oarlock_core::cluster::store::Store;
use oarlock_core::cluster::writes::{EventNote, JobKey};
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

use crate::call::Caller;
use crate::clock::{Clock, ServerClock};
use crate::events::{EventCounts, Events};
use crate::feed::{Declared, Feed, News, Objects};
use crate::gate::Gate;
use crate::health::KindHealth;
use crate::jobs::Jobs;
use crate::requests::Requests;
use crate::served::Served;

/// After this the outcome of a request is unknown (spec section 10).
pub const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);

/// What a [`Cluster`] is made of.
pub struct Setup {
    /// The client; [`crate::client::connect`] makes one that never repeats a request.
    pub client: Client,
    /// The host's own clock.
    pub clock: Clock,
    /// Who this process is: the pod's name. Named in events.
    pub identity: String,
}

/// The Cluster port. Cheap to clone; must be made within a tokio runtime.
#[derive(Clone)]
pub struct Cluster {
    pub(crate) link: Link,
    feed: Arc<Feed>,
    events: Arc<Events>,
}

/// What the parts of the port share.
#[derive(Clone)]
pub(crate) struct Link {
    pub(crate) caller: Caller,
    pub(crate) served: Arc<Served>,
    pub(crate) objects: Objects,
    pub(crate) jobs: Arc<Jobs>,
    pub(crate) gate: Arc<Gate>,
}

impl Cluster {
    /// A port that watches nothing yet, and the news of what it will watch.
    pub fn open(setup: Setup) -> (Self, UnboundedReceiver<News>) {
        let Setup { client, clock, identity } = setup;
        let (news, heard) = unbounded_channel();
        let caller =
            Caller { client, clock: ServerClock::new(clock), requests: Arc::default(), timeout: REQUEST_TIMEOUT };
        let link = Link {
            caller,
            served: Arc::default(),
            objects: Objects::new(news.clone()),
            jobs: Arc::new(Jobs::new(news)),
            gate: Arc::default(),
        };
        let events = Arc::new(Events::start(&link, identity));
        (Self { link, feed: Arc::default(), events }, heard)
    }

    /// Watches the jobs and exactly these kinds from now on. Resolves once all of them were listed with what is
    /// declared; until then the [`Store`] shows newly declared kinds and fields incompletely. What was declared alike
    /// before goes on undisturbed.
    pub async fn declare(&self, declared: Declared) {
        self.feed.declare(&self.link, declared).await;
    }

    /// Resolves once everything that is watched now was listed.
    pub async fn synced(&self) {
        self.feed.synced().await;
    }

    /// How each watch is doing.
    pub fn health(&self) -> Vec<KindHealth> {
        self.feed.health()
    }

    /// The watched objects.
    pub fn store(&self) -> &Arc<Store> {
        &self.link.objects.store
    }

    /// The keys of all jobs that are known.
    pub fn jobs(&self) -> Vec<JobKey> {
        self.link.jobs.keys()
    }

    /// The UIDs of all jobs that are known.
    pub fn job_uids(&self) -> BTreeSet<String> {
        self.link.jobs.uids()
    }

    /// Why a job cannot be read as it is stored; its spec is then left out of what [`Cluster::observe`] yields.
    pub fn unreadable(&self, key: &JobKey) -> Option<String> {
        self.link.jobs.peek(key)?.unreadable
    }

    /// Whether the API server serves a kind, as far as is known: declared kinds are asked for every minute.
    pub fn serves(&self, kind: &Kind) -> bool {
        self.link.served.serves(kind)
    }

    /// The time that is compared with timestamps of the API server.
    pub fn clock(&self) -> &ServerClock {
        &self.link.caller.clock
    }

    /// The requests so far.
    pub fn requests(&self) -> &Arc<Requests> {
        &self.link.caller.requests
    }

    /// How many writes may be in flight now: fewer than 32 while the API server is busy.
    pub fn writes_allowed(&self) -> usize {
        self.link.gate.limit()
    }

    /// Emits events in the background, best effort.
    pub fn emit(&self, notes: Vec<EventNote>) {
        self.events.emit(notes);
    }

    /// What became of the events so far.
    pub fn events(&self) -> EventCounts {
        self.events.counts()
    }

    /// Stops watching and waits at most `bound` for events that are still queued.
    pub async fn stop(&self, bound: Duration) {
        self.feed.stop();
        self.events.drain(bound).await;
    }
}
