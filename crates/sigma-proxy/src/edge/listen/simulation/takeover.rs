//! A plugin that takes over connections, and its clients.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::io;
use std::rc::Rc;
use std::sync::{Arc, LazyLock};
use std::task::{Context as Task, Poll, Waker};

use sigma_http::Chunk;
use sigma_net::{Stream, deadline};
use sigma_observe::counters::Counter;
use sigma_plugin::{Context, Descriptor, Env, Kind, Phase, PhaseSet, Plugin, Reply, Roster, Step, Takeover};

use super::{Open, accepted, compiled, serving};
use crate::simulation::message::STALL_MS;
use crate::simulation::stream::{Mood, PeerEnd, connection};
use crate::simulation::world::{FOR_EVER_MS, Scheduler, Spawner, World};
use crate::snapshot::Snapshot;

/// A plugin that echoes the client's bytes, and ends after a dot.
static ECHO: Descriptor = Descriptor {
    name: "echo",
    phases: PhaseSet::of(&[Phase::Access]),
    build: |_| Ok(Arc::new(Echo)),
    ..Descriptor::BASE
};

struct Echo;

impl Plugin for Echo {
    fn access(&self, _: &mut Context, _: &Env<'_>) -> Step {
        Step::Takeover(Box::new(Reply::new(101).header("X-Echo", "1")), Box::new(QueuedPieces::default()))
    }
}

#[derive(Default)]
struct QueuedPieces {
    pieces: VecDeque<Chunk>,
    ended: bool,
    waker: Option<Waker>,
}

impl Takeover for QueuedPieces {
    fn poll_next(&mut self, task: &mut Task<'_>) -> Poll<io::Result<Option<Chunk>>> {
        match self.pieces.pop_front() {
            Some(piece) => Poll::Ready(Ok(Some(piece))),
            None if self.ended => Poll::Ready(Ok(None)),
            None => {
                self.waker = Some(task.waker().clone());
                Poll::Pending
            }
        }
    }

    fn poll_ready(&mut self, task: &mut Task<'_>) -> Poll<io::Result<()>> {
        if self.pieces.len() < 2 {
            return Poll::Ready(Ok(()));
        }
        self.waker = Some(task.waker().clone());
        Poll::Pending
    }

    fn take(&mut self, data: Chunk) {
        assert!(self.pieces.len() < 2, "it was not ready");
        self.ended |= data.ends_with(b".");
        self.pieces.push_back(data);
        self.waker.take().into_iter().for_each(Waker::wake);
    }
}

const HEAD: &[u8] = b"GET /echo HTTP/1.1\r\nHost: h\r\nConnection: upgrade\r\nUpgrade: echo\r\n\r\n";

/// Checks the client's view under any behaviour of the network.
pub(super) fn simulate(seed: u64) -> Result<(), String> {
    static SNAPSHOT: LazyLock<Arc<Snapshot>> = LazyLock::new(|| {
        let text = "listeners: [{address: \"127.0.0.1:80\"}]\n\
            routes:\n  - {id: a, uri: /echo, upgrade_protocols: [echo], plugins: {echo: {}}}\n  \
            - {id: b, uri: /closed, plugins: {echo: {}}}\n";
        compiled(text, Roster::new([Arc::new(ECHO) as Arc<dyn Kind>], None))
    });
    let world = World::new(seed);
    let (spawner, worker) = (Spawner::default(), serving(Arc::clone(&SNAPSHOT), seed));
    let calm = world.chance(50);
    let mood = Mood {
        piece: world.one_of(&[1, 100, 20_000]),
        delayed: world.one_of(&[0, 30]),
        room: world.one_of(&[1_000, 100_000]),
        breaks_at: (!calm).then(|| world.pick(0..60)),
    };
    let (near, far) = connection(&world, mood);
    let open = Open::default();
    let outcome = Rc::new(RefCell::new(Err("the client has not ended".to_owned())));
    spawner.spawn("connection".to_owned(), accepted(&worker, &open, Stream::Simulated(Box::new(near))));
    let told = Rc::clone(&outcome);
    let asks = world.clone();
    spawner.spawn("client".to_owned(), async move { *told.borrow_mut() = client(&asks, far, calm).await });
    let mut scheduler = Scheduler::new(&world, &spawner);
    scheduler.run("connection", FOR_EVER_MS, || worker.pools.borrow_mut().sweep(deadline::now_ms()))?;
    scheduler.run("client", 2 * STALL_MS, || {})?;
    outcome.borrow().clone()?;
    let count = |counter| worker.counters.get(counter);
    let (begun, ended) = (count(Counter::Requests), count(Counter::ExchangesEnded));
    match begun == ended && worker.connections() == 0 {
        true => Ok(()),
        false => Err(format!("begun {begun}, ended {ended}, open {}", worker.connections())),
    }
}

/// Sends bytes and receives them again; all of them in a calm network.
async fn client(world: &World, mut end: PeerEnd, calm: bool) -> Result<(), String> {
    let lets_through = world.chance(80);
    let head = if lets_through {
        HEAD.to_vec()
    } else {
        String::from_utf8_lossy(HEAD).replace("echo HTTP", "closed HTTP").into()
    };
    let length = world.one_of(&[1, 50, 5_000, 60_000]);
    let mut said: Vec<u8> = (0..length).map(|n| b'a' + (n % 26) as u8).collect();
    said.push(b'.');
    let mut heard = Vec::new();
    // Nothing is sent before the protocol has changed, and never more than the other side can hold.
    if end.write(&head).await.is_err() {
        return if calm { Err("the head was not taken".to_owned()) } else { Ok(()) };
    }
    let answer = loop {
        if let Some(at) = heard.windows(4).position(|four| four == b"\r\n\r\n") {
            break heard.drain(..at + 4).collect::<Vec<u8>>();
        }
        match end.read(&mut heard, 4_096).await {
            Ok(n) if n > 0 => {}
            _ if calm => return Err("there is no answer".to_owned()),
            _ => return Ok(()),
        }
    };
    let answer = String::from_utf8_lossy(&answer).to_lowercase();
    if !lets_through {
        let refused = answer.starts_with("http/1.1 501");
        return if refused { Ok(()) } else { Err(format!("a route that lets nothing through: {answer}")) };
    }
    for field in ["http/1.1 101", "upgrade: echo", "connection: upgrade", "x-echo: 1"] {
        if !answer.contains(field) {
            return Err(format!("no {field} in {answer}"));
        }
    }
    for part in said.chunks(700) {
        let before = heard.len();
        if end.write(part).await.is_err() {
            return if calm { Err("it was not taken".to_owned()) } else { Ok(()) };
        }
        while heard.len() < before + part.len() {
            match end.read(&mut heard, 4_096).await {
                Ok(n) if n > 0 => {}
                _ if calm => return Err(format!("{} of {} bytes were heard", heard.len(), said.len())),
                _ => return if said.starts_with(&heard) { Ok(()) } else { Err("other bytes".to_owned()) },
            }
        }
    }
    let mut more = Vec::new();
    match (heard == said, end.read(&mut more, 1).await) {
        (false, _) => Err("other bytes came back than were said".to_owned()),
        (true, Ok(0)) => Ok(()),
        (true, Err(_)) if !calm => Ok(()),
        (true, other) => Err(format!("the tunnel goes on: {other:?}")),
    }
}
