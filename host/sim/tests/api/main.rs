//! Tests through an ordinary client that the in-memory API behaves as a real API server does.

#[cfg(test)]
mod applied;
#[cfg(test)]
mod evictions;
#[cfg(test)]
mod logs;
#[cfg(test)]
mod namespaces;
#[cfg(test)]
mod served;
#[cfg(test)]
mod tokens;
