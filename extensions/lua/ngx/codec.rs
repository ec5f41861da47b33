//! Encodings and digests of `ngx`: base64, URIs, arguments, MD5, SHA-1, CRC.

use std::rc::Rc;

use aws_lc_rs::hmac;
use base64::Engine as _;
use base64::alphabet;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};
use md5::Md5;
use mlua::{Lua, Table, Value};
use sha1::{Digest, Sha1};

use crate::engine::arguments::{Arguments, Results, failed, one, several, type_name};
use crate::engine::host::Host;
use crate::engine::modules::Modules;

/// Decoders of nginx ignore bits after the last byte.
const LENIENT: GeneralPurposeConfig = GeneralPurposeConfig::new()
    .with_decode_allow_trailing_bits(true)
    .with_decode_padding_mode(DecodePaddingMode::Indifferent);
const PADDED: GeneralPurpose = GeneralPurpose::new(&alphabet::STANDARD, LENIENT);
const UNPADDED: GeneralPurpose = GeneralPurpose::new(&alphabet::STANDARD, LENIENT.with_encode_padding(false));
const FOR_URLS: GeneralPurpose = GeneralPurpose::new(&alphabet::URL_SAFE, LENIENT.with_encode_padding(false));

/// The most arguments that are decoded where a script names no number.
const MOST_ARGUMENTS: i64 = 100;

pub(super) fn register(lua: &Lua, host: &Rc<Host>, ngx: &Table, modules: &Modules) -> mlua::Result<()> {
    register_base64(lua, host, ngx, modules)?;
    register_uris(lua, host, ngx)?;
    register_digests(lua, host, ngx)?;
    host.function(lua, ngx, "quote_sql_str", |_, arguments| {
        if arguments.count() != 1 {
            return Err("expecting one argument".to_owned());
        }
        bytes(arguments.lua(), &quoted(&arguments.text(1)?.as_bytes()))
    })
}

fn register_base64(lua: &Lua, host: &Rc<Host>, ngx: &Table, modules: &Modules) -> mlua::Result<()> {
    host.function(lua, ngx, "encode_base64", |_, arguments| {
        let codec = match arguments.value(2) {
            Value::Nil | Value::Boolean(false) => PADDED,
            Value::Boolean(true) => UNPADDED,
            other => return Err(format!("bad no_padding: boolean expected, got {}", type_name(&other))),
        };
        one(arguments.lua(), codec.encode(loose_text(&arguments, 1)?))
    })?;
    host.function(lua, ngx, "decode_base64", |_, arguments| {
        let decoded = decoded(&PADDED, &strict_text(&arguments)?);
        match decoded {
            Some(decoded) => bytes(arguments.lua(), &decoded),
            None => one(arguments.lua(), Value::Nil),
        }
    })?;
    host.function(lua, ngx, "decode_base64mime", |_, arguments| {
        let mut text = strict_text(&arguments)?;
        text.retain(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'+' | b'/' | b'='));
        match decoded(&PADDED, &text) {
            Some(decoded) => bytes(arguments.lua(), &decoded),
            None => one(arguments.lua(), Value::Nil),
        }
    })?;
    let module = lua.create_table()?;
    host.function(lua, &module, "encode_base64url", |_, arguments| match arguments.value(1) {
        Value::String(text) => one(arguments.lua(), FOR_URLS.encode(text.as_bytes())),
        _ => failed(arguments.lua(), "must provide a string"),
    })?;
    host.function(lua, &module, "decode_base64url", |_, arguments| match arguments.value(1) {
        Value::String(text) => match decoded(&FOR_URLS, &text.as_bytes()) {
            Some(decoded) => bytes(arguments.lua(), &decoded),
            None => failed(arguments.lua(), "invalid input"),
        },
        _ => failed(arguments.lua(), "must provide a string"),
    })?;
    modules.add("ngx.base64", module)
}

