//! The order of a plugin for the response cache, which is a stage of the exchange and does not belong to the plugin.

use std::path::PathBuf;
use std::sync::{Arc, OnceLock};

use sigma_http::Method;
use sigma_schema::expr::{VarName, VarValue, Variables};

use crate::Context;
use crate::variables::joined;

/// Rules for storing and reusing responses.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CacheRule {
    /// The name of the memory zone.
    pub zone: Box<str>,
    /// The size of the zone in bytes.
    pub zone_bytes: u64,
    /// The disk storage of the zone, if it has one.
    pub disk: Option<CacheDisk>,
    /// `PURGE` requests remove the stored responses of a key.
    pub purges: bool,
    /// The methods that use the cache. Responses to HEAD are not stored: those to GET serve it.
    pub methods: Vec<Method>,
    /// The statuses that are stored; None for every status with a known lifetime.
    pub statuses: Option<Vec<u16>>,
    /// How long responses are fresh.
    pub lifetime: Lifetime,
    /// Response fields that this gateway ignores.
    pub ignores: Ignored,
    /// `Cache-Control` of requests is respected.
    pub heeds_requests: bool,
    /// Responses that set cookies are stored.
    pub keeps_cookies: bool,
    /// The largest body in bytes.
    pub most_bytes: u64,
    /// The size of a slice in bytes, for responses that are fetched and stored in parts; 0 for no slices.
    pub slice_bytes: u64,
    /// The freshness lifetime is hidden from clients.
    pub hides_lifetime: bool,
    /// Milliseconds that a request waits for the response of another request; 0 if each request fetches for itself.
    pub wait_ms: u32,
    /// Seconds without a response until another waiting request fetches; 0 for never.
    pub lead_s: u32,
    /// The largest number of requests that wait for one; further ones fetch for themselves. 0 for no limit.
    pub waiters_max: u32,
    /// The number of requests after which a response is stored; 0 and 1 for the first.
    pub least_uses: u32,
    /// Stale responses are revalidated with their validators. A response that is stale on arrival is stored for that
    /// if it has validators.
    pub revalidates: bool,
    /// Seconds in which a stale response is sent while it is revalidated, in addition to its own
    /// `stale-while-revalidate`.
    pub stale_while_revalidate: u32,
    /// A usable stale response is revalidated in the background.
    pub asks_aside: bool,
    /// Seconds in which a stale response replaces a failed one, in addition to its own `stale-if-error`.
    pub stale_if_error: u32,
    /// Statuses that count as failures for that.
    pub failures: Vec<u16>,
    /// How responses report the cache status.
    pub tells: Tells,
    /// Fields with the tags of a response are hidden from clients.
    pub hides_tags: bool,
    /// The parts of keys; set by [`CacheOrder::new`].
    pub key: CacheKey,
}

/// The parts of keys.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CacheKey {
    parts: Vec<Part>,
    /// The key part for requests without a consumer.
    user: Option<VarName>,
    /// Consumers have separate responses, unless the key identifies the user.
    isolates: bool,
    /// The operator declares that responses are the same for all users.
    is_for_all: bool,
    /// The key has the whole credential field.
    has_credential: bool,
    /// The key has the consumer, if there is one.
    has_consumer: bool,
    /// Responses to POST are stored: `$request_method` tells POST from GET.
    has_post: bool,
}

impl CacheKey {
    fn new(key: &[String], isolates: bool, methods: &[Method]) -> CacheKey {
        let has = |name: &str| key.iter().any(|part| part.strip_prefix('$') == Some(name));
        CacheKey {
            parts: parts(key),
            user: Some(VarName::parse("remote_user")),
            isolates: isolates && !IDENTITIES.into_iter().any(has),
            is_for_all: !isolates,
            has_credential: has("http_authorization"),
            has_consumer: has("consumer_name"),
            has_post: methods.contains(&Method::Post),
        }
    }

