//! JSON as a message.

use std::collections::HashMap;

use base64::Engine;
use base64::alphabet::{STANDARD, URL_SAFE};
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};
use prost_reflect::{
    DeserializeOptions, DynamicMessage, FieldDescriptor, Kind, MapKey, MessageDescriptor, Value,
};
use serde_json::Value as Json;

use super::output::is_well_known;

/// A value cannot be what its field holds.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Unfit(pub(super) String);

/// Returns the message for an object. Members that are no fields are ignored.
///
/// # Errors
/// Returns the field whose value is of another kind.
pub(super) fn message(desc: &MessageDescriptor, json: &Json) -> Result<DynamicMessage, Unfit> {
    let members = match json {
        Json::Object(members) if !has_own_form(desc, json) => members,
        json if is_well_known(desc) => return well_known(desc, json),
        _ => return Err(Unfit(format!("an object is expected for {}", desc.full_name()))),
    };
    let mut made = DynamicMessage::new(desc.clone());
    for (name, value) in members {
        let field = desc.get_field_by_name(name).or_else(|| desc.get_field_by_json_name(name));
        let Some(field) = field.filter(|_| !value.is_null()) else { continue };
        if let Some(value) = value_of(&field, value)? {
            let set = made.try_set_field(&field, value);
            set.map_err(|error| Unfit(format!("{}: {error}", field.full_name())))?;
        }
    }
    Ok(made)
}

/// Whether an object is the form that JSON has for a well-known type, and not one of its fields.
fn has_own_form(desc: &MessageDescriptor, json: &Json) -> bool {
    match desc.full_name() {
        "google.protobuf.Struct" | "google.protobuf.Value" => true,
        "google.protobuf.Any" => json.get("@type").is_some(),
        _ => false,
    }
}

fn well_known(desc: &MessageDescriptor, json: &Json) -> Result<DynamicMessage, Unfit> {
    let options = DeserializeOptions::new().deny_unknown_fields(false);
    DynamicMessage::deserialize_with_options(desc.clone(), json, &options)
        .map_err(|error| Unfit(format!("{}: {error}", desc.full_name())))
}

/// Returns the value of a field; None for nothing.
fn value_of(field: &FieldDescriptor, json: &Json) -> Result<Option<Value>, Unfit> {
    let kind = field.kind();
    if field.is_map() {
        return map(field, &kind, json).map(Some);
    }
    if !field.is_list() {
        return single(field, &kind, json);
    }
    let items = match json {
        Json::Array(items) => &items[..],
        // An argument that occurs once in the query.
        one => std::slice::from_ref(one),
    };
    let values = items.iter().filter_map(|item| single(field, &kind, item).transpose());
    values.collect::<Result<Vec<Value>, Unfit>>().map(|values| Some(Value::List(values)))
}

fn map(field: &FieldDescriptor, kind: &Kind, json: &Json) -> Result<Value, Unfit> {
    let (Some(entry), Json::Object(members)) = (kind.as_message(), json) else {
        return Err(unfit(field, "an object is expected"));
    };
    let (key_field, value_field) = (entry.map_entry_key_field(), entry.map_entry_value_field());
    let mut made = HashMap::new();
    for (name, value) in members {
        let key = key(&key_field.kind(), name).ok_or_else(|| unfit(field, "a key has the wrong type"))?;
        if let Some(value) = single(field, &value_field.kind(), value)? {
            made.insert(key, value);
        }
    }
    Ok(Value::Map(made))
}

fn key(kind: &Kind, name: &str) -> Option<MapKey> {
    Some(match kind {
        Kind::String => MapKey::String(name.to_owned()),
        Kind::Bool => MapKey::Bool(name.parse().ok()?),
        Kind::Int32 | Kind::Sint32 | Kind::Sfixed32 => MapKey::I32(name.parse().ok()?),
        Kind::Uint32 | Kind::Fixed32 => MapKey::U32(name.parse().ok()?),
        Kind::Int64 | Kind::Sint64 | Kind::Sfixed64 => MapKey::I64(name.parse().ok()?),
        Kind::Uint64 | Kind::Fixed64 => MapKey::U64(name.parse().ok()?),
        _ => return None,
    })
}

