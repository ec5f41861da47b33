//! `request-validation`: requests whose fields or body fit no schema go no further.

use std::borrow::Cow;
use std::sync::Arc;

use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Map, Value};
use sigma_http::HeaderId;
use sigma_plugin::step::BodyRead;
use sigma_plugin::variables::pairs;
use sigma_plugin::{Build, Configuration, Context, Descriptor, Env, Phase, PhaseSet, Plugin, Reply, Step};
use sigma_schema::validation::Schema;

use crate::shared::charset::is_utf8;
use sigma_plugin_kit::changed_body::replace_request_body;
use sigma_plugin_kit::json_body::{self, Unread};

/// The plugin.
pub(crate) static REQUEST_VALIDATION: Descriptor = Descriptor {
    name: "request-validation",
    priority: 2800,
    example: include_str!("example.md"),
    phases: PhaseSet::of(&[Phase::Rewrite]),
    build: |build| Ok(Arc::new(RequestValidation::new(build)?)),
    ..Descriptor::of::<Config>()
};

/// Validates header fields and body of requests by a JSON schema (draft 4, 6 or 7).
///
/// Names of fields count in any case; a field that is repeated is a list. A body of
/// `application/x-www-form-urlencoded` is an object of texts, of lists where a name is repeated, and of `true` where a
/// name has no `=`. Any other body, also without `Content-Type`, must be JSON. The node gets the parsed JSON, not the
/// original text. Of a repeated name it gets the last value; numbers with a fraction or more than 64 bits have double
/// precision; missing members have the defaults of the schema. A missing body does not match.
///
/// A request that cannot be checked is refused. It has a body with `Content-Encoding`, a field or form that is not
/// UTF-8, several `Content-Type`, another charset, or more values or work than the limits allow. Patterns are matched
/// in linear time, and `{}` and `[]` are different. A schema with keywords of a later draft is refused, because they
/// would have no effect.
#[derive(Deserialize, JsonSchema)]
#[schemars(extend("anyOf" = [{"required": ["header_schema"]}, {"required": ["body_schema"]}]))]
struct Config {
    /// The schema of the header fields. All are texts, or lists of texts.
    #[schemars(extend("type" = "object"))]
    header_schema: Option<Value>,
    /// The schema of the body.
    #[schemars(extend("type" = "object"))]
    body_schema: Option<Value>,
    /// Largest body, in bytes; it is held in memory.
    #[schemars(range(min = 1), extend("default" = 67_108_864))]
    max_req_body_size: u64,
    /// Maximum values in a body, without names. A value takes up to a few hundred bytes of memory: with the default,
    /// values take about as much as the largest body.
    #[schemars(range(min = 1), extend("default" = 250_000, "own_default" = true))]
    max_body_values: usize,
    /// Maximum steps of one validation: one for each schema applied to a value, and for each 64 bytes of text.
    /// Recursive schemas under `anyOf` or `not` may double the steps with each level of a body; ten million steps
    /// take a worker about a second.
    #[schemars(range(min = 1), extend("default" = 4_000_000, "own_default" = true))]
    max_steps: u64,
    /// The status of a refusal.
    #[schemars(range(min = 200, max = 599), extend("default" = 400))]
    rejected_code: u16,
    /// The body of a refusal. Default: the violation.
    #[schemars(length(min = 1, max = 256))]
    rejected_msg: Option<String>,
}

impl Configuration for Config {
    fn check(&self) -> Result<(), String> {
        Schemas::of(self).map(drop)
    }
}

struct Schemas {
    header: Option<(Schema, Vec<String>)>,
    body: Option<Schema>,
}

impl Schemas {
    fn of(config: &Config) -> Result<Schemas, String> {
        let compiled = |name: &str, schema: &Value| {
            Schema::compile(schema).map_err(|error| format!("check {name} failed: {error}"))
        };
        let header = config.header_schema.as_ref();
        let header =
            header.map(|schema| Ok::<_, String>((compiled("header_schema", schema)?, names(schema))));
        let body = config.body_schema.as_ref();
        let body = body.map(|schema| compiled("body_schema", schema));
        Ok(Schemas { header: header.transpose()?, body: body.transpose()? })
    }
}

/// All names that a schema may mean members by, each as it is spelled there.
fn names(schema: &Value) -> Vec<String> {
    let mut found = Vec::new();
    let mut left = vec![schema];
    while let Some(value) = left.pop() {
        match value {
            Value::Object(members) => {
                found.extend(members.keys().cloned());
                left.extend(members.values());
            }
            Value::Array(items) => left.extend(items),
            Value::String(text) => found.push(text.clone()),
            _ => {}
        }
    }
    found.sort();
    found.dedup();
    found
}

struct RequestValidation(Arc<Validation>);

