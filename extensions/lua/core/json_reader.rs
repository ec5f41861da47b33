//! Reading of JSON with the messages of lua-cjson.

use mlua::{Lua, Table, Value};

/// The deepest nesting of tables, as in lua-cjson.
pub(super) const DEPTH: usize = 1000;

/// The most values that one call reads or writes. It bounds the time, which the budget of scripts cannot see here.
pub(super) const MOST_VALUES: usize = 200_000;

/// The value of a JSON text. Arrays get the metatable `array`, null is `ngx.null`.
///
/// # Errors
/// Returns the message of lua-cjson.
pub(super) fn decode(lua: &Lua, text: &[u8], array: Table) -> Result<Value, String> {
    let mut reader = Reader { lua, text, at: 0, token_at: 0, left: MOST_VALUES, array };
    let token = reader.token();
    let value = reader.value(token, 1)?;
    match reader.token() {
        Token::End => Ok(value),
        token => Err(reader.unexpected("the end", &token)),
    }
}

enum Token {
    ObjectBegin,
    ObjectEnd,
    ArrayBegin,
    ArrayEnd,
    Colon,
    Comma,
    End,
    Text(Vec<u8>),
    Number(f64),
    Boolean(bool),
    Null,
    Wrong(&'static str),
}

impl Token {
    /// The name in messages.
    fn name(&self) -> &'static str {
        match self {
            Token::ObjectBegin => "T_OBJ_BEGIN",
            Token::ObjectEnd => "T_OBJ_END",
            Token::ArrayBegin => "T_ARR_BEGIN",
            Token::ArrayEnd => "T_ARR_END",
            Token::Colon => "T_COLON",
            Token::Comma => "T_COMMA",
            Token::End => "T_END",
            Token::Text(_) => "T_STRING",
            Token::Number(_) => "T_NUMBER",
            Token::Boolean(_) => "T_BOOLEAN",
            Token::Null => "T_NULL",
            Token::Wrong(reason) => reason,
        }
    }
}

struct Reader<'a> {
    lua: &'a Lua,
    text: &'a [u8],
    at: usize,
    /// Where the last token began, or its error is.
    token_at: usize,
    /// Further values.
    left: usize,
    array: Table,
}

