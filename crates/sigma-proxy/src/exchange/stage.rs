//! How far a request has come, and who has a say in its answer.

use std::rc::Rc;

use sigma_plugin::{Chain, Phase, PhaseSet};

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
        /// The number of the route that was found, and whether one was: smaller than an option beside the phases.
        route: u32,
        is_found: bool,
        /// The route's plugins together with those of the consumer, once it is known.
        merged: Option<Rc<Chain>>,
        /// The phases in which any of them runs.
        hooks: PhaseSet,
    },
}

impl Stage {
    /// The number of the route that was found.
    pub(super) fn route_number(&self) -> Option<u32> {
        match self {
            Stage::Opened => None,
            Stage::Routed(number) => Some(*number),
            Stage::Guided { route, is_found, .. } => is_found.then_some(*route),
        }
    }

    /// The route that was found.
    pub(super) fn route<'s>(&self, snapshot: &'s Snapshot) -> Option<&'s Route> {
        snapshot.route(self.route_number()?)
    }

    /// The same for another exchange of the same request.
    pub(super) fn again(&self) -> Stage {
        match self {
            Stage::Opened => Stage::Opened,
            Stage::Routed(number) => Stage::Routed(*number),
            Stage::Guided { route, is_found, merged, hooks } => {
                Stage::Guided { route: *route, is_found: *is_found, merged: merged.clone(), hooks: *hooks }
            }
        }
    }

    /// Plugins take part from now on.
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

    /// Whether plugins take part, and [`sigma_plugin::Context::client`] is this client.
    pub(super) fn is_guided(&self) -> bool {
        matches!(self, Stage::Guided { .. })
    }

    /// The consumer's plugins join the route's.
    pub(super) fn merge(&mut self, chain: Rc<Chain>, view: &View) {
        let route = self.route_number();
        if let Stage::Guided { merged, hooks: known, .. } = self {
            *known = hooks(view, route, Some(&chain));
            *merged = Some(chain);
        }
    }

    /// The phases in which any plugin runs.
    #[inline]
    pub(super) fn hooks(&self) -> PhaseSet {
        match self {
            Stage::Guided { hooks, .. } => *hooks,
            Stage::Opened | Stage::Routed(_) => PhaseSet::default(),
        }
    }

    /// The plugins that take part; None if none do.
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
    /// Whether any of them runs in this phase.
    #[inline]
    pub(super) fn has_hooks(&self, phase: Phase) -> bool {
        self.hooks.contains(phase)
    }

    /// Their chains, global rules first.
    pub(super) fn chains(&self) -> impl Iterator<Item = &Chain> + Clone {
        chains(self.view, self.route, self.merged)
    }
}

/// The chains that are in force, global rules first; `merged` is the route's with a consumer's
/// plugins. Empty ones are left out.
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

/// The phases in which any plugin of these chains runs.
fn hooks(view: &View, route: Option<u32>, merged: Option<&Chain>) -> PhaseSet {
    chains(view, route, merged).fold(PhaseSet::default(), |all, chain| all.and(chain.hooks()))
}
