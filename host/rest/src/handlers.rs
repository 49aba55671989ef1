//! The HTTP handlers. Each one reads its request, calls the module that does the work, and answers. Source: docs/opsjob-rest.md 4 to 7.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body as HttpBody;
use axum::extract::{Extension, Path, State};
use axum::response::IntoResponse as _;
use http::{HeaderMap, HeaderValue, Request, Response, Uri, header};
use kube::api::{DeleteParams, Patch, PatchParams, Preconditions};
use oarlock_core::object::bound::cut;
use oarlock_core::object::quota_key::QuotaKey;
use oarlock_core::ops_job::access::Access;
use oarlock_core::ops_job::body::{Body, BodyBounds};
use oarlock_core::ops_job::outline::Outline;
use oarlock_core::ops_job::refusal::{Code, OpsRefusal};
use oarlock_core::ops_job::spec::OpsType;
use oarlock_core::requests::scripts::sha256;
use oarlock_history::{JobRow, Viewer};
use serde::Deserialize;
use serde_json::json;

use crate::answer_room::{json_of, text_of};
use crate::answers::{Created, Item, JobAnswer, Page, Rehearsed, SkippedItem, TargetItem};
use crate::audit::{Asked, Noted};
use crate::bodies::Sender;
use crate::caller::Caller;
use crate::create::{CreateRequest, How, Made};
use crate::errors::{self, of_history, of_request};
use crate::openapi::CreatedOrRehearsed;
use crate::query::ListQuery;
use crate::state::{Rest, RestState};
use crate::turns::ListTurn;

/// The longest time of a write to the API server.
const CHANGE_TIME: Duration = Duration::from_secs(15);

/// An answer. Its extensions hold the [`Noted`] of its request.
type HandlerResponse = Response<HttpBody>;

fn answered(result: Result<HandlerResponse, OpsRefusal>, noted: Noted) -> HandlerResponse {
    let mut answer = match result {
        Ok(answer) => answer,
        Err(refusal) => errors::answer(&refusal),
    };
    answer.extensions_mut().insert(noted);
    answer
}

/// Creates a job, or checks the request in a dry run.
#[utoipa::path(
    post, path = "/api/v1/opsjobs", operation_id = "createOpsJob", tag = "opsjobs",
    params(
        ("fieldValidation" = Option<crate::openapi::FieldValidationWord>, Query, description = "The way in which the server treats mistakes such as unknown fields: `Strict` (the default) refuses the request, `Warn` names them in `Warning` headers, `Ignore` ignores them."),
        ("dryRun" = Option<crate::openapi::DryRunWord>, Query, description = "`All` checks the request and creates no job. Omit the parameter to create the job."),
        ("Idempotency-Key" = Option<crate::openapi::RequestKey>, Header, description = "1 to 64 letters, digits, `_` and `-`. If you repeat a request with its key, the server creates no second job."),
    ),
    request_body(content = crate::openapi::CreateOpsJob, content_type = "application/json"),
    responses(
        (status = 200, description = "The id of the new job. For a dry run, the nodes that the job would work on.", body = CreatedOrRehearsed),
        crate::openapi::CreateRefusals,
    ),
)]
pub(crate) async fn create(
    State(rest): State<Rest>,
    Extension(caller): Extension<Arc<Caller>>,
    request: Request<HttpBody>,
) -> HandlerResponse {
    let mut noted = Noted::default();
    let answer = make(&rest, &caller, request, &mut noted).await;
    answered(answer, noted)
}

