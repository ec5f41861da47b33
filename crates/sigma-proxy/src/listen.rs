//! Accept: from a listening socket to exchanges, one task per connection.

use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use sigma_config::settings::ListenAddress;
use sigma_http::Chunk;
use sigma_net::{Listening, Stream, deadline};
use sigma_wire::h2::wire::FloodLimits;

use tokio::sync::Notify;

use crate::admit::{Admitted, admit};
use crate::downstream::h1::{NoRequest, Server, ServerLimits};
use crate::downstream::h2::{self, SessionLimits};
use crate::downstream::{Downstream, Origin};
use crate::exchange;
use crate::snapshot::edge::Terms;
use crate::worker::Worker;

/// Pause after a failed accept: the usual reason, no free file descriptor, needs time to pass.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Accepts until told to stop; then takes what the kernel has queued, so that no client that was let
/// in is shut out, and ends. `address` and `name` are the listener's in the settings.
pub(crate) async fn accept_loop(
    worker: Rc<Worker>,
    listening: Rc<Listening>,
    address: ListenAddress,
    name: Option<String>,
    stop: Rc<Notify>,
) {
    let fixed_addr = listening.fixed_addr();
    let open = Open::default();
    let mut crowded = false;
    loop {
        wait_for_room(&worker).await;
        if std::mem::take(&mut crowded) {
            wait_for_descriptors(&worker, &listening).await;
        }
        let accepted = tokio::select! {
            biased;
            accepted = listening.accept() => accepted,
            () = stop.notified() => return,
        };
        match accepted {
            Ok((stream, peer)) => {
                crowded = stream.is_last_for_clients();
                let view = worker.view();
                let listener = view.snapshot.listener_number(name.as_deref());
                let local = fixed_addr.or_else(|| stream.local_addr());
                let entered = Entered(Rc::clone(&worker));
                let origin = Origin { peer, local, listener, connection: worker.enter() };
                let open = Rc::clone(&open.0);
                match view.snapshot.terms(&address).cloned() {
                    None => {
                        let admitted = Admitted { stream, early: Chunk::empty(), origin };
                        tokio::task::spawn_local(serve(entered, admitted, open));
                    }
                    Some(terms) => {
                        tokio::task::spawn_local(serve_on_terms(entered, stream, origin, terms, open));
                    }
                }
            }
            Err(error) if is_peers_fault(&error) => {}
            Err(error) => {
                tracing::warn!(%error, "cannot accept a connection; pausing");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

/// The connection ended before it was accepted; nothing is wrong here.
fn is_peers_fault(error: &std::io::Error) -> bool {
    use std::io::ErrorKind::{ConnectionAborted, ConnectionReset, InvalidInput, NotConnected};
    matches!(error.kind(), ConnectionAborted | ConnectionReset | InvalidInput | NotConnected)
}

async fn wait_for_room(worker: &Worker) {
    while worker.connections() >= worker.view().snapshot.settings.limits.connections_per_worker {
        worker.released.notified().await;
    }
}

/// Clients leave descriptors to others: to connections to nodes, to operators, to health checks.
async fn wait_for_descriptors(worker: &Worker, listening: &Listening) {
    if listening.has_room() {
        return;
    }
    tracing::warn!(
        "clients have all descriptors that they may have; those that come now wait (RLIMIT_NOFILE)"
    );
    while !listening.has_room() {
        // What other workers give back is not told to this one.
        tokio::select! {
            () = worker.released.notified() => {}
            () = tokio::time::sleep(ACCEPT_PAUSE) => {}
        }
    }
}

/// Counts a connection out however its task ends, a panic included.
struct Entered(Rc<Worker>);

impl Drop for Entered {
    fn drop(&mut self) {
        self.0.leave();
    }
}

/// Whether a listener still accepts; its connections ask.
struct Open(Rc<Cell<bool>>);

impl Default for Open {
    fn default() -> Open {
        Open(Rc::new(Cell::new(true)))
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        self.0.set(false);
        // Those that idle have to look.
        deadline::wake_all();
    }
}

/// A connection that has to go through something before it is served.
async fn serve_on_terms(
    entered: Entered,
    stream: Stream,
    origin: Origin,
    terms: Arc<Terms>,
    open: Rc<Cell<bool>>,
) {
    // Boxed, so that what a handshake takes is free again when it is over.
    let admitted = Box::pin(admit(&entered.0, stream, origin, &terms)).await;
    drop(terms);
    let Some(admitted) = admitted else { return };
    if admitted.stream.tls().is_some_and(|facts| facts.alpn.as_deref() == Some(b"h2")) {
        Box::pin(multiplexed(entered, admitted, open)).await;
    } else {
        Box::pin(serve(entered, admitted, open)).await;
    }
}

/// Serves a connection that begins with HTTP/1.
fn serve(entered: Entered, admitted: Admitted, open: Rc<Cell<bool>>) -> impl Future<Output = ()> {
    let Admitted { stream, early, origin } = admitted;
    let limits = Rc::clone(&entered.0.view().server_limits);
    converse(Box::new(Conversation { server: Server::new(stream, early, origin, limits), entered, open }))
}

/// What an HTTP/1 connection is, in one piece, so that its task holds no more than a pointer to it.
struct Conversation {
    server: Server,
    entered: Entered,
    open: Rc<Cell<bool>>,
}

async fn converse(mut conversation: Box<Conversation>) {
    let Conversation { server, entered: Entered(worker), .. } = &mut *conversation;
    while server.wait(|| worker.is_draining()).await.is_ok() {
        if server.may_be_preface() && Box::pin(server.is_preface()).await {
            let Conversation { server, entered, open } = *conversation;
            let (stream, early, origin) = server.into_parts();
            return Box::pin(multiplexed(entered, Admitted { stream, early, origin }, open)).await;
        }
        // Boxed, so that an idle connection's task does not hold room for an exchange.
        Box::pin(exchange(worker, server)).await;
        if !server.is_between_requests() {
            Box::pin(server.discard_rest()).await;
        }
        if !server.continues() {
            break;
        }
    }
    if server.has_farewell() {
        Box::pin(server.close()).await;
    }
}

/// A connection that turned out to carry streams.
async fn multiplexed(entered: Entered, admitted: Admitted, open: Rc<Cell<bool>>) {
    let Admitted { stream, early, origin } = admitted;
    let worker = Rc::clone(&entered.0);
    let limits = session_limits(&worker);
    let stopping = Rc::clone(&worker);
    let closing = move || stopping.is_draining() || !open.get();
    h2::serve(worker, (stream, early), origin, limits, closing, Rc::new(entered)).await;
}

async fn exchange(worker: &Worker, server: &mut Server) {
    let mut scratch = worker.take_scratch();
    match server.read_head(&mut scratch.cx.request).await {
        Ok(()) => exchange::run(worker, Downstream::H1(server), &mut scratch).await,
        Err(NoRequest::Refused(fault)) => {
            exchange::refuse(worker, Downstream::H1(server), &mut scratch, fault).await;
        }
        Err(NoRequest::Closed) => Downstream::H1(server).abort(),
    }
    worker.give_scratch(scratch);
}

/// The limits in force when the connection was accepted, for one with streams.
fn session_limits(worker: &Worker) -> SessionLimits {
    let view = worker.view();
    let settings = &view.snapshot.settings;
    let (limits, timeouts, http2) = (&settings.limits, &settings.timeouts, &settings.http2);
    let ServerLimits { head, body_bytes, requests, head_ms, idle_ms } =
        ServerLimits::clone(&view.server_limits);
    SessionLimits {
        head,
        body_bytes,
        requests,
        head_ms,
        idle_ms,
        send_ms: timeouts.response_send_ms.into(),
        streams: http2.concurrent_streams,
        header_list_bytes: http2.header_list_bytes,
        frame_bytes: http2.frame_bytes,
        stream_window_bytes: http2.stream_window_bytes,
        connection_window_bytes: http2.connection_window_bytes,
        send_buffer_bytes: limits.exchange_buffer_bytes as usize,
        pending_resets: http2.pending_resets as usize,
        flood: FloodLimits {
            resets_per_minute: http2.resets_per_minute,
            controls_per_second: http2.control_frames_per_second,
        },
    }
}

#[cfg(test)]
mod simulation;

#[cfg(test)]
mod tests {
    use super::*;

    /// The room that the future of a function with these arguments takes.
    fn room<'a, F: Future>(_: fn(&'a Worker, &'a mut Server) -> F) -> usize {
        size_of::<F>()
    }

    /// Nine thousand idle connections are nine thousand of these: the runtime rounds a task up to 256
    /// bytes, a hundred or so of which are its own, and the allocator has a size of 384.
    #[test]
    fn an_idle_connection_stays_small() {
        fn task<F: Future>(_: fn(Box<Conversation>) -> F) -> usize {
            size_of::<F>()
        }
        assert!(task(converse) <= 128, "{} bytes", task(converse));
        assert!(size_of::<Conversation>() <= 384, "{} bytes", size_of::<Conversation>());
    }

    /// It is moved into its box once for every request: what is seldom needed has a box of its own.
    #[test]
    fn an_exchange_needs_little_room() {
        assert!(room(exchange) <= 1400, "{} bytes", room(exchange));
    }
}
