//! Persons whom no plugin marks, so that their responses are kept apart all the same.

use sigma_plugin::Chain;

use super::Exchange;
use crate::exchange::stage::{Stage, chains};

impl Exchange<'_, '_> {
    /// Marks the persons whom no plugin marks: the one whom a plugin has let in without saying who it is, and the
    /// holder of a client certificate that was asked for.
    pub(super) fn mark_person(&mut self) {
        if self.has_unmarked_person() {
            self.scratch.ctx.mark_personal("", None);
        }
        if let Some(tls) = self.down.tls()
            && tls.client_verify == "SUCCESS"
        {
            let name = tls.client_fingerprint.as_deref().map(str::as_bytes);
            self.scratch.ctx.mark_personal("client certificate", name);
        }
    }

    /// Whether a plugin that identifies persons has let the request in and said nothing of any.
    fn has_unmarked_person(&mut self) -> bool {
        let Stage::Guided { merged, .. } = &self.stage else { return false };
        let ctx = &mut self.scratch.ctx;
        if ctx.personal.is_marked() || ctx.identity.is_some() {
            return false;
        }
        let chains = chains(&self.view, self.stage.route_number(), merged.as_deref());
        let identifying = chains.flat_map(Chain::entries).filter(|entry| entry.identifies());
        // One that knows no person says nothing of another plugin that is silent.
        identifying.filter(|entry| ctx.admits(entry)).count() > usize::from(ctx.personal.passed_unknown())
    }
}