async fn make(
    rest: &Rest,
    caller: &Caller,
    request: Request<HttpBody>,
    noted: &mut Noted,
) -> Result<HandlerResponse, OpsRefusal> {
    let parts = rest.parts();
    let (head, body) = request.into_parts();
    let sharer = parts.sharer(caller).await?;
    let is_wide = sharer.is_wide;
    noted.is_entitled = is_wide;
    check_form(&head.headers)?;
    let bounds = if is_wide { BodyBounds::CLUSTER_WIDE } else { BodyBounds::OTHERS };
    let sender = Sender { sharer, most: bounds.bytes, connection: head.extensions.get().cloned() };
    let taken = parts.bodies.take(body, &sender).await?;
    if !is_wide {
        parts.rights.check_outline(caller, &Outline::read(&taken.bytes, bounds)).await?;
        noted.is_entitled = true;
    }
    if !taken.is_whole {
        return Err(bounds.too_many_bytes());
    }
    let how = How::read(head.uri.query(), &head.headers)?;
    let body = Body::read_within(bounds, &taken.bytes, how.mode, parts.ops.defaults())?;
    *noted = Noted { is_entitled: true, ..Noted::of_body(&body) };
    if !parts.keeps_body(caller, noted.body.len()).await? {
        noted.body = format!("sha256:{} ({} bytes)", sha256(&noted.body), noted.body.len());
    }
    let row = head.extensions.get::<Asked>().map(|asked| asked.first_row(noted));
    let made = CreateRequest { parts, caller, sharer: &sender.sharer, body: &body, how: &how, row }.make().await?;
    let (mut answer, ignored) = match made {
        Made::Job(id, ignored) => {
            noted.job.clone_from(&id);
            (json_of(&CreatedOrRehearsed::Created(Created { job_id: id })), ignored)
        }
        Made::Rehearsal(job) => {
            let targets = job.resolved.targets.into_iter();
            let targets = targets.map(|(name, uid)| TargetItem { name, namespace: String::new(), uid }).collect();
            let skipped = job.resolved.skipped.into_iter();
            let skipped = skipped.map(|one| SkippedItem { node: one.node, reason: one.reason.word() }).collect();
            let rehearsed = Rehearsed { job_id: String::new(), targets, skipped };
            (parts.answer_of(caller, text_of(&CreatedOrRehearsed::Rehearsed(rehearsed))).await?, job.ignored)
        }
    };
    warn(&mut answer, ignored);
    Ok(answer)
}

/// Refuses a compressed body, because the size of its content has no limit that its sender pays for.
fn check_form(headers: &HeaderMap) -> Result<(), OpsRefusal> {
    let mut codings =
        headers.get_all(header::CONTENT_ENCODING).iter().flat_map(|all| all.as_bytes().split(|byte| *byte == b','));
    match codings
        .find(|coding| !coding.trim_ascii().is_empty() && !coding.trim_ascii().eq_ignore_ascii_case(b"identity"))
    {
        None => Ok(()),
        Some(coding) => {
            let coding = cut(&String::from_utf8_lossy(coding.trim_ascii()), 64);
            let message = format!("Content-Encoding: {coding} is not supported; send the body uncompressed");
            Err(OpsRefusal::new(Code::UnreadForm, message))
        }
    }
}

/// Lists the jobs that the caller may see.
#[utoipa::path(
    get, path = "/api/v1/opsjobs", operation_id = "listOpsJobs", tag = "opsjobs",
    params(crate::openapi::ListParameters),
    responses(
        (status = 200, description = "One page of the matching jobs that the caller may see.", body = Page),
        crate::openapi::ListRefusals,
    ),
)]
pub(crate) async fn list(
    State(rest): State<Rest>,
    Extension(caller): Extension<Arc<Caller>>,
    uri: Uri,
) -> HandlerResponse {
    answered(page(rest.parts(), &caller, &uri).await, Noted::default())
}

