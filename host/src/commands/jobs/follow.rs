//! Follows one object and its records by watches, until the object is deleted.
//!
//! The follower reports each change, and each time that the cluster becomes unreachable. After a failure it lists and
//! watches again, so no answer of a server can stop it. The follower reads a silent object live now and then, because a
//! dead connection may look like silence.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::pin::Pin;
use std::time::Duration;

use futures::{Stream, StreamExt as _};
use kube::api::ListParams;
use kube::runtime::watcher::{self, Event, watcher};
use kube::{Api, Resource, ResourceExt as _};
use oarlock_core::requests::backoff::Backoff;
use oarlock_view::Watched;
use serde::de::DeserializeOwned;
use tokio::time::Instant;

/// The server ends a watch after this time, and the follower starts a new one.
const WATCH_SECONDS: u32 = 240;
/// The silence after which the follower reads the object live.
const SILENCE: Duration = Duration::from_secs(20);
/// The longest wait for the answer to a live read.
const ANSWER_WITHIN: Duration = Duration::from_secs(10);
/// The first and the longest wait before a broken watch starts again.
const RETRIES: Backoff = Backoff::from_millis(500, 15_000);

type Watch<K> = Pin<Box<dyn Stream<Item = watcher::Result<Event<K>>> + Send>>;
/// The answer to a live read of the object, or the cause of its failure.
type Answer<K> = Pin<Box<dyn Future<Output = Result<Option<K>, String>> + Send>>;

/// Selects the records of an object.
#[derive(Clone, Debug)]
pub(in crate::commands) enum RecordsOf {
    /// The records with these labels.
    Labels(String),
    /// The record of this name.
    Name(String),
}

impl RecordsOf {
    fn list(&self) -> ListParams {
        match self {
            Self::Labels(labels) => ListParams::default().labels(labels),
            Self::Name(name) => ListParams::default().fields(&format!("metadata.name={name}")),
        }
    }

    fn watch(&self) -> watcher::Config {
        match self {
            Self::Labels(labels) => watcher::Config::default().labels(labels),
            Self::Name(name) => watcher::Config::default().fields(&format!("metadata.name={name}")),
        }
    }
}

/// A client for one kind of object that a [`Follower`] can follow.
pub(in crate::commands) trait Followed: Clone {
    /// The followed object.
    type Object: Resource + Clone + Debug + DeserializeOwned + Send + 'static;
    /// The object with details that do not fit into the followed object.
    type Record: Resource + Clone + Debug + DeserializeOwned + Send + 'static;
    /// The view of an object with its records.
    type View: Watched;

    /// Returns the API for the objects of the namespace.
    fn objects(&self) -> Api<Self::Object>;

    /// Returns the API for the records of the namespace.
    fn records(&self) -> Api<Self::Record>;

    /// Returns the selector for the records of an object; `None` if the object has none.
    fn records_of(&self, object: &Self::Object) -> Option<RecordsOf>;

    /// Returns the view of an object with its records.
    fn shown<'a>(&self, object: &Self::Object, records: impl Iterator<Item = &'a Self::Record>) -> Self::View
    where
        Self::Record: 'a;

    /// Returns the error of a failed request, for the user.
    fn explained(&self, cause: kube::Error, verb: &'static str, name: &str) -> anyhow::Error;
}

/// Reads one object with its records. Without permission to read records, returns none.
///
/// # Errors
///
/// If the object does not exist, or if it cannot be read.
pub(super) async fn read<C: Followed>(client: &C, name: &str) -> anyhow::Result<(C::Object, Vec<C::Record>)> {
    let object = client.objects().get(name).await.map_err(|cause| client.explained(cause, "get", name))?;
    let Some(selector) = client.records_of(&object) else { return Ok((object, Vec::new())) };
    match client.records().list(&selector.list()).await {
        Ok(list) => Ok((object, list.items)),
        // A cluster that was prepared for an older version of Oarlock does not serve records.
        Err(kube::Error::Api(status)) if [403, 404].contains(&status.code) => Ok((object, Vec::new())),
        Err(cause) => Err(client.explained(cause, "list the records of", name)),
    }
}

/// An event of a followed object.
#[derive(Debug)]
pub(in crate::commands) enum FollowEvent {
    /// The view changed.
    Changed,
    /// The cluster is not reachable, or does not answer; the cause. The follower retries.
    Disconnected(String),
    /// The cluster is reachable again.
    Connected,
    /// The object was deleted.
    Gone,
}

