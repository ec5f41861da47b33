//! What of a request decides on its node: the key of consistent hashing, and the session.

use sigma_config::expr::{VarValue, Variables};

use super::{Exchange, client};
use crate::attempts::Choice;
use crate::snapshot::{HashKey, Upstream};

impl Exchange<'_, '_> {
    /// The wishes that the rules of an upstream ask for.
    pub(super) fn choice(&mut self, upstream: &Upstream) -> Choice {
        let headers = &self.scratch.ctx.request.headers;
        let session = upstream.affinity.as_deref().and_then(|affinity| affinity.session(headers));
        Choice { key: self.hash_key(upstream).map(Vec::into_boxed_slice), session }
    }

    fn hash_key(&mut self, upstream: &Upstream) -> Option<Vec<u8>> {
        let source = upstream.hash_key.as_ref()?;
        if !self.stage.is_guided() {
            self.scratch.ctx.client = client(&self.down);
        }
        let request = &self.scratch.ctx;
        let key = match source {
            HashKey::Variable(name) => match Variables::get(request, name) {
                Some(VarValue::Text(text)) => Some(text.into_owned()),
                _ => None,
            },
            HashKey::Template(template) => {
                let mut text = Vec::new();
                (template.render(request, &mut text) > 0).then_some(text)
            }
        };
        Some(key.unwrap_or_else(|| request.remote_addr().into_bytes()))
    }
}
