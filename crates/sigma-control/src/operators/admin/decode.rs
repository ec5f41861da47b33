//! JSON bodies, and the errors about invalid ones.
//!
//! APISIX decodes with lua-cjson, and clients see its words; a second, small reader finds them for
//! texts that the real decoder refuses. That library also takes raw line ends and tabs within
//! texts: the documented way to send a proto has them.

use serde_json::Value;
use sigma_schema::document::{JsonError, MAX_DEPTH, is_deeper, strict_json};

/// Deepest nesting of one resource: a dump has two levels around it, and must be no deeper than a
/// file may be.
pub(crate) const RESOURCE_DEPTH: usize = MAX_DEPTH - 2;

/// Returns the error for a value with more levels than `levels`.
pub(crate) fn too_deep(levels: usize) -> String {
    format!("nested deeper than {levels} levels")
}

/// Decodes a body with at most `levels` levels of lists and objects.
pub(crate) fn json(body: &[u8], levels: usize) -> Result<Value, String> {
    let value = decoded(body)?;
    if is_deeper(&value, levels) { Err(too_deep(levels)) } else { Ok(value) }
}

fn decoded(body: &[u8]) -> Result<Value, String> {
    let read = match strict_json(body) {
        Err(JsonError::Syntax(error)) => match escaped(body) {
            Some(body) => strict_json(&body),
            None => Err(JsonError::Syntax(error)),
        },
        read => read,
    };
    read.map_err(|error| {
        if let JsonError::Duplicate(_) = error {
            return error.to_string();
        }
        let mut reader = Reader { text: body, at: 0 };
        match reader.document() {
            Err(reason) => reason,
            // The small reader is content, for it looks at neither depth nor encoding.
            Ok(()) => error.to_string(),
        }
    })
}

/// The text with the control characters that stand raw within its strings escaped; None if there are no such
/// characters.
fn escaped(body: &[u8]) -> Option<Vec<u8>> {
    let mut text = Vec::with_capacity(body.len() + 64);
    let (mut in_string, mut after_backslash) = (false, false);
    for &byte in body {
        // After a backslash it stays, and is refused when this is read.
        if in_string && byte < b' ' && !after_backslash {
            text.extend_from_slice(format!("\\u{byte:04x}").as_bytes());
            continue;
        }
        in_string ^= byte == b'"' && !after_backslash;
        after_backslash = in_string && byte == b'\\' && !after_backslash;
        text.push(byte);
    }
    (text.len() > body.len()).then_some(text)
}

/// A token, or the space between tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Token {
    ObjectBegin,
    ObjectEnd,
    ArrayBegin,
    ArrayEnd,
    String,
    /// Numbers, booleans, null.
    Scalar,
    Colon,
    Comma,
    End,
    Bad(&'static str),
}

impl Token {
    fn name(self) -> &'static str {
        match self {
            Token::ObjectBegin => "T_OBJ_BEGIN",
            Token::ObjectEnd => "T_OBJ_END",
            Token::ArrayBegin => "T_ARR_BEGIN",
            Token::ArrayEnd => "T_ARR_END",
            Token::String => "T_STRING",
            Token::Scalar => "T_NUMBER",
            Token::Colon => "T_COLON",
            Token::Comma => "T_COMMA",
            Token::End => "T_END",
            Token::Bad(reason) => reason,
        }
    }
}

struct Reader<'a> {
    text: &'a [u8],
    at: usize,
}

impl Reader<'_> {
    /// Walks the text without recursion; the stack holds the open lists (`[`) and objects (`{`).
    fn document(&mut self) -> Result<(), String> {
        let mut open: Vec<Token> = Vec::new();
        let mut value_expected = true;
        loop {
            let (at, token) = self.next();
            if value_expected {
                match token {
                    Token::String | Token::Scalar => value_expected = false,
                    Token::ObjectBegin | Token::ArrayBegin if self.closes_at_once(token) => {
                        value_expected = false;
                    }
                    Token::ObjectBegin => {
                        open.push(token);
                        self.key()?;
                    }
                    Token::ArrayBegin => open.push(token),
                    other => return Err(expected("value", at, other)),
                }
                continue;
            }
            match (open.last(), token) {
                (None, Token::End) => return Ok(()),
                (None, other) => return Err(expected("the end", at, other)),
                (Some(Token::ObjectBegin), Token::Comma) => {
                    self.key()?;
                    value_expected = true;
                }
                (Some(_), Token::Comma) => value_expected = true,
                (Some(Token::ObjectBegin), Token::ObjectEnd) | (Some(Token::ArrayBegin), Token::ArrayEnd) => {
                    open.pop();
                }
                (Some(Token::ObjectBegin), other) => return Err(expected("comma or object end", at, other)),
                (Some(_), other) => return Err(expected("comma or array end", at, other)),
            }
        }
    }

    /// Takes the end of an empty object or list, if it comes next.
    fn closes_at_once(&mut self, begin: Token) -> bool {
        let before = self.at;
        let end = if begin == Token::ObjectBegin { Token::ObjectEnd } else { Token::ArrayEnd };
        if self.next().1 == end {
            return true;
        }
        self.at = before;
        false
    }

    /// A key and its colon.
    fn key(&mut self) -> Result<(), String> {
        match self.next() {
            (_, Token::String) => {}
            (at, other) => return Err(expected("object key string", at, other)),
        }
        match self.next() {
            (_, Token::Colon) => Ok(()),
            (at, other) => Err(expected("colon", at, other)),
        }
    }

    fn next(&mut self) -> (usize, Token) {
        while self.text.get(self.at).is_some_and(|byte| b" \t\r\n".contains(byte)) {
            self.at += 1;
        }
        let at = self.at;
        let Some(byte) = self.text.get(at) else { return (at, Token::End) };
        self.at += 1;
        let token = match byte {
            b'{' => Token::ObjectBegin,
            b'}' => Token::ObjectEnd,
            b'[' => Token::ArrayBegin,
            b']' => Token::ArrayEnd,
            b':' => Token::Colon,
            b',' => Token::Comma,
            b'"' => return self.string(at),
            b'-' | b'0'..=b'9' => self.number(at),
            _ => self.word(at),
        };
        (at, token)
    }

    fn string(&mut self, begin: usize) -> (usize, Token) {
        while let Some(byte) = self.text.get(self.at) {
            let at = self.at;
            self.at += 1;
            match byte {
                b'"' => return (begin, Token::String),
                b'\\' => match self.text.get(self.at) {
                    Some(b'u') => {
                        let digits = self.text.get(self.at + 1..self.at + 5);
                        if !digits.is_some_and(|digits| digits.iter().all(u8::is_ascii_hexdigit)) {
                            return (at, Token::Bad("invalid unicode escape code"));
                        }
                        self.at += 5;
                    }
                    Some(escaped) if b"\"\\/bfnrt".contains(escaped) => self.at += 1,
                    _ => return (at, Token::Bad("invalid escape code")),
                },
                _ => {}
            }
        }
        (self.text.len(), Token::Bad("unexpected end of string"))
    }

    fn number(&mut self, begin: usize) -> Token {
        while self.text.get(self.at).is_some_and(|byte| b"+-.eE0123456789".contains(byte)) {
            self.at += 1;
        }
        match serde_json::from_slice::<f64>(&self.text[begin..self.at]) {
            Ok(_) => Token::Scalar,
            Err(_) => Token::Bad("invalid number"),
        }
    }

    fn word(&mut self, begin: usize) -> Token {
        let found =
            ["true", "false", "null"].iter().find(|word| self.text[begin..].starts_with(word.as_bytes()));
        match found {
            Some(word) => {
                self.at = begin + word.len();
                Token::Scalar
            }
            None => Token::Bad("invalid token"),
        }
    }
}

