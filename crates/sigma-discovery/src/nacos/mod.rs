//! Alibaba's Nacos: pushes by gRPC, or else its HTTP API at intervals.

mod grpc;
mod pushes;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use aws_lc_rs::hmac;
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use reqwest::Method;
use reqwest::header::{CONTENT_TYPE, HeaderValue};
use serde_json::Value;
use sigma_config::discovery::{Nacos, Registry, RegistryAddress};
use sigma_config::resources::{DiscoveryArgs, Node};
use sigma_schema::Confidential;

use crate::consul::encoded;
use crate::http::{Http, Members, RegistryRequest, RegistryResponse, Trust, token};
use crate::node::{self, LeftOut};
use crate::polling::{MemberQuery, Polling};
use crate::source::{Env, Listing, Source, Trouble};
use grpc::Headers;
use pushes::{Pushed, Pushes};

/// The default namespace and group.
const NAMESPACE: &str = "public";
const GROUP: &str = "DEFAULT_GROUP";

/// The life of a token without a stated one; Nacos' own token is valid for five hours.
const TOKEN_LIFE: Duration = Duration::from_secs(600);

/// The pause between two pushed lists: a service that changes all the time does not keep the gateway busy.
const PACE: Duration = Duration::from_millis(100);

/// The identity of a service in Nacos.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct ServiceKey {
    namespace: Box<str>,
    group: Box<str>,
    service: Box<str>,
}

impl ServiceKey {
    /// Returns the service that an upstream names.
    pub(crate) fn new(service: &str, args: Option<&DiscoveryArgs>) -> ServiceKey {
        ServiceKey {
            namespace: args.and_then(|args| args.namespace_id.as_deref()).unwrap_or(NAMESPACE).into(),
            group: args.and_then(|args| args.group_name.as_deref()).unwrap_or(GROUP).into(),
            service: service.into(),
        }
    }

    /// Returns a service of a namespace and group.
    pub(crate) fn of(namespace: &str, group: &str, service: &str) -> ServiceKey {
        ServiceKey { namespace: namespace.into(), group: group.into(), service: service.into() }
    }
}

/// In APISIX's format.
impl fmt::Display for ServiceKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "default/{}/{}/{}", self.namespace, self.group, self.service)
    }
}

/// The shared part of all services: the tokens of its servers, and their pushes.
pub(crate) struct Server {
    http: Http,
    members: Vec<RegistryAddress>,
    prefix: String,
    connect: Duration,
    within: Duration,
    interval: Duration,
    weight: u32,
    access_key: String,
    secret_key: Confidential,
    env: Env,
    /// The port offset for gRPC; None without subscriptions.
    port_offset: Option<u16>,
    /// The token of each server with a login.
    tokens: tokio::sync::Mutex<Vec<Token>>,
    /// Pushes by namespace.
    pushes: Mutex<BTreeMap<Box<str>, Arc<Pushes>>>,
}

struct Token {
    /// Its server.
    base: String,
    text: Confidential,
    /// The time of its renewal.
    until: Instant,
}

/// The signature of a request about a service.
struct Signature {
    data: String,
    signature: String,
}

impl Server {
    pub(crate) fn new(settings: &Nacos, env: &Env) -> Arc<Server> {
        let connect = Duration::from_millis(settings.timeout.connect.into());
        Server::over(Http::new(connect, Trust::System, env), settings, env)
    }

    /// Returns the shared part over this client.
    pub(crate) fn over(http: Http, settings: &Nacos, env: &Env) -> Arc<Server> {
        let timeout = settings.timeout;
        let connect = Duration::from_millis(timeout.connect.into());
        Arc::new(Server {
            http,
            members: settings.host.clone(),
            prefix: format!("/{}", settings.prefix.trim_matches('/')),
            connect,
            within: connect + Duration::from_millis(u64::from(timeout.send) + u64::from(timeout.read)),
            interval: Duration::from_secs(settings.fetch_interval.into()),
            weight: settings.weight,
            access_key: settings.access_key.clone(),
            secret_key: settings.secret_key.clone(),
            env: env.clone(),
            port_offset: settings.subscribe.then_some(settings.grpc_port_offset),
            tokens: tokio::sync::Mutex::default(),
            pushes: Mutex::default(),
        })
    }

    /// Returns the client.
    pub(crate) fn http(&self) -> &Http {
        &self.http
    }

    /// Returns the path before the name of an API, without a slash at the end.
    pub(crate) fn prefix(&self) -> &str {
        &self.prefix
    }

    /// Returns the total timeout of a request.
    pub(crate) fn within(&self) -> Duration {
        self.within
    }

    /// Returns the key that signs requests; it may be empty.
    pub(crate) fn secret_key(&self) -> &Confidential {
        &self.secret_key
    }

