//! Gateways that are changed while they run, and who changes them.

use serde_json::{Value, json};
use sigma_testkit::{Gateway, Operator, Origin, Peer, until};

use crate::{PATIENCE, SIGMA};

/// The key of an admin.
pub(crate) const KEY: &str = "0123456789abcdef0123456789abcdef";
/// The key of a viewer.
pub(crate) const VIEWER: &str = "fedcba9876543210fedcba9876543210";

/// Keeps resources in the embedded store.
pub(crate) const EMBEDDED: &str = "store: { kind: embedded, path: \"{dir}/data\" }";

/// Settings of a gateway with all its listeners for operators, and `settings`.
pub(crate) fn config(settings: &str) -> String {
    format!(
        "workers: 2\nlisteners:\n  - address: \"{{listen}}\"\nstatus: {{ address: \"{{status}}\" }}\ncontrol: {{ address: \"{{control}}\" }}\nadmin:\n  address: \"{{admin}}\"\n  keys:\n    - {{ key: \"{KEY}\", role: admin }}\n    - {{ key: \"{VIEWER}\", role: viewer }}\n{settings}\n"
    )
}

/// The store of an etcd at this port, with times so short that a loss is noticed within a test.
pub(crate) fn etcd(port: u16) -> String {
    format!(
        "store:\n  kind: etcd\n  endpoints: [\"http://127.0.0.1:{port}\"]\n  path: \"{{dir}}/data\"\n  timeout_ms: 2000\n  watch_timeout_ms: 2000\n  resync_delay_ms: 200\n  startup_retry: 1\n"
    )
}

/// Starts a gateway with [`config`], and waits for its Admin API.
pub(crate) fn start(settings: &str) -> Gateway {
    let gateway = Gateway::start(SIGMA, &config(settings)).unwrap();
    await_admin(&gateway);
    gateway
}

/// Waits until the Admin API and the Control API, which open last, are there.
pub(crate) fn await_admin(gateway: &Gateway) {
    let open = |address| Peer::connect(&address).is_ok();
    let listening = until(PATIENCE, || open(gateway.admin_address()) && open(gateway.control_address()));
    assert!(listening, "no Admin API:\n{}", gateway.stderr());
}

/// Waits until the Control API is there.
pub(crate) fn await_control(gateway: &Gateway) {
    let listening = until(PATIENCE, || Peer::connect(&gateway.control_address()).is_ok());
    assert!(listening, "no Control API:\n{}", gateway.stderr());
}

/// Starts a gateway again that was killed.
pub(crate) fn start_again(gateway: &mut Gateway) {
    gateway.start_again().unwrap();
    await_admin(gateway);
}

/// Returns a client that may write through a gateway.
pub(crate) fn admin(gateway: &Gateway) -> Operator {
    Operator::new(gateway.admin_address()).with_key(KEY)
}

/// Returns a gateway's report of its served revisions.
pub(crate) fn revision(gateway: &Gateway) -> Value {
    Operator::new(gateway.control_address()).get("/v1/revision").unwrap()
}

/// A route to one origin.
pub(crate) fn route(uri: &str, origin: &Origin) -> Value {
    json!({"uri": uri, "upstream": upstream(origin)})
}

/// An upstream of one origin.
pub(crate) fn upstream(origin: &Origin) -> Value {
    let node = format!("127.0.0.1:{}", origin.port());
    json!({"nodes": {node: 1}})
}

/// Returns the server of a path, on a new connection: the name of an origin, else the status.
pub(crate) fn answerer(gateway: &Gateway, target: &str) -> String {
    let answer = gateway.connect().unwrap().with_deadline(PATIENCE).get(target).unwrap();
    answer.head.get("x-origin").map_or_else(|| answer.status().to_string(), str::to_owned)
}

/// Waits until a path is answered so by every worker: on several new connections in a row.
pub(crate) fn await_answerer(gateway: &Gateway, target: &str, expected: &str) {
    let mut last = String::new();
    let settled = until(PATIENCE, || {
        (0..8).all(|_| {
            last = answerer(gateway, target);
            last == expected
        })
    });
    assert!(settled, "{target} is answered by {last:?}, not by {expected:?}:\n{}", gateway.stderr());
}
