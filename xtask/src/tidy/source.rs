//! A Rust file as the rules see it: its code without text and comments, its functions, where its tests begin.

/// One Rust file.
pub(super) struct Source {
    /// Relative to the repository, with forward slashes.
    pub(super) path: String,
    /// The lines as written.
    pub(super) lines: Vec<String>,
    /// The same lines with the content of comments, strings and characters blanked, so that words and braces in
    /// them do not count.
    pub(super) code: Vec<String>,
    /// The file serves tests only.
    pub(super) is_test: bool,
    /// The first line of the test module at the end, or the number of lines.
    pub(super) tests_from: usize,
}

/// A function with a body.
pub(super) struct Function {
    pub(super) name: String,
    /// From 0.
    pub(super) line: usize,
    /// From the line of `fn` to the line of the closing brace.
    pub(super) length: usize,
}

impl Source {
    pub(super) fn new(path: &str, text: &str) -> Self {
        let lines: Vec<String> = text.lines().map(str::to_owned).collect();
        let code: Vec<String> = blank(text).lines().map(str::to_owned).collect();
        let places = ["/tests/", "/benches/", "testkit", "/simulation/"];
        let is_test = places.iter().any(|place| path.contains(place))
            || path.ends_with("tests.rs")
            || path.ends_with("/testing.rs")
            || path.ends_with("/simulation.rs")
            || path.starts_with("fuzz/");
        let opens_tests = |line: usize| {
            let item = code.get(line + 1).map_or("", |next| next.trim());
            code[line].trim() == "#[cfg(test)]"
                && item.ends_with('{')
                && words(item).any(|(_, word)| word == "mod")
        };
        let tests_from = (0..code.len()).find(|&line| opens_tests(line)).unwrap_or(code.len());
        Self { path: path.to_owned(), lines, code, is_test, tests_from }
    }

    /// Whether the line, from 0, is code that ships.
    pub(super) fn ships(&self, line: usize) -> bool {
        !self.is_test && line < self.tests_from
    }

    /// The functions that ship.
    pub(super) fn functions(&self) -> Vec<Function> {
        let shipped = if self.is_test { 0 } else { self.tests_from };
        let mut found = Vec::new();
        for (line, text) in self.code.iter().enumerate().take(shipped) {
            let mut previous = "";
            for (at, word) in words(text) {
                if previous == "fn" {
                    let length = self.body_end(line, at).map(|end| end - line + 1);
                    found.extend(length.map(|length| Function { name: word.to_owned(), line, length }));
                }
                previous = word;
            }
        }
        found
    }

    /// The line that closes the body of the function whose name starts at `line` and `at`; `None` without a
    /// body.
    fn body_end(&self, line: usize, at: usize) -> Option<usize> {
        let (mut braces, mut others) = (0_usize, 0_usize);
        for (number, text) in self.code.iter().enumerate().skip(line) {
            let start = if number == line { at } else { 0 };
            for byte in text.bytes().skip(start) {
                match byte {
                    b'{' => braces += 1,
                    b'}' => {
                        braces = braces.saturating_sub(1);
                        if braces == 0 {
                            return Some(number);
                        }
                    }
                    b'(' | b'[' => others += 1,
                    b')' | b']' => others = others.saturating_sub(1),
                    // The semicolon of `[u8; 4]` ends nothing.
                    b';' if braces == 0 && others == 0 => return None,
                    _ => {}
                }
            }
        }
        None
    }
}

/// The identifiers and keywords of a line with their places in bytes.
pub(super) fn words(line: &str) -> impl Iterator<Item = (usize, &str)> {
    let is_part = |byte: u8| byte == b'_' || byte.is_ascii_alphanumeric();
    let bytes = line.as_bytes();
    let mut at = 0;
    std::iter::from_fn(move || {
        while at < bytes.len() && !is_part(bytes[at]) {
            at += 1;
        }
        let start = at;
        while at < bytes.len() && is_part(bytes[at]) {
            at += 1;
        }
        (start < at).then(|| (start, &line[start..at]))
    })
}

/// Replaces the content of comments, strings and characters by blanks and keeps every line break.
fn blank(text: &str) -> String {
    let bytes = text.as_bytes();
    let mut out = bytes.to_vec();
    let mut at = 0;
    while at < bytes.len() {
        let end = at + skip(&bytes[at..], at.checked_sub(1).map(|before| bytes[before]));
        if end > at {
            out[at..end].iter_mut().filter(|byte| **byte != b'\n').for_each(|byte| *byte = b' ');
            at = end;
        } else {
            at += 1;
        }
    }
    // Only whole comments and literals were blanked, so the rest is UTF-8.
    String::from_utf8_lossy(&out).into_owned()
}

