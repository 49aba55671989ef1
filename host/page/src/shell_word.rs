//! Words of a command for a POSIX shell, quoted so that any name stays one word.

use oarlock_view::escaped;

/// Returns `text` as one word of a shell. Plain text stays as it is. Control and direction characters become escapes that bash, ksh and zsh
/// read, so that the shown command is the copied one.
pub(crate) fn shell_word(text: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "._/:=@%+,-".contains(c);
    if !text.is_empty() && text.chars().all(is_plain) {
        return text.to_owned();
    }
    if escaped(text) == text {
        return format!("'{}'", text.replace('\'', r"'\''"));
    }
    let mut word = String::from("$'");
    for c in text.chars() {
        let mut buffer = [0; 4];
        match c {
            '\'' | '\\' => word.extend(['\\', c]),
            _ if escaped(c.encode_utf8(&mut buffer)).len() != c.len_utf8() => {
                word += &format!("\\U{:08x}", u32::from(c))
            }
            _ => word.push(c),
        }
    }
    word + "'"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_text_is_one_word_and_shows_all_of_its_characters() {
        let words = [
            ("web-7d9f.a", "web-7d9f.a"),
            ("", "''"),
            ("a b", "'a b'"),
            ("$(rm -rf /)`x`", "'$(rm -rf /)`x`'"),
            ("it's", r"'it'\''s'"),
            ("größe", "'größe'"),
            ("a\u{202e}'b\\\n", r"$'a\U0000202e\'b\\\U0000000a'"),
        ];
        for (text, word) in words {
            assert_eq!(shell_word(text), word);
        }
    }
}
