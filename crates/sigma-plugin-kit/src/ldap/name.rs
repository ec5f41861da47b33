//! Distinguished names (RFC 4514).

/// Returns `text` as the value of an attribute in a distinguished name (RFC 4514 §2.4): none of it is read as another
/// part of the name.
pub fn escaped(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len() + 8);
    let last = text.chars().count().saturating_sub(1);
    for (at, character) in text.chars().enumerate() {
        match character {
            '\0' => escaped.push_str("\\00"),
            '\\' | '"' | ',' | '+' | '<' | '>' | ';' | '=' => escaped.extend(['\\', character]),
            '#' if at == 0 => escaped.push_str("\\#"),
            ' ' if at == 0 || at == last => escaped.push_str("\\ "),
            _ => escaped.push(character),
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_stay_values() {
        for (text, expected) in [
            ("jack", "jack"),
            ("a,dc=evil", "a\\,dc\\=evil"),
            ("a+cn=b", "a\\+cn\\=b"),
            ("a\\,b", "a\\\\\\,b"),
            ("\"<>;", "\\\"\\<\\>\\;"),
            (" a b ", "\\ a b\\ "),
            (" ", "\\ "),
            ("#a#", "\\#a#"),
            ("a\0b", "a\\00b"),
            ("*)(uid=*", "*)(uid\\=*"),
            ("\u{e9}", "\u{e9}"),
            ("", ""),
        ] {
            assert_eq!(escaped(text), expected);
        }
    }
}
