//! Nodes that change all the time leave no trace: a thousand nodes, replaced a thousand times, from the feed to a
//! worker's connections.

#![allow(clippy::unwrap_used, reason = "a failed step of a test may panic")]

use std::cell::RefCell;
use std::collections::HashSet;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use sigma_config::checks::Checks;
use sigma_config::resources::{Balance, Node, Scheme};
use sigma_http::h1::{HeadLimits, Tolerance};
use sigma_net::quic::QuicLimits;
use sigma_upstream::balance::{Balancer, InFlight, Outcome, PickContext, Tried};
use sigma_upstream::dial::{Dial, DialLimits, Owner, Protocol, QuicDial};
use sigma_upstream::dns::Resolver;
use sigma_upstream::endpoint::UpstreamCell;
use sigma_upstream::feed::{Feed, NextNodes};
use sigma_upstream::health::{CheckerSpec, Checkers, Plan};
use sigma_upstream::identity::EndpointIds;
use sigma_upstream::pool::{PoolLimits, Pools, Target, connect};
use sigma_upstream::watch::{Source, Watch};
use sigma_wire::h2::{FlowWindows, SharedLimits};
use sigma_wire::h3;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpListener;
use tokio::sync::mpsc;

const NODES: u32 = 1000;
const CHANGES: u32 = 1000;

/// The longest wait, also on a loaded machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// A feed with the test's lists.
#[derive(Debug)]
struct Scripted(mpsc::Receiver<Vec<Node>>);

impl Feed for Scripted {
    fn name(&self) -> String {
        "scripted".to_owned()
    }

    fn next(&mut self) -> NextNodes<'_> {
        Box::pin(async {
            match self.0.recv().await {
                Some(list) => Ok(list),
                None => std::future::pending().await,
            }
        })
    }
}

/// Returns the list after `change` changes. All addresses are this machine's; two lists have no address in common.
fn list(change: u32, port: u16) -> Vec<Node> {
    let host = |n: u32| {
        let [_, a, b, c] = (change * NODES + n + 1).to_be_bytes();
        format!("127.{a}.{b}.{c}").into_boxed_str()
    };
    (0..NODES).map(|n| Node { host: host(n), port: Some(port), weight: 1, ..Node::default() }).collect()
}

/// Returns the memory of this process, in bytes.
fn resident() -> u64 {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
    statm.split(' ').nth(1).unwrap().parse::<u64>().unwrap() * 4096
}

/// A worker that sends one request after each change.
struct Worker {
    balancer: RefCell<Balancer>,
    pools: RefCell<Pools>,
}

impl Worker {
    /// Sends a request and returns its node; None if there is no node.
    async fn request(&self, random: u64) -> Option<SocketAddr> {
        let tried = Tried::default();
        let context =
            PickContext { session: None, subset: None, key: None, tried: &tried, now_ms: random, random };
        let (set, at) = {
            let mut balancer = self.balancer.borrow_mut();
            let at = balancer.pick(&context)?;
            (balancer.endpoints().clone(), at)
        };
        let endpoint = &set.endpoints[at];
        let shared = SharedLimits {
            head: HeadLimits { line_bytes: 1_000, head_bytes: 1_000, fields: 10, tolerance: Tolerance::NONE },
            streams: 10,
            windows: FlowWindows { stream_bytes: 65_535, connection_bytes: 65_535 },
            frame_bytes: 16_384,
            header_list_bytes: 16_384,
            controls_per_second: u32::MAX,
            crowded_ms: 1_000,
            stalled_ms: 14_000,
        };
        let h3 = h3::SharedLimits {
            head: shared.head,
            streams: 10,
            header_list_bytes: 16_384,
            table_bytes: 0,
            blocked_streams: 0,
            controls_per_second: u32::MAX,
            silence_ms: 3_000,
        };
        let quic = QuicDial {
            shared: h3,
            transport: QuicLimits::default(),
            tcp_delay_ms: 300,
            retry_after_ms: 300_000,
            announcement_ms: 0,
        };
        let target = Target {
            endpoint,
            dial: Dial {
                protocol: Protocol::Http2,
                timeout_ms: 60_000,
                link_ms: None,
                limits: &DialLimits { shared, quic },
                tls: None,
                owner: Owner::ALL,
                linked: None,
            },
            limits: PoolLimits { size: 4, idle_timeout_ms: u64::MAX, burst_ms: 0, requests: 1000 },
        };
        let in_flight = InFlight::begin(&self.balancer, endpoint.id(), random);
        drop(connect(&self.pools, &target, 0).await.expect("a connection"));
        in_flight.end(Outcome { latency_ms: Some(1.0), now_ms: random });
        match &endpoint.addr {
            sigma_upstream::endpoint::Address::Tcp(addr) => Some(*addr),
            other => panic!("{other}"),
        }
    }
}

