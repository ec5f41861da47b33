//! Messages as JSON.

use std::io;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use prost_reflect::{
    DynamicMessage, FieldDescriptor, Kind, MapKey, MessageDescriptor, ReflectMessage, SerializeOptions,
    Syntax, Value,
};
use serde::Serialize;

/// How messages are shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Form {
    pub(super) enums_by_name: bool,
    pub(super) large_integers: LargeIntegers,
    pub(super) defaults: Defaults,
}

/// How integers of 64 bits are shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum LargeIntegers {
    Number,
    /// Numbers that do not fit into 32 bits as `"#123"`, as the library of APISIX writes them.
    Decimal,
    /// The same as `"#0x7B"`.
    Hexadecimal,
}

/// Which fields that are not set are shown with their default.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Defaults {
    None,
    /// Those of proto3.
    Proto3,
    All,
}

/// The text became too long.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct TooLong;

impl Form {
    /// A message as JSON of at most `limit` bytes.
    ///
    /// # Errors
    /// Returns an error if it is longer.
    pub(super) fn message(self, message: &DynamicMessage, limit: usize) -> Result<Vec<u8>, TooLong> {
        let mut out = Bounded { text: Vec::new(), limit };
        self.write_message(message, &mut out)?;
        Ok(out.text)
    }

    /// One field of a message as JSON; `null` if the message has no such field, or it is not set.
    pub(super) fn field(
        self,
        message: &DynamicMessage,
        name: &str,
        limit: usize,
    ) -> Result<Vec<u8>, TooLong> {
        let mut out = Bounded { text: Vec::new(), limit };
        match message.descriptor().get_field_by_name(name) {
            Some(field) if self.is_shown(message, &field) => {
                self.write_value(&field.kind(), &message.get_field(&field), &mut out)?;
            }
            _ => out.raw("null")?,
        }
        Ok(out.text)
    }

    fn write_message(self, message: &DynamicMessage, out: &mut Bounded) -> Result<(), TooLong> {
        let desc = message.descriptor();
        let begin = out.text.len();
        if is_well_known(&desc) {
            let options = SerializeOptions::new()
                .use_proto_field_name(true)
                .stringify_64_bit_integers(self.large_integers != LargeIntegers::Number)
                .use_enum_numbers(!self.enums_by_name)
                .skip_default_fields(self.defaults == Defaults::None);
            let mut serializer = serde_json::Serializer::new(&mut *out);
            if message.serialize_with_options(&mut serializer, &options).is_ok() {
                return Ok(());
            }
            if out.text.len() >= out.limit {
                return Err(TooLong);
            }
            // A time out of its range, or an unknown type: its fields are shown instead.
            out.text.truncate(begin);
        }
        out.raw("{")?;
        let mut separator = "";
        for field in desc.fields().filter(|field| self.is_shown(message, field)) {
            out.raw(separator)?;
            separator = ",";
            out.json(field.name())?;
            out.raw(":")?;
            self.write_value(&field.kind(), &message.get_field(&field), out)?;
        }
        out.raw("}")
    }

    fn is_shown(self, message: &DynamicMessage, field: &FieldDescriptor) -> bool {
        if message.has_field(field) {
            return true;
        }
        let is_proto3 = field.parent_message().parent_file().syntax() == Syntax::Proto3;
        let has_default = field.containing_oneof().is_none()
            && (field.is_list() || field.is_map() || field.kind().as_message().is_none());
        has_default
            && match self.defaults {
                Defaults::None => false,
                Defaults::Proto3 => is_proto3,
                Defaults::All => true,
            }
    }

    fn write_value(self, kind: &Kind, value: &Value, out: &mut Bounded) -> Result<(), TooLong> {
        match value {
            Value::Message(message) => self.write_message(message, out),
            Value::List(items) => {
                let mut opening = "[";
                for item in items {
                    out.raw(opening)?;
                    opening = ",";
                    self.write_value(kind, item, out)?;
                }
                out.raw(if items.is_empty() { "[]" } else { "]" })
            }
            Value::Map(entries) => {
                let of = kind.as_message().map(|entry| entry.map_entry_value_field().kind());
                let of = of.as_ref().unwrap_or(kind);
                // A map has no order: the same message has one text all the same.
                let mut entries: Vec<(&MapKey, &Value)> = entries.iter().collect();
                entries.sort_unstable_by_key(|(key, _)| *key);
                let mut opening = "{";
                for (key, value) in &entries {
                    out.raw(opening)?;
                    opening = ",";
                    out.json(&key_text(key))?;
                    out.raw(":")?;
                    self.write_value(of, value, out)?;
                }
                out.raw(if entries.is_empty() { "{}" } else { "}" })
            }
            scalar => self.write_scalar(kind, scalar, out),
        }
    }

