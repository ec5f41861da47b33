//! Values in lines of JSON, the serialization `fastjson`.

/// The limit of nested lists and objects in a body.
const DEPTH_MAX: u32 = 128;

const NO_JSON: &str = "the body is not JSON";

/// Writes a text on a line.
pub(super) fn write_text(text: &str, out: &mut Vec<u8>) {
    out.push(b'"');
    for byte in text.bytes() {
        match byte {
            b'"' | b'\\' => out.extend_from_slice(&[b'\\', byte]),
            0..0x20 => out.extend_from_slice(format!("\\u{byte:04x}").as_bytes()),
            byte => out.push(byte),
        }
    }
    out.extend_from_slice(b"\"\n");
}

/// Ends the last of the lines that begin at `from`, and returns the number of lines. A carriage return ends a line as
/// well, for providers in Java.
pub(super) fn end_lines(out: &mut Vec<u8>, from: usize) -> usize {
    if out.len() > from && !out.ends_with(b"\n") {
        out.push(b'\n');
    }
    let text = &out[from..];
    let feeds = memchr::memchr_iter(b'\n', text).count();
    let returns = memchr::memchr_iter(b'\r', text).filter(|at| text.get(at + 1) != Some(&b'\n')).count();
    feeds + returns
}

/// Returns the number of types in JVM descriptors.
///
/// # Errors
/// Returns an error if they are invalid.
pub fn count_types(descriptors: &str) -> Result<usize, &'static str> {
    let (mut rest, mut count) = (descriptors, 0);
    while !rest.is_empty() {
        let wrong = "no JVM type descriptors such as Ljava/lang/String;I";
        rest = rest.trim_start_matches('[');
        rest = match rest.bytes().next() {
            Some(b'V' | b'Z' | b'B' | b'C' | b'D' | b'F' | b'I' | b'J' | b'S') => &rest[1..],
            Some(b'L') => {
                let (name, behind) = rest[1..].split_once(';').ok_or(wrong)?;
                let is_part = |part: &str| {
                    let is_letter = |c: char| c == '_' || c == '$' || c.is_alphanumeric();
                    !part.is_empty() && part.chars().all(is_letter)
                };
                if !name.split('/').all(is_part) {
                    return Err(wrong);
                }
                behind
            }
            _ => return Err(wrong),
        };
        count += 1;
    }
    Ok(count)
}

/// Writes each element of the list, or each member of the object, in `body` to a line, and returns the number of
/// lines. Numbers and texts stay unchanged.
///
/// # Errors
/// Returns an error if the body is neither.
pub(super) fn parameters(body: &[u8], out: &mut Vec<u8>) -> Result<usize, &'static str> {
    std::str::from_utf8(body).map_err(|_| NO_JSON)?;
    let mut json = Json { rest: body, out };
    let end = match json.next_token() {
        Some(b'[') => b']',
        Some(b'{') => b'}',
        _ => return Err("the body must be a list or an object"),
    };
    let mut count = 0;
    if !json.takes(end) {
        loop {
            if end == b'}' {
                let before = json.out.len();
                json.key()?;
                json.out.truncate(before);
            }
            json.value(DEPTH_MAX)?;
            json.out.push(b'\n');
            count += 1;
            if !json.goes_on(end)? {
                break;
            }
        }
    }
    match json.next_token() {
        None => Ok(count),
        Some(_) => Err(NO_JSON),
    }
}

/// Copies JSON without white space between its tokens.
struct Json<'j> {
    rest: &'j [u8],
    out: &'j mut Vec<u8>,
}