/// Accepts HTTP/2 connections and drops ended ones, as a node would.
async fn serve(listener: TcpListener) {
    const SETTINGS: [u8; 9] = [0, 0, 0, 4, 0, 0, 0, 0, 0];
    while let Ok((mut stream, _)) = listener.accept().await {
        tokio::spawn(async move {
            stream.write_all(&SETTINGS).await?;
            tokio::io::copy(&mut stream, &mut tokio::io::sink()).await
        });
    }
}

async fn churn() {
    let listener = TcpListener::bind("0.0.0.0:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(serve(listener));
    let (tell, lists) = mpsc::channel(1);
    let (ids, mut checkers) = (Arc::new(EndpointIds::default()), Checkers::default());
    let resolver = Resolver::with_servers(&[]).unwrap();
    let records = checkers.records("u");
    let source = Source::Fed(Box::new(Scripted(lists)));
    let watch = Watch::new(resolver, Scheme::Grpc, source, Arc::clone(&ids), Arc::clone(&records));
    let cell = Arc::new(UpstreamCell::new(Arc::new(watch.successor(None))));
    let running = tokio::spawn(watch.run(Arc::clone(&cell)));
    let plan = Arc::new(Plan::compile(&Checks::default(), None, None).unwrap());
    checkers.commit(vec![CheckerSpec { key: "u".to_owned(), plan, cell: Arc::clone(&cell) }]);
    let balancer = RefCell::new(Balancer::new(Balance::LeastConn, Arc::clone(&cell), 1));
    let worker = Worker { balancer, pools: RefCell::default() };

    let mut early = 0;
    for change in 0..CHANGES {
        let next = list(change, port);
        let new: HashSet<SocketAddr> =
            next.iter().map(|node| format!("{}:{port}", node.host).parse().unwrap()).collect();
        tell.send(next).await.unwrap();
        let arrived = async {
            while !worker.request(u64::from(change)).await.is_some_and(|node| new.contains(&node)) {
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(PATIENCE, arrived).await.expect("the new nodes are used");
        worker.pools.borrow_mut().sweep(0);
        let kept = worker.pools.borrow().endpoints();
        assert!(kept <= 1, "{kept} nodes in change {change}");
        if change == CHANGES / 10 {
            early = resident();
        }
    }
    let nodes = NODES as usize;
    assert_eq!((ids.live(), records.live(), cell.load().endpoints.len()), (nodes, nodes, nodes));
    // Two lists exist at a time, and a sweep starts when there are as many unused ones again.
    assert!(ids.indices() <= 5 * nodes, "{}", ids.indices());
    let grown = resident().saturating_sub(early);
    assert!(grown < 32 << 20, "memory grew by {grown} bytes since the first tenth");
    tell.send(Vec::new()).await.unwrap();
    let gone = async {
        while !cell.load().endpoints.is_empty() {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(PATIENCE, gone).await.expect("no nodes");
    worker.balancer.borrow_mut().refresh(0);
    worker.pools.borrow_mut().sweep(0);
    assert_eq!((ids.live(), records.live(), worker.pools.borrow().endpoints()), (0, 0, 0));
    running.abort();
}

#[tokio::test]
async fn a_thousand_nodes_change_a_thousand_times() {
    tokio::task::LocalSet::new().run_until(churn()).await;
}
