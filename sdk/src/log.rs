//! Writes lines to the host's log, for the operator of the plugin. The host may
//! shorten or drop lines. They change no result.

use crate::backend;

/// The importance of a line.
pub use crate::wit::Level;

/// Returns true if the host keeps lines of this level. Ask before you build a
/// costly line.
#[must_use]
pub fn enabled(level: Level) -> bool {
    backend::enabled(level)
}

/// Writes one line with its fields, which are pairs of key and value.
pub fn write(level: Level, message: &str, fields: &[(&str, &str)]) {
    let fields: Vec<_> = fields.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
    backend::write(level, message, &fields);
}

/// Writes one line about normal operation.
pub fn info(message: &str, fields: &[(&str, &str)]) {
    write(Level::Info, message, fields);
}

/// Writes one line about something unexpected.
pub fn warn(message: &str, fields: &[(&str, &str)]) {
    write(Level::Warn, message, fields);
}