/// The length of the comment or literal that `rest` starts with, 0 if it starts with code.
fn skip(rest: &[u8], before: Option<u8>) -> usize {
    let in_word = before.is_some_and(|byte| byte == b'_' || byte.is_ascii_alphanumeric());
    match rest {
        [b'/', b'/', ..] => rest.iter().position(|&byte| byte == b'\n').unwrap_or(rest.len()),
        [b'/', b'*', ..] => block_comment(rest),
        [b'"', ..] => quoted(rest, b'"'),
        [b'r', b'"' | b'#', ..] if !in_word => raw_string(rest),
        [b'b', b'r', b'"' | b'#', ..] if !in_word => 1 + raw_string(&rest[1..]),
        [b'\'', b'\\', ..] => quoted(rest, b'\''),
        [b'\'', tail @ ..] => character(tail),
        _ => 0,
    }
}

fn block_comment(rest: &[u8]) -> usize {
    let (mut depth, mut at) = (0, 0);
    while at + 1 < rest.len() {
        match &rest[at..at + 2] {
            b"/*" => depth += 1,
            b"*/" => depth -= 1,
            _ => {
                at += 1;
                continue;
            }
        }
        at += 2;
        if depth == 0 {
            return at;
        }
    }
    rest.len()
}

fn quoted(rest: &[u8], quote: u8) -> usize {
    let mut at = 1;
    while at < rest.len() && rest[at] != quote {
        at += if rest[at] == b'\\' { 2 } else { 1 };
    }
    (at + 1).min(rest.len())
}

/// `rest` starts with `r`; a raw identifier such as `r#type` is not a string.
fn raw_string(rest: &[u8]) -> usize {
    let hashes = rest[1..].iter().take_while(|&&byte| byte == b'#').count();
    if rest.get(1 + hashes) != Some(&b'"') {
        return 0;
    }
    let mut close = vec![b'"'];
    close.resize(1 + hashes, b'#');
    let content = 2 + hashes;
    let found = rest[content..].windows(close.len()).position(|window| window == close);
    found.map_or(rest.len(), |at| content + at + close.len())
}

/// `tail` follows a quote: a character of one scalar value, or a lifetime.
fn character(tail: &[u8]) -> usize {
    let width = match tail.first() {
        Some(first) if *first >= 0xf0 => 4,
        Some(first) if *first >= 0xe0 => 3,
        Some(first) if *first >= 0xc0 => 2,
        _ => 1,
    };
    if tail.get(width) == Some(&b'\'') { width + 2 } else { 0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_and_comments_are_blanked() {
        let check = |text: &str, expected: &str| {
            let found = blank(text).split_whitespace().collect::<Vec<_>>().join(" ");
            assert_eq!(found, expected, "{text:?}");
        };
        check("a /* { /* } */ */ b // fn", "a b");
        check(r#"let a = "{ \" }"; b"#, "let a = ; b");
        check("let a = r#\"{ \" }\"#; b", "let a = ; b");
        check("r#type b'{' '\\'' 'ö' x: &'a str", "r#type b x: &'a str");
        check("let a = br\"\\\"; b", "let a = ; b");
    }

    #[test]
    fn functions_are_counted_with_their_braces() {
        let check = |text: &str, expected: &[(&str, usize)]| {
            let source = Source::new("crates/a/src/lib.rs", text);
            let functions = source.functions();
            let found: Vec<_> =
                functions.iter().map(|function| (function.name.as_str(), function.length)).collect();
            assert_eq!(found, expected, "{text:?}");
        };
        check("fn a() {}\n", &[("a", 1)]);
        check("fn a(b: [u8; 4]) {\n  \"}\";\n}\n", &[("a", 3)]);
        check("trait T { fn a(&self);\n fn b(&self) {\n}\n}", &[("b", 2)]);
        check("type F = fn(u8) -> u8;\n", &[]);
        check("fn a() {}\n#[cfg(test)]\nmod tests {\n fn b() {}\n}\n", &[("a", 1)]);
        check("#[cfg(test)]\nmod tests;\nfn a() {}\n", &[("a", 1)]);
    }
}
