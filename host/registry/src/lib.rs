//! Copies images between registries, and fetches and publishes plugins, by the distribution protocol of OCI.
//!
//! ```text
//! a plugin:  fetch (tag -> digest -> manifest) -> referrers (signatures) -> judge of oarlock-signature -> content (component) -> sink
//!            publish (component, manifest, signature)
//! an image:  references -> place (which tag) -> gather (manifests and blobs, within bounds) -> blob, 4 at a time -> publish (manifests)
//!                  each request: repository -> login (who asks) -> exchange (redirects, times) -> clients (TLS)
//! ```
//!
//! A refusal shows the registry's own code and message, which the module `said` reads. They are needed because a registry may answer with a
//! wrong status.
//!
//! Blobs are streamed and never held in memory. A registry may be malicious. So requests go only to allowed hosts, and content is published
//! only with the requested digest. The crate `oci-client` is not used for that reason: it follows every realm and every redirect that a
//! registry names, and sends the credentials of the first registry there.

mod blob;
mod clients;
mod content;
mod copy;
mod credentials;
mod exchange;
mod failed;
mod fetch;
mod gather;
mod hosts;
mod image;
mod login;
mod manifest;
mod publish;
mod referrers;
mod repository;
mod said;
mod sink;
mod tally;
mod timeouts;

pub use copy::{Copied, Destination, ImageCopy, Registries, RegistriesFailed};
pub use credentials::{Credentials, credentials_in};
pub use failed::{CopyFailed, Fault};
pub use fetch::{ArtefactRepository, FetchFailed, FetchReason, Verified};
pub use sink::ComponentSink;
pub use tally::CopyProgress;
pub use timeouts::Timeouts;
