//! Pools in front of minimal nodes: streams, waiting exchanges and their results.

use std::cell::Cell;
use std::future::poll_fn;
use std::sync::LazyLock;
use std::time::Duration;

use sigma_config::resources::Scheme;
use sigma_http::h1::{HeadLimits, Tolerance};
use sigma_http::{Method, ResponseHead};
use sigma_net::deadline;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::{JoinHandle, LocalSet, spawn_local};

use super::*;
use crate::dial::{Dial, DialLimits, Owner, Protocol, QuicDial};
use crate::endpoint::Address;
use crate::health::Health;
use crate::identity::EndpointIds;
use sigma_net::quic::QuicLimits;
use sigma_wire::h2::{FlowWindows, SharedLimits};
use sigma_wire::h3;

const LIMITS: PoolLimits = PoolLimits { size: 4, idle_timeout_ms: 60_000, burst_ms: 10_000, requests: 1000 };

pub(super) fn endpoint(ids: &EndpointIds, host: &str, addr: &Address) -> Endpoint {
    Endpoint {
        lease: ids.lease(Scheme::Grpc, host, 80, None),
        host: host.to_owned(),
        port: 80,
        addr: addr.clone(),
        host_header: String::new(),
        weight: 1,
        priority: 0,
        metadata: None,
        health: Arc::new(Health::unchecked()),
        by_address: false,
        quic_port: None,
    }
}

/// The limits of all dials.
static DIAL_LIMITS: LazyLock<DialLimits> = LazyLock::new(|| DialLimits { shared: SHARED, quic: quic_dial() });

const SHARED: SharedLimits = SharedLimits {
    head: HeadLimits { line_bytes: 1_000, head_bytes: 1_000, fields: 10, tolerance: Tolerance::NONE },
    streams: 10,
    windows: FlowWindows { stream_bytes: 65_535, connection_bytes: 65_535 },
    frame_bytes: 16_384,
    header_list_bytes: 16_384,
    controls_per_second: u32::MAX,
    crowded_ms: 1_000,
    stalled_ms: 14_000,
};

pub(super) fn target(endpoint: &Endpoint) -> Target<'_> {
    let dial = Dial {
        protocol: Protocol::Http2,
        timeout_ms: 60_000,
        link_ms: None,
        limits: &DIAL_LIMITS,
        tls: None,
        owner: Owner::ALL,
        linked: None,
    };
    Target { endpoint, dial, limits: LIMITS }
}

/// The settings of connections over QUIC.
fn quic_dial() -> QuicDial {
    QuicDial {
        shared: h3::SharedLimits {
            head: HeadLimits { line_bytes: 1_000, head_bytes: 1_000, fields: 10, tolerance: Tolerance::NONE },
            streams: 10,
            header_list_bytes: 16_384,
            table_bytes: 4_096,
            blocked_streams: 16,
            controls_per_second: u32::MAX,
            silence_ms: 3_000,
        },
        transport: QuicLimits::default(),
        tcp_delay_ms: 300,
        retry_after_ms: 300_000,
        announcement_ms: 86_400_000,
    }
}

async fn connections_of_the_former_are_not_used() {
    let (ids, node) = (EndpointIds::default(), far(Manner::Places(PLACES)).await);
    let pools = RefCell::new(Pools::default());
    let former = endpoint(&ids, "former", &node.addr);
    drop(connect(&pools, &target(&former), 0).await.expect("a connection"));
    assert!(pools.borrow().checkout(&target(&former), 1).is_some());

    let number = former.id().index();
    drop(former);
    assert_eq!(ids.live(), 0);
    let next = endpoint(&ids, "next", &node.addr);
    assert_eq!(next.id().index(), number);
    assert!(pools.borrow().checkout(&target(&next), 2).is_none());
    pools.borrow_mut().sweep(3);
    assert_eq!(pools.borrow().endpoints(), 0);
    // The node sees the end of its connection.
    tokio::time::timeout(PATIENCE, node.until_open(0)).await.expect("in time");

    // The present endpoint has an entry, and loses it when it is gone too.
    drop(connect(&pools, &target(&next), 4).await.expect("a connection"));
    pools.borrow_mut().sweep(5);
    assert_eq!(pools.borrow().endpoints(), 1);
    drop(next);
    pools.borrow_mut().sweep(6);
    assert_eq!((pools.borrow().endpoints(), pools.borrow().by_endpoint.len()), (0, 0));
}