fn expected(what: &str, at: usize, found: Token) -> String {
    format!("Expected {what} but found {} at character {}", found.name(), at + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refused_texts_are_described_in_the_words_of_cjson() {
        let check = |text: &str, expected: &str| {
            assert_eq!(json(text.as_bytes(), 9).expect_err(text), expected, "{text}");
        };
        check("x", "Expected value but found invalid token at character 1");
        check("{", "Expected object key string but found T_END at character 2");
        check("{x", "Expected object key string but found invalid token at character 2");
        check("{\"a\"", "Expected colon but found T_END at character 5");
        check("{\"a\":1", "Expected comma or object end but found T_END at character 7");
        check("{\"a\":1,}", "Expected object key string but found T_OBJ_END at character 8");
        check("[1 2]", "Expected comma or array end but found T_NUMBER at character 4");
        check("[1,]", "Expected value but found T_ARR_END at character 4");
        check("{} {}", "Expected the end but found T_OBJ_BEGIN at character 4");
        check("\"abc", "Expected value but found unexpected end of string at character 5");
        check("[\"\\x\"]", "Expected value but found invalid escape code at character 3");
        check("[-]", "Expected value but found invalid number at character 2");
        check(" ", "Expected value but found T_END at character 2");
        check("[[],{\"a\":{}}", "Expected comma or array end but found T_END at character 13");
        assert!(json(b"{\"a\":[1,{}]}", 3).is_ok());
        assert!(json(b"\"\xff\"", 9).is_err_and(|reason| !reason.is_empty()));
    }

    #[test]
    fn raw_line_ends_are_taken_within_texts() {
        let check = |body: &str, expected: Option<&str>| {
            let got = json(body.as_bytes(), 9).ok();
            assert_eq!(got, expected.map(|text| serde_json::json!({ "a": text })), "{body:?}");
        };
        check("{\"a\":\"x\r\n\ty\"}", Some("x\r\n\ty"));
        check("{\n\t\"a\":\n\"x\ny\"\r\n}", Some("x\ny"));
        check("{\"a\":\"q \\\" \n \\\\\"}", Some("q \" \n \\"));
        check("{\"a\":\"\0\"}", Some("\0"));
        // An escaped line end is not a line end.
        check("{\"a\":\"x\\\ny\"}", None);
        check("{\"a\":\"x\n", None);
        check("{\"a\":\n\0\"x\"}", None);
    }

    /// As in a file: of two members with one name a reader would not know which counts.
    #[test]
    fn members_that_are_given_twice_are_refused() {
        let check = |text: &str, place: &str| {
            let expected = format!("the member `{place}` exists twice; remove one");
            assert_eq!(json(text.as_bytes(), 9).expect_err(text), expected);
        };
        check("{\"vars\":[],\"vars\":[]}", "vars");
        check("{\"upstream\":{\"nodes\":{\"a:1\":1,\"a:1\":2}}}", "upstream.nodes[\"a:1\"]");
        // Also where raw line ends are taken.
        check("{\"a\":\"x\ny\",\"a\":1}", "a");
    }

    #[test]
    fn too_deep_values_are_refused() {
        let nested = |levels: usize| "[".repeat(levels) + &"]".repeat(levels);
        assert!(json(nested(62).as_bytes(), RESOURCE_DEPTH).is_ok());
        let said = json(nested(63).as_bytes(), RESOURCE_DEPTH);
        assert_eq!(said.expect_err("too deep"), "nested deeper than 62 levels");
        for text in [nested(100), nested(1000), "[".repeat(1_000_000), r#"{"a":"#.repeat(100_000)] {
            assert!(json(text.as_bytes(), RESOURCE_DEPTH).is_err());
        }
    }
}