    /// Returns the key of an exchange, and whether the key identifies the user.
    fn of(&self, ctx: &Context) -> (Vec<u8>, bool) {
        let mut key = Vec::new();
        // The anonymous consumer counts as no consumer.
        let known = ctx.identity.as_ref().filter(|identity| !identity.is_anonymous());
        let is_isolated = self.has_credential || known.is_some() && (self.isolates || self.has_consumer);
        if self.isolates {
            match (ctx.consumer(), &self.user) {
                (Some(consumer), _) => key.extend_from_slice(consumer.name.as_bytes()),
                (None, Some(user)) => write(user, ctx, &mut key),
                (None, None) => {}
            }
            end_part(&mut key, 0);
            key.push(ctx.consumer().is_some().into());
        }
        for part in &self.parts {
            let start = key.len();
            match part {
                Part::Variable(VarName::Method) => key.extend_from_slice(self.method(ctx).as_bytes()),
                part => part.write(ctx, &mut key),
            }
            end_part(&mut key, start);
        }
        (key, is_isolated)
    }

    /// Returns the method of the stored response: HEAD uses the response to GET, and other methods invalidate it.
    fn method(&self, ctx: &Context) -> &'static str {
        match ctx.request.method {
            Method::Post if self.has_post => "POST",
            _ => "GET",
        }
    }

    /// Prefixes a key with the users that plugins have marked and the fields that scripts have set, once all of them
    /// have run. No other key begins like that: the byte after them never follows a consumer.
    fn personal(&self, ctx: &Context, mut key: Vec<u8>) -> Vec<u8> {
        if self.is_for_all {
            return key;
        }
        if !ctx.personal.fields().is_empty() {
            let mut prefix = ctx.personal.fields().to_vec();
            end_part(&mut prefix, 0);
            prefix.push(FIELDS);
            prefix.append(&mut key);
            key = prefix;
        }
        if !ctx.personal.is_marked() {
            return key;
        }
        let mut personal = ctx.personal.names().to_vec();
        end_part(&mut personal, 0);
        personal.push(if ctx.personal.is_unnamed() { UNNAMED } else { NAMED });
        personal.extend_from_slice(&key);
        personal
    }

    /// Returns the key of the same request for another path with query on the same host; `uri` is the normalized
    /// path.
    fn of_neighbour(&self, ctx: &mut Context, uri: Vec<u8>, target: &[u8]) -> Vec<u8> {
        let own_uri = std::mem::replace(&mut ctx.uri, uri);
        let own_target = ctx.request.path_and_query().to_vec();
        ctx.request.set_path_and_query(target);
        let key = self.personal(ctx, self.of(ctx).0);
        ctx.request.set_path_and_query(&own_target);
        ctx.uri = own_uri;
        key
    }
}

/// The byte after users, and after the fields of scripts; consumers have 0 and 1 there.
const NAMED: u8 = 2;
const UNNAMED: u8 = 3;
const FIELDS: u8 = 4;

/// Storage on a disk, in addition to memory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CacheDisk {
    /// The folder, for one zone only.
    pub path: PathBuf,
    /// The number of letters in folder names, one number for each level: nginx's `levels`.
    pub levels: Vec<u8>,
    /// The size limit in bytes.
    pub bytes: u64,
    /// Seconds until an unused response is removed, fresh or not.
    pub inactive_s: u32,
}

impl CacheDisk {
    /// Parses levels such as `1:2`: up to three, with one or two letters each.
    pub fn levels(text: &str) -> Option<Vec<u8>> {
        let levels = text.split(':').map(|level| match level {
            "1" => Some(1),
            "2" => Some(2),
            _ => None,
        });
        levels.collect::<Option<Vec<u8>>>().filter(|levels| levels.len() <= 3)
    }
}

/// Opens the zone of a rule, without waiting for it.
type Open = dyn Fn(&CacheRule) + Send + Sync;

/// Creates zones and opens their disks as soon as a configuration stores responses in them; a part of the node.
#[derive(Default)]
pub struct CacheDisks {
    open: OnceLock<Box<Open>>,
}

