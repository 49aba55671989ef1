//! Formats errors as text.

/// Returns an error with its causes on one line, for the end of a sentence.
pub fn causes(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(cause) = next {
        text.push_str(": ");
        text.push_str(&cause.to_string());
        next = cause.source();
    }
    text.chars().map(|c| if c.is_control() { ' ' } else { c }).take(600).collect()
}
