//! Generates the OpenAPI document of the API from the types that serve it. Source: docs/opsjob-rest.md 1.

use std::collections::BTreeMap;

use oarlock_core::ops_job::refusal::Code;
use serde::Serialize;
use utoipa::openapi::security::{HttpAuthScheme, HttpBuilder, SecurityScheme};
use utoipa::openapi::{ContentBuilder, HeaderBuilder, Object, RefOr, Response, ResponseBuilder, Type};
use utoipa::{IntoParams, IntoResponses, Modify, OpenApi, ToSchema};

use crate::answers::{Created, Rehearsed};
use crate::errors::ErrorBody;
use crate::handlers;

/// Returns the OpenAPI document.
pub fn document() -> utoipa::openapi::OpenApi {
    Description::openapi()
}

#[derive(OpenApi)]
#[openapi(
    info(
        title = "OpsJob API",
        description = "Creates, lists, stops and deletes administrative jobs on the nodes and workloads of a cluster. \
            Get a token with `kubectl create token NAME --audience oarlock`.",
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
            bearer.description(Some("A JSON Web Token from the API server for the audience `oarlock`.")).build(),
        );
        document.components.get_or_insert_default().add_security_scheme("token", scheme);
    }
}

/// Reports that the server is alive.
#[utoipa::path(
    get, path = "/healthz", operation_id = "healthz", tag = "health", security(()),
    responses((status = 200, description = "The server is alive.", content_type = "text/plain", body = String)),
)]
pub(crate) async fn healthz() -> &'static str {
    "ok\n"
}

/// Reports whether the server is ready. The server is ready once it has listed the OpsJobs.
#[utoipa::path(
    get, path = "/readyz", operation_id = "readyz", tag = "health", security(()),
    responses(
        (status = 200, description = "The server is ready.", content_type = "text/plain", body = String),
        (status = 503, description = "The server is not ready. The body names the missing part.", content_type = "text/plain", body = String),
    ),
)]
#[expect(dead_code, reason = "it describes the path that the host's own health answers")]
pub(crate) async fn readyz() {}

/// A key that marks repetitions of one request. It has 1 to 64 letters, digits, `_` and `-`.
#[derive(ToSchema)]
#[schema(value_type = String, pattern = "^[A-Za-z0-9_-]{1,64}$")]
#[expect(dead_code, reason = "it describes a text")]
pub(crate) struct RequestKey(String);

/// The way in which the server treats unknown fields. `Strict` refuses the request. `Warn` names the fields in `Warning` headers.
/// `Ignore` ignores the fields.
#[derive(ToSchema)]
#[expect(dead_code, reason = "it describes a text")]
pub(crate) enum FieldValidationWord {
    Strict,
    Warn,
    Ignore,
}

/// `All` checks the request and creates no job.
#[derive(ToSchema)]
#[expect(dead_code, reason = "it describes a text")]
pub(crate) enum DryRunWord {
    All,
}

/// The type of a job, which says what the job does.
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

/// The order of a list: ascending or descending.
#[derive(ToSchema)]
#[schema(rename_all = "lowercase")]
#[expect(dead_code, reason = "it describes a text")]
pub(crate) enum OrderWord {
    Asc,
    Desc,
}

/// The phase of a job.
#[derive(ToSchema)]
#[expect(dead_code, reason = "it describes a text")]
pub(crate) enum PhaseWord {
    Pending,
    Running,
    Succeeded,
    Failed,
}

/// A request to create a job. A `null` counts as an absent field. A zero or empty value counts as absent in a field of another job type.
/// Numbers have no exponent, and whole numbers have no decimal point.
#[derive(ToSchema)]
#[schema(rename_all = "camelCase")]
#[expect(dead_code, reason = "it describes what the core reads")]
pub(crate) struct CreateOpsJob {
    /// The name of the job: 1 to 256 bytes in any script, with at least one letter, digit or other visible character.
    /// The server makes the id of the job from this name.
    #[schema(min_length = 1, max_length = 256, example = "reboot-node")]
    name: String,
    /// The type of the job.
    r#type: JobType,
    /// The selectors and options of the job. At least one input is node, node.host, workload, workspace or cluster.
    #[schema(min_items = 1, max_items = 5000)]
    inputs: Vec<JobInput>,
    /// Seconds from the creation of the job until the host ends the job by force. No limit if absent, 0 or less.
    timeout_second: Option<i32>,
    /// Seconds that the job stays after its end. 3600 if absent. 0 deletes the job at once. A negative value keeps the job forever.
    ttl_seconds_after_finished: Option<i32>,
    /// Names and hosts of nodes that the job must leave out.
    #[schema(max_items = 5000)]
    excluded_nodes: Option<Vec<String>>,
    /// True if cordoned and tainted nodes are targets too. False if absent.
    is_tolerate_all: Option<bool>,
    /// addon, reboot, preflight: the most nodes that the job works on at once.
    /// If 0 or absent: 1 for an addon or a reboot, all nodes for a preflight.
    #[schema(minimum = 0)]
    batch_count: Option<i32>,
    /// addon, reboot, preflight: the share of nodes that must succeed, with at most 9 decimals. 1 if 0 or absent.
    #[schema(minimum = 0.0, maximum = 1.0)]
    available_ratio: Option<f64>,
    /// addon: the job waits for each node until no pod of a workload is on it.
    /// preflight: the job leaves out nodes with such pods. False if absent.
    security_upgrade: Option<bool>,
    /// Another name of `securityUpgrade`. If a request has both, their values must be equal.
    security_operation: Option<bool>,
    /// preflight: the resources that the check requests.
    resource: Option<JobResource>,
    /// preflight: the input `workspace`, in addition to the other inputs. Empty counts as absent.
    workspace_id: Option<String>,
    /// preflight: the number of nodes to check, among the nodes of a workspace or cluster. All nodes if 0 or absent.
    #[schema(minimum = 0)]
    replica: Option<i32>,
    /// preflight: the container image of the check. Required for a preflight.
    image: Option<String>,
    /// preflight: the script of the check in Base64, 1 byte to 96 KiB. Required for a preflight.
    entry_point: Option<String>,
    /// preflight: at most 64 environment variables of the check. Every reader of the job can read the values, so put no secrets here.
    env: Option<BTreeMap<String, String>>,
    /// preflight: at most 16 absolute paths of node directories that the check mounts. The grant of the plugin must list each path.
    #[schema(max_items = 16)]
    hostpath: Option<Vec<String>>,
}

