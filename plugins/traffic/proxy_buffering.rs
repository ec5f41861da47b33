//! `proxy-buffering`: responses pass as they come.

use schemars::JsonSchema;
use serde::Deserialize;
use sigma_plugin::{Configuration, Descriptor, PhaseSet, Plugin};

/// The plugin.
pub(crate) static PROXY_BUFFERING: Descriptor = Descriptor {
    name: "proxy-buffering",
    priority: 21991,
    example: EXAMPLE,
    phases: PhaseSet::of(&[]),
    ..Descriptor::itself::<ProxyBuffering>()
};

const EXAMPLE: &str = r#"```yaml
listeners: ["127.0.0.1:9080"]
routes:
  - uri: /*
    plugins: { proxy-buffering: { disable_proxy_buffering: true } }
    upstream: http://127.0.0.1:9000
```

```console
$ curl -s -o /dev/null -w '%{http_code}\n' http://127.0.0.1:9080/orders
200
```
"#;

/// Accepted for compatibility with APISIX: this gateway never buffers responses.
///
/// Each piece of a response is sent to the client as it arrives, and the node is read at the client's speed. Plugins
/// that need the whole response, such as `response-rewrite` with `filters`, still buffer it.
#[derive(Deserialize, JsonSchema)]
struct ProxyBuffering {
    /// Without effect: responses are always forwarded as they arrive.
    #[serde(rename = "disable_proxy_buffering")]
    #[schemars(extend("default" = false))]
    _disable_proxy_buffering: bool,
}

impl Configuration for ProxyBuffering {}

impl Plugin for ProxyBuffering {}
