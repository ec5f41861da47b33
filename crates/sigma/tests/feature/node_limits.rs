//! Bounds on the requests of each node, over all workers.

use std::sync::Arc;

use serde_json::{Value, json};
use sigma_testkit::{Gateway, Origin, until};

use crate::overload::{Held, begin};
use crate::{PATIENCE, SIGMA};

/// Two nodes that answer on command.
struct Pair {
    held: [Arc<Held>; 2],
    origins: [Origin; 2],
}

impl Pair {
    fn new() -> Pair {
        let held = [Arc::<Held>::default(), Arc::<Held>::default()];
        let origins = held.each_ref().map(Held::origin);
        Pair { held, origins }
    }

    fn gateway(&self, rules: &Value) -> Gateway {
        let nodes: Vec<Value> = self
            .origins
            .iter()
            .map(|origin| json!({ "host": "127.0.0.1", "port": origin.port(), "weight": 1 }))
            .collect();
        let mut upstream = json!({ "id": "u", "nodes": nodes });
        upstream.as_object_mut().unwrap().extend(rules.as_object().unwrap().clone());
        Gateway::start(SIGMA, &config(2, &upstream).to_string()).unwrap()
    }

    fn seen(&self) -> [usize; 2] {
        self.held.each_ref().map(|held| held.seen())
    }
}

fn config(workers: u32, upstream: &Value) -> Value {
    json!({
        "workers": workers, "listeners": ["{listen}"], "status": { "address": "{status}" },
        "upstreams": [upstream], "routes": [{ "id": "all", "uri": "/*", "upstream_id": "u" }],
    })
}

fn requests(gateway: &Gateway) -> u64 {
    gateway.counter("sigma_requests_total")
}

#[test]
fn a_waiting_request_gets_the_first_free_node() {
    for free in [0, 1] {
        let pair = Pair::new();
        let queue = json!({ "length": 10, "timeout": 600 });
        let gateway = pair.gateway(&json!({ "limits": { "max_requests_per_node": 1, "queue": queue } }));
        let mut all = vec![begin(&gateway, ""), begin(&gateway, "")];
        assert!(until(PATIENCE, || pair.seen() == [1, 1]));
        all.push(begin(&gateway, ""));
        assert!(until(PATIENCE, || requests(&gateway) == 3));
        pair.held[free].let_go(2);
        assert!(until(PATIENCE, || pair.seen()[free] == 2));
        assert_eq!(pair.seen()[1 - free], 1);
        pair.held[1 - free].let_go(1);
        all.into_iter().for_each(|one| assert_eq!(one.join().unwrap(), 200));
    }
}
