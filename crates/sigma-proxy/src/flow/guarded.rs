//! A session on its way through the guards of its upstream to a permit on a node.

use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;

use sigma_http::{Chunk, Fault, FaultKind};
use sigma_net::{Deadline, Stream};
use sigma_schema::expr::{VarValue, Variables};

use super::Flow;
use super::entrance::known;
use crate::attempt::attempts::Attempts;
use crate::attempt::guards::{Fallback, Limit};
use crate::attempt::passage::{Passage, wait_for_node, wait_in_queue};
use crate::attempt::picked::Picked;
use crate::edge::admit::unless_closing;
use crate::snapshot::Upstream;
use crate::worker::{View, Worker};

/// How long a rejected client has to read the end.
const LINGER_MS: u64 = 1_000;

/// A client that may leave while its session waits, and the time that a client has after it has ended its
/// sending. With UDP the gateway cannot see a client leave.
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

    /// Asks the other guards of a session's upstream, and waits in its queue.
    ///
    /// # Errors
    /// Returns an error if one of them rejects the session, or the client leaves meanwhile.
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

    /// Returns the node of the next attempt, with a permit on it, if nodes have a limit.
    ///
    /// # Errors
    /// Returns an error without a node, or if the client leaves meanwhile.
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
            let full = "the nodes of the upstream have reached their limit of sessions";
            let wait = async || wait_for_node(attempts, &node, limit, priority).await;
            wait_in_queue(worker, limit, full, wait).await
        };
        let found = Box::pin(self.while_there(client, work)).await?;
        // In a dry run it is asked all the same.
        Ok(found.unwrap_or(node))
    }

    /// Returns the session's priority in a queue: the value of the limit's variable.
    fn priority(&self, limit: &Limit) -> i32 {
        let Some(name) = &limit.priority else { return 0 };
        match self.session.get(name) {
            Some(VarValue::Text(text)) => {
                std::str::from_utf8(&text).ok().and_then(|text| text.trim().parse().ok()).unwrap_or(0)
            }
            _ => 0,
        }
    }

    /// Returns the outcome of `work`, unless the client leaves meanwhile, or the worker ends. The client's bytes
    /// are read ahead up to one buffer; the kernel holds the rest back.
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
        let stops = || Fault::new(FaultKind::Stopping, "the gateway stopped before the session began");
        unless_closing(self.worker, waited).await.unwrap_or_else(|| Err(stops()))
    }
}

fn client_gone() -> Fault {
    Fault::new(FaultKind::ClientGone, "the client left while its session waited")
}

/// Returns the upstream that serves the sessions of one whose breaker is open.
///
/// # Errors
/// Returns `fault` without such an upstream: a fallback response is for requests only.
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

/// Ends a session that no node has accepted. The client's bytes are read for some time: closing with unread bytes
/// would reset the connection instead of ending it.
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
    // A client that stays longer loses nothing.
    let _ = unless_closing(worker, ended).await;
}