fn register_uris(lua: &Lua, host: &Rc<Host>, ngx: &Table) -> mlua::Result<()> {
    host.function(lua, ngx, "escape_uri", |_, arguments| {
        let kind = match arguments.value(2) {
            Value::Nil => 2.0,
            Value::Integer(_) | Value::Number(_) => arguments.number(2)?,
            _ => return Err("\"type\" is not a number".to_owned()),
        };
        if !(0.0..=6.0).contains(&kind) {
            let kind = arguments.text(2)?.to_string_lossy();
            return Err(format!("\"type\" {kind} out of range"));
        }
        // Numbers with a fraction lose it.
        let kind = Escape::ALL[kind as usize];
        bytes(arguments.lua(), &escaped(&loose_text(&arguments, 1)?, kind))
    })?;
    host.function(lua, ngx, "unescape_uri", |_, arguments| {
        bytes(arguments.lua(), &unescaped(&loose_text(&arguments, 1)?))
    })?;
    host.function(lua, ngx, "encode_args", |_, arguments| {
        let Value::Table(table) = arguments.value(1) else {
            return Err(arguments.wrong(1, "table"));
        };
        bytes(arguments.lua(), &encoded_arguments(arguments.lua(), &table)?)
    })?;
    host.function(lua, ngx, "decode_args", |_, arguments| {
        let count = arguments.count();
        if !(1..=2).contains(&count) {
            return Err(format!("expecting 1 or 2 arguments but seen {count}"));
        }
        let most = arguments.optional_integer(2)?.unwrap_or(MOST_ARGUMENTS);
        let (table, is_cut) = decoded_arguments(arguments.lua(), &arguments.text(1)?.as_bytes(), most)?;
        if is_cut { several(arguments.lua(), (table, "truncated")) } else { one(arguments.lua(), table) }
    })
}

fn register_digests(lua: &Lua, host: &Rc<Host>, ngx: &Table) -> mlua::Result<()> {
    host.function(lua, ngx, "md5", |_, arguments| {
        one(arguments.lua(), hex(&Md5::digest(loose_text(&arguments, 1)?)))
    })?;
    host.function(lua, ngx, "md5_bin", |_, arguments| {
        bytes(arguments.lua(), &Md5::digest(loose_text(&arguments, 1)?))
    })?;
    host.function(lua, ngx, "sha1_bin", |_, arguments| {
        bytes(arguments.lua(), &Sha1::digest(loose_text(&arguments, 1)?))
    })?;
    for name in ["crc32_short", "crc32_long"] {
        host.function(lua, ngx, name, |_, arguments| {
            one(arguments.lua(), crc32fast::hash(&loose_text(&arguments, 1)?))
        })?;
    }
    host.function(lua, ngx, "hmac_sha1", |_, arguments| {
        if arguments.count() != 2 {
            return Err(format!("expecting 2 arguments, but got {}", arguments.count()));
        }
        let key = hmac::Key::new(hmac::HMAC_SHA1_FOR_LEGACY_USE_ONLY, &arguments.text(1)?.as_bytes());
        bytes(arguments.lua(), hmac::sign(&key, &arguments.text(2)?.as_bytes()).as_ref())
    })
}

/// Bytes as the one result.
pub(crate) fn bytes(lua: &Lua, value: &[u8]) -> Results {
    let text = lua.create_string(value).map_err(|error| error.to_string())?;
    one(lua, text)
}

/// Bytes as lower-case hexadecimal digits.
pub(crate) fn hex(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let mut text = String::with_capacity(bytes.len() * 2);
    for byte in bytes {
        text.push(char::from(DIGITS[usize::from(byte >> 4)]));
        text.push(char::from(DIGITS[usize::from(byte & 15)]));
    }
    text
}

/// Any value as text; nil and false are empty.
pub(crate) fn loose_text(arguments: &Arguments<'_>, place: usize) -> Result<Vec<u8>, String> {
    match arguments.value(place) {
        Value::Nil | Value::Boolean(false) => Ok(Vec::new()),
        value => any_text(arguments.lua(), &value),
    }
}

