//! `public-api`: a route reaches what another plugin serves itself.

use std::sync::Arc;

use schemars::JsonSchema;
use serde::Deserialize;
use sigma_plugin::descriptor::Endpoint;
use sigma_plugin::{
    Build, Configuration, Context, Descriptor, Env, Kind, Phase, PhaseSet, Plugin, Reply, Step,
};

/// The plugin.
pub(crate) static PUBLIC_API: Descriptor = Descriptor {
    name: "public-api",
    priority: 501,
    example: include_str!("example.md"),
    phases: PhaseSet::of(&[Phase::Access]),
    build: |build| Ok(Arc::new(PublicApi { served: Served::all(build), ..build.config()? })),
    ..Descriptor::of::<PublicApi>()
};

/// Serves a plugin's own path, such as a metrics page, on this route.
///
/// The other plugin must be enabled; it needs no route. Plugins of this route that run earlier protect the path. The
/// route needs no upstream. One page of metrics is generated at a time; requests that arrive meanwhile share the next
/// one.
#[derive(Deserialize, JsonSchema)]
struct PublicApi {
    /// The path that the other plugin serves. Default: the path of the request.
    uri: Option<String>,
    #[serde(skip)]
    served: Vec<Served>,
}

/// A path that a plugin serves itself.
struct Served {
    path: String,
    kind: Arc<dyn Kind>,
    /// The place among its endpoints.
    at: usize,
}

impl Served {
    /// Returns the endpoints of all plugins in use, with their `plugin_attr`.
    fn all(build: &Build<'_>) -> Vec<Served> {
        let mut all = Vec::new();
        for kind in build.kinds() {
            let attribute = build.node.attribute(kind.name());
            for (at, endpoint) in kind.endpoints().iter().enumerate() {
                let path = endpoint.path_in(attribute).to_owned();
                all.push(Served { path, kind: Arc::clone(&kind), at });
            }
        }
        all
    }

    fn endpoint(&self) -> &Endpoint {
        &self.kind.endpoints()[self.at]
    }
}

impl Configuration for PublicApi {}

impl Plugin for PublicApi {
    fn access(&self, ctx: &mut Context, env: &Env<'_>) -> Step {
        let path = self.uri.as_deref().map_or(&ctx.uri[..], str::as_bytes);
        let method = ctx.request.method;
        let is_asked =
            |served: &&Served| served.path.as_bytes() == path && served.endpoint().method == method;
        if let Some(served) = self.served.iter().find(is_asked) {
            return served.kind.respond(served.endpoint(), ctx, env);
        }
        Reply::new(404).text("").into()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};
    use sigma_http::Method;
    use sigma_plugin::{Node, Roster};

    use super::*;
    use crate::testing::{Case, summary};

    static SERVES: Descriptor = Descriptor {
        name: "serves",
        endpoints: &[Endpoint {
            path: "/apisix/hello",
            path_setting: "hello_uri",
            method: Method::Get,
            answer: |ctx, _| {
                let asked = ctx.request.headers.find(b"host").unwrap_or_default().to_vec();
                Reply { body: Some([b"hello ", &asked[..]].concat()), ..Reply::new(200) }.into()
            },
        }],
        ..Descriptor::BASE
    };

    #[test]
    fn enabled_plugins_are_reached() {
        let moved = std::cell::Cell::new(None);
        let check = |enabled: &[&str], conf: Value, line: &str, expected: &str| {
            let moved: Option<&str> = moved.get();
            let enabled: Vec<String> = enabled.iter().map(|name| (*name).to_owned()).collect();
            let roster =
                Roster::new([Arc::new(PUBLIC_API) as Arc<dyn Kind>, Arc::new(SERVES)], Some(&enabled));
            let mut case = Case::new(&format!("{line} HTTP/1.1\nHost: x"));
            let attributes = json!({"serves": {"hello_uri": moved}});
            case.node = Arc::new(Node::new(|_| {}, attributes, String::new()));
            let entry = roster
                .build("public-api", &Arc::new(conf.clone()), conf, "", &|_: &str| None, &case.node)
                .unwrap();
            assert_eq!(summary(case.run(&entry, Phase::Access).as_ref()), expected, "{line}");
        };
        let both = &["public-api", "serves"][..];
        check(both, json!({}), "GET /apisix/hello?a", "200 hello x");
        check(both, json!({"uri": "/apisix/hello"}), "GET /other", "200 hello x");
        check(both, json!({}), "POST /apisix/hello", "404");
        check(both, json!({"uri": "/none"}), "GET /apisix/hello", "404");
        check(&["public-api"], json!({}), "GET /apisix/hello", "404");
        moved.set(Some("/moved"));
        check(both, json!({}), "GET /apisix/hello", "404");
        check(both, json!({}), "GET /moved", "200 hello x");
        check(both, json!({"uri": "/moved"}), "GET /other", "200 hello x");
    }
}
