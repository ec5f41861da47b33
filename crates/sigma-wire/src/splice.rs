//! Bodies that the kernel moves between a client and a node, or from a file in memory to a client, without a copy in
//! the memory of this process.
//!
//! That is possible between plain connections of HTTP/1, while much of a body of known length is left. Otherwise the
//! functions return None, and the bytes have to be read. Call them after a flush, for a body that nothing changes, counts
//! or delays.

use std::os::fd::BorrowedFd;
use std::task::{Context, Poll};

use sigma_http::Fault;

use crate::client::Connection;
use crate::server::Downstream;

/// Moves bytes of a response body from the node to the queue of the client.
#[inline]
pub fn poll_response(
    node: &mut Connection,
    client: &mut Downstream<'_>,
    cx: &mut Context<'_>,
) -> Option<Poll<Result<(), Fault>>> {
    match (node, client) {
        (Connection::H1(node), Downstream::H1(client)) => node.poll_splice_to(*client, cx),
        _ => None,
    }
}

/// Moves bytes of a file in memory, from `offset` on and at most `length`, to the queue of the client. Returns their
/// number.
#[inline]
pub fn queue_file(
    client: &mut Downstream<'_>,
    file: BorrowedFd<'_>,
    offset: u64,
    length: u64,
) -> Option<u64> {
    match client {
        Downstream::H1(client) => client.queue_file(file, offset, length),
        _ => None,
    }
}

/// Moves bytes of a request body from the client to the queue of the node.
#[inline]
pub fn poll_request(
    client: &mut Downstream<'_>,
    node: &mut Connection,
    cx: &mut Context<'_>,
) -> Option<Poll<Result<(), Fault>>> {
    match (client, node) {
        (Downstream::H1(client), Connection::H1(node)) => client.poll_splice_to(&mut **node, cx),
        _ => None,
    }
}
