//! Chains of gateways. `Via`, loops and `Max-Forwards` (RFC 9110 §7.6.2 and §7.6.3, RFC 8586).

use std::hash::{BuildHasher, Hasher, RandomState};

use sigma_config::settings::ListenPlace;
use sigma_http::header::list_items;
use sigma_http::{Fault, FaultKind, HeaderId, Headers, Method, Version};
use sigma_upstream::endpoint::Address;

use super::Exchange;
use crate::snapshot::Snapshot;

/// The name of this process in `CDN-Loop`; one for all workers, as a loop may come back to any.
#[derive(Debug)]
pub(crate) struct OwnName(String);

impl OwnName {
    /// The name as it is written.
    pub(crate) fn as_str(&self) -> &str {
        &self.0
    }
}

impl Default for OwnName {
    /// Makes a random name: gateways in a row are no loop, so each needs its own name.
    fn default() -> OwnName {
        OwnName(format!("sigma-{:016x}", RandomState::new().build_hasher().finish()))
    }
}

/// The outcome of `Max-Forwards` for a request.
pub(super) enum Onward {
    /// It is forwarded.
    Yes,
    /// This gateway is its last recipient.
    No,
}

impl Exchange<'_, '_> {
    /// Rejects a request that loops.
    pub(super) fn check_passes(&self, snapshot: &Snapshot) -> Result<(), Fault> {
        let headers = &self.scratch.ctx.request.headers;
        let limit = usize::from(snapshot.settings.limits.loop_passes);
        if limit == 0 || !headers.has_any(&[HeaderId::CdnLoop, HeaderId::Via]) {
            return Ok(());
        }
        let own = self.worker.own_name.0.as_bytes();
        let passes = headers.get_all(HeaderId::CdnLoop).flat_map(list_items).filter(|id| *id == own).count();
        let via = snapshot.settings.via.as_ref().map(|name| name.as_str().as_bytes());
        let named = |entry: &&[u8]| entry.rsplit(|b| *b == b' ').next() == via && via.is_some();
        let vias = headers.get_all(HeaderId::Via).flat_map(list_items).filter(named).count();
        if passes.max(vias) < limit {
            return Ok(());
        }
        Err(Fault::new(FaultKind::Loop, "the request has passed this gateway too often"))
    }

    /// Counts `Max-Forwards` down for OPTIONS and TRACE, the methods that it applies to.
    pub(super) fn count_forward(&mut self) -> Onward {
        let head = &mut self.scratch.ctx.request;
        if !matches!(head.method, Method::Options | Method::Trace) {
            return Onward::Yes;
        }
        let left = head.headers.get(HeaderId::MaxForwards);
        let left = left.and_then(|text| std::str::from_utf8(text).ok()?.parse::<u32>().ok());
        match left {
            None => Onward::Yes,
            Some(0) => Onward::No,
            Some(left) => {
                head.headers.set(HeaderId::MaxForwards, itoa::Buffer::new().format(left - 1).as_bytes());
                Onward::Yes
            }
        }
    }

    /// Marks a request to a node that may be this gateway itself. `marked` says whether it is marked already:
    /// once for each pass, regardless of the number of attempts.
    pub(super) fn mark_pass(&mut self, snapshot: &Snapshot, node: &Address, marked: &mut bool) {
        if !*marked {
            *marked = mark_pass(&mut self.scratch.ctx.request.headers, &self.worker.own_name, snapshot, node);
        }
    }
}

/// Adds this gateway's name to the `CDN-Loop` of a request to a node that may be this gateway itself; returns
/// true if it did.
pub(crate) fn mark_pass(headers: &mut Headers, own: &OwnName, snapshot: &Snapshot, node: &Address) -> bool {
    let marks = snapshot.settings.limits.loop_passes != 0 && may_be_ours(node, snapshot);
    if marks {
        append_item(headers, HeaderId::CdnLoop, own.0.as_bytes());
    }
    marks
}

/// Adds this gateway to the `Via` of a message that came in `version`.
pub(super) fn add_via(headers: &mut Headers, version: Version, snapshot: &Snapshot) {
    if let Some(name) = &snapshot.settings.via {
        let text = version.as_str();
        let version = text.strip_prefix("HTTP/").unwrap_or(text);
        append_item(headers, HeaderId::Via, format!("{version} {}", name.as_str()).as_bytes());
    }
}

fn append_item(headers: &mut Headers, id: HeaderId, item: &[u8]) {
    let mut items: Vec<&[u8]> = headers.get_all(id).filter(|value| !value.is_empty()).collect();
    items.push(item);
    let joined = items.join(&b", "[..]);
    headers.set(id, &joined);
}

/// Returns true if the node is at a port, or a path, of one of the listeners. It does not check which addresses
/// are this machine's: an extra name in the field does no harm.
fn may_be_ours(node: &Address, snapshot: &Snapshot) -> bool {
    snapshot.settings.listeners.iter().any(|listener| match (&listener.place(), node) {
        (ListenPlace::Tcp(own), Address::Tcp(node)) => own.port() == node.port(),
        (ListenPlace::Unix(own), Address::Unix(node)) => **own == **node,
        _ => false,
    })
}
