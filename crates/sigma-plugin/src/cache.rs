//! What a plugin wants of the cache of answers, which is a stage of the exchange and not the plugin's own.

use std::path::PathBuf;
use std::sync::{Arc, OnceLock};

use sigma_config::expr::{VarName, VarValue, Variables};
use sigma_http::Method;

use crate::Context;
use crate::variables::joined;

/// How answers are kept and used again.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CacheRule {
    /// The name of the memory that they are kept in.
    pub zone: Box<str>,
    /// How much memory that is, in bytes.
    pub zone_bytes: u64,
    /// Where on a disk it keeps them as well, if it does.
    pub disk: Option<CacheDisk>,
    /// Whoever may send `PURGE` has what is kept under a key forgotten.
    pub purges: bool,
    /// The methods that are answered from it. Answers to HEAD are not kept: those to GET serve it.
    pub methods: Vec<Method>,
    /// The statuses that are kept; None for all whose lifetime is known.
    pub statuses: Option<Vec<u16>>,
    /// How long they are fresh.
    pub lifetime: Lifetime,
    /// What nodes say and this gateway does not heed.
    pub ignores: Ignored,
    /// `Cache-Control` of requests counts.
    pub heeds_requests: bool,
    /// Answers that set cookies are kept.
    pub keeps_cookies: bool,
    /// The most bytes that a body may have.
    pub most_bytes: u64,
    /// Bytes of the slices in which answers are asked for and kept of which not all is there; 0 for never.
    pub slice_bytes: u64,
    /// Clients are not told how long answers are fresh.
    pub hides_lifetime: bool,
    /// For how many milliseconds a request waits for another one's answer; 0 if each asks for itself.
    pub wait_ms: u32,
    /// Seconds without an answer after which one more asks for all; 0 for never.
    pub lead_s: u32,
    /// How many requests wait for one; further ones ask for themselves. 0 for no limit.
    pub waiters_max: u32,
    /// How often an answer must have been asked for before it is kept; 0 and 1 for at once.
    pub least_uses: u32,
    /// What is stale is asked for with its validators. What is stale from the start is kept for that, if it has some.
    pub revalidates: bool,
    /// Seconds for which what is stale is given while somebody asks anew, beside what it says itself.
    pub stale_while_revalidate: u32,
    /// What is stale and may be given is asked for anew with nobody waiting.
    pub asks_aside: bool,
    /// Seconds for which what is stale stands in where a node fails, beside what it says itself.
    pub stale_if_error: u32,
    /// Statuses that count as a failure then.
    pub failures: Vec<u16>,
    /// How clients are told what the cache did.
    pub tells: Tells,
    /// The fields that say which tags an answer has are not for clients.
    pub hides_tags: bool,
    /// What keys are made of; [`CacheOrder::new`] says it.
    pub key: CacheKey,
}

/// What keys are made of.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CacheKey {
    parts: Vec<Part>,
    /// Whoever no consumer is known for.
    user: Option<VarName>,
    /// Consumers have answers of their own, unless the key tells whose it is.
    isolates: bool,
    /// The operator says that responses are the same for all persons.
    is_for_all: bool,
    /// The whole field is in the key.
    has_credential: bool,
    /// The consumer is, if there is one.
    has_consumer: bool,
    /// Answers to POST are kept: as `$request_method` it is another method than GET.
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

    /// The key of an exchange, and whether it tells whose answer it is.
    fn of(&self, ctx: &Context) -> (Vec<u8>, bool) {
        let mut key = Vec::new();
        // Whoever is not known is anybody.
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

    /// The method whose answers a request is about: HEAD is answered from what GET has left, and others make that be
    /// forgotten.
    fn method(&self, ctx: &Context) -> &'static str {
        match ctx.request.method {
            Method::Post if self.has_post => "POST",
            _ => "GET",
        }
    }

    /// A key with the persons before it that plugins have marked, once all of them have run. Nothing else begins so:
    /// the byte behind the persons is none that stands behind a consumer.
    fn personal(&self, ctx: &Context, key: Vec<u8>) -> Vec<u8> {
        if self.is_for_all || !ctx.personal.is_marked() {
            return key;
        }
        let mut personal = ctx.personal.names().to_vec();
        end_part(&mut personal, 0);
        personal.push(if ctx.personal.is_unnamed() { UNNAMED } else { NAMED });
        personal.extend_from_slice(&key);
        personal
    }

    /// The key that the same request would have for another path with query on the same host; `uri` is the path in its
    /// normal form.
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

