//! JSON to values.

use mlua::{Lua, Table, Value};

use super::{Config, DEPTH, Json};
use crate::engine::host::Host;
use crate::ngx::null;

/// Values between two looks at the clock.
const CHECK_VALUES: usize = 4096;

/// One token.
enum Token {
    ObjectBegin,
    ObjectEnd,
    ArrayBegin,
    ArrayEnd,
    Comma,
    Colon,
    End,
    String(Vec<u8>),
    Number(f64),
    Boolean(bool),
    Null,
    /// No token, for this reason.
    Error(&'static str),
}

impl Token {
    /// The name in messages.
    fn name(&self) -> &'static str {
        match self {
            Token::ObjectBegin => "T_OBJ_BEGIN",
            Token::ObjectEnd => "T_OBJ_END",
            Token::ArrayBegin => "T_ARR_BEGIN",
            Token::ArrayEnd => "T_ARR_END",
            Token::Comma => "T_COMMA",
            Token::Colon => "T_COLON",
            Token::End => "T_END",
            Token::String(_) => "T_STRING",
            Token::Number(_) => "T_NUMBER",
            Token::Boolean(_) => "T_BOOLEAN",
            Token::Null => "T_NULL",
            Token::Error(reason) => reason,
        }
    }
}

/// A table that is not complete.
struct Open {
    table: Table,
    /// The key of the next value, in an object.
    key: Option<mlua::LuaString>,
    /// The values so far, in an array.
    count: i64,
}

struct Decoder<'a> {
    json: &'a Json,
    lua: &'a Lua,
    config: &'a Config,
    text: &'a [u8],
    place: usize,
    /// Where the last token begins.
    token_at: usize,
    open: Vec<Open>,
}

pub(super) fn decode(
    json: &Json,
    host: &Host,
    lua: &Lua,
    config: &Config,
    text: &[u8],
) -> Result<Value, String> {
    if let [first, second, ..] = text
        && (*first == 0 || *second == 0)
    {
        return Err("JSON parser does not support UTF-16 or UTF-32".to_owned());
    }
    let mut decoder = Decoder { json, lua, config, text, place: 0, token_at: 0, open: Vec::new() };
    let mut count = 0;
    let mut token = decoder.token();
    loop {
        count += 1;
        if count % CHECK_VALUES == 0 {
            host.check_time()?;
        }
        let mut value = match decoder.value(token)? {
            Some(value) => value,
            // A table has begun, and its first value follows.
            None => {
                token = decoder.token();
                continue;
            }
        };
        // Each value that is complete may complete the tables around it.
        loop {
            let Some(table) = decoder.add(value)? else {
                token = decoder.token();
                break;
            };
            value = table;
            if decoder.open.is_empty() {
                return decoder.end(value);
            }
        }
    }
}