#[test]
fn a_reused_number_brings_no_connections() {
    run(connections_of_the_former_are_not_used());
}

async fn given_back_place_is_there_at_once() {
    let (ids, node) = (EndpointIds::default(), far(Manner::Places(1)).await);
    let pools = RefCell::new(Pools::default());
    let endpoint = endpoint(&ids, "a", &node.addr);
    let first = connect(&pools, &target(&endpoint), 0).await.expect("a connection");
    assert!(pools.borrow().checkout(&target(&endpoint), 1).is_none());
    first.give_back(&target(&endpoint), 2);
    assert!(pools.borrow().checkout(&target(&endpoint), 3).is_some());
}

#[test]
fn a_returned_stream_is_free_at_once() {
    run(given_back_place_is_there_at_once());
}

/// Longer than anything here takes.
const PATIENCE: Duration = Duration::from_secs(120);

const PLACES: u32 = 10;

/// An empty GOAWAY with the highest stream.
const GOAWAY: [u8; 17] = [0, 0, 8, 7, 0, 0, 0, 0, 0, 0x7f, 0xff, 0xff, 0xff, 0, 0, 0, 0];

/// The behaviour of a node on a connection.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Manner {
    /// It allows some streams
    Places(u32),
    /// It is silent
    Mute,
    /// It sends an HTTP/1 response at once
    Answers,
    /// It allows some streams, and ends the first connections by GOAWAY on a signal
    Leaves(usize),
}

/// A node that accepts connections and ignores their bytes.
struct Far {
    addr: Address,
    connections: Rc<Cell<usize>>,
    /// Connections that the gateway has not closed.
    open: Rc<Cell<usize>>,
    leave: Rc<tokio::sync::Notify>,
    task: JoinHandle<()>,
}

impl Far {
    async fn until_open(&self, count: usize) {
        while self.open.get() != count {
            tokio::task::yield_now().await;
        }
    }
}

impl Drop for Far {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn far(manner: Manner) -> Far {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("bind");
    let addr = Address::Tcp(listener.local_addr().expect("address"));
    let (connections, open) = (Rc::new(Cell::new(0)), Rc::new(Cell::new(0usize)));
    let leave = Rc::new(tokio::sync::Notify::new());
    let (count, still, leaving) = (Rc::clone(&connections), Rc::clone(&open), Rc::clone(&leave));
    let task = spawn_local(async move {
        while let Ok((socket, _)) = listener.accept().await {
            count.set(count.get() + 1);
            let (number, leaving, still) = (count.get(), Rc::clone(&leaving), Rc::clone(&still));
            still.set(still.get() + 1);
            spawn_local(async move {
                hold(socket, manner, number, leaving).await;
                still.set(still.get() - 1);
            });
        }
    });
    Far { addr, connections, open, leave, task }
}

async fn hold(mut socket: TcpStream, manner: Manner, number: usize, leave: Rc<tokio::sync::Notify>) {
    let places = match manner {
        Manner::Places(places) => Some(places),
        Manner::Leaves(_) => Some(PLACES),
        Manner::Mute => None,
        Manner::Answers => {
            let _ = socket.write_all(b"HTTP/1.1 204 No Content\r\n\r\n").await;
            None
        }
    };
    if let Some(places) = places {
        let mut settings = vec![0, 0, 6, 4, 0, 0, 0, 0, 0, 0, 3];
        settings.extend_from_slice(&places.to_be_bytes());
        let _ = socket.write_all(&settings).await;
    }
    if matches!(manner, Manner::Leaves(first) if number <= first) {
        leave.notified().await;
        let _ = socket.write_all(&GOAWAY).await;
    }
    let mut rest = Vec::new();
    let _ = socket.read_to_end(&mut rest).await;
}

/// Exchanges that start together, hold their streams for some turns of the scheduler, and record the order in which
/// they got them.
struct Crowd {
    pools: Rc<RefCell<Pools>>,
    endpoint: Rc<Endpoint>,
    size: usize,
    timeout_ms: u64,
    /// The scheduler turns for which a stream is held; None to keep the stream.
    turns: Option<usize>,
    served: Rc<RefCell<Vec<usize>>>,
}

impl Crowd {
    fn of(far: &Far, ids: &EndpointIds, size: usize) -> Crowd {
        Crowd {
            pools: Rc::default(),
            endpoint: Rc::new(endpoint(ids, "node", &far.addr)),
            size,
            timeout_ms: 60_000,
            turns: None,
            served: Rc::default(),
        }
    }