/// A followed object and its records.
pub(in crate::commands) struct Follower<C: Followed> {
    client: C,
    name: String,
    job: C::Object,
    records: BTreeMap<String, C::Record>,
    /// The records of a list that is still arriving.
    listed: BTreeMap<String, C::Record>,
    /// True after the list of the watch contained the object.
    is_listed: bool,
    /// True after the server answered a list. A later refusal may be temporary.
    was_answered: bool,
    job_watch: Watch<C::Object>,
    record_watch: Option<Watch<C::Record>>,
    /// True if the server refuses to list records, so that the follower stops asking.
    no_records: bool,
    /// The cause of a lost connection.
    lost: Option<String>,
    failures: u32,
    /// The time at which the watches start again after a failure.
    retry_at: Option<Instant>,
    heard: Instant,
    /// A live read in flight, which survives a dropped call of `next`.
    asked: Option<Answer<C::Object>>,
}

impl<C: Followed> Follower<C> {
    /// Follows the object of this name.
    ///
    /// # Errors
    ///
    /// If the object does not exist, or if it cannot be read.
    pub(in crate::commands) async fn new(client: C, name: &str) -> anyhow::Result<Self> {
        let job = client.objects().get(name).await.map_err(|cause| client.explained(cause, "get", name))?;
        let job_watch = watch(client.objects(), watcher::Config::default().fields(&format!("metadata.name={name}")));
        Ok(Self {
            name: name.to_owned(),
            job,
            records: BTreeMap::new(),
            listed: BTreeMap::new(),
            is_listed: false,
            was_answered: false,
            job_watch,
            record_watch: None,
            no_records: false,
            lost: None,
            failures: 0,
            retry_at: None,
            heard: Instant::now(),
            asked: None,
            client,
        })
    }

    /// Returns the newest view.
    pub(in crate::commands) fn view(&self) -> C::View {
        self.client.shown(&self.job, self.records.values())
    }

    /// Returns the view with records as new as the object. The watch may deliver records later than the object.
    pub(in crate::commands) async fn last_view(&self) -> C::View {
        match read(&self.client, &self.name).await {
            Ok((job, records)) if job.uid() == self.job.uid() => self.client.shown(&job, records.iter()),
            _ => self.view(),
        }
    }

    /// Waits for the next event. The caller may drop the future while it waits.
    ///
    /// # Errors
    ///
    /// If the user may not watch the object.
    pub(in crate::commands) async fn next(&mut self) -> anyhow::Result<FollowEvent> {
        loop {
            if let Some(time) = self.retry_at {
                tokio::time::sleep_until(time).await;
                self.begin_anew();
            }
            self.watch_records();
            let silence = self.heard + SILENCE;
            let record = async {
                match &mut self.record_watch {
                    Some(watch) => watch.next().await,
                    None => std::future::pending().await,
                }
            };
            let answer = async {
                match &mut self.asked {
                    Some(answer) => answer.await,
                    None => std::future::pending().await,
                }
            };
            let happened = tokio::select! {
                event = self.job_watch.next() => match event {
                    Some(Ok(event)) => self.take_job(event),
                    Some(Err(cause)) => self.break_off(cause)?,
                    None => self.retry("the watch ended".to_owned()),
                },
                event = record => match event {
                    Some(Ok(event)) => self.take_record(event),
                    Some(Err(cause)) => self.break_off_records(cause),
                    None => self.retry("the watch ended".to_owned()),
                },
                answer = answer => {
                    self.asked = None;
                    self.take_answer(answer)
                }
                () = tokio::time::sleep_until(silence) => {
                    self.ask();
                    None
                }
            };
            if let Some(event) = happened {
                return Ok(event);
            }
        }
    }

    fn begin_anew(&mut self) {
        self.retry_at = None;
        self.asked = None;
        self.is_listed = false;
        self.heard = Instant::now();
        let config = watcher::Config::default().fields(&format!("metadata.name={}", self.name));
        self.job_watch = watch(self.client.objects(), config);
        self.record_watch = None;
    }

    /// Watches the records as soon as the object has any.
    fn watch_records(&mut self) {
        if self.record_watch.is_none()
            && !self.no_records
            && let Some(selector) = self.client.records_of(&self.job)
        {
            self.record_watch = Some(watch(self.client.records(), selector.watch()));
        }
    }