/// The text that `tostring` makes of a value.
pub(crate) fn any_text(lua: &Lua, value: &Value) -> Result<Vec<u8>, String> {
    match value {
        Value::String(text) => Ok(text.as_bytes().to_vec()),
        Value::Integer(_) | Value::Number(_) => {
            let text = lua.coerce_string(value.clone()).map_err(|error| error.to_string())?;
            Ok(text.map(|text| text.as_bytes().to_vec()).unwrap_or_default())
        }
        other => other.to_string().map(String::into_bytes).map_err(|error| error.to_string()),
    }
}

fn strict_text(arguments: &Arguments<'_>) -> Result<Vec<u8>, String> {
    match arguments.value(1) {
        Value::String(text) => Ok(text.as_bytes().to_vec()),
        _ => Err("string argument only".to_owned()),
    }
}

/// Decodes up to the first `=`, as nginx does.
fn decoded(codec: &GeneralPurpose, text: &[u8]) -> Option<Vec<u8>> {
    let end = text.iter().position(|byte| *byte == b'=').unwrap_or(text.len());
    codec.decode(&text[..end]).ok()
}

/// Decodes base64 for URLs, with or without padding.
pub(crate) fn decoded_for_urls(text: &[u8]) -> Option<Vec<u8>> {
    decoded(&FOR_URLS, text)
}

/// Encodes base64 for URLs, without padding.
pub(crate) fn encoded_for_urls(text: &[u8]) -> String {
    FOR_URLS.encode(text)
}

/// The sets of bytes that nginx escapes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Escape {
    Uri,
    Args,
    Component,
    Html,
    Refresh,
    Memcached,
    MailAuth,
}

impl Escape {
    /// By their numbers.
    const ALL: [Escape; 7] = [
        Escape::Uri,
        Escape::Args,
        Escape::Component,
        Escape::Html,
        Escape::Refresh,
        Escape::Memcached,
        Escape::MailAuth,
    ];

    fn covers(self, byte: u8) -> bool {
        let is_high = byte >= 0x7f;
        byte < 0x20
            || match self {
                Escape::Uri => is_high || b" #%?".contains(&byte),
                Escape::Args => is_high || b" #%+?".contains(&byte),
                Escape::Component => !byte.is_ascii_alphanumeric() && !b"-._~!'()*".contains(&byte),
                Escape::Html => is_high || b" \"#%'".contains(&byte),
                Escape::Refresh => is_high || b" \"'".contains(&byte),
                Escape::Memcached | Escape::MailAuth => b" %".contains(&byte),
            }
    }
}

/// Escapes bytes as `%` and two digits.
pub(crate) fn escaped(text: &[u8], kind: Escape) -> Vec<u8> {
    const DIGITS: &[u8; 16] = b"0123456789ABCDEF";
    let mut escaped = Vec::with_capacity(text.len());
    for byte in text {
        if kind.covers(*byte) {
            escaped.extend([b'%', DIGITS[usize::from(byte >> 4)], DIGITS[usize::from(byte & 15)]]);
        } else {
            escaped.push(*byte);
        }
    }
    escaped
}

/// Decodes `%` with two digits, and `+`. A `%` without digits stays.
pub(crate) fn unescaped(text: &[u8]) -> Vec<u8> {
    let digit = |place: usize| text.get(place).and_then(|byte| char::from(*byte).to_digit(16));
    let mut decoded = Vec::with_capacity(text.len());
    let mut place = 0;
    while let Some(byte) = text.get(place) {
        place += 1;
        match (byte, digit(place), digit(place + 1)) {
            (b'%', Some(high), Some(low)) => {
                decoded.push(u8::try_from(high * 16 + low).unwrap_or_default());
                place += 2;
            }
            (b'+', _, _) => decoded.push(b' '),
            (byte, _, _) => decoded.push(*byte),
        }
    }
    decoded
}

/// Encodes a table as arguments of a URI.
pub(crate) fn encoded_arguments(lua: &Lua, table: &Table) -> Result<Vec<u8>, String> {
    let mut encoded = Vec::new();
    for pair in table.pairs::<Value, Value>() {
        let (key, value) = pair.map_err(|error| error.to_string())?;
        let Value::String(key) = key else {
            return Err("attempt to use a non-string key in the \"args\" option table".to_owned());
        };
        let key = escaped(&key.as_bytes(), Escape::Component);
        match value {
            Value::Table(values) => {
                for pair in values.pairs::<Value, Value>() {
                    let (_, value) = pair.map_err(|error| error.to_string())?;
                    add_argument(lua, &mut encoded, &key, &value)?;
                }
            }
            value => add_argument(lua, &mut encoded, &key, &value)?,
        }
    }
    Ok(encoded)
}