impl Reader<'_> {
    fn unexpected(&self, expected: &str, found: &Token) -> String {
        format!("Expected {expected} but found {} at character {}", found.name(), self.token_at + 1)
    }

    fn wrong(&mut self, reason: &'static str) -> Token {
        self.token_at = self.at;
        Token::Wrong(reason)
    }

    fn token(&mut self) -> Token {
        while matches!(self.text.get(self.at), Some(b' ' | b'\t' | b'\n' | b'\r')) {
            self.at += 1;
        }
        self.token_at = self.at;
        let single = match self.text.get(self.at) {
            None | Some(0) => return Token::End,
            Some(b'{') => Token::ObjectBegin,
            Some(b'}') => Token::ObjectEnd,
            Some(b'[') => Token::ArrayBegin,
            Some(b']') => Token::ArrayEnd,
            Some(b':') => Token::Colon,
            Some(b',') => Token::Comma,
            Some(b'"') => return self.text(),
            Some(b'-' | b'0'..=b'9') => return self.number(),
            Some(_) => return self.word(),
        };
        self.at += 1;
        single
    }

    fn word(&mut self) -> Token {
        for (word, token) in
            [(&b"true"[..], Token::Boolean(true)), (b"false", Token::Boolean(false)), (b"null", Token::Null)]
        {
            if self.text[self.at..].starts_with(word) {
                self.at += word.len();
                return token;
            }
        }
        self.wrong("invalid token")
    }

    fn number(&mut self) -> Token {
        let is_part = |byte: &&u8| matches!(byte, b'0'..=b'9' | b'+' | b'-' | b'.' | b'e' | b'E');
        let length = self.text[self.at..].iter().take_while(is_part).count();
        let text = &self.text[self.at..self.at + length];
        match std::str::from_utf8(text).ok().and_then(|text| text.parse().ok()) {
            Some(number) => {
                self.at += length;
                Token::Number(number)
            }
            None => self.wrong("invalid number"),
        }
    }

    fn text(&mut self) -> Token {
        let mut bytes = Vec::new();
        self.at += 1;
        loop {
            match self.text.get(self.at) {
                None | Some(0) => return self.wrong("unexpected end of string"),
                Some(b'"') => break,
                Some(b'\\') => {
                    if let Err(reason) = self.escape(&mut bytes) {
                        return self.wrong(reason);
                    }
                }
                Some(byte) => {
                    bytes.push(*byte);
                    self.at += 1;
                }
            }
        }
        self.at += 1;
        Token::Text(bytes)
    }

    fn escape(&mut self, bytes: &mut Vec<u8>) -> Result<(), &'static str> {
        let byte = match self.text.get(self.at + 1) {
            Some(byte @ (b'"' | b'\\' | b'/')) => *byte,
            Some(b'b') => 8,
            Some(b't') => b'\t',
            Some(b'n') => b'\n',
            Some(b'f') => 12,
            Some(b'r') => b'\r',
            Some(b'u') => return self.character(bytes).ok_or("invalid unicode escape code"),
            _ => return Err("invalid escape code"),
        };
        bytes.push(byte);
        self.at += 2;
        Ok(())
    }

    /// A character of one or two `\u` escapes.
    fn character(&mut self, bytes: &mut Vec<u8>) -> Option<()> {
        let unit = |at: usize| {
            let escape = self.text.get(at..at + 6)?;
            let digits = escape.strip_prefix(b"\\u")?;
            let is_hex = digits.iter().all(u8::is_ascii_hexdigit);
            is_hex.then(|| u16::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok())?
        };
        let first = unit(self.at)?;
        let (character, length) = match first {
            0xd800..=0xdbff => {
                let pair = [first, unit(self.at + 6)?];
                (char::decode_utf16(pair).next()?.ok()?, 12)
            }
            first => (char::from_u32(u32::from(first))?, 6),
        };
        bytes.extend_from_slice(character.encode_utf8(&mut [0; 4]).as_bytes());
        self.at += length;
        Some(())
    }

    fn value(&mut self, token: Token, depth: usize) -> Result<Value, String> {
        let left = self.left.checked_sub(1);
        self.left = left.ok_or_else(|| format!("Found more than {MOST_VALUES} values"))?;
        match token {
            Token::Text(text) => self.made(text),
            Token::Number(number) => Ok(Value::Number(number)),
            Token::Boolean(value) => Ok(Value::Boolean(value)),
            Token::Null => Ok(crate::ngx::null()),
            Token::ObjectBegin | Token::ArrayBegin if depth > DEPTH => {
                Err(format!("Found too many nested data structures ({depth})"))
            }
            Token::ObjectBegin => self.object(depth),
            Token::ArrayBegin => self.array(depth),
            token => Err(self.unexpected("value", &token)),
        }
    }

    fn made(&self, text: Vec<u8>) -> Result<Value, String> {
        self.lua.create_string(text).map(Value::String).map_err(|error| error.to_string())
    }

    fn object(&mut self, depth: usize) -> Result<Value, String> {
        let table = self.lua.create_table().map_err(|error| error.to_string())?;
        let mut token = self.token();
        if matches!(token, Token::ObjectEnd) {
            return Ok(Value::Table(table));
        }
        loop {
            let name = match token {
                Token::Text(name) => self.made(name)?,
                token => return Err(self.unexpected("object key string", &token)),
            };
            match self.token() {
                Token::Colon => {}
                token => return Err(self.unexpected("colon", &token)),
            }
            token = self.token();
            let value = self.value(token, depth + 1)?;
            table.raw_set(name, value).map_err(|error| error.to_string())?;
            match self.token() {
                Token::ObjectEnd => return Ok(Value::Table(table)),
                Token::Comma => token = self.token(),
                token => return Err(self.unexpected("comma or object end", &token)),
            }
        }
    }

    fn array(&mut self, depth: usize) -> Result<Value, String> {
        let made = || {
            let table = self.lua.create_table()?;
            table.set_metatable(Some(self.array.clone()))?;
            Ok(table)
        };
        let table = made().map_err(|error: mlua::Error| error.to_string())?;
        let mut token = self.token();
        if matches!(token, Token::ArrayEnd) {
            return Ok(Value::Table(table));
        }
        for place in 1.. {
            let value = self.value(token, depth + 1)?;
            table.raw_set(place, value).map_err(|error| error.to_string())?;
            match self.token() {
                Token::ArrayEnd => break,
                Token::Comma => token = self.token(),
                token => return Err(self.unexpected("comma or array end", &token)),
            }
        }
        Ok(Value::Table(table))
    }
}

#[cfg(test)]
mod tests {
    use crate::snippets::output_of;

    #[test]
    fn mistakes_have_the_words_of_lua_cjson() {
        for (text, expected) in [
            ("", "Expected value but found T_END at character 1"),
            ("hello", "Expected value but found invalid token at character 1"),
            ("{a:1}", "Expected object key string but found invalid token at character 2"),
            ("{\"a\" 1}", "Expected colon but found T_NUMBER at character 6"),
            ("{\"a\":1 2}", "Expected comma or object end but found T_NUMBER at character 8"),
            ("[1 2]", "Expected comma or array end but found T_NUMBER at character 4"),
            ("[1,]", "Expected value but found T_ARR_END at character 4"),
            ("1 2", "Expected the end but found T_NUMBER at character 3"),
            ("\"a", "Expected value but found unexpected end of string at character 3"),
            ("\"\\x\"", "Expected value but found invalid escape code at character 2"),
            ("\"\\ud800\"", "Expected value but found invalid unicode escape code at character 2"),
            ("-", "Expected value but found invalid number at character 1"),
        ] {
            let body = format!("ngx.print(require('apisix.core').json.decode([==[{text}]==]))");
            assert_eq!(output_of(&body), format!("nil{expected}"), "{text}");
        }
        let deep = "ngx.print(require('apisix.core').json.decode(('['):rep(1100)))";
        let many = "ngx.print(require('apisix.core').json.decode('[' .. ('1,'):rep(200000) .. '1]'))";
        assert_eq!(output_of(many), "nilFound more than 200000 values");
        assert_eq!(output_of(deep), "nilFound too many nested data structures (1001)");
    }
}