    fn target(&self) -> Target<'_> {
        let target = target(&self.endpoint);
        let dial = Dial { timeout_ms: self.timeout_ms, ..target.dial };
        Target { dial, limits: PoolLimits { size: self.size, ..LIMITS }, ..target }
    }

    fn come(self: &Rc<Self>, number: usize) -> JoinHandle<Result<Option<InUse>, Fault>> {
        let crowd = Rc::clone(self);
        spawn_local(async move {
            let target = crowd.target();
            let kept = crowd.pools.borrow().checkout(&target, deadline::now_ms());
            let in_use = match kept {
                Some(kept) => kept,
                None => connect(&crowd.pools, &target, deadline::now_ms()).await?,
            };
            crowd.served.borrow_mut().push(number);
            let Some(turns) = crowd.turns else { return Ok(Some(in_use)) };
            for _ in 0..turns {
                tokio::task::yield_now().await;
            }
            Ok(None)
        })
    }

    async fn all(self: &Rc<Self>, count: usize) -> Vec<Result<Option<InUse>, Fault>> {
        let tasks: Vec<_> = (0..count).map(|number| self.come(number)).collect();
        let mut results = Vec::new();
        for task in tasks {
            let result = tokio::time::timeout(PATIENCE, task).await.expect("in time");
            results.push(result.expect("no panic"));
        }
        results
    }
}

fn run(test: impl Future<Output = ()>) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    LocalSet::new().block_on(&runtime, async {
        let wheel = spawn_local(deadline::drive(|_| 1));
        test.await;
        wheel.abort();
    });
}

#[test]
fn a_thousand_streams_get_as_many_connections_as_they_need() {
    run(async {
        let (ids, far) = (EndpointIds::default(), far(Manner::Places(PLACES)).await);
        let crowd = Rc::new(Crowd::of(&far, &ids, 320));
        let held = crowd.all(1_000).await;
        assert!(held.iter().all(Result::is_ok));
        assert_eq!(far.connections.get(), 100, "each is filled before the next is opened");
        drop(held);
        let again = crowd.all(1_000).await;
        assert!(again.iter().all(Result::is_ok));
        assert_eq!(far.connections.get(), 100, "all of them serve again");
    });
}

#[test]
fn waiting_exchanges_are_served_in_turn() {
    run(async {
        let (ids, far) = (EndpointIds::default(), far(Manner::Places(PLACES)).await);
        let crowd = Rc::new(Crowd { turns: Some(3), ..Crowd::of(&far, &ids, 5) });
        let results = crowd.all(1_000).await;
        assert!(results.iter().all(Result::is_ok));
        assert_eq!(far.connections.get(), 5, "no more than the pool may have");
        let served = crowd.served.borrow();
        assert!(served.is_sorted(), "first come, first served: {served:?}");
    });
}

#[test]
fn a_wait_without_success_reports_that_all_streams_are_in_use() {
    run(async {
        let (ids, far) = (EndpointIds::default(), far(Manner::Places(PLACES)).await);
        let crowd = Rc::new(Crowd { timeout_ms: 300, ..Crowd::of(&far, &ids, 1) });
        let held = crowd.all(11).await;
        let (got, failed): (Vec<_>, Vec<_>) = held.into_iter().partition(Result::is_ok);
        assert_eq!((got.len(), failed.len()), (10, 1));
        let kind = failed.into_iter().next().and_then(Result::err).map(|fault| fault.kind);
        assert_eq!(kind, Some(FaultKind::OutOfSockets));
    });
}

#[test]
fn an_exchange_that_gives_up_leaves_no_gap() {
    run(async {
        let (ids, far) = (EndpointIds::default(), far(Manner::Places(PLACES)).await);
        let crowd = Rc::new(Crowd::of(&far, &ids, 1));
        let mut held = crowd.all(10).await;
        let (tired, patient, late) = (crowd.come(10), crowd.come(11), crowd.come(12));
        tokio::task::yield_now().await;
        tired.abort();
        held.truncate(8);
        for waits in [patient, late] {
            let got = tokio::time::timeout(PATIENCE, waits).await.expect("in time").expect("no panic");
            held.push(got);
        }
        assert!(held.iter().all(Result::is_ok));
        assert_eq!((held.len(), far.connections.get()), (10, 1));
    });
}

