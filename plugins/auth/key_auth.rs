//! `key-auth`: a secret in a header or query argument.

use std::borrow::Cow;
use std::sync::Arc;

use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::Value;
use sigma_plugin::credentials::Credential;
use sigma_plugin::owned::texts;
use sigma_plugin::{Auth, Configuration, Context, Descriptor, Env, Identity, Phase, PhaseSet, Plugin, Step};
use sigma_schema::Confidential;
use sigma_schema::Problem;
use sigma_schema::plugins::PluginScope;

use super::policy::{AuthPolicy, FieldName, Refusal, Scheme, only_argument};

/// Recognises a consumer by an API key.
pub(crate) static KEY_AUTH: Descriptor = Descriptor {
    name: "key-auth",
    priority: 2500,
    example: EXAMPLE,
    credentials: Some(|conf| {
        let fields = texts(conf, "header").map(Credential::field);
        fields.chain(texts(conf, "query").map(Credential::argument)).collect()
    }),
    phases: PhaseSet::of(&[Phase::Rewrite]),
    auth: Some(Auth::of::<Consumer>("key")),
    warnings: Some(warnings),
    ..Descriptor::itself::<KeyAuth>()
};

const EXAMPLE: &str = r#"```yaml
listeners: ["127.0.0.1:9080"]
consumers:
  - { username: jack, plugins: { key-auth: { key: jacks-key } } }
routes:
  - uri: /*
    plugins:
      key-auth: { hide_credentials: true }
    upstream: http://127.0.0.1:9000
```

```console
$ curl -i http://127.0.0.1:9080/orders
HTTP/1.1 401 Unauthorized
WWW-Authenticate: apikey realm="key"
…
{"message":"Missing API key in request"}
$ curl -H 'apikey: jacks-key' http://127.0.0.1:9080/orders
…
    "x-consumer-username": "jack",
…
```
"#;

/// Authenticates consumers by an API key in a header or in the query.
///
/// The plugin reads the header first, and the query only without the header. A query argument that is repeated or has
/// no value never matches; an empty key does not match either.
#[derive(Deserialize, JsonSchema)]
struct KeyAuth {
    /// The header with the key.
    #[schemars(extend("default" = "apikey"))]
    header: FieldName,
    /// The query argument with the key, if the header is absent.
    #[schemars(extend("default" = "apikey"))]
    query: String,
    #[serde(flatten)]
    policy: AuthPolicy<Self>,
}

impl Configuration for KeyAuth {}

/// The warning that keys in the query reach nodes and their logs.
fn warnings(scope: PluginScope, conf: &Value) -> Vec<Problem> {
    let hides = conf.get("hide_credentials") == Some(&Value::Bool(true));
    if scope != PluginScope::Http || hides || conf.get("query").is_none() {
        return Vec::new();
    }
    let message = "keys in the query string reach the nodes, their logs and the pages that they link to";
    vec![Problem::new("query", "shown_key", message).hint("set `hide_credentials` to true, or use `header`")]
}

impl Scheme for KeyAuth {
    const PLUGIN: &str = "key-auth";
    const NAME: &str = "apikey";
    const REALM: &str = "key";
}

#[derive(Deserialize, JsonSchema)]
struct Consumer {
    /// The key; it must be unique among consumers.
    #[serde(rename = "key")]
    _key: Confidential,
}

impl Configuration for Consumer {}

impl KeyAuth {
    fn authenticate<'e>(&self, ctx: &Context, env: &Env<'e>) -> Result<&'e Arc<Identity>, Refusal> {
        let key = match self.header.find(&ctx.request.headers) {
            Some(key) => Cow::Borrowed(key),
            None => only_argument(ctx, &self.query)
                .map(Cow::Owned)
                .ok_or(Refusal::absent("Missing API key in request"))?,
        };
        self.policy
            .find(env, &key, "failed to find consumer: invalid api key")
            .map_err(|detail| Refusal::new("Invalid API key in request", detail))
    }
}

impl Plugin for KeyAuth {
    fn rewrite(&self, ctx: &mut Context, env: &Env<'_>) -> Step {
        let found = self.authenticate(ctx, env);
        if self.policy.hide_credentials {
            self.header.remove(&mut ctx.request.headers);
            ctx.hide_argument(&self.query);
        }
        self.policy.conclude(ctx, env, found)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::testing::warned;

    #[test]
    fn keys_in_the_query_are_warned_of() {
        let check = |conf: Value, expected: &[&str]| {
            assert_eq!(warned("key-auth", PluginScope::Http, &conf), expected, "{conf}");
        };
        check(json!({}), &[]);
        check(json!({"query": "key"}), &["query"]);
        check(json!({"query": "key", "hide_credentials": true}), &[]);
    }
}
