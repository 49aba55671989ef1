//! Plugins that were built, in the host that runs them.
//!
//! Takes the components of `cargo xtask plugins`; shows how they are found, vetted, granted, called and stopped.

#[cfg(test)]
mod calls;
#[cfg(test)]
mod compiling;
#[cfg(test)]
mod components;
#[cfg(test)]
mod files;
#[cfg(test)]
mod folder;
#[cfg(test)]
mod hostile;
#[cfg(test)]
mod serving;
#[cfg(test)]
mod vetting;
