//! OpsJobs over HTTP: an API that clients of the OpsJob API already know. Source: docs/opsjob-rest.md.
//!
//! The API server authenticates callers and decides what they may do. The rules of the controller decide whether a body is valid. This
//! crate creates OpsJob objects, as kubectl does. Its only state is caches that live for seconds.

mod answer_room;
mod answers;
mod artefacts;
mod audit;
mod audit_log;
mod bodies;
mod caller;
mod connections;
mod cors;
mod counters;
mod create;
mod errors;
mod file_answer;
mod handlers;
mod issuer;
mod keyed;
pub mod openapi;
mod proxies;
mod query;
mod quotas;
mod ranges;
mod rates;
mod reservations;
mod rights;
mod room;
mod serve;
mod signatures;
mod state;
mod turns;
mod visible;

pub use crate::caller::Caller;
pub use crate::cors::Origin;
pub use crate::counters::{ANSWER_BOUNDS, Answered, RestCounts};
pub use crate::serve::{Beside, Listening, Readiness, RestError, Tls};
pub use crate::signatures::make_first_key;
pub use crate::state::{HostOf, Rest, RestOptions};

/// The most bytes that all requests take together: connections, heads, tokens, buffers of TLS and files, bodies and their parsed form,
/// answers, lists, single jobs, and lookups.
pub const MOST_MEMORY: usize = connections::MOST_BYTES
    + connections::ALL * (serve::HEAD + OF_TOKEN + OF_TLS + 3 * file_answer::CHUNK)
    + bodies::ROOM / 2 * 3
    + answer_room::ROOM
    + turns::MOST_JOBS * OF_LISTED_JOB
    + 2 * turns::JOBS * OF_JOB
    + turns::LOOKUPS * OF_LOOKUP;
/// The most bytes that requests take beside [`MOST_MEMORY`] if the listener also speaks HTTP/2: received bytes that nobody has read yet, and the
/// heads, tokens and send buffers of streams. The head of an HTTP/1 connection has its room already.
pub const MOST_MEMORY_OF_HTTP2: usize = connections::ALL
    * (serve::RECEIVED as usize + serve::FRAME as usize - serve::HEAD)
    + connections::STREAMS * (serve::HEAD + OF_TOKEN + serve::SENT_OF_STREAM);
/// The most bytes of one object lookup. The API server stores 1.5 MiB, and a parsed object takes ten times as much.
const OF_LOOKUP: usize = 16 * 1024 * 1024;
/// The most bytes of a job that is read. Its names and texts take up to five times the 1.5 MiB that the API server stores.
const OF_JOB: usize = 8 * 1024 * 1024;
/// The bytes of a token and its parts during a check.
const OF_TOKEN: usize = 32 * 1024;
/// The bytes of the buffers of a TLS connection.
const OF_TLS: usize = 40 * 1024;
/// The bytes of a job in a list, with its row.
const OF_LISTED_JOB: usize = 2_500;