impl std::fmt::Debug for CacheDisks {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CacheDisks").finish_non_exhaustive()
    }
}

impl CacheDisks {
    /// Sets the function that opens zones, once; it must not wait.
    pub fn open_by(&self, open: impl Fn(&CacheRule) + Send + Sync + 'static) {
        // The first call counts: there is one gateway in a process.
        let _ = self.open.set(Box::new(open));
    }

    /// Opens the zone of a rule that will store responses. In tools that only check a configuration, nothing happens.
    pub fn want(&self, rule: &CacheRule) {
        if let Some(open) = self.open.get() {
            open(rule);
        }
    }
}

/// How responses report the cache status.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Tells {
    /// Not at all
    #[default]
    Nothing,
    /// APISIX: `Apisix-Cache-Status`, with nginx's words
    Word,
    /// `Cache-Status` (RFC 9211).
    Field,
}

/// Response fields that are ignored.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Ignored {
    /// `Cache-Control`, and its variants for certain caches
    pub cache_control: bool,
    /// `Expires`
    pub expires: bool,
    /// nginx's `X-Accel-Expires`
    pub accel_expires: bool,
    /// `Vary`: one stored response serves all requests. Only safe where no named field changes the response.
    pub vary: bool,
}

/// The source of the freshness lifetime.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Lifetime {
    /// A fixed number of seconds
    Fixed(u32),
    /// The response fields; a response without them is not stored.
    #[default]
    Stated,
    /// The response fields, with nginx's `X-Accel-Expires` first; without them this number of seconds.
    StatedOr(u32),
    /// All rules for a shared cache (RFC 9111 §4.2, RFC 9213)
    Known {
        /// The lifetime of responses without such fields: a status, and seconds. The first match counts; an entry
        /// without a status matches all.
        otherwise: Vec<(Option<u16>, u32)>,
        /// Other responses without such fields are fresh for a tenth of their age on arrival.
        guesses: bool,
    },
}

/// The cache order for one exchange.
#[derive(Debug, Clone)]
pub struct CacheWish {
    /// The rule.
    pub rule: Arc<CacheRule>,
    /// The key; complete once [`CacheWish::complete`] was called.
    pub key: Vec<u8>,
    /// The digest input of a request body: the method, the body, and the fields that affect how the body is read.
    /// Without it, responses to requests other than GET and HEAD are not stored.
    pub content: Option<Vec<u8>>,
    /// The request as the node gets it, if the key is complete: the first part of the key.
    outgoing: Outgoing,
    /// The key identifies the user.
    pub is_isolated: bool,
    /// The user of the request has no name: only a response marked as public is stored.
    pub is_unnamed: bool,
    /// Stored responses are not used.
    pub is_bypassed: bool,
    /// The response is not stored.
    pub is_kept_out: bool,
    /// The fields that scripts had set when the key was made.
    fields: Vec<u8>,
}

impl CacheWish {
    /// Adds the request to the key as the node gets it, after all plugins. `nodes` is what decides on the node besides
    /// the request: the name of the upstream if that one sets the Host for its nodes, and the destination of a
    /// redirected client.
    pub fn complete(&mut self, ctx: &Context, nodes: &str) {
        self.outgoing = Outgoing::of(ctx, nodes, self.content.as_deref().unwrap_or_default());
        self.key = self.outgoing.followed_by(&self.key);
    }

    /// Returns the same order under another key, which is derived from this one.
    #[must_use]
    pub fn under(&self, key: Vec<u8>) -> CacheWish {
        CacheWish { key, ..self.clone() }
    }

    /// Returns true if the node gets the request that the key describes.
    pub fn is_sent(&self, ctx: &Context) -> bool {
        self.outgoing.is_sent(ctx) && self.fields == ctx.personal.fields()
    }

    /// Returns the keys that `PURGE` removes: the key of the request, and the same for the other scheme.
    pub fn purged(&self) -> Vec<Vec<u8>> {
        let own = &self.key[self.outgoing.length()..];
        let others = ["http", "https"].map(|scheme| self.outgoing.over(scheme).followed_by(own));
        let others = others.into_iter().filter(|key| *key != self.key);
        std::iter::once(self.key.clone()).chain(others).collect()
    }

