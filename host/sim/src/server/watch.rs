//! Watches. A watch keeps its position in the cluster's log and streams the later changes of the selected objects.

use std::{collections::VecDeque, convert::Infallible, sync::Arc, time::Duration};

use bytes::{BufMut, Bytes, BytesMut};
use futures::{Stream, stream};
use http_body::Frame;
use k8s_openapi::jiff::Timestamp;
use serde_json::{Value, json};
use tokio::{sync::watch::Receiver, time::Instant};

use crate::{
    object,
    server::{
        cluster::{Cluster, State},
        list::{Selection, resource_version},
        reply::Reply,
        response_form::{ResponseForm, to_bytes},
        routing::Call,
        status::Refusal,
    },
    storage::{Change, LogEntry, ObjectVersion},
};

/// Duration of a watch without a timeout. The real server draws it from 30 to 60 minutes.
const DEFAULT_TIMEOUT: Duration = Duration::from_secs(45 * 60);

/// Interval between the bookmarks of a watch, as in the real server's watch cache.
const BOOKMARK_EVERY: Duration = Duration::from_secs(60);

/// A running watch.
pub(crate) struct Watch {
    cluster: Cluster,
    call: Call,
    form: ResponseForm,
    selection: Selection,
    /// resourceVersion of the last write that the watch has read.
    position: u64,
    /// Whether the watch has already sent an object.
    begun: bool,
    changed: Receiver<u64>,
    ready: VecDeque<Bytes>,
    bookmarks: bool,
    next_bookmark: Instant,
    end: Instant,
    over: bool,
}

/// Starts a watch.
pub(crate) fn start(cluster: &Cluster, state: &State, call: &Call) -> Result<Reply, Refusal> {
    let form = ResponseForm::wanted(call)?;
    let selection = Selection::of(call)?;
    let from = resource_version(call).map_err(|refusal| Refusal { code: 500, reason: "", ..refusal })?;
    let bookmarks = call.query.flag("allowWatchBookmarks");
    let initial = call.query.flag("sendInitialEvents");
    let timeout = call.query.number("timeoutSeconds")?.map_or(DEFAULT_TIMEOUT, Duration::from_secs);
    let now = Instant::now();
    let mut watch = Watch {
        cluster: cluster.clone(),
        call: call.clone(),
        form,
        selection,
        position: from.unwrap_or(state.store.rv()),
        begun: false,
        changed: state.store.subscribe(),
        ready: VecDeque::new(),
        bookmarks,
        next_bookmark: now + BOOKMARK_EVERY,
        end: now + timeout,
        over: false,
    };
    if from.is_none() || initial {
        watch.send_present(state);
        if initial {
            watch.bookmark(true);
        }
    }
    Ok(Reply::Watch(Box::new(watch)))
}

/// Returns the stream of a watch as body frames.
pub(crate) fn frames(watch: Watch) -> impl Stream<Item = Result<Frame<Bytes>, Infallible>> + Send {
    stream::unfold(watch, |mut watch| async move { watch.next().await.map(|lines| (Ok(Frame::data(lines)), watch)) })
}

impl Watch {
    async fn next(&mut self) -> Option<Bytes> {
        loop {
            if let Some(lines) = self.take_ready() {
                return Some(lines);
            }
            if self.over {
                return None;
            }
            self.changed.mark_unchanged();
            self.catch_up();
            if self.ready.is_empty() && !self.over {
                self.wait().await;
            }
        }
    }

    async fn wait(&mut self) {
        let alarm = if self.bookmarks { self.end.min(self.next_bookmark) } else { self.end };
        tokio::select! {
            changed = self.changed.changed() => self.over = changed.is_err(),
            () = tokio::time::sleep_until(alarm) => {
                if self.bookmarks {
                    self.catch_up();
                    self.bookmark(false);
                }
                self.next_bookmark = Instant::now() + BOOKMARK_EVERY;
                self.over = Instant::now() >= self.end;
            }
        }
    }

    fn take_ready(&mut self) -> Option<Bytes> {
        let first = self.ready.pop_front()?;
        if self.ready.is_empty() {
            return Some(first);
        }
        let mut all = BytesMut::from(first.as_ref());
        for line in self.ready.drain(..) {
            all.put(line);
        }
        Some(all.freeze())
    }

    /// Converts the log entries since the last position to lines.
    fn catch_up(&mut self) {
        let cluster = self.cluster.clone();
        let state = cluster.lock();
        let now = state.now;
        let Some(entries) = state.store.since(self.position) else {
            return self.expire(state.store.compacted());
        };
        for entry in entries {
            if entry.table == self.call.kind.table {
                let line = self.line(entry, now);
                self.begun |= line.is_some();
                self.ready.extend(line);
            }
            self.position = self.position.max(entry.rv);
        }
    }

    fn line(&self, entry: &LogEntry, now: Timestamp) -> Option<Bytes> {
        let covers = |version: &Arc<ObjectVersion>| self.selection.covers(&entry.key, &version.value);
        let after = entry.change != Change::Deleted && covers(&entry.object);
        let before = entry.previous.as_ref().filter(|previous| covers(previous));
        let (change, object) = match (before, after) {
            (None, true) => ("ADDED", Arc::clone(&entry.object)),
            (Some(_), true) => ("MODIFIED", Arc::clone(&entry.object)),
            // An object that leaves the selection is shown in its last selected state with the new resourceVersion.
            (Some(_), false) if entry.change == Change::Deleted => ("DELETED", Arc::clone(&entry.object)),
            (Some(previous), false) => ("DELETED", Arc::new(restamped(previous, entry.rv))),
            (None, false) => return None,
        };
        Some(self.send(change, &object, now))
    }

    fn send(&self, change: &str, object: &ObjectVersion, now: Timestamp) -> Bytes {
        if self.begun { self.form.later_event(change, object, now) } else { self.form.event(change, object, now) }
    }

    fn send_present(&mut self, state: &State) {
        let present = self.selection.now(state, &self.call);
        for (_, version) in present {
            let line = self.send("ADDED", &version, state.now);
            self.ready.push_back(line);
            self.begun = true;
        }
        self.position = state.store.rv();
    }

    fn bookmark(&mut self, initial_end: bool) {
        let kind = &self.call.kind;
        let mut metadata = json!({"resourceVersion": self.position.to_string(), "creationTimestamp": null});
        if initial_end {
            object::as_map(&mut metadata).insert("annotations".into(), json!({"k8s.io/initial-events-end": "true"}));
        }
        let bookmark = json!({"kind": kind.kind, "apiVersion": kind.api_version(), "metadata": metadata});
        self.push("BOOKMARK", &bookmark);
    }

    fn expire(&mut self, oldest: u64) {
        let message = format!("too old resource version: {} ({oldest})", self.position);
        self.push("ERROR", &Refusal::expired(message).to_value());
        self.over = true;
    }

    fn push(&mut self, change: &str, object: &Value) {
        let mut line = BytesMut::from(to_bytes(&json!({"type": change, "object": object})).as_ref());
        line.put_u8(b'\n');
        self.ready.push_back(line.freeze());
    }
}

fn restamped(version: &ObjectVersion, rv: u64) -> ObjectVersion {
    let mut value = version.value.clone();
    object::set_meta(&mut value, "resourceVersion", json!(rv.to_string()));
    ObjectVersion::new(rv, value)
}
