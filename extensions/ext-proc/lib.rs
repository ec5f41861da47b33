//! External processors: servers of Envoy's `ext_proc` protocol that read and change messages.

mod attributes;
mod body;
mod config;
mod duplex;
mod events;
mod fields;
mod http;
mod immediate;
mod messages;
mod mode;
mod request;
mod response;
mod rules;
mod session;
#[cfg(test)]
mod tests;
mod watch;

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

use sigma_http::Headers;
use sigma_plugin::outbound::StreamCall;
use sigma_plugin::{
    BodyFilter, Build, Context, Descriptor, Env, Phase, PhaseSet, Plugin, ResponseStep, Slot, Step,
};
use sigma_plugin_kit::service::{cleartext, unverified};
use sigma_plugin_kit::tallies::{Counted, counted};

use config::{Config, SERVICE};
use events::Event;
use messages::PROCESS;
use session::Session;

#[cfg(test)]
#[path = "../../plugins/testing.rs"]
mod testing;

/// The plugins of this group, in the order of their names.
pub static ROSTER: &[&Descriptor] = &[&EXT_PROC];

/// The plugin.
static EXT_PROC: Descriptor = Descriptor {
    name: "ext-proc",
    priority: 1990,
    example: include_str!("example.md"),
    phases: PhaseSet::of(&[Phase::Access, Phase::RequestFilter, Phase::HeaderFilter, Phase::BodyFilter]),
    guards: true,
    identifies: true,
    warnings: Some(|_, conf| {
        let services = ["grpc_service", "http_service"].into_iter();
        let of = |name| {
            let service = conf.get(name)?;
            let asked = "the processor is called in cleartext";
            let clear = cleartext(service, "uri", asked);
            let unverified = unverified(service, "another server can impersonate the processor");
            Some(clear.into_iter().chain(unverified).map(move |mut problem| {
                problem.pointer = format!("{name}/{}", problem.pointer);
                problem
            }))
        };
        services.filter_map(of).flatten().collect()
    }),
    upstreams: Some(|conf| {
        let config = <Config as serde::Deserialize>::deserialize(conf).ok();
        config.and_then(|config| config.upstream()).into_iter().collect()
    }),
    build: |build| Ok(Arc::new(ExtProc::new(build)?)),
    ..Descriptor::of::<Config>()
};

/// One instance.
struct ExtProc {
    config: Arc<Config>,
    /// The key of the processor's upstream.
    upstream: Box<str>,
    counted: Counted<Event>,
}

/// The session of an exchange, as it is kept.
type Shared = Rc<RefCell<Session>>;

impl ExtProc {
    fn new(build: &Build<'_>) -> Result<ExtProc, String> {
        let upstream = build.upstream_key(SERVICE).into();
        let counted = counted(build.node, build.resource);
        Ok(ExtProc { config: Arc::new(build.config()?), upstream, counted })
    }

    /// Returns the call of a stream for the exchange of `ctx`; None with an HTTP service.
    fn call(&self, ctx: &Context) -> Option<StreamCall> {
        let service = self.config.grpc_service.as_ref()?;
        let mut headers = Headers::default();
        for (name, value) in &service.initial_metadata {
            headers.append(name, value.as_bytes());
        }
        Some(StreamCall {
            upstream: self.upstream.clone(),
            target: PROCESS.into(),
            host: service.uri.host.clone(),
            headers,
            passes: ctx.passes(),
            limit: self.config.answer_bytes(),
        })
    }
}

impl Plugin for ExtProc {
    fn access(&self, ctx: &mut Context, env: &Env<'_>) -> Step {
        let call = self.call(ctx);
        if self.config.observability_mode {
            // It decides nothing about the request's sender.
            ctx.mark_unknown();
            if let Some(call) = call {
                watch::begin(self, call, ctx, env);
            }
            return Step::Next;
        }
        let stream = call.map(|call| env.outbound.open_stream(call));
        let tally = self.counted.tally(env.local);
        let session: Shared = Rc::new(RefCell::new(Session::new(Arc::clone(&self.config), tally, stream)));
        ctx.keep(Slot::from(self), Rc::clone(&session));
        match &self.config.http_service {
            Some(service) => http::request(&session, service, &self.upstream, ctx, env),
            None => request::begin(&session, ctx, env),
        }
    }

    fn request_filter(&self, ctx: &mut Context, _: &Env<'_>) -> Option<Box<dyn BodyFilter>> {
        if self.config.observability_mode {
            return watch::filter(self, session::Direction::Request, ctx);
        }
        let session = Rc::clone(ctx.kept::<_, Shared>(self)?);
        request::filter(&session, ctx)
    }

    fn header_filter(&self, ctx: &mut Context, env: &Env<'_>) -> ResponseStep {
        if self.config.observability_mode {
            watch::response(self, ctx, env);
            return ResponseStep::Next;
        }
        let Some(session) = ctx.kept::<_, Shared>(self).map(|session| Rc::clone(session)) else {
            return ResponseStep::Next;
        };
        match &self.config.http_service {
            Some(service) => http::response(&session, service, &self.upstream, ctx, env),
            None => response::begin(&session, ctx, env),
        }
    }

    fn body_filter(&self, ctx: &mut Context, _: &Env<'_>) -> Option<Box<dyn BodyFilter>> {
        if self.config.observability_mode {
            return watch::filter(self, session::Direction::Response, ctx);
        }
        let session = Rc::clone(ctx.kept::<_, Shared>(self)?);
        response::filter(&session, ctx)
    }
}