    /// Returns the keys for another path with query on the same host, for requests that spell it as `target` does;
    /// `uri` is the normalized path.
    pub fn of_neighbour(&self, ctx: &mut Context, uri: Vec<u8>, target: &[u8]) -> Option<Vec<u8>> {
        let outgoing = self.outgoing.of_neighbour(ctx, target)?;
        Some(outgoing.followed_by(&self.rule.key.of_neighbour(ctx, uri, target)))
    }
}

/// Variables that identify the user: a key with one of them needs no other isolation.
const IDENTITIES: [&str; 4] = ["consumer_name", "consumer_group_id", "remote_user", "http_authorization"];

/// The cache configuration of a route: a rule, and the parts of keys. Parts are texts, or variables with `$`.
#[derive(Debug, Clone)]
pub struct CacheOrder {
    rule: Arc<CacheRule>,
    bypass: Vec<Part>,
    no_store: Vec<Part>,
}

impl CacheOrder {
    /// Returns an order with this rule and keys of these parts. `isolates` gives consumers separate responses.
    pub fn new(rule: CacheRule, key: &[String], isolates: bool) -> CacheOrder {
        let rule = CacheRule { key: CacheKey::new(key, isolates, &rule.methods), ..rule };
        CacheOrder { rule: Arc::new(rule), bypass: Vec::new(), no_store: Vec::new() }
    }

    /// Adds a bypass: stored responses are not used if these parts are neither empty nor `0`.
    #[must_use]
    pub fn bypassed_by(self, bypass: &[String]) -> CacheOrder {
        CacheOrder { bypass: parts(bypass), ..self }
    }

    /// Adds an exclusion: the response is not stored if these parts are neither empty nor `0`.
    #[must_use]
    pub fn kept_out_by(self, no_store: &[String]) -> CacheOrder {
        CacheOrder { no_store: parts(no_store), ..self }
    }

    /// Returns the order for one exchange.
    pub fn wish(&self, ctx: &Context) -> CacheWish {
        let (key, is_isolated) = self.rule.key.of(ctx);
        CacheWish {
            rule: Arc::clone(&self.rule),
            key,
            content: None,
            outgoing: Outgoing::default(),
            is_isolated,
            is_unnamed: false,
            is_bypassed: is_active(&self.bypass, ctx),
            is_kept_out: is_active(&self.no_store, ctx),
            fields: Vec::new(),
        }
    }
}

impl CacheWish {
    /// Adds the users that plugins have marked. Call it after all plugins of the request: plugins after the one with
    /// the order may mark users too.
    pub fn seal(&mut self, ctx: &Context) {
        let key = std::mem::take(&mut self.key);
        self.key = self.rule.key.personal(ctx, key);
        self.is_unnamed = !self.rule.key.is_for_all && ctx.personal.is_unnamed();
        self.fields = ctx.personal.fields().to_vec();
    }
}

/// A text, or the value of a variable.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Part {
    Text(Vec<u8>),
    Variable(VarName),
}

impl Part {
    fn write(&self, ctx: &Context, out: &mut Vec<u8>) {
        match self {
            Part::Text(text) => out.extend_from_slice(text),
            Part::Variable(name) => write(name, ctx, out),
        }
    }
}

fn parts(texts: &[String]) -> Vec<Part> {
    let one = |part: &String| match part.strip_prefix('$') {
        Some(name) => Part::Variable(VarName::parse(name)),
        None => Part::Text(part.as_bytes().to_vec()),
    };
    texts.iter().map(one).collect()
}

/// Writes the value of a variable.
fn write(name: &VarName, ctx: &Context, out: &mut Vec<u8>) {
    match ctx.get(name) {
        Some(VarValue::Text(value)) => out.extend_from_slice(&value),
        // `?refresh`, as APISIX writes it.
        Some(VarValue::Bool(is_true)) => out.extend_from_slice(is_true.to_string().as_bytes()),
        Some(VarValue::List(items)) => out.extend(items.join(&b", "[..])),
        None => {}
    }
}

