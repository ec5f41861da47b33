//! Sessions of protocols that the gateway does not parse: TCP bytes or datagrams from a listener with `stream` to a
//! node and back, by stream routes.
//!
//! | file | purpose |
//! |---|---|
//! | `entrance` | everything before a node is chosen: PROXY header, TLS, plugins |
//! | `guarded` | the guards of the upstream, and the wait for a permit |
//! | `carriage` | the node, by the rules of attempts, and the bytes to and from it |
//! | `trust` | whether the client of an open session would still be admitted |
//! | `relay` | moves bytes both ways |
//! | `filters` | the plugins that read and change the bytes |
//! | `udp` | sessions of datagrams: their table and their way; the rest they share with the others |
//! | `finish` | the end: counters, plugins that log, the access line |

mod carriage;
mod entrance;
mod filters;
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

use crate::edge::connection::Origin;
use crate::snapshot::edge::ListenerOptions;
use crate::worker::{Entered, Worker};
use carriage::{Hold, NumberedUpstream, Stopped};
use filters::Filters;
use guarded::dismiss;
use relay::Relay;
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
    /// The client has requested TLS in cleartext, and its TLS ends at the node: the node has to be asked as well.
    requests_tls: bool,
}

/// The reason why a session ended early.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    /// A fault.
    Fault(Fault),
    /// A plugin has closed it; the status is for logs and metrics.
    Closed(u16),
    /// It was no session: a check of a certificate authority, or a peer that left at once.
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
    let mut flow = Flow::new(worker, session(traffic), origin);
    let outcome = flow.run(stream, listener).await;
    flow.finish(outcome);
}

/// Returns a session over TCP at its beginning, in its own function: a local of a task stays in the task.
fn session(traffic: Arc<Traffic>) -> Session {
    let mut session = Session::default();
    session.traffic = traffic;
    session
}

impl<'w> Flow<'w> {
    /// Returns a session that begins now.
    fn new(worker: &'w Worker, session: Session, origin: Origin) -> Flow<'w> {
        Flow { worker, session, began: now(), plugins: Vec::new(), origin, trust: None, requests_tls: false }
    }

    async fn run(&mut self, stream: Stream, listener: Arc<ListenerOptions>) -> Result<(), End> {
        // Boxed, so that the memory of the beginning is free again while bytes move.
        let (mut relay, hold) = Box::pin(self.begin(stream, listener)).await?;
        let Err(stopped) = self.relay(&mut relay, &hold).await else { return Ok(()) };
        match stopped {
            Stopped::Untrusted { in_order: true } => {
                Box::pin(dismiss(self.worker, relay.into_down())).await;
            }
            // A cut must not look like an end.
            _ => relay.reset(),
        }
        Err(stopped.fault().into())
    }

    /// Admits the client and finds a node, so that bytes can move between them.
    async fn begin(&mut self, stream: Stream, listener: Arc<ListenerOptions>) -> Result<(Relay, Hold), End> {
        // A session may last for days: it keeps only the parts of its first snapshot that it needs.
        let view = self.worker.view();
        let (mut down, route) = self.enter(stream, &view, &listener).await?;
        let (number, upstream) = self.upstream(&view, &route)?;
        let of = NumberedUpstream { number, upstream: &upstream };
        match self.find(&mut down, &view, of, true).await {
            Ok((up, hold)) => {
                let (early, paces) = (std::mem::take(&mut self.session.early), self.session.paces.take());
                Ok((Relay::new(down, up, early, paces).filtered(self.filters()), hold))
            }
            Err(end) => {
                dismiss(self.worker, down).await;
                Err(end)
            }
        }
    }
}

impl Flow<'_> {
    /// Returns the filters of the session's plugins.
    fn filters(&mut self) -> Option<Box<Filters>> {
        let session = &mut self.session;
        Filters::new(self.plugins.iter().filter_map(|entry| entry.plugin.filter(session)).collect())
    }
}

/// Returns the time, finer than the worker's clock: read a few times for each session.
fn now() -> Instant {
    Instant::now()
}

/// Returns the milliseconds since then.
fn ms_since(then: Instant) -> f64 {
    then.elapsed().as_secs_f64() * 1000.0
}

/// A count of an open session, however it ends.
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

    /// Checks the memory of a session, apart from its sockets: sessions are many and idle for long.
    #[test]
    fn a_session_stays_small() {
        fn task<F: Future>(_: fn(Entered, Stream, Origin, Arc<ListenerOptions>, Arc<Traffic>) -> F) -> usize {
            size_of::<F>()
        }
        assert!(task(serve) <= 1_296, "{} bytes", task(serve));
    }
}
