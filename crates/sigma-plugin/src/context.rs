//! The data of one exchange that hooks read and change.

use std::any::Any;
use std::borrow::Cow;
use std::cell::{Cell, OnceCell};
use std::net::{IpAddr, SocketAddr};
use std::rc::Rc;
use std::sync::Arc;
use std::task::{self, Poll};

use sigma_http::{Fault, Frame, HeaderId, RequestHead, ResponseHead};
use sigma_schema::defined::Definitions;

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
use crate::{BodyFilter, Entry, Phase, Plugin, Reply, Resource, hex};

/// The client of a request.
#[derive(Debug, Clone, Default)]
pub struct Client {
    /// The client's address: the direct peer's, unless a plugin trusts a proxy before it. None for Unix sockets.
    pub addr: Option<IpAddr>,
    /// The client's port; 0 if unknown.
    pub port: u16,
    /// The direct peer's address.
    pub peer: Option<IpAddr>,
    /// The direct peer's port; 0 if unknown.
    pub peer_port: u16,
    /// The direct peer and `local` come from a PROXY header.
    pub is_proxied: bool,
    /// When the connection was accepted; see [`crate::variables::tick`].
    pub opened: u32,
    /// The local address of the connection.
    pub local: Option<SocketAddr>,
    /// Number of the connection, unique in its worker.
    pub connection: u64,
    /// The facts about the TLS session, if there is one.
    pub tls: Option<Rc<Tls>>,
    /// The location of addresses, if there are databases.
    pub geography: Option<Rc<Geography>>,
}

/// Facts of a TLS session.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Tls {
    /// The name that the client requests (SNI).
    pub server_name: Option<String>,
    /// `TLSv1.3` …
    pub protocol: &'static str,
    /// The fingerprint of the ClientHello (JA4).
    pub ja4: Option<String>,
    /// The cipher suite's name.
    pub cipher: String,
    /// The key exchange; empty if unknown.
    pub key_exchange: &'static str,
    /// The negotiated protocol above TLS.
    pub alpn: Option<String>,
    /// The session was resumed.
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
    /// The certificate chain of the client; None without a certificate.
    pub client_chain: Option<Box<ClientChain>>,
}

impl Tls {
    /// Returns the value that nginx calls `$ssl_` and this name.
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
            // An unverified client has no SPIFFE id.
            "client_spiffe_id" if self.client_verify == "SUCCESS" => self.client_chain.as_ref()?.spiffe_id(),
            _ => None,
        }
    }
}

/// The resources of a route, as they were written.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct RouteResources {
    /// The route itself, a `Route` of `sigma-config`.
    pub route: Option<Resource>,
    /// Its `Service`.
    pub service: Option<Resource>,
    /// Its `PluginConfig`.
    pub plugin_config: Option<Resource>,
}

/// Facts about the matched route.
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
    /// Its resources; shared with the configuration.
    pub resources: RouteResources,
}

/// Parameters of a matched path pattern, in order. Recycled: it keeps the memory of its texts.
#[derive(Debug, Clone, Default)]
pub struct PathParams {
    texts: Vec<(String, Vec<u8>)>,
    /// The number of `texts` in use in this exchange.
    len: usize,
}

impl PathParams {
    /// Removes all.
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

    /// Returns the value of this name; of equal names in one pattern the last one counts.
    pub fn get(&self, name: &str) -> Option<&[u8]> {
        let params = &self.texts[..self.len];
        params.iter().rev().find(|(known, _)| known == name).map(|(_, value)| &value[..])
    }
}

/// The key of the values that one plugin instance keeps in an exchange.
///
/// It is the address of the instance in memory. The address is unique during the exchange, as the configuration in
/// use holds its instances.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Slot(usize);

impl<P: Plugin> From<&P> for Slot {
    fn from(plugin: &P) -> Slot {
        Slot(std::ptr::from_ref(plugin).addr())
    }
}

/// The value of a variable that a plugin set.
enum VariableValue {
    Text(Vec<u8>),
    /// Computed for each reader.
    Made(Box<dyn Fn() -> Vec<u8>>),
}

