//! `key-auth`: a secret in a header or query argument.

use std::borrow::Cow;
use std::sync::Arc;

use schemars::JsonSchema;
use serde::Deserialize;
use sigma_config::resources::Confidential;
use sigma_plugin::{Auth, Configuration, Context, Descriptor, Env, Identity, Phase, PhaseSet, Plugin, Step};

use super::policy::{AuthPolicy, FieldName, Refusal, Scheme, only_argument};

/// Recognises a consumer by an API key.
pub(crate) static KEY_AUTH: Descriptor = Descriptor {
    name: "key-auth",
    priority: 2500,
    example: EXAMPLE,
    phases: PhaseSet::of(&[Phase::Rewrite]),
    auth: Some(Auth::of::<Consumer>("key")),
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

/// Recognises a consumer by an API key in a header or in the query.
///
/// The header is looked at first; the query only if the header is absent. A query argument that is
/// repeated or has no value never matches, and neither does an empty key.
#[derive(Deserialize, JsonSchema)]
struct KeyAuth {
    /// The header that holds the key.
    #[schemars(extend("default" = "apikey"))]
    header: FieldName,
    /// The query argument that holds the key where the header is absent.
    #[schemars(extend("default" = "apikey"))]
    query: String,
    #[serde(flatten)]
    policy: AuthPolicy<Self>,
}

impl Configuration for KeyAuth {}

impl Scheme for KeyAuth {
    const PLUGIN: &str = "key-auth";
    const NAME: &str = "apikey";
    const REALM: &str = "key";
}

#[derive(Deserialize, JsonSchema)]
struct Consumer {
    /// The key; no two consumers have the same one.
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
                .ok_or(Refusal::plain("Missing API key in request"))?,
        };
        self.policy
            .find(env, &key, "failed to find consumer: invalid api key")
            .map_err(|detail| Refusal { message: "Invalid API key in request", detail })
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
