//! The names by which hashing tells nodes apart: they are the same on every gateway, and stay when
//! anything else about a node changes.

use std::collections::HashMap;

use super::Member;
use crate::endpoint::EndpointSet;

/// Names the nodes of a set.
pub(super) struct Names<'s> {
    set: &'s EndpointSet,
    /// How many addresses a host has at a port and priority.
    addresses: HashMap<(i32, &'s str, u16), u32>,
}

impl<'s> Names<'s> {
    pub(super) fn new(set: &'s EndpointSet) -> Names<'s> {
        let mut addresses = HashMap::with_capacity(set.endpoints.len());
        for endpoint in &set.endpoints {
            *addresses.entry((endpoint.priority, &*endpoint.host, endpoint.port)).or_default() += 1;
        }
        Names { set, addresses }
    }

    /// `host:port`, or the address where the host has several.
    ///
    /// A name with one address keeps its place on a ring when the address changes; several
    /// addresses must not share one place.
    pub(super) fn of(&self, member: &Member) -> String {
        let endpoint = &self.set.endpoints[member.index];
        let of_several = self.addresses[&(endpoint.priority, &*endpoint.host, endpoint.port)] > 1;
        if of_several { endpoint.addr.to_string() } else { endpoint.name() }
    }
}
