//! HTTP/3 over many reloads and upgrades. It takes a minute.

use crate::h3_nodes::upgrades::{Course, lose_no_request};

#[test]
fn a_hundred_connections_lose_no_request() {
    lose_no_request(&Course { connections: 100, reloads: 20, upgrades: 8 });
}
