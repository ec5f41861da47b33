//! Tests with simulated time: how a test ends, and that nodes get their normal share then.

use sigma_config::resources::{Node, Scheme};
use sigma_proxy::live::{LiveReporter, channel};
use sigma_upstream::dns::Resolver;
use sigma_upstream::health::{HealthRecords, NodeState};
use sigma_upstream::watch::{Source, Watch};

use super::*;

/// An upstream of three nodes, with the environment of its stress tests.
struct World {
    cell: Arc<UpstreamCell>,
    in_force: Arc<Mutex<Option<Arc<UpstreamCell>>>>,
    live: Arc<Live>,
    /// Without it the workers would be gone.
    _workers: LiveReporter,
    runs: StressRuns,
}

fn cell() -> Arc<UpstreamCell> {
    let node = |last: u8| Node {
        host: format!("10.0.0.{last}").into(),
        port: Some(80),
        weight: 1,
        ..Node::default()
    };
    let nodes: Vec<Node> = (1..=3).map(node).collect();
    let resolver = Resolver::with_servers(&[]).expect("a resolver");
    let health = Arc::new(HealthRecords::default());
    let watch = Watch::new(resolver, Scheme::Http, Source::Configured(&nodes), Arc::default(), health);
    Arc::new(UpstreamCell::new(Arc::new(watch.successor(None))))
}

impl World {
    fn new() -> World {
        let (reporter, inbox) = channel();
        let cell = cell();
        World {
            in_force: Arc::new(Mutex::new(Some(Arc::clone(&cell)))),
            cell,
            live: Live::begin(inbox),
            _workers: reporter,
            runs: StressRuns::default(),
        }
    }

    fn start(&self, body: &Value) -> Result<Value, RefusedCall> {
        let plan = StressPlan::read(Some(body)).map_err(RefusedCall::bad)?;
        let targets =
            Targets::find("upstreams/1", Arc::clone(&self.cell), &plan).map_err(RefusedCall::bad)?;
        let in_force = Arc::clone(&self.in_force);
        let in_force = move |_: &str| {
            let cell = in_force.lock().unwrap_or_else(PoisonError::into_inner).clone();
            cell.ok_or_else(|| REMOVED.to_owned())
        };
        self.runs.start("upstreams/1", plan, targets, &self.live, in_force)
    }

    fn shares(&self) -> Vec<u32> {
        self.cell.load().endpoints.iter().map(|endpoint| endpoint.health.stress().share).collect()
    }

    fn beat(&self) -> u32 {
        self.cell.load().endpoints[0].health.stress().beat
    }

    /// Waits for the end, and returns its reason.
    async fn ended(&self) -> String {
        for _ in 0..1_000 {
            let report = self.runs.show("upstreams/1").expect("a test");
            if report["ended"].is_i64() {
                return report["reason"].as_str().unwrap_or_default().to_owned();
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        panic!("the test goes on");
    }
}

fn plan() -> Value {
    json!({"nodes": ["10.0.0.1:80", "10.0.0.2:80"], "start_percent": 30})
}

#[tokio::test(start_paused = true)]
async fn share_is_repeated_and_ends_with_its_duration() {
    let world = World::new();
    let report =
        world.start(&json!({"nodes": ["10.0.0.1:80"], "duration": 30, "interval": 10})).expect("a test");
    assert_eq!((&report["state"], &report["share_percent"]), (&json!("running"), &json!(10)));
    tokio::time::sleep(Duration::from_millis(10_500)).await;
    assert_eq!(world.shares(), [1_000, 0, 0]);
    let beat = world.beat();
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_ne!(world.beat(), beat);
    assert_eq!(world.ended().await, "the duration of 30 s is over");
    assert_eq!(world.shares(), [0; 3]);
}

#[tokio::test(start_paused = true)]
async fn operators_stop_it_and_may_start_another() {
    let world = World::new();
    world.start(&plan()).expect("a test");
    tokio::time::sleep(Duration::from_millis(1_500)).await;
    assert_eq!(world.shares(), [3_000, 3_000, 0]);
    let RefusedCall { status, message } = world.start(&plan()).expect_err("one is running");
    assert_eq!((status, message.contains("is running")), (StatusCode::CONFLICT, true), "{message}");
    assert_eq!(world.runs.stop("upstreams/1").expect("a test")["share_percent"], 0);
    assert_eq!(world.ended().await, "an operator has stopped the test");
    assert_eq!(world.shares(), [0; 3]);
    assert!(world.runs.stop("upstreams/1").is_err() && world.runs.show("upstreams/2").is_err());
    world.start(&plan()).expect("another test");
    assert_eq!(world.runs.list().as_array().map(Vec::len), Some(1));
}

#[tokio::test(start_paused = true)]
async fn node_that_is_not_usable_ends_it() {
    let world = World::new();
    world.start(&plan()).expect("a test");
    tokio::time::sleep(Duration::from_millis(1_500)).await;
    world.cell.load().endpoints[1].health.want(NodeState::Drain);
    assert_eq!(world.ended().await, "the node 10.0.0.2:80 is not usable: operator: drain");
    assert_eq!(world.shares(), [0; 3]);
}

#[tokio::test(start_paused = true)]
async fn changed_upstream_ends_it() {
    for (next, reason) in [(None, REMOVED), (Some(cell()), "the upstream was changed")] {
        let world = World::new();
        world.start(&plan()).expect("a test");
        tokio::time::sleep(Duration::from_millis(1_500)).await;
        *world.in_force.lock().unwrap_or_else(PoisonError::into_inner) = next;
        assert_eq!(world.ended().await, reason);
        assert_eq!(world.shares(), [0; 3]);
    }
    let world = World::new();
    world.start(&plan()).expect("a test");
    tokio::time::sleep(Duration::from_millis(1_500)).await;
    world.cell.publish(cell().load());
    assert_eq!(world.ended().await, "the node 10.0.0.1:80 is gone");
}

#[tokio::test(start_paused = true)]
async fn tests_without_valid_nodes_are_refused() {
    let world = World::new();
    let refused = |body: Value| world.start(&body).expect_err("a refusal").message;
    assert!(refused(json!({"nodes": ["10.0.0.9:80"]})).contains("upstreams/1 has no node 10.0.0.9:80"));
    let all = json!({"nodes": ["10.0.0.1:80", "10.0.0.2:80", "10.0.0.3:80"]});
    assert!(refused(all).contains("needs a usable node outside of the test"));
    world.cell.load().endpoints[0].health.want(NodeState::Maintenance);
    assert!(refused(plan()).contains("10.0.0.1:80 is not usable: operator: maintenance"));
    assert_eq!(world.shares(), [0; 3]);
}
