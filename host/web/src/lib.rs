//! The pages of jobs for browsers. They show the objects as the API server stores them, and change nothing. Source: docs/page.md.
//!
//! The watches of a [`Mirror`](oarlock_kube::watch::mirror::Mirror) provide all objects, so a viewer costs the API server only reviews of his
//! token and rights. `oarlock-page` makes the HTML.

mod answers;
mod hub;
mod log;
mod login;
mod seal;
mod shown;
mod sight;
mod slots;
mod state;
mod stream;
mod viewer;
mod web;

pub use crate::shown::KINDS;
pub use crate::viewer::PageAdmission;
pub use crate::web::{WebOptions, pages};
