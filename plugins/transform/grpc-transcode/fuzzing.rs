//! Invariants of messages and of their JSON, from any sender.

use std::sync::OnceLock;

use prost_reflect::prost::Message;
use prost_reflect::{DynamicMessage, MessageDescriptor};
use serde_json::Value;

use super::output::{Defaults, Form, LargeIntegers};
use super::stream::divided;
use super::{input, size};
use sigma_plugin_kit::json_body;

/// Most values of a message here.
const MOST_VALUES: usize = 200;
/// Longest text.
const LONGEST: usize = 64 << 10;

pub(super) const DEFINITION: &str = r#"
syntax = "proto3";
package p;
import "google/api/annotations.proto";
import "google/protobuf/any.proto";
import "google/protobuf/duration.proto";
import "google/protobuf/struct.proto";
import "google/protobuf/timestamp.proto";
import "google/protobuf/wrappers.proto";
service S {
  rpc One(All) returns (All) {
    option (google.api.http) = {
      post: "/v1/{name=a/*}:make" body: "child" response_body: "child"
      additional_bindings { get: "/v1/{child.name}" }
      additional_bindings { put: "/v1/all" body: "*" }
    };
  }
  rpc Many(All) returns (stream All);
  rpc Collect(stream All) returns (All) {
    option (google.api.http) = {
      post: "/v1/many/{name}" body: "*"
      additional_bindings { post: "/v1/children/{name}" body: "child" }
      additional_bindings { get: "/v1/nobody/{name}" }
    };
  }
}
enum Color { RED = 0; BLUE = 2; }
message All {
  string name = 1; int32 small = 2; int64 large = 3; uint64 huge = 4; bool on = 5; double share = 6; bytes raw = 7;
  Color color = 8; All child = 9; repeated All children = 10; repeated int32 numbers = 11;
  map<string, int64> counts = 12; optional string maybe = 13;
  oneof either { string left = 14; int32 right = 15; }
  google.protobuf.Timestamp at = 16; google.protobuf.Any any = 17; google.protobuf.StringValue text = 18;
  google.protobuf.Struct open = 19; google.protobuf.Duration time = 20; float part = 21;
}
message Tiny { int32 n = 1; }
"#;

const FORM: Form =
    Form { enums_by_name: true, large_integers: LargeIntegers::Number, defaults: Defaults::None };

/// The message of the definition that holds all kinds of fields.
pub(super) fn fuzzed() -> &'static MessageDescriptor {
    static ALL: OnceLock<MessageDescriptor> = OnceLock::new();
    ALL.get_or_init(|| {
        let pool = sigma_schema::proto::pool(DEFINITION).expect("the definition is a constant");
        pool.get_message_by_name("p.All").expect("and has this message")
    })
}

/// The first byte says whether the rest is JSON (even) or a message: neither panics, no message has more values than it
/// may, and what both have made of each other stays as it is from then on. With its highest bit the rest is a stream of
/// JSON, which has the same values however it is cut.
pub fn grpc_transcode(input: &[u8]) {
    let Some((form, rest)) = input.split_first() else { return };
    if form & 0x80 != 0 {
        let pieces: Vec<&[u8]> = rest.chunks(usize::from(form & 0x7f).max(1)).collect();
        assert_eq!(divided(&[rest]), divided(&pieces), "{}", rest.escape_ascii());
        return;
    }
    let message = match form % 2 {
        0 => made(rest),
        _ => decoded(rest),
    };
    let Some(first) = message.and_then(|message| FORM.message(&message, LONGEST).ok()) else { return };
    // Parts that a form cannot express are lost once.
    let Some(second) = made(&first).and_then(|message| json_of(&message)) else { return };
    let third = made(&second).and_then(|message| json_of(&message));
    let third = third.expect("taking back succeeds");
    assert!(is_same(&second, &third), "{} {}", second.escape_ascii(), third.escape_ascii());
}

/// The message of a JSON text.
fn made(text: &[u8]) -> Option<DynamicMessage> {
    let json = json_body::read(text, MOST_VALUES).ok()?;
    input::message(fuzzed(), &json).ok()
}

/// The message of bytes.
fn decoded(bytes: &[u8]) -> Option<DynamicMessage> {
    if !size::fits(fuzzed(), bytes, MOST_VALUES) {
        return None;
    }
    DynamicMessage::decode(fuzzed().clone(), bytes).ok()
}

/// A message that was sent, as JSON.
fn json_of(message: &DynamicMessage) -> Option<Vec<u8>> {
    let sent = DynamicMessage::decode(fuzzed().clone(), &message.encode_to_vec()[..]);
    FORM.message(&sent.expect("decoding succeeds"), LONGEST).ok()
}

/// Whether two texts are the same value, but for the last bit of numbers with a fraction, which the reader of JSON
/// may get wrong.
fn is_same(one: &[u8], other: &[u8]) -> bool {
    fn values(one: &Value, other: &Value) -> bool {
        match (one, other) {
            (Value::Number(one), Value::Number(other)) if one.is_f64() && other.is_f64() => {
                let [one, other] = [one, other].map(|number| number.as_f64().unwrap_or_default());
                (one - other).abs() <= one.abs() * 4.0 * f64::EPSILON
            }
            (Value::Array(one), Value::Array(other)) => {
                one.len() == other.len() && one.iter().zip(other).all(|(one, other)| values(one, other))
            }
            (Value::Object(one), Value::Object(other)) => {
                one.len() == other.len()
                    && one.iter().all(|(name, one)| other.get(name).is_some_and(|other| values(one, other)))
            }
            (one, other) => one == other,
        }
    }
    let [one, other] = [one, other].map(serde_json::from_slice::<Value>);
    matches!((one, other), (Ok(one), Ok(other)) if values(&one, &other))
}
