//! `log_format`: an object whose values are variables, constants, or objects of such.

use std::borrow::Cow;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::Deserialize;
use serde_json::{Map, Number, Value};
use sigma_config::expr::{VarName, VarValue, Variables};
use sigma_plugin::Context;

/// How deep objects may nest.
const MAX_DEPTH: usize = 5;

/// Values of an entry by their names.
#[derive(Debug, Default, Deserialize)]
#[serde(from = "Map<String, Value>")]
pub(super) struct LogFormat(Vec<(String, Item)>);

#[derive(Debug)]
enum Item {
    Variable(VarName),
    RequestBody,
    ResponseBody,
    /// The sum of the attempts' times, in seconds.
    UpstreamTime(fn(&sigma_plugin::record::Attempt) -> Option<f64>),
    /// A variable that is a number.
    Number(VarName),
    Literal(Value),
    Object(LogFormat),
}

/// Bodies that were collected for an entry.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Bodies<'b> {
    pub(super) request: Option<&'b str>,
    pub(super) response: Option<&'b str>,
}

impl From<Map<String, Value>> for LogFormat {
    fn from(format: Map<String, Value>) -> LogFormat {
        LogFormat::of(&format, 1)
    }
}

impl JsonSchema for LogFormat {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "LogFormat".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({"type": "object"})
    }
}

impl LogFormat {
    fn of(format: &Map<String, Value>, depth: usize) -> LogFormat {
        LogFormat(format.iter().map(|(name, value)| (name.clone(), Item::of(value, depth))).collect())
    }

    /// Whether it says nothing.
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether an entry needs the request body.
    pub(super) fn shows_request_body(&self) -> bool {
        self.0.iter().any(|(_, item)| match item {
            Item::RequestBody => true,
            Item::Object(inner) => inner.shows_request_body(),
            _ => false,
        })
    }

    /// Adds the values to an entry. What is absent is left out.
    pub(super) fn fill(&self, ctx: &Context, bodies: Bodies<'_>, out: &mut Map<String, Value>) {
        for (name, item) in &self.0 {
            if let Some(value) = item.value(ctx, bodies) {
                out.insert(name.clone(), value);
            }
        }
    }
}

impl Item {
    fn of(value: &Value, depth: usize) -> Item {
        match value {
            Value::Object(_) if depth >= MAX_DEPTH => {
                tracing::warn!("log_format nests deeper than {MAX_DEPTH} objects; what is below is left out");
                Item::Literal(Value::Object(Map::new()))
            }
            Value::Object(inner) => Item::Object(LogFormat::of(inner, depth + 1)),
            Value::String(text) => match text.strip_prefix('$') {
                Some(name) => Item::variable(name),
                None => Item::Literal(value.clone()),
            },
            other => Item::Literal(other.clone()),
        }
    }

    fn variable(name: &str) -> Item {
        match name {
            "request_body" => Item::RequestBody,
            "resp_body" => Item::ResponseBody,
            "upstream_response_time" => Item::UpstreamTime(|attempt| attempt.response_ms),
            "upstream_connect_time" => Item::UpstreamTime(|attempt| attempt.connect_ms),
            "upstream_header_time" => Item::UpstreamTime(|attempt| attempt.header_ms),
            "status"
            | "request_time"
            | "request_length"
            | "bytes_sent"
            | "body_bytes_sent"
            | "connection"
            | "connection_requests" => Item::Number(VarName::parse(name)),
            name => Item::Variable(VarName::parse(name)),
        }
    }

    fn value(&self, ctx: &Context, bodies: Bodies<'_>) -> Option<Value> {
        match self {
            Item::Variable(name) => ctx.get(name).map(json_of),
            Item::Number(name) => ctx.get(name).map(|value| number_of(json_of(value))),
            Item::RequestBody => bodies.request.map(Value::from),
            Item::ResponseBody => bodies.response.map(Value::from),
            Item::UpstreamTime(time) => {
                let times: Vec<f64> = ctx.record.attempts.iter().filter_map(time).collect();
                // Whole milliseconds, as nginx keeps them.
                (!times.is_empty()).then(|| Value::from(times.iter().sum::<f64>().round() / 1000.0))
            }
            Item::Literal(value) => Some(value.clone()),
            Item::Object(inner) => {
                let mut out = Map::new();
                inner.fill(ctx, bodies, &mut out);
                Some(Value::Object(out))
            }
        }
    }
}

/// Text that is no UTF-8 has its faulty bytes replaced: JSON can hold nothing else.
pub(super) fn text_of(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn json_of(value: VarValue<'_>) -> Value {
    match value {
        VarValue::Text(text) => Value::String(text_of(&text)),
        VarValue::Bool(truth) => Value::Bool(truth),
        VarValue::List(items) => items.iter().map(|item| text_of(item)).collect(),
    }
}

fn number_of(value: Value) -> Value {
    let Value::String(text) = &value else { return value };
    let whole = text.parse::<u64>().ok().map(Number::from);
    let number = whole.or_else(|| text.parse::<f64>().ok().and_then(Number::from_f64));
    number.map_or(value, Value::Number)
}
