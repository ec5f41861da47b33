//! From the node's head to the client's.

use sigma_http::{HeaderId, ResponseHead};

use crate::snapshot::Snapshot;

/// Makes the final head of a response fit to be passed on.
pub(super) fn prepare(head: &mut ResponseHead, snapshot: &Snapshot) {
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
}
