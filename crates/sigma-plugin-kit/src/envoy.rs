//! Messages of Protocol Buffers that several of Envoy's protocols share.
//!
//! They are written by hand, so that no build needs a compiler of Protocol Buffers. A field that is missing here is
//! skipped when it is read. The tags are Envoy's and never change.

use std::collections::HashMap;

/// `envoy.config.core.v3.HeaderMap`.
#[derive(Clone, PartialEq, prost::Message)]
pub struct HeaderMap {
    /// The fields, in order.
    #[prost(message, repeated, tag = "1")]
    pub headers: Vec<HeaderValue>,
}

/// `envoy.config.core.v3.HeaderValueOption`.
#[derive(Clone, PartialEq, prost::Message)]
pub struct HeaderOption {
    /// Name and value.
    #[prost(message, optional, tag = "1")]
    pub header: Option<HeaderValue>,
    /// A boolean that may be absent; goes before `append_action`.
    #[prost(message, optional, tag = "2")]
    pub append: Option<BoolValue>,
    /// The treatment of existing fields of the name.
    #[prost(int32, tag = "3")]
    pub append_action: i32,
    /// A field without a value is added.
    #[prost(bool, tag = "4")]
    pub keep_empty_value: bool,
}

/// `google.protobuf.BoolValue`.
#[derive(Clone, Copy, PartialEq, prost::Message)]
pub struct BoolValue {
    /// The value.
    #[prost(bool, tag = "1")]
    pub value: bool,
}

/// `envoy.config.core.v3.HeaderValue`.
#[derive(Clone, PartialEq, prost::Message)]
pub struct HeaderValue {
    /// The name.
    #[prost(string, tag = "1")]
    pub key: String,
    /// The value as text.
    #[prost(string, tag = "2")]
    pub value: String,
    /// Replaces `value`.
    #[prost(bytes = "vec", tag = "3")]
    pub raw_value: Vec<u8>,
}

/// `google.protobuf.Struct`.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Struct {
    /// The members.
    #[prost(map = "string, message", tag = "1")]
    pub fields: HashMap<String, Value>,
}

/// `google.protobuf.Value`.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Value {
    /// The value; None counts as null.
    #[prost(oneof = "Kind", tags = "1, 2, 3, 4, 5, 6")]
    pub kind: Option<Kind>,
}

/// The kinds of values.
#[derive(Clone, PartialEq, prost::Oneof)]
pub enum Kind {
    /// Null.
    #[prost(int32, tag = "1")]
    Null(i32),
    /// A number.
    #[prost(double, tag = "2")]
    Number(f64),
    /// A text.
    #[prost(string, tag = "3")]
    Text(String),
    /// A boolean.
    #[prost(bool, tag = "4")]
    Bool(bool),
    /// An object.
    #[prost(message, tag = "5")]
    Struct(Struct),
    /// A list.
    #[prost(message, tag = "6")]
    List(ListValue),
}

/// `google.protobuf.ListValue`.
#[derive(Clone, PartialEq, prost::Message)]
pub struct ListValue {
    /// The items.
    #[prost(message, repeated, tag = "1")]
    pub values: Vec<Value>,
}

impl Value {
    /// Returns the value as JSON.
    pub fn json(&self) -> serde_json::Value {
        match &self.kind {
            None | Some(Kind::Null(_)) => serde_json::Value::Null,
            Some(Kind::Bool(truth)) => (*truth).into(),
            Some(Kind::Text(text)) => text.as_str().into(),
            // All numbers are floats there.
            Some(Kind::Number(number)) if number.fract() == 0.0 && number.abs() < 9e15 => {
                (*number as i64).into()
            }
            Some(Kind::Number(number)) => (*number).into(),
            Some(Kind::List(list)) => list.values.iter().map(Value::json).collect(),
            Some(Kind::Struct(of)) => {
                of.fields.iter().map(|(name, value)| (name.clone(), value.json())).collect()
            }
        }
    }
}

impl From<Kind> for Value {
    fn from(kind: Kind) -> Value {
        Value { kind: Some(kind) }
    }
}
