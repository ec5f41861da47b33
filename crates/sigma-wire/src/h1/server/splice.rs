//! Bodies that pass between a client and a node by the kernel alone.

use std::io;
use std::os::fd::BorrowedFd;
use std::task::{Context, Poll};

use sigma_http::Fault;
use sigma_http::h1::BodyReader;
use sigma_net::Stream;

use super::super::outgoing::SpliceTarget;
use super::{REVOKED, Server, gone};
use crate::rules::check_body;

impl Server {
    /// See [`crate::splice::poll_request`].
    pub(crate) fn poll_splice_to(
        &mut self,
        node: &mut impl SpliceTarget,
        cx: &mut Context<'_>,
    ) -> Option<Poll<Result<(), Fault>>> {
        let BodyReader::Known(left) = self.reader else { return None };
        // A body above its limit is rejected when it is read.
        let received = &self.current.received;
        let is_within = check_body(received.body_bytes + left, received.body_limit).is_ok();
        if !self.input.is_empty() || !is_within {
            return None;
        }
        Some(match node.poll_splice_from(&mut self.stream, &mut self.reader, cx)? {
            Poll::Ready(Ok(0)) => {
                self.sending_side.close();
                Poll::Ready(Err(gone()))
            }
            Poll::Ready(Ok(n)) => {
                self.current.expects = false;
                self.current.received.body_bytes += n;
                Poll::Ready(Ok(()))
            }
            Poll::Ready(Err(_)) => Poll::Ready(Err(gone())),
            Poll::Pending => {
                self.memory.account.moved(self.moved());
                if self.memory.is_revoked() { Poll::Ready(Err(REVOKED)) } else { Poll::Pending }
            }
        })
    }

    /// See [`crate::splice::queue_file`].
    pub(crate) fn queue_file(&mut self, file: BorrowedFd<'_>, offset: u64, length: u64) -> Option<u64> {
        if self.current.form.bodiless {
            return None;
        }
        let moved = self.output.queue_file(&self.stream, file, offset, length)?;
        self.sent.body_bytes += moved;
        self.sending_side.clear_deadline();
        Some(moved)
    }
}

impl SpliceTarget for Server {
    fn poll_splice_from(
        &mut self,
        from: &mut Stream,
        reader: &mut BodyReader,
        cx: &mut Context<'_>,
    ) -> Option<Poll<io::Result<u64>>> {
        if self.current.form.bodiless {
            return None;
        }
        let polled = self.output.poll_splice(&self.stream, from, reader, cx)?;
        if let Poll::Ready(Ok(n)) = &polled {
            self.sent.body_bytes += n;
            self.sending_side.clear_deadline();
        }
        Some(polled)
    }
}
