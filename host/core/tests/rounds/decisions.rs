//! Decisions of rounds without failures, and the statuses of their jobs.

mod ending;
mod starting;
mod trying_again;
mod wishes;
