//! Error messages with their causes.

use std::error::Error;

/// Returns an error and its causes on one line, for people. The line omits a cause whose text it already contains, because the Kubernetes
/// client repeats causes in its messages.
pub fn error_chain(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let next = error.to_string();
        if !text.contains(&next) {
            text.push_str(": ");
            text.push_str(&next);
        }
        cause = error.source();
    }
    text
}
