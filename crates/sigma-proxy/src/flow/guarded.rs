//! A session on its way past the guards of its upstream, and to a place on a node.

use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;

use sigma_http::{Chunk, Fault, FaultKind};
use sigma_net::{Deadline, Stream};
use sigma_schema::expr::{VarValue, Variables};

use super::Flow;
use super::entrance::known;
use crate::admit::unless_closing;
use crate::attempts::{Attempts, Picked};
use crate::guards::{Fallback, Limit};
use crate::passage::{Passage, wait_for_node, wait_in_queue};
use crate::snapshot::Upstream;
use crate::worker::{View, Worker};

/// How long a client that nobody serves has to take note of it.
const LINGER_MS: u64 = 1_000;

/// A client that may leave while its session waits, and how long one has that has ended its sending. One over UDP
/// cannot be seen leaving.
pub(super) type Waiting<'s> = Option<(&'s mut Stream, u64)>;

impl<'w> Flow<'w> {
    /// Asks the breaker of an upstream. None if the upstream has no guards.
    ///
    /// # Errors
    /// Returns an error if it is open.
    pub(super) fn begin_passage<'p>(
        &self,
        number: u32,
        upstream: &'p Arc<Upstream>,
    ) -> Result<Option<Passage<'p>>, Fault>
    where
        'w: 'p,
    {
        let Some(guards) = upstream.guards.as_deref() else { return Ok(None) };
        let mut passage = Passage::begin(self.worker, number, upstream, guards);
        passage.ask_breaker()?;
        Ok(Some(passage))
    }

    /// Asks the other guards of a session's upstream, and waits in the queue in front of it.
    ///
    /// # Errors
    /// Returns an error if one of them refuses the session, or the client leaves meanwhile.
    pub(super) async fn ask_guards(
        &mut self,
        passage: &mut Passage<'_>,
        upstream: &Upstream,
        client: Waiting<'_>,
    ) -> Result<(), Fault> {
        let limit = upstream.guards.as_ref().and_then(|guards| guards.limit.as_ref());
        let priority = limit.map_or(0, |limit| self.priority(limit));
        self.while_there(client, passage.ask_others_of_session(priority)).await
    }

    /// The node of the next attempt, with a place on it, where each node has so many.
    ///
    /// # Errors
    /// Returns an error if there is none, or the client leaves meanwhile.
    pub(super) async fn pick(
        &mut self,
        attempts: &mut Attempts<'_>,
        client: Waiting<'_>,
    ) -> Result<Picked, Fault> {
        let Some(limit) = attempts.upstream.node_limit() else { return attempts.pick() };
        let node = attempts.pick_free(limit)?;
        if node.has_place() {
            return Ok(node);
        }
        let (worker, priority) = (self.worker, self.priority(limit));
        let work = async {
            let full = "the nodes of the upstream have as many sessions as each may have";
            let wait = async || wait_for_node(attempts, &node, limit, priority).await;
            wait_in_queue(worker, limit, full, wait).await
        };
        let found = Box::pin(self.while_there(client, work)).await?;
        // In a dry run it is asked all the same.
        Ok(found.unwrap_or(node))
    }

    /// How urgent the session is for a queue: the value of the limit's variable.
    fn priority(&self, limit: &Limit) -> i32 {
        let Some(name) = &limit.priority else { return 0 };
        match self.session.get(name) {
            Some(VarValue::Text(text)) => {
                std::str::from_utf8(&text).ok().and_then(|text| text.trim().parse().ok()).unwrap_or(0)
            }
            _ => 0,
        }
    }

    /// The outcome of `work`, unless the client leaves meanwhile, or the worker ends. What the client sends is read
    /// ahead as far as one buffer; beyond it the kernel holds it back.
    async fn while_there<T>(
        &mut self,
        mut client: Waiting<'_>,
        work: impl Future<Output = Result<T, Fault>>,
    ) -> Result<T, Fault> {
        let mut work = pin!(work);
        let (early, patience) = (&mut self.session.early, Deadline::new());
        let mut has_ended = false;
        let waited = poll_fn(|cx| {
            if let ready @ Poll::Ready(_) = work.as_mut().poll(cx) {
                return ready;
            }
            while let Some((stream, half_close_ms)) = &mut client
                && !has_ended
                && (early.is_empty() || !early.spare().is_empty())
            {
                match stream.poll_fill(cx, early) {
                    Poll::Ready(Ok(0)) => {
                        has_ended = true;
                        patience.set(*half_close_ms);
                    }
                    Poll::Ready(Ok(_)) => {}
                    Poll::Ready(Err(_)) => return Poll::Ready(Err(client_gone())),
                    Poll::Pending => break,
                }
            }
            patience.poll_expired(cx).map(|()| Err(client_gone()))
        });
        let stops = || Fault::new(FaultKind::Stopping, "the gateway stops before the session has begun");
        unless_closing(self.worker, waited).await.unwrap_or_else(|| Err(stops()))
    }
}

fn client_gone() -> Fault {
    Fault::new(FaultKind::ClientGone, "the client left while its session waited")
}

/// The upstream that takes the sessions of one whose breaker is open.
///
/// # Errors
/// Returns `fault` if there is none: what a fallback answers is an answer to requests.
pub(super) fn fallback(
    view: &View,
    upstream: &Upstream,
    fault: Fault,
) -> Result<(u32, Arc<Upstream>), Fault> {
    let breaker = upstream.guards.as_ref().and_then(|guards| guards.breaker.as_ref());
    match breaker.and_then(|breaker| breaker.fallback.as_ref()) {
        Some(Fallback::Upstream(key)) => known(view, view.snapshot.upstream_number(key)),
        Some(Fallback::Answer { .. }) | None => Err(fault),
    }
}

/// Ends a session that no node has taken. What its client has sent is read, for some time: closing over unread bytes
/// would break the connection instead of ending it.
pub(super) async fn dismiss(worker: &Worker, mut down: Stream) {
    let (patience, mut unread) = (Deadline::new(), Chunk::empty());
    patience.set(LINGER_MS);
    let ended = poll_fn(|cx| {
        if patience.poll_expired(cx).is_ready() {
            return Poll::Ready(());
        }
        if down.poll_shutdown(cx).is_pending() {
            return Poll::Pending;
        }
        loop {
            match down.poll_fill(cx, &mut unread) {
                Poll::Ready(Ok(0) | Err(_)) => return Poll::Ready(()),
                Poll::Ready(Ok(_)) => unread = Chunk::empty(),
                Poll::Pending => return Poll::Pending,
            }
        }
    });
    // Nothing is lost with one who stays.
    let _ = unless_closing(worker, ended).await;
}
