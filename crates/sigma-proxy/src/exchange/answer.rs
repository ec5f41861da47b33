//! From the node's head to the client's.

use sigma_http::{BodyLength, HeaderId, ResponseHead};

use crate::downstream::Downstream;
use crate::snapshot::Snapshot;

/// Queues the final head of a response that is passed on.
pub(super) fn send_head(
    down: &mut Downstream<'_>,
    head: &mut ResponseHead,
    length: BodyLength,
    snapshot: &Snapshot,
    date: &[u8],
) {
    head.headers.remove_hop_by_hop();
    if head.status == 204 {
        // RFC 9110 §8.6: a length here could only be misread.
        head.headers.remove(HeaderId::ContentLength);
    }
    if let Some(server) = &snapshot.settings.server_header
        && !server.is_empty()
        && !head.headers.has(HeaderId::Server)
    {
        head.headers.add(HeaderId::Server, server.as_bytes());
    }
    down.send_head(head, length, date);
}
