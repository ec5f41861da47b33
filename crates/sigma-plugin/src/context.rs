//! The data of one exchange that hooks see and change.

use std::any::Any;
use std::borrow::Cow;
use std::cell::OnceCell;
use std::net::{IpAddr, SocketAddr};
use std::rc::Rc;
use std::sync::Arc;
use std::task::{self, Poll};

use sigma_config::resources::{PluginConfig, Route, Service};
use sigma_http::{Fault, Frame, HeaderId, RequestHead, ResponseHead};

pub use crate::body_copy::BodyCopy;
use crate::cache::CacheWish;
use crate::client_chain::ClientChain;
use crate::consumer::{Consumer, Identity};
use crate::credentials::Credentials;
use crate::dubbo::DubboCall;
use crate::geography::Geography;
use crate::login::Login;
use crate::owned::OwnedFields;
use crate::pace::{Direction, Pace, Paces};
use crate::personal::Personal;
use crate::record::Record;
use crate::{BodyFilter, Entry, Phase, Plugin, Reply, hex};

/// The client of a request, as far as it is known.
#[derive(Debug, Clone, Default)]
pub struct Client {
    /// The client's address: the direct peer's, unless a plugin believed a proxy before it. None
    /// for Unix sockets.
    pub addr: Option<IpAddr>,
    /// The client's port; 0 if unknown.
    pub port: u16,
    /// The direct peer's address.
    pub peer: Option<IpAddr>,
    /// The direct peer's port; 0 if unknown.
    pub peer_port: u16,
    /// The direct peer and `local` are what a PROXY header said.
    pub is_proxied: bool,
    /// When the connection was accepted; see [`crate::variables::tick`].
    pub opened: u32,
    /// The address that was connected to.
    pub local: Option<SocketAddr>,
    /// Number of the connection, unique in its worker.
    pub connection: u64,
    /// The facts about the TLS session, if there is one.
    pub tls: Option<Rc<Tls>>,
    /// Where addresses are, if databases say.
    pub geography: Option<Rc<Geography>>,
}

/// Facts of a TLS session.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Tls {
    /// The name the client asked for.
    pub server_name: Option<String>,
    /// `TLSv1.3` …
    pub protocol: &'static str,
    /// What the client's first message looks like (JA4).
    pub ja4: Option<String>,
    /// The cipher suite's name.
    pub cipher: String,
    /// How the key was agreed on; empty if that is not known.
    pub key_exchange: &'static str,
    /// The protocol above TLS that was agreed on.
    pub alpn: Option<String>,
    /// The session goes on from an earlier connection.
    pub is_resumed: bool,
    /// `SUCCESS`, `NONE` or `FAILED`.
    pub client_verify: String,
    /// Subject of the client's certificate (RFC 4514).
    pub client_subject: Option<String>,
    /// Issuer of the client's certificate (RFC 4514).
    pub client_issuer: Option<String>,
    /// Serial number of the client's certificate, hexadecimal.
    pub client_serial: Option<String>,
    /// SHA-1 of the client's certificate, hexadecimal, as nginx has it.
    pub client_fingerprint: Option<String>,
    /// The client's certificate, PEM.
    pub client_cert: Option<String>,
    /// The client's certificate, PEM, percent-encoded.
    pub client_escaped_cert: Option<String>,
    /// All that the client has shown; None if it has shown no certificate.
    pub client_chain: Option<Box<ClientChain>>,
}

