//! The logs of failed Jobs. A viewer opens one at a time, and the server reads it then.

use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::extract::State;
use http::{HeaderMap, Response, StatusCode, Uri};
use oarlock_core::ops_job::access::Access;
use oarlock_core::ops_job::refusal::OpsRefusal;
use oarlock_kube::Cluster;
use oarlock_kube::read::failed_log::{FailedLog, NoFailedLog};
use oarlock_page::{LogAddress, PageAddress, PageRefusal, PartQuery, Shell, ShownLog, document, log_content};
use tokio::time::timeout;

use crate::answers::{html_answer, refusal_answer};
use crate::sight::{SightFailed, right, sight};
use crate::slots::PageSlots;
use crate::state::WebState;
use crate::viewer::PageViewer;
use crate::web::without_viewer;

/// The most logs that are read at one time: for one viewer, and for all.
const READS: (usize, usize) = (1, 8);
/// The longest time for the reads of one log.
const LONGEST: Duration = Duration::from_secs(10);

/// The cluster whose logs the pages show, and the slots of the reads.
pub(crate) struct LogReads {
    cluster: Cluster,
    slots: PageSlots,
}

impl LogReads {
    pub(crate) fn of(cluster: Cluster) -> Self {
        Self { cluster, slots: PageSlots::new(READS.0, READS.1) }
    }
}

/// The reason why a viewer gets no log.
struct NoLog {
    status: StatusCode,
    why: String,
}

impl NoLog {
    fn new(status: StatusCode, why: impl Into<String>) -> Self {
        Self { status, why: why.into() }
    }
}

impl From<OpsRefusal> for NoLog {
    fn from(refusal: OpsRefusal) -> Self {
        let status = StatusCode::from_u16(refusal.code.status()).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        Self { status, why: refusal.message }
    }
}

impl From<SightFailed> for NoLog {
    fn from(failed: SightFailed) -> Self {
        match failed {
            SightFailed::Forbidden(_) => Self::new(StatusCode::FORBIDDEN, failed.sentence()),
            SightFailed::Unanswered(refusal) => refusal.into(),
        }
    }
}

impl From<NoFailedLog> for NoLog {
    fn from(failed: NoFailedLog) -> Self {
        let status = match failed {
            NoFailedLog::NoPod(_) | NoFailedLog::NotStarted(..) => StatusCode::NOT_FOUND,
            NoFailedLog::Unavailable(_) => StatusCode::BAD_GATEWAY,
        };
        Self::new(status, failed.to_string())
    }
}

/// Answers with the page of a log.
pub(crate) async fn log(State(web): State<Arc<WebState>>, uri: Uri, headers: HeaderMap) -> Response<Body> {
    let viewer = match web.viewer(&headers).await {
        Ok(viewer) => viewer,
        Err(none) => return without_viewer(none, &uri, &headers),
    };
    let path = uri.path_and_query().map_or_else(|| uri.path(), |both| both.as_str());
    let (Some(reads), Some(address)) = (&web.logs, LogAddress::parse(path)) else {
        return refusal_answer(PageRefusal::NotFound(path.to_owned()));
    };
    let viewer_name = viewer.caller.as_ref().map(|caller| caller.name.as_str());
    let shell = Shell { viewer: viewer_name, ..Shell::default() };
    match read(&web, reads, &viewer, &address).await {
        Ok(log) => html_answer(StatusCode::OK, document(&log_content(&address, Ok(&log)), &shell)),
        Err(NoLog { status, why }) => html_answer(status, document(&log_content(&address, Err(&why)), &shell)),
    }
}

/// Reads a log with the rights of a viewer.
async fn read(web: &WebState, reads: &LogReads, viewer: &PageViewer, address: &LogAddress) -> Result<ShownLog, NoLog> {
    let LogAddress { object, job } = address;
    let sight = sight(&web.rest, viewer, &PageAddress::Object(object.clone(), PartQuery::default())).await?;
    for access in needed(&object.namespace) {
        if !viewer.has(&web.rest, &access).await? {
            let why = format!("Your account lacks the right to {}.", right(&access));
            return Err(NoLog::new(StatusCode::FORBIDDEN, why));
        }
    }
    // A viewer names a Job, and the object says whether it is one of its failed Jobs.
    if !web.shown.has_failed_job(address, &sight) {
        let why = format!(
            "{} {} has no failed step or node with this Job. It may run again.",
            object.kind.word(),
            object.name
        );
        return Err(NoLog::new(StatusCode::NOT_FOUND, why));
    }
    let Some(_slot) = reads.slots.take(viewer.name()) else {
        let why = "The server reads another log for you, or many logs for others. Try again in some seconds.";
        return Err(NoLog::new(StatusCode::TOO_MANY_REQUESTS, why));
    };
    let log = timeout(LONGEST, reads.cluster.failed_log(&object.namespace, job)).await.map_err(|_| {
        let why = format!("The log did not come within {} s. The node of the pod may not answer.", LONGEST.as_secs());
        NoLog::new(StatusCode::GATEWAY_TIMEOUT, why)
    })?;
    let FailedLog { pod, container, end, bytes, is_cut } = log?;
    Ok(ShownLog { pod, container, end, bytes, is_cut })
}

/// Returns the rights that a viewer needs besides those for the page of the object. `kubectl logs job/NAME` needs them too.
fn needed(namespace: &str) -> [Access; 2] {
    let pods = Access { verb: "list", resource: "pods".to_owned(), ..Access::default() };
    [pods.within(namespace), Access::to_logs(namespace)]
}
