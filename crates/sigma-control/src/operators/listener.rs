//! One listener for operators: how many connections it holds, and how long it waits for them.
//!
//! Everything here is about peers that have not shown a key yet. A connection without a request in
//! hand makes room for a new one at the limit, so that connections which are only held open do not
//! keep an operator out.

use std::collections::HashMap;
use std::io;
use std::net::SocketAddr;
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes, HttpBody};
use axum::extract::{ConnectInfo, Request};
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use http_body_util::BodyExt;
use hyper::body::{Frame, Incoming, SizeHint};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use serde_json::json;
use sigma_config::settings::Operators;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Notify, Semaphore, watch};
use tokio::time::{Instant, Sleep};
use tower_service::Service;

use super::entrances::{Call, Entrances};
use super::identity::{Caller, Identity};

/// How soon a full listener looks again for a connection that may make room.
const LOOK_AGAIN: Duration = Duration::from_millis(100);
/// The least that hyper takes; the settings allow no less.
const HEAD_BYTES_MIN: usize = 8192;
/// The pause after the system would not give a connection, mostly for want of descriptors.
const AFTER_FAILURE: Duration = Duration::from_millis(100);

/// Serves `router` until the process ends.
pub(crate) async fn accept(
    listener: TcpListener,
    router: Router,
    limits: Arc<Operators>,
    identity: Option<Arc<Identity>>,
    entrances: Arc<Entrances>,
) {
    let room = Arc::new(Semaphore::new(usize::from(limits.connections)));
    let open = Arc::new(Open::default());
    let mut is_open = entrances.open();
    loop {
        let (stream, peer) = match accept_while_open(&listener, &mut is_open).await {
            Ok(accepted) => accepted,
            Err(error) => {
                tracing::debug!(%error, "cannot accept an operator's connection");
                tokio::time::sleep(AFTER_FAILURE).await;
                continue;
            }
        };
        if identity.as_ref().is_some_and(|identity| !identity.admits(peer.ip())) {
            tracing::debug!(%peer, "this address is not allowed; add it to admin.allow");
            continue;
        }
        let place = loop {
            if let Ok(place) = Arc::clone(&room).try_acquire_owned() {
                break place;
            }
            open.dismiss_one();
            if let Ok(Ok(place)) = tokio::time::timeout(LOOK_AGAIN, Arc::clone(&room).acquire_owned()).await {
                break place;
            }
        };
        let (router, limits, open) = (router.clone(), Arc::clone(&limits), Arc::clone(&open));
        let (identity, entrances) = (identity.clone(), Arc::clone(&entrances));
        tokio::spawn(async move {
            let (number, connection) = open.add(entrances);
            serve(stream, peer, identity.as_ref(), router, &limits, &connection).await;
            open.remove(number);
            drop(place);
        });
    }
}

/// The next connection; none while a successor takes over.
async fn accept_while_open(
    listener: &TcpListener,
    is_open: &mut watch::Receiver<bool>,
) -> io::Result<(TcpStream, SocketAddr)> {
    loop {
        until(is_open, true).await;
        tokio::select! {
            biased;
            () = until(is_open, false) => {}
            accepted = listener.accept() => return accepted,
        }
    }
}

/// Waits until connections are accepted, or are not; forever once the sender is gone.
async fn until(is_open: &mut watch::Receiver<bool>, wanted: bool) {
    if is_open.wait_for(|is_open| *is_open == wanted).await.is_err() {
        std::future::pending().await
    }
}

/// The connections of a listener, by the order in which they came.
#[derive(Default)]
struct Open(Mutex<(u64, HashMap<u64, Arc<Connection>>)>);

