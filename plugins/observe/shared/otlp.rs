//! The messages of OTLP, as far as they are used.
//!
//! They are written by hand after `opentelemetry/proto/trace/v1/trace.proto` and those that it imports, so that no
//! build needs a compiler of Protocol Buffers. The tags never change. A message that others hold in numbers is
//! `bytes` there: it was encoded when its exchange was over, and is the same on the wire.

use std::borrow::Cow;

use bytes::Bytes;
use prost::Message as _;
use prost::encoding::{WireType, encode_key, encode_varint, encoded_len_varint, key_len};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::Map;

/// The path of the method over gRPC.
pub(crate) const EXPORT: &str = "/opentelemetry.proto.collector.trace.v1.TraceService/Export";

/// The protocol of a collector.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, JsonSchema)]
pub(crate) enum Protocol {
    #[default]
    #[serde(rename = "http/protobuf")]
    Http,
    #[serde(rename = "grpc")]
    Grpc,
}

/// Bytes of an attribute that is text; a longer one is cut. No attribute says more with a longer one, and a
/// client chooses some of them.
const TEXT_BYTES: usize = 4096;

/// Flags of a span: it is known whether its parent is of another process, and it is.
pub(crate) const PARENT_KNOWN: u32 = 0x100;
pub(crate) const PARENT_REMOTE: u32 = 0x200;

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct ExportRequest {
    /// Encoded, so that a further attempt copies no span.
    #[prost(bytes = "bytes", repeated, tag = "1")]
    pub(crate) resource_spans: Vec<Bytes>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct ExportResponse {
    #[prost(message, optional, tag = "1")]
    pub(crate) partial_success: Option<PartialSuccess>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct PartialSuccess {
    #[prost(int64, tag = "1")]
    pub(crate) rejected_spans: i64,
    #[prost(string, tag = "2")]
    pub(crate) error_message: String,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct ResourceSpans {
    #[prost(message, optional, tag = "1")]
    pub(crate) resource: Option<Resource>,
    #[prost(bytes = "vec", repeated, tag = "2")]
    pub(crate) scope_spans: Vec<Vec<u8>>,
    #[prost(string, tag = "3")]
    pub(crate) schema_url: String,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct Resource {
    #[prost(message, repeated, tag = "1")]
    pub(crate) attributes: Vec<KeyValue>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct ScopeSpans {
    #[prost(message, optional, tag = "1")]
    pub(crate) scope: Option<Scope>,
    #[prost(bytes = "vec", repeated, tag = "2")]
    pub(crate) spans: Vec<Vec<u8>>,
    #[prost(string, tag = "3")]
    pub(crate) schema_url: String,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct Scope {
    #[prost(string, tag = "1")]
    pub(crate) name: String,
    #[prost(string, tag = "2")]
    pub(crate) version: String,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct Span {
    #[prost(bytes = "vec", tag = "1")]
    pub(crate) trace_id: Vec<u8>,
    #[prost(bytes = "vec", tag = "2")]
    pub(crate) span_id: Vec<u8>,
    #[prost(string, tag = "3")]
    pub(crate) trace_state: String,
    #[prost(bytes = "vec", tag = "4")]
    pub(crate) parent_span_id: Vec<u8>,
    #[prost(string, tag = "5")]
    pub(crate) name: String,
    #[prost(enumeration = "Kind", tag = "6")]
    pub(crate) kind: i32,
    #[prost(fixed64, tag = "7")]
    pub(crate) start_time_unix_nano: u64,
    #[prost(fixed64, tag = "8")]
    pub(crate) end_time_unix_nano: u64,
    /// Written by [`SpanAttributes`].
    #[prost(message, repeated, tag = "9")]
    pub(crate) attributes: Vec<KeyValue>,
    #[prost(uint32, tag = "10")]
    pub(crate) dropped_attributes_count: u32,
    #[prost(message, repeated, tag = "11")]
    pub(crate) events: Vec<Event>,
    #[prost(message, optional, tag = "15")]
    pub(crate) status: Option<Status>,
    #[prost(fixed32, tag = "16")]
    pub(crate) flags: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, prost::Enumeration)]
#[repr(i32)]
pub(crate) enum Kind {
    Unspecified = 0,
    Internal = 1,
    Server = 2,
    Client = 3,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct Event {
    #[prost(fixed64, tag = "1")]
    pub(crate) time_unix_nano: u64,
    #[prost(string, tag = "2")]
    pub(crate) name: String,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct Status {
    #[prost(string, tag = "2")]
    pub(crate) message: String,
    #[prost(enumeration = "StatusCode", tag = "3")]
    pub(crate) code: i32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, prost::Enumeration)]
#[repr(i32)]
pub(crate) enum StatusCode {
    Unset = 0,
    Ok = 1,
    Error = 2,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct KeyValue {
    #[prost(string, tag = "1")]
    pub(crate) key: String,
    #[prost(message, optional, tag = "2")]
    pub(crate) value: Option<AnyValue>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct AnyValue {
    #[prost(oneof = "Value", tags = "1, 2, 3, 4")]
    pub(crate) value: Option<Value>,
}

#[derive(Clone, PartialEq, prost::Oneof)]
pub(crate) enum Value {
    #[prost(string, tag = "1")]
    Text(String),
    #[prost(bool, tag = "2")]
    Bool(bool),
    #[prost(int64, tag = "3")]
    Int(i64),
    #[prost(double, tag = "4")]
    Double(f64),
}

/// The value of an attribute that is written.
#[derive(Debug)]
pub(crate) enum OtlpValue<'v> {
    Text(Cow<'v, str>),
    Bool(bool),
    Int(i64),
    Double(f64),
}

/// The beginning of a text that is not too long.
fn cut(text: &str) -> &str {
    let mut end = text.len().min(TEXT_BYTES);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
}

impl<'v> From<&'v str> for OtlpValue<'v> {
    fn from(text: &'v str) -> OtlpValue<'v> {
        OtlpValue::Text(Cow::Borrowed(cut(text)))
    }
}

impl<'v> From<&'v [u8]> for OtlpValue<'v> {
    fn from(bytes: &'v [u8]) -> OtlpValue<'v> {
        // The rest is not even read.
        match String::from_utf8_lossy(&bytes[..bytes.len().min(TEXT_BYTES)]) {
            Cow::Borrowed(text) => OtlpValue::Text(Cow::Borrowed(text)),
            // The replacement character is longer than the byte that it replaces.
            Cow::Owned(text) => OtlpValue::Text(Cow::Owned(cut(&text).to_owned())),
        }
    }
}

impl<'v> From<Cow<'v, [u8]>> for OtlpValue<'v> {
    fn from(bytes: Cow<'v, [u8]>) -> OtlpValue<'v> {
        match bytes {
            Cow::Borrowed(bytes) => OtlpValue::from(bytes),
            Cow::Owned(bytes) => match OtlpValue::from(&bytes[..]) {
                OtlpValue::Text(text) => OtlpValue::Text(Cow::Owned(text.into_owned())),
                OtlpValue::Bool(truth) => OtlpValue::Bool(truth),
                OtlpValue::Int(number) => OtlpValue::Int(number),
                OtlpValue::Double(number) => OtlpValue::Double(number),
            },
        }
    }
}

impl From<i64> for OtlpValue<'_> {
    fn from(number: i64) -> Self {
        OtlpValue::Int(number)
    }
}

impl From<f64> for OtlpValue<'_> {
    fn from(number: f64) -> Self {
        OtlpValue::Double(number)
    }
}

impl From<bool> for OtlpValue<'_> {
    fn from(truth: bool) -> Self {
        OtlpValue::Bool(truth)
    }
}

impl From<OtlpValue<'_>> for Value {
    fn from(given: OtlpValue<'_>) -> Value {
        match given {
            OtlpValue::Text(text) => Value::Text(text.into_owned()),
            OtlpValue::Bool(truth) => Value::Bool(truth),
            OtlpValue::Int(number) => Value::Int(number),
            OtlpValue::Double(number) => Value::Double(number),
        }
    }
}

/// Attributes of something. A key occurs once.
#[derive(Debug, Default)]
pub(crate) struct Attributes(pub(crate) Vec<KeyValue>);

impl Attributes {
    pub(crate) fn add<'v>(&mut self, key: &str, value: impl Into<OtlpValue<'v>>) {
        let value = Some(AnyValue { value: Some(value.into().into()) });
        match self.0.iter_mut().find(|known| known.key == key) {
            Some(known) => known.value = value,
            None => self.0.push(KeyValue { key: key.to_owned(), value }),
        }
    }
}

/// Attributes of a span as they stand in its message, where the order of fields is free: written at once, as a span
/// has some thirty of them.
#[derive(Debug, Default)]
pub(crate) struct SpanAttributes {
    encoded: Vec<u8>,
    /// Keys that a configuration has chosen. The gateway's own of the same name are omitted: a key occurs once.
    chosen: Vec<String>,
}

impl SpanAttributes {
    /// Adds one that a configuration has chosen, before all others. The first of a name counts.
    pub(crate) fn choose<'v>(&mut self, key: &str, value: impl Into<OtlpValue<'v>>) {
        if !self.is_chosen(key) {
            self.chosen.push(key.to_owned());
            write_attribute(key, &value.into(), &mut self.encoded);
        }
    }

    /// Adds one of the gateway's own, each of which is added once.
    pub(crate) fn add<'v>(&mut self, key: &str, value: impl Into<OtlpValue<'v>>) {
        if !self.is_chosen(key) {
            write_attribute(key, &value.into(), &mut self.encoded);
        }
    }

    /// Adds it if there is a value.
    pub(crate) fn add_some<'v>(&mut self, key: &str, value: Option<impl Into<OtlpValue<'v>>>) {
        if let Some(value) = value {
            self.add(key, value);
        }
    }

    fn is_chosen(&self, key: &str) -> bool {
        self.chosen.iter().any(|known| known == key)
    }

    /// The message of a span with these attributes; `span` has none.
    pub(crate) fn encode(&self, span: &Span) -> Vec<u8> {
        let mut out = Vec::with_capacity(span.encoded_len() + self.encoded.len());
        // A vector has room.
        span.encode_raw(&mut out);
        out.extend_from_slice(&self.encoded);
        out
    }
}

/// Appends the field `attributes` of a span: a `KeyValue`, with an `AnyValue` in it.
fn write_attribute(key: &str, value: &OtlpValue<'_>, out: &mut Vec<u8>) {
    let value_len = match value {
        OtlpValue::Text(text) => 1 + encoded_len_varint(text.len() as u64) + text.len(),
        OtlpValue::Bool(_) => 2,
        OtlpValue::Int(number) => 1 + encoded_len_varint(number.cast_unsigned()),
        OtlpValue::Double(_) => 9,
    };
    let key_len = 1 + encoded_len_varint(key.len() as u64) + key.len();
    encode_key(9, WireType::LengthDelimited, out);
    encode_varint((key_len + 1 + encoded_len_varint(value_len as u64) + value_len) as u64, out);
    encode_key(1, WireType::LengthDelimited, out);
    encode_varint(key.len() as u64, out);
    out.extend_from_slice(key.as_bytes());
    encode_key(2, WireType::LengthDelimited, out);
    encode_varint(value_len as u64, out);
    match value {
        OtlpValue::Text(text) => {
            encode_key(1, WireType::LengthDelimited, out);
            encode_varint(text.len() as u64, out);
            out.extend_from_slice(text.as_bytes());
        }
        OtlpValue::Bool(truth) => {
            encode_key(2, WireType::Varint, out);
            out.push(u8::from(*truth));
        }
        OtlpValue::Int(number) => {
            encode_key(3, WireType::Varint, out);
            encode_varint(number.cast_unsigned(), out);
        }
        OtlpValue::Double(number) => {
            encode_key(4, WireType::SixtyFourBit, out);
            out.extend_from_slice(&number.to_le_bytes());
        }
    }
}

/// Returns the resource: this gateway, with attributes that an operator has added or changed.
pub(crate) fn resource(hostname: &str, more: Option<&Map<String, serde_json::Value>>) -> Resource {
    let mut all = Attributes::default();
    all.add("service.name", "APISIX");
    all.add("telemetry.sdk.language", "rust");
    all.add("telemetry.sdk.name", "sigma");
    all.add("telemetry.sdk.version", env!("CARGO_PKG_VERSION"));
    all.add("hostname", hostname);
    all.add("host.name", hostname);
    for (key, value) in more.into_iter().flatten() {
        match value {
            serde_json::Value::String(text) => all.add(key, &**text),
            serde_json::Value::Bool(truth) => all.add(key, *truth),
            other => other.as_f64().into_iter().for_each(|number| all.add(key, number)),
        }
    }
    Resource { attributes: all.0 }
}

/// A request with spans that were encoded before. Each is copied once.
pub(crate) fn request(resource: Resource, spans: &[Vec<u8>]) -> ExportRequest {
    let scope = Scope { name: "sigma".to_owned(), version: env!("CARGO_PKG_VERSION").to_owned() };
    let scope = ScopeSpans { scope: Some(scope), ..ScopeSpans::default() }.encode_to_vec();
    let resource = ResourceSpans { resource: Some(resource), ..ResourceSpans::default() }.encode_to_vec();
    let scope_length = scope.len() + spans.iter().map(|span| embedded_length(span.len())).sum::<usize>();
    let mut encoded = Vec::with_capacity(resource.len() + embedded_length(scope_length));
    encoded.extend_from_slice(&resource);
    begin_embedded(scope_length, &mut encoded);
    encoded.extend_from_slice(&scope);
    for span in spans {
        begin_embedded(span.len(), &mut encoded);
        encoded.extend_from_slice(span);
    }
    ExportRequest { resource_spans: vec![encoded.into()] }
}

/// The field that holds the scopes of a resource, and the spans of a scope.
const EMBEDDED: u32 = 2;

/// The length of a message of so many bytes as field [`EMBEDDED`].
fn embedded_length(bytes: usize) -> usize {
    key_len(EMBEDDED) + encoded_len_varint(bytes as u64) + bytes
}

/// Writes what precedes a message of so many bytes as field [`EMBEDDED`].
fn begin_embedded(bytes: usize, out: &mut Vec<u8>) {
    encode_key(EMBEDDED, WireType::LengthDelimited, out);
    encode_varint(bytes as u64, out);
}
