//! Lines in the host's log, for whoever runs the plugin. The host may shorten or
//! drop them, and they change no result.

use crate::backend;

/// How much a line matters.
pub use crate::wit::Level;

/// Whether lines of this level are kept. Ask before building a costly line.
#[must_use]
pub fn enabled(level: Level) -> bool {
    backend::enabled(level)
}

/// Writes one line with its fields, which are key and value pairs.
pub fn write(level: Level, message: &str, fields: &[(&str, &str)]) {
    let fields: Vec<_> = fields.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
    backend::write(level, message, &fields);
}

/// Writes one line on what happened in normal operation.
pub fn info(message: &str, fields: &[(&str, &str)]) {
    write(Level::Info, message, fields);
}

/// Writes one line on something unexpected.
pub fn warn(message: &str, fields: &[(&str, &str)]) {
    write(Level::Warn, message, fields);
}