impl Open {
    fn lock(&self) -> MutexGuard<'_, (u64, HashMap<u64, Arc<Connection>>)> {
        // Nothing that holds the lock can leave the map half changed.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn add(&self, entrances: Arc<Entrances>) -> (u64, Arc<Connection>) {
        let connection = Arc::new(Connection::new(entrances));
        let mut open = self.lock();
        open.0 += 1;
        let number = open.0;
        open.1.insert(number, Arc::clone(&connection));
        (number, connection)
    }

    fn remove(&self, number: u64) {
        self.lock().1.remove(&number);
    }

    /// Ends the connection that has been without a request longest, if there is one.
    fn dismiss_one(&self) {
        let open = self.lock();
        let idle = open.1.values().filter(|connection| connection.requests.load(Ordering::Acquire) == 0);
        if let Some(longest) = idle.min_by_key(|connection| connection.since()) {
            longest.dismissed.notify_one();
        }
    }
}

/// State of one connection.
struct Connection {
    /// In hand: from their heads to the last bytes of their responses.
    requests: AtomicUsize,
    idle_since: Mutex<Instant>,
    dismissed: Notify,
    entrances: Arc<Entrances>,
}

impl Connection {
    fn new(entrances: Arc<Entrances>) -> Connection {
        Connection {
            requests: AtomicUsize::new(0),
            idle_since: Mutex::new(Instant::now()),
            dismissed: Notify::new(),
            entrances,
        }
    }

