//! `public-api`: a route reaches what another plugin serves itself.

use std::sync::Arc;

use serde::Deserialize;
use serde_json::json;
use sigma_plugin::{Context, Descriptor, Env, Phase, PhaseSet, Plugin, Reply, Step};

/// The plugin.
pub(crate) static PUBLIC_API: Descriptor = Descriptor {
    name: "public-api",
    priority: 501,
    doc: "Serves, on this route, what another plugin serves under a path of its own.\n\n\
        The other plugin must be enabled; it need not be on any route. Plugins of this route that run \
        earlier guard the path. The route needs no upstream.",
    phases: PhaseSet::of(&[Phase::Access]),
    schema: || {
        json!({
            "type": "object",
            "properties": {
                "uri": {
                    "type": "string",
                    "description": "The path that the other plugin serves; unset: the request's."
                }
            }
        })
    },
    build: |build| Ok(Arc::new(build.config::<PublicApi>()?)),
    ..Descriptor::BASE
};

#[derive(Debug, Deserialize)]
struct PublicApi {
    uri: Option<String>,
}

impl Plugin for PublicApi {
    fn access(&self, cx: &mut Context, env: &Env<'_>) -> Step {
        let path = self.uri.as_deref().map_or(&cx.uri[..], str::as_bytes);
        for descriptor in env.node.enabled() {
            let method = cx.request.method;
            let found = descriptor
                .endpoints
                .iter()
                .find(|endpoint| endpoint.path.as_bytes() == path && endpoint.method == method);
            if let Some(endpoint) = found {
                let (node, name, answer) = (Arc::clone(env.node), descriptor.name, endpoint.answer);
                // Not here: a page of metrics may take longer than a worker can be spared.
                let make = move || answer(&node, node.attribute(name));
                let made = async move { tokio::task::spawn_blocking(make).await };
                return Step::wait(made, |made, _, _| made.unwrap_or_else(|_| Reply::new(500)).into());
            }
        }
        Reply::new(404).text("").into()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::Value;
    use sigma_http::Method;
    use sigma_plugin::descriptor::Endpoint;
    use sigma_plugin::{Node, Roster};

    use super::*;
    use crate::testing::{Case, summary};

    static SERVES: Descriptor = Descriptor {
        name: "serves",
        endpoints: &[Endpoint {
            path: "/apisix/hello",
            method: Method::Get,
            answer: |_, _| Reply { body: Some(b"hello".to_vec()), ..Reply::new(200) },
        }],
        ..Descriptor::BASE
    };
    static BOTH: &[&Descriptor] = &[&PUBLIC_API, &SERVES];

    #[test]
    fn enabled_plugins_are_reached() {
        let check = |enabled: &[&str], conf: Value, line: &str, expected: &str| {
            let enabled: Vec<String> = enabled.iter().map(|name| (*name).to_owned()).collect();
            let roster = Roster::new(BOTH, Some(&enabled));
            let mut case = Case::new(&format!("{line} HTTP/1.1\nHost: x"));
            case.node = Arc::new(Node::default());
            let entry =
                roster.build("public-api", &Arc::new(conf.clone()), conf, "", None, &case.node).unwrap();
            assert_eq!(summary(case.run(&entry, Phase::Access).as_ref()), expected, "{line}");
        };
        let both = &["public-api", "serves"][..];
        check(both, json!({}), "GET /apisix/hello?a", "200 hello");
        check(both, json!({"uri": "/apisix/hello"}), "GET /other", "200 hello");
        check(both, json!({}), "POST /apisix/hello", "404");
        check(both, json!({"uri": "/none"}), "GET /apisix/hello", "404");
        check(&["public-api"], json!({}), "GET /apisix/hello", "404");
    }
}
