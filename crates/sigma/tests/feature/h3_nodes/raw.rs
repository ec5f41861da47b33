//! A node whose HTTP/3 is written byte by byte, for ends that a proper server does not have.

use std::cell::Cell;
use std::future::poll_fn;
use std::net::UdpSocket;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::channel;

use sigma_net::quic::{
    Connection, ConnectionOwner, Dir, Endpoint, EndpointOptions, Identities, IncomingStream, Neighbours,
    QuicKeys, QuicLimits, RecvStream, SendStream,
};
use sigma_net::tls::pem::Pair;
use sigma_net::tls::{Identity, Offer, Resumption, ServerIdentity, Versions};
use tokio::sync::oneshot;
use tokio::task::{LocalSet, spawn_local};

use crate::tls::Issued;

/// Codes of RFC 9114 §8.1.
const INTERNAL_ERROR: u64 = 0x102;
const REQUEST_REJECTED: u64 = 0x10b;
const NO_ERROR: u64 = 0x100;

/// The treatment of a request.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Act {
    /// 200 with this body, after the whole request.
    Respond(&'static str),
    /// 200 with a trailer `x-end: yes`, after the whole request.
    Trailer,
    /// 200 at once; the rest of the request is not wanted.
    Early,
    /// A reset that says that the request was not processed.
    Reject,
    /// A reset.
    Reset,
    /// 200, a part of the body, and a reset.
    Cut,
    /// GOAWAY that excludes this request; earlier ones end in their time.
    Leave,
    /// No response at all.
    Hang,
    /// No further packet.
    Vanish,
}

/// A node; it ends with the test.
pub(crate) struct RawNode {
    pub(crate) port: u16,
    pub(crate) connections: Arc<AtomicUsize>,
    pub(crate) requests: Arc<AtomicUsize>,
    _end: oneshot::Sender<()>,
}

struct Shown(Arc<ServerIdentity>);

impl Identities for Shown {
    fn choose(&self, _name: Option<&str>) -> Option<Arc<ServerIdentity>> {
        Some(Arc::clone(&self.0))
    }
}

impl RawNode {
    /// Starts a node with this certificate; `script` returns the treatment of each request, counted from 0.
    pub(crate) fn start(
        issued: &Issued,
        streams: u32,
        script: impl Fn(usize) -> Act + Send + 'static,
    ) -> RawNode {
        RawNode::start_on(UdpSocket::bind("127.0.0.1:0").unwrap(), issued, streams, script)
    }

    /// The same on a socket.
    pub(crate) fn start_on(
        socket: UdpSocket,
        issued: &Issued,
        streams: u32,
        script: impl Fn(usize) -> Act + Send + 'static,
    ) -> RawNode {
        let port = socket.local_addr().unwrap().port();
        let (connections, requests): (Arc<AtomicUsize>, Arc<AtomicUsize>) = Default::default();
        let pair = Pair::parse(&issued.cert, &issued.key, None).unwrap();
        let counts = (Arc::clone(&connections), Arc::clone(&requests));
        let (end, ended) = oneshot::channel();
        let (ready, is_ready) = channel();
        std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            LocalSet::new().block_on(&runtime, async {
                tokio::select! {
                    () = sigma_net::deadline::drive(|_| 1) => {}
                    () = serve(socket, streams, pair, script, counts, ready) => {}
                    _ = ended => {}
                }
            });
        });
        is_ready.recv().unwrap();
        RawNode { port, connections, requests, _end: end }
    }
}

