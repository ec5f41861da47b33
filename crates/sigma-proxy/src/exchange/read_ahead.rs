//! Reading a node's response ahead of a client that is slower, up to a limit of the route.
//!
//! A client that keeps up gets each piece at once, and nothing is read ahead. Once the last piece was read ahead, the
//! node serves others, as [`super::remainder`] describes. Beyond the limit, or when a quarter of the worker's budget
//! of bytes held for clients is used, the node waits for the client as it does without reading ahead.

use std::task::{self, Poll};

use sigma_buffer::held;
use sigma_http::{Fault, Frame, ResponseHead};
use sigma_plugin::Context;
use sigma_wire::{Downstream, Rest};

use super::delivery::Source;

/// nginx's field by which a node turns reading ahead off for one response.
const SWITCH: &[u8] = b"X-Accel-Buffering";

/// Returns the bytes of this response that may be read ahead: `limit`, or 0 if the node prevents it.
pub(super) fn allowed(limit: usize, head: &ResponseHead) -> usize {
    let is_off = || head.headers.find(SWITCH).is_some_and(|value| value.eq_ignore_ascii_case(b"no"));
    if limit == 0 || is_off() { 0 } else { limit }
}

/// The part of a response that was read ahead.
pub(super) struct ReadAhead {
    limit: usize,
    rest: Rest,
    /// The response ends with this fault after `rest`.
    fault: Option<Fault>,
    /// The end of the response was taken: the node must not be read any more.
    has_ended: bool,
}

impl ReadAhead {
    /// Returns the state of a response of which up to `limit` bytes may be read ahead.
    pub(super) fn new(limit: usize) -> ReadAhead {
        ReadAhead { limit, rest: Rest::default(), fault: None, has_ended: false }
    }

    /// Returns the memory of the bytes that were read ahead.
    pub(super) fn memory(&self) -> usize {
        self.rest.memory()
    }

    /// Returns true if the end of the response was taken.
    pub(super) fn has_ended(&self) -> bool {
        self.has_ended
    }

    /// Returns the source of the response: the bytes that were read ahead, then the bytes of `node`.
    pub(super) fn of<'a, S>(&'a mut self, node: &'a mut S) -> Ahead<'a, S> {
        Ahead { ahead: self, node }
    }

    /// Reads ahead as far as the node has sent and the limits allow; ready with all of it once its end was read.
    pub(super) fn poll_fill(
        &mut self,
        node: &mut impl Source,
        ctx: &mut Context,
        task: &mut task::Context<'_>,
    ) -> Poll<Rest> {
        let room = self.limit.min(self.memory().saturating_add(held::spare_room()));
        while !self.rest.is_whole() {
            if self.fault.is_some() || self.memory() >= room {
                return Poll::Pending;
            }
            match task::ready!(node.poll_frame(ctx, task)) {
                Ok(frame) => self.rest.push(frame),
                Err(fault) => self.fault = Some(fault),
            }
        }
        Poll::Ready(std::mem::take(&mut self.rest))
    }
}

/// A node's response behind the part that was read ahead.
pub(super) struct Ahead<'a, S> {
    ahead: &'a mut ReadAhead,
    node: &'a mut S,
}

