//! The logs of containers: the output of their commands until now. No command runs and no log is stored. Each line follows from the
//! command in the pod and the times in its status.

use std::iter::Peekable;
use std::time::Duration;

use bytes::Bytes;
use futures::Stream;
use futures::stream;
use k8s_openapi::api::core::v1::Container;
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use serde::Deserialize as _;
use serde_json::Value;

use crate::object::{at, str_at};
use crate::server::cluster::{Cluster, State};
use crate::server::handle::key;
use crate::server::routing::Call;
use crate::server::status::Refusal;
use crate::storage::Key;
use crate::world::deciders::script::{Deed, Lines};

/// The size of a body chunk in bytes (`PIECE`), and the interval for polling a followed log (`LOOKED_AT`).
const PIECE: usize = 32 * 1024;
const LOOKED_AT: Duration = Duration::from_millis(100);
/// Time between two lines of a container, so that each line has its own timestamp in order.
const APART: SignedDuration = SignedDuration::from_micros(1);
const LISTS: [(&str, &str); 3] = [
    ("initContainers", "initContainerStatuses"),
    ("containers", "containerStatuses"),
    ("ephemeralContainers", "ephemeralContainerStatuses"),
];

/// One run of a container.
#[derive(Debug, PartialEq, Eq)]
struct Run {
    began: Timestamp,
    /// End of the run, none while it goes on.
    ended: Option<Timestamp>,
}

/// The options of a log request.
#[derive(Debug, Default)]
struct Asked {
    timestamps: bool,
    since: Option<Timestamp>,
    tail: Option<usize>,
    most_bytes: Option<usize>,
}

/// The log of a container.
pub(crate) struct Log {
    cluster: Cluster,
    call: Call,
    printed: Peekable<Lines>,
    number: i32,
    run: Run,
    asked: Asked,
    sent: usize,
    follows: bool,
}

impl Log {
    /// Opens the log of a call's container, which the pod must have.
    pub(crate) fn open(cluster: &Cluster, state: &State, call: &Call) -> Result<Self, Refusal> {
        let pod =
            state.store.get(call.kind.table, &key(call)).ok_or_else(|| Refusal::not_found(&call.kind, &call.name))?;
        let pod = &pod.value;
        reachable(state, call, str_at(pod, &["spec", "nodeName"]))?;
        let asked = Asked::read(call, state.now)?;
        let name = named(call, pod);
        let run = Run::of(pod, name, call.query.flag("previous")).map_err(|why| {
            Refusal::bad_request(match why {
                Missing::Previous => format!("previous terminated container {name:?} in pod {:?} not found", call.name),
                Missing::Run => {
                    format!("container {name:?} in pod {:?} is waiting to start: ContainerCreating", call.name)
                }
            })
        })?;
        let deed = container(pod, name).map(|container| Deed::of(&container)).unwrap_or_default();
        let follows = call.query.flag("follow") && run.ended.is_none();
        let printed = Lines::of(deed.clone()).peekable();
        let (cluster, call) = (cluster.clone(), call.clone());
        let mut log = Self { cluster, call, printed, number: 0, run, asked, sent: 0, follows };
        log.skip_to_tail(state.now, deed);
        Ok(log)
    }

    /// Returns the next line if it was printed by the given time.
    fn next(&mut self, until: Timestamp) -> Option<(Timestamp, String)> {
        let apart = APART.checked_mul(self.number)?;
        let (after, _) = self.printed.peek()?;
        let at = self.run.began.checked_add(SignedDuration::try_from(*after).ok()?).ok()?.checked_add(apart).ok()?;
        // A run that was ended early printed no later lines.
        if at > self.run.ended.map_or(until, |ended| ended.min(until)) {
            return None;
        }
        self.number = self.number.saturating_add(1);
        self.printed.next().map(|(_, line)| (at, line))
    }

    fn skip_to_tail(&mut self, now: Timestamp, deed: Deed) {
        let Some(tail) = self.asked.tail else { return };
        let mut wanted = 0_usize;
        while let Some((at, _)) = self.next(now) {
            wanted += usize::from(self.asked.wants(at));
        }
        (self.printed, self.number) = (Lines::of(deed).peekable(), 0);
        let mut skipped = wanted.saturating_sub(tail);
        while skipped > 0 {
            let Some((at, _)) = self.next(now) else { return };
            skipped -= usize::from(self.asked.wants(at));
        }
    }

    /// Returns the chunks of the body. A followed log ends when its container ends.
    pub(crate) fn pieces(self) -> impl Stream<Item = Bytes> + Send {
        stream::unfold(self, |mut log| async move {
            loop {
                // The order matters: if the container ends between the two calls, the next loop still reads its last lines.
                let goes_on = log.follows && log.goes_on();
                let piece = log.piece();
                if !piece.is_empty() {
                    return Some((piece, log));
                }
                if !goes_on || log.is_full() {
                    return None;
                }
                tokio::time::sleep(LOOKED_AT).await;
            }
        })
    }

