//! Takes the in-memory API through the ordinary client, shows that it behaves as a real API server does. May not look
//! inside.

#[cfg(test)]
mod applied;
#[cfg(test)]
mod custom;
#[cfg(test)]
mod evictions;
#[cfg(test)]
mod objects;
#[cfg(test)]
mod served;
