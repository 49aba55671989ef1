//! The description of the API in OpenAPI, from the types that it is served by. Source: docs/opsjob-rest.md 1.

use std::collections::BTreeMap;

use oarlock_core::ops_job::refusal::Code;
use serde::Serialize;
use utoipa::openapi::security::{HttpAuthScheme, HttpBuilder, SecurityScheme};
use utoipa::openapi::{ContentBuilder, HeaderBuilder, Object, RefOr, Response, ResponseBuilder, Type};
use utoipa::{IntoParams, IntoResponses, Modify, OpenApi, ToSchema};

use crate::answers::{Created, Rehearsed};
use crate::errors::ErrorBody;
use crate::handlers;

/// The description.
pub fn document() -> utoipa::openapi::OpenApi {
    Description::openapi()
}

#[derive(OpenApi)]
#[openapi(
    info(
        title = "OpsJob API",
        description = "Administrative tasks on the nodes and workloads of a cluster: they are made, followed, stopped and deleted here. \
            A token is made by `kubectl create token NAME --audience oarlock`.",
        license(name = "Apache-2.0", identifier = "Apache-2.0"),
    ),
    paths(
        handlers::create, handlers::list, handlers::get, handlers::stop, handlers::delete, handlers::artifact, healthz, readyz,
    ),
    components(schemas(ErrorBody, FieldValidationWord, DryRunWord, RequestKey, PhaseWord, JobType, OrderWord)),
    modifiers(&Login),
    security(("token" = [])),
)]
struct Description;

struct Login;

impl Modify for Login {
    fn modify(&self, document: &mut utoipa::openapi::OpenApi) {
        let bearer = HttpBuilder::new().scheme(HttpAuthScheme::Bearer).bearer_format("JWT");
        let scheme = SecurityScheme::Http(
            bearer.description(Some("A token of the API server for the audience oarlock")).build(),
        );
        document.components.get_or_insert_default().add_security_scheme("token", scheme);
    }
}

/// Alive: the process answers.
#[utoipa::path(
    get, path = "/healthz", operation_id = "healthz", tag = "health", security(()),
    responses((status = 200, description = "It answers.", content_type = "text/plain", body = String)),
)]
pub(crate) async fn healthz() -> &'static str {
    "ok\n"
}

/// Ready: what it needs has been read.
#[utoipa::path(
    get, path = "/readyz", operation_id = "readyz", tag = "health", security(()),
    responses(
        (status = 200, description = "It is ready.", content_type = "text/plain", body = String),
        (status = 503, description = "It waits for something, which is named.", content_type = "text/plain", body = String),
    ),
)]
#[expect(dead_code, reason = "it describes the path that the host's own health answers")]
pub(crate) async fn readyz() {}

/// A key by which a request that is repeated is known.
#[derive(ToSchema)]
#[schema(value_type = String, pattern = "^[A-Za-z0-9_-]{1,64}$")]
#[expect(dead_code, reason = "it describes a text")]
pub(crate) struct RequestKey(String);

/// What is done with fields that no job has.
#[derive(ToSchema)]
#[expect(dead_code, reason = "it describes a text")]
pub(crate) enum FieldValidationWord {
    Strict,
    Warn,
    Ignore,
}

/// All is checked and nothing made.
#[derive(ToSchema)]
#[expect(dead_code, reason = "it describes a text")]
pub(crate) enum DryRunWord {
    All,
}

/// What a job does.
#[derive(ToSchema)]
#[schema(rename_all = "lowercase")]
#[expect(dead_code, reason = "it describes a text")]
pub(crate) enum JobType {
    Addon,
    Preflight,
    Dumplog,
    Reboot,
    Exportimage,
}

/// In which order.
#[derive(ToSchema)]
#[schema(rename_all = "lowercase")]
#[expect(dead_code, reason = "it describes a text")]
pub(crate) enum OrderWord {
    Asc,
    Desc,
}

/// How far a job is.
#[derive(ToSchema)]
#[expect(dead_code, reason = "it describes a text")]
pub(crate) enum PhaseWord {
    Pending,
    Running,
    Succeeded,
    Failed,
}

