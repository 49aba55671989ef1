//! The in-memory API, through the ordinary client, behaves as a real API server does.

#[cfg(test)]
mod applied;
#[cfg(test)]
mod batch_jobs;
#[cfg(test)]
mod custom;
#[cfg(test)]
mod evictions;
#[cfg(test)]
mod logs;
#[cfg(test)]
mod namespaces;
#[cfg(test)]
mod objects;
#[cfg(test)]
mod pods;
#[cfg(test)]
mod served;
#[cfg(test)]
mod tokens;
