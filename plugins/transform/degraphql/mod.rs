//! `degraphql`: one fixed query of GraphQL as its own endpoint.

use std::sync::Arc;

use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Map, Value, json};
use sigma_http::Method;
use sigma_plugin::graphql::message::path_of;
use sigma_plugin::graphql::{self, Definition, Message};
use sigma_plugin::step::BodyRead;
use sigma_plugin::variables::pairs;
use sigma_plugin::{Build, Configuration, Context, Descriptor, Env, Phase, PhaseSet, Plugin, Reply, Step};

use sigma_plugin_kit::json_body;

/// The plugin.
pub(crate) static DEGRAPHQL: Descriptor = Descriptor {
    name: "degraphql",
    priority: 509,
    example: include_str!("example.md"),
    phases: PhaseSet::of(&[Phase::Access]),
    build: |build| Ok(Arc::new(Degraphql::new(build)?)),
    ..Descriptor::of::<Config>()
};

/// JSON values of a body: about the most that a body of the default `max_req_body_size` has.
const MOST_VALUES: usize = 250_000;

/// Sends a fixed query to a GraphQL server instead of the client's message.
///
/// A POST becomes a POST with the query in a JSON body, a GET a GET with it in the query string; other methods get
/// 405. Of the client's message the server gets only the listed `variables`: members of a JSON body, or arguments of
/// the query string. The query string of a POST is always dropped, and a GET with a body gets 400, because servers
/// look for a query there as well. Use `proxy-rewrite` to change the path.
#[derive(Deserialize, JsonSchema)]
struct Config {
    /// The query, which must be executable.
    #[schemars(length(min = 1, max = 1024))]
    query: String,
    /// Names of variables from the request; missing ones are omitted.
    #[schemars(length(min = 1))]
    variables: Option<Vec<String>>,
    /// The operation to execute, if the query has several.
    #[schemars(length(min = 1, max = 1024))]
    operation_name: Option<String>,
    /// Largest body, in bytes; it is held in memory. A larger one gets 503.
    #[schemars(range(min = 1), extend("default" = 67_108_864))]
    max_req_body_size: usize,
}

impl Configuration for Config {
    fn check(&self) -> Result<(), String> {
        let definitions =
            graphql::definitions(&self.query).map_err(|error| format!("failed to parse query: {error}"))?;
        match &self.operation_name {
            None if definitions.len() > 1 => {
                Err("operation_name is required if multiple operations are present in the query".to_owned())
            }
            Some(name)
                if !definitions
                    .iter()
                    .any(|one| matches!(one, Definition::Operation(_, Some(of)) if of == name)) =>
            {
                Err(format!("operation_name: the query has no operation `{name}`"))
            }
            _ => Ok(()),
        }
    }
}

struct Degraphql(Arc<Config>);

impl Degraphql {
    fn new(build: &Build<'_>) -> Result<Degraphql, String> {
        Ok(Degraphql(Arc::new(build.config()?)))
    }
}

impl Plugin for Degraphql {
    fn access(&self, ctx: &mut Context, _env: &Env<'_>) -> Step {
        let config = Arc::clone(&self.0);
        match ctx.request.method {
            Method::Get => {
                let then = move |ctx: &mut Context, _: &Env<'_>, read: BodyRead| match read {
                    BodyRead::TooLarge => {
                        let message = "invalid graphql request, a GET has no body";
                        Reply::new(400).json(&json!({ "message": message })).into()
                    }
                    BodyRead::Whole => config.get(ctx),
                };
                Step::ReadBody { limit: 0, then: Box::new(then) }
            }
            Method::Post => {
                let then = move |ctx: &mut Context, _: &Env<'_>, read: BodyRead| match read {
                    BodyRead::TooLarge => Step::status(503),
                    BodyRead::Whole => config.post(ctx),
                };
                Step::ReadBody { limit: self.0.max_req_body_size, then: Box::new(then) }
            }
            _ => Step::status(405),
        }
    }
}

impl Config {
    fn get(&self, ctx: &mut Context) -> Step {
        let names = self.variables.as_deref().unwrap_or_default();
        let Some(variables) = arguments(names, ctx.outgoing_query().unwrap_or_default()) else {
            return Step::status(400);
        };
        let query = self.message(variables).to_query(self.variables.is_some());
        ctx.target = [path_of(ctx.outgoing_target()), query.as_bytes()].concat();
        Step::Next
    }

    fn post(&self, ctx: &mut Context) -> Step {
        let mut variables = Map::new();
        if let Some(names) = &self.variables {
            let body = ctx.body.as_deref().unwrap_or_default();
            let Ok(body @ (Value::Object(_) | Value::Array(_))) = json_body::read(body, MOST_VALUES) else {
                return Step::status(400);
            };
            let named =
                names.iter().filter_map(|name| Some((name.clone(), body.get(name.as_str())?.clone())));
            variables = named.collect();
        }
        self.message(variables).replace_body(self.variables.is_some(), ctx);
        Step::Next
    }

    /// The message that the server gets.
    fn message(&self, variables: Map<String, Value>) -> Message {
        Message { document: self.query.clone(), operation_name: self.operation_name.clone(), variables }
    }
}

