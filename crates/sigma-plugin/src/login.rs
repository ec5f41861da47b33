//! The result of a request's login, for plugins that count failures.

use std::sync::Arc;

use crate::{Context, Entry};

/// The result of a request's login, as far as it is known; see [`Context::login`].
#[derive(Debug, Default)]
pub struct Login {
    /// The plugin whose hook ended the request phases with a reply, and the status of that reply.
    responder: Option<(Arc<Entry>, u16)>,
    /// The plugin whose header filter replaced a successful response.
    replacer: Option<Arc<Entry>>,
    has_wrong: bool,
    has_unjudged: bool,
}

impl Login {
    /// Resets it.
    pub(crate) fn clear(&mut self) {
        (self.responder, self.replacer) = (None, None);
        (self.has_wrong, self.has_unjudged) = (false, false);
    }

    /// Records that a plugin ends the request phases with a reply of this status. For the gateway.
    pub fn set_responder(&mut self, entry: Arc<Entry>, status: u16) {
        self.responder = Some((entry, status));
    }

    /// Records that the header filter of a plugin replaces the response. For the gateway.
    pub fn set_replacer(&mut self, entry: Arc<Entry>) {
        self.replacer = Some(entry);
    }

    /// Returns the plugin whose header filter replaced the response; None without one.
    pub fn replacer(&self) -> Option<&Entry> {
        self.replacer.as_deref()
    }

    /// Returns the plugin that ended the request phases with a reply, and the status of that reply before other
    /// plugins changed it; None without one.
    pub fn responder(&self) -> Option<(&Entry, u16)> {
        self.responder.as_ref().map(|(entry, status)| (&**entry, *status))
    }

    /// Returns true if a plugin found a wrong credential.
    pub fn has_wrong(&self) -> bool {
        self.has_wrong
    }

    /// Returns true if every credential that was not accepted is one that no plugin could verify.
    pub fn is_unjudged(&self) -> bool {
        self.has_unjudged && !self.has_wrong
    }
}

impl Context {
    /// Records a wrong credential. A plugin that rejects such a request need not call it. One that continues, for
    /// example with an anonymous consumer, should.
    pub fn mark_wrong_credential(&mut self) {
        self.login.has_wrong = true;
    }

    /// Records a credential that cannot be verified, for example because a directory does not respond. A rejection
    /// for that reason is not a failed login.
    pub fn mark_unjudged_credential(&mut self) {
        self.login.has_unjudged = true;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wrong_credential_outweighs_an_unjudged_one() {
        let mut ctx = Context::default();
        assert!(!ctx.login.is_unjudged());
        ctx.mark_unjudged_credential();
        assert!(ctx.login.is_unjudged());
        ctx.mark_wrong_credential();
        assert!(ctx.login.has_wrong() && !ctx.login.is_unjudged());
        ctx.begin();
        assert!(!ctx.login.has_wrong() && ctx.login.responder().is_none());
    }
}
