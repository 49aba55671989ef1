//! Keeping one kind in memory up to date: list, then watch, for ever.
//!
//! A watch that was cut off is resumed where it ended; one that is too old (410, in the reply or in the stream) begins
//! anew with a list.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use kube::core::params::WatchParams;
use oarlock_core::cluster::memory::NamespaceShares;
use oarlock_core::cluster::object::Kind;
use parking_lot::Mutex;
use serde::de::{DeserializeSeed, Deserializer, Error as _, IgnoredAny, MapAccess, Visitor};
use serde_json::Value;
use tokio::time::{Instant, sleep, timeout_at};

use crate::cluster::Link;
use crate::outcome::sentence;
use crate::transport::call::{ApiCall, RequestError};
use crate::transport::discovery::DiscoverError;
use crate::transport::list::{Collection, ListError};
use crate::watch::health::WatchHealth;
use crate::watch::projection::{Bounded, Document, Projection};

/// Time for which the server keeps a watch open. A dead connection is noticed a little after this.
const WATCH_SECONDS: u32 = 55;
/// Time after which a watch that the server should have ended is given up.
const WATCH_GIVEN_UP: Duration = Duration::from_secs(65);
/// A watch that lasted this long was a good one.
const GOOD_WATCH: Duration = Duration::from_secs(5);
/// Time after which a kind that is not served is asked for again.
const UNSERVED: Duration = Duration::from_secs(60);
/// Longest part of a watch that is held until its line ends: far more than any object has.
const MOST_PENDING: usize = 16 * 1024 * 1024;
const FIRST_PAUSE: Duration = Duration::from_millis(200);
const LONGEST_PAUSE: Duration = Duration::from_secs(30);

/// The place in memory for the objects of one kind.
pub(crate) trait ItemSink: Send + Sync + 'static {
    /// The kept part of an object.
    type Item: Send;
    /// The projection that documents are read with.
    fn projection(&self) -> Arc<Projection>;
    /// The kept part of a document; `None` where the document is no object.
    fn pick(&self, document: Value) -> Option<Self::Item>;
    /// The part of an item of a list for which there is room beside those that were listed before. Until the list is whole, none of
    /// them is in the cache, which looks for that itself.
    fn fitting(&self, item: Self::Item, _listed: &mut NamespaceShares) -> Self::Item {
        item
    }
    /// Takes a whole list.
    fn listed(&self, items: Vec<Self::Item>, version: u64);
    /// Takes an object that was made or changed.
    fn changed(&self, item: Self::Item);
    /// Takes the last view of an object that is gone.
    fn deleted(&self, item: Self::Item);
}

/// Keeps one kind up to date.
pub(crate) struct Reflector<S> {
    pub(crate) link: Link,
    pub(crate) kind: Kind,
    pub(crate) sink: S,
    pub(crate) health: WatchHealth,
}

/// The error that ended a list and its watches.
#[derive(Debug, thiserror::Error)]
enum ReflectError {
    #[error(transparent)]
    Find(DiscoverError),
    #[error(transparent)]
    List(ListError),
    #[error("failed to watch")]
    Watch(#[source] RequestError),
    #[error("the watch is too old")]
    Expired,
}

/// The end of a watch that can be resumed.
enum Ended {
    /// By the server, or quiet for too long.
    Over,
    /// With this answer or break.
    Broken(String),
}

/// One event.
#[derive(Default)]
struct Line {
    event: String,
    object: Value,
}

impl Document for Line {
    fn document(&mut self) -> &mut Value {
        &mut self.object
    }
}

/// Reads one event and the kept part of its object.
struct LineOf<'a>(Bounded<'a>);

impl<'de> DeserializeSeed<'de> for LineOf<'_> {
    type Value = Line;
    fn deserialize<D: Deserializer<'de>>(self, reader: D) -> Result<Line, D::Error> {
        reader.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for LineOf<'_> {
    type Value = Line;
    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an event with type and object")
    }
    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Line, A::Error> {
        let mut line = Line::default();
        while let Some(key) = map.next_key::<String>()? {
            match key.as_str() {
                "type" => line.event = map.next_value()?,
                "object" => line.object = map.next_value_seed(self.0)?,
                _ => drop(map.next_value::<IgnoredAny>()?),
            }
        }
        if line.event.is_empty() { Err(A::Error::missing_field("type")) } else { Ok(line) }
    }
}