impl Decoder<'_> {
    /// The value that begins with a token. None: a table has begun, and a value follows.
    fn value(&mut self, token: Token) -> Result<Option<Value>, String> {
        Ok(Some(match token {
            Token::String(text) => Value::String(self.lua.create_string(text).map_err(text_of)?),
            Token::Number(number) => Value::Number(number),
            Token::Boolean(value) => Value::Boolean(value),
            Token::Null => null(),
            Token::ObjectBegin => {
                self.begin()?;
                match self.token() {
                    Token::ObjectEnd => return self.close().map(Some),
                    token => self.key(token)?,
                }
                return Ok(None);
            }
            Token::ArrayBegin => {
                self.begin()?;
                if self.config.decode_with_array_mt
                    && let Some(open) = self.open.last()
                {
                    open.table.set_metatable(Some(self.json.array_mt.clone())).map_err(text_of)?;
                }
                let before = self.place;
                if matches!(self.token(), Token::ArrayEnd) {
                    return self.close().map(Some);
                }
                self.place = before;
                return Ok(None);
            }
            token => return Err(self.unexpected("value", &token)),
        }))
    }

    /// Adds a value to the table around it, and reads the next token. Returns the table, if it is complete.
    fn add(&mut self, value: Value) -> Result<Option<Value>, String> {
        let Some(open) = self.open.last_mut() else { return Ok(Some(value)) };
        if let Some(key) = open.key.take() {
            open.table.raw_set(key, value).map_err(text_of)?;
            return match self.token() {
                Token::ObjectEnd => self.close().map(Some),
                Token::Comma => {
                    let token = self.token();
                    self.key(token)?;
                    Ok(None)
                }
                token => Err(self.unexpected("comma or object end", &token)),
            };
        }
        open.count += 1;
        open.table.raw_set(open.count, value).map_err(text_of)?;
        match self.token() {
            Token::ArrayEnd => self.close().map(Some),
            Token::Comma => Ok(None),
            token => Err(self.unexpected("comma or array end", &token)),
        }
    }

    fn begin(&mut self) -> Result<(), String> {
        let depth = i64::try_from(self.open.len()).unwrap_or(i64::MAX).saturating_add(1);
        if depth > self.config.decode_depth.min(DEPTH) {
            let place = self.place;
            return Err(format!("Found too many nested data structures ({depth}) at character {place}"));
        }
        let table = self.lua.create_table().map_err(text_of)?;
        self.open.push(Open { table, key: None, count: 0 });
        Ok(())
    }

    fn close(&mut self) -> Result<Value, String> {
        self.open.pop().map(|open| Value::Table(open.table)).ok_or_else(|| "no table is open".to_owned())
    }

    /// Reads the key of a member, and its colon.
    fn key(&mut self, token: Token) -> Result<(), String> {
        let Token::String(key) = token else {
            return Err(self.unexpected("object key string", &token));
        };
        match self.token() {
            Token::Colon => {}
            token => return Err(self.unexpected("colon", &token)),
        }
        let key = self.lua.create_string(key).map_err(text_of)?;
        if let Some(open) = self.open.last_mut() {
            open.key = Some(key);
        }
        Ok(())
    }

    /// The whole value, if nothing follows it.
    fn end(&mut self, value: Value) -> Result<Value, String> {
        match self.token() {
            Token::End => Ok(value),
            token => Err(self.unexpected("the end", &token)),
        }
    }

    fn unexpected(&self, expected: &str, found: &Token) -> String {
        format!("Expected {expected} but found {} at character {}", found.name(), self.token_at + 1)
    }

    /// The byte at a distance from the place; 0 after the end.
    fn byte(&self, distance: usize) -> u8 {
        self.text.get(self.place + distance).copied().unwrap_or_default()
    }

    fn rest(&self) -> &[u8] {
        self.text.get(self.place..).unwrap_or_default()
    }

    fn token(&mut self) -> Token {
        if let Err(reason) = self.skip() {
            self.token_at = self.place;
            return Token::Error(reason);
        }
        self.token_at = self.place;
        let single = match self.byte(0) {
            0 => return Token::End,
            b'{' => Token::ObjectBegin,
            b'}' => Token::ObjectEnd,
            b'[' => Token::ArrayBegin,
            b']' => Token::ArrayEnd,
            b',' => Token::Comma,
            b':' => Token::Colon,
            b'"' => return self.string(),
            b'-' | b'0'..=b'9' => {
                if !self.config.decode_invalid && is_invalid(self.rest()) {
                    return Token::Error("invalid number");
                }
                return self.number();
            }
            b'f' | b'i' | b'I' | b'n' | b'N' | b't' | b'+' => return self.word(),
            _ => return Token::Error("invalid token"),
        };
        self.place += 1;
        single
    }

    /// Skips spaces, and comments where they are allowed.
    fn skip(&mut self) -> Result<(), &'static str> {
        loop {
            while matches!(self.byte(0), b' ' | b'\t' | b'\n' | b'\r') {
                self.place += 1;
            }
            if !self.config.allow_comment || self.byte(0) != b'/' {
                return Ok(());
            }
            let (end, length) = match self.byte(1) {
                b'/' => (memchr::memchr(b'\n', self.rest()), 0),
                b'*' => (memchr::memmem::find(&self.rest()[2..], b"*/").map(|end| end + 2), 2),
                _ => return Ok(()),
            };
            match end {
                Some(end) => self.place += end + length,
                None if length == 0 => self.place = self.text.len(),
                None => {
                    self.place = self.text.len();
                    return Err("unclosed multi-line comment");
                }
            }
        }
    }

    fn word(&mut self) -> Token {
        for (word, token) in
            [(&b"true"[..], Token::Boolean(true)), (b"false", Token::Boolean(false)), (b"null", Token::Null)]
        {
            if self.rest().starts_with(word) {
                self.place += word.len();
                return token;
            }
        }
        if self.config.decode_invalid && is_invalid(self.rest()) {
            return self.number();
        }
        Token::Error("invalid token")
    }

    fn number(&mut self) -> Token {
        match number(self.rest()) {
            Some((number, length)) => {
                self.place += length;
                Token::Number(number)
            }
            None => Token::Error("invalid number"),
        }
    }

    fn string(&mut self) -> Token {
        self.place += 1;
        let mut text = Vec::new();
        loop {
            let plain = memchr::memchr3(b'"', b'\\', 0, self.rest()).unwrap_or(self.rest().len());
            text.extend_from_slice(&self.rest()[..plain]);
            self.place += plain;
            match self.byte(0) {
                b'"' => {
                    self.place += 1;
                    return Token::String(text);
                }
                b'\\' => {}
                _ => {
                    self.token_at = self.place;
                    return Token::Error("unexpected end of string");
                }
            }
            let byte = match self.byte(1) {
                byte @ (b'"' | b'\\' | b'/') => byte,
                b'b' => 8,
                b't' => b'\t',
                b'n' => b'\n',
                b'f' => 12,
                b'r' => b'\r',
                b'u' => match self.code_point() {
                    Some((point, length)) => {
                        text.extend_from_slice(point.encode_utf8(&mut [0; 4]).as_bytes());
                        self.place += length;
                        continue;
                    }
                    None => {
                        self.token_at = self.place;
                        return Token::Error("invalid unicode escape code");
                    }
                },
                _ => {
                    self.token_at = self.place;
                    return Token::Error("invalid escape code");
                }
            };
            text.push(byte);
            self.place += 2;
        }
    }

    /// The character of `\uXXXX`, or of two of them, and the length of its text.
    fn code_point(&self) -> Option<(char, usize)> {
        let unit = |from: usize| {
            let digits = self.rest().get(from..from + 4)?;
            digits.iter().try_fold(0, |unit, digit| Some(unit * 16 + char::from(*digit).to_digit(16)?))
        };
        let high = unit(2)?;
        if high & 0xf800 != 0xd800 {
            return char::from_u32(high).map(|point| (point, 6));
        }
        if high & 0x400 != 0 || self.byte(6) != b'\\' || self.byte(7) != b'u' {
            return None;
        }
        let low = unit(8).filter(|low| low & 0xfc00 == 0xdc00)?;
        char::from_u32((((high & 0x3ff) << 10) | (low & 0x3ff)) + 0x10000).map(|point| (point, 12))
    }
}