    /// Returns the token for a server, if its address has a user. `is_stale` means that the last one was rejected.
    pub(crate) async fn token(
        &self,
        address: &RegistryAddress,
        is_stale: bool,
    ) -> Result<Option<Confidential>, Trouble> {
        let Some((user, password)) = address.user() else { return Ok(None) };
        let mut tokens = self.tokens.lock().await;
        let now = Instant::now();
        tokens.retain(|token| token.until > now && !(is_stale && token.base == address.base()));
        if let Some(token) = tokens.iter().find(|token| token.base == address.base()) {
            return Ok(Some(token.text.clone()));
        }
        let target = format!("{}/auth/login", self.prefix);
        let mut question = RegistryRequest::get(&target, self.within);
        question.method = Method::POST;
        question.headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/x-www-form-urlencoded"));
        question.body = Some(format!("username={}&password={}", encoded(user), encoded(password)));
        let answer = self.http.ask(address, question).await?;
        let value =
            answer.json(address).await.map_err(|trouble| Trouble(format!("cannot log in: {trouble}")))?;
        let text = token(value.get("accessToken"), address)?;
        let life = node::number(value.get("tokenTtl")).map_or(TOKEN_LIFE, Duration::from_secs);
        // Renewed before it expires; an absurdly long life is cut.
        let life = life.clamp(Duration::from_secs(1), Duration::from_secs(86_400)).mul_f64(0.8);
        let token = Token { base: address.base().to_owned(), text: text.clone(), until: now + life };
        tokens.push(token);
        Ok(Some(text))
    }

    /// Returns the signature of a request about a service, if there is a key.
    fn signature(&self, key: &ServiceKey, now: SystemTime) -> Option<Signature> {
        if self.access_key.is_empty() || self.secret_key.reveal().is_empty() {
            return None;
        }
        let millis = now.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis());
        let data = format!("{millis}@@{}@@{}", key.group, key.service);
        let secret = hmac::Key::new(hmac::HMAC_SHA1_FOR_LEGACY_USE_ONLY, self.secret_key.reveal().as_bytes());
        let signature = BASE64_STANDARD.encode(hmac::sign(&secret, data.as_bytes()));
        Some(Signature { data, signature })
    }

    /// Sends a request about a service; once more with a new token, if the server refuses it. `target` is the path after
    /// the prefix, with a query.
    pub(crate) async fn ask_about(
        &self,
        address: &RegistryAddress,
        key: &ServiceKey,
        method: Method,
        target: &str,
    ) -> Result<RegistryResponse, Trouble> {
        let answer = self.ask_with_token(address, key, method.clone(), target, false).await?;
        if matches!(answer.status, 401 | 403) && address.user().is_some() {
            // The token has expired, whatever its stated life.
            return self.ask_with_token(address, key, method, target, true).await;
        }
        Ok(answer)
    }

    async fn ask_with_token(
        &self,
        address: &RegistryAddress,
        key: &ServiceKey,
        method: Method,
        target: &str,
        is_stale: bool,
    ) -> Result<RegistryResponse, Trouble> {
        let mut target = format!("{}{target}", self.prefix);
        if let Some(token) = self.token(address, is_stale).await? {
            target.push_str(&format!("&accessToken={}", encoded(token.reveal())));
        }
        if let Some(Signature { data, signature }) = self.signature(key, SystemTime::now()) {
            let (key, data, signature) = (encoded(&self.access_key), encoded(&data), encoded(&signature));
            target.push_str(&format!("&ak={key}&data={data}&signature={signature}"));
        }
        let question = RegistryRequest { method, ..RegistryRequest::get(&target, self.within) };
        self.http.ask(address, question).await
    }

    /// Returns the headers of a gRPC request about a service.
    async fn headers(
        &self,
        address: &RegistryAddress,
        key: &ServiceKey,
        is_stale: bool,
    ) -> Result<Headers, Trouble> {
        let mut headers = Headers::new();
        if let Some(token) = self.token(address, is_stale).await? {
            headers.insert("accessToken".to_owned(), token.reveal().to_owned());
        }
        if let Some(Signature { data, signature }) = self.signature(key, SystemTime::now()) {
            headers.insert("ak".to_owned(), self.access_key.clone());
            headers.insert("data".to_owned(), data);
            headers.insert("signature".to_owned(), signature);
        }
        Ok(headers)
    }

    /// Returns the nodes of a service in a response or a push.
    fn listing(&self, key: &ServiceKey, told: Option<&Value>) -> Result<Listing, Trouble> {
        let unusable = || Trouble("Nacos did not return a list of instances".to_owned());
        let nodes = told.and_then(|told| nodes(told, self.weight)).ok_or_else(unusable)?;
        let key = key.to_string();
        let nodes = node::list(&key, nodes, self.env.limits.nodes);
        Ok(Listing::from([(key.into(), nodes)]))
    }

    /// Returns the pushes of a service, if subscriptions are on. Call it within a runtime.
    fn subscribe(self: &Arc<Self>, key: &ServiceKey) -> Option<Pushed> {
        self.port_offset?;
        let mut pushes = self.pushes.lock().unwrap_or_else(PoisonError::into_inner);
        Some(pushes.entry(key.namespace.clone()).or_default().subscribe(self, key))
    }
}