struct Validation {
    config: Config,
    schemas: Schemas,
}

/// Why a request is refused, if that is said.
type Refused = Option<Cow<'static, str>>;

fn because(text: &'static str) -> Refused {
    Some(Cow::Borrowed(text))
}

impl RequestValidation {
    fn new(build: &Build<'_>) -> Result<RequestValidation, String> {
        let config: Config = build.config()?;
        let schemas = Schemas::of(&config)?;
        Ok(RequestValidation(Arc::new(Validation { config, schemas })))
    }
}

impl Plugin for RequestValidation {
    fn rewrite(&self, ctx: &mut Context, _env: &Env<'_>) -> Step {
        let validation = Arc::clone(&self.0);
        if let Err(refused) = validation.header(ctx) {
            return validation.refusal(refused);
        }
        if validation.schemas.body.is_none() {
            return Step::Next;
        }
        let limit = usize::try_from(validation.config.max_req_body_size).unwrap_or(usize::MAX);
        let then = move |ctx: &mut Context, _: &Env<'_>, read: BodyRead| {
            let outcome = if read == BodyRead::Whole { validation.body(ctx) } else { Err(None) };
            outcome.map_or_else(|refused| validation.refusal(refused), |()| Step::Next)
        };
        Step::ReadBody { limit, then: Box::new(then) }
    }
}

impl Validation {
    fn refusal(&self, refused: Refused) -> Step {
        let reply = Reply::new(self.config.rejected_code);
        let text = self.config.rejected_msg.as_deref().or(refused.as_deref());
        match text {
            Some(text) => reply.text(text).into(),
            None => reply.into(),
        }
    }

    fn fits<'v>(&self, schema: &Schema, value: &'v Value) -> Result<Cow<'v, Value>, Refused> {
        schema.filled_of_stranger(value, self.config.max_steps).map_err(|fault| Some(Cow::Owned(fault)))
    }

    fn header(&self, ctx: &Context) -> Result<(), Refused> {
        let Some((schema, names)) = &self.schemas.header else { return Ok(()) };
        let mut fields = Map::new();
        for (name, value) in ctx.request.headers.iter() {
            let name = String::from_utf8_lossy(name);
            let mut spellings = names.iter().filter(|known| known.eq_ignore_ascii_case(&name)).peekable();
            if spellings.peek().is_none() {
                add(&mut fields, &name.to_ascii_lowercase(), String::from_utf8_lossy(value).into());
                continue;
            }
            let value = std::str::from_utf8(value).map_err(|_| because("a header field is not UTF-8"))?;
            spellings.for_each(|spelling| add(&mut fields, spelling, value.into()));
        }
        self.fits(schema, &Value::Object(fields)).map(drop)
    }

    fn body(&self, ctx: &mut Context) -> Result<(), Refused> {
        let Some(schema) = &self.schemas.body else { return Ok(()) };
        let body = ctx.body.as_deref().unwrap_or_default();
        if body.is_empty() {
            return Err(None);
        }
        if !is_plain(ctx) {
            return Err(because("the body has a Content-Encoding; send it unencoded"));
        }
        if !is_form(ctx)? {
            let value =
                json_body::read(body, self.config.max_body_values).map_err(|unread| match unread {
                    Unread::TooMany => self.too_many(),
                    Unread::Invalid(reason) => Some(Cow::Owned(reason)),
                })?;
            let seen = self.fits(schema, &value)?.to_string();
            replace_request_body(ctx, seen.into_bytes());
            return Ok(());
        }
        self.fits(schema, &Value::Object(self.form(body)?)).map(drop)
    }

    fn form(&self, body: &[u8]) -> Result<Map<String, Value>, Refused> {
        if pairs(body).count() > self.config.max_body_values {
            return Err(self.too_many());
        }
        let mut fields = Map::new();
        for (name, value) in pairs(body) {
            let text = |bytes: &[u8]| match std::str::from_utf8(bytes) {
                Ok(text) => Ok(text.to_owned()),
                Err(_) => Err(because("the form is not UTF-8")),
            };
            let value = value.map_or(Ok(Value::Bool(true)), |value| text(&value).map(Value::String))?;
            add(&mut fields, &text(&name)?, value);
        }
        Ok(fields)
    }

    fn too_many(&self) -> Refused {
        Some(Cow::Owned(format!("the body has more than {} values", self.config.max_body_values)))
    }
}

/// Adds a value; several of one name are a list.
fn add(fields: &mut Map<String, Value>, name: &str, value: Value) {
    match fields.get_mut(name) {
        None => drop(fields.insert(name.to_owned(), value)),
        Some(Value::Array(values)) => values.push(value),
        Some(first) => *first = Value::Array(vec![first.take(), value]),
    }
}