fn text_of(error: mlua::Error) -> String {
    crate::engine::message_of(&error)
}

/// Whether a number has a form that JSON does not have.
fn is_invalid(text: &[u8]) -> bool {
    let text = match text {
        [b'+', ..] => return true,
        [b'-', rest @ ..] => rest,
        other => other,
    };
    let starts = |word: &[u8]| text.get(..3).is_some_and(|start| start.eq_ignore_ascii_case(word));
    match text {
        [b'0', next, ..] => matches!(next, b'x' | b'X' | b'0'..=b'9'),
        [first, ..] if *first <= b'9' => false,
        _ => starts(b"inf") || starts(b"nan"),
    }
}

/// The number at the beginning of a text, as `strtod` of C reads it, and its length.
fn number(text: &[u8]) -> Option<(f64, usize)> {
    let sign_length = usize::from(matches!(text.first(), Some(b'+' | b'-')));
    let sign = if text.first() == Some(&b'-') { -1.0 } else { 1.0 };
    let rest = &text[sign_length..];
    let starts = |word: &[u8]| rest.get(..word.len()).is_some_and(|start| start.eq_ignore_ascii_case(word));
    for (word, value) in [(&b"infinity"[..], f64::INFINITY), (b"inf", f64::INFINITY), (b"nan", f64::NAN)] {
        if starts(word) {
            return Some((sign * value, sign_length + word.len()));
        }
    }
    if starts(b"0x") {
        let digits = rest[2..].iter().take_while(|byte| byte.is_ascii_hexdigit());
        let digits: Vec<u32> = digits.filter_map(|digit| char::from(*digit).to_digit(16)).collect();
        if !digits.is_empty() {
            let value = digits.iter().fold(0.0, |value, digit| value * 16.0 + f64::from(*digit));
            return Some((sign * value, sign_length + 2 + digits.len()));
        }
    }
    let digits =
        |from: usize| rest[from.min(rest.len())..].iter().take_while(|byte| byte.is_ascii_digit()).count();
    let whole = digits(0);
    let mut length = whole;
    if rest.get(length) == Some(&b'.') {
        let fraction = digits(length + 1);
        if whole + fraction > 0 {
            length += 1 + fraction;
        }
    }
    if length == 0 {
        return None;
    }
    if matches!(rest.get(length), Some(b'e' | b'E')) {
        let sign = usize::from(matches!(rest.get(length + 1), Some(b'+' | b'-')));
        let exponent = digits(length + 1 + sign);
        if exponent > 0 {
            length += 1 + sign + exponent;
        }
    }
    let value: f64 = std::str::from_utf8(&rest[..length]).ok()?.parse().ok()?;
    Some((sign * value, sign_length + length))
}