impl Tls {
    /// The fact that nginx calls `$ssl_` and this name.
    pub fn fact(&self, name: &str) -> Option<&str> {
        match name {
            "protocol" => Some(self.protocol),
            "cipher" => Some(&self.cipher),
            "curve" => Some(self.key_exchange).filter(|name| !name.is_empty()),
            "alpn_protocol" => self.alpn.as_deref(),
            "session_reused" => Some(if self.is_resumed { "r" } else { "." }),
            "server_name" => self.server_name.as_deref(),
            "ja4" => self.ja4.as_deref(),
            "client_verify" => Some(&self.client_verify),
            "client_s_dn" => self.client_subject.as_deref(),
            "client_i_dn" => self.client_issuer.as_deref(),
            "client_serial" => self.client_serial.as_deref(),
            "client_fingerprint" => self.client_fingerprint.as_deref(),
            "client_raw_cert" => self.client_cert.as_deref(),
            "client_escaped_cert" => self.client_escaped_cert.as_deref(),
            // Who is not verified is nobody.
            "client_spiffe_id" if self.client_verify == "SUCCESS" => self.client_chain.as_ref()?.spiffe_id(),
            _ => None,
        }
    }
}

/// The resources that a route is made of, as they were written.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct RouteResources {
    /// The route itself.
    pub route: Option<Arc<Route>>,
    /// Its service.
    pub service: Option<Arc<Service>>,
    /// Its plugin config.
    pub plugin_config: Option<Arc<PluginConfig>>,
}

/// The facts about the matched route.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct RouteFacts {
    /// Its identity.
    pub id: Box<str>,
    /// Its name.
    pub name: Option<Box<str>>,
    /// Its service's identity.
    pub service_id: Option<Box<str>>,
    /// Its service's name.
    pub service_name: Option<Box<str>>,
    /// Its path patterns.
    pub uris: Box<[Box<str>]>,
    /// Its host patterns, its own or its service's.
    pub hosts: Box<[Box<str>]>,
    /// What it is made of; shared with the configuration.
    pub resources: RouteResources,
}

/// Parameters of a matched path pattern, in order. Recycled: it keeps the memory of its texts.
#[derive(Debug, Clone, Default)]
pub struct PathParams {
    texts: Vec<(String, Vec<u8>)>,
    /// How many of `texts` are of this exchange.
    len: usize,
}

impl PathParams {
    /// Forgets all.
    pub fn clear(&mut self) {
        self.len = 0;
    }

    /// Adds a parameter.
    pub fn push(&mut self, name: &str, value: &[u8]) {
        if self.len == self.texts.len() {
            self.texts.push(Default::default());
        }
        let (own_name, own_value) = &mut self.texts[self.len];
        own_name.clear();
        own_name.push_str(name);
        own_value.clear();
        own_value.extend_from_slice(value);
        self.len += 1;
    }

    /// The value of this name; of equal names in one pattern the last one counts.
    pub fn get(&self, name: &str) -> Option<&[u8]> {
        let params = &self.texts[..self.len];
        params.iter().rev().find(|(known, _)| known == name).map(|(_, value)| &value[..])
    }
}

/// The place where one instance of a plugin keeps values in an exchange.
///
/// It is the place of the instance in memory, which is nobody else's while the exchange lasts: the
/// configuration that it runs under holds its instances.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Slot(usize);

impl<P: Plugin> From<&P> for Slot {
    fn from(plugin: &P) -> Slot {
        Slot(std::ptr::from_ref(plugin).addr())
    }
}

/// The value of a variable that a plugin set.
enum Held {
    Text(Vec<u8>),
    /// Made for each who reads it.
    Made(Box<dyn Fn() -> Vec<u8>>),
}

