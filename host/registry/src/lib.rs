//! Copies an image from one registry to another, by the distribution protocol of OCI.
//!
//! ```text
//! references -> place (which tag) -> gather (manifests and blobs, within bounds) -> blob, 4 at a time -> publish (manifests)
//!                  each request: repository -> login (who asks) -> exchange (redirects, times) -> clients (TLS)
//! ```
//!
//! A refusal has the registry's own code and words, as `said` reads them: a registry may answer with the wrong status.
//!
//! Blobs are streamed and never held. A registry may lie: what it names is followed only to hosts that are allowed, and what it
//! serves is published only with the digest that was asked for. The crate `oci-client` is not used for that reason: it follows every
//! realm and every redirect that a registry names, with the credentials of the first.

mod blob;
mod clients;
mod copy;
mod credentials;
mod digest;
mod exchange;
mod failed;
mod gather;
mod hosts;
mod image;
mod login;
mod manifest;
mod patience;
mod repository;
mod said;
mod tally;

pub use copy::{Copied, Destination, ImageCopy, Registries, RegistriesFailed};
pub use credentials::{Credentials, credentials_in};
pub use failed::{CopyFailed, Fault};
pub use patience::Patience;
pub use tally::CopyProgress;
