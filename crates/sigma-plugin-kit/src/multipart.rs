//! Bodies of several parts (RFC 7578, RFC 2046 §5.1): the fields and the content of each part.

/// One part.
#[derive(Debug, PartialEq, Eq)]
pub struct Part<'b> {
    /// The name of its field.
    pub name: String,
    /// Its `Content-Type`, if it has one.
    pub media_type: Option<String>,
    /// Its content.
    pub content: &'b [u8],
}

/// Returns the boundary in a `Content-Type`: 1 to 70 characters.
///
/// # Errors
/// Returns an error, which is a sentence, without a boundary.
pub fn boundary(content_type: &str) -> Result<String, String> {
    let boundary = parameter(content_type, "boundary").filter(|boundary| (1..=70).contains(&boundary.len()));
    boundary.ok_or_else(|| "the Content-Type has no boundary".to_owned())
}

/// Returns the parts of a body, in order.
///
/// # Errors
/// Returns an error, which is a sentence, if the body is invalid, a part has no name, or there are more than `most`.
pub fn parts<'b>(body: &'b [u8], boundary: &str, most: usize) -> Result<Vec<Part<'b>>, String> {
    let delimiter = format!("\r\n--{boundary}").into_bytes();
    // The text before the first one is ignored.
    let first = body.strip_prefix(&delimiter[2..]).or_else(|| Some(split_once(body, &delimiter)?.1));
    let mut rest = first.ok_or("the boundary is missing")?;
    let mut found = Vec::new();
    while !rest.starts_with(b"--") {
        let blanks = rest.iter().take_while(|b| matches!(b, b' ' | b'\t')).count();
        rest = rest[blanks..].strip_prefix(b"\r\n").ok_or("the line end after the boundary is missing")?;
        let (part, after) = split_once(rest, &delimiter).ok_or("the last boundary is missing")?;
        // A part may have no field; then the empty line is its first.
        let (head, content) = match part.strip_prefix(b"\r\n") {
            Some(content) => (&b""[..], content),
            None => split_once(part, b"\r\n\r\n").ok_or("a part has no empty line after its fields")?,
        };
        if found.len() == most {
            return Err(format!("more than {most} values"));
        }
        let head = std::str::from_utf8(head).map_err(|_| "it is not UTF-8")?;
        let name = field(head, "content-disposition").and_then(|value| parameter(value, "name"));
        let media_type = field(head, "content-type").map(str::to_owned);
        found.push(Part { name: name.ok_or("a part has no name")?, media_type, content });
        rest = after;
    }
    Ok(found)
}

/// Returns the first field of a head with this name.
fn field<'h>(head: &'h str, name: &str) -> Option<&'h str> {
    let mut fields = head.split("\r\n").filter_map(|line| line.split_once(':'));
    fields.find(|(known, _)| known.trim().eq_ignore_ascii_case(name)).map(|(_, value)| value.trim())
}

fn split_once<'b>(bytes: &'b [u8], by: &[u8]) -> Option<(&'b [u8], &'b [u8])> {
    let at = bytes.windows(by.len()).position(|window| window == by)?;
    Some((&bytes[..at], &bytes[at + by.len()..]))
}

/// Returns a parameter of a field such as `form-data; name="a"`.
pub fn parameter(value: &str, name: &str) -> Option<String> {
    let mut rest = value.split_once(';')?.1;
    loop {
        let (known, after) = rest.split_once('=')?;
        let is_it = known.trim().eq_ignore_ascii_case(name);
        let (found, after) = match after.trim_start().strip_prefix('"') {
            Some(quoted) => {
                let (mut text, mut end, mut chars) = (String::new(), None, quoted.char_indices());
                while let Some((at, char)) = chars.next() {
                    match char {
                        '"' => {
                            end = Some(at + 1);
                            break;
                        }
                        '\\' => text.push(chars.next()?.1),
                        char => text.push(char),
                    }
                }
                (text, &quoted[end?..])
            }
            None => {
                let end = after.find(';').unwrap_or(after.len());
                (after[..end].trim().to_owned(), &after[end..])
            }
        };
        if is_it {
            return Some(found);
        }
        rest = after.trim_start().strip_prefix(';')?;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_bytes() {
        let body = b"--b\r\nContent-Disposition: form-data; name=\"a\"; filename=\"x;y\"\r\ncontent-type: image/png\r\n\r\n\xff\r\n\r\n--b\r\nContent-Disposition: form-data; name=b\r\n\r\n\r\n--b--";
        let found =
            parts(body, &boundary("multipart/form-data; charset=x; boundary=\"b\"").unwrap(), 2).unwrap();
        let part = |name: &str, media_type: Option<&str>, content: &'static [u8]| Part {
            name: name.to_owned(),
            media_type: media_type.map(str::to_owned),
            content,
        };
        assert_eq!(found, [part("a", Some("image/png"), b"\xff\r\n"), part("b", None, b"")]);
        assert_eq!(parts(body, "b", 1).unwrap_err(), "more than 1 values");
        assert!(boundary("multipart/form-data; boundary=").is_err());
        assert!(boundary(&format!("multipart/form-data; boundary={}", "b".repeat(71))).is_err());
    }
}