/// The nodes of one service: pushed, or polled while pushes are unavailable.
pub(crate) struct NacosService {
    server: Arc<Server>,
    key: ServiceKey,
    asked: Polling<Instances>,
    has_subscribed: bool,
    pushed: Option<Pushed>,
    /// The end of a pause in which pushed lists are ignored.
    rests_until: Option<Instant>,
}

impl NacosService {
    pub(crate) fn new(server: Arc<Server>, key: ServiceKey) -> NacosService {
        let instances = Instances { server: Arc::clone(&server), key: key.clone() };
        let asked = Polling::new(instances, Members::shuffled(&server.members), server.interval);
        NacosService { server, key, asked, has_subscribed: false, pushed: None, rests_until: None }
    }
}

impl Source for NacosService {
    async fn next(&mut self) -> Result<Listing, Trouble> {
        if !std::mem::replace(&mut self.has_subscribed, true) {
            self.pushed = self.server.subscribe(&self.key);
        }
        if let Some(until) = self.rests_until {
            tokio::time::sleep_until(until.into()).await;
        }
        loop {
            let Some(pushed) = &mut self.pushed else { return self.asked.next().await };
            let is_pushed = pushed.borrow().is_some();
            let changed = tokio::select! {
                changed = pushed.changed() => changed,
                listing = self.asked.next(), if !is_pushed => return listing,
            };
            if changed.is_err() {
                self.pushed = None;
                continue;
            }
            match pushed.borrow_and_update().clone() {
                Some(listing) => {
                    self.rests_until = Some(Instant::now() + PACE);
                    return Ok(listing);
                }
                // Earlier pushes are outdated from now on.
                None => self.asked.hurry(),
            }
        }
    }
}

/// One service, by the HTTP API.
struct Instances {
    server: Arc<Server>,
    key: ServiceKey,
}

impl Instances {
    async fn ask(&self, address: &RegistryAddress) -> Result<RegistryResponse, Trouble> {
        let Instances { server, key } = self;
        let target = format!(
            "/ns/instance/list?healthyOnly=true&serviceName={}&namespaceId={}&groupName={}",
            encoded(&key.service),
            encoded(&key.namespace),
            encoded(&key.group)
        );
        server.ask_about(address, key, Method::GET, &target).await
    }
}

impl MemberQuery for Instances {
    async fn ask(&mut self, address: &RegistryAddress) -> Result<Listing, Trouble> {
        let answer = Instances::ask(self, address).await?;
        let value = answer.json(address).await?;
        let listing = self.server.listing(&self.key, Some(&value));
        listing.map_err(|trouble| Trouble(format!("{}: {trouble}", address.base())))
    }
}

/// Returns the nodes in a response of `instance/list`; None if it is invalid.
fn nodes(answer: &Value, default_weight: u32) -> Option<Vec<Node>> {
    let hosts = answer.get("hosts")?.as_array()?;
    // Compatible registries write numbers and truth values as text.
    let is_set = |host: &Value, name: &str| match host.get(name) {
        Some(Value::Bool(truth)) => *truth,
        Some(Value::String(text)) => !text.eq_ignore_ascii_case("false"),
        _ => true,
    };
    let weight = |host: &Value| {
        let weight = match host.get("weight")? {
            Value::String(text) => text.trim().parse().ok(),
            value => value.as_f64(),
        };
        weight.filter(|weight| weight.is_finite() && *weight >= 0.0)
    };
    // Weights have fractions, from 0 to 10000; ours are whole numbers.
    let has_fractions = hosts.iter().filter_map(weight).any(|weight| weight.fract() != 0.0);
    let scale = if has_fractions { 100.0 } else { 1.0 };
    let whole = |weight: f64| {
        let scaled = (weight * scale).round().min(f64::from(u32::MAX)) as u32;
        if weight > 0.0 { scaled.max(1) } else { 0 }
    };
    let mut nodes = Vec::with_capacity(hosts.len());
    let mut left_out = LeftOut::default();
    for host in hosts.iter().filter(|host| is_set(host, "enabled") && is_set(host, "healthy")) {
        let Some(address) = host.get("ip").and_then(Value::as_str) else {
            left_out.note_malformed(host);
            continue;
        };
        let weight = weight(host).map_or(default_weight, whole);
        let found = node::port(host.get("port")).and_then(|port| node::node(address, Some(port), weight));
        match found {
            Some(node) => nodes.push(Node { metadata: node::metadata(host.get("metadata")), ..node }),
            None => left_out.note(address),
        }
    }
    left_out.tell(Registry::Nacos);
    left_out.admits(nodes.len()).then_some(nodes)
}