async fn page(parts: &RestState, caller: &Caller, uri: &Uri) -> Result<HandlerResponse, OpsRefusal> {
    let query = ListQuery::read(uri.query(), parts.now())?;
    parts.check_listed()?;
    let mut sees_all = parts.rights.has(caller, &Access::to_ops_jobs("list", "")).await?;
    if let Some(workspace) = query.workspace.as_ref().filter(|_| !sees_all) {
        let is_namespace = workspace.len() <= 63 && oarlock_core::object::key::is_object_name(workspace);
        let there = Access::to_ops_jobs("list", "").within(workspace);
        // A namespace grants rights over the workspace of its name only if its label says so.
        sees_all =
            is_namespace && parts.rights.has(caller, &there).await? && parts.gives_node_operations(workspace).await?;
    }
    let mut types = Vec::new();
    for kind in OpsType::ALL {
        if !sees_all && parts.rights.has(caller, &Access::to_ops_jobs("list", kind.word())).await? {
            types.push(kind.word());
        }
    }
    let seen = match sees_all {
        true => Viewer::All,
        false => Viewer::Some {
            kinds: types.iter().map(|kind| (*kind).to_owned()).collect(),
            user_id: caller.id().to_owned(),
            user_name: caller.name.clone(),
        },
    };
    // The list reads the jobs only after it has its turn. Otherwise it could show jobs that were deleted while it waited.
    let looked_at = query.limit().saturating_add(parts.ops.jobs().len());
    let ListTurn { own: _own, length } = parts.lists.take(&QuotaKey::of(&caller.name), looked_at).await?;
    let jobs = parts.ops.jobs();
    let sees = |job: &oarlock_core::ops_job::stored::StoredOps| {
        sees_all || types.contains(&job.summary.kind.as_str()) || job.summary.is_of(caller.id(), &caller.name)
    };
    let live = query.taken(jobs.iter().filter(|job| sees(job)).map(|job| Item::of(job, &parts.cluster)));
    let gone = parts.history.as_ref().zip(query.rows(&parts.cluster, live.len()));
    let Some((history, window)) = gone else {
        let (total_count, items) = (live.len(), query.page(live, Vec::new(), 0));
        let text = text_of(&Page { total_count, items });
        drop(length);
        return parts.answer_of(caller, text).await;
    };
    // The row of a job may say that the job was deleted while the cluster still has the job.
    let uids: Vec<&str> = jobs.iter().filter(|job| job.view.deleting).map(|job| job.view.uid.as_str()).collect();
    let (count, rows, warning) = match history.page(&query.filter(seen), &uids, &window).await {
        Ok((count, rows)) => (count, rows, None),
        Err(failed) => {
            let refusal = of_history(&failed);
            (0, Vec::new(), Some(format!("the list lacks jobs that no longer exist: {}", refusal.message)))
        }
    };
    // A job may have been deleted since the cache was read.
    let live_uids: HashSet<&str> = jobs.iter().map(|job| job.view.uid.as_str()).collect();
    let (twice, rows): (Vec<JobRow>, Vec<JobRow>) = rows.into_iter().partition(|row| live_uids.contains(&*row.uid));
    let rows = rows.into_iter().map(|row| Item::of_row(row, &parts.cluster)).collect();
    let total_count = live.len().saturating_add(count).saturating_sub(twice.len());
    let page = Page { total_count, items: query.page(live, rows, window.offset) };
    let text = text_of(&page);
    drop((page, length));
    let mut answer = parts.answer_of(caller, text).await?;
    warn(&mut answer, warning);
    Ok(answer)
}

/// Adds `Warning` headers to an answer.
fn warn(answer: &mut HandlerResponse, messages: impl IntoIterator<Item = String>) {
    let warnings = messages.into_iter().map(|message| format!("299 - {}", json!(message)));
    // A message that is no valid header value is omitted.
    for warning in warnings.filter_map(|text| HeaderValue::try_from(text).ok()) {
        answer.headers_mut().append(header::WARNING, warning);
    }
}

/// Reads a job with its progress and its outputs.
#[utoipa::path(
    get, path = "/api/v1/opsjobs/{jobId}", operation_id = "getOpsJob", tag = "opsjobs",
    params(("jobId" = String, Path, description = "The id of the job, which is the name of its OpsJob.")),
    responses((status = 200, description = "The job.", body = JobAnswer), crate::openapi::Refusals),
)]
pub(crate) async fn get(
    State(rest): State<Rest>,
    Extension(caller): Extension<Arc<Caller>>,
    Extension(base): Extension<Base>,
    Path(id): Path<String>,
) -> HandlerResponse {
    answered(detail(rest.parts(), &caller, &base, &id).await, Noted::default())
}