/// One exchange, as plugins see it. Reused for one exchange after another.
#[derive(Default)]
pub struct Context {
    /// The request as it will be sent to the node, but for what the gateway adds there. The
    /// request line stays the client's; see `target`.
    pub request: RequestHead,
    /// The response: the node's or the gateway's.
    pub response: ResponseHead,
    /// The normalised path, `$uri`; later rewrites do not change it.
    pub uri: Vec<u8>,
    /// Path and query that the node is asked for; empty for what the client sent.
    pub target: Vec<u8>,
    /// Host that the node is asked for if `pass_host` is `pass`; None for the client's.
    pub host: Option<Vec<u8>>,
    /// Fields about the client that the node gets as they came: among X-Forwarded-For and X-Real-IP.
    pub untouched: Vec<HeaderId>,
    /// The fields that plugins of this exchange own, where its body may end with trailers.
    pub owned: Vec<Arc<OwnedFields>>,
    /// The credentials of its plugins, which logs and traces hide. Empty until the exchange is over.
    pub credentials: Vec<Arc<Credentials>>,
    /// The upstream to use in place of the route's: `upstreams/1`, or a key made by
    /// [`crate::Build::upstream_key`].
    pub upstream: Option<Box<str>>,
    /// The request body once it was read whole; what stands here goes to the node.
    pub body: Option<Vec<u8>>,
    /// Most bytes of the request body that the client may send, as a plugin has it; 0 for the limit of the gateway alone.
    /// See [`Context::limit_request_body`].
    pub request_body_limit: u64,
    /// A plugin makes the call of gRPC that the node gets of something else: what the gateway itself answers is in the
    /// client's terms, not in gRPC's.
    pub is_translated: bool,
    /// What the request calls of a provider of Dubbo; None for a node that speaks as its upstream says.
    pub dubbo: Option<Box<DubboCall>>,
    /// What a plugin wants of the cache of answers; None for nothing.
    pub cache: Option<Box<CacheWish>>,
    /// What keeps the node's answer: a filter before those of all plugins. The gateway's own.
    pub keeper: Option<Box<dyn BodyFilter>>,
    /// What the client is answered in place of a body that a filter gives up; see [`BodyFilter::holds_head`].
    pub instead: Option<Box<Reply>>,
    /// What slows its bodies down, and its tunnel; None if nothing does.
    pub paces: Option<Box<Paces>>,
    /// A copy of what passes of the request body, for plugins that only look.
    pub request_copy: Option<Rc<BodyCopy>>,
    /// The client of the request.
    pub client: Client,
    /// The matched route.
    pub route: Option<Arc<RouteFacts>>,
    /// Parameters of the matched path pattern.
    pub params: PathParams,
    /// The consumer that the request is from, once it is authenticated.
    pub identity: Option<Arc<Identity>>,
    /// What plugins have said of the person behind it.
    pub personal: Personal,
    /// The result of its login.
    pub login: Login,
    /// How many exchanges it was asked for within; 0 for what a client sent. See [`crate::Step::Ask`].
    pub within: u8,
    /// How it went.
    pub record: Record,
    /// The request's id, once somebody asked for it or set it.
    pub(crate) request_id: OnceCell<RequestId>,
    /// Variables that plugins set, by name.
    variables: Vec<(Cow<'static, str>, Held)>,
    /// The verdicts of the filters of each [`Entry`], evaluated once per exchange.
    verdicts: Vec<(usize, bool)>,
    /// Plugins that do not run any more in this exchange, by name.
    skipped: Vec<Box<str>>,
    /// The values that plugins keep over the phases of this exchange.
    kept: Vec<(Slot, Box<dyn Any>)>,
}

/// The id of a request.
#[derive(Debug, Clone)]
pub(crate) enum RequestId {
    /// Made up; digits.
    Made([u8; 32]),
    /// Somebody has chosen it.
    Set(Box<str>),
}

impl RequestId {
    /// Unlike all others, but not a secret: whoever knows many of them may guess the next.
    fn make() -> RequestId {
        let mut digits = [0; 32];
        hex::write(&fastrand::u128(..).to_ne_bytes(), &mut digits);
        RequestId::Made(digits)
    }
}

impl Context {
    /// Makes it ready for another exchange, keeping its memory. The request head stays.
    pub fn begin(&mut self) {
        self.response.clear();
        self.uri.clear();
        self.target.clear();
        self.host = None;
        self.untouched.clear();
        self.owned.clear();
        self.credentials.clear();
        self.upstream = None;
        self.body = None;
        self.request_body_limit = 0;
        self.is_translated = false;
        self.dubbo = None;
        self.cache = None;
        self.keeper = None;
        self.instead = None;
        self.paces = None;
        self.request_copy = None;
        self.route = None;
        self.params.clear();
        self.identity = None;
        self.personal.clear();
        self.login.clear();
        self.within = 0;
        self.record.clear();
        self.request_id = OnceCell::new();
        self.variables.clear();
        self.verdicts.clear();
        self.skipped.clear();
        self.kept.clear();
    }

