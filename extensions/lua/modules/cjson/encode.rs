//! Values to JSON.

use mlua::{LightUserData, Table, Value};

use super::{Config, DEPTH, EMPTY_ARRAY, Invalid, Json};
use crate::engine::arguments::type_name;
use crate::engine::host::Host;

/// The longest text: tables that share others have much longer texts than they are large.
const MOST_BYTES: usize = 16 << 20;

/// Bytes between two looks at the clock.
const CHECK_BYTES: usize = 64 << 10;

struct Encoder<'a> {
    json: &'a Json,
    host: &'a Host,
    config: &'a Config,
    text: Vec<u8>,
    /// The length at which the clock is read.
    check_at: usize,
}

pub(super) fn encode(json: &Json, host: &Host, config: &Config, value: &Value) -> Result<Vec<u8>, String> {
    let mut encoder = Encoder { json, host, config, text: Vec::new(), check_at: CHECK_BYTES };
    encoder.value(value, 0)?;
    Ok(encoder.text)
}

impl Encoder<'_> {
    /// Appends a value; false if it has no text and is omitted.
    fn value(&mut self, value: &Value, depth: i64) -> Result<bool, String> {
        if self.text.len() >= self.check_at {
            self.check()?;
        }
        match value {
            Value::String(text) => string(&mut self.text, &text.as_bytes(), self.config.escape_slash),
            Value::Table(table) => self.table(table, depth + 1)?,
            other => return self.simple(other),
        }
        Ok(true)
    }

    fn check(&mut self) -> Result<(), String> {
        if self.text.len() > MOST_BYTES {
            return Err(format!("Cannot serialise, the text is longer than {MOST_BYTES} bytes"));
        }
        self.check_at = self.text.len() + CHECK_BYTES;
        self.host.check_time()
    }

    fn simple(&mut self, value: &Value) -> Result<bool, String> {
        match value {
            Value::Nil => self.text.extend_from_slice(b"null"),
            Value::Boolean(value) => self.text.extend_from_slice(if *value { b"true" } else { b"false" }),
            // Numbers of Lua are doubles.
            Value::Integer(number) => self.number(*number as f64)?,
            Value::Number(number) => self.number(*number)?,
            Value::LightUserData(LightUserData(pointer)) if pointer.is_null() => {
                self.text.extend_from_slice(b"null");
            }
            Value::LightUserData(LightUserData(pointer))
                if pointer.addr() == std::ptr::from_ref(&EMPTY_ARRAY).addr() =>
            {
                self.text.extend_from_slice(b"[]");
            }
            _ if self.config.skip_unsupported => return Ok(false),
            other => return Err(format!("Cannot serialise {}: type not supported", type_name(other))),
        }
        Ok(true)
    }

    fn number(&mut self, number: f64) -> Result<(), String> {
        if number.is_finite() {
            self.text.extend_from_slice(general(number, self.config.precision).as_bytes());
            return Ok(());
        }
        let text = match self.config.encode_invalid {
            Invalid::Off => {
                return Err("Cannot serialise number: must not be NaN or Infinity".to_owned());
            }
            Invalid::Null => "null",
            Invalid::On if number.is_nan() => "NaN",
            Invalid::On if number < 0.0 => "-Infinity",
            Invalid::On => "Infinity",
        };
        self.text.extend_from_slice(text.as_bytes());
        Ok(())
    }

    fn table(&mut self, table: &Table, depth: i64) -> Result<(), String> {
        if depth > self.config.encode_depth.min(DEPTH) {
            return Err(format!("Cannot serialise, excessive nesting ({depth})"));
        }
        match self.length(table)? {
            Some(length) => self.array(table, length, depth),
            None => self.object(table, depth),
        }
    }

    /// The length of a table that is written as an array.
    fn length(&self, table: &Table) -> Result<Option<i64>, String> {
        let metatable = table.metatable();
        if metatable.as_ref() == Some(&self.json.array_mt) {
            return Ok(Some(i64::try_from(table.raw_len()).unwrap_or(i64::MAX)));
        }
        let (mut most, mut count) = (0_i64, 0_i64);
        for pair in table.pairs::<Value, Value>() {
            let place = match pair.map_err(|error| error.to_string())?.0 {
                Value::Integer(place) if place >= 1 => place,
                // Only whole numbers are places.
                Value::Number(place) if place >= 1.0 && place.fract() == 0.0 => place as i64,
                _ => return Ok(None),
            };
            most = most.max(place);
            count += 1;
        }
        let Config { sparse_convert, sparse_ratio, sparse_safe, .. } = *self.config;
        if sparse_ratio > 0 && most > count.saturating_mul(sparse_ratio) && most > sparse_safe {
            if !sparse_convert {
                return Err("Cannot serialise table: excessively sparse array".to_owned());
            }
            return Ok(None);
        }
        let is_array = most > 0
            || !self.config.empty_table_as_object
            || metatable.as_ref() == Some(&self.json.empty_array_mt);
        Ok(is_array.then_some(most))
    }

    fn array(&mut self, table: &Table, length: i64, depth: i64) -> Result<(), String> {
        self.text.push(b'[');
        let start = self.text.len();
        for place in 1..=length {
            let before = self.text.len();
            if before > start {
                self.text.push(b',');
            }
            let value: Value = table.raw_get(place).map_err(|error| error.to_string())?;
            if !self.value(&value, depth)? {
                self.text.truncate(before);
            }
        }
        self.text.push(b']');
        Ok(())
    }

    fn object(&mut self, table: &Table, depth: i64) -> Result<(), String> {
        self.text.push(b'{');
        let start = self.text.len();
        for pair in table.pairs::<Value, Value>() {
            let (key, value) = pair.map_err(|error| error.to_string())?;
            let before = self.text.len();
            if before > start {
                self.text.push(b',');
            }
            self.key(&key)?;
            if !self.value(&value, depth)? {
                self.text.truncate(before);
            }
        }
        self.text.push(b'}');
        Ok(())
    }

    fn key(&mut self, key: &Value) -> Result<(), String> {
        match key {
            Value::String(key) => string(&mut self.text, &key.as_bytes(), self.config.escape_slash),
            Value::Integer(_) | Value::Number(_) => {
                self.text.push(b'"');
                self.simple(key)?;
                self.text.push(b'"');
            }
            other => {
                let kind = type_name(other);
                return Err(format!("Cannot serialise {kind}: table key must be a number or string"));
            }
        }
        self.text.push(b':');
        Ok(())
    }
}

