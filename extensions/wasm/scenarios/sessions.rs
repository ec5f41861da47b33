//! Sessions over TCP.

use std::sync::Arc;
use std::task::Poll;

use serde_json::json;
use sigma_buffer::held;
use sigma_plugin::pace::Direction;
use sigma_plugin::{Entry, FlowEnd, FlowFilter, FlowPlugin, FlowStep, Session};

use super::{World, module};
use crate::testing::roster;

/// Holds all bytes of the client.
const HOLDS: &str =
    r#"(func (export "proxy_on_downstream_data") (param i32 i32 i32) (result i32) (i32.const 1))"#;

/// A budget of the worker; three quarters of it are for bodies.
const BUDGET: usize = 64 * 1024;

const PIECE: [u8; 16 * 1024] = [b'x'; 16 * 1024];

impl World {
    fn sessions(&self, body: &str) -> Entry<dyn FlowPlugin> {
        let path = self.folder.path().join("filter.wasm");
        std::fs::write(&path, module(body)).unwrap();
        let conf = json!({ "file": path });
        let resource = "/apisix/stream_routes/1";
        roster()
            .build_flow("wasm", &Arc::new(conf.clone()), conf, resource, &|_: &str| None, &self.node)
            .unwrap()
    }

    fn session(&self, entry: &Entry<dyn FlowPlugin>) -> Box<dyn FlowFilter> {
        let (mut session, env) = (Session::default(), self.env());
        self.run(async {
            let mut step = entry.plugin.preread(&mut session, &env);
            while let FlowStep::Wait(next) = step {
                step = next.await;
            }
            assert!(matches!(step, FlowStep::Next));
        });
        entry.plugin.filter(&mut session).unwrap()
    }

    /// Sends bytes of the client; returns those for the node.
    fn pushed(&self, filter: &mut dyn FlowFilter, data: &[u8]) -> Poll<Result<Option<Vec<u8>>, FlowEnd>> {
        let way = Direction::ToNode;
        filter.push(way, data, false);
        self.run(std::future::poll_fn(|task| Poll::Ready(filter.poll_next(way, task))))
    }
}

#[test]
fn held_bytes_of_sessions_count_against_the_memory_budget() {
    let world = World::new(&json!({ "body_bytes": 1 << 20 }));
    let entry = world.sessions(HOLDS);
    held::set_limit(BUDGET);
    let mut sessions: Vec<_> = (0..3).map(|_| world.session(&entry)).collect();
    for filter in &mut sessions {
        assert!(world.pushed(&mut **filter, &PIECE).is_pending());
    }
    assert_eq!(held::total(), 3 * PIECE.len());
    let mut another = world.session(&entry);
    assert!(matches!(world.pushed(&mut *another, b"x"), Poll::Ready(Err(FlowEnd::Failed))));
    assert_eq!(held::refusals(), 1);
    drop(sessions);
    assert_eq!(held::total(), 0);
    let mut another = world.session(&entry);
    assert!(world.pushed(&mut *another, b"x").is_pending());
}
