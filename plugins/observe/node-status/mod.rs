//! `node-status`: how many connections this gateway has.

use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::json;
use sigma_http::Method;
use sigma_plugin::descriptor::Endpoint;
use sigma_plugin::facts::{FactsBoard, Pulse};
use sigma_plugin::{Configuration, Context, Descriptor, Env, Plugin, Reply, Step};

/// The plugin.
pub(crate) static NODE_STATUS: Descriptor = Descriptor {
    name: "node-status",
    priority: 1000,
    example: include_str!("example.md"),
    endpoints: &[Endpoint {
        path: "/apisix/status",
        path_setting: "status_uri",
        method: Method::Get,
        answer: status,
    }],
    ..Descriptor::itself::<NodeStatus>()
};

/// Status page with the number of client connections of this gateway, for a route with `public-api`.
///
/// It needs to be on no route itself. Every client that reaches the route can read the page: protect the route.
/// Numbers are sums over all workers, written as strings, as monitoring scripts for APISIX expect; `id` is the
/// setting `members.id`.
#[derive(Deserialize, JsonSchema)]
#[schemars(deny_unknown_fields)]
struct NodeStatus {}

impl Configuration for NodeStatus {}

impl Plugin for NodeStatus {}

fn status(_: &mut Context, env: &Env<'_>) -> Step {
    let reply = match env.node.part(FactsBoard::default).pulse() {
        Some(pulse) => Reply::new(200).json(&shown(&pulse)),
        None => Reply::new(500),
    };
    reply.into()
}

/// The numbers as nginx's `stub_status` has them: each request that is not answered yet writes on one connection.
fn shown(pulse: &Pulse) -> serde_json::Value {
    let writing = pulse.requests_active.min(pulse.connections_active);
    let text = |number: u64| number.to_string();
    json!({
        "id": &*pulse.id,
        "status": {
            "active": text(pulse.connections_active),
            "accepted": text(pulse.connections_accepted),
            "handled": text(pulse.connections_accepted),
            "total": text(pulse.requests),
            "reading": "0",
            "writing": text(writing),
            "waiting": text(pulse.connections_active - writing),
        },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn busy_connections_write_and_the_others_wait() {
        let check = |active: u64, busy: u64, expected: [&str; 2]| {
            let pulse = Pulse {
                id: "edge".into(),
                requests: 9,
                requests_active: busy,
                connections_active: active,
                connections_accepted: 7,
            };
            let shown = shown(&pulse);
            assert_eq!((&shown["id"], &shown["status"]["total"]), (&json!("edge"), &json!("9")));
            assert_eq!(shown["status"]["accepted"], shown["status"]["handled"]);
            assert_eq!([&shown["status"]["writing"], &shown["status"]["waiting"]], expected, "{shown}");
        };
        check(0, 0, ["0", "0"]);
        check(5, 2, ["2", "3"]);
        // Streams of one connection.
        check(1, 4, ["1", "0"]);
    }
}