/// A request to make a job. `null`, and what is empty or zero of another type, is as absent. Numbers have no exponent, and whole ones no point.
#[derive(ToSchema)]
#[schema(rename_all = "camelCase")]
#[expect(dead_code, reason = "it describes what the core reads")]
pub(crate) struct CreateOpsJob {
    /// What the id begins with, at most 256 bytes. One letter, digit or other sign that shows at least, of any script.
    #[schema(min_length = 1, max_length = 256, example = "reboot-node")]
    name: String,
    /// What it does.
    r#type: JobType,
    /// On what, and how. One of node, node.host, workload, workspace and cluster at least.
    #[schema(min_items = 1, max_items = 5000)]
    inputs: Vec<JobInput>,
    /// Seconds from its creation to its end by force; none at most 0.
    timeout_second: Option<i32>,
    /// Seconds that it stays after its end; for ever below 0; 3600 when absent.
    ttl_seconds_after_finished: Option<i32>,
    /// Names and hosts of nodes that are left out.
    #[schema(max_items = 5000)]
    excluded_nodes: Option<Vec<String>>,
    /// Cordoned and tainted nodes are taken.
    is_tolerate_all: Option<bool>,
    /// addon, reboot, preflight: most nodes at once; 1 when 0 or absent, of a preflight all.
    #[schema(minimum = 0)]
    batch_count: Option<i32>,
    /// addon, reboot, preflight: the share of nodes that has to succeed, with 9 decimals at most; 1 when 0 or absent.
    #[schema(minimum = 0.0, maximum = 1.0)]
    available_ratio: Option<f64>,
    /// addon: waits until a node has no pods of workloads. preflight: leaves such nodes out.
    security_upgrade: Option<bool>,
    /// The same as securityUpgrade.
    security_operation: Option<bool>,
    /// preflight: what the check requests.
    resource: Option<JobResource>,
    /// preflight: the same as the input workspace, beside the other inputs.
    workspace_id: Option<String>,
    /// preflight: so many nodes of a workspace or cluster; all when 0.
    #[schema(minimum = 0)]
    replica: Option<i32>,
    /// preflight: the image of the check. Required.
    image: Option<String>,
    /// preflight: the script of the check in Base64, of 1 byte to 96 KiB. Required.
    entry_point: Option<String>,
    /// preflight: variables of the check. No secrets.
    env: Option<BTreeMap<String, String>>,
    /// preflight: directories of the node that the check sees.
    #[schema(max_items = 16)]
    hostpath: Option<Vec<String>>,
}

/// On what a job works, or how.
#[derive(ToSchema)]
#[expect(dead_code, reason = "it describes what the core reads")]
pub(crate) struct JobInput {
    /// node, node.host, workload, workspace, cluster or label; of an addon addon.template, node.template or script; of a reboot drain; of
    /// an exportimage mode or container.
    #[schema(example = "node")]
    name: String,
    /// A name; of drain, true or false.
    #[schema(min_length = 1, max_length = 524_288, example = "node-0")]
    value: String,
}

/// What a check requests and may use.
#[derive(ToSchema)]
#[schema(rename_all = "camelCase")]
#[expect(dead_code, reason = "it describes what the core reads")]
pub(crate) struct JobResource {
    #[schema(example = "500m")]
    cpu: Option<String>,
    /// How many.
    gpu: Option<String>,
    /// Their resource, such as nvidia.com/gpu.
    gpu_name: Option<String>,
    #[schema(example = "1Gi")]
    memory: Option<String>,
    /// The size of /dev/shm.
    shared_memory: Option<String>,
    ephemeral_storage: Option<String>,
    rdma_resource: Option<String>,
    /// The same as replica.
    #[schema(minimum = 0)]
    replica: Option<i32>,
}

/// The job that was made, or that would be.
#[derive(Serialize, ToSchema)]
#[serde(untagged)]
pub(crate) enum CreatedOrRehearsed {
    Created(Created),
    Rehearsed(Rehearsed),
}

/// Which jobs a list has, in which order.
#[derive(IntoParams)]
#[into_params(parameter_in = Query, rename_all = "camelCase")]
#[expect(dead_code, reason = "it describes what the query is read as")]
pub(crate) struct ListParameters {
    /// So many jobs are left out first.
    #[param(minimum = 0)]
    offset: Option<i64>,
    /// Most jobs of the answer; 100 when 0 or absent.
    #[param(minimum = 0, maximum = 10000)]
    limit: Option<i64>,
    /// The field to sort by, in any case: jobId, jobName, clusterId, workspaceId, userId, userName, type, phase, creationTime,
    /// startTime, endTime, deletionTime or timeoutSecond. creationTime when absent or another word.
    sort_by: Option<String>,
    /// desc when absent.
    order: Option<OrderWord>,
    /// The earliest creation, in RFC 3339; 720 hours before `until` when absent.
    #[param(example = "2026-01-31T08:00:00Z")]
    since: Option<String>,
    /// The latest creation; now when absent.
    #[param(example = "2026-01-31T08:00:00Z")]
    until: Option<String>,
    cluster_id: Option<String>,
    workspace_id: Option<String>,
    /// A part of the name of the user.
    #[param(max_length = 512)]
    user_name: Option<String>,
    /// A part of the name or of the id of the job.
    #[param(max_length = 512)]
    job_name: Option<String>,
    phase: Option<PhaseWord>,
    /// addon, preflight, dumplog, reboot or exportimage. The list is empty for another word.
    r#type: Option<String>,
    /// true: jobs that somebody deleted are in the list, too.
    deleted: Option<bool>,
}