    /// Makes `other` an exchange of the same request, as plugins have made it so far. What they keep for this one alone
    /// it has not, nor a body.
    pub fn repeat_in(&self, other: &mut Context) {
        other.begin();
        other.request.clone_from(&self.request);
        other.uri.clone_from(&self.uri);
        other.target.clone_from(&self.target);
        other.host.clone_from(&self.host);
        other.untouched.clone_from(&self.untouched);
        other.upstream.clone_from(&self.upstream);
        other.dubbo.clone_from(&self.dubbo);
        other.client = self.client.clone();
        other.route.clone_from(&self.route);
        other.params = self.params.clone();
        other.identity.clone_from(&self.identity);
        other.personal.clone_from(&self.personal);
        other.request_id.clone_from(&self.request_id);
        let texts = self.variables.iter().filter_map(|(name, held)| match held {
            Held::Text(text) => Some((name.clone(), Held::Text(text.clone()))),
            Held::Made(_) => None,
        });
        other.variables.extend(texts);
        other.skipped.clone_from(&self.skipped);
    }

    /// From now on its bodies, or what passes in its tunnel, wait for `pace` as well.
    pub fn slow_down(&mut self, pace: Box<dyn Pace>) {
        self.paces.get_or_insert_default().add(pace);
    }

    /// The next frame that passes in a direction, of those that `next` gives.
    ///
    /// # Errors
    /// Returns the error of `next`.
    #[inline]
    pub fn paced(
        &mut self,
        direction: Direction,
        task: &mut task::Context<'_>,
        next: impl FnOnce(&mut Context, &mut task::Context<'_>) -> Poll<Result<Frame, Fault>>,
    ) -> Poll<Result<Frame, Fault>> {
        let Some(mut paces) = self.paces.take() else { return next(self, task) };
        let polled = paces.poll_frame(direction, task, |task| next(self, task));
        self.paces = Some(paces);
        polled
    }

    /// Whether bytes wait for their pace in this direction, and not for anybody else.
    pub fn is_slowed(&self, direction: Direction) -> bool {
        self.paces.as_ref().is_some_and(|paces| paces.is_waiting(direction))
    }

    /// Lowers the limit of the request body, for everything that reads it from now on; of several limits the lowest counts.
    pub fn limit_request_body(&mut self, bytes: u64) {
        if self.request_body_limit == 0 || bytes < self.request_body_limit {
            self.request_body_limit = bytes;
        }
    }

    /// Has up to `limit` bytes of the request body copied while it passes, for a plugin that only
    /// looks. To be called before the body is read; of several limits the largest counts.
    pub fn copy_request_body(&mut self, limit: usize) {
        let copy = self.request_copy.get_or_insert_default();
        copy.raise(limit);
    }

    /// The first `limit` bytes of the request body as far as they are known: it was read whole, or
    /// is copied. None if it is neither.
    pub fn seen_request_body(&self, limit: usize) -> Option<Vec<u8>> {
        let first = |bytes: &[u8]| bytes[..bytes.len().min(limit)].to_vec();
        match (&self.body, &self.request_copy) {
            (Some(body), _) => Some(first(body)),
            (None, Some(copy)) => Some(first(&copy.bytes())),
            (None, None) => None,
        }
    }

    /// The request body if all of it is known: it was read whole, or was copied and not cut off.
    pub(crate) fn known_request_body(&self) -> Option<Cow<'_, [u8]>> {
        match (&self.body, &self.request_copy) {
            (Some(body), _) => Some(Cow::Borrowed(body)),
            (None, Some(copy)) => {
                // What fills its room may go on behind it.
                copy.is_whole().then(|| Cow::Owned(copy.bytes().clone()))
            }
            (None, None) => None,
        }
    }

