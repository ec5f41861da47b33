//! `mocking`: made-up answers, instead of a node that does not exist yet.

use std::cell::Cell;
use std::fmt::Write;
use std::sync::Arc;
use std::time::Duration;

use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Value, json};
use sigma_plugin::variable_fields::{VariableField, VariableForm};
use sigma_plugin::{Configuration, Context, Descriptor, Env, Local, Phase, PhaseSet, Plugin, Reply, Step};
use sigma_schema::template::Template;

use sigma_plugin_kit::response_fields::Fields;

/// The plugin.
pub(crate) static MOCKING: Descriptor = Descriptor {
    name: "mocking",
    priority: 10900,
    example: include_str!("example.md"),
    phases: PhaseSet::of(&[Phase::Access]),
    variables: &[
        VariableField::shown("response_example", VariableForm::Template),
        VariableField::shown("response_headers.*", VariableForm::Template),
    ],
    build: |build| Ok(Arc::new(Mocking(Arc::new(build.config()?)))),
    ..Descriptor::of::<Mock>()
};

const MOCK_BY: &str = concat!("Sigma/", env!("CARGO_PKG_VERSION"));

/// Levels of a schema that data is made up for.
const MOST_LEVELS: usize = 32;

/// Values of one response. Arrays within arrays multiply: thirty of them would be a billion.
const MOST_VALUES: usize = 10_000;

/// Mocks a service: responds with an example, or with random data for a schema.
#[derive(Deserialize, JsonSchema)]
#[schemars(extend("anyOf" = [{"required": ["response_example"]}, {"required": ["response_schema"]}]))]
struct Mock {
    /// Delay of the response in seconds.
    #[schemars(extend("default" = 0))]
    delay: u64,
    /// Status.
    #[schemars(range(min = 200, max = 999), extend("default" = 200))]
    response_status: u16,
    /// Content type: application/json, application/xml, text/plain, text/html or text/xml.
    #[schemars(with = "String", extend("default" = "application/json;charset=utf8"))]
    content_type: ContentType,
    /// Body, a text with variables.
    response_example: Option<Template>,
    /// A JSON Schema; without an example the body is random data for it.
    #[schemars(extend("type" = "object"))]
    response_schema: Option<Value>,
    /// Whether the header `x-mock-by` marks the response as mocked.
    #[schemars(extend("default" = true))]
    with_mock_header: bool,
    /// Further header fields; their values are texts with variables.
    response_headers: Option<Fields>,
}

impl Configuration for Mock {}

#[derive(Deserialize)]
#[serde(try_from = "String")]
struct ContentType {
    text: String,
    form: Form,
}

impl TryFrom<String> for ContentType {
    type Error = &'static str;

    fn try_from(text: String) -> Result<ContentType, &'static str> {
        let form = match text.split(';').next().unwrap_or_default().trim() {
            "application/json" | "text/plain" => Form::Json,
            "application/xml" | "text/xml" => Form::Xml,
            "text/html" => Form::Html,
            _ => return Err("unsupported content type!"),
        };
        Ok(ContentType { text, form })
    }
}

/// How made-up data is written.
enum Form {
    Json,
    Xml,
    /// Nothing can be made up.
    Html,
}

impl Mock {
    fn respond(&self, ctx: &Context, local: &Local) -> Step {
        let mut reply =
            Reply::new(self.response_status).header("Content-Type", self.content_type.text.as_bytes());
        if self.with_mock_header {
            reply = reply.header("x-mock-by", MOCK_BY);
        }
        if let Some(fields) = &self.response_headers {
            reply = fields.added_to(reply, ctx);
        }
        reply.text(self.body(ctx, local)).into()
    }

    fn body(&self, ctx: &Context, local: &Local) -> Vec<u8> {
        if let Some(example) = &self.response_example {
            return example.rendered(ctx);
        }
        let schema = self.response_schema.as_ref().unwrap_or(&Value::Null);
        let data = Invention { local, left: Cell::new(MOST_VALUES) }.object(schema, 0);
        let text = match self.content_type.form {
            Form::Json => data.to_string(),
            Form::Xml => xml(&data),
            Form::Html => String::new(),
        };
        // Examples inside a schema may hold variables as well.
        if text.contains('$') { Template::parse(&text).rendered(ctx) } else { text.into_bytes() }
    }
}

