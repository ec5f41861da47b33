//! `key-auth`: a secret in a header or query argument.

use std::borrow::Cow;
use std::sync::Arc;

use serde::Deserialize;
use serde_json::json;
use sigma_plugin::descriptor::Data;
use sigma_plugin::{Auth, Build, Context, Descriptor, Env, Identity, Phase, PhaseSet, Plugin, Step};

use super::policy::{self, AuthPolicy, FieldName, Refusal, filled, only_argument};

const NAME: &str = "key-auth";

/// Recognises a consumer by an API key.
pub(crate) static KEY_AUTH: Descriptor = Descriptor {
    name: NAME,
    priority: 2500,
    doc: "Recognises a consumer by an API key in a header or in the query.\n\n\
        The header is looked at first; the query only if the header is absent. A query argument that \
        is repeated or has no value never matches, and neither does an empty key.",
    example: EXAMPLE,
    phases: PhaseSet::of(&[Phase::Rewrite]),
    schema: || {
        policy::schema(
            "key",
            json!({
                "header": {
                    "type": "string",
                    "default": "apikey",
                    "description": "The header that holds the key."
                },
                "query": {
                    "type": "string",
                    "default": "apikey",
                    "description": "The query argument that holds the key where the header is absent."
                }
            }),
        )
    },
    auth: Some(Auth {
        attribute: "key",
        schema: || {
            json!({
                "type": "object",
                "properties": {
                    "key": {"type": "string", "description": "The key; no two consumers have the same one."}
                },
                "required": ["key"]
            })
        },
        secret_fields: &["key"],
        parse: |conf| filled(conf, "key").map(|_| Arc::new(()) as Data),
    }),
    build: |build| Ok(Arc::new(KeyAuth::new(build)?)),
    ..Descriptor::BASE
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

#[derive(Deserialize)]
struct Config {
    header: String,
    query: String,
}

struct KeyAuth {
    policy: AuthPolicy,
    header: FieldName,
    query: String,
}

impl KeyAuth {
    fn new(build: &Build<'_>) -> Result<KeyAuth, String> {
        let Config { header, query } = build.config()?;
        Ok(KeyAuth {
            policy: AuthPolicy::new(NAME, "apikey", build)?,
            header: FieldName::new(&header),
            query,
        })
    }

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
        if self.policy.hides {
            self.header.remove(&mut ctx.request.headers);
            ctx.hide_argument(&self.query);
        }
        match found {
            Ok(identity) => self.policy.admit(ctx, identity),
            Err(refusal) => self.policy.refuse(ctx, env, refusal),
        }
    }
}