impl<S: ItemSink> Reflector<S> {
    /// Runs until it is aborted.
    pub(crate) async fn run(self) {
        let mut pause = FIRST_PAUSE;
        loop {
            let begun = Instant::now();
            let error = match self.list_and_watch().await {
                Ok(never) => match never {},
                Err(error) => error,
            };
            if begun.elapsed() >= GOOD_WATCH {
                pause = FIRST_PAUSE;
            }
            let wait = match &error {
                ReflectError::Find(DiscoverError::NotServed { .. }) => {
                    self.sink.listed(Vec::new(), u64::MAX);
                    self.health.unserved();
                    UNSERVED
                }
                ReflectError::List(error) => {
                    self.health.unlisted(error.is_refused());
                    pause
                }
                _ => pause,
            };
            let message = sentence(&error);
            match &error {
                ReflectError::Expired | ReflectError::Find(DiscoverError::NotServed { .. }) => {
                    tracing::debug!(kind = %self.kind.kind, error = message, "listing the kind anew");
                }
                _ => self.tell_outage(&message),
            }
            self.health.failed(message);
            sleep(wait).await;
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
    }

    /// Logs that requests fail, once for each outage.
    fn tell_outage(&self, message: &str) {
        if self.health.begin_outage() {
            tracing::warn!(kind = %self.kind.kind, error = message, "failed to list or watch the kind; trying until it works");
        } else {
            tracing::debug!(kind = %self.kind.kind, error = message, "failed to list or watch the kind; trying again");
        }
    }

    /// Notes that the watch was answered or had an event, and logs the end of an outage.
    fn heard(&self) {
        if let Some(lasted) = self.health.heard() {
            let seconds = lasted.as_secs();
            tracing::info!(kind = %self.kind.kind, seconds, "the kind is watched again; the outage is over");
        }
    }

    async fn list_and_watch(&self) -> Result<std::convert::Infallible, ReflectError> {
        let resource =
            self.link.discovery.resource(&self.link.transport, &self.kind).await.map_err(ReflectError::Find)?;
        let from = Collection { resource: &resource, namespace: None, labels: None, fields: None };
        let projection = self.sink.projection();
        let shares = Mutex::new(NamespaceShares::within(&self.link.listing));
        let fitting = |item| Some(self.sink.fitting(self.sink.pick(item)?, &mut shares.lock()));
        let listed = self.link.transport.list(from, &projection, fitting).await;
        let listed = listed.map_err(ReflectError::List)?;
        let mut version = listed.version.clone();
        let number = listed.number();
        self.sink.listed(listed.items, number);
        self.health.listed();
        let mut pause = FIRST_PAUSE;
        loop {
            let begun = Instant::now();
            let ended = self.watch(from, &mut version).await?;
            if begun.elapsed() >= GOOD_WATCH {
                pause = FIRST_PAUSE;
                continue;
            }
            if let Ended::Broken(message) = ended {
                self.health.failed(message);
            }
            sleep(pause).await;
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
    }

    /// One watch from `version` on, which it moves along.
    async fn watch(&self, from: Collection<'_>, version: &mut String) -> Result<Ended, ReflectError> {
        let resource = from.resource;
        let path = resource.collection(from.namespace).unwrap_or_default();
        let params = WatchParams::default().timeout(WATCH_SECONDS);
        let request = kube::core::Request::new(path).watch(&params, version);
        let call = ApiCall { verb: "watch", resource: &resource.plural, request };
        let mut chunks = match self.link.transport.open(call).await {
            Ok(chunks) => chunks,
            Err(error) if error.is(410) => return Err(ReflectError::Expired),
            Err(error) if error.is(404) || error.is(403) => return Err(ReflectError::Watch(error)),
            Err(error) => {
                let message = sentence(&error);
                self.tell_outage(&message);
                return Ok(Ended::Broken(message));
            }
        };
        self.heard();
        let deadline = Instant::now() + WATCH_GIVEN_UP;
        let (mut pending, projection) = (Vec::new(), self.sink.projection());
        while let Ok(Some(chunk)) = timeout_at(deadline, chunks.next()).await {
            match chunk {
                Ok(chunk) => pending.extend_from_slice(&chunk),
                Err(error) => return Ok(Ended::Broken(sentence(&error))),
            }
            self.heard();
            if pending.len() > MOST_PENDING {
                return Err(ReflectError::Expired);
            }
            let whole = pending.iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);
            let lines: Vec<u8> = pending.drain(..whole).collect();
            for line in lines.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()) {
                self.take(line, &projection, version)?;
            }
        }
        Ok(Ended::Over)
    }

    fn take(&self, line: &[u8], projection: &Projection, version: &mut String) -> Result<(), ReflectError> {
        let Line { event, object } = match projection.read_as(line, |seed, reader| LineOf(seed).deserialize(reader)) {
            Ok(line) => line,
            Err(error) => return Err(ReflectError::Watch(RequestError::Unreadable(error))),
        };
        if event == "ERROR" {
            // Whatever the error is, events may be missing before it: begin anew.
            tracing::debug!(kind = %self.kind.kind, %object, "the watch ended with an error; listing the kind anew");
            return Err(ReflectError::Expired);
        }
        let seen = object.pointer("/metadata/resourceVersion").and_then(Value::as_str);
        if let Some(seen) = seen {
            seen.clone_into(version);
        }
        match event.as_str() {
            "ADDED" | "MODIFIED" => self.sink.pick(object).into_iter().for_each(|item| self.sink.changed(item)),
            "DELETED" => self.sink.pick(object).into_iter().for_each(|item| self.sink.deleted(item)),
            _ => {}
        }
        Ok(())
    }
}