async fn serve(
    socket: UdpSocket,
    streams: u32,
    pair: Pair,
    script: impl Fn(usize) -> Act + 'static,
    (connections, requests): (Arc<AtomicUsize>, Arc<AtomicUsize>),
    ready: std::sync::mpsc::Sender<()>,
) {
    let identity = Identity {
        pairs: vec![pair],
        versions: Versions::ONLY_13,
        offer: Offer::default(),
        client_auth: None,
        resumption: Resumption::Off,
    };
    let shown = Arc::new(Shown(Arc::new(ServerIdentity::new(identity).unwrap())));
    let options = EndpointOptions {
        keys: Arc::new(QuicKeys::random().unwrap()),
        place: ConnectionOwner { generation: 0, worker: 0 },
        neighbours: Arc::new(Neighbours::new(1)),
        steering: None,
        limits: QuicLimits { streams, ..QuicLimits::default() },
    };
    let endpoint = Endpoint::server(socket.into(), options).unwrap();
    let is_gone = Rc::new(Cell::new(false));
    let (driven, gone) = (endpoint.clone(), Rc::clone(&is_gone));
    spawn_local(async move {
        let mut run = std::pin::pin!(driven.run());
        poll_fn(|cx| match gone.get() {
            true => std::task::Poll::Pending,
            false => run.as_mut().poll(cx).map(drop),
        })
        .await;
    });
    ready.send(()).unwrap();
    let script = Rc::new(script);
    while let Some(arrival) = endpoint.next().await {
        let Ok(connection) = arrival.accept(shown.clone(), &Offer::default()).await else { continue };
        connections.fetch_add(1, Ordering::SeqCst);
        let (script, requests, is_gone) = (Rc::clone(&script), Arc::clone(&requests), Rc::clone(&is_gone));
        spawn_local(converse(connection, move || script(requests.fetch_add(1, Ordering::SeqCst)), is_gone));
    }
}

async fn converse(connection: Connection, next: impl Fn() -> Act, is_gone: Rc<Cell<bool>>) {
    let mut control = poll_fn(|cx| connection.poll_open_uni(cx)).await.unwrap();
    // A control stream with empty SETTINGS.
    control.put(vec![0x00, 0x04, 0x00]);
    let mut theirs = Vec::new();
    loop {
        let stream = tokio::select! {
            stream = poll_fn(|cx| connection.poll_accept(cx, Dir::Uni)) => stream,
            stream = poll_fn(|cx| connection.poll_accept(cx, Dir::Bi)) => stream,
        };
        match stream {
            Ok(IncomingStream { id, send: Some(send), recv, .. }) => match next() {
                Act::Leave => {
                    // Ids of requests are multiples of four; these are small.
                    control.put(vec![0x07, 0x01, u8::try_from(id.index() * 4).unwrap()]);
                    theirs.push((Some(send), recv));
                }
                Act::Hang => theirs.push((Some(send), recv)),
                Act::Vanish => {
                    is_gone.set(true);
                    theirs.push((Some(send), recv));
                }
                act => drop(spawn_local(respond(act, send, recv))),
            },
            Ok(IncomingStream { send: None, recv, .. }) => theirs.push((None, recv)),
            Err(_) => return,
        }
    }
}

/// A HEADERS frame with `:status: 200` of QPACK's static table.
const OK: &[u8] = &[0x01, 0x03, 0x00, 0x00, 0xd9];

/// A HEADERS frame with the literal `x-end: yes`.
const TRAILERS: &[u8] = b"\x01\x0c\x00\x00\x25x-end\x03yes";

async fn respond(act: Act, mut send: SendStream, mut recv: RecvStream) {
    let whole = async |recv: &mut RecvStream| {
        while let Ok(Some(_)) = poll_fn(|cx| recv.poll_bytes(cx, 64 * 1024)).await {}
    };
    match act {
        Act::Respond(body) => {
            whole(&mut recv).await;
            send.put(OK.to_vec());
            send.put(vec![0x00, u8::try_from(body.len()).unwrap()]);
            send.put(body.as_bytes().to_vec());
            send.finish();
        }
        Act::Trailer => {
            whole(&mut recv).await;
            send.put(OK.to_vec());
            send.put(b"\x00\x02hi".to_vec());
            send.put(TRAILERS.to_vec());
            send.finish();
        }
        Act::Early => {
            send.put(OK.to_vec());
            send.put(b"\x00\x05early".to_vec());
            send.finish();
            recv.stop(NO_ERROR);
        }
        Act::Reject => {
            send.reset(REQUEST_REJECTED);
            recv.stop(REQUEST_REJECTED);
        }
        Act::Cut => {
            send.put(OK.to_vec());
            send.put(b"\x00\x3fpart".to_vec());
            // The reset must not overtake the part.
            poll_fn(|cx| recv.poll_bytes(cx, 64 * 1024)).await.unwrap();
            tokio::task::yield_now().await;
            send.reset(INTERNAL_ERROR);
        }
        _ => send.reset(INTERNAL_ERROR),
    }
    // A body of the other direction ends with the handle.
    let _ = poll_fn(|cx| send.poll_stopped(cx)).await;
}