impl<S: Source> Source for Ahead<'_, S> {
    fn poll_frame(&mut self, ctx: &mut Context, task: &mut task::Context<'_>) -> Poll<Result<Frame, Fault>> {
        let frame = match (self.ahead.rest.pop(), self.ahead.fault) {
            (Some(frame), _) => frame,
            (None, Some(fault)) => return Poll::Ready(Err(fault)),
            (None, None) => task::ready!(self.node.poll_frame(ctx, task))?,
        };
        self.ahead.has_ended = !matches!(frame, Frame::Data(_));
        Poll::Ready(Ok(frame))
    }

    fn poll_splice_to(
        &mut self,
        down: &mut Downstream<'_>,
        task: &mut task::Context<'_>,
    ) -> Option<Poll<Result<(), Fault>>> {
        let is_ahead = !self.ahead.rest.is_empty() || self.ahead.fault.is_some();
        if is_ahead { None } else { self.node.poll_splice_to(down, task) }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;
    use std::task::Waker;

    use sigma_http::{Chunk, FaultKind};

    use super::*;

    const CUT: Fault = Fault::new(FaultKind::ResponseIncomplete, "cut");

    /// A node that has sent these frames.
    struct Node(VecDeque<Result<Frame, Fault>>);

    impl Source for Node {
        fn poll_frame(&mut self, _: &mut Context, _: &mut task::Context<'_>) -> Poll<Result<Frame, Fault>> {
            self.0.pop_front().map_or(Poll::Pending, Poll::Ready)
        }
    }

    fn data(len: usize) -> Result<Frame, Fault> {
        Ok(Frame::Data(Chunk::copy_of(&vec![b'x'; len])))
    }

    fn fill(ahead: &mut ReadAhead, node: &mut Node) -> Poll<Rest> {
        ahead.poll_fill(node, &mut Context::default(), &mut task::Context::from_waker(Waker::noop()))
    }

    /// Takes all frames that are there; returns the bytes and how they end.
    fn take(ahead: &mut ReadAhead, node: &mut Node) -> (usize, String) {
        let mut task = task::Context::from_waker(Waker::noop());
        let mut bytes = 0;
        loop {
            match ahead.of(node).poll_frame(&mut Context::default(), &mut task) {
                Poll::Ready(Ok(Frame::Data(data))) => bytes += data.len(),
                Poll::Ready(Ok(frame)) => return (bytes, format!("{frame:?}")),
                Poll::Ready(Err(fault)) => return (bytes, fault.reason.to_owned()),
                Poll::Pending => return (bytes, "waits".to_owned()),
            }
        }
    }

    #[test]
    fn node_is_free_once_the_end_was_read() {
        held::set_limit(1 << 20);
        let (mut ahead, mut node) = (ReadAhead::new(400_000), Node([data(60_000), data(60_000)].into()));
        assert!(fill(&mut ahead, &mut node).is_pending());
        assert!(ahead.memory() >= 120_000 && node.0.is_empty());
        node.0.push_back(Ok(Frame::End));
        let Poll::Ready(rest) = fill(&mut ahead, &mut node) else { panic!("the end was not read") };
        assert!(rest.is_whole() && rest.memory() >= 120_000);
        let (mut ahead, mut node) = (ReadAhead::new(100_000), Node([data(5), Ok(Frame::End)].into()));
        assert_eq!((take(&mut ahead, &mut node), ahead.has_ended()), ((5, "End".to_owned()), true));
    }

    #[test]
    fn limits_hold_the_node_back() {
        for (limit, budget, read) in
            [(150_000, 4 << 20, 3), (1 << 20, 600_000, 3), (1, 4 << 20, 1), (150_000, 0, 0)]
        {
            held::set_limit(budget);
            let mut node = Node((0..10).map(|_| data(60_000)).collect());
            let mut ahead = ReadAhead::new(limit);
            assert!(fill(&mut ahead, &mut node).is_pending());
            assert_eq!(10 - node.0.len(), read, "{limit} {budget}");
            // The client takes these bytes, and then the node's next ones.
            assert_eq!(take(&mut ahead, &mut node), (600_000, "waits".to_owned()));
            assert_eq!(ahead.memory(), 0);
        }
    }

    #[test]
    fn fault_comes_after_the_bytes_before_it() {
        held::set_limit(1 << 20);
        let (mut ahead, mut node) = (ReadAhead::new(100_000), Node([data(5), Err(CUT)].into()));
        assert!(fill(&mut ahead, &mut node).is_pending());
        assert!(fill(&mut ahead, &mut node).is_pending(), "no read after a fault");
        assert_eq!(take(&mut ahead, &mut node), (5, "cut".to_owned()));
    }

    #[test]
    fn nodes_can_prevent_it_for_one_response() {
        for (value, expected) in [(None, 7), (Some("yes"), 7), (Some("no"), 0), (Some("No"), 0)] {
            let mut head = ResponseHead::default();
            if let Some(value) = value {
                head.headers.append("X-Accel-Buffering", value.as_bytes());
            }
            assert_eq!(allowed(7, &head), expected, "{value:?}");
            assert_eq!(allowed(0, &head), 0);
        }
    }
}