/// Stand behind persons; consumers have 0 and 1 there.
const NAMED: u8 = 2;
const UNNAMED: u8 = 3;

/// A place on a disk for answers, beside memory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CacheDisk {
    /// The folder, which is one zone's alone.
    pub path: PathBuf,
    /// How many letters the names of the folders in it have, one number for each level: nginx's `levels`.
    pub levels: Vec<u8>,
    /// How much of the disk that is, in bytes.
    pub bytes: u64,
    /// Seconds after which what nobody has used is forgotten, fresh or not.
    pub inactive_s: u32,
}

impl CacheDisk {
    /// The levels that a text such as `1:2` names: up to three, with one or two letters each.
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

/// Has zones made, and their disks opened, as soon as something in the configuration is to be kept in them; a part of
/// the node.
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
    /// Says once how that is done; it must not wait.
    pub fn open_by(&self, open: impl Fn(&CacheRule) + Send + Sync + 'static) {
        // The first counts: there is one gateway in a process.
        let _ = self.open.set(Box::new(open));
    }

    /// Answers are going to be kept by this rule. Nothing happens in tools that only check a configuration.
    pub fn want(&self, rule: &CacheRule) {
        if let Some(open) = self.open.get() {
            open(rule);
        }
    }
}

/// How clients are told what the cache did.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Tells {
    /// Not at all.
    #[default]
    Nothing,
    /// APISIX: `Apisix-Cache-Status`, in nginx's words.
    Word,
    /// `Cache-Status` (RFC 9211).
    Field,
}

/// Fields of answers that do not count.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Ignored {
    /// `Cache-Control`, and the fields that are for some caches only.
    pub cache_control: bool,
    /// `Expires`
    pub expires: bool,
    /// nginx's `X-Accel-Expires`
    pub accel_expires: bool,
    /// `Vary`: what is kept is given to all. Only where nothing that it names changes the answer.
    pub vary: bool,
}

/// How it is known how long an answer is fresh.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Lifetime {
    /// Always so many seconds.
    Fixed(u32),
    /// As it states itself; what states nothing is not kept.
    #[default]
    Stated,
    /// As it states itself, nginx's `X-Accel-Expires` before all; so many seconds if it states nothing.
    StatedOr(u32),
    /// By all that a shared cache may know it (RFC 9111 §4.2, RFC 9213).
    Known {
        /// For answers that state nothing: a status, and seconds. The first one that fits counts; one without a status
        /// fits all.
        otherwise: Vec<(Option<u16>, u32)>,
        /// What else states nothing is fresh for a tenth of its age when it came.
        guesses: bool,
    },
}

/// What is wanted for one exchange.
#[derive(Debug, Clone)]
pub struct CacheWish {
    /// The rule.
    pub rule: Arc<CacheRule>,
    /// The key; complete once [`CacheWish::complete`] was called.
    pub key: Vec<u8>,
    /// What tells one request body from another, with the method and all that says how the body is read. Without it
    /// answers to requests other than GET and HEAD are not kept.
    pub content: Option<Vec<u8>>,
    /// What the node gets, if the key is complete: the first part of the key.
    outgoing: Outgoing,
    /// The key tells whose answer it is.
    pub is_isolated: bool,
    /// The request is of a person without a name: only a response that says that it is for all is stored.
    pub is_unnamed: bool,
    /// Nothing that is kept is used.
    pub is_bypassed: bool,
    /// The answer is not kept.
    pub is_kept_out: bool,
}