/// A selector or an option of a job.
#[derive(ToSchema)]
#[expect(dead_code, reason = "it describes what the core reads")]
pub(crate) struct JobInput {
    /// The name of the input: node, node.host, workload, workspace, cluster or label. An addon also takes addon.template, node.template or
    /// script, a reboot takes drain, and an exportimage takes mode or container.
    #[schema(example = "node")]
    name: String,
    /// The value of the input, such as the name of a node. The input `drain` takes true or false.
    #[schema(min_length = 1, max_length = 524_288, example = "node-0")]
    value: String,
}

/// The resources that a check requests, as Kubernetes quantities. The same values are the limits of the check.
#[derive(ToSchema)]
#[schema(rename_all = "camelCase")]
#[expect(dead_code, reason = "it describes what the core reads")]
pub(crate) struct JobResource {
    /// CPU, in cores or millicores.
    #[schema(example = "500m")]
    cpu: Option<String>,
    /// The number of GPUs.
    gpu: Option<String>,
    /// The resource name of the GPUs, such as nvidia.com/gpu.
    gpu_name: Option<String>,
    /// Memory, in bytes or with a suffix.
    #[schema(example = "1Gi")]
    memory: Option<String>,
    /// The size of /dev/shm.
    shared_memory: Option<String>,
    /// Ephemeral storage, in bytes or with a suffix.
    ephemeral_storage: Option<String>,
    /// Not supported: the server refuses a request with this field.
    rdma_resource: Option<String>,
    /// Another name of the field `replica` of the request. If a request has both, their values must be equal.
    #[schema(minimum = 0)]
    replica: Option<i32>,
}

/// The job that the request created, or the result of a dry run.
#[derive(Serialize, ToSchema)]
#[serde(untagged)]
pub(crate) enum CreatedOrRehearsed {
    Created(Created),
    Rehearsed(Rehearsed),
}

/// The query parameters of a list.
#[derive(IntoParams)]
#[into_params(parameter_in = Query, rename_all = "camelCase")]
#[expect(dead_code, reason = "it describes what the query is read as")]
pub(crate) struct ListParameters {
    /// The number of matching jobs to skip before the page. 0 if absent.
    #[param(minimum = 0)]
    offset: Option<i64>,
    /// The most jobs of the page. 100 if 0 or absent.
    #[param(minimum = 0, maximum = 10000)]
    limit: Option<i64>,
    /// The field to sort by, in any case: jobId, jobName, clusterId, workspaceId, userId, userName, type, phase, creationTime,
    /// startTime, endTime, deletionTime or timeoutSecond. Any other word, or none, sorts by creationTime.
    sort_by: Option<String>,
    /// The order of the list. `desc` if absent.
    order: Option<OrderWord>,
    /// The earliest creation time, inclusive, in RFC 3339. 720 hours before `until` if absent.
    #[param(example = "2026-01-31T08:00:00Z")]
    since: Option<String>,
    /// The latest creation time, inclusive, in RFC 3339. Now if absent.
    #[param(example = "2026-01-31T08:00:00Z")]
    until: Option<String>,
    /// The exact cluster id of the jobs.
    cluster_id: Option<String>,
    /// The exact workspace id of the jobs.
    workspace_id: Option<String>,
    /// A part of the name of the owner, in any case of ASCII.
    #[param(max_length = 512)]
    user_name: Option<String>,
    /// A part of the name or of the id of the job, in any case of ASCII.
    #[param(max_length = 512)]
    job_name: Option<String>,
    /// The exact phase of the jobs.
    phase: Option<PhaseWord>,
    /// The type of the jobs: addon, preflight, dumplog, reboot or exportimage. Any other word gives an empty list.
    r#type: Option<String>,
    /// If true, the list also has deleted jobs. False if absent.
    deleted: Option<bool>,
}

/// Returns the responses for these refusal codes, one for each HTTP status.
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
                .description(Some("Seconds to wait before the next request."));
            response = response.header("Retry-After", seconds.build());
        }
        (status.to_string(), RefOr::T(response.build()))
    };
    of_status.into_iter().map(response).collect()
}

/// The refusal codes of every authenticated request.
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

    /// Collects all texts at `$ref`.
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