/// The refusals of these codes, one for each status.
fn refusals(codes: &[Code]) -> BTreeMap<String, RefOr<Response>> {
    let mut of_status: BTreeMap<u16, Vec<&str>> = BTreeMap::new();
    for code in codes {
        let words = of_status.entry(code.status()).or_default();
        if !words.contains(&code.word()) {
            words.push(code.word());
        }
    }
    let response = |(status, words): (u16, Vec<&str>)| {
        let content = ContentBuilder::new().schema(Some(utoipa::openapi::Ref::from_schema_name("ErrorBody"))).build();
        let mut response = ResponseBuilder::new().description(words.join(", ")).content("application/json", content);
        if matches!(status, 429) {
            let seconds = HeaderBuilder::new()
                .schema(Some(Object::with_type(Type::Integer)))
                .description(Some("Seconds to wait"));
            response = response.header("Retry-After", seconds.build());
        }
        (status.to_string(), RefOr::T(response.build()))
    };
    of_status.into_iter().map(response).collect()
}

/// Of every request of somebody.
const OF_ALL: [Code; 5] = [Code::BadRequest, Code::Unauthenticated, Code::TooMany, Code::Internal, Code::Unreachable];

/// The refusals of a request about one job.
pub(crate) struct Refusals;

impl IntoResponses for Refusals {
    fn responses() -> BTreeMap<String, RefOr<Response>> {
        refusals(&[&OF_ALL[..], &[Code::Forbidden, Code::NotFound]].concat())
    }
}

/// The refusals of a list.
pub(crate) struct ListRefusals;

impl IntoResponses for ListRefusals {
    fn responses() -> BTreeMap<String, RefOr<Response>> {
        refusals(&OF_ALL)
    }
}

/// The refusals of a request to make a job.
pub(crate) struct CreateRefusals;

impl IntoResponses for CreateRefusals {
    fn responses() -> BTreeMap<String, RefOr<Response>> {
        let own = Code::ALL.into_iter().filter(|code| *code != Code::MethodNotAllowed);
        refusals(&own.collect::<Vec<_>>())
    }
}

/// The refusals of a file.
pub(crate) struct FileRefusals;

impl IntoResponses for FileRefusals {
    fn responses() -> BTreeMap<String, RefOr<Response>> {
        refusals(&[Code::BadRequest, Code::Forbidden, Code::NotFound, Code::Unreachable])
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use oarlock_core::ops_job::body::{FIELDS, RESOURCE_FIELDS};
    use serde_json::{Value, json};

    use super::*;

    fn fields(document: &Value, schema: &str) -> BTreeSet<String> {
        let fields = &document["components"]["schemas"][schema]["properties"];
        fields.as_object().expect(schema).keys().cloned().collect()
    }

    #[test]
    fn it_has_the_fields_that_are_read() {
        let document = serde_json::to_value(document()).unwrap();
        assert_eq!(document["openapi"], json!("3.1.0"));
        let read: BTreeSet<String> = FIELDS.iter().map(|(name, _)| (*name).to_owned()).collect();
        assert_eq!(fields(&document, "CreateOpsJob"), read);
        let read: BTreeSet<String> = RESOURCE_FIELDS.iter().map(|name| (*name).to_owned()).collect();
        assert_eq!(fields(&document, "JobResource"), read);
    }

    /// All texts at `$ref`.
    fn references(value: &Value, found: &mut Vec<String>) {
        match value {
            Value::Object(fields) => {
                found.extend(fields.get("$ref").and_then(Value::as_str).map(str::to_owned));
                fields.values().for_each(|value| references(value, found));
            }
            Value::Array(items) => items.iter().for_each(|value| references(value, found)),
            _ => {}
        }
    }

    #[test]
    fn all_that_it_refers_to_is_in_it() {
        let document = serde_json::to_value(document()).unwrap();
        let mut found = Vec::new();
        references(&document, &mut found);
        assert!(found.len() > 10);
        for reference in found {
            assert!(document.pointer(reference.trim_start_matches('#')).is_some(), "{reference}");
        }
    }

    #[test]
    fn every_code_is_described_for_the_request_that_makes_jobs() {
        let document = serde_json::to_value(document()).unwrap();
        let responses = document["paths"]["/api/v1/opsjobs"]["post"]["responses"].as_object().unwrap().clone();
        let described = Value::Object(responses).to_string();
        for code in Code::ALL.into_iter().filter(|code| *code != Code::MethodNotAllowed) {
            assert!(described.contains(code.word()), "{code:?}");
        }
    }

    #[test]
    fn what_is_checked_in_is_what_is_served() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/openapi.json");
        let text = format!("{}\n", document().to_pretty_json().unwrap());
        if std::env::var_os("OARLOCK_WRITE_GOLDEN").is_some() {
            std::fs::write(path, &text).unwrap();
        }
        let stored = std::fs::read_to_string(path).unwrap_or_default();
        assert!(
            stored == text,
            "host/rest/openapi.json differs: run this test with OARLOCK_WRITE_GOLDEN=1, and commit the file"
        );
    }
}
