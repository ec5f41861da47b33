//! Calls that are not HTTP: bytes are sent and bytes come back.

use std::future::poll_fn;
use std::num::NonZeroU32;
use std::task::Poll;

use sigma_http::{Fault, FaultKind, Method};
use sigma_net::{Deadline, deadline};
use sigma_plugin::outbound::{BytesAnswer, BytesCall, BytesError, Missing};
use sigma_upstream::balance::Outcome;
use sigma_upstream::dial::Owner;
use sigma_upstream::endpoint::Endpoint;
use sigma_wire::Connection;

use super::{Upload, attempt};
use crate::attempt::attempts::{Attempts, Decision, Failure, has_no_node_left, is_late};
use crate::attempt::target::{self, Demands};
use crate::snapshot::Upstream;
use crate::worker::{View, Worker};

/// One call under way.
pub(super) struct OutboundBytesCall<'c> {
    pub(super) worker: &'c Worker,
    pub(super) view: &'c View,
    pub(super) call: &'c BytesCall,
}

impl OutboundBytesCall<'_> {
    pub(super) async fn run(&self) -> Result<BytesAnswer, BytesError> {
        let snapshot = &self.view.snapshot;
        let number = snapshot.upstream_number(&self.call.upstream);
        let Some((number, upstream)) = number.and_then(|number| Some((number, snapshot.upstream(number)?)))
        else {
            let reason = "the service is no longer part of the configuration".to_owned();
            return Err(BytesError { reason, missing: Missing::Node });
        };
        let mut attempts = Attempts::new(self.worker, number, upstream, None, None);
        loop {
            let node = attempts.pick().map_err(bytes_error)?;
            let in_flight = attempts.begin(&node);
            let mut decision = Decision::NextNode;
            let link_ms = attempts.link_ms(&node);
            let result = self.attempt(upstream, &node, link_ms, &mut decision).await;
            in_flight.end(Outcome { latency_ms: None, now_ms: deadline::now_ms() });
            match result {
                Ok(bytes) => {
                    attempts.answered(&node, None);
                    return Ok(BytesAnswer { bytes, node: node.host.clone() });
                }
                Err(fault) => {
                    let failure = Failure { fault, decision, request_sent: true, status: None };
                    if !attempts.failed(&node, &failure) {
                        return Err(bytes_error(fault));
                    }
                }
            }
        }
    }

    /// One attempt on a node.
    async fn attempt(
        &self,
        upstream: &Upstream,
        node: &Endpoint,
        link_ms: Option<NonZeroU32>,
        decision: &mut Decision,
    ) -> Result<Vec<u8>, Fault> {
        let demands = Demands {
            connect_ms: upstream.transport.timeouts.connect_ms,
            link_ms,
            upgrade: false,
            protocol: upstream.config.scheme.into(),
            name: node.host.as_str().into(),
            owner: Owner::Introduced(Box::default()),
        };
        let target = target::target(&self.view.snapshot, upstream, node, &demands);
        let exchange = async |connection: &mut Connection| self.exchange(connection, upstream).await;
        // It reads and changes nothing, as GET does.
        attempt(self.worker, &target, Method::Get, decision, exchange, || true).await
    }

    /// Sends bytes and reads the reply, on one connection. A connection out of step is not used again.
    async fn exchange(&self, connection: &mut Connection, upstream: &Upstream) -> Result<Vec<u8>, Fault> {
        let BytesCall { request, end, limit, .. } = self.call;
        connection.begin_bytes();
        let mut upload = Upload { body: request, taken: 0, ended: false };
        let (time, mut has_left, mut answer) = (Deadline::new(), false, Vec::new());
        time.set(upstream.transport.timeouts.send_ms);
        loop {
            let piece = poll_fn(|task| {
                if !has_left && upload.send(connection, task) {
                    has_left = true;
                    time.set(upstream.transport.timeouts.read_ms);
                }
                if let Poll::Ready(piece) = connection.poll_bytes(task) {
                    return Poll::Ready(piece);
                }
                time.poll_expired(task).map(|()| Err(late(has_left)))
            });
            let piece = piece.await?;
            if answer.len() + piece.len() > *limit {
                return Err(Fault::new(
                    FaultKind::ResponseBodyTooLarge,
                    "the reply of a service exceeds its limit",
                ));
            }
            answer.extend_from_slice(&piece);
            match end(&answer) {
                Ok(None) => {}
                Ok(Some(length)) if length == answer.len() => {
                    if has_left {
                        connection.end_bytes();
                    }
                    return Ok(answer);
                }
                Ok(Some(_)) => {
                    let reason = "a service sent data after its reply";
                    return Err(Fault::new(FaultKind::BadResponse, reason));
                }
                Err(reason) => return Err(Fault::new(FaultKind::BadResponse, reason)),
            }
        }
    }
}

fn late(has_left: bool) -> Fault {
    match has_left {
        true => Fault::new(FaultKind::ResponseTimeout, "the service did not reply in time"),
        false => Fault::new(FaultKind::UpstreamSendTimeout, "the service did not accept the request in time"),
    }
}

fn bytes_error(fault: Fault) -> BytesError {
    let missing = match fault {
        fault if has_no_node_left(fault) => Missing::Node,
        fault if is_late(fault) => Missing::Time,
        _ => Missing::Response,
    };
    BytesError { reason: fault.reason.to_owned(), missing }
}