/// Ends the part of a key that began at `start` with its length, so that no bytes of a client can make two parts of
/// one.
fn end_part(key: &mut Vec<u8>, start: usize) {
    let length = (key.len() - start) as u64;
    key.extend_from_slice(&length.to_le_bytes());
}

/// Returns the end of keys whose last parts have these values. No other key ends like that.
pub fn key_end(values: &[String]) -> Vec<u8> {
    let mut key = Vec::new();
    for value in values {
        let start = key.len();
        key.extend_from_slice(value.as_bytes());
        end_part(&mut key, start);
    }
    key
}

/// Returns true if texts and variables are neither empty nor `0`.
fn is_active(parts: &[Part], ctx: &Context) -> bool {
    let mut value = Vec::new();
    parts.iter().for_each(|part| part.write(ctx, &mut value));
    !value.is_empty() && value != b"0"
}

/// The target, the Host and the forwarding fields of a request as the node gets them. Every key of the cache begins
/// with it: requests that differ for the node never share a response.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Outgoing {
    bytes: Vec<u8>,
    /// Where each part ends.
    ends: [usize; PARTS],
}

/// The parts, in their order.
const TARGET: usize = 0;
/// The client's authority, or the one that a plugin has set. An upstream may set another Host for its nodes; then
/// part 4 names it. It also names the destination of a redirected client.
const HOST: usize = 1;
const FORWARDED_HOST: usize = 2;
const SCHEME: usize = 3;
/// Method and body of a request that is not GET or HEAD.
const CONTENT: usize = 5;
const PARTS: usize = 6;

impl Outgoing {
    fn of(ctx: &Context, nodes: &str, content: &[u8]) -> Outgoing {
        let field = |name| joined(&ctx.request.headers, name).unwrap_or_default();
        let (forwarded_host, scheme) = (field("x-forwarded-host"), field("x-forwarded-proto"));
        let host = ctx.host.as_deref().unwrap_or(ctx.request.authority());
        Outgoing::new([ctx.outgoing_target(), host, &forwarded_host, &scheme, nodes.as_bytes(), content])
    }

    fn new(parts: [&[u8]; PARTS]) -> Outgoing {
        let mut outgoing = Outgoing::default();
        outgoing.bytes.reserve(parts.iter().map(|part| part.len()).sum());
        for (part, end) in parts.into_iter().zip(&mut outgoing.ends) {
            outgoing.bytes.extend_from_slice(part);
            *end = outgoing.bytes.len();
        }
        outgoing
    }

    fn part(&self, number: usize) -> &[u8] {
        let start = number.checked_sub(1).map_or(0, |before| self.ends[before]);
        &self.bytes[start..self.ends[number]]
    }

    fn with(&self, changes: &[(usize, &[u8])]) -> Outgoing {
        let changed =
            |number| changes.iter().find(|(changed, _)| *changed == number).map(|(_, value)| *value);
        Outgoing::new(std::array::from_fn(|number| changed(number).unwrap_or_else(|| self.part(number))))
    }

    /// Returns the same request with another scheme.
    fn over(&self, scheme: &str) -> Outgoing {
        self.with(&[(SCHEME, scheme.as_bytes())])
    }

    /// Returns the same request without a body for another target of the client. Returns None if the effect of the
    /// plugins' rewrites on this target is unknown.
    fn of_neighbour(&self, ctx: &Context, target: &[u8]) -> Option<Outgoing> {
        let sent = match ctx.target.is_empty() {
            true => target.to_vec(),
            false => rewritten(ctx.request.raw_path(), self.part(TARGET), target)?,
        };
        Some(self.with(&[(TARGET, &sent), (CONTENT, b"")]))
    }

