//! Tests of loading, vetting, granting, calling and stopping the components that `cargo xtask plugins` builds.

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
mod frozen;
#[cfg(test)]
mod hostile;
#[cfg(test)]
mod printing;
#[cfg(test)]
mod refused;
#[cfg(test)]
mod replaying;
#[cfg(test)]
mod serving;
#[cfg(test)]
mod swapping;
#[cfg(test)]
mod vetting;
