//! `basic-auth`: name and password (RFC 7617).

use std::sync::Arc;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use schemars::JsonSchema;
use serde::Deserialize;
use sigma_http::HeaderId;
use sigma_plugin::{Auth, Configuration, Context, Descriptor, Env, Identity, Phase, PhaseSet, Plugin, Step};
use sigma_schema::Confidential;

use super::policy::{AuthPolicy, Cause, Refusal, Scheme, authorization, same_secret};

/// Recognises a consumer by name and password.
pub(crate) static BASIC_AUTH: Descriptor = Descriptor {
    name: "basic-auth",
    priority: 2520,
    example: EXAMPLE,
    phases: PhaseSet::of(&[Phase::Rewrite]),
    auth: Some(Auth::of::<Consumer>("username")),
    ..Descriptor::itself::<BasicAuth>()
};

const EXAMPLE: &str = r#"```yaml
listeners: ["127.0.0.1:9080"]
consumers:
  - { username: jack, plugins: { basic-auth: { username: jack, password: jacks-password } } }
routes:
  - uri: /*
    plugins:
      basic-auth: { hide_credentials: true }
    upstream: http://127.0.0.1:9000
```

```console
$ curl -i http://127.0.0.1:9080/orders
HTTP/1.1 401 Unauthorized
WWW-Authenticate: Basic realm="basic"
…
{"message":"Missing authorization in request"}
$ curl -u jack:jacks-password http://127.0.0.1:9080/orders
…
    "x-consumer-username": "jack",
…
```
"#;

/// Authenticates consumers by name and password: HTTP Basic authentication.
///
/// If the credentials do not match, they are compared again without white space, so that a line end encoded by
/// mistake does no harm.
#[derive(Deserialize, JsonSchema)]
struct BasicAuth {
    #[serde(flatten)]
    policy: AuthPolicy<Self>,
}

impl Configuration for BasicAuth {}

impl Scheme for BasicAuth {
    const PLUGIN: &str = "basic-auth";
    const NAME: &str = "Basic";
    const REALM: &str = "basic";
}

#[derive(Deserialize, JsonSchema)]
#[schemars(title = "work with consumer object")]
struct Consumer {
    /// The name; it must be unique among consumers.
    username: String,
    /// The password.
    password: Confidential,
}

impl Configuration for Consumer {
    fn check(&self) -> Result<(), String> {
        // The schema, which is APISIX's, allows it; but everybody can say it.
        match self.username.is_empty() {
            true => {
                Err("property \"username\" validation failed: string too short, expected at least 1, got 0"
                    .into())
            }
            false => Ok(()),
        }
    }
}

/// The credentials of a client.
#[derive(Debug, PartialEq)]
struct Credentials {
    user: Vec<u8>,
    password: Vec<u8>,
}

impl Credentials {
    const OTHER_SCHEME: Refusal =
        Credentials::invalid("Invalid authorization header format").with(Cause::Absent);
    const UNSPLIT: Refusal = Credentials::invalid("Split authorization err: invalid decoded data");

    const fn invalid(detail: &'static str) -> Refusal {
        Refusal::new("Invalid authorization in request", detail)
    }

    /// Reads a value of `Authorization`. APISIX looks for the scheme anywhere in it, and so do the
    /// clients that were written against it.
    fn parse(value: &[u8]) -> Result<Credentials, Refusal> {
        const SCHEME: &[u8] = b"basic";
        let mut windows = value.windows(SCHEME.len() + 1);
        let is_scheme = |w: &[u8]| {
            w[..SCHEME.len()].eq_ignore_ascii_case(SCHEME) && w[SCHEME.len()].is_ascii_whitespace()
        };
        let at = windows.position(is_scheme).ok_or(Self::OTHER_SCHEME)?;
        let encoded = &value[at + SCHEME.len() + 1..];
        let undecoded = |_| Self::invalid("Failed to decode authentication header");
        let decoded = STANDARD.decode(encoded).map_err(undecoded)?;
        let colon = decoded.iter().position(|b| *b == b':').ok_or(Self::UNSPLIT)?;
        let (user, password) = (decoded[..colon].to_vec(), decoded[colon + 1..].to_vec());
        if password.iter().all(|b| *b == b':') {
            return Err(Self::UNSPLIT);
        }
        Ok(Credentials { user, password })
    }

    /// Without any white space, as APISIX compares them.
    fn squeezed(mut self) -> Credentials {
        self.user.retain(|b| !b.is_ascii_whitespace());
        self.password.retain(|b| !b.is_ascii_whitespace());
        self
    }
}

impl BasicAuth {
    fn authenticate<'e>(&self, ctx: &Context, env: &Env<'e>) -> Result<&'e Arc<Identity>, Refusal> {
        const INVALID: &str = "Invalid user authorization";
        let value = authorization(ctx).ok_or(Refusal::absent("Missing authorization in request"))?;
        let credentials = Credentials::parse(value)?;
        self.matching(env, &credentials)
            .or_else(|_| self.matching(env, &credentials.squeezed()))
            .map_err(|detail| Refusal::new(INVALID, detail))
    }

    fn matching<'e>(
        &self,
        env: &Env<'e>,
        credentials: &Credentials,
    ) -> Result<&'e Arc<Identity>, &'static str> {
        let identity = self.policy.find(env, &credentials.user, "failed to find user: invalid user")?;
        let known = identity
            .data::<Consumer>()
            .is_some_and(|known| same_secret(known.password.reveal().as_bytes(), &credentials.password));
        known.then_some(identity).ok_or("the password is wrong")
    }
}

impl Plugin for BasicAuth {
    fn rewrite(&self, ctx: &mut Context, env: &Env<'_>) -> Step {
        let found = self.authenticate(ctx, env);
        if self.policy.hide_credentials {
            ctx.request.headers.remove(HeaderId::Authorization);
        }
        self.policy.conclude(ctx, env, found)
    }
}