/// The arguments of these names, several of one as a list; None if one is not text.
fn arguments(names: &[String], query: &[u8]) -> Option<Map<String, Value>> {
    let mut found = Map::new();
    for (name, value) in pairs(query) {
        let Some(name) = names.iter().find(|known| known.as_bytes() == &*name) else { continue };
        let value = match value {
            Some(value) => json!(std::str::from_utf8(&value).ok()?),
            None => json!(true),
        };
        match found.get_mut(name) {
            None => drop(found.insert(name.clone(), value)),
            Some(Value::Array(values)) => values.push(value),
            Some(first) => *first = json!([first.take(), value]),
        }
    }
    Some(found)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Case, assert_refusal, entry, summary};

    #[test]
    fn posts() {
        let check = |conf: Value, body: &str, expected: &str| {
            let mut case =
                Case::new("POST /a?b=c HTTP/1.1\nHost: h\nContent-Type: a/b\nContent-Encoding: br");
            case.body = body.into();
            let reply = case.run(&entry("degraphql", conf.clone()).unwrap(), Phase::Access);
            let outcome = match reply {
                Some(_) => summary(reply.as_ref()),
                None => String::from_utf8(case.ctx.body.clone().unwrap()).unwrap(),
            };
            assert_eq!(outcome, expected, "{conf} {body}");
            let is_json = case.sent("Content-Type").as_deref() == Some("application/json");
            assert_eq!(
                (is_json, case.sent("Content-Encoding").is_none()),
                (reply.is_none(), reply.is_none())
            );
            assert_eq!(case.target(), if reply.is_none() { "/a" } else { "/a?b=c" });
        };
        let fixed = json!({"query": "{a}"});
        check(fixed.clone(), "anything", r#"{"query":"{a}"}"#);
        check(fixed, "", r#"{"query":"{a}"}"#);
        let named =
            json!({"query": "query A {a} query B {b}", "operation_name": "B", "variables": ["x", "y"]});
        let message = |variables: &str| {
            format!(
                r#"{{"variables":{variables},"operationName":"B","query":"query A {{a}} query B {{b}}"}}"#
            )
        };
        check(named.clone(), r#"{"x": {"z": [1]}, "q": 2, "x": 3}"#, &message(r#"{"x":3}"#));
        check(named.clone(), "[]", &message("{}"));
        for wrong in ["", "{", "1", "\"x\"", "x=1"] {
            check(named.clone(), wrong, "400");
        }
        check(json!({"query": "{a}", "max_req_body_size": 3}), "1234", "503");
    }

    #[test]
    fn gets() {
        let check = |conf: Value, query: &str, expected: Option<&str>| {
            let mut case = Case::new(&format!("GET /a{query} HTTP/1.1\nHost: h"));
            let reply = case.run(&entry("degraphql", conf.clone()).unwrap(), Phase::Access);
            assert_eq!(reply.is_none().then(|| case.target()).as_deref(), expected, "{conf} {query}");
        };
        check(json!({"query": "{a}"}), "?b=c", Some("/a?query=%7Ba%7D"));
        let named = json!({"query": "query A{a}", "operation_name": "A", "variables": ["x", "y", "z"]});
        check(
            named.clone(),
            "?x=1&query=evil&y&%78=%262&variables=no",
            Some(
                "/a?query=query%20A%7Ba%7D&operationName=A&variables=%7B%22x%22%3A%5B%221%22%2C%22%262%22%5D%2C%22y%22%3Atrue%7D",
            ),
        );
        check(named.clone(), "", Some("/a?query=query%20A%7Ba%7D&operationName=A&variables=%7B%7D"));
        check(named, "?x=%ff", None);
        let mut case = Case::new("PUT / HTTP/1.1\nHost: h");
        let reply = case.run(&entry("degraphql", json!({"query": "{a}"})).unwrap(), Phase::Access);
        assert_eq!(summary(reply.as_ref()), "405");
    }

    /// Servers take a message, or a member of one, from the query string before the body, and from the body of a GET.
    #[test]
    fn only_the_operators_message_is_sent() {
        for query in [
            "query=%7Bsecret%7D",
            "%71uery={secret}",
            "QUERY={secret}",
            "variables=%7B%22id%22:1%7D",
            "operationName=Other",
            "extensions=%7B%22persistedQuery%22:%7B%7D%7D",
            "documentId=x",
            "a;query={secret}",
        ] {
            let mut case = Case::new(&format!("POST /a?{query} HTTP/1.1\nHost: h"));
            let plugin = entry("degraphql", json!({"query": "{a}"})).unwrap();
            assert!(case.run(&plugin, Phase::Access).is_none());
            assert_eq!(case.target(), "/a");
        }
        let mut case = Case::new("GET /a HTTP/1.1\nHost: h\nContent-Type: application/json");
        case.body = br#"{"variables":{"id":1}}"#.to_vec();
        let reply = case.run(&entry("degraphql", json!({"query": "{a}"})).unwrap(), Phase::Access);
        assert!(summary(reply.as_ref()).starts_with("400"));
    }

    #[test]
    fn bad_configurations_are_refused() {
        let check = |conf: Value, expected: &str| assert_refusal("degraphql", &conf, expected);
        check(json!({}), "property \"query\" is required");
        check(json!({"query": "{a"}), "failed to parse query: the document ends too early");
        check(
            json!({"query": "query A {a} query B {b}"}),
            "operation_name is required if multiple operations are present in the query",
        );
        check(
            json!({"query": "{a}", "operation_name": "A"}),
            "operation_name: the query has no operation `A`",
        );
        check(json!({"query": "{a}", "variables": []}), "expect array to have at least 1 items");
    }
}
