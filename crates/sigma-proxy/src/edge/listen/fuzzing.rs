//! Properties of whole exchanges: a function for the target in `fuzz/`, which panics where one is violated. One second
//! reader ([`strict`]), which shares no line with the gateway, reads the bytes of the client and the bytes at nodes. A node
//! has to see the requests that the gateway has judged, each with its method, target, host and body, in their order, and
//! nothing between them.

mod strict;

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use sigma_net::Stream;
use sigma_net::simulation::Wire;
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};
use tokio::task::{LocalSet, spawn_local};

use self::strict::Request;
use super::Open;
use super::made_up::{accepted, compiled, serving};
use crate::snapshot::Snapshot;

/// Unread bytes between two ends.
const BUFFER: usize = 1 << 16;

/// By then all of it has ended or waits: nothing here is further away than memory.
const PATIENCE: Duration = Duration::from_millis(100);

const ANSWER: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n";

/// The requests at nodes.
#[derive(Default)]
struct Seen {
    requests: Vec<Request>,
    broken: Option<&'static str>,
}

/// The bytes of a client on one connection.
pub fn exchange(input: &[u8]) {
    static SNAPSHOT: LazyLock<Arc<Snapshot>> = LazyLock::new(|| {
        let text = "listeners: [{address: \"127.0.0.1:80\"}]\n\
            routes: [{id: r, uri: /*, upstream: {nodes: [{host: 10.0.0.1, port: 9000, weight: 1}]}}]\n";
        compiled(text, sigma_plugin::Roster::new([], None))
    });
    let Ok(runtime) = tokio::runtime::Builder::new_current_thread().enable_all().build() else { return };
    let seen = Rc::new(RefCell::new(Seen::default()));
    LocalSet::new().block_on(&runtime, async {
        let at_node = Rc::clone(&seen);
        let _network = sigma_net::simulation::enter(move |_| {
            let (near, far) = duplex(BUFFER);
            spawn_local(node(far, Rc::clone(&at_node)));
            Box::pin(async move { Ok(Box::new(near) as Box<dyn Wire>) })
        });
        let worker = serving(Arc::clone(&SNAPSHOT), 1);
        let (near, far) = duplex(BUFFER);
        let gateway = accepted(&worker, &Open::default(), Stream::Simulated(Box::new(near)));
        let client = client(far, input.to_vec());
        let all = async { tokio::join!(gateway, client) };
        // A side that waits for the other one has said all that it will.
        let _ = tokio::time::timeout(PATIENCE, all).await;
        worker.pools.borrow_mut().clear();
    });
    let seen = seen.borrow();
    assert_eq!(seen.broken, None, "a node gets an invalid message");
    if input.starts_with(b"PRI * HTTP/2") {
        return;
    }
    let sent = strict::all(input);
    // The gateway may refuse a request and serve the next one.
    let mut rest = sent.iter();
    for request in &seen.requests {
        assert!(
            rest.any(|sent| sent.is_forwarded_as(request)),
            "a node got {request:?}, and the client sent {sent:?} in {}",
            input.escape_ascii()
        );
    }
}

async fn client(mut far: DuplexStream, input: Vec<u8>) {
    // The gateway may have ended before.
    let _ = far.write_all(&input).await;
    let _ = far.shutdown().await;
    let mut answers = Vec::new();
    let _ = far.read_to_end(&mut answers).await;
}

async fn node(mut far: DuplexStream, seen: Rc<RefCell<Seen>>) {
    let (mut bytes, mut is_asked) = (Vec::new(), false);
    loop {
        match strict::read(&bytes) {
            Err(why) => {
                seen.borrow_mut().broken.get_or_insert(why);
                return;
            }
            Ok(Some((request, length))) => {
                bytes.drain(..length);
                is_asked = false;
                seen.borrow_mut().requests.push(request);
                if far.write_all(ANSWER).await.is_err() {
                    return;
                }
                continue;
            }
            Ok(None) => {}
        }
        if !is_asked && strict::waits(&bytes) {
            is_asked = true;
            if far.write_all(b"HTTP/1.1 100 Continue\r\n\r\n").await.is_err() {
                return;
            }
        }
        if !matches!(far.read_buf(&mut bytes).await, Ok(1..)) {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn it_holds_for_the_seeds() {
        sigma_testkit::for_inputs_of("exchange", super::exchange);
    }
}
