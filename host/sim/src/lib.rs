//! An in-memory Kubernetes API: a tower service that an ordinary client can use. Its status codes, conflicts, watches and
//! deletions match the real server's. It uses no socket and no wall clock unless the caller asks for them. Its only source of
//! randomness outside the seed is the key that signs tokens.
//!
//! ```no_run
//! # async fn example() {
//! use oarlock_sim::{Cluster, Options};
//! let cluster = Cluster::new(Options::default());
//! let client = kube::Client::new(cluster.service(), "default");
//! # }
//! ```

/// Decodes requests, and answers or refuses them as the real server does.
mod server {
    pub(crate) mod callers;
    pub(crate) mod cluster;
    pub(crate) mod decode;
    pub(crate) mod delays;
    pub(crate) mod handle;
    pub(crate) mod list;
    pub(crate) mod listen;
    pub(crate) mod parameters;
    pub(crate) mod protobuf;
    pub(crate) mod query;
    pub(crate) mod reply;
    pub(crate) mod response_form;
    pub(crate) mod routing;
    pub(crate) mod status;
    pub(crate) mod watch;
}
/// The writing requests and the log request, one file each.
mod verbs {
    pub(crate) mod apply;
    pub(crate) mod binding;
    pub(crate) mod containers;
    pub(crate) mod create;
    pub(crate) mod delete;
    pub(crate) mod eviction;
    pub(crate) mod log;
    pub(crate) mod patch;
    pub(crate) mod scale;
    pub(crate) mod token_request;
    pub(crate) mod update;
}
/// Users, impersonation, roles, tokens, and the reviews that ask about them.
mod access {
    pub(crate) mod default_roles;
    pub(crate) mod gate;
    pub(crate) mod impersonation;
    pub(crate) mod rbac;
    pub(crate) mod reviews;
    pub(crate) mod token;
    pub(crate) mod token_review;
    pub(crate) mod user;
}
/// The built-in kinds, the kinds of CustomResourceDefinitions, and the rules of single kinds.
mod kinds {
    pub(crate) mod crd_kinds;
    pub(crate) mod events;
    pub(crate) mod job_policy_rules;
    pub(crate) mod job_rules;
    pub(crate) mod job_selector_rules;
    pub(crate) mod job_success_rules;
    pub(crate) mod job_update_rules;
    pub(crate) mod jobs;
    pub(crate) mod pods;
    pub(crate) mod registry;
    pub(crate) mod schema;
    pub(crate) mod workloads;
}
/// The steps from a decoded body to the stored object: prune, default, prepare, validate.
mod lifecycle {
    pub(crate) mod built_in_defaults;
    pub(crate) mod cel_rules;
    pub(crate) mod metadata;
    pub(crate) mod normalise;
    pub(crate) mod prepare;
    pub(crate) mod prune;
    pub(crate) mod schema_defaults;
    pub(crate) mod validate;
}
/// Patches and server-side apply as functions of objects, and the managed fields.
mod merge {
    pub(crate) mod apply_merge;
    pub(crate) mod field_set;
    pub(crate) mod managed_fields;
    pub(crate) mod strategic_merge;
}
/// ValidatingAdmissionPolicies, and the CEL of policies and schemas.
mod admission {
    pub(crate) mod cel_authorizer;
    pub(crate) mod cel_eval;
    pub(crate) mod cel_macros;
    pub(crate) mod policies;
}
/// The cluster's built-in controllers. They run inside the request whose write concerns them.
mod controllers {
    pub(crate) mod budgets;
    pub(crate) mod crds;
    pub(crate) mod edit;
    pub(crate) mod garbage;
    pub(crate) mod namespaces;
    pub(crate) mod roles;
    pub(crate) mod run;
}
/// The tables for `kubectl get`.
mod printing {
    pub(crate) mod cell;
    pub(crate) mod duration;
    pub(crate) mod json_path;
    pub(crate) mod rows;
    pub(crate) mod table;
    pub(crate) mod workload_rows;
}
/// The discovery documents: versions, groups, resources and OpenAPI.
mod discovery {
    pub(crate) mod documents;
    pub(crate) mod openapi;
    pub(crate) mod openapi_v2;
    pub(crate) mod openapi_wire;
}
mod clock;
mod image_registry;
mod object;
mod random;
mod selectors;
mod storage;
pub mod world;

pub use clock::{Clock, RealClock, VirtualClock};
pub use image_registry::ImageRegistry;
pub use kinds::registry::TableId;
pub use random::Random;
pub use server::cluster::{ApiService, Cluster, Options, RequestKind};
pub use server::delays::Delays;
pub use server::listen::serve;
pub use server::reply::ApiBody;
pub use server::routing::Verb;
pub use storage::{Change, Key, LogEntry, ObjectVersion};