    fn since(&self) -> Instant {
        *self.idle_since.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A request in hand.
struct InHand {
    connection: Arc<Connection>,
    _call: Call,
}

impl InHand {
    fn of(connection: &Arc<Connection>) -> InHand {
        connection.requests.fetch_add(1, Ordering::AcqRel);
        InHand { connection: Arc::clone(connection), _call: connection.entrances.call() }
    }
}

impl Drop for InHand {
    fn drop(&mut self) {
        *self.connection.idle_since.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now();
        self.connection.requests.fetch_sub(1, Ordering::AcqRel);
    }
}

async fn serve(
    stream: TcpStream,
    peer: SocketAddr,
    identity: Option<&Arc<Identity>>,
    router: Router,
    limits: &Operators,
    connection: &Arc<Connection>,
) {
    let stream = Patient::new(stream, Duration::from_millis(limits.stall_timeout_ms.into()));
    let head_time = Duration::from_millis(limits.head_timeout_ms.into());
    let serving = async {
        let Some(identity) = identity else {
            return converse(stream, peer, None, router, limits, connection).await;
        };
        match tokio::time::timeout(head_time, identity.shake(stream)).await {
            Ok(Ok((stream, caller))) => {
                converse(stream, peer, Some(caller), router, limits, connection).await;
            }
            Ok(Err(error)) => tracing::debug!(%peer, error, "an operator's TLS handshake failed"),
            Err(_) => tracing::debug!(%peer, "an operator's TLS handshake timed out"),
        }
    };
    tokio::select! {
        () = serving => {}
        () = connection.dismissed.notified() => {
            tracing::debug!(%peer, "closed an idle connection of an operator to make room for another");
        }
    }
}

/// Responds to the calls of a connection.
async fn converse(
    stream: impl AsyncRead + AsyncWrite + Unpin,
    peer: SocketAddr,
    caller: Option<Caller>,
    router: Router,
    limits: &Operators,
    connection: &Arc<Connection>,
) {
    let linger = Linger {
        bytes: u64::from(limits.linger_bytes),
        time: Duration::from_millis(limits.body_timeout_ms.into()),
    };
    let certificate = caller.as_ref().and_then(Caller::certificate);
    let service = service_fn(|request: hyper::Request<Incoming>| {
        let in_hand = InHand::of(connection);
        let mut router = router.clone();
        let mut request: Request = request_with(request, linger);
        request.extensions_mut().insert(ConnectInfo(peer));
        if let Some(certificate) = certificate.clone() {
            request.extensions_mut().insert(certificate);
        }
        let may_call = caller.as_ref().is_none_or(Caller::may_call);
        async move {
            let answer = if may_call { router.call(request).await } else { Ok(shut_out()) };
            answer.map(|answer| {
                answer.map(|body| {
                    body.map_frame(move |frame| {
                        // Held until the last part of the response is taken.
                        let InHand { .. } = &in_hand;
                        frame
                    })
                })
            })
        }
    });
    let serving = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(Duration::from_millis(limits.head_timeout_ms.into()))
        .max_buf_size((limits.head_bytes as usize).max(HEAD_BYTES_MIN))
        .serve_connection(TokioIo::new(stream), service);
    let mut serving = pin!(serving);
    let mut is_open = connection.entrances.open();
    let served = tokio::select! {
        served = serving.as_mut() => served,
        () = until(&mut is_open, false) => {
            // The next call is to find the successor.
            serving.as_mut().graceful_shutdown();
            serving.await
        }
    };
    if let Err(error) = served {
        tracing::debug!(%peer, %error, "an operator's connection ended");
    }
}

/// The response to who shook hands under other authorities than those that count now.
fn shut_out() -> Response {
    let message = "the client certificate of this connection is no longer trusted; check admin.tls.client_ca";
    let mut answer =
        (StatusCode::FORBIDDEN, axum::body::Body::from(json!({ "error_msg": message }).to_string()))
            .into_response();
    answer.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    answer.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
    answer
}

/// Limits for reading the rest of an unwanted body.
#[derive(Clone, Copy)]
struct Linger {
    bytes: u64,
    time: Duration,
}

fn request_with(request: hyper::Request<Incoming>, linger: Linger) -> Request {
    let waits = request.headers().contains_key(header::EXPECT);
    request.map(|body| Body::new(Lingering { body: Some(body), linger, is_wanted: !waits }))
}

/// A request's body that is read to its end though the call was answered before: a client that
/// still writes would find its connection reset, and could not read why.
struct Lingering {
    body: Option<Incoming>,
    linger: Linger,
    /// A client that waits for `100 Continue` sends nothing before it was asked to.
    is_wanted: bool,
}

impl HttpBody for Lingering {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        self.is_wanted = true;
        match &mut self.body {
            Some(body) => Pin::new(body).poll_frame(cx),
            None => Poll::Ready(None),
        }
    }

    fn is_end_stream(&self) -> bool {
        self.body.as_ref().is_none_or(HttpBody::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        self.body.as_ref().map(HttpBody::size_hint).unwrap_or_default()
    }
}

impl Drop for Lingering {
    fn drop(&mut self) {
        let Some(mut body) = self.body.take().filter(|body| self.is_wanted && !body.is_end_stream()) else {
            return;
        };
        // None while the process ends.
        let Ok(runtime) = tokio::runtime::Handle::try_current() else { return };
        let Linger { bytes, time } = self.linger;
        runtime.spawn(async move {
            let read_on = async {
                let mut left = bytes;
                while let Some(Ok(frame)) = body.frame().await {
                    let read = frame.data_ref().map_or(0, |data| data.len() as u64);
                    match left.checked_sub(read) {
                        Some(less) => left = less,
                        None => return,
                    }
                }
            };
            // Complete or not, the rest is dropped.
            drop(tokio::time::timeout(time, read_on).await);
        });
    }
}

/// A connection whose peer has to read written data in time.
struct Patient {
    stream: TcpStream,
    limit: Duration,
    /// When the peer has to have taken something; None while it takes.
    stalled: Option<Pin<Box<Sleep>>>,
}

impl Patient {
    fn new(stream: TcpStream, limit: Duration) -> Patient {
        Patient { stream, limit, stalled: None }
    }

    fn wrote(&mut self, cx: &mut Context<'_>, written: Poll<io::Result<usize>>) -> Poll<io::Result<usize>> {
        if written.is_ready() {
            self.stalled = None;
            return written;
        }
        let limit = self.limit;
        let stalled = self.stalled.get_or_insert_with(|| Box::pin(tokio::time::sleep(limit)));
        ready!(stalled.as_mut().poll(cx));
        Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, "the peer does not read its response")))
    }
}

impl AsyncRead for Patient {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        pin!(&mut self.stream).poll_read(cx, buffer)
    }
}

impl AsyncWrite for Patient {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let written = pin!(&mut self.stream).poll_write(cx, bytes);
        self.wrote(cx, written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = pin!(&mut self.stream).poll_write_vectored(cx, parts);
        self.wrote(cx, written)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        pin!(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        pin!(&mut self.stream).poll_shutdown(cx)
    }
}
