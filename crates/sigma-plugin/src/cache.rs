//! What a plugin wants of the cache of answers, which is a stage of the exchange and not the plugin's own.

use std::path::PathBuf;
use std::sync::{Arc, OnceLock};

use sigma_config::expr::{VarName, VarValue, Variables};
use sigma_http::Method;

use crate::Context;

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
    /// The whole field is in the key.
    has_credential: bool,
    /// The consumer is, if there is one.
    has_consumer: bool,
}

impl CacheKey {
    fn new(key: &[String], isolates: bool) -> CacheKey {
        let has = |name: &str| key.iter().any(|part| part.strip_prefix('$') == Some(name));
        CacheKey {
            parts: parts(key),
            user: Some(VarName::parse("remote_user")),
            isolates: isolates && !IDENTITIES.into_iter().any(has),
            has_credential: has("http_authorization"),
            has_consumer: has("consumer_name"),
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
            part.write(ctx, &mut key);
            end_part(&mut key, start);
        }
        (key, is_isolated)
    }

    /// The key that the same request would have for another path with query on the same host; `uri` is the path in its
    /// normal form.
    pub fn of_neighbour(&self, ctx: &mut Context, uri: Vec<u8>, target: &[u8]) -> Vec<u8> {
        let own_uri = std::mem::replace(&mut ctx.uri, uri);
        let own_target = ctx.request.path_and_query().to_vec();
        ctx.request.set_path_and_query(target);
        let (key, _) = self.of(ctx);
        ctx.request.set_path_and_query(&own_target);
        ctx.uri = own_uri;
        key
    }
}

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
    /// The key.
    pub key: Vec<u8>,
    /// The key tells whose answer it is.
    pub is_isolated: bool,
    /// Nothing that is kept is used.
    pub is_bypassed: bool,
    /// The answer is not kept.
    pub is_kept_out: bool,
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
        let rule = CacheRule { key: CacheKey::new(key, isolates), ..rule };
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
            is_isolated,
            is_bypassed: is_active(&self.bypass, ctx),
            is_kept_out: is_active(&self.no_store, ctx),
        }
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