#[test]
fn an_untaken_stream_goes_to_the_next() {
    run(async {
        let (ids, far) = (EndpointIds::default(), far(Manner::Places(1)).await);
        let crowd = Rc::new(Crowd::of(&far, &ids, 1));
        let held = crowd.all(1).await;
        let (first, second) = (crowd.come(1), crowd.come(2));
        tokio::task::yield_now().await;
        // The stream is given to the first, which is aborted before it runs.
        drop(held);
        first.abort();
        let got = tokio::time::timeout(PATIENCE, second).await.expect("in time").expect("no panic");
        assert!(got.is_ok());
        assert_eq!(far.connections.get(), 1);
    });
}

#[test]
fn all_fail_with_a_node_that_refuses_or_is_silent() {
    run(async {
        let ids = EndpointIds::default();
        let mut refusing = far(Manner::Mute).await;
        let closed = TcpListener::bind("127.0.0.1:0").await.expect("bind");
        refusing.addr = Address::Tcp(closed.local_addr().expect("address"));
        drop(closed);
        let mute = far(Manner::Mute).await;
        for (far, timeout_ms, kind) in
            [(&refusing, 60_000, FaultKind::ConnectRefused), (&mute, 300, FaultKind::ConnectTimeout)]
        {
            let counters = Arc::new(WorkerCounters::default());
            let pools = Rc::new(RefCell::new(Pools::new(Arc::clone(&counters))));
            let crowd = Rc::new(Crowd { timeout_ms, pools, ..Crowd::of(far, &ids, 320) });
            for result in crowd.all(1_000).await {
                assert_eq!(result.err().map(|fault| fault.kind), Some(kind));
            }
            assert_eq!(counters.get(Counter::UpstreamConnects), 1, "one attempt for all: {kind:?}");
        }
    });
}

#[test]
fn waiting_streams_survive_connections_that_end() {
    run(async {
        let (ids, far) = (EndpointIds::default(), far(Manner::Leaves(3)).await);
        let crowd = Rc::new(Crowd { turns: Some(20), ..Crowd::of(&far, &ids, 4) });
        let (results, ()) = tokio::join!(crowd.all(1_000), async {
            while crowd.served.borrow().len() < 100 {
                tokio::task::yield_now().await;
            }
            far.leave.notify_waiters();
        });
        assert!(results.iter().all(Result::is_ok));
        assert!((4..=7).contains(&far.connections.get()), "{} connections", far.connections.get());
    });
}

#[test]
fn a_node_without_streams_is_not_tried_forever() {
    run(async {
        let (ids, far) = (EndpointIds::default(), far(Manner::Places(0)).await);
        let crowd = Rc::new(Crowd { timeout_ms: 300, ..Crowd::of(&far, &ids, 320) });
        let results = crowd.all(20).await;
        assert!(results.iter().all(Result::is_err));
        assert_eq!(far.connections.get(), 1, "another connection would be no better");
    });
}

#[test]
fn a_young_worker_keeps_its_connections_for_a_long_burst_too() {
    run(async {
        const BURST: usize = 10;
        let (ids, far) = (EndpointIds::default(), far(Manner::Answers).await);
        let counters = Arc::new(WorkerCounters::default());
        let pools = RefCell::new(Pools::new(Arc::clone(&counters)));
        let endpoint = endpoint(&ids, "node", &far.addr);
        let target = target(&endpoint);
        let target = Target {
            dial: Dial { protocol: Protocol::Http, ..target.dial },
            limits: PoolLimits { burst_ms: 600_000, ..LIMITS },
            ..target
        };
        let mut held = Vec::new();
        for _ in 0..BURST {
            let mut in_use = connect(&pools, &target, 0).await.expect("a connection");
            let (mut head, limits) = (ResponseHead::default(), &target.dial.limits.shared.head);
            poll_fn(|cx| in_use.poll_head(cx, Method::Get, limits, &mut head)).await.expect("a response");
            held.push(in_use);
        }
        held.into_iter().for_each(|in_use| in_use.give_back(&target, 0));
        pools.borrow_mut().sweep(1_000);
        assert_eq!(counters.get(Counter::UpstreamIdle), BURST as u64);
        assert_eq!(counters.get(Counter::UpstreamIdleBeyondSize), (BURST - LIMITS.size) as u64);
    });
}