impl CacheWish {
    /// Puts into the key what the node gets, as plugins have left it. `upstream` names the upstream where it decides on
    /// the Host that its nodes get.
    pub fn complete(&mut self, ctx: &Context, upstream: &str) {
        self.outgoing = Outgoing::of(ctx, upstream, self.content.as_deref().unwrap_or_default());
        self.key = self.outgoing.followed_by(&self.key);
    }

    /// The same under another key that is made of this one.
    #[must_use]
    pub fn under(&self, key: Vec<u8>) -> CacheWish {
        CacheWish { key, ..self.clone() }
    }

    /// Whether the node gets what the key says.
    pub fn is_sent(&self, ctx: &Context) -> bool {
        self.outgoing.is_sent(ctx)
    }

    /// The keys of what `PURGE` forgets: that of the request, and of the same over the other scheme.
    pub fn purged(&self) -> Vec<Vec<u8>> {
        let own = &self.key[self.outgoing.length()..];
        let others = ["http", "https"].map(|scheme| self.outgoing.over(scheme).followed_by(own));
        let others = others.into_iter().filter(|key| *key != self.key);
        std::iter::once(self.key.clone()).chain(others).collect()
    }

    /// The keys of what is kept for another path with query on the same host, for requests that spell it as `target`
    /// does; `uri` is the path in its normal form.
    pub fn of_neighbour(&self, ctx: &mut Context, uri: Vec<u8>, target: &[u8]) -> Option<Vec<u8>> {
        let outgoing = self.outgoing.of_neighbour(ctx, target)?;
        Some(outgoing.followed_by(&self.rule.key.of_neighbour(ctx, uri, target)))
    }
}

/// Variables that tell whose answer it is: who has them in the key wants no other isolation.
const IDENTITIES: [&str; 4] = ["consumer_name", "consumer_group_id", "remote_user", "http_authorization"];

/// What is wanted of the cache for the exchanges of a route: a rule, and what keys are made of. Parts are texts, and
/// variables with `$`.
#[derive(Debug, Clone)]
pub struct CacheOrder {
    rule: Arc<CacheRule>,
    bypass: Vec<Part>,
    no_store: Vec<Part>,
}

impl CacheOrder {
    /// One by this rule, with keys of these parts. `isolates` says whether consumers have answers of their own.
    pub fn new(rule: CacheRule, key: &[String], isolates: bool) -> CacheOrder {
        let rule = CacheRule { key: CacheKey::new(key, isolates, &rule.methods), ..rule };
        CacheOrder { rule: Arc::new(rule), bypass: Vec::new(), no_store: Vec::new() }
    }

    /// The same where nothing that is kept is used if these parts come to anything but nothing or `0`.
    #[must_use]
    pub fn bypassed_by(self, bypass: &[String]) -> CacheOrder {
        CacheOrder { bypass: parts(bypass), ..self }
    }

    /// The same where no answer is kept then.
    #[must_use]
    pub fn kept_out_by(self, no_store: &[String]) -> CacheOrder {
        CacheOrder { no_store: parts(no_store), ..self }
    }

    /// What is wanted for one exchange.
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
        }
    }
}