struct Mocking(Arc<Mock>);

impl Plugin for Mocking {
    fn access(&self, ctx: &mut Context, env: &Env<'_>) -> Step {
        if self.0.delay == 0 {
            return self.0.respond(ctx, env.local);
        }
        // No timer goes on for years.
        let delay = Duration::from_secs(self.0.delay.min(100_000_000));
        let mock = Arc::clone(&self.0);
        Step::wait(async move { tokio::time::sleep(delay).await }, move |(), ctx, env| {
            mock.respond(ctx, env.local)
        })
    }
}

/// Makes data up for one response.
struct Invention<'l> {
    local: &'l Local,
    /// Values that may still be made.
    left: Cell<usize>,
}

impl Invention<'_> {
    fn between(&self, least: u64, most: u64) -> u64 {
        least + self.local.random() % (most - least + 1)
    }

    /// Returns an object with the properties of a schema; properties of unknown types are omitted.
    fn object(&self, schema: &Value, level: usize) -> Value {
        let properties = schema.get("properties").and_then(Value::as_object);
        let properties = properties.filter(|_| level < MOST_LEVELS).into_iter().flatten();
        let made_up =
            properties.filter_map(|(name, schema)| Some((name.clone(), self.value(schema, level)?)));
        Value::Object(made_up.collect())
    }

    fn value(&self, schema: &Value, level: usize) -> Option<Value> {
        self.left.set(self.left.get().checked_sub(1)?);
        let example = || schema.get("example").filter(|example| !example.is_null());
        Some(match schema.get("type")?.as_str()? {
            "string" => match example() {
                Some(example) => example.clone(),
                None => {
                    let letters =
                        (0..self.between(1, 10)).map(|_| char::from(b'a' + self.between(0, 25) as u8));
                    Value::String(letters.collect())
                }
            },
            "number" => match example() {
                Some(example) => example.clone(),
                None => json!(self.between(0, 9_999_999) as f64 / 1000.0),
            },
            "integer" => match example().and_then(Value::as_f64) {
                Some(example) => json!(example.floor() as i64),
                None => json!(self.between(1, 10_000)),
            },
            // An example `false` counts as none, as in APISIX.
            "boolean" => match example() {
                Some(Value::Bool(true)) => Value::Bool(true),
                _ => Value::Bool(self.between(0, 1) == 1),
            },
            "array" => {
                let items = schema.get("items").filter(|_| level < MOST_LEVELS)?;
                let each = (0..self.between(1, 3)).map(|_| self.value(items, level + 1));
                Value::Array(each.collect::<Option<_>>()?)
            }
            "object" => self.object(schema, level + 1),
            _ => return None,
        })
    }
}

/// An XML document with the root `data`; the elements of an array have its name.
fn xml(data: &Value) -> String {
    let mut out = String::new();
    element("data", data, &mut out);
    out
}

fn element(name: &str, value: &Value, out: &mut String) {
    if let Value::Array(items) = value {
        items.iter().for_each(|item| element(name, item, out));
        return;
    }
    // Writing to a string cannot fail.
    let _ = write!(out, "<{name}>");
    match value {
        Value::Object(members) => members.iter().for_each(|(name, value)| element(name, value, out)),
        Value::String(text) => escape(text, out),
        scalar => drop(write!(out, "{scalar}")),
    }
    let _ = write!(out, "</{name}>");
}