fn add_argument(lua: &Lua, encoded: &mut Vec<u8>, key: &[u8], value: &Value) -> Result<(), String> {
    let value = match value {
        Value::Boolean(false) => return Ok(()),
        Value::Boolean(true) => None,
        Value::String(_) | Value::Integer(_) | Value::Number(_) => Some(any_text(lua, value)?),
        other => return Err(format!("attempt to use {} as query arg value", type_name(other))),
    };
    if !encoded.is_empty() {
        encoded.push(b'&');
    }
    encoded.extend_from_slice(key);
    if let Some(value) = value {
        encoded.push(b'=');
        encoded.extend(escaped(&value, Escape::Component));
    }
    Ok(())
}

/// Decodes arguments of a URI into a table; whether more than `most` of them were there. 0 takes all.
pub(crate) fn decoded_arguments(lua: &Lua, text: &[u8], most: i64) -> Result<(Table, bool), String> {
    let decode = || {
        let table = lua.create_table()?;
        let mut count = 0;
        let mut pieces = text.split(|byte| *byte == b'&').peekable();
        while let Some(piece) = pieces.next() {
            let is_last = pieces.peek().is_none();
            if is_last && piece.is_empty() {
                break;
            }
            let (key, value) = match piece.iter().position(|byte| *byte == b'=') {
                Some(place) => (&piece[..place], Some(&piece[place + 1..])),
                None => (piece, None),
            };
            let key = unescaped(key);
            if !key.is_empty() {
                let value = match value {
                    Some(value) => Value::String(lua.create_string(unescaped(value))?),
                    None => Value::Boolean(true),
                };
                add_value(lua, &table, &key, value)?;
            }
            count += 1;
            if most > 0 && count == most && !is_last {
                return Ok((table, true));
            }
        }
        Ok((table, false))
    };
    decode().map_err(|error: mlua::Error| error.to_string())
}

/// Adds a value: a key with several values has a table of them.
fn add_value(lua: &Lua, table: &Table, key: &[u8], value: Value) -> mlua::Result<()> {
    let key = lua.create_string(key)?;
    match table.raw_get::<Value>(&key)? {
        Value::Nil => table.raw_set(key, value),
        Value::Table(values) => values.raw_push(value),
        first => table.raw_set(key, lua.create_sequence_from([first, value])?),
    }
}

/// A text in quotes of MySQL.
fn quoted(text: &[u8]) -> Vec<u8> {
    let mut quoted = vec![b'\''];
    for byte in text {
        let letter = match byte {
            0 => b'0',
            8 => b'b',
            b'\n' => b'n',
            b'\r' => b'r',
            b'\t' => b't',
            26 => b'Z',
            b'\\' | b'\'' | b'"' | b'$' => *byte,
            other => {
                quoted.push(*other);
                continue;
            }
        };
        quoted.extend([b'\\', letter]);
    }
    quoted.push(b'\'');
    quoted
}

#[cfg(test)]
mod tests {
    use crate::snippets::check;

    #[test]
    fn base64_follows_nginx() {
        check(&[
            (
                "for _, s in ipairs{'YWJj\\n', 'YW Jj', '_-8=', 'YQ=', 'YQ===', '====', 'YR=='} do ngx.print(tostring(ngx.decode_base64(s)), ',') end",
                "nil,nil,nil,a,a,,a,",
            ),
            ("local ok, e = pcall(ngx.decode_base64, 5) ngx.say(ok, ' ', e)", "false string argument only\n"),
            (
                "ngx.say(ngx.encode_base64(nil), '|', ngx.encode_base64(true), '|', ngx.encode_base64('a', true))",
                "|dHJ1ZQ==|YQ\n",
            ),
            ("ngx.say(ngx.decode_base64mime('YW\\r\\nJj'))", "abc\n"),
            (
                "local b = require 'ngx.base64' ngx.say(b.encode_base64url('\\255\\254'), b.decode_base64url('__4=') == '\\255\\254', b.decode_base64url('*'))",
                "__4truenilinvalid input\n",
            ),
        ]);
    }