    fn take_job(&mut self, event: Event<C::Object>) -> Option<FollowEvent> {
        self.heard = Instant::now();
        let job = match event {
            Event::Init => return None,
            Event::InitDone if self.is_listed => return self.connected(),
            Event::InitDone => return Some(FollowEvent::Gone),
            Event::Delete(job) => {
                // The last status may say that the job had ended.
                self.job = job;
                return Some(FollowEvent::Gone);
            }
            Event::InitApply(job) | Event::Apply(job) => job,
        };
        self.is_listed = true;
        if job.uid() != self.job.uid() {
            return Some(FollowEvent::Gone);
        }
        self.job = job;
        Some(FollowEvent::Changed)
    }

    fn take_record(&mut self, event: Event<C::Record>) -> Option<FollowEvent> {
        self.heard = Instant::now();
        match event {
            Event::Init => self.listed.clear(),
            Event::InitApply(record) => drop(self.listed.insert(record.name_any(), record)),
            Event::InitDone => {
                self.records = std::mem::take(&mut self.listed);
                return Some(FollowEvent::Changed);
            }
            Event::Apply(record) => {
                self.records.insert(record.name_any(), record);
                return Some(FollowEvent::Changed);
            }
            Event::Delete(record) => drop(self.records.remove(&record.name_any())),
        }
        None
    }

    fn connected(&mut self) -> Option<FollowEvent> {
        self.failures = 0;
        self.was_answered = true;
        self.lost.take().map(|_| FollowEvent::Connected)
    }

    fn break_off(&mut self, cause: watcher::Error) -> anyhow::Result<Option<FollowEvent>> {
        match request_error(cause) {
            // A retry would get the same refusal.
            Ok(cause) if refuses(&cause) && !self.was_answered => {
                Err(self.client.explained(cause, "watch", &self.name))
            }
            Ok(cause) => Ok(self.retry(root(&cause))),
            Err(text) => Ok(self.retry(text)),
        }
    }

    fn break_off_records(&mut self, cause: watcher::Error) -> Option<FollowEvent> {
        match request_error(cause) {
            Ok(cause) if refuses(&cause) => {
                // The view without records says that they are missing.
                self.no_records = true;
                self.record_watch = None;
                None
            }
            Ok(cause) => self.retry(root(&cause)),
            Err(text) => self.retry(text),
        }
    }

    /// Sets the time of the next attempt. Reports each cause only once.
    fn retry(&mut self, cause: String) -> Option<FollowEvent> {
        self.retry_at = Some(Instant::now() + RETRIES.wait(self.failures));
        self.failures = self.failures.saturating_add(1);
        let is_told = self.lost.as_ref() == Some(&cause);
        self.lost = Some(cause.clone());
        (!is_told).then_some(FollowEvent::Disconnected(cause))
    }

    /// Reads the object live, to find out whether the cluster answers and whether the watch missed a change.
    fn ask(&mut self) {
        self.heard = Instant::now();
        let (api, name) = (self.client.objects(), self.name.clone());
        self.asked = Some(Box::pin(async move {
            match tokio::time::timeout(ANSWER_WITHIN, api.get_opt(&name)).await {
                Err(_) => Err(format!("no answer within {} s", ANSWER_WITHIN.as_secs())),
                Ok(answer) => answer.map_err(|cause| root(&cause)),
            }
        }));
    }

    fn take_answer(&mut self, answer: Result<Option<C::Object>, String>) -> Option<FollowEvent> {
        match answer {
            Err(cause) => return self.retry(cause),
            Ok(None) => return Some(FollowEvent::Gone),
            Ok(Some(job)) if job.uid() != self.job.uid() => return Some(FollowEvent::Gone),
            Ok(Some(job)) if job.resource_version() == self.job.resource_version() => {}
            Ok(Some(_)) => self.begin_anew(),
        }
        None
    }
}

fn watch<K>(api: Api<K>, config: watcher::Config) -> Watch<K>
where
    K: Resource + Clone + Debug + DeserializeOwned + Send + 'static,
{
    watcher(api, config.timeout(WATCH_SECONDS)).boxed()
}

fn request_error(cause: watcher::Error) -> Result<kube::Error, String> {
    match cause {
        watcher::Error::InitialListFailed(cause)
        | watcher::Error::WatchStartFailed(cause)
        | watcher::Error::WatchFailed(cause) => Ok(cause),
        cause => Err(cause.to_string()),
    }
}

/// Returns true if the server understood the request and refused it.
fn refuses(cause: &kube::Error) -> bool {
    matches!(cause, kube::Error::Api(status) if [401, 403, 404].contains(&status.code))
}

/// Returns the innermost cause. The outer errors repeat it, or only say that an error happened.
fn root(cause: &dyn std::error::Error) -> String {
    let mut innermost = cause;
    while let Some(source) = innermost.source() {
        innermost = source;
    }
    innermost.to_string()
}