    /// Returns true if the node still gets this request. A Host that the upstream sets is not compared.
    fn is_sent(&self, ctx: &Context) -> bool {
        let forwarded_host = joined(&ctx.request.headers, "x-forwarded-host").unwrap_or_default();
        ctx.outgoing_target() == self.part(TARGET)
            && ctx.host.as_deref().is_none_or(|host| host == self.part(HOST))
            && *forwarded_host == *self.part(FORWARDED_HOST)
    }

    /// Returns its length in a key in bytes.
    fn length(&self) -> usize {
        self.bytes.len() + PARTS * size_of::<u64>()
    }

    /// Returns the key that begins with it and continues with `rest`.
    fn followed_by(&self, rest: &[u8]) -> Vec<u8> {
        let mut key = Vec::with_capacity(self.length() + rest.len());
        for number in 0..PARTS {
            let start = key.len();
            key.extend_from_slice(self.part(number));
            end_part(&mut key, start);
        }
        key.extend_from_slice(rest);
        key
    }
}

/// Applies a rewrite to `target`: the rewrite that turned the prefix of path `own` into the prefix of `sent`.
fn rewritten(own: &[u8], sent: &[u8], target: &[u8]) -> Option<Vec<u8>> {
    let path = |target: &[u8]| target.iter().position(|b| *b == b'?').unwrap_or(target.len());
    let sent = &sent[..path(sent)];
    let alike = own.iter().rev().zip(sent.iter().rev()).take_while(|(own, sent)| own == sent).count();
    // Only whole segments count.
    let alike = own[own.len() - alike..].iter().position(|b| *b == b'/').map_or(0, |at| alike - at);
    let rest = target.strip_prefix(&own[..own.len() - alike])?;
    let is_whole = alike > 0 || rest.is_empty() || rest.starts_with(b"?");
    is_whole.then(|| [&sent[..sent.len() - alike], rest].concat())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use sigma_http::h1::{HeadLimits, Tolerance, parse_request};

    use super::*;

    /// A request as clients and plugins can make it.
    #[derive(Debug, Clone)]
    struct Asked {
        target: &'static str,
        host: &'static str,
        forwarded_host: Option<&'static str>,
        scheme: &'static str,
        rewritten: Option<&'static str>,
        own_host: Option<&'static str>,
        content: Option<&'static str>,
        method: &'static str,
    }

    impl Asked {
        /// Returns the key, and the request as the node gets it.
        fn key(&self, order: &CacheOrder) -> (Vec<u8>, [Vec<u8>; 5]) {
            let mut ctx = Context::default();
            ctx.begin();
            let mut head = format!("{} {} HTTP/1.1\r\nHost: {}\r\n", self.method, self.target, self.host);
            head.push_str(&format!("X-Forwarded-Proto: {}\r\n", self.scheme));
            if let Some(host) = self.forwarded_host {
                head.push_str(&format!("X-Forwarded-Host: {host}\r\n"));
            }
            head.push_str("\r\n");
            let limits =
                HeadLimits { line_bytes: 1024, head_bytes: 4096, fields: 32, tolerance: Tolerance::NONE };
            parse_request(head.as_bytes(), &limits, &mut ctx.request).unwrap().unwrap();
            // All path spellings in these tests normalize to it.
            ctx.uri = b"/page".to_vec();
            ctx.target = self.rewritten.unwrap_or_default().into();
            ctx.host = self.own_host.map(|host| host.as_bytes().into());
            let mut wish = order.wish(&ctx);
            wish.content = self.content.map(|content| content.as_bytes().to_vec());
            wish.complete(&ctx, "");
            assert!(wish.is_sent(&ctx));
            let host = self.own_host.unwrap_or(self.host);
            let forwarded = self.forwarded_host.unwrap_or_default();
            let sent = [self.rewritten.unwrap_or(self.target), host, forwarded, self.scheme];
            let [target, host, forwarded, scheme] = sent.map(|text| text.as_bytes().to_vec());
            let content = self.content.unwrap_or_default().as_bytes().to_vec();
            (wish.key, [target, host, forwarded, scheme, content])
        }
    }

    fn any_request() -> impl Strategy<Value = Asked> {
        use prop::option::of;
        use prop::sample::select;
        let hosts = || select(vec!["shop.test", "SHOP.test", "shop.test.", "shop.test:4444", "other.test"]);
        let targets = || select(vec!["/page", "//page", "/%70age", "/x/../page", "/page?a", "/page?"]);
        (
            (targets(), hosts(), of(hosts()), select(vec!["http", "https"])),
            (
                of(targets()),
                of(hosts()),
                of(select(vec!["POST1", "POST2"])),
                select(vec!["GET", "HEAD", "POST"]),
            ),
        )
            .prop_map(
                |((target, host, forwarded_host, scheme), (rewritten, own_host, content, method))| Asked {
                    target,
                    host,
                    forwarded_host,
                    scheme,
                    rewritten,
                    own_host,
                    content,
                    method,
                },
            )
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 10_000, ..ProptestConfig::default() })]

        #[test]
        fn equal_keys_mean_equal_bytes_to_the_node(one in any_request(), other in any_request(), is_fixed in any::<bool>()) {
            let key: &[&str] = if is_fixed { &["fixed"] } else { &["$host", "$request_uri"] };
            let key: Vec<String> = key.iter().map(|part| (*part).to_owned()).collect();
            let order = CacheOrder::new(CacheRule::default(), &key, true);
            let (one, other) = (one.key(&order), other.key(&order));
            prop_assert!(one.0 != other.0 || one.1 == other.1);
            // A key of fixed text depends only on the request.
            prop_assert!(!is_fixed || one.1 != other.1 || one.0 == other.0);
        }
    }

    #[test]
    fn the_key_has_the_method_of_the_stored_response() {
        let methods = vec![Method::Get, Method::Head, Method::Post];
        let rule = CacheRule { methods, ..CacheRule::default() };
        let order = CacheOrder::new(rule, &["$request_method".to_owned()], true);
        let asked = |method| Asked {
            target: "/page",
            host: "h",
            forwarded_host: None,
            scheme: "http",
            rewritten: None,
            own_host: None,
            content: None,
            method,
        };
        let [get, head, post, purge] =
            ["GET", "HEAD", "POST", "PURGE"].map(|method| asked(method).key(&order).0);
        assert!(get == head && get == purge && get != post);
        assert!(get.ends_with(&key_end(&["GET".to_owned()])), "orders to purge name the last parts");
    }

    #[test]
    fn purge_covers_both_schemes() {
        let order = CacheOrder::new(CacheRule::default(), &["$request_uri".to_owned()], true);
        let mut keys = Vec::new();
        for scheme in ["http", "https"] {
            let mut ctx = Context::default();
            ctx.begin();
            ctx.request.headers.append("X-Forwarded-Proto", scheme.as_bytes());
            let mut wish = order.wish(&ctx);
            wish.complete(&ctx, "");
            let mut purged = wish.purged();
            assert!(purged.contains(&wish.key) && purged.len() == 2);
            purged.sort();
            keys.push(purged);
        }
        assert_eq!(keys[0], keys[1]);
    }

    #[test]
    fn neighbours_are_rewritten_alike() {
        let check = |own: &str, sent: &str, target: &str, expected: Option<&str>| {
            let found = rewritten(own.as_bytes(), sent.as_bytes(), target.as_bytes());
            assert_eq!(found.as_deref(), expected.map(str::as_bytes), "{own} {sent} {target}");
        };
        check("/api/items", "/items?a=b", "/api/items/5?c", Some("/items/5?c"));
        check("/api/items", "/v2/items", "/api/users", Some("/v2/users"));
        check("/items", "/shop/items", "/items/5", Some("/shop/items/5"));
        check("/api/items", "/items", "/other", None);
        check("/a", "/fixed", "/b", None);
        check("/a", "/fixed", "/a?x", Some("/fixed?x"));
        check("/a", "/fixed", "/ab", None);
    }
}