/// One exchange as plugins use it. Reused for one exchange after another.
#[derive(Default)]
pub struct Context {
    /// The request to the node, without the gateway's own fields. The request line stays the client's; see `target`.
    pub request: RequestHead,
    /// The response: the node's or the gateway's.
    pub response: ResponseHead,
    /// The normalized path, `$uri`; later rewrites do not change it.
    pub uri: Vec<u8>,
    /// Path and query for the node; empty for the client's.
    pub target: Vec<u8>,
    /// Host for the node if `pass_host` is `pass`; None for the client's.
    pub host: Option<Vec<u8>>,
    /// Fields about the client that the node gets unchanged: some of X-Forwarded-For and X-Real-IP.
    pub untouched: Vec<HeaderId>,
    /// The fields that plugins of this exchange own, and those that the client may not send in trailers.
    pub owned: Vec<Arc<OwnedFields>>,
    /// The credentials of its plugins, which logs and traces hide. Empty until the exchange has ended.
    pub credentials: Vec<Arc<Credentials>>,
    /// The upstream that replaces the route's: `upstreams/1`, or a key made by [`crate::Build::upstream_key`].
    pub upstream: Option<Box<str>>,
    /// The whole request body, if it was read; the node gets this body.
    pub body: Option<Vec<u8>>,
    /// The request has a body, which may still turn out to be empty.
    pub has_request_body: bool,
    /// The response of the header filters has a body, which may still turn out to be empty.
    pub has_response_body: bool,
    /// A plugin's limit of the request body in bytes; 0 without one. See [`Context::limit_request_body`].
    pub request_body_limit: u64,
    /// Bytes of the node's response that may be read ahead of a client that is slower; 0 for none.
    pub read_ahead_bytes: usize,
    /// A plugin translates the request to gRPC: replies of the gateway itself use the client's protocol, not gRPC.
    pub is_translated: bool,
    /// The Dubbo call that the request becomes; None for a node with the protocol of its upstream.
    pub dubbo: Option<Box<DubboCall>>,
    /// The cache order of a plugin; None without a cache.
    pub cache: Option<Box<CacheWish>>,
    /// The filter that stores the node's response; it runs before the filters of all plugins. For the gateway itself.
    pub keeper: Option<Box<dyn BodyFilter>>,
    /// The reply that replaces an aborted body; see [`BodyFilter::holds_head`]. The filter of a request body sets it to
    /// reply to the client, as long as the node has not responded.
    pub instead: Option<Box<Reply>>,
    /// During header filters, the body of a response of the gateway itself; None for other responses and for streams.
    pub own_body: Option<Vec<u8>>,
    /// The pace limits of its bodies and its tunnel; None without a limit.
    pub paces: Option<Box<Paces>>,
    /// A copy of the request body in transit, for plugins that only read it.
    pub request_copy: Option<Rc<BodyCopy>>,
    /// The client of the request.
    pub client: Client,
    /// The matched route.
    pub route: Option<Arc<RouteFacts>>,
    /// Parameters of the matched path pattern.
    pub params: PathParams,
    /// The variables of the settings and of the route.
    pub definitions: Option<Arc<Definitions>>,
    /// The consumer of the request, once it is authenticated.
    pub identity: Option<Arc<Identity>>,
    /// The user data that plugins have marked.
    pub personal: Personal,
    /// The result of its login.
    pub login: Login,
    /// The number of exchanges around a subrequest; 0 for a request of a client. See [`crate::Step::Ask`].
    pub within: u8,
    /// Set if the gateway itself sent the request, for an error page or a fallback.
    pub internal: Option<Box<crate::outbound::Internal>>,
    /// The record of the exchange.
    pub record: Record,
    /// The request id, once it was read or set.
    pub(crate) request_id: OnceCell<RequestId>,
    /// Evaluations of the current read of [`Context::definitions`].
    pub(crate) defined_reads: Cell<u8>,
    /// Variables that plugins set, by name.
    variables: Vec<(Cow<'static, str>, VariableValue)>,
    /// The results of the filters of each [`Entry`], evaluated once per exchange.
    verdicts: Vec<(usize, bool)>,
    /// Names of plugins that run no more in this exchange.
    skipped: Vec<Box<str>>,
    /// The values that plugins keep over the phases of this exchange.
    kept: Vec<(Slot, Box<dyn Any>)>,
}

/// The id of a request.
#[derive(Debug, Clone)]
pub(crate) enum RequestId {
    /// Generated; digits.
    Made([u8; 32]),
    /// Set by a plugin or client.
    Set(Box<str>),
}

impl RequestId {
    /// Makes a unique id. It is not a secret: a reader of many ids may guess the next.
    fn make() -> RequestId {
        let mut digits = [0; 32];
        hex::write(&fastrand::u128(..).to_ne_bytes(), &mut digits);
        RequestId::Made(digits)
    }
}

impl Context {
    /// Resets it for another exchange and keeps its memory. The request head stays.
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
        (self.has_request_body, self.has_response_body) = (false, false);
        (self.request_body_limit, self.read_ahead_bytes) = (0, 0);
        self.is_translated = false;
        self.dubbo = None;
        self.cache = None;
        self.keeper = None;
        self.instead = None;
        self.own_body = None;
        self.paces = None;
        self.request_copy = None;
        self.route = None;
        self.params.clear();
        self.definitions = None;
        self.identity = None;
        self.personal.clear();
        self.login.clear();
        self.within = 0;
        self.internal = None;
        self.record.clear();
        self.request_id = OnceCell::new();
        self.variables.clear();
        self.verdicts.clear();
        self.skipped.clear();
        self.kept.clear();
    }

