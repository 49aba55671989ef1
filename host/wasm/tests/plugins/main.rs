//! Plugins that were built, in the host that runs them.
//!
//! Takes the components of `cargo xtask plugins`; shows how they are found, vetted, granted, called and stopped.

mod calls;
mod compiling;
mod components;
mod files;
mod folder;
mod hostile;
mod serving;
mod vetting;
