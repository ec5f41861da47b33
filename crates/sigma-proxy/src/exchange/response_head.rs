//! The response head, from the node's form to the client's.

use sigma_config::settings::UpstreamStatusHeader;
use sigma_http::{HeaderId, ResponseHead};
use sigma_plugin::record::Record;

use super::via::add_via;
use crate::snapshot::Snapshot;

const UPSTREAM_STATUS: &str = "X-APISIX-Upstream-Status";

/// Prepares the final head of a response for forwarding.
pub(super) fn prepare(head: &mut ResponseHead, snapshot: &Snapshot) {
    // A 426 is of no use without the protocols (RFC 9110 §15.5.22).
    let offered =
        (head.status == 426).then(|| head.headers.get(HeaderId::Upgrade).map(<[u8]>::to_vec)).flatten();
    head.headers.remove_hop_by_hop();
    if let Some(protocols) = offered {
        head.headers.set(HeaderId::Upgrade, &protocols);
    }
    add_via(&mut head.headers, head.version, snapshot);
    if let Some(server) = &snapshot.settings.server_header
        && !server.is_empty()
        && !head.headers.has(HeaderId::Server)
    {
        head.headers.add(HeaderId::Server, server.as_bytes());
    }
}

/// Adds the status of each node, if the last one failed or the settings always want it (APISIX). A node without a
/// response counts with the status of the client's response, or 502.
pub(super) fn report_upstream_status(head: &mut ResponseHead, record: &Record, when: UpstreamStatusHeader) {
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
        // A node that is a gateway itself may have added its own nodes.
        head.headers.remove_name(UPSTREAM_STATUS.as_bytes());
        head.headers.append(UPSTREAM_STATUS, all.join(", ").as_bytes());
    }
}
