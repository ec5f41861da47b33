//! An exchange in its instance.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

use sigma_http::Headers;
use sigma_plugin::Context;
use sigma_plugin::record::Source;
use sigma_plugin_kit::tallies::Tally;

use super::pool::{Aborted, Lease};
use super::state::{BUFFER_RESPONSE, Handled, TRAILERS};
use crate::current::{self, Hook, Parts};
use crate::events::Event;
use crate::usage::Shared;

/// An exchange whose request has gone on.
pub(crate) struct Exchange {
    pub(crate) plugin: Arc<Shared>,
    /// None once the module has handled the response.
    lease: RefCell<Option<Lease>>,
    tally: Tally<Event>,
    stream: u32,
    /// The module's number for the exchange.
    token: u32,
    /// The response waits for the module.
    pub(crate) holds_response: bool,
    /// The module can add trailers.
    pub(crate) has_trailers: bool,
    /// Fields that the module has set in advance.
    fields: Headers,
    /// Bytes that the module has written in advance: they come before the body of the response.
    start: RefCell<Vec<u8>>,
}

impl Exchange {
    pub(crate) fn new(plugin: &Arc<Shared>, mut lease: Lease, stream: u32, token: u32) -> Rc<Exchange> {
        let begin = |handled: &mut Handled| {
            handled.is_after_next = true;
            let start = handled.response_written.take().unwrap_or_default();
            (handled.features, std::mem::take(&mut handled.fields), start)
        };
        let begun = lease.state(|state| state.handling.exchange.as_mut().map(begin));
        let (features, fields, start) = begun.flatten().unwrap_or_default();
        Rc::new(Exchange {
            plugin: Arc::clone(plugin),
            tally: lease.tally.clone(),
            lease: RefCell::new(Some(lease)),
            stream,
            token,
            holds_response: features & BUFFER_RESPONSE != 0,
            has_trailers: features & TRAILERS != 0,
            fields,
            start: RefCell::new(start),
        })
    }

    /// Returns true if the module has handled the response.
    pub(crate) fn is_over(&self) -> bool {
        self.lease.borrow().is_none()
    }

    pub(crate) fn count(&self, event: Event) {
        self.tally.count(event);
    }

    /// Takes the bytes that the module has written in advance.
    pub(crate) fn take_start(&self) -> Vec<u8> {
        self.start.take()
    }

    /// Returns true if the module has written bytes in advance.
    pub(crate) fn has_start(&self) -> bool {
        !self.start.borrow().is_empty()
    }

    /// Adds the fields that the module has set in advance.
    pub(crate) fn add_fields(&self, ctx: &mut Context) {
        for (name, value) in self.fields.iter() {
            if let Ok(name) = std::str::from_utf8(name) {
                ctx.response.headers.append(name, value);
            }
        }
    }

    /// Runs the module for the response; returns the new body, if it has written one.
    ///
    /// # Errors
    /// Returns an error if the module is aborted.
    pub(crate) fn respond(
        &self,
        hook: Hook,
        ctx: &mut Context,
        parts: &mut Parts,
    ) -> Result<Option<Vec<u8>>, Aborted> {
        let Some(mut lease) = self.lease.take() else { return Err(Aborted::Failed) };
        let is_cut = hook == Hook::Log && (self.holds_response || ctx.record.fault.is_some());
        let is_error = is_cut || ctx.record.source == Source::Fault;
        current::during(self.stream, hook, ctx, parts, || {
            lease.call("handle_response", |store, exports| {
                exports.response.call(store, (self.token, is_error.into()))
            })
        })?;
        let written = |handled: &mut Handled| handled.response_written.take();
        Ok(lease.state(|state| state.handling.exchange.as_mut().and_then(written)).flatten())
    }

    /// Runs the module at the end of the exchange, if it has not handled the response.
    pub(crate) fn end(&self, ctx: &mut Context) {
        if !self.is_over() {
            let _ = self.respond(Hook::Log, ctx, &mut Parts::default());
        }
    }
}

impl Drop for Exchange {
    fn drop(&mut self) {
        // It has no log phase.
        if let Some(lease) = self.lease.get_mut() {
            lease.discard();
        }
    }
}