impl Json<'_> {
    fn peek(&mut self) -> Option<u8> {
        let space = self.rest.iter().take_while(|byte| matches!(byte, b' ' | b'\t' | b'\n' | b'\r')).count();
        self.rest = &self.rest[space..];
        self.rest.first().copied()
    }

    fn next_token(&mut self) -> Option<u8> {
        let token = self.peek()?;
        self.rest = &self.rest[1..];
        Some(token)
    }

    fn takes(&mut self, token: u8) -> bool {
        let is_next = self.peek() == Some(token);
        if is_next {
            self.rest = &self.rest[1..];
        }
        is_next
    }

    /// Returns true if another element follows, false at `end`.
    fn goes_on(&mut self, end: u8) -> Result<bool, &'static str> {
        match self.next_token() {
            Some(b',') => Ok(true),
            Some(token) if token == end => Ok(false),
            _ => Err(NO_JSON),
        }
    }

    fn copy(&mut self, length: usize) {
        let (copied, rest) = self.rest.split_at(length);
        self.out.extend_from_slice(copied);
        self.rest = rest;
    }

    fn key(&mut self) -> Result<(), &'static str> {
        if self.peek() != Some(b'"') {
            return Err(NO_JSON);
        }
        self.text()?;
        if !self.takes(b':') {
            return Err(NO_JSON);
        }
        self.out.push(b':');
        Ok(())
    }

    fn value(&mut self, depth: u32) -> Result<(), &'static str> {
        match self.peek().ok_or(NO_JSON)? {
            b'"' => self.text(),
            open @ (b'[' | b'{') => {
                // Both brackets have their ends two code points later.
                let end = open + 2;
                let depth = depth.checked_sub(1).ok_or("the body is nested too deeply")?;
                self.copy(1);
                if !self.takes(end) {
                    loop {
                        if open == b'{' {
                            self.key()?;
                        }
                        self.value(depth)?;
                        if !self.goes_on(end)? {
                            break;
                        }
                        self.out.push(b',');
                    }
                }
                self.out.push(end);
                Ok(())
            }
            _ => {
                let words = [&b"null"[..], b"true", b"false"];
                match words.iter().find(|word| self.rest.starts_with(word)) {
                    Some(word) => self.copy(word.len()),
                    None => self.number()?,
                }
                Ok(())
            }
        }
    }

    fn text(&mut self) -> Result<(), &'static str> {
        let mut at = 1;
        loop {
            match self.rest.get(at).ok_or(NO_JSON)? {
                b'"' => break,
                b'\\' => match self.rest.get(at + 1) {
                    Some(b'"' | b'\\' | b'/' | b'b' | b'f' | b'n' | b'r' | b't') => at += 2,
                    Some(b'u')
                        if self
                            .rest
                            .get(at + 2..at + 6)
                            .is_some_and(|d| d.iter().all(u8::is_ascii_hexdigit)) =>
                    {
                        at += 6;
                    }
                    _ => return Err(NO_JSON),
                },
                0..0x20 => return Err(NO_JSON),
                _ => at += 1,
            }
        }
        self.copy(at + 1);
        Ok(())
    }

    fn number(&mut self) -> Result<(), &'static str> {
        let digits = |from: usize| self.rest[from..].iter().take_while(|byte| byte.is_ascii_digit()).count();
        let mut at = usize::from(self.rest.first() == Some(&b'-'));
        let whole = digits(at);
        if whole == 0 || (whole > 1 && self.rest[at] == b'0') {
            return Err(NO_JSON);
        }
        at += whole;
        if self.rest.get(at) == Some(&b'.') {
            let fraction = digits(at + 1);
            if fraction == 0 {
                return Err(NO_JSON);
            }
            at += 1 + fraction;
        }
        if matches!(self.rest.get(at), Some(b'e' | b'E')) {
            at += 1 + usize::from(matches!(self.rest.get(at + 1), Some(b'+' | b'-')));
            let exponent = digits(at);
            if exponent == 0 {
                return Err(NO_JSON);
            }
            at += exponent;
        }
        self.copy(at);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn bodies() {
        let check = |body: &str, expected: Result<&[&str], &'static str>| {
            let mut out = Vec::new();
            let count = parameters(body.as_bytes(), &mut out);
            let text = String::from_utf8_lossy(&out).into_owned();
            let expected =
                expected.map(|lines| (lines.len(), lines.iter().map(|line| format!("{line}\n")).collect()));
            assert_eq!(count.map(|count| (count, text)), expected, "{body}");
        };
        check("[]", Ok(&[]));
        check(" { } ", Ok(&[]));
        check("[1,\"a\",null,true]", Ok(&["1", "\"a\"", "null", "true"]));
        check("[ -0.50e+7 , 12345678901234567890123 ]", Ok(&["-0.50e+7", "12345678901234567890123"]));
        check("[\"a\\n\\u00e9 \\\" é\"]", Ok(&["\"a\\n\\u00e9 \\\" é\""]));
        check("[{\n\"a\" :\t[1 ,2],\"b\":{}},[\r\n]]", Ok(&["{\"a\":[1,2],\"b\":{}}", "[]"]));
        check("{\"x\" : 1 , \"y\":\"z\"}", Ok(&["1", "\"z\""]));
        for text in ["1", "\"a\"", "null", "", "}"] {
            check(text, Err("the body must be a list or an object"));
        }
        for text in [
            "[",
            "[1",
            "[1,",
            "[1,]",
            "[1 2]",
            "[1]]",
            "[1}",
            "{1:2}",
            "{\"a\"}",
            "{\"a\":}",
            "{\"a\":1,}",
            "[01]",
            "[1.]",
            "[.5]",
            "[1e]",
            "[-]",
            "[+1]",
            "[nul]",
            "[NaN]",
            "[\"\n\"]",
            "[\"\\x\"]",
            "[\"\\u12\"]",
            "[\"a]",
            "[\"\\",
            "[tru",
            "['a']",
        ] {
            check(text, Err(NO_JSON));
        }
        let deep = |levels: usize| format!("[{}{}]", "[".repeat(levels), "]".repeat(levels));
        check(&deep(128), Ok(&[&deep(127)]));
        check(&deep(129), Err("the body is nested too deeply"));
        assert_eq!(parameters(b"[\"\xff\"]", &mut Vec::new()), Err(NO_JSON));
    }

    #[test]
    fn types() {
        let check = |text: &str, expected: Option<usize>| {
            assert_eq!(count_types(text).ok(), expected, "{text}");
        };
        check("", Some(0));
        check("Ljava/lang/Long;I", Some(2));
        check("[[I[Ljava/lang/String;Z", Some(3));
        check("Lcom/a_b/C$D;", Some(1));
        for text in
            ["[", "java.lang.String", "L;", "La//b;", "Ljava/lang/String", "I;", "La b;", "int", "I\n"]
        {
            check(text, None);
        }
    }

    #[test]
    fn texts() {
        let mut out = Vec::new();
        write_text("a\"b\\c\né", &mut out);
        assert_eq!(String::from_utf8_lossy(&out), "\"a\\\"b\\\\c\\u000aé\"\n");
    }

    proptest! {
        #[test]
        fn no_text_breaks_a_line(body in "[\\[\\]{}:,\"\\\\ 0-9a-e.\n\r-]{0,40}") {
            let mut out = Vec::new();
            if let Ok(count) = parameters(body.as_bytes(), &mut out) {
                prop_assert_eq!(end_lines(&mut out, 0), count);
            }
        }
    }
}
