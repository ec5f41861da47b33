//! What of a request decides on its node: the key of consistent hashing, the session, and the
//! metadata that it asks for.

use sigma_config::expr::{VarValue, Variables};
use sigma_upstream::balance::ask_for;

use super::{Exchange, client};
use crate::attempts::Choice;
use crate::snapshot::{HashKey, Upstream};

impl Exchange<'_, '_> {
    /// The wishes that the rules of an upstream ask for; None if they ask for none.
    pub(super) fn choice(&mut self, upstream: &Upstream) -> Option<Box<Choice>> {
        if upstream.affinity.is_none() && upstream.hash_key.is_none() && upstream.criteria.is_none() {
            return None;
        }
        let affinity = upstream.affinity.as_deref();
        let asks_variables = upstream.hash_key.is_some()
            || upstream.criteria.is_some()
            || affinity.is_some_and(|affinity| affinity.asks_variables());
        if asks_variables && !self.stage.is_guided() {
            self.scratch.ctx.client = client(&self.down, &self.view);
        }
        let session = affinity.map(|affinity| affinity.session(&self.scratch.ctx)).unwrap_or_default();
        let key = self.hash_key(upstream).map(Vec::into_boxed_slice);
        Some(Box::new(Choice { key, session, subset: self.subset(upstream), given: None }))
    }

    /// The metadata that the node is to have.
    fn subset(&self, upstream: &Upstream) -> Option<Box<[u8]>> {
        let (mut wanted, mut value) = (Vec::new(), Vec::new());
        for (key, template) in upstream.criteria.as_deref()? {
            value.clear();
            let rendered = template.render(&self.scratch.ctx, &mut value);
            if rendered > 0 || template.literal().is_some() {
                ask_for(&mut wanted, key, &value);
            }
        }
        Some(wanted.into_boxed_slice())
    }

    fn hash_key(&self, upstream: &Upstream) -> Option<Vec<u8>> {
        let source = upstream.hash_key.as_ref()?;
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
