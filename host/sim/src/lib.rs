//! An in-memory Kubernetes API: a tower service that the ordinary client is constructed on, with the real server's
//! status codes, conflicts, watches and deletions. It takes requests and a clock, yields responses, and may not use
//! sockets, the wall clock or chance unless it is told to.
//!
//! ```no_run
//! # async fn example() {
//! use oarlock_sim::{Cluster, Options};
//! let cluster = Cluster::new(Options::default());
//! let client = kube::Client::new(cluster.service(), "default");
//! # }
//! ```

mod admission;
mod apply;
mod budget;
mod cel_entries;
mod cel_eval;
mod clock;
mod cluster;
mod create;
mod custom;
mod decode;
mod defaulting;
mod defaults;
mod definitions;
mod delete;
mod discovery;
mod duration;
mod edit;
mod events;
mod eviction;
mod fields;
mod garbage;
mod handle;
mod jobs;
mod json_path;
mod kinds;
mod list;
mod managers;
mod merge;
mod merging;
mod metadata;
mod namespaces;
mod normal;
mod object;
mod openapi;
mod options;
mod patch;
mod pods;
mod protobuf;
mod prune;
mod query;
mod random;
mod reply;
mod routing;
mod rows;
mod rules;
mod scale;
mod schema;
mod selectors;
mod server;
mod settle;
mod shape;
mod status;
mod storage;
mod strategic;
mod strategy;
mod table;
mod update;
mod validate;
mod watch;
mod workloads;
pub mod world;

pub use clock::{Clock, RealClock, VirtualClock};
pub use cluster::{ApiService, Cluster, Options, RequestKind};
pub use kinds::TableId;
pub use reply::ApiBody;
pub use routing::Verb;
pub use server::serve;
pub use storage::{Change, Entry, Key, Version};
