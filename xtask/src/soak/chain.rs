//! Two gateways, one behind the other.

use std::path::Path;

use super::gateway::Gateway;

/// The body of every response.
pub(super) const BODY: &str = "the expected body";

/// The limits of resets and of frames without a message for a client: above its use.
const LIMITS: &str =
    "http2: { resets_per_minute: 4000000000, control_frames_per_second: 4000000000, pending_resets: 1000 }";

/// Both gateways; dropped, they end.
pub(super) struct Chain {
    pub(super) first: Gateway,
    pub(super) second: Gateway,
}

impl Chain {
    pub(super) fn start(sigma: &Path, work: &Path) -> anyhow::Result<Chain> {
        let own = format!("plugins: {{ mocking: {{ response_example: \"{BODY}\" }} }}");
        let routes = format!("  - {{ uri: \"/*\", {own} }}");
        let second = Gateway::start(sigma, work, "second", &config(&routes))?;
        let node = format!("nodes: {{ \"127.0.0.1:{}\": 1 }}", second.port);
        let routes = format!(
            "  - {{ uri: \"/own*\", {own} }}\n  - {{ uri: \"/h2*\", upstream: {{ scheme: grpc, {node} }} }}\n  - {{ uri: \"/h1*\", upstream: {{ {node} }} }}"
        );
        let first = Gateway::start(sigma, work, "first", &config(&routes))?;
        Ok(Chain { first, second })
    }

    pub(super) fn gateways(&self) -> [&Gateway; 2] {
        [&self.first, &self.second]
    }
}

fn config(routes: &str) -> String {
    format!("workers: 1\n{LIMITS}\nlimits: {{ keepalive_requests: 1000000000 }}\nroutes:\n{routes}\n")
}