    fn write_scalar(self, kind: &Kind, value: &Value, out: &mut Bounded) -> Result<(), TooLong> {
        match value {
            Value::Bool(truth) => out.json(truth),
            Value::I32(number) => out.json(number),
            Value::U32(number) => out.json(number),
            Value::I64(number) => {
                let fits = i32::try_from(*number).is_ok();
                self.write_integer(*number < 0, number.unsigned_abs(), fits, out)
            }
            Value::U64(number) => self.write_integer(false, *number, u32::try_from(*number).is_ok(), out),
            Value::F32(number) if number.is_finite() => out.json(number),
            Value::F32(number) => out.json(odd_number(f64::from(*number))),
            Value::F64(number) if number.is_finite() => out.json(number),
            Value::F64(number) => out.json(odd_number(*number)),
            Value::String(text) => out.json(text),
            Value::Bytes(bytes) => out.json(&STANDARD.encode(bytes)),
            Value::EnumNumber(number) => {
                let named = kind.as_enum().filter(|_| self.enums_by_name);
                match named.and_then(|desc| desc.get_value(*number)) {
                    Some(value) => out.json(value.name()),
                    None => out.json(number),
                }
            }
            // Non-empty ones have been written.
            Value::Message(_) | Value::List(_) | Value::Map(_) => out.raw("null"),
        }
    }

    fn write_integer(
        self,
        is_negative: bool,
        magnitude: u64,
        fits: bool,
        out: &mut Bounded,
    ) -> Result<(), TooLong> {
        let sign = if is_negative { "-" } else { "" };
        match self.large_integers {
            LargeIntegers::Decimal if !fits => out.raw(&format!("\"#{sign}{magnitude}\"")),
            LargeIntegers::Hexadecimal if !fits => out.raw(&format!("\"#{sign}0x{magnitude:X}\"")),
            _ => out.raw(&format!("{sign}{magnitude}")),
        }
    }
}

/// Whether JSON has its own form for a type.
pub(super) fn is_well_known(desc: &MessageDescriptor) -> bool {
    let Some(name) = desc.full_name().strip_prefix("google.protobuf.") else { return false };
    matches!(
        name,
        "Any"
            | "Timestamp"
            | "Duration"
            | "Struct"
            | "Value"
            | "ListValue"
            | "FieldMask"
            | "DoubleValue"
            | "FloatValue"
            | "Int64Value"
            | "UInt64Value"
            | "Int32Value"
            | "UInt32Value"
            | "BoolValue"
            | "StringValue"
            | "BytesValue"
    )
}

fn odd_number(number: f64) -> &'static str {
    match number {
        number if number.is_nan() => "NaN",
        number if number > 0.0 => "Infinity",
        _ => "-Infinity",
    }
}

fn key_text(key: &MapKey) -> String {
    match key {
        MapKey::Bool(key) => key.to_string(),
        MapKey::I32(key) => key.to_string(),
        MapKey::I64(key) => key.to_string(),
        MapKey::U32(key) => key.to_string(),
        MapKey::U64(key) => key.to_string(),
        MapKey::String(key) => key.clone(),
    }
}

/// A text that ends at a limit.
struct Bounded {
    text: Vec<u8>,
    limit: usize,
}

impl Bounded {
    fn raw(&mut self, text: &str) -> Result<(), TooLong> {
        io::Write::write_all(self, text.as_bytes()).map_err(|_| TooLong)
    }

    fn json<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<(), TooLong> {
        serde_json::to_writer(self, value).map_err(|_| TooLong)
    }
}

impl io::Write for Bounded {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if bytes.len() > self.limit - self.text.len() {
            // So that it shows that there was no room.
            self.text.resize(self.limit, b' ');
            return Err(io::ErrorKind::FileTooLarge.into());
        }
        self.text.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
