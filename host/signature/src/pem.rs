//! Reads the one section of a PEM text.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

/// The most bytes of a PEM text with one key.
const MOST_PEM: usize = 16 * 1024;

/// Returns the label and the content of the only section. Text around the section is a comment.
///
/// # Errors
/// If the text has no section, a broken one or several.
pub(crate) fn only_section(text: &str) -> Result<(&str, Vec<u8>), &'static str> {
    const BEGIN: &str = "-----BEGIN ";
    if text.len() > MOST_PEM {
        return Err("it has more than 16 KiB");
    }
    let none = "it has no line `-----BEGIN PUBLIC KEY-----`";
    let (_, rest) = text.split_once(BEGIN).ok_or(none)?;
    let (label, rest) = rest.split_once("-----").ok_or(none)?;
    let end = format!("-----END {label}-----");
    let (body, rest) = rest.split_once(end.as_str()).ok_or("its last line is missing")?;
    if rest.contains(BEGIN) {
        return Err("it has several sections; give each key its own entry");
    }
    let bare: String = body.chars().filter(|c| !c.is_ascii_whitespace()).collect();
    // Keys with a password have headers, such as `Proc-Type`, which are not Base64. Their label says enough.
    Ok((label, STANDARD.decode(bare).unwrap_or_default()))
}