/// The scheme and the address by which a client reached this API.
#[derive(Clone, Debug)]
pub(crate) struct Base(pub(crate) String);

async fn detail(parts: &RestState, caller: &Caller, base: &Base, id: &str) -> Result<HandlerResponse, OpsRefusal> {
    let _turn = parts.reads.take(&QuotaKey::of(&caller.name)).await?;
    let visible = parts.visible(caller, id).await?;
    let mut detail = JobAnswer::of(Item::of(&visible.job, &parts.cluster), &visible.document, parts.ops.defaults());
    parts.address(caller, &base.0, &visible.document, &mut detail.outputs).await?;
    let text = text_of(&detail);
    drop((detail, visible));
    // Other reads wait for the turn, so this answer does not wait for its reservation.
    parts.answer_within(caller, text, Duration::ZERO).await
}

/// Stops a job. The host ends the job by force and releases its targets.
#[utoipa::path(
    post, path = "/api/v1/opsjobs/{jobId}/stop", operation_id = "stopOpsJob", tag = "opsjobs",
    params(("jobId" = String, Path, description = "The id of the job, which is the name of its OpsJob.")),
    responses((status = 200, description = "The API server has accepted the stop, or the job has already ended. The job may stay `Running` for up to 120 s."), crate::openapi::Refusals),
)]
pub(crate) async fn stop(
    State(rest): State<Rest>,
    Extension(caller): Extension<Arc<Caller>>,
    Path(id): Path<String>,
) -> HandlerResponse {
    let mut noted = Noted::of_job(&id);
    let answer = end(rest.parts(), &caller, &mut noted).await;
    answered(answer, noted)
}

async fn end(parts: &RestState, caller: &Caller, noted: &mut Noted) -> Result<HandlerResponse, OpsRefusal> {
    let (visible, _turn) = parts.changed(caller, "update", noted).await?;
    if visible.is_gone || visible.job.view.status.has_ended() || visible.job.view.stops {
        return Ok(HttpBody::empty().into_response());
    }
    let patch = json!({"metadata": {"uid": visible.job.view.uid}, "spec": {"stop": true}});
    let jobs = parts.jobs();
    let stopped = answered_in_time(jobs.patch(&noted.job, &PatchParams::default(), &Patch::Merge(patch))).await?;
    match stopped {
        Ok(stopped) => {
            // Only one of two concurrent stops changes the job.
            noted.has_changed = stopped.metadata.resource_version.as_deref() != Some(&visible.job.view.version);
            parts.ops.take(&serde_json::to_value(&stopped).unwrap_or_default());
        }
        // The job was deleted meanwhile.
        Err(kube::Error::Api(status)) if matches!(status.code, 404 | 409) => {
            return Ok(HttpBody::empty().into_response());
        }
        Err(error) => return Err(of_request(&error, "stop the OpsJob")),
    }
    Ok(HttpBody::empty().into_response())
}

/// Waits for an answer of the API server. It waits for less time than a whole request may take, so a change without an answer is still
/// recorded. The change keeps its turn, and its job in memory, until then.
///
/// # Errors
/// If no answer came in time. The API server may still make the change.
async fn answered_in_time<T>(answer: impl Future<Output = T>) -> Result<T, OpsRefusal> {
    let late = || {
        let message =
            format!("the API server did not answer in {} s: look at the job, and try again", CHANGE_TIME.as_secs());
        OpsRefusal::new(Code::Unreachable, message).after(1)
    };
    tokio::time::timeout(CHANGE_TIME, answer).await.map_err(|_| late())
}