fn escape(text: &str, out: &mut String) {
    for c in text.chars() {
        match c {
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '&' => out.push_str("&amp;"),
            other => out.push(other),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Case, entry, refusal};

    fn reply(conf: Value) -> Reply {
        let entry = entry("mocking", conf).unwrap();
        Case::new("GET /x HTTP/1.1\nHost: h\n").run(&entry, Phase::Access).unwrap()
    }

    #[test]
    fn examples() {
        fn check(conf: Value, status: u16, body: &str, fields: &[(&str, &str)]) {
            let reply = reply(conf.clone());
            assert_eq!(
                (reply.status, std::str::from_utf8(&reply.body.unwrap()).unwrap()),
                (status, body),
                "{conf}"
            );
            let found: Vec<(String, String)> = reply
                .headers
                .into_iter()
                .map(|(name, value)| (name.into_owned(), String::from_utf8(value).unwrap()))
                .collect();
            let expected: Vec<(String, String)> =
                fields.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
            assert_eq!(found, expected, "{conf}");
        }
        let json_type = ("Content-Type", "application/json;charset=utf8");
        check(
            json!({"response_example": "$remote_addr$none!"}),
            200,
            "127.0.0.1!",
            &[json_type, ("x-mock-by", MOCK_BY)],
        );
        check(
            json!({"response_example": "hi", "response_status": 404, "content_type": "text/plain", "with_mock_header": false,
                "response_headers": {"X-Uri": "$uri", "X-N": 5}}),
            404,
            "hi",
            &[("Content-Type", "text/plain"), ("X-Uri", "/x"), ("X-N", "5")],
        );
    }

    #[test]
    fn data_follows_a_schema() {
        let schema = json!({"properties": {
            "s": {"type": "string"}, "t": {"type": "string", "example": "ex$uri"},
            "n": {"type": "number", "example": 1.5}, "i": {"type": "integer", "example": 3.9}, "j": {"type": "integer"},
            "b": {"type": "boolean", "example": true}, "c": {"type": "boolean"},
            "a": {"type": "array", "items": {"type": "integer"}}, "none": {"type": "array"},
            "o": {"type": "object", "properties": {"x": {"type": "string", "example": "<&"}}}, "e": {"type": "object"},
            "u": {"type": "null"}
        }});
        for _ in 0..20 {
            let body = reply(json!({"response_schema": schema})).body.unwrap();
            let data: Value = serde_json::from_slice(&body).unwrap();
            let s = data["s"].as_str().unwrap();
            assert!((1..=10).contains(&s.len()) && s.bytes().all(|b| b.is_ascii_lowercase()), "{s}");
            assert_eq!((&data["t"], &data["n"], &data["i"]), (&json!("ex/x"), &json!(1.5), &json!(3)));
            assert!((1..=10_000).contains(&data["j"].as_i64().unwrap()));
            assert!(data["b"] == true && data["c"].is_boolean());
            assert!((1..=3).contains(&data["a"].as_array().unwrap().len()));
            assert_eq!((&data["o"], &data["e"]), (&json!({"x": "<&"}), &json!({})));
            assert!(data.get("none").is_none() && data.get("u").is_none());
        }
        let text = |content_type: &str, schema: Value| {
            let body = reply(json!({"response_schema": schema, "content_type": content_type})).body.unwrap();
            String::from_utf8(body).unwrap()
        };
        let nested = json!({"properties": {"o": {"type": "object", "properties": {"x": {"type": "string", "example": "<&"}}}}});
        assert_eq!(text("text/xml", nested.clone()), "<data><o><x>&lt;&amp;</x></o></data>");
        assert_eq!(text("text/html", nested), "");
    }

    #[test]
    fn arrays_within_arrays_have_a_limit() {
        let mut schema = json!({"type": "string"});
        for _ in 0..25 {
            schema = json!({"type": "array", "items": schema});
        }
        let schema = json!({"properties": {"a": schema, "s": {"type": "string", "example": "x"}}});
        for _ in 0..10 {
            let body = reply(json!({"response_schema": schema})).body.unwrap();
            assert!(body.len() < 40 * MOST_VALUES, "{}", body.len());
        }
    }

    #[test]
    fn configurations() {
        let check = |conf: Value, reason: &str| assert_eq!(refusal("mocking", &conf), reason, "{conf}");
        check(json!({"response_schema": {}}), "");
        check(
            json!({"response_schema": {}, "response_headers": {"A\r\nB": "c"}}),
            "`A\r\nB` is not the name of a header field",
        );
        check(
            json!({"response_schema": {}, "response_status": 101}),
            "property \"response_status\" validation failed: expected 101 to be at least 200",
        );
        check(json!({"response_example": "a", "content_type": "text/css"}), "unsupported content type!");
        check(
            json!({}),
            "object matches none of the required: [\"response_example\"] or [\"response_schema\"]",
        );
    }
}