    /// The gateways that the request came through (RFC 8586), for calls that are made for it.
    pub fn passes(&self) -> Vec<u8> {
        let passes: Vec<&[u8]> = self.request.headers.get_all(HeaderId::CdnLoop).collect();
        passes.join(&b", "[..])
    }

    /// The consumer the request is from.
    pub fn consumer(&self) -> Option<&Arc<Consumer>> {
        self.identity.as_ref().map(|identity| &identity.consumer)
    }

    /// Path and query that the node will be asked for, as far as plugins have decided yet.
    pub fn outgoing_target(&self) -> &[u8] {
        if self.target.is_empty() { self.request.path_and_query() } else { &self.target }
    }

    /// The query of [`Context::outgoing_target`], without its `?`. A plugin that makes a new target
    /// takes the query from here, not from the request: another may have hidden a credential.
    pub fn outgoing_query(&self) -> Option<&[u8]> {
        let target = self.outgoing_target();
        let at = target.iter().position(|b| *b == b'?')?;
        Some(&target[at + 1..])
    }

    /// Takes all arguments of this name, compared decoded, out of the query that the node is asked
    /// for. The others stay byte for byte as they are.
    pub fn hide_argument(&mut self, name: &str) {
        let Some(query) = self.outgoing_query() else { return };
        let hidden = |pair: &&[u8]| {
            let end = pair.iter().position(|b| *b == b'=').unwrap_or(pair.len());
            *crate::variables::percent_decoded(&pair[..end]) == *name.as_bytes()
        };
        let pairs = || query.split(|b| *b == b'&');
        if !pairs().any(|pair| hidden(&pair)) {
            return;
        }
        let kept: Vec<&[u8]> = pairs().filter(|pair| !hidden(pair)).collect();
        let path = self.outgoing_target().split(|b| *b == b'?').next().unwrap_or_default();
        let kept = kept.join(&b'&');
        let query: &[&[u8]] = if kept.is_empty() { &[] } else { &[b"?", &kept] };
        self.target = [path, &query.concat()].concat();
    }

    /// Sets a variable that templates and conditions can read.
    pub fn set_variable(&mut self, name: &str, value: impl Into<Vec<u8>>) {
        self.hold(Cow::Owned(name.to_owned()), Held::Text(value.into()));
    }

    /// As [`Context::set_variable`], with a value that is made when somebody reads it: most exchanges end
    /// without.
    pub fn set_variable_with(&mut self, name: &'static str, make: impl Fn() -> Vec<u8> + 'static) {
        self.hold(Cow::Borrowed(name), Held::Made(Box::new(make)));
    }

    /// The value of a variable that a plugin set.
    pub fn set_by_plugin(&self, name: &str) -> Option<Cow<'_, [u8]>> {
        let (_, value) = self.variables.iter().find(|(known, _)| *known == name)?;
        Some(match value {
            Held::Text(value) => Cow::Borrowed(value),
            Held::Made(make) => Cow::Owned(make()),
        })
    }

    /// Whether plugins have set any.
    #[inline]
    pub fn has_variables(&self) -> bool {
        !self.variables.is_empty()
    }

    fn hold(&mut self, name: Cow<'static, str>, value: Held) {
        match self.variables.iter_mut().find(|(known, _)| *known == name) {
            Some((_, old)) => *old = value,
            None => self.variables.push((name, value)),
        }
    }

    /// The request's id; one is made up if nobody has set one: 32 hexadecimal digits.
    pub fn request_id(&self) -> &str {
        // All of it was a text.
        std::str::from_utf8(self.request_id_bytes()).unwrap_or_default()
    }

