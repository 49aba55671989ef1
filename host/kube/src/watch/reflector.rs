//! Keeps the cache of one kind up to date: lists, then watches, forever.
//!
//! A watch that breaks resumes where it ended. A watch that is too old (410, in the reply or in the stream) begins again with a list.

use std::fmt;
use std::time::Duration;

use futures::StreamExt;
use kube::core::params::WatchParams;
use oarlock_core::object::api_object::Kind;
use oarlock_core::object::memory::NamespaceShares;
use oarlock_core::requests::backoff::Backoff;
use parking_lot::Mutex;
use serde::de::{DeserializeSeed, Deserializer, Error as _, IgnoredAny, MapAccess, Visitor};
use serde_json::Value;
use tokio::time::{Instant, sleep, timeout_at};

use crate::error_chain::error_chain;
use crate::link::Link;
use crate::transport::call::{ApiCall, RequestError};
use crate::transport::discovery::DiscoverError;
use crate::transport::list::{Collection, ListError};
use crate::transport::projection::{Bounded, Document, Projection};
use crate::watch::handler::EventHandler;
use crate::watch::health::WatchHealth;

/// The time for which the API server keeps a watch open. The host notices a dead connection a little later.
const WATCH_SECONDS: u32 = 55;
/// The time after which the host gives up a watch that the API server should have ended.
const WATCH_GIVEN_UP: Duration = Duration::from_secs(65);
/// The shortest time of a good watch.
const GOOD_WATCH: Duration = Duration::from_secs(5);
/// The time after which the host asks again for a kind that is not served.
const UNSERVED: Duration = Duration::from_secs(60);
/// The longest unfinished line of a watch that the host keeps. It is far longer than any object.
const MOST_PENDING: usize = 16 * 1024 * 1024;
/// The waits after lists and watches that ended too soon.
const PAUSES: Backoff = Backoff::from_millis(200, 30_000);

/// The reflector that keeps one kind up to date.
pub(crate) struct Reflector<S> {
    pub(crate) link: Link,
    pub(crate) kind: Kind,
    pub(crate) handler: S,
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

/// The end of a watch that can resume.
enum Ended {
    /// The API server ended the watch, or the watch was quiet for too long.
    Over,
    /// The watch ended with this answer or broken connection.
    Broken(String),
}

/// One watch event.
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

/// The reader of one event and the kept part of its object.
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

impl<S: EventHandler> Reflector<S> {
    /// Runs until it is aborted.
    pub(crate) async fn run(self) {
        let mut failures = 0_u32;
        loop {
            let begun = Instant::now();
            let error = match self.list_and_watch().await {
                Ok(never) => match never {},
                Err(error) => error,
            };
            if begun.elapsed() >= GOOD_WATCH {
                failures = 0;
            }
            let pause = PAUSES.wait(failures);
            failures = failures.saturating_add(1);
            let wait = match &error {
                ReflectError::Find(DiscoverError::NotServed { .. }) => {
                    self.handler.listed(Vec::new(), u64::MAX);
                    self.health.unserved();
                    UNSERVED
                }
                ReflectError::List(error) => {
                    self.health.unlisted(error.is_refused());
                    pause
                }
                _ => pause,
            };
            let message = error_chain(&error);
            match &error {
                ReflectError::Expired | ReflectError::Find(DiscoverError::NotServed { .. }) => {
                    tracing::debug!(kind = %self.kind.kind, error = message, "listing the kind again");
                }
                _ => self.tell_outage(&message),
            }
            self.health.failed(message);
            sleep(wait).await;
        }
    }

    /// Logs failed requests, once for each outage.
    fn tell_outage(&self, message: &str) {
        if self.health.begin_outage() {
            tracing::warn!(kind = %self.kind.kind, error = message, "failed to list or watch the kind; retrying until it succeeds");
        } else {
            tracing::debug!(kind = %self.kind.kind, error = message, "failed to list or watch the kind; retrying");
        }
    }

    /// Records that the watch had a reply or an event, and logs the end of an outage.
    fn replied(&self) {
        if let Some(lasted) = self.health.replied() {
            let seconds = lasted.as_secs();
            tracing::info!(kind = %self.kind.kind, seconds, "watching the kind again after an outage");
        }
    }

    async fn list_and_watch(&self) -> Result<std::convert::Infallible, ReflectError> {
        let resource =
            self.link.discovery.resource(&self.link.transport, &self.kind).await.map_err(ReflectError::Find)?;
        let from = Collection { resource: &resource, namespace: None, labels: None, fields: self.handler.selector() };
        let projection = self.handler.projection();
        let shares = Mutex::new(NamespaceShares::within(&self.link.listing));
        let fitting = |item| Some(self.handler.fitting(self.handler.pick(item)?, &mut shares.lock()));
        let listed = self.link.transport.list(from, &projection, fitting).await;
        let listed = listed.map_err(ReflectError::List)?;
        let mut version = listed.version.clone();
        let number = listed.number();
        self.handler.listed(listed.items, number);
        self.health.listed();
        let mut failures = 0_u32;
        loop {
            let begun = Instant::now();
            let ended = self.watch(from, &mut version).await?;
            if begun.elapsed() >= GOOD_WATCH {
                failures = 0;
                continue;
            }
            if let Ended::Broken(message) = ended {
                self.health.failed(message);
            }
            sleep(PAUSES.wait(failures)).await;
            failures = failures.saturating_add(1);
        }
    }

    /// Runs one watch from `version` on, and updates `version` with each event.
    async fn watch(&self, from: Collection<'_>, version: &mut String) -> Result<Ended, ReflectError> {
        let resource = from.resource;
        let path = resource.collection(from.namespace).unwrap_or_default();
        let params = WatchParams::default().timeout(WATCH_SECONDS);
        let params = from.fields.iter().fold(params, |params, fields| params.fields(fields));
        let request = kube::core::Request::new(path).watch(&params, version);
        let call = ApiCall { verb: "watch", resource: &resource.plural, request };
        let mut chunks = match self.link.transport.open(call).await {
            Ok(chunks) => chunks,
            Err(error) if error.is(410) => return Err(ReflectError::Expired),
            Err(error) if error.is(404) || error.is(403) => return Err(ReflectError::Watch(error)),
            Err(error) => {
                let message = error_chain(&error);
                self.tell_outage(&message);
                return Ok(Ended::Broken(message));
            }
        };
        self.replied();
        let deadline = Instant::now() + WATCH_GIVEN_UP;
        let (mut pending, projection) = (Vec::new(), self.handler.projection());
        while let Ok(Some(chunk)) = timeout_at(deadline, chunks.next()).await {
            match chunk {
                Ok(chunk) => pending.extend_from_slice(&chunk),
                Err(error) => return Ok(Ended::Broken(error_chain(&error))),
            }
            self.replied();
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
            // Any error may follow lost events, so the reflector begins again.
            tracing::debug!(kind = %self.kind.kind, %object, "the watch ended with an error; listing the kind again");
            return Err(ReflectError::Expired);
        }
        let seen = object.pointer("/metadata/resourceVersion").and_then(Value::as_str);
        if let Some(seen) = seen {
            seen.clone_into(version);
        }
        match event.as_str() {
            "ADDED" | "MODIFIED" => self.handler.pick(object).into_iter().for_each(|item| self.handler.changed(item)),
            "DELETED" => self.handler.pick(object).into_iter().for_each(|item| self.handler.deleted(item)),
            _ => {}
        }
        Ok(())
    }
}
