//! The client's side of an exchange without a client.

use std::task::{Context, Poll};

use sigma_http::{BodyLength, Fault, Frame, ResponseHead};
use sigma_net::Deadline;

/// Sends a request without a body, accepts every response and never leaves.
#[derive(Debug, Default)]
pub struct NoClient {
    pub(crate) deadline: Deadline,
}

impl NoClient {
    pub(crate) fn body_length(&self) -> BodyLength {
        BodyLength::None
    }

    pub(crate) fn poll_frame(&mut self, _cx: &mut Context<'_>) -> Poll<Result<Frame, Fault>> {
        Poll::Ready(Ok(Frame::End))
    }

    pub(crate) fn poll_departure(&mut self, _cx: &mut Context<'_>) -> Poll<()> {
        Poll::Pending
    }

    pub(crate) fn send_interim(&mut self, _head: &mut ResponseHead) {}

    pub(crate) fn send_head(&mut self, _head: &mut ResponseHead, _length: BodyLength, _date: &[u8]) {}

    pub(crate) fn has_room(&self) -> bool {
        true
    }

    pub(crate) fn send(&mut self, _frame: Frame) {}

    pub(crate) fn poll_flush(&mut self, _cx: &mut Context<'_>) -> Poll<Result<(), Fault>> {
        Poll::Ready(Ok(()))
    }

    pub(crate) fn upgrade(&mut self) {}

    pub(crate) fn abort(&mut self) {}

    pub(crate) fn hold(&mut self, _bytes: usize) {}

    pub(crate) fn limit_body(&mut self, _bytes: u64) {}

    pub(crate) fn bytes_written(&self) -> u64 {
        0
    }

    pub(crate) fn bytes_sent(&self) -> (u64, u64) {
        (0, 0)
    }

    pub(crate) fn bytes_received(&self) -> u64 {
        0
    }

    pub(crate) fn requests(&self) -> u32 {
        0
    }
}