    #[test]
    fn uris_are_escaped_by_type() {
        check(&[
            (
                "ngx.say(ngx.escape_uri(\"a b/c?d=e&f+g%h~'()*!,;:@$-_.\"))",
                "a%20b%2Fc%3Fd%3De%26f%2Bg%25h~'()*!%2C%3B%3A%40%24-_.\n",
            ),
            ("ngx.say(ngx.escape_uri('a b/c?d=e&f+g%h#', 0))", "a%20b/c%3Fd=e&f+g%25h%23\n"),
            (
                "ngx.say(ngx.escape_uri('\\0\\127\\128\\255'), ngx.escape_uri(''), ngx.escape_uri(12))",
                "%00%7F%80%FF12\n",
            ),
            ("local ok, e = pcall(ngx.escape_uri, 'a', 9) ngx.say(e)", "\"type\" 9 out of range\n"),
            (
                "for _, s in ipairs{'a%20b', 'a+b', '%zz', '%4', '%', '%41%42', '%2525'} do ngx.print(ngx.unescape_uri(s), ',') end",
                "a b,a b,%zz,%4,%,AB,%25,",
            ),
        ]);
    }

    #[test]
    fn arguments_are_encoded_and_decoded() {
        check(&[
            ("ngx.say(ngx.encode_args({['a b'] = 'c&d=e/f?'}))", "a%20b=c%26d%3De%2Ff%3F\n"),
            ("ngx.say(ngx.encode_args({k = {1, true, false, 'x'}}))", "k=1&k&k=x\n"),
            ("ngx.say(ngx.encode_args({k = false}) == '')", "true\n"),
            (
                "local ok, e = pcall(ngx.encode_args, {1}) ngx.say(e)",
                "attempt to use a non-string key in the \"args\" option table\n",
            ),
            (
                "local ok, e = pcall(ngx.encode_args, {a = print}) ngx.say(e)",
                "attempt to use function as query arg value\n",
            ),
            (
                "local a = ngx.decode_args('k&k=1&k=&=x&b=c%20d+e') ngx.say(a.k[1], a.k[2], a.k[3] == '', a.b)",
                "true1truec d e\n",
            ),
            ("local a, e = ngx.decode_args('a=1&b=2&c=3', 2) ngx.say(a.a, a.b, a.c, e)", "12niltruncated\n"),
            ("local a, e = ngx.decode_args('a=1&b=2', 2) ngx.say(a.a, a.b, e)", "12nil\n"),
        ]);
    }

    #[test]
    fn digests_take_any_value() {
        check(&[
            (
                "ngx.say(ngx.md5('hello'), ' ', ngx.md5(''))",
                "5d41402abc4b2a76b9719d911017c592 d41d8cd98f00b204e9800998ecf8427e\n",
            ),
            (
                "ngx.say(ngx.md5(nil) == ngx.md5(''), #ngx.md5_bin(nil), #ngx.sha1_bin(nil), ngx.crc32_short(nil))",
                "true16200\n",
            ),
            ("ngx.say(ngx.md5(12))", "c20ad4d76fe97759aa27a0c99bff6710\n"),
            (
                "ngx.say(ngx.encode_base64(ngx.sha1_bin('hello')), ' ', ngx.encode_base64(ngx.hmac_sha1('key', 'hello')))",
                "qvTGHdzF6KLavt4PO0gs2a6pQ00= s0zqxFFv8joUPmHXnQ+npPvl8mY=\n",
            ),
            ("ngx.say(ngx.crc32_short('hello'), ' ', ngx.crc32_long('hello'))", "907060870 907060870\n"),
            ("ngx.say(ngx.quote_sql_str(\"a'b\\0\\n\\26\\\\\"))", "'a\\'b\\0\\n\\Z\\\\'\n"),
        ]);
    }
}