/// One value. A text that is no number leaves a field of up to 32 bits out, as APISIX does.
fn single(field: &FieldDescriptor, kind: &Kind, json: &Json) -> Result<Option<Value>, Unfit> {
    let wrong = |what: &str| unfit(field, what);
    let range = || wrong("the number is out of range");
    let value = match kind {
        Kind::Message(desc) => Value::Message(message(desc, json)?),
        Kind::Enum(_) => Value::EnumNumber(enumerated(kind, json).ok_or_else(|| wrong("unknown value"))?),
        Kind::Bool => Value::Bool(truth(json).ok_or_else(|| wrong("a boolean is expected"))?),
        Kind::String => Value::String(text(json).ok_or_else(|| wrong("a string is expected"))?),
        Kind::Bytes => {
            let bytes = json.as_str().and_then(bytes).ok_or_else(|| wrong("base64 is expected"))?;
            Value::Bytes(bytes.into())
        }
        Kind::Double | Kind::Float => match (number(json), kind) {
            (None, _) => return Ok(None),
            (Some(number), Kind::Float) => Value::F32(number as f32),
            (Some(number), _) => Value::F64(number),
        },
        Kind::Int32 | Kind::Sint32 | Kind::Sfixed32 | Kind::Uint32 | Kind::Fixed32 => {
            let Some(number) = number(json) else { return Ok(None) };
            let whole = number.trunc();
            let is_signed = matches!(kind, Kind::Int32 | Kind::Sint32 | Kind::Sfixed32);
            match is_signed {
                true if (f64::from(i32::MIN)..=f64::from(i32::MAX)).contains(&whole) => {
                    Value::I32(whole as i32)
                }
                false if (0.0..=f64::from(u32::MAX)).contains(&whole) => Value::U32(whole as u32),
                _ => return Err(range()),
            }
        }
        Kind::Int64 | Kind::Sint64 | Kind::Sfixed64 => {
            Value::I64(integer(json).and_then(|number| number.try_into().ok()).ok_or_else(range)?)
        }
        Kind::Uint64 | Kind::Fixed64 => {
            Value::U64(integer(json).and_then(|number| number.try_into().ok()).ok_or_else(range)?)
        }
    };
    Ok(Some(value))
}

fn unfit(field: &FieldDescriptor, what: &str) -> Unfit {
    Unfit(format!("{}: {what}", field.full_name()))
}

fn enumerated(kind: &Kind, json: &Json) -> Option<i32> {
    let desc = kind.as_enum()?;
    match json {
        Json::Number(number) => number.as_i64()?.try_into().ok(),
        Json::String(name) => {
            desc.get_value_by_name(name).map(|value| value.number()).or_else(|| name.parse().ok())
        }
        _ => None,
    }
}

fn truth(json: &Json) -> Option<bool> {
    match json {
        Json::Bool(truth) => Some(*truth),
        Json::Number(number) => Some(number.as_f64()? != 0.0),
        Json::String(text) => match &**text {
            "true" | "1" => Some(true),
            "false" | "0" | "" => Some(false),
            _ => None,
        },
        _ => None,
    }
}

fn text(json: &Json) -> Option<String> {
    match json {
        Json::String(text) => Some(text.clone()),
        Json::Number(number) => Some(number.to_string()),
        _ => None,
    }
}

/// The bytes of a text in either alphabet, with padding or without.
fn bytes(text: &str) -> Option<Vec<u8>> {
    let config = GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent);
    let alphabet = if text.contains(['-', '_']) { &URL_SAFE } else { &STANDARD };
    GeneralPurpose::new(alphabet, config).decode(text).ok()
}

fn number(json: &Json) -> Option<f64> {
    match json {
        Json::Number(number) => number.as_f64(),
        Json::String(text) => text.trim().parse().ok(),
        _ => None,
    }
}

/// An integer as JSON has it, or as a text: decimal or with `0x`, as it is shown also with a `#` before it.
fn integer(json: &Json) -> Option<i128> {
    match json {
        Json::Number(number) => {
            let whole = number.as_i64().map(i128::from).or_else(|| number.as_u64().map(i128::from));
            // A float that big is not meant as an integer.
            whole.or_else(|| number.as_f64().filter(|n| n.abs() < 9e15).map(|n| n as i128))
        }
        Json::String(text) => {
            let text = text.trim();
            let text = text.strip_prefix('#').unwrap_or(text);
            let (sign, digits) = text.strip_prefix('-').map_or((1, text), |digits| (-1, digits));
            let magnitude = match digits.strip_prefix("0x") {
                Some(digits) => u64::from_str_radix(digits, 16),
                None => digits.parse::<u64>(),
            };
            magnitude.ok().map(|magnitude| sign * i128::from(magnitude))
        }
        _ => None,
    }
}
