//! `proxy-buffering`: how much of a node's response is read ahead of a slower client.

use schemars::JsonSchema;
use serde::Deserialize;
use sigma_plugin::{Configuration, Context, Descriptor, Env, Phase, PhaseSet, Plugin, Step};

/// The plugin.
pub(crate) static PROXY_BUFFERING: Descriptor = Descriptor {
    name: "proxy-buffering",
    priority: 21991,
    example: include_str!("example.md"),
    phases: PhaseSet::of(&[Phase::Rewrite]),
    ..Descriptor::itself::<ProxyBuffering>()
};

/// Reads responses of nodes into memory ahead of slow clients, so that nodes are free earlier.
///
/// Without the plugin, and without `max_buffered_size`, a node is read at the client's speed. With `max_buffered_size`
/// the gateway reads on while the client is slower. Once it has the end of the response, the node serves other
/// requests: balancing, limits and queues count the request no more. A client that keeps up gets each piece at once;
/// no piece waits for others, so that events and streams are not delayed.
///
/// A node waits for the client as before if the response is larger than `max_buffered_size`, and while a quarter of
/// `limits.held_bytes_per_worker` is used: there are no temporary files. A node's response with
/// `X-Accel-Buffering: no` is not read ahead. While the request is still being sent, nothing is read ahead.
///
/// The plugin of the route takes precedence over the one of a global rule. Plugins that need the whole response, such
/// as `response-rewrite` with `filters`, buffer it in any case.
#[derive(Deserialize, JsonSchema)]
struct ProxyBuffering {
    /// True: nothing is read ahead, also if a global rule says `max_buffered_size`.
    #[schemars(extend("default" = false))]
    disable_proxy_buffering: bool,
    /// Maximum bytes of a response that are read ahead, rounded up to the next piece of at most 64 KiB. Sigma's own.
    #[schemars(range(min = 1))]
    max_buffered_size: Option<usize>,
}

impl Configuration for ProxyBuffering {
    fn check(&self) -> Result<(), String> {
        if self.disable_proxy_buffering && self.max_buffered_size.is_some() {
            let message = "max_buffered_size: nothing is read ahead with `disable_proxy_buffering: true`; remove one of both";
            return Err(message.to_owned());
        }
        Ok(())
    }
}

impl Plugin for ProxyBuffering {
    fn rewrite(&self, ctx: &mut Context, _env: &Env<'_>) -> Step {
        if self.disable_proxy_buffering {
            ctx.read_ahead_bytes = 0;
        } else if let Some(bytes) = self.max_buffered_size {
            ctx.read_ahead_bytes = bytes;
        }
        Step::Next
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::testing::{Case, assert_refusal, entry};

    #[test]
    fn last_instance_decides() {
        let check = |confs: &[Value], expected: usize| {
            let mut case = Case::new("GET / HTTP/1.1\nHost: h");
            for conf in confs {
                assert!(case.run(&entry("proxy-buffering", conf.clone()).unwrap(), Phase::Rewrite).is_none());
            }
            assert_eq!(case.ctx.read_ahead_bytes, expected, "{confs:?}");
        };
        let (on, off) = (json!({"max_buffered_size": 9}), json!({"disable_proxy_buffering": true}));
        check(&[json!({})], 0);
        check(&[json!({"disable_proxy_buffering": false})], 0);
        check(std::slice::from_ref(&on), 9);
        check(&[on.clone(), off.clone()], 0);
        check(&[off, on.clone()], 9);
        check(&[on.clone(), json!({})], 9);
        check(&[on, json!({"max_buffered_size": 5})], 5);
    }

    #[test]
    fn configurations() {
        let name = "proxy-buffering";
        assert_refusal(
            name,
            &json!({"max_buffered_size": 0}),
            "property \"max_buffered_size\" validation failed",
        );
        assert_refusal(name, &json!({"disable_proxy_buffering": 1}), "expected boolean, got number");
        let both = json!({"disable_proxy_buffering": true, "max_buffered_size": 5});
        assert_refusal(name, &both, "remove one of both");
    }
}
