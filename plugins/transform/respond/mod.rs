//! `respond`: the response is written in the configuration.

use std::sync::Arc;

use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::Value;
use sigma_plugin::variable_fields::{VariableField, VariableForm};
use sigma_plugin::{Configuration, Context, Descriptor, Env, Phase, PhaseSet, Plugin, Reply, Step};
use sigma_schema::Problem;
use sigma_schema::plugins::PluginScope;
use sigma_schema::template::Template;

use sigma_plugin_kit::response_fields::Fields;
use sigma_plugin_kit::uri_template::UriReference;

/// The plugin.
pub(crate) static RESPOND: Descriptor = Descriptor {
    name: "respond",
    priority: 490,
    example: include_str!("example.md"),
    phases: PhaseSet::of(&[Phase::Access]),
    variables: &[
        VariableField::shown("text", VariableForm::Template),
        VariableField::shown("location", VariableForm::Template),
        VariableField::shown("headers.*", VariableForm::Template),
    ],
    warnings: Some(warnings),
    build: |build| Ok(Arc::new(Respond { conf: build.config()? })),
    ..Descriptor::of::<Conf>()
};

/// Responds with a status, a text or a redirect, or closes the connection.
///
/// Sigma's own, as nginx's `return`. It runs after the plugins that guard the route, so the route needs no upstream.
/// A text that begins with a variable of the client's, such as `location: $arg_to`, redirects anywhere.
#[derive(Deserialize, JsonSchema)]
#[schemars(deny_unknown_fields, extend("minProperties" = 1))]
struct Conf {
    /// Status.
    #[schemars(range(min = 200, max = 599), extend("default" = 200))]
    status: u16,
    /// Body, a text with variables. Unset: the gateway's own body for the status, or none below 400.
    text: Option<Template>,
    /// Media type of the text.
    #[schemars(regex(pattern = r"^[\x21-\x7e]+/[\x20-\x7e]+$"), extend("default" = "text/plain"))]
    content_type: String,
    /// The field `Location`, a text with variables; values of variables are percent-encoded.
    #[schemars(with = "Option<String>", length(min = 1))]
    location: Option<UriReference>,
    /// Further header fields; their values are texts with variables.
    headers: Option<Fields>,
    /// Whether the client gets no response: its connection is closed, or its stream is reset in HTTP/2 (nginx: 444).
    #[schemars(extend("default" = false))]
    close: bool,
}

impl Configuration for Conf {}

/// The warnings about fields that have no effect.
fn warnings(_: PluginScope, conf: &Value) -> Vec<Problem> {
    if conf.get("close") != Some(&Value::Bool(true)) {
        return Vec::new();
    }
    let unread = ["status", "text", "content_type", "location", "headers"];
    let unread = unread.into_iter().filter(|field| conf.get(*field).is_some());
    let warning = |field| {
        let message = format!("`{field}` has no effect with `close: true`: the client gets no response");
        Problem::new(field, "no_effect", message).hint("remove one of the two")
    };
    unread.map(warning).collect()
}

struct Respond {
    conf: Conf,
}

impl Plugin for Respond {
    fn access(&self, ctx: &mut Context, _env: &Env<'_>) -> Step {
        let Conf { status, text, content_type, location, headers, close } = &self.conf;
        if *close {
            return Reply::silent().into();
        }
        let mut reply = Reply::new(*status);
        if let Some(location) = location {
            reply = reply.header("Location", location.rendered(ctx));
        }
        if let Some(headers) = headers {
            reply = headers.added_to(reply, ctx);
        }
        // These have no body (RFC 9110 §15.3.5, §15.4.5).
        if let Some(text) = text.as_ref().filter(|_| !matches!(status, 204 | 304)) {
            if headers.as_ref().is_none_or(|headers| !headers.has("Content-Type")) {
                reply = reply.header("Content-Type", content_type.as_bytes());
            }
            reply = reply.text(text.rendered(ctx));
        }
        reply.into()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::testing::{Case, assert_refusal, entry, field, warned};

    fn reply(conf: &Value) -> Reply {
        let plugin = entry("respond", conf.clone()).unwrap();
        Case::new("GET /a%20b?to=//x&q=1 HTTP/1.1\nHost: h.example").run(&plugin, Phase::Access).unwrap()
    }

    #[test]
    fn responses_follow_the_configuration() {
        let check = |conf: Value, expected: &str| {
            let reply = reply(&conf);
            let shown = |name: &str| field(&reply, name).unwrap_or_default();
            let body = reply.body.as_deref().map(String::from_utf8_lossy);
            let found = [
                reply.status.to_string(),
                shown("Location"),
                shown("Content-Type"),
                shown("X-A"),
                body.map_or("none".to_owned(), |body| format!("{body:?}")),
            ];
            assert_eq!(found.join("|"), expected, "{conf}");
        };
        check(json!({"text": "hello $host\n"}), r#"200||text/plain||"hello h.example\n""#);
        check(json!({"text": ""}), r#"200||text/plain||"""#);
        check(json!({"status": 404}), "404||||none");
        check(json!({"status": 204, "text": "x"}), "204||||none");
        check(
            json!({"status": 301, "location": "https://$host$request_uri"}),
            "301|https://h.example/a%20b?to=//x&q=1|||none",
        );
        check(json!({"status": 302, "location": "$arg_to/y"}), "302|/x/y|||none");
        check(json!({"status": 302, "location": "//other/y"}), "302|//other/y|||none");
        check(
            json!({"text": "{}", "content_type": "application/json", "headers": {"X-A": "$uri"}}),
            r#"200||application/json|/a b|"{}""#,
        );
        check(json!({"text": "x", "headers": {"Content-Type": "text/css"}}), r#"200||text/css||"x""#);
    }

    #[test]
    fn a_connection_is_closed() {
        assert!(reply(&json!({"close": true})).is_silent);
        assert_eq!(warned("respond", PluginScope::Http, &json!({"close": true, "status": 404})), ["status"]);
        assert_eq!(warned("respond", PluginScope::Http, &json!({"status": 404})), [""; 0]);
    }

    #[test]
    fn configurations() {
        let check = |conf: Value, expected: &str| assert_refusal("respond", &conf, expected);
        check(json!({}), "at least 1 properties");
        check(json!({"close": true}), "");
        check(json!({"status": 101}), "status");
        check(json!({"body": "x"}), "body");
        check(json!({"text": "x", "content_type": "text"}), "content_type");
        check(json!({"headers": {"a b": "c"}}), "not the name of a header field");
    }
}