/// Deletes a job. The host stops an unfinished job first.
#[utoipa::path(
    delete, path = "/api/v1/opsjobs/{jobId}", operation_id = "deleteOpsJob", tag = "opsjobs",
    params(("jobId" = String, Path, description = "The id of the job, which is the name of its OpsJob.")),
    responses((status = 200, description = "The API server has accepted the deletion, or the job is already gone. You can read the job until the host has stopped it."), crate::openapi::Refusals),
)]
pub(crate) async fn delete(
    State(rest): State<Rest>,
    Extension(caller): Extension<Arc<Caller>>,
    Path(id): Path<String>,
) -> HandlerResponse {
    let mut noted = Noted::of_job(&id);
    let answer = remove(rest.parts(), &caller, &mut noted).await;
    answered(answer, noted)
}

async fn remove(parts: &RestState, caller: &Caller, noted: &mut Noted) -> Result<HandlerResponse, OpsRefusal> {
    let (visible, _turn) = parts.changed(caller, "delete", noted).await?;
    if visible.is_gone || visible.job.view.deleting {
        return Ok(HttpBody::empty().into_response());
    }
    noted.has_changed = true;
    let uid = Some(visible.job.view.uid.clone());
    let params = DeleteParams::default().preconditions(Preconditions { uid, resource_version: None });
    match answered_in_time(parts.jobs().delete(&noted.job, &params)).await? {
        Ok(_) => Ok(HttpBody::empty().into_response()),
        Err(kube::Error::Api(status)) if matches!(status.code, 404 | 409) => Ok(HttpBody::empty().into_response()),
        Err(error) => Err(of_request(&error, "delete the OpsJob")),
    }
}

/// The names in the path of a file.
#[derive(Deserialize)]
pub(crate) struct FilePath {
    job: String,
    file: String,
}

/// Reads a file of a job. The outputs of the job have the signed address of the file. This address needs no token.
#[utoipa::path(
    get, path = "/api/v1/artifacts/{jobId}/{file}", operation_id = "getArtifact", tag = "artifacts", security(()),
    params(
        ("jobId" = String, Path, description = "The id of the job, which is the name of its OpsJob."),
        ("file" = String, Path, description = "The name of the file, from its address."),
        ("expires" = i64, Query, description = "The time at which the address expires, in seconds since 1970-01-01 UTC."),
        ("sig" = String, Query, description = "The signature of the address."),
        ("Range" = Option<String>, Header, description = "Byte ranges of the file, at most 16. With more than 16 ranges or with overlapping ranges, the answer is the whole file."),
        ("If-Range" = Option<String>, Header, description = "An entity tag or a time. If the file does not match it, the answer is the whole file."),
        ("If-None-Match" = Option<String>, Header, description = "Entity tags of the copies that the client has."),
        ("If-Modified-Since" = Option<String>, Header, description = "The time of the copy that the client has."),
    ),
    responses(
        (status = 200, description = "The whole file.", content_type = "application/octet-stream"),
        (status = 206, description = "One part of the file, or several parts as multipart/byteranges.", content_type = "application/octet-stream"),
        (status = 304, description = "The file has not changed: the copy of the client is current."),
        (status = 412, description = "The file does not match `If-Match` or `If-Unmodified-Since`."),
        (status = 416, description = "The file has no such range."),
        crate::openapi::FileRefusals,
    ),
)]
pub(crate) async fn artifact(
    State(rest): State<Rest>,
    Path(FilePath { job, file }): Path<FilePath>,
    request: Request<HttpBody>,
) -> HandlerResponse {
    answered(rest.parts().file(&job, &file, request).await, Noted::default())
}

/// Answers a request for an unknown path.
pub(crate) async fn no_path(uri: Uri) -> HandlerResponse {
    let path: String = uri.path().chars().take(128).collect();
    answered(Err(OpsRefusal::new(Code::NotFound, format!("there is no path {path}"))), Noted::default())
}

/// Answers a request with a method that its path does not support.
pub(crate) async fn no_method(method: http::Method, uri: Uri) -> HandlerResponse {
    let path: String = uri.path().chars().take(128).collect();
    let message = format!("{path} does not support {method}");
    answered(Err(OpsRefusal::new(Code::MethodNotAllowed, message)), Noted::default())
}
