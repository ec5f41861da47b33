//! Values in texts as Lua formats them.

use serde_json::Value;

/// Returns the Lua name of a value's type; JSON null is a `userdata`.
pub(super) fn lua_type(value: &Value) -> &'static str {
    match value {
        Value::Null => "userdata",
        Value::Bool(_) => "boolean",
        Value::Number(_) => "number",
        Value::String(_) => "string",
        Value::Array(_) | Value::Object(_) => "table",
    }
}

/// Returns the name of a value's type in a file.
pub(super) fn json_type(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
        other => lua_type(other),
    }
}

/// Returns `text` in double quotes as LuaJIT's `%q` writes it: a backslash before `"`, `\` and newline, other control
/// characters as decimal codes.
pub(super) fn quoted(text: &str) -> String {
    let mut out = String::with_capacity(text.len() + 2);
    out.push('"');
    let mut rest = text.chars().peekable();
    while let Some(char) = rest.next() {
        match char {
            '"' | '\\' | '\n' => out.extend(['\\', char]),
            _ if char.is_ascii_control() => {
                let code = u32::from(char);
                // A digit after a short code would be read as part of it.
                let full = rest.peek().is_some_and(char::is_ascii_digit);
                out.push_str(&if full { format!("\\{code:03}") } else { format!("\\{code}") });
            }
            _ => out.push(char),
        }
    }
    out.push('"');
    out
}

/// Decodes the percent-escapes of a text.
pub fn percent_decoded(fragment: &str) -> String {
    let bytes = fragment.as_bytes();
    let mut out = Vec::with_capacity(bytes.len());
    let mut index = 0;
    while index < bytes.len() {
        let hex = fragment.get(index + 1..index + 3).filter(|_| bytes[index] == b'%');
        let code = hex.and_then(|hex| u8::from_str_radix(hex, 16).ok());
        out.push(code.unwrap_or(bytes[index]));
        index += if code.is_some() { 3 } else { 1 };
    }
    String::from_utf8_lossy(&out).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quoting() {
        let cases = [
            ("", r#""""#),
            (r#"a"b\c"#, r#""a\"b\\c""#),
            ("a\nb", "\"a\\\nb\""),
            ("\ta\r1\u{7f}", r#""\9a\0131\127""#),
            ("\0\u{e9}", "\"\\0\u{e9}\""),
        ];
        for (text, expected) in cases {
            assert_eq!(quoted(text), expected, "{text:?}");
        }
    }
}
