//! Accept: from a listening socket to exchanges, one task per connection.

use std::rc::Rc;
use std::time::Duration;

use sigma_http::h1::HeadLimits;
use sigma_net::{Listening, Stream};

use crate::downstream::h1::{NoRequest, Server, ServerLimits};
use crate::downstream::{Downstream, Origin};
use crate::exchange;
use crate::worker::Worker;

/// Pause after a failed accept: the usual reason, no free file descriptor, needs time to pass.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Accepts until the task is aborted.
pub(crate) async fn accept_loop(worker: Rc<Worker>, listening: Listening, name: Option<String>) {
    let fixed_addr = listening.fixed_addr();
    loop {
        wait_for_room(&worker).await;
        match listening.accept().await {
            Ok((stream, peer)) => {
                let listener = worker.view().snapshot.listener_number(name.as_deref());
                let local = fixed_addr.or_else(|| stream.local_addr());
                let origin = Origin { peer, local, listener, connection: 0 };
                tokio::task::spawn_local(serve(Rc::clone(&worker), stream, origin));
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

/// Counts a connection out however its task ends, a panic included.
struct Entered(Rc<Worker>);

impl Drop for Entered {
    fn drop(&mut self) {
        self.0.leave();
    }
}

async fn serve(worker: Rc<Worker>, stream: Stream, origin: Origin) {
    let connection = worker.enter();
    let entered = Entered(worker);
    let worker = &entered.0;
    let origin = Origin { connection, ..origin };
    let limits = server_limits(worker);
    let mut server = Box::new(Server::new(stream, origin, limits));
    while server.wait(|| worker.is_draining()).await.is_ok() {
        // Boxed, so that an idle connection's task does not hold room for an exchange.
        Box::pin(exchange(worker, &mut server)).await;
        if !server.is_between_requests() {
            Box::pin(server.discard_rest()).await;
        }
        if !server.continues() {
            Box::pin(server.close()).await;
            return;
        }
    }
}

async fn exchange(worker: &Worker, server: &mut Server) {
    let mut scratch = worker.take_scratch();
    match server.read_head(&mut scratch.request).await {
        Ok(()) => exchange::run(worker, Downstream::H1(server), &mut scratch).await,
        Err(NoRequest::Refused(fault)) => {
            exchange::refuse(worker, Downstream::H1(server), &mut scratch, fault).await;
        }
        Err(NoRequest::Closed) => Downstream::H1(server).abort(),
    }
    worker.give_scratch(scratch);
}

/// The limits in force when the connection was accepted; they last as long as it does.
fn server_limits(worker: &Worker) -> ServerLimits {
    let view = worker.view();
    let (limits, timeouts) = (&view.snapshot.settings.limits, &view.snapshot.settings.timeouts);
    ServerLimits {
        head: HeadLimits {
            line_bytes: limits.request_line_bytes as usize,
            head_bytes: limits.request_head_bytes as usize,
            fields: usize::from(limits.request_headers),
        },
        body_bytes: limits.request_body_bytes,
        requests: limits.keepalive_requests,
        head_ms: timeouts.request_head_ms.into(),
        idle_ms: timeouts.keepalive_ms.into(),
    }
}
