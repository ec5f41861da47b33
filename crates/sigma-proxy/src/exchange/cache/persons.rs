//! Users that no plugin marks, whose responses must stay apart nevertheless.

use sigma_plugin::Chain;

use super::Exchange;
use crate::exchange::stage::{Stage, chains};

impl Exchange<'_, '_> {
    /// Marks users that no plugin marks: a user whom a plugin has admitted without a mark, and the holder of a
    /// requested client certificate.
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

    /// Returns true if an identifying plugin has admitted the request without a mark.
    fn has_unmarked_person(&mut self) -> bool {
        let Stage::Guided { merged, .. } = &self.stage else { return false };
        let ctx = &mut self.scratch.ctx;
        if ctx.personal.is_marked() || ctx.identity.is_some() {
            return false;
        }
        let chains = chains(&self.view, self.stage.route_number(), merged.as_deref());
        let identifying = chains.flat_map(Chain::entries).filter(|entry| entry.identifies());
        // One that has admitted it without a user does not speak for another plugin without a mark.
        identifying.filter(|entry| ctx.admits(entry)).count() > usize::from(ctx.personal.passed_unknown())
    }
}