    /// Copies the request, with all changes of plugins so far, into `other`. Kept values and the body are not copied.
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
        other.definitions.clone_from(&self.definitions);
        other.identity.clone_from(&self.identity);
        other.personal.clone_from(&self.personal);
        other.request_id.clone_from(&self.request_id);
        let texts = self.variables.iter().filter_map(|(name, held)| match held {
            VariableValue::Text(text) => Some((name.clone(), VariableValue::Text(text.clone()))),
            VariableValue::Made(_) => None,
        });
        other.variables.extend(texts);
        other.skipped.clone_from(&self.skipped);
    }

    /// Adds a pace limit for its bodies, or for its tunnel.
    pub fn slow_down(&mut self, pace: Box<dyn Pace>) {
        self.paces.get_or_insert_default().add(pace);
    }

    /// Returns the next frame of `next` in a direction, at the allowed pace.
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

    /// Returns true if bytes wait only for their pace in this direction.
    pub fn is_slowed(&self, direction: Direction) -> bool {
        self.paces.as_ref().is_some_and(|paces| paces.is_waiting(direction))
    }

    /// Lowers the limit of the request body for all later reads; the lowest of several limits counts.
    pub fn limit_request_body(&mut self, bytes: u64) {
        if self.request_body_limit == 0 || bytes < self.request_body_limit {
            self.request_body_limit = bytes;
        }
    }

    /// Requests a copy of up to `limit` bytes of the request body, for a plugin that only reads it. Call it before
    /// the body is read; the largest of several limits counts.
    pub fn copy_request_body(&mut self, limit: usize) {
        let copy = self.request_copy.get_or_insert_default();
        copy.raise(limit);
    }

    /// Returns the first `limit` bytes of the request body as far as they are known: the body was read whole, or is
    /// copied. None if neither is the case.
    pub fn seen_request_body(&self, limit: usize) -> Option<Vec<u8>> {
        let first = |bytes: &[u8]| bytes[..bytes.len().min(limit)].to_vec();
        match (&self.body, &self.request_copy) {
            (Some(body), _) => Some(first(body)),
            (None, Some(copy)) => Some(first(&copy.bytes())),
            (None, None) => None,
        }
    }

    /// Returns the request body if all of it is known: it was read whole, or copied without a cut.
    pub(crate) fn known_request_body(&self) -> Option<Cow<'_, [u8]>> {
        match (&self.body, &self.request_copy) {
            (Some(body), _) => Some(Cow::Borrowed(body)),
            (None, Some(copy)) => {
                // A copy at its limit may lack bytes.
                copy.is_whole().then(|| Cow::Owned(copy.bytes().clone()))
            }
            (None, None) => None,
        }
    }

    /// Returns the gateways on the path of the request (RFC 8586), for calls on its behalf.
    pub fn passes(&self) -> Vec<u8> {
        let passes: Vec<&[u8]> = self.request.headers.get_all(HeaderId::CdnLoop).collect();
        passes.join(&b", "[..])
    }

    /// Returns the consumer of the request.
    pub fn consumer(&self) -> Option<&Arc<Consumer>> {
        self.identity.as_ref().map(|identity| &identity.consumer)
    }

    /// Returns path and query for the node, with the changes of plugins so far.
    pub fn outgoing_target(&self) -> &[u8] {
        if self.target.is_empty() { self.request.path_and_query() } else { &self.target }
    }

    /// Returns the query of [`Context::outgoing_target`], without its `?`. A plugin that makes a new target must take
    /// the query from here, not from the request: another plugin may have hidden a credential.
    pub fn outgoing_query(&self) -> Option<&[u8]> {
        let target = self.outgoing_target();
        let at = target.iter().position(|b| *b == b'?')?;
        Some(&target[at + 1..])
    }

    /// Removes all arguments of this name, compared decoded, from the query for the node. The others stay byte for
    /// byte.
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
        self.hold(Cow::Owned(name.to_owned()), VariableValue::Text(value.into()));
    }

    /// Sets a variable, as [`Context::set_variable`] does, with a value that is computed on reading: most exchanges
    /// never read it.
    pub fn set_variable_with(&mut self, name: &'static str, make: impl Fn() -> Vec<u8> + 'static) {
        self.hold(Cow::Borrowed(name), VariableValue::Made(Box::new(make)));
    }

    /// Returns the value of a variable that a plugin set.
    pub fn set_by_plugin(&self, name: &str) -> Option<Cow<'_, [u8]>> {
        let (_, value) = self.variables.iter().find(|(known, _)| *known == name)?;
        Some(match value {
            VariableValue::Text(value) => Cow::Borrowed(value),
            VariableValue::Made(make) => Cow::Owned(make()),
        })
    }

    /// Returns true if plugins have set variables.
    #[inline]
    pub fn has_variables(&self) -> bool {
        !self.variables.is_empty()
    }

    fn hold(&mut self, name: Cow<'static, str>, value: VariableValue) {
        match self.variables.iter_mut().find(|(known, _)| *known == name) {
            Some((_, old)) => *old = value,
            None => self.variables.push((name, value)),
        }
    }

    /// Returns the request id; without one it generates 32 hexadecimal digits.
    pub fn request_id(&self) -> &str {
        // The id was set from text.
        std::str::from_utf8(self.request_id_bytes()).unwrap_or_default()
    }

    /// Returns the request id as bytes.
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

    /// Keeps a value for later phases of this exchange. `owner` is the plugin's `self`, or its [`Slot`] inside a
    /// future.
    pub fn keep<O: Into<Slot>, T: Any>(&mut self, owner: O, value: T) {
        let owner = owner.into();
        self.kept.retain(|(known, kept)| *known != owner || !kept.is::<T>());
        self.kept.push((owner, Box::new(value)));
    }

    /// Returns the value that the same instance kept in this exchange.
    pub fn kept<O: Into<Slot>, T: Any>(&mut self, owner: O) -> Option<&mut T> {
        let owner = owner.into();
        let mine = self.kept.iter_mut().filter(|(known, _)| *known == owner);
        mine.filter_map(|(_, value)| value.downcast_mut()).next()
    }

    /// Returns true if any plugin keeps a value of this type. Plugins of one author can find each other this way.
    pub fn has_kept<T: Any>(&self) -> bool {
        self.kept.iter().any(|(_, value)| value.is::<T>())
    }

    /// Returns a value of this type that any plugin keeps.
    pub fn kept_by_any<T: Any>(&self) -> Option<&T> {
        self.kept.iter().find_map(|(_, value)| value.downcast_ref())
    }

    /// Removes a kept value and returns it.
    pub fn take_kept<O: Into<Slot>, T: Any>(&mut self, owner: O) -> Option<T> {
        let owner = owner.into();
        let at = self.kept.iter().position(|(known, value)| *known == owner && value.is::<T>())?;
        self.kept.swap_remove(at).1.downcast().ok().map(|value| *value)
    }

    /// Drops the values of plugins at the end of the exchange; the memory of the context may wait for the next one.
    pub fn drop_kept(&mut self) {
        self.paces = None;
        self.login.clear();
        self.kept.clear();
    }

    /// Skips all plugins of this name for the rest of the exchange: another one does their work.
    pub fn skip(&mut self, name: &str) {
        if !self.skipped.iter().any(|skipped| **skipped == *name) {
            self.skipped.push(name.into());
        }
    }

    /// Returns true if an entry runs for this exchange: no plugin skips it, and its `_meta.filter` matches. The
    /// filter is evaluated once; a filter on the response is evaluated in each phase.
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
            // Before the response, a log plugin collects data for its entry.
            let has_response = self.record.status != 0 || self.response.status != 0;
            let collects = !has_response && entry.kind.phases().contains(Phase::Log);
            return collects || entry.meta.filter.may_hold(self);
        }
        let key = std::ptr::from_ref(entry).addr();
        if let Some((_, verdict)) = self.verdicts.iter().find(|(known, _)| *known == key) {
            return *verdict;
        }
        // A guard runs if its filter matches for one of several values.
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