    /// The same as bytes.
    pub fn request_id_bytes(&self) -> &[u8] {
        match self.request_id.get_or_init(RequestId::make) {
            RequestId::Made(digits) => digits,
            RequestId::Set(id) => id.as_bytes(),
        }
    }

    /// Sets the request's id.
    pub fn set_request_id(&mut self, id: &str) {
        self.request_id = OnceCell::from(RequestId::Set(id.into()));
    }

    /// Keeps a value for later phases of this exchange. `owner` is the plugin's `self`, or its [`Slot`]
    /// where that has to be in a future.
    pub fn keep<O: Into<Slot>, T: Any>(&mut self, owner: O, value: T) {
        let owner = owner.into();
        self.kept.retain(|(known, kept)| *known != owner || !kept.is::<T>());
        self.kept.push((owner, Box::new(value)));
    }

    /// A value that the same instance kept in this exchange.
    pub fn kept<O: Into<Slot>, T: Any>(&mut self, owner: O) -> Option<&mut T> {
        let owner = owner.into();
        let mine = self.kept.iter_mut().filter(|(known, _)| *known == owner);
        mine.filter_map(|(_, value)| value.downcast_mut()).next()
    }

    /// Whether any plugin keeps a value of this type: how plugins of one author know of each other.
    pub fn has_kept<T: Any>(&self) -> bool {
        self.kept.iter().any(|(_, value)| value.is::<T>())
    }

    /// A value of this type that any plugin keeps.
    pub fn kept_by_any<T: Any>(&self) -> Option<&T> {
        self.kept.iter().find_map(|(_, value)| value.downcast_ref())
    }

    /// Takes a kept value out.
    pub fn take_kept<O: Into<Slot>, T: Any>(&mut self, owner: O) -> Option<T> {
        let owner = owner.into();
        let at = self.kept.iter().position(|(known, value)| *known == owner && value.is::<T>())?;
        self.kept.swap_remove(at).1.downcast().ok().map(|value| *value)
    }

    /// Drops what plugins kept: the exchange is over, though its memory may wait for the next one.
    pub fn drop_kept(&mut self) {
        self.paces = None;
        self.login.clear();
        self.kept.clear();
    }

    /// From now on no plugin of this name runs for this exchange: another one does its work.
    pub fn skip(&mut self, name: &str) {
        if !self.skipped.iter().any(|skipped| **skipped == *name) {
            self.skipped.push(name.into());
        }
    }

    /// Whether an entry runs for this exchange at all: no plugin skips it, and its `_meta.filter` admits it. That is
    /// evaluated once; one that asks about the response, in each phase.
    #[inline]
    pub fn admits(&mut self, entry: &Entry) -> bool {
        (self.skipped.is_empty() && entry.meta.filter.is_empty()) || self.judges(entry)
    }

    fn judges(&mut self, entry: &Entry) -> bool {
        if self.skipped.iter().any(|skipped| **skipped == *entry.name()) {
            return false;
        }
        if entry.meta.filter.is_empty() {
            return true;
        }
        if entry.meta.asks_response {
            // Before there is a response, a plugin that logs collects data for its entry.
            let has_response = self.record.status != 0 || self.response.status != 0;
            let collects = !has_response && entry.kind.phases().contains(Phase::Log);
            return collects || entry.meta.filter.may_hold(self);
        }
        let key = std::ptr::from_ref(entry).addr();
        if let Some((_, verdict)) = self.verdicts.iter().find(|(known, _)| *known == key) {
            return *verdict;
        }
        // A guard runs where its filter holds for one of several values.
        let verdict = entry.meta.filter.may_hold(self);
        self.verdicts.push((key, verdict));
        verdict
    }
}

impl std::fmt::Debug for Context {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Context").field("record", &self.record).finish_non_exhaustive()
    }
}