impl CacheWish {
    /// Adds the persons that plugins have marked. To be called when all plugins of the request have run: those behind
    /// the one that has made the wish may mark some.
    pub fn seal(&mut self, ctx: &Context) {
        let key = std::mem::take(&mut self.key);
        self.key = self.rule.key.personal(ctx, key);
        self.is_unnamed = !self.rule.key.is_for_all && ctx.personal.is_unnamed();
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

/// Ends the part of a key that has begun at `start` with its length: whatever bytes clients put into one part, it is
/// never taken for two.
fn end_part(key: &mut Vec<u8>, start: usize) {
    let length = (key.len() - start) as u64;
    key.extend_from_slice(&length.to_le_bytes());
}

/// How keys end whose last parts have these values. Nothing else ends so.
pub fn key_end(values: &[String]) -> Vec<u8> {
    let mut key = Vec::new();
    for value in values {
        let start = key.len();
        key.extend_from_slice(value.as_bytes());
        end_part(&mut key, start);
    }
    key
}

/// Whether texts and variables come to something.
fn is_active(parts: &[Part], ctx: &Context) -> bool {
    let mut value = Vec::new();
    parts.iter().for_each(|part| part.write(ctx, &mut value));
    !value.is_empty() && value != b"0"
}

/// The target, the Host and the forwarding fields of a request, as the node gets them. Every key of the cache begins
/// with it: two requests of which a node gets different ones never share an answer.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Outgoing {
    bytes: Vec<u8>,
    /// Where each part ends.
    ends: [usize; PARTS],
}

/// The parts, in their order.
const TARGET: usize = 0;
/// The client's authority, or what a plugin has put in its place. An upstream may have its nodes get another Host;
/// part 4 is its name then.
const HOST: usize = 1;
const FORWARDED_HOST: usize = 2;
const SCHEME: usize = 3;
/// Method and body of a request that is not GET or HEAD.
const CONTENT: usize = 5;
const PARTS: usize = 6;

impl Outgoing {
    fn of(ctx: &Context, upstream: &str, content: &[u8]) -> Outgoing {
        let field = |name| joined(&ctx.request.headers, name).unwrap_or_default();
        let (forwarded_host, scheme) = (field("x-forwarded-host"), field("x-forwarded-proto"));
        let host = ctx.host.as_deref().unwrap_or(ctx.request.authority());
        Outgoing::new([ctx.outgoing_target(), host, &forwarded_host, &scheme, upstream.as_bytes(), content])
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

    /// The same over another scheme.
    fn over(&self, scheme: &str) -> Outgoing {
        self.with(&[(SCHEME, scheme.as_bytes())])
    }

    /// The same request without a body for another target of the client's. None if plugins rewrite targets in a way
    /// that does not tell what they make of this one.
    fn of_neighbour(&self, ctx: &Context, target: &[u8]) -> Option<Outgoing> {
        let sent = match ctx.target.is_empty() {
            true => target.to_vec(),
            false => rewritten(ctx.request.raw_path(), self.part(TARGET), target)?,
        };
        Some(self.with(&[(TARGET, &sent), (CONTENT, b"")]))
    }

    /// Whether it is still what the node gets. What an upstream makes of Host is its own.
    fn is_sent(&self, ctx: &Context) -> bool {
        let forwarded_host = joined(&ctx.request.headers, "x-forwarded-host").unwrap_or_default();
        ctx.outgoing_target() == self.part(TARGET)
            && ctx.host.as_deref().is_none_or(|host| host == self.part(HOST))
            && *forwarded_host == *self.part(FORWARDED_HOST)
    }

    /// Bytes of a key that are its.
    fn length(&self) -> usize {
        self.bytes.len() + PARTS * size_of::<u64>()
    }

    /// The key that begins with it and goes on with `rest`.
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

/// What becomes of `target` if a rewriting that makes `sent` of the path `own` replaces what the two begin with.
fn rewritten(own: &[u8], sent: &[u8], target: &[u8]) -> Option<Vec<u8>> {
    let path = |target: &[u8]| target.iter().position(|b| *b == b'?').unwrap_or(target.len());
    let sent = &sent[..path(sent)];
    let alike = own.iter().rev().zip(sent.iter().rev()).take_while(|(own, sent)| own == sent).count();
    // Whole segments.
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

    /// A request, as clients and plugins can make one.
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
        /// The key, and what the node gets.
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
            // All spellings of the path in these tests are normalised to it.
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
            // A key of fixed text tells apart nothing but that.
            prop_assert!(!is_fixed || one.1 != other.1 || one.0 == other.0);
        }
    }

    #[test]
    fn the_method_in_a_key_is_that_of_what_is_kept() {
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
    fn purge_means_both_schemes() {
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
