//! From the node's head to the client's.

use sigma_config::settings::UpstreamStatusHeader;
use sigma_http::{HeaderId, ResponseHead};
use sigma_plugin::record::Record;

use super::via::add_via;
use crate::snapshot::Snapshot;

const UPSTREAM_STATUS: &str = "X-APISIX-Upstream-Status";

/// Makes the final head of a response fit to be passed on.
pub(super) fn prepare(head: &mut ResponseHead, snapshot: &Snapshot) {
    head.headers.remove_hop_by_hop();
    add_via(&mut head.headers, head.version, snapshot);
    if let Some(server) = &snapshot.settings.server_header
        && !server.is_empty()
        && !head.headers.has(HeaderId::Server)
    {
        head.headers.add(HeaderId::Server, server.as_bytes());
    }
}

/// Tells the client what each node answered, where the last of them failed or the settings want it
/// always (APISIX). A node that gave no answer counts as what the client is answered, or as 502.
pub(super) fn tell_upstream_status(head: &mut ResponseHead, record: &Record, when: UpstreamStatusHeader) {
    let statuses = &record.upstream_statuses;
    let answered = |status: u16| match status {
        0 if head.status >= 500 => head.status,
        0 => 502,
        status => status,
    };
    let tells = match (statuses.last(), when) {
        (None, _) | (_, UpstreamStatusHeader::Never) => false,
        _ if record.hides_reason => false,
        (Some(_), UpstreamStatusHeader::Always) => true,
        (Some(last), UpstreamStatusHeader::Errors) => answered(*last) >= 500,
    };
    if tells {
        let all: Vec<String> = statuses.iter().map(|status| answered(*status).to_string()).collect();
        // A node that is a gateway itself may have told of its own nodes.
        head.headers.remove_name(UPSTREAM_STATUS.as_bytes());
        head.headers.append(UPSTREAM_STATUS, all.join(", ").as_bytes());
    }
}
