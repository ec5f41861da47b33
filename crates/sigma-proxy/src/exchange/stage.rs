//! The progress of a request, and the plugins that take part in its response.

use std::rc::Rc;

use sigma_plugin::{Chain, Phase, PhaseSet};

use crate::snapshot::{Route, Snapshot};
use crate::worker::{View, Worker};

/// The progress of a request. It goes forward only.
pub(super) enum Stage {
    /// Its head was read. No plugin knows of it, and none sees the response.
    Opened,
    /// Its route was found; there are no plugins, or their turn has not come yet.
    Routed(u32),
    /// Plugins take part, of the global rules and of the route if one was found.
    Guided {
        /// The number of the route, valid if `is_found`: smaller than an option here.
        route: u32,
        is_found: bool,
        /// The route's plugins merged with the consumer's, once the consumer is known.
        merged: Option<Rc<Chain>>,
        /// The phases in which any of the plugins runs.
        hooks: PhaseSet,
    },
}

impl Stage {
    /// Returns the number of the matched route.
    pub(super) fn route_number(&self) -> Option<u32> {
        match self {
            Stage::Opened => None,
            Stage::Routed(number) => Some(*number),
            Stage::Guided { route, is_found, .. } => is_found.then_some(*route),
        }
    }

    /// Returns the matched route.
    pub(super) fn route<'s>(&self, snapshot: &'s Snapshot) -> Option<&'s Route> {
        snapshot.route(self.route_number()?)
    }

    /// Returns a copy for another exchange of the same request.
    pub(super) fn again(&self) -> Stage {
        match self {
            Stage::Opened => Stage::Opened,
            Stage::Routed(number) => Stage::Routed(*number),
            Stage::Guided { route, is_found, merged, hooks } => {
                Stage::Guided { route: *route, is_found: *is_found, merged: merged.clone(), hooks: *hooks }
            }
        }
    }

    /// Lets plugins take part from now on.
    pub(super) fn guide(&mut self, view: &View) {
        let route = self.route_number();
        let hooks = hooks(view, route, None);
        *self = Stage::Guided {
            route: route.unwrap_or_default(),
            is_found: route.is_some(),
            merged: None,
            hooks,
        };
    }

    /// Returns true if plugins take part, and [`sigma_plugin::Context::client`] is this client.
    pub(super) fn is_guided(&self) -> bool {
        matches!(self, Stage::Guided { .. })
    }

    /// Merges the consumer's plugins into the route's.
    pub(super) fn merge(&mut self, chain: Rc<Chain>, view: &View) {
        let route = self.route_number();
        if let Stage::Guided { merged, hooks: known, .. } = self {
            *known = hooks(view, route, Some(&chain));
            *merged = Some(chain);
        }
    }

    /// Returns the phases in which any plugin runs.
    #[inline]
    pub(super) fn hooks(&self) -> PhaseSet {
        match self {
            Stage::Guided { hooks, .. } => *hooks,
            Stage::Opened | Stage::Routed(_) => PhaseSet::default(),
        }
    }

    /// Returns the plugins that take part. None without any.
    #[inline]
    pub(super) fn in_force<'v, 'c>(&'v self, worker: &'c Worker, view: &'v View) -> Option<InForce<'v, 'c>> {
        match self {
            Stage::Guided { merged, hooks, .. } => {
                let route = self.route_number();
                Some(InForce { worker, view, route, merged: merged.as_deref(), hooks: *hooks })
            }
            _ => None,
        }
    }
}

/// The plugins that take part in one exchange.
pub(super) struct InForce<'v, 'c> {
    pub(super) worker: &'c Worker,
    pub(super) view: &'v View,
    route: Option<u32>,
    merged: Option<&'v Chain>,
    hooks: PhaseSet,
}

impl InForce<'_, '_> {
    /// Returns true if any of them runs in this phase.
    #[inline]
    pub(super) fn has_hooks(&self, phase: Phase) -> bool {
        self.hooks.contains(phase)
    }

    /// Returns their chains, global rules first.
    pub(super) fn chains(&self) -> impl Iterator<Item = &Chain> + Clone {
        chains(self.view, self.route, self.merged)
    }
}

/// Returns the active chains, global rules first. `merged` is the route's with a consumer's plugins. Empty ones are
/// omitted.
pub(super) fn chains<'v>(
    view: &'v View,
    route: Option<u32>,
    merged: Option<&'v Chain>,
) -> impl Iterator<Item = &'v Chain> + Clone + use<'v> {
    let snapshot = &view.snapshot;
    let route = route.and_then(|number| snapshot.route(number));
    let global = route.and_then(|route| route.global.as_deref()).unwrap_or(&snapshot.global);
    let own = merged.or(route.map(|route| &*route.chain));
    let own = own.filter(|chain| !chain.is_empty());
    Some(global).filter(|chain| !chain.is_empty()).into_iter().chain(own)
}

/// Returns the phases in which any plugin of these chains runs.
fn hooks(view: &View, route: Option<u32>, merged: Option<&Chain>) -> PhaseSet {
    chains(view, route, merged).fold(PhaseSet::default(), |all, chain| all.and(chain.hooks()))
}
