//! What rounds decide where all goes well, and what their jobs say of it.

mod ending;
mod starting;
mod trying_again;
mod wishes;
