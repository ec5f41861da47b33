//! `log_format`: an object whose values are variables, constants, or objects of such.

use std::borrow::Cow;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::Deserialize;
use serde_json::{Map, Number, Value};
use sigma_plugin::credentials::Masked;
use sigma_plugin::record::Attempt;
use sigma_plugin::{Context, Session};
use sigma_schema::expr::{VarName, VarValue, Variables};

/// How deep objects may nest.
const MAX_DEPTH: usize = 5;

/// The subject of entries.
pub trait Subject: Variables {
    /// Returns the times of the attempts until then, in milliseconds, as far as they came.
    fn upstream_times(&self, time: UpstreamTime) -> Vec<f64>;

    /// The attempts, as a list of objects.
    fn upstream_attempts(&self) -> Option<Value>;
}

/// The end of a measured time of an attempt.
#[derive(Debug, Clone, Copy)]
pub enum UpstreamTime {
    /// The connection is established.
    Connect,
    /// The head of the response has come.
    Header,
    /// The response has ended.
    Response,
}

impl Subject for Context {
    fn upstream_times(&self, time: UpstreamTime) -> Vec<f64> {
        let of = |attempt: &Attempt| match time {
            UpstreamTime::Connect => attempt.connect_ms,
            UpstreamTime::Header => attempt.header_ms,
            UpstreamTime::Response => attempt.response_ms,
        };
        self.record.attempts.iter().filter_map(of).collect()
    }

    fn upstream_attempts(&self) -> Option<Value> {
        self.record.shown_attempts()
    }
}

impl Subject for Masked<'_> {
    fn upstream_times(&self, time: UpstreamTime) -> Vec<f64> {
        self.0.upstream_times(time)
    }

    fn upstream_attempts(&self) -> Option<Value> {
        self.0.upstream_attempts()
    }
}

impl Subject for Session {
    fn upstream_times(&self, time: UpstreamTime) -> Vec<f64> {
        match time {
            UpstreamTime::Connect => self.course.nodes.iter().filter_map(|node| node.connect_ms).collect(),
            UpstreamTime::Header | UpstreamTime::Response => Vec::new(),
        }
    }

    fn upstream_attempts(&self) -> Option<Value> {
        self.course.shown_nodes()
    }
}

/// Values of an entry by their names.
#[derive(Debug, Default, Deserialize)]
#[serde(from = "Map<String, Value>")]
pub struct LogFormat(Vec<(String, Item)>);

#[derive(Debug)]
enum Item {
    Variable(VarName),
    RequestBody,
    ResponseBody,
    /// The sum of the attempts' times, in seconds.
    UpstreamTime(UpstreamTime),
    /// The list of the attempts.
    UpstreamAttempts,
    /// A variable that is a number.
    Number(VarName),
    Literal(Value),
    Object(LogFormat),
}

/// Bodies that were collected for an entry.
#[derive(Debug, Clone, Copy, Default)]
pub struct Bodies<'b> {
    /// The collected body of the request.
    pub request: Option<&'b str>,
    /// The collected body of the response.
    pub response: Option<&'b str>,
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

    /// Returns the format of a configuration, or else of its metadata; an empty one counts as none.
    pub fn in_force(own: Option<LogFormat>, shared: Option<LogFormat>) -> Option<LogFormat> {
        let says = |format: &LogFormat| !format.is_empty();
        own.filter(says).or(shared.filter(says))
    }

    /// Returns true without any values.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns true if an entry needs the request body, or a field of it.
    pub fn shows_request_body(&self) -> bool {
        self.0.iter().any(|(_, item)| match item {
            Item::RequestBody => true,
            Item::Variable(name) => name.needs_body(),
            Item::Object(inner) => inner.shows_request_body(),
            _ => false,
        })
    }

    /// Adds the values to an entry. Absent values are omitted.
    pub fn fill(&self, of: &impl Subject, bodies: Bodies<'_>, out: &mut Map<String, Value>) {
        for (name, item) in &self.0 {
            if let Some(value) = item.value(of, bodies) {
                out.insert(name.clone(), value);
            }
        }
    }
}

impl Item {
    fn of(value: &Value, depth: usize) -> Item {
        match value {
            Value::Object(_) if depth >= MAX_DEPTH => {
                tracing::warn!(
                    "log_format is nested deeper than {MAX_DEPTH} objects; deeper objects are dropped"
                );
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
            "upstream_attempts" => Item::UpstreamAttempts,
            "upstream_response_time" => Item::UpstreamTime(UpstreamTime::Response),
            "upstream_connect_time" => Item::UpstreamTime(UpstreamTime::Connect),
            "upstream_header_time" => Item::UpstreamTime(UpstreamTime::Header),
            "status"
            | "request_time"
            | "request_length"
            | "session_time"
            | "bytes_received"
            | "bytes_sent"
            | "body_bytes_sent"
            | "connection"
            | "connection_requests" => Item::Number(VarName::parse(name)),
            name => Item::Variable(VarName::parse(name)),
        }
    }

    fn value(&self, of: &impl Subject, bodies: Bodies<'_>) -> Option<Value> {
        match self {
            Item::Variable(name) => of.get(name).map(json_of),
            Item::Number(name) => of.get(name).map(|value| number_of(json_of(value))),
            Item::RequestBody => bodies.request.map(Value::from),
            Item::ResponseBody => bodies.response.map(Value::from),
            Item::UpstreamAttempts => of.upstream_attempts(),
            Item::UpstreamTime(time) => {
                let times = of.upstream_times(*time);
                // Whole milliseconds, as nginx keeps them.
                (!times.is_empty()).then(|| Value::from(times.iter().sum::<f64>().round() / 1000.0))
            }
            Item::Literal(value) => Some(value.clone()),
            Item::Object(inner) => {
                let mut out = Map::new();
                inner.fill(of, bodies, &mut out);
                Some(Value::Object(out))
            }
        }
    }
}

/// Replaces the invalid bytes of text that is not UTF-8. JSON requires UTF-8.
pub fn text_of(bytes: &[u8]) -> String {
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
