//! How far a request has come, and who has a say in its answer.

use std::rc::Rc;

use sigma_plugin::Chain;

use super::response::InForce;
use crate::snapshot::{Route, Snapshot};
use crate::worker::{View, Worker};

/// How far a request has come. It goes forward only.
pub(super) enum Stage {
    /// Its head was read. No plugin knows of it, and none sees the answer.
    Opened,
    /// Its route was found; there are no plugins, or their turn has not come yet.
    Routed(u32),
    /// Plugins take part: those of the global rules, and of the route if one was found.
    Guided {
        /// The route that was found.
        route: Option<u32>,
        /// The route's plugins together with those of the consumer, once it is known.
        merged: Option<Rc<Chain>>,
    },
}

impl Stage {
    /// The number of the route that was found.
    pub(super) fn route_number(&self) -> Option<u32> {
        match self {
            Stage::Opened => None,
            Stage::Routed(number) => Some(*number),
            Stage::Guided { route, .. } => *route,
        }
    }

    /// The route that was found.
    pub(super) fn route<'s>(&self, snapshot: &'s Snapshot) -> Option<&'s Route> {
        snapshot.route(self.route_number()?)
    }

    /// Plugins take part from now on.
    pub(super) fn guide(&mut self) {
        *self = Stage::Guided { route: self.route_number(), merged: None };
    }

    /// Whether plugins take part, and [`sigma_plugin::Context::client`] is this client.
    pub(super) fn is_guided(&self) -> bool {
        matches!(self, Stage::Guided { .. })
    }

    /// The consumer's plugins join the route's.
    pub(super) fn merge(&mut self, chain: Rc<Chain>) {
        if let Stage::Guided { merged, .. } = self {
            *merged = Some(chain);
        }
    }

    /// The plugins that take part; None if none do.
    #[inline]
    pub(super) fn in_force<'v, 'c>(&'v self, worker: &'c Worker, view: &'v View) -> Option<InForce<'v, 'c>> {
        match self {
            Stage::Guided { route, merged } => Some(InForce::new(worker, view, *route, merged.as_deref())),
            _ => None,
        }
    }
}
