//! The properties of a request that decide on its node: the key of consistent hashing, the session, and the wanted
//! metadata.

use super::{Exchange, client};
use crate::attempt::attempts::Choice;
use crate::snapshot::Upstream;

impl Exchange<'_, '_> {
    /// Returns the properties that the rules of an upstream need; None if they need none.
    pub(super) fn choice(&mut self, upstream: &Upstream) -> Option<Box<Choice>> {
        if let Some(destinations) = &upstream.destinations {
            return Some(Box::new(Choice::destined(destinations.of(self.down.origin()))));
        }
        if upstream.selection.affinity.is_none()
            && upstream.selection.hash_key.is_none()
            && upstream.selection.criteria.is_none()
        {
            return None;
        }
        let affinity = upstream.selection.affinity.as_deref();
        let asks_variables = upstream.selection.hash_key.is_some()
            || upstream.selection.criteria.is_some()
            || affinity.is_some_and(|affinity| affinity.asks_variables());
        if asks_variables && !self.stage.is_guided() {
            self.scratch.ctx.client = client(&self.down, &self.view, self.scratch.told);
        }
        let session = affinity.map(|affinity| affinity.session(&self.scratch.ctx)).unwrap_or_default();
        let request = &self.scratch.ctx;
        let key = upstream
            .selection
            .key_of(request, || request.remote_addr().into_bytes())
            .map(Vec::into_boxed_slice);
        Some(Box::new(Choice::new(key, session, upstream.selection.subset_of(request))))
    }
}
