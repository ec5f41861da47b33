//! A node chosen for an attempt.

use std::rc::Rc;

use sigma_upstream::balance::Balancer;
use sigma_upstream::endpoint::{Endpoint, LocalSet};
use sigma_upstream::overload::gate::Permit;

use crate::attempt::guards::Limit;

/// A node chosen from a set, which stays alive with it.
#[derive(Debug)]
pub(crate) struct Picked {
    set: LocalSet,
    index: u32,
    /// It has a permit of the node's gate, which it gives back in the end. Not a [`Permit`], as each exchange has
    /// room for two of these.
    has_place: bool,
}

impl Picked {
    pub(super) fn new(balancer: &Balancer, index: usize) -> Picked {
        Picked { set: Rc::clone(balancer.endpoints()), index: index as u32, has_place: false }
    }

    /// Returns the only node of a set.
    pub(super) fn only(set: LocalSet) -> Picked {
        Picked { set, index: 0, has_place: false }
    }

    /// Tries to get a permit of its node; returns true if it has one.
    pub(super) fn enters(&mut self, limit: &Limit) -> bool {
        let place = limit.to_node(self).and_then(|way| way.gate.try_enter(way.bounds));
        place.is_some_and(|place| {
            self.take_place(place);
            true
        })
    }

    /// Returns true if it has a permit of its node.
    pub(crate) fn has_place(&self) -> bool {
        self.has_place
    }

    /// Takes a permit of its node.
    pub(crate) fn take_place(&mut self, place: Permit) {
        place.detach();
        self.has_place = true;
    }
}

impl Drop for Picked {
    fn drop(&mut self) {
        if self.has_place {
            self.health.gate().leave();
        }
    }
}

impl std::ops::Deref for Picked {
    type Target = Endpoint;

    fn deref(&self) -> &Endpoint {
        &self.set.endpoints[self.index as usize]
    }
}