/// Appends a text in quotes.
fn string(text: &mut Vec<u8>, value: &[u8], escape_slash: bool) {
    text.reserve(value.len() + 2);
    text.push(b'"');
    for byte in value {
        match byte {
            b'"' => text.extend_from_slice(b"\\\""),
            b'\\' => text.extend_from_slice(b"\\\\"),
            b'/' if escape_slash => text.extend_from_slice(b"\\/"),
            8 => text.extend_from_slice(b"\\b"),
            9 => text.extend_from_slice(b"\\t"),
            10 => text.extend_from_slice(b"\\n"),
            12 => text.extend_from_slice(b"\\f"),
            13 => text.extend_from_slice(b"\\r"),
            0..32 | 127 => text.extend_from_slice(format!("\\u{byte:04x}").as_bytes()),
            byte => text.push(*byte),
        }
    }
    text.push(b'"');
}

/// A number in the format `%.<precision>g` of C.
pub(super) fn general(number: f64, precision: i64) -> String {
    if number == 0.0 {
        return if number.is_sign_negative() { "-0" } else { "0" }.to_owned();
    }
    let precision = usize::try_from(precision).unwrap_or(14);
    let scientific = format!("{number:.*e}", precision - 1);
    let Some((digits, exponent)) = scientific.split_once('e') else { return scientific };
    let exponent: i32 = exponent.parse().unwrap_or_default();
    let is_short = exponent >= -4 && i64::from(exponent) < i64::try_from(precision).unwrap_or(i64::MAX);
    let (mantissa, tail) = if is_short {
        let decimals = i64::try_from(precision).unwrap_or(i64::MAX) - 1 - i64::from(exponent);
        (format!("{number:.*}", usize::try_from(decimals).unwrap_or_default()), String::new())
    } else {
        let sign = if exponent < 0 { '-' } else { '+' };
        (digits.to_owned(), format!("e{sign}{:02}", exponent.abs()))
    };
    let mantissa =
        if mantissa.contains('.') { mantissa.trim_end_matches('0').trim_end_matches('.') } else { &mantissa };
    format!("{mantissa}{tail}")
}