/// Whether the body is what its bytes say: compressed, it would be something else to the node.
fn is_plain(ctx: &Context) -> bool {
    let mut fields = ctx.request.headers.iter();
    fields.all(|(name, coding)| {
        !name.eq_ignore_ascii_case(b"content-encoding") || coding.eq_ignore_ascii_case(b"identity")
    })
}

/// Whether the body is a form, and otherwise JSON.
fn is_form(ctx: &Context) -> Result<bool, Refused> {
    const FORM: &[u8] = b"application/x-www-form-urlencoded";
    let mut types = ctx.request.headers.get_all(HeaderId::ContentType);
    let media_type = types.next().unwrap_or_default();
    if types.next().is_some() {
        return Err(None);
    }
    if !is_utf8(media_type) {
        return Err(because("the Content-Type names a charset other than UTF-8"));
    }
    match media_type.split_at_checked(FORM.len()) {
        Some((start, rest)) if start.eq_ignore_ascii_case(FORM) => match rest.trim_ascii_start().first() {
            None | Some(b';') => Ok(true),
            // Some readers look at the beginning only, others at all of it.
            Some(_) => Err(because("the Content-Type is similar to a form type, but differs")),
        },
        _ => Ok(false),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::testing::{Case, assert_refusal, entry, merged, summary};

    fn check(conf: &Value, head: &str, body: &[u8], expected: &str) {
        let entry = entry("request-validation", conf.clone()).unwrap();
        let mut case = Case::new(&format!("POST / HTTP/1.1\nHost: h\n{head}"));
        case.body = body.to_vec();
        let reply = case.run(&entry, Phase::Rewrite);
        let text = body.escape_ascii();
        assert_eq!(summary(reply.as_ref()), expected, "{conf} {head} {text}");
    }

    /// Returns the node's body of a request that passes.
    fn passed(conf: &Value, head: &str, body: &str) -> String {
        let entry = entry("request-validation", conf.clone()).unwrap();
        let mut case = Case::new(&format!("POST / HTTP/1.1\nHost: h\n{head}"));
        case.body = body.into();
        let reply = case.run(&entry, Phase::Rewrite);
        assert_eq!(summary(reply.as_ref()), "passed", "{body}");
        String::from_utf8(case.ctx.body.unwrap()).unwrap()
    }

    #[test]
    fn fields() {
        let conf = |schema: Value| json!({ "header_schema": schema });
        let pattern = conf(
            json!({"required": ["X-Id"], "properties": {"X-Id": {"type": "string", "pattern": "^\\d+$"}}}),
        );
        check(&pattern, "x-iD: 12", b"", "passed");
        check(&pattern, "", b"", "400 property \"X-Id\" is required");
        check(
            &pattern,
            "X-Id: a",
            b"",
            "400 property \"X-Id\" validation failed: failed to match pattern \"^\\\\d+$\" with \"a\"",
        );
        check(
            &pattern,
            "X-Id: 1\nX-ID: 2",
            b"",
            "400 property \"X-Id\" validation failed: wrong type: expected string, got table",
        );
        check(
            &pattern,
            "X-Id: $secret://1",
            b"",
            "400 property \"X-Id\" validation failed: failed to match pattern \"^\\\\d+$\" with \"$secret://1\"",
        );
        check(&pattern, "X-Id: 1\nX-Other: \u{e9}", b"", "passed");
        let lists = conf(json!({"properties": {"x-a": {"type": "array", "minItems": 2}}}));
        check(&lists, "X-A: 1\nX-A: 2", b"", "passed");
        let number = conf(json!({"properties": {"x-a": {"type": "integer"}}}));
        check(
            &number,
            "X-A: 1",
            b"",
            "400 property \"x-a\" validation failed: wrong type: expected integer, got string",
        );
        let none_else = conf(json!({"properties": {"Host": {}}, "additionalProperties": false}));
        check(&none_else, "", b"", "passed");
        check(&none_else, "X-A: 1", b"", "400 additional properties forbidden, found x-a");
    }

    fn order() -> Value {
        json!({"body_schema": {
            "type": "object",
            "required": ["id"],
            "properties": {"id": {"type": "integer"}, "unit": {"default": "kg"}},
        }})
    }

    #[test]
    fn bodies_of_json() {
        let order = order();
        for (sent, seen) in [
            (r#" {"id" : 1, "unit": "g"} "#, r#"{"id":1,"unit":"g"}"#),
            (r#"{"id": 1, "id": 2}"#, r#"{"id":2,"unit":"kg"}"#),
            (r#"{"id": 18446744073709551615}"#, r#"{"id":18446744073709551615,"unit":"kg"}"#),
        ] {
            assert_eq!(passed(&order, "Content-Type: application/json", sent), seen);
            assert_eq!(passed(&order, "", sent), seen);
        }
        check(
            &order,
            "",
            br#"{"id": 1, "id": "x"}"#,
            "400 property \"id\" validation failed: wrong type: expected integer, got string",
        );
        check(&order, "", b"[]", "400 wrong type: expected object, got table");
        check(&order, "", b"", "400");
        check(&order, "", b"{", "400 EOF while parsing an object at line 1 column 1");
        check(&order, "", b"{\"id\":1}\xff", "400 trailing characters at line 1 column 9");
        check(&order, "Content-Type: a/b\nContent-Type: c/d", br#"{"id": 1}"#, "400");
        check(
            &order,
            "Content-Encoding: gzip",
            br#"{"id": 1}"#,
            "400 the body has a Content-Encoding; send it unencoded",
        );
        check(&order, "Content-Encoding: identity", br#"{"id": 1}"#, "passed");
        let other = "400 the Content-Type names a charset other than UTF-8";
        check(&order, "Content-Type: application/json; charset=utf-7", br#"{"id": 1}"#, other);
        check(&order, "Content-Type: application/json;a=b; Charset=\"UTF-8\"", br#"{"id": 1}"#, "passed");
    }

    #[test]
    fn limits() {
        let sized = merged(order(), &json!({"max_req_body_size": 9}));
        check(&sized, "", br#"{"id": 1}"#, "passed");
        check(&sized, "", br#"{"id": 12}"#, "400");
        let counted = merged(order(), &json!({"max_body_values": 3}));
        check(&counted, "", br#"{"id":1,"a":2}"#, "passed");
        check(&counted, "", br#"{"id":1,"a":[2,3]}"#, "400 the body has more than 3 values");
        check(
            &counted,
            "Content-Type: application/x-www-form-urlencoded",
            b"a&b&c&d",
            "400 the body has more than 3 values",
        );
        let short = merged(order(), &json!({"max_steps": 1}));
        check(&short, "", br#"{"id": 1}"#, "400 the value takes too many steps to validate");
    }

    #[test]
    fn forms() {
        const FORM: &str = "Content-Type: Application/X-WWW-Form-Urlencoded; charset=utf-8";
        let conf = json!({"body_schema": {
            "required": ["a"],
            "properties": {"a": {"type": "string"}, "b": {"type": "array"}, "c": {"const": true}, "d": {"default": "x"}},
        }});
        assert_eq!(passed(&conf, FORM, "a=1%20+2&b=1&b=2&c"), "a=1%20+2&b=1&b=2&c");
        check(
            &conf,
            FORM,
            b"a=1&a=2",
            "400 property \"a\" validation failed: wrong type: expected string, got table",
        );
        check(&conf, FORM, b"{\"a\":1}", "400 property \"a\" is required");
        check(&conf, FORM, b"a=%ff", "400 the form is not UTF-8");
        check(
            &conf,
            &FORM.replace("utf-8", "ibm037"),
            b"a=1",
            "400 the Content-Type names a charset other than UTF-8",
        );
        let other = "400 the Content-Type is similar to a form type, but differs";
        check(&conf, "Content-Type: application/x-www-form-urlencoded, application/json", b"a=1", other);
        check(&conf, "Content-Type: application/x-www-form-urlencoded-2", b"a=1", other);
    }

    #[test]
    fn refusals_as_they_are_wanted() {
        let told = merged(order(), &json!({"rejected_code": 422, "rejected_msg": "no"}));
        check(&told, "", b"{}", "422 no");
        check(&told, "", b"", "422 no");
        check(&told, "Content-Type: a/b\nContent-Type: c/d", b"{}", "422 no");
    }

    #[test]
    fn bad_configurations_are_refused() {
        let check = |conf: Value, expected: &str| assert_refusal("request-validation", &conf, expected);
        check(json!({}), "object matches none of the required: [\"header_schema\"] or [\"body_schema\"]");
        check(
            json!({"body_schema": {"type": "text"}}),
            "check body_schema failed: schema at `/type` must be",
        );
        check(
            json!({"header_schema": {"pattern": "(a)\\1"}}),
            "check header_schema failed: schema at `/pattern`",
        );
        check(
            json!({"body_schema": {"properties": {"a": {"unevaluatedProperties": false}}}}),
            "schema at `/properties/a/unevaluatedProperties` is of a draft after 7, write `additionalProperties`",
        );
        check(json!({"body_schema": {"$ref": "http://other/schema"}}), "is outside this schema");
        check(json!({"body_schema": {}, "rejected_code": 199}), "expected 199 to be at least 200");
        check(json!({"body_schema": {}, "rejected_msg": ""}), "string too short");
        check(json!({"body_schema": {"properties": {"unevaluatedItems": {"type": "string"}}}}), "");
    }
}
