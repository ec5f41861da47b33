//! `proxy-control`: whether a request's body is read before a node is queried.

use schemars::JsonSchema;
use serde::Deserialize;
use sigma_plugin::{Configuration, Context, Descriptor, Env, Phase, PhaseSet, Plugin, Step};

/// The plugin.
pub(crate) static PROXY_CONTROL: Descriptor = Descriptor {
    name: "proxy-control",
    priority: 21990,
    example: include_str!("example.md"),
    phases: PhaseSet::of(&[Phase::Rewrite]),
    ..Descriptor::itself::<ProxyControl>()
};

/// Buffers the body of a request before it is sent to a node, so that slow clients do not occupy nodes.
///
/// Without the plugin, and with `request_buffering: false`, a body is forwarded as it arrives. Plugins that need the
/// body always read it.
#[derive(Deserialize, JsonSchema)]
struct ProxyControl {
    /// Whether the body is read first.
    #[schemars(extend("default" = true))]
    request_buffering: bool,
    /// Maximum bytes of a body in memory. The rest of a longer body is forwarded as it arrives. There are no temporary
    /// files.
    #[schemars(range(min = 1), extend("default" = 1_048_576, "own_default" = true))]
    max_buffered_size: usize,
}

impl Configuration for ProxyControl {}

impl Plugin for ProxyControl {
    fn rewrite(&self, _cx: &mut Context, _env: &Env<'_>) -> Step {
        if !self.request_buffering {
            return Step::Next;
        }
        Step::ReadBody { limit: self.max_buffered_size, then: Box::new(|_, _, _| Step::Next) }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::testing::{Case, assert_refusal, entry};

    #[test]
    fn valid_configurations_are_read() {
        let check = |conf: Value, expected: Option<&[u8]>| {
            let mut case = Case::new("POST / HTTP/1.1\nHost: h");
            case.body = b"hello".to_vec();
            assert!(case.run(&entry("proxy-control", conf.clone()).unwrap(), Phase::Rewrite).is_none());
            assert_eq!(case.ctx.body.as_deref(), expected, "{conf}");
        };
        check(json!({}), Some(b"hello"));
        check(json!({"request_buffering": true, "max_buffered_size": 5}), Some(b"hello"));
        check(json!({"request_buffering": true, "max_buffered_size": 4}), None);
        check(json!({"request_buffering": false}), None);
        assert_refusal("proxy-control", &json!({"request_buffering": 1}), "expected boolean, got number");
    }
}
