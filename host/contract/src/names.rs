//! The character sets of names that Kubernetes accepts.

/// Returns true for a DNS label of RFC 1123.
pub fn is_dns_label(text: &str) -> bool {
    let inner = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-';
    !text.is_empty() && text.len() <= 63 && text.bytes().all(inner) && !text.starts_with('-') && !text.ends_with('-')
}

/// Returns true for a DNS subdomain of RFC 1123, such as the name of an object or a group.
pub fn is_subdomain(text: &str) -> bool {
    text.len() <= 253 && text.split('.').all(is_dns_label)
}

/// Returns true for a group and its version, or a version of the core group.
pub fn is_api_version(text: &str) -> bool {
    match text.split_once('/') {
        Some((group, version)) => is_subdomain(group) && is_dns_label(version),
        None => is_dns_label(text),
    }
}

/// Returns true for the name of a kind of objects.
pub fn is_kind(text: &str) -> bool {
    text.len() <= 63
        && text.starts_with(|c: char| c.is_ascii_uppercase())
        && text.bytes().all(|b| b.is_ascii_alphanumeric())
}

/// Returns true for the value of a label.
pub fn is_label_value(text: &str) -> bool {
    text.is_empty() || is_name_part(text)
}

fn is_name_part(text: &str) -> bool {
    let edge = |c: char| c.is_ascii_alphanumeric();
    let inner = |b: u8| b.is_ascii_alphanumeric() || b"-_.".contains(&b);
    !text.is_empty() && text.len() <= 63 && text.bytes().all(inner) && text.starts_with(edge) && text.ends_with(edge)
}

/// Returns true for the key of a label, an annotation or a finalizer.
pub fn is_qualified_name(text: &str) -> bool {
    match text.split_once('/') {
        Some((prefix, name)) => is_subdomain(prefix) && is_name_part(name),
        None => is_name_part(text),
    }
}

/// Returns true for the name of an environment variable of a container, by the rules of API servers since 1.32.
pub fn is_variable(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|b| (b' '..=b'~').contains(&b) && b != b'=')
}

/// Returns true for an amount that is not negative, such as `1.5`, `500m`, `256Mi` or `1e3`.
pub fn is_quantity(text: &str) -> bool {
    let text = text.strip_prefix('+').unwrap_or(text);
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, suffix) = text.split_at(end);
    let is_number = number.bytes().any(|b| b.is_ascii_digit()) && number.bytes().filter(|b| *b == b'.').count() <= 1;
    let is_exponent = |rest: &str| {
        let digits = rest.strip_prefix(['-', '+']).unwrap_or(rest);
        (1..=3).contains(&digits.len()) && digits.bytes().all(|b| b.is_ascii_digit())
    };
    let units = ["", "n", "u", "m", "k", "M", "G", "T", "P", "E", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei"];
    text.len() <= 63
        && is_number
        && (units.contains(&suffix) || suffix.strip_prefix(['e', 'E']).is_some_and(is_exponent))
}

/// Returns the MiB of a quantity of memory, rounded up, or `None` if the text is not a quantity.
pub fn mebibytes(text: &str) -> Option<u64> {
    const UNITS: [(&str, f64); 15] = [
        ("Ki", 1024.0),
        ("Mi", 1_048_576.0),
        ("Gi", 1_073_741_824.0),
        ("Ti", 1_099_511_627_776.0),
        ("Pi", 1_125_899_906_842_624.0),
        ("Ei", 1_152_921_504_606_846_976.0),
        ("n", 1e-9),
        ("u", 1e-6),
        ("m", 1e-3),
        ("k", 1e3),
        ("M", 1e6),
        ("G", 1e9),
        ("T", 1e12),
        ("P", 1e15),
        ("E", 1e18),
    ];
    let text = Some(text).filter(|text| is_quantity(text))?;
    let unit = UNITS.iter().find_map(|(unit, factor)| Some((text.strip_suffix(unit)?, *factor)));
    let (number, factor) = unit.unwrap_or((text, 1.0));
    let bytes = number.parse::<f64>().ok()? * factor;
    Some((bytes / 1_048_576.0).ceil() as u64)
}

/// Returns true for a text on one line without control characters. Characters that change the direction of text are not allowed either.
pub fn is_plain(text: &str) -> bool {
    let turns = |c: char| matches!(c, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}' | '\u{2028}' | '\u{2029}');
    !text.chars().any(|c| c.is_control() || turns(c))
}

/// Returns a text that is safe to show. It replaces each character that `is_plain` refuses.
pub fn shown(text: &str) -> String {
    text.chars().map(|c| if is_plain(c.encode_utf8(&mut [0; 4])) { c } else { '\u{fffd}' }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_quantity_is_what_the_api_server_takes_for_one() {
        for text in ["0", "1", "1.5", ".5", "5.", "500m", "256Mi", "1e3", "1E-3", "2E", "100n", "1Ki", "+1"] {
            assert!(is_quantity(text), "{text}");
        }
        for (text, size) in [("1Gi", 1024), ("1.5Gi", 1536), ("1", 1), ("1e9", 954), ("2M", 2), ("500m", 1), ("0", 0)] {
            assert_eq!(mebibytes(text), Some(size), "{text}");
        }
        assert_eq!(mebibytes("much"), None);
        for text in ["", ".", "-1", "1.2.3", "much", "1 Gi", "1GB", "1mi", "1KI", "1e", "e3", "1e+", "m"] {
            assert!(!is_quantity(text), "{text}");
        }
    }
}
