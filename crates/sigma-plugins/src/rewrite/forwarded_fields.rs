//! `forwarded-fields`: what the node is told of the client.

use schemars::JsonSchema;
use serde::Deserialize;
use sigma_http::HeaderId;
use sigma_plugin::{Configuration, Context, Descriptor, Env, Phase, PhaseSet, Plugin, Step};

/// The plugin.
pub(crate) static FORWARDED_FIELDS: Descriptor = Descriptor {
    name: "forwarded-fields",
    priority: 1007,
    example: EXAMPLE,
    phases: PhaseSet::of(&[Phase::Rewrite]),
    ..Descriptor::itself::<ForwardedFields>()
};

/// Says which fields about the client the node gets from the gateway.
///
/// Sigma's own. A field that is switched off reaches the node as the client sent it, or not at all.
#[derive(Deserialize, JsonSchema)]
#[schemars(deny_unknown_fields)]
struct ForwardedFields {
    /// The client's address is appended to `X-Forwarded-For`.
    #[schemars(extend("default" = true))]
    x_forwarded_for: bool,
    /// `X-Real-IP` is the client's address.
    #[schemars(extend("default" = true))]
    x_real_ip: bool,
}

impl Configuration for ForwardedFields {}

const EXAMPLE: &str = r#"```yaml
listeners: ["127.0.0.1:9080"]
routes:
  - uri: /*
    plugins:
      forwarded-fields: { x_forwarded_for: false, x_real_ip: true }
    upstream: http://127.0.0.1:9000
```

```console
$ curl http://127.0.0.1:9080/orders
{
…
    "x-forwarded-port": "9080",
    "x-real-ip": "127.0.0.1"
  }
}
```
"#;

impl Plugin for ForwardedFields {
    fn rewrite(&self, ctx: &mut Context, _env: &Env<'_>) -> Step {
        let fields = [(self.x_forwarded_for, HeaderId::XForwardedFor), (self.x_real_ip, HeaderId::XRealIp)];
        ctx.untouched.extend(fields.into_iter().filter(|(told, _)| !told).map(|(_, id)| id));
        Step::Next
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::testing::{Case, entry};

    #[test]
    fn what_is_off_stays_untouched() {
        let plugin = entry("forwarded-fields", json!({"x_real_ip": false})).unwrap();
        let mut case = Case::new("GET / HTTP/1.1\nHost: h");
        assert!(case.run(&plugin, Phase::Rewrite).is_none());
        assert_eq!(case.ctx.untouched, [HeaderId::XRealIp]);
    }
}
