//! Sessions of protocols that the gateway does not speak: bytes over TCP or datagrams, from a listener with
//! `stream` to a node and back, as stream routes say.
//!
//! | file | what it does |
//! |---|---|
//! | `entrance` | everything before a node is chosen: PROXY header, TLS, plugins |
//! | `guarded` | the guards of the upstream, and the wait for a place |
//! | `carriage` | the node, by the rules of attempts, and the bytes to and from it |
//! | `trust` | whether the client of an open session would still be let in |
//! | `relay` | moves bytes both ways |
//! | `udp` | sessions of datagrams: who is in one, and their way; the rest they share with the others |
//! | `finish` | the end: counters, plugins that log, the access line |

mod carriage;
mod entrance;
mod finish;
mod guarded;
mod relay;
mod trust;
pub(crate) mod udp;

use std::sync::Arc;
use std::time::Instant;

use sigma_http::Fault;
use sigma_net::Stream;
use sigma_observe::counters::Counter;
use sigma_plugin::traffic::Traffic;
use sigma_plugin::{Entry, FlowPlugin, Session};

use crate::connection::Origin;
use crate::snapshot::edge::ListenerOptions;
use crate::worker::{Entered, Worker};
use guarded::dismiss;
use trust::Trust;

/// One session.
struct Flow<'w> {
    worker: &'w Worker,
    session: Session,
    began: Instant,
    /// The plugins that take part.
    plugins: Vec<Arc<Entry<dyn FlowPlugin>>>,
    origin: Origin,
    /// The client, if its TLS ends here.
    trust: Option<Box<Trust>>,
}

/// Why a session ended before its time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    /// Something went wrong.
    Fault(Fault),
    /// A plugin has closed it; the status is for logs and metrics.
    Closed(u16),
    /// It was no session: an authority's question, or a peer that left before anything began.
    Nothing,
}

impl From<Fault> for End {
    fn from(fault: Fault) -> End {
        End::Fault(fault)
    }
}

/// Serves a connection of a listener for streams to its end.
pub(crate) async fn serve(
    entered: Entered,
    stream: Stream,
    origin: Origin,
    listener: Arc<ListenerOptions>,
    traffic: Arc<Traffic>,
) {
    let worker = &*entered.0;
    worker.counters.add(Counter::StreamSessions, 1);
    let _active = Active::begin(worker, Arc::clone(&traffic));
    let mut session = Session::default();
    session.traffic = traffic;
    let mut flow = Flow { worker, session, began: Instant::now(), plugins: Vec::new(), origin, trust: None };
    let outcome = flow.run(stream, listener).await;
    flow.finish(outcome);
}

impl Flow<'_> {
    async fn run(&mut self, stream: Stream, listener: Arc<ListenerOptions>) -> Result<(), End> {
        // A session may last for days: of the generation that it began in it keeps what it needs.
        let view = self.worker.view();
        // Boxed, so that what a handshake takes is free again when it is over.
        let (stream, route) = Box::pin(self.enter(stream, &view, &listener)).await?;
        drop(listener);
        let (number, upstream) = self.upstream(&view, &route)?;
        let mut down = Some(stream);
        let outcome = self.carry(&mut down, view, (number, &upstream), true).await;
        if let Some(down) = down {
            Box::pin(dismiss(self.worker, down)).await;
        }
        outcome
    }
}

/// The time, finer than the worker's clock: read a few times for each session.
fn now() -> Instant {
    Instant::now()
}

/// Milliseconds since then.
fn ms_since(then: Instant) -> f64 {
    then.elapsed().as_secs_f64() * 1000.0
}

/// Counts a session that is open, however it ends.
struct Active<'w> {
    worker: &'w Worker,
    traffic: Arc<Traffic>,
}

impl<'w> Active<'w> {
    fn begin(worker: &'w Worker, traffic: Arc<Traffic>) -> Active<'w> {
        worker.counters.add(Counter::StreamSessionsActive, 1);
        traffic.enter();
        Active { worker, traffic }
    }
}

impl Drop for Active<'_> {
    fn drop(&mut self) {
        self.worker.counters.lower(Counter::StreamSessionsActive, 1);
        self.traffic.leave();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Sessions are many and idle for long: this is what each of them holds, beside its sockets.
    #[test]
    fn a_session_stays_small() {
        fn task<F: Future>(_: fn(Entered, Stream, Origin, Arc<ListenerOptions>, Arc<Traffic>) -> F) -> usize {
            size_of::<F>()
        }
        assert!(task(serve) <= 2_304, "{} bytes", task(serve));
    }
}