    fn is_full(&self) -> bool {
        self.asked.most_bytes.is_some_and(|most| self.sent >= most)
    }

    fn piece(&mut self) -> Bytes {
        let (mut piece, now) = (Vec::new(), self.cluster.now());
        while piece.len() < PIECE && !self.is_full() {
            let Some((at, line)) = self.next(now) else { break };
            if self.asked.wants(at) {
                let text = if self.asked.timestamps { format!("{at:.9} {line}\n") } else { format!("{line}\n") };
                piece.extend_from_slice(text.as_bytes());
            }
        }
        piece.truncate(self.asked.most_bytes.map_or(usize::MAX, |most| most.saturating_sub(self.sent)));
        self.sent = self.sent.saturating_add(piece.len());
        Bytes::from(piece)
    }

    /// Returns true while the container's run goes on.
    fn goes_on(&self) -> bool {
        let state = self.cluster.lock();
        let pod = state.store.get(self.call.kind.table, &key(&self.call));
        let run = pod.and_then(|pod| Run::of(&pod.value, named(&self.call, &pod.value), false).ok());
        run.is_some_and(|run| run == self.run)
    }
}

/// Returns the container that the call names, or the pod's first container.
fn named<'a>(call: &'a Call, pod: &'a Value) -> &'a str {
    let first = || at(pod, &["spec", "containers"])?.get(0);
    call.query.get("container").unwrap_or_else(|| first().map_or("", |first| str_at(first, &["name"])))
}

enum Missing {
    Run,
    Previous,
}

impl Run {
    fn of(pod: &Value, container: &str, previous: bool) -> Result<Self, Missing> {
        let statuses = LISTS.iter().filter_map(|(_, list)| at(pod, &["status", list])?.as_array()).flatten();
        let status = statuses.into_iter().find(|one| str_at(one, &["name"]) == container);
        let time = |state: &Value, field: &str| str_at(state, &[field]).parse::<Timestamp>().ok();
        let ended = |state: &Value| Some(Self { began: time(state, "startedAt")?, ended: time(state, "finishedAt") });
        let of = |field: &str| status.and_then(|status| at(status, &[field]));
        if previous {
            return of("lastState").and_then(|state| ended(at(state, &["terminated"])?)).ok_or(Missing::Previous);
        }
        let state = of("state").ok_or(Missing::Run)?;
        let runs = || Some(Self { began: time(at(state, &["running"])?, "startedAt")?, ended: None });
        at(state, &["terminated"]).and_then(ended).or_else(runs).ok_or(Missing::Run)
    }
}

impl Asked {
    fn wants(&self, at: Timestamp) -> bool {
        self.since.is_none_or(|since| at >= since)
    }

    fn read(call: &Call, now: Timestamp) -> Result<Self, Refusal> {
        let number =
            |name: &str| Ok::<_, Refusal>(call.query.number(name)?.and_then(|number| usize::try_from(number).ok()));
        let seconds = call.query.number("sinceSeconds")?.and_then(|seconds| i64::try_from(seconds).ok());
        let ago = seconds.and_then(|seconds| now.checked_sub(SignedDuration::from_secs(seconds)).ok());
        let since = match call.query.get("sinceTime") {
            None => ago,
            Some(_) if ago.is_some() => {
                return Err(Refusal::bad_request("at most one of `sinceTime` or `sinceSeconds` may be specified"));
            }
            Some(text) => {
                let bad = |error| Refusal::bad_request(format!("sinceTime: {text:?} is no time: {error}"));
                Some(text.parse().map_err(bad)?)
            }
        };
        let (timestamps, tail, most_bytes) =
            (call.query.flag("timestamps"), number("tailLines")?, number("limitBytes")?);
        Ok(Self { timestamps, since, tail, most_bytes })
    }
}

/// Refuses the request if the pod's node is missing or its kubelet does not answer.
fn reachable(state: &State, call: &Call, node: &str) -> Result<(), Refusal> {
    let nodes = state.kinds.by_path("", "v1", "nodes");
    let found = nodes.and_then(|kind| state.store.get(kind.table, &Key::new("", node)));
    let conditions = found.and_then(|node| at(&node.value, &["status", "conditions"])?.as_array().cloned());
    let is_silent = conditions.is_some_and(|all| {
        all.iter().any(|one| str_at(one, &["type"]) == "Ready" && str_at(one, &["status"]) == "Unknown")
    });
    if found.is_some() && !is_silent {
        return Ok(());
    }
    let (namespace, pod) = (&call.namespace, &call.name);
    Err(Refusal::internal(format!(
        "Get \"https://{node}:10250/containerLogs/{namespace}/{pod}\": dial tcp {node}:10250: connect: connection refused"
    )))
}

fn container(pod: &Value, name: &str) -> Option<Container> {
    let all = LISTS.iter().filter_map(|(list, _)| at(pod, &["spec", list])?.as_array()).flatten();
    let found = all.into_iter().find(|one| str_at(one, &["name"]) == name)?;
    Container::deserialize(found).ok()
}
