//! The beginning of a session, before a node is chosen: its client, its route, and the decision of the route's
//! plugins.

use std::future::poll_fn;
use std::rc::Rc;
use std::sync::Arc;
use std::task::Poll;

use sigma_config::resources::Scheme;
use sigma_http::{Chunk, EarlyRefusal, Fault, FaultKind};
use sigma_net::tls::{ClientCertificate, Greeting};
use sigma_net::{Deadline, Stream};
use sigma_plugin::flow::TlsHello;
use sigma_plugin::{Client, FlowStep};

use super::trust::{Trust, untrusted};
use super::{End, Flow};
use crate::edge::admit::{greeted, introduced, shaken, unless_closing};
use crate::edge::connection::TlsSession;
use crate::edge::refusals;
use crate::snapshot::edge::{ListenerOptions, TlsOptions};
use crate::snapshot::flows::{Approach, FlowRoute};
use crate::snapshot::{Target, Upstream};
use crate::worker::View;

/// The protocol above TLS that clients of PostgreSQL offer.
const POSTGRES: &[u8] = b"postgresql";

/// The status of a session that sends no more although plugins want to see more, or too late.
const UNREADABLE: u16 = 503;

impl Flow<'_> {
    /// Accepts the session. Returns its stream, of which [`sigma_plugin::Session::early`] was read, and its
    /// route.
    pub(super) async fn enter(
        &mut self,
        mut stream: Stream,
        view: &View,
        listener: &ListenerOptions,
    ) -> Result<(Stream, Arc<FlowRoute>), End> {
        let worker = self.worker;
        let early = introduced(worker, &mut stream, &mut self.origin, listener).await;
        let mut early = early.ok_or(End::Nothing)?;
        self.session.client = Client { geography: view.geography.clone(), ..self.origin.client() };
        let mut greeting = None;
        if let Some(tls) = &listener.tls {
            let read = greeted(worker, &mut stream, &early, self.origin, listener, tls).await;
            let read = read.map_err(|_| End::Nothing)?;
            self.session.asked =
                Some(TlsHello { server_name: read.server_name().cloned(), alpn: read.alpn().to_vec() });
            if read.asks_proof() && tls.options.proofs.is_some() {
                // It ends with the handshake, regardless of the outcome.
                let _ = shaken(worker, stream, read, self.origin, listener, tls, &[]).await;
                return Err(End::Nothing);
            }
            early = Chunk::empty();
            greeting = Some((read, tls));
        }
        let approach = Approach { client: &self.session.client, asked: self.session.asked.as_ref() };
        let Some(route) = view.snapshot.flows.find(&approach).cloned() else {
            let detail = match self.session.asked.as_ref().map(|asked| asked.server_name.as_deref()) {
                None => "no stream route matches this session".to_owned(),
                Some(None) => "no stream route matches a TLS session without a server name".to_owned(),
                Some(Some(name)) => format!("no stream route matches the TLS server name {name}"),
            };
            let place = Some(&listener.place);
            refusals::note(worker, EarlyRefusal::NoStreamRoute, self.origin.peer, place, &detail);
            if let Some((greeting, _)) = greeting {
                greeting.refuse(&mut stream);
            }
            return Err(Fault::new(FaultKind::NoRoute, "no stream route matches this session").into());
        };
        self.session.route = Arc::clone(&route.facts);
        self.session.early = early;
        if let Some((greeting, tls)) = greeting {
            stream = self.through_tls(stream, greeting, listener, tls, &route).await?;
        }
        self.enter_route(&route);
        self.preread(Some(&mut stream), view).await?;
        Ok((stream, route))
    }

    /// Assigns the route to the session, with its participating plugins.
    pub(super) fn enter_route(&mut self, route: &FlowRoute) {
        self.session.route = Arc::clone(&route.facts);
        self.plugins = route.chain.entries().to_vec();
        // Decided once: a fact that a plugin adds to the session later activates no other plugin.
        self.plugins.retain(|entry| entry.meta.filter.is_empty() || entry.meta.filter.eval(&self.session));
    }

    /// Ends the client's TLS here, or leaves it to the node.
    async fn through_tls(
        &mut self,
        stream: Stream,
        greeting: Greeting,
        listener: &ListenerOptions,
        tls: &TlsOptions,
        route: &FlowRoute,
    ) -> Result<Stream, End> {
        if route.passes_tls {
            self.session.early = Chunk::copy_of(greeting.bytes());
            self.requests_tls = greeting.was_requested();
            return Ok(stream);
        }
        // Clients of PostgreSQL that begin with TLS leave where nothing is agreed on.
        let own = [POSTGRES.to_vec()];
        let offers = greeting.alpn().iter().any(|offered| offered == POSTGRES);
        let alpn = if route.alpn.is_empty() && offers { &own[..] } else { &route.alpn };
        let shaken = shaken(self.worker, stream, greeting, self.origin, listener, tls, alpn).await;
        let stream = shaken.ok_or(End::Nothing)?;
        let asks = |facts: &sigma_net::tls::Facts| {
            let identity = facts.identity.as_ref();
            identity.is_some_and(|identity| identity.client_auth().is_some())
                && facts.client_certificate != ClientCertificate::Verified
        };
        if stream.tls().is_some_and(asks) {
            // Paths that need no certificate are paths of requests: a session has no path.
            return Err(untrusted(false).into());
        }
        if let Some(session) = TlsSession::of(&stream) {
            self.session.client.tls = Some(Rc::clone(&session.tls));
            self.trust = Some(Box::new(Trust::watch(session)));
        }
        Ok(stream)
    }

    /// Runs the plugins, in order. Without a stream nothing more can be read for them: a datagram is complete.
    pub(super) async fn preread(&mut self, mut stream: Option<&mut Stream>, view: &View) -> Result<(), End> {
        let deadline = Deadline::new();
        deadline.set(view.snapshot.settings.timeouts.stream_preread_ms.into());
        for entry in self.plugins.clone() {
            let env = self.worker.env(view);
            let mut step = entry.plugin.preread(&mut self.session, &env);
            loop {
                step = match step {
                    FlowStep::Next => break,
                    FlowStep::Close(status) => return Err(End::Closed(status)),
                    FlowStep::More => {
                        let stream = stream.as_deref_mut().ok_or(End::Closed(UNREADABLE))?;
                        self.read_more(stream, view, &deadline).await?;
                        let env = self.worker.env(view);
                        entry.plugin.preread(&mut self.session, &env)
                    }
                    FlowStep::Wait(work) => {
                        unless_closing(self.worker, work).await.ok_or(End::Closed(UNREADABLE))?
                    }
                };
            }
        }
        Ok(())
    }

    /// Reads more of the client's bytes.
    async fn read_more(&mut self, stream: &mut Stream, view: &View, deadline: &Deadline) -> Result<(), End> {
        let most = view.snapshot.settings.limits.stream_preread_bytes as usize;
        let early = &mut self.session.early;
        if early.len() >= most {
            return Err(End::Closed(UNREADABLE));
        }
        if !early.is_empty() {
            early.make_room(most);
        }
        let read = poll_fn(|cx| {
            if deadline.poll_expired(cx).is_ready() {
                return Poll::Ready(None);
            }
            stream.poll_fill(cx, early).map(Result::ok)
        });
        match unless_closing(self.worker, read).await.flatten() {
            Some(n) if n > 0 => Ok(()),
            _ => Err(End::Closed(UNREADABLE)),
        }
    }

    /// Returns the upstream of the session: the one that a plugin has chosen, or the route's.
    pub(super) fn upstream(&self, view: &View, route: &FlowRoute) -> Result<(u32, Arc<Upstream>), End> {
        let number = match &self.session.upstream {
            Some(key) => view.snapshot.upstream_number(key),
            None => match route.target {
                Target::Upstream(number) => Some(number),
                _ => None,
            },
        };
        Ok(known(view, number)?)
    }
}

/// Returns the upstream with this number, if it is for sessions.
pub(super) fn known(view: &View, number: Option<u32>) -> Result<(u32, Arc<Upstream>), Fault> {
    let found = number.and_then(|number| Some((number, Arc::clone(view.snapshot.upstream(number)?))));
    let missing = || Fault::new(FaultKind::NoUpstream, "the stream route has no upstream");
    let (number, upstream) = found.ok_or_else(missing)?;
    if !upstream.config.scheme.carries_sessions() {
        return Err(Fault::new(FaultKind::NoUpstream, Scheme::NO_SESSIONS));
    }
    if !upstream.members.is_empty() {
        let reason = "an upstream with members is for requests, not for sessions";
        return Err(Fault::new(FaultKind::NoUpstream, reason));
    }
    Ok((number, upstream))
}
