//! `limit-conn`: requests at the same time.

mod counts;
mod sessions;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Value, json};
use sigma_plugin::descriptor::parsed;
use sigma_plugin::variable_fields::{VariableField, VariableForm};
use sigma_plugin::{Build, Configuration, Context, Descriptor, Env, Node, Phase, PhaseSet, Plugin, Step};
use sigma_schema::Problem;
use sigma_schema::plugins::PluginScope;

use crate::shared::quota::{self, Amount, Key, KeyType, Refusal, RefusalFields, Space, Unlimited};
use counts::{Counts, waits};
use sigma_plugin_kit::log_throttle::LogThrottle;
use sigma_plugin_kit::redis::{
    Connections, Policy, Script, SharedConnection, Target, idle_settings, policies,
};

/// The plugin.
pub(crate) static LIMIT_CONN: Descriptor = Descriptor {
    name: "limit-conn",
    priority: 1003,
    example: include_str!("example.md"),
    phases: PhaseSet::of(&[Phase::Access, Phase::Log]),
    warnings: Some(|scope, conf| {
        // Sessions have no status.
        let status = if scope == PluginScope::Stream { Vec::new() } else { quota::unset_status(conf) };
        let idle = [quota::idle_rules(conf), idle_settings(conf), forgotten_latency(conf)].concat();
        [quota::client_chosen(conf), idle, status].concat()
    }),
    build: |build| Ok(Arc::new(LimitConn::new(build)?)),
    flow: Some(sessions::FLOW),
    variables: &[
        VariableField::guard("key", VariableForm::Key),
        VariableField::guard("rules.*.key", VariableForm::Template),
        VariableField::guard("conn", VariableForm::Template),
        VariableField::guard("burst", VariableForm::Template),
        VariableField::guard("rules.*.conn", VariableForm::Template),
        VariableField::guard("rules.*.burst", VariableForm::Template),
    ],
    ..Descriptor::of::<Config>()
};

/// Limits concurrent requests.
///
/// Up to `conn` requests pass at the same time. Up to `burst` more wait for `default_conn_delay` seconds, or a
/// multiple with more requests. Further requests are refused. A request counts until its response has been sent.
#[derive(Deserialize, JsonSchema)]
#[schemars(extend("oneOf" = [
    {"required": ["conn", "burst", "default_conn_delay", "key"]}, {"required": ["default_conn_delay", "rules"]}
]))]
struct Config {
    /// Concurrent requests without a delay. A text is a template that must produce such a number for each request.
    conn: Option<Amount<1>>,
    /// Additional concurrent requests, which are delayed. A text is a template that must produce such a number for each
    /// request.
    burst: Option<Amount<0>>,
    /// Delay in seconds of a request beyond `conn`.
    #[schemars(with = "Option<f64>", extend("exclusiveMinimum" = 0))]
    default_conn_delay: f64,
    /// Without effect: the delay is always `default_conn_delay`, as with `true`. APISIX does not use its measured
    /// latencies either.
    #[serde(rename = "only_use_default_delay")]
    #[schemars(extend("default" = false))]
    _only_default: bool,
    /// Key of the counter; see `key_type`. Without a value the client's address is used; a missing value is never a
    /// key. IPv6 addresses count by network (/64), unless a text with variables names `$remote_addr`.
    key: Option<String>,
    /// Form of `key`: the name of a variable (`var`), or a text with variables (`var_combination`).
    #[schemars(with = "String", extend("enum" = ["var", "var_combination"], "default" = "var"))]
    key_type: KeyType,
    #[serde(flatten)]
    #[schemars(schema_with = "policies::<Expiry, false>")]
    policy: Policy,
    #[serde(flatten)]
    #[schemars(skip)]
    expiry: Expiry,
    /// Several limits instead of one; each one applies.
    rules: Option<Vec<ListedLimit>>,
    /// Name of the counters: configurations with the same name count together. Unset: each configuration has its own
    /// counters. Sigma's own.
    #[serde(rename = "zone")]
    #[schemars(length(min = 1, max = 64))]
    _zone: Option<String>,
    #[serde(flatten)]
    refusal: RefusalFields,
}

/// The settings of all Redis policies.
#[derive(Deserialize, JsonSchema)]
struct Expiry {
    /// Seconds after which a request is no longer counted, if its gateway has died.
    #[schemars(extend("default" = 3600))]
    key_ttl: Option<u64>,
}

#[derive(Deserialize, JsonSchema)]
struct ListedLimit {
    /// Concurrent requests without a delay. A text is a template that must produce such a number for each request.
    conn: Amount<1>,
    /// Additional concurrent requests, which are delayed. A text is a template that must produce such a number for each
    /// request.
    burst: Amount<0>,
    /// Key of the counter: a text with variables.
    key: String,
}

impl Configuration for Config {
    fn check(&self) -> Result<(), String> {
        self.conn.iter().try_for_each(|conn| conn.check("conn"))?;
        self.burst.iter().try_for_each(|burst| burst.check("burst"))?;
        self.rules.iter().flatten().enumerate().try_for_each(|(at, rule)| {
            rule.conn.check(&format!("rules[{at}].conn"))?;
            rule.burst.check(&format!("rules[{at}].burst"))
        })
    }
}

/// APISIX measures latencies unless it is configured otherwise, and forgets them with each request: the delay
/// is the same there.
fn forgotten_latency(conf: &Value) -> Vec<Problem> {
    const FIELD: &str = "only_use_default_delay";
    let is_off = conf.get(FIELD) == Some(&Value::Bool(false));
    let told = || {
        let message = "the delay is always `default_conn_delay`; latencies are not measured";
        Problem::new(FIELD, "no_effect", message).hint("remove it")
    };
    is_off.then(told).into_iter().collect()
}

struct Rule {
    conn: Amount<1>,
    burst: Amount<0>,
    key: Key,
    space: Space,
    /// It is one of `rules`: skipped where it does not apply.
    listed: bool,
}

impl Rule {
    /// The limit for a request.
    ///
    /// # Errors
    /// Returns an error, which is the reason, if there is no limit.
    fn limit(&self, ctx: &Context) -> Result<Limit, Unlimited> {
        let key = match self.listed {
            true => self.space.by_value(&self.key, ctx).ok_or("`key` has no value")?,
            false => self.space.by_value_or_address(&self.key, ctx),
        };
        let conn = self.conn.of(ctx, "`conn` must be a whole number of 1 or more")?;
        let burst = self.burst.of(ctx, "`burst` must be a whole number of 0 or more")?;
        Ok(Limit { key, conn, most: conn.saturating_add(burst) })
    }
}

enum Slots {
    Local(Arc<Counts>),
    Redis {
        target: Arc<Target>,
        /// The connection of the control thread, for the case that a worker's own connection is gone.
        control: Arc<SharedConnection>,
        ttl_s: u64,
    },
}

/// A limit that applies to a request, for its key.
struct Limit {
    key: Vec<u8>,
    conn: u64,
    most: u64,
}

/// A slot that a request takes up. It is given back when this is dropped, however the exchange ends: in its
/// log phase, or with the memory of one that was cut off or has panicked.
enum RequestSlot {
    Local { counts: Arc<Counts>, key: Vec<u8> },
    Redis(Option<Remote>),
}

/// A slot in Redis, with all data to give it back.
struct Remote {
    key: Vec<u8>,
    member: String,
    connection: Arc<SharedConnection>,
    control: Arc<SharedConnection>,
    node: Arc<Node>,
}

impl Drop for RequestSlot {
    fn drop(&mut self) {
        match self {
            RequestSlot::Local { counts, key } => counts.leave(key),
            RequestSlot::Redis(remote) => {
                if let Some(remote) = remote.take() {
                    let node = Arc::clone(&remote.node);
                    node.spawn(leave(remote));
                }
            }
        }
    }
}

/// State of one exchange in an instance.
struct Entered(#[expect(dead_code, reason = "it is there to be dropped")] Vec<RequestSlot>);

/// Members are requests, scores the seconds at which they expire, by the server's clock: the clocks of
/// gateways differ, and can be changed.
const ENTER: &str = "
if redis.replicate_commands then redis.replicate_commands() end
local now = tonumber(redis.call('TIME')[1])
local ttl, most = tonumber(ARGV[1]), tonumber(ARGV[2])
redis.call('ZREMRANGEBYSCORE', KEYS[1], 0, now)
local count = redis.call('ZCARD', KEYS[1])
if redis.call('ZSCORE', KEYS[1], ARGV[3]) then
    return count
end
if count >= most then
    return -1
end
redis.call('ZADD', KEYS[1], now + ttl, ARGV[3])
redis.call('EXPIRE', KEYS[1], ttl)
return count + 1
";

static ENTER_SCRIPT: Script = Script::new(ENTER, || Script::digest_of(ENTER));

/// An instance.
struct LimitConn {
    rules: Vec<Rule>,
    slots: Slots,
    delay_s: f64,
    refusal: Arc<Refusal>,
}

impl LimitConn {
    fn new(build: &Build<'_>) -> Result<LimitConn, String> {
        let config: Config = parsed(build.conf)?;
        let space = || Space::of(build);
        let listed = |(at, ListedLimit { conn, burst, key }): (usize, ListedLimit)| {
            let (key, space) = (Key::template(&key), space().rule(at + 1));
            Rule { conn, burst, key, space, listed: true }
        };
        let rules = match (config.rules, config.key, config.conn, config.burst) {
            (Some(rules), ..) => rules.into_iter().enumerate().map(listed).collect(),
            (None, Some(key), Some(conn), Some(burst)) => {
                let key = Key::new(&key, config.key_type);
                vec![Rule { conn, burst, key, space: space(), listed: false }]
            }
            _ => return Err("either conn, burst and key or rules are needed".to_owned()),
        };
        let slots = match config.policy.target() {
            None => Slots::Local(build.node.part(Counts::default)),
            Some(target) => {
                let target = target.shared(build.node);
                let control = build.node.part(Connections::default).to(&target);
                Slots::Redis { target, control, ttl_s: config.expiry.key_ttl.unwrap_or_default().max(1) }
            }
        };
        Ok(LimitConn { rules, slots, delay_s: config.default_conn_delay, refusal: config.refusal.of(build) })
    }

    /// The limits for a request.
    ///
    /// # Errors
    /// Returns an error, which is the reason, if cannot determine a limit or if none applies.
    fn limits(&self, ctx: &Context) -> Result<Vec<Limit>, Unlimited> {
        let mut limits = Vec::with_capacity(self.rules.len());
        for rule in &self.rules {
            match rule.limit(ctx) {
                Ok(limit) => limits.push(limit),
                Err(unlimited) if rule.listed && !unlimited.is_of_client => {}
                Err(unlimited) => return Err(unlimited),
            }
        }
        if limits.is_empty() { Err("no rule applies".into()) } else { Ok(limits) }
    }

    fn local(&self, counts: &Arc<Counts>, limits: Vec<Limit>, ctx: &mut Context, env: &Env<'_>) -> Step {
        let (mut taken, mut delay, mut over) = (Vec::with_capacity(limits.len()), Duration::ZERO, false);
        for Limit { key, conn, most } in limits {
            let Some(value) = counts.enter(&key, most) else {
                over = true;
                break;
            };
            delay += waits(self.delay_s, value, conn);
            taken.push(RequestSlot::Local { counts: Arc::clone(counts), key });
        }
        ctx.keep(self, Entered(taken));
        match over {
            // When another request ends is not known.
            true => self.refusal.over(env, None),
            false if self.refusal.is_dry() => Step::Next,
            false => after(delay),
        }
    }

    fn remote(
        &self,
        target: &Arc<Target>,
        control: &Arc<SharedConnection>,
        ttl_s: u64,
        limits: Vec<Limit>,
        ctx: &mut Context,
        env: &Env<'_>,
    ) -> Step {
        let connection = env.local.part(Connections::default).to(target);
        let members: Vec<(Limit, String)> = limits.into_iter().map(|limit| (limit, member())).collect();
        // Kept before anything is sent: should the client leave meanwhile, all of it is given back.
        let taken = members.iter().map(|(limit, member)| {
            RequestSlot::Redis(Some(Remote {
                key: redis_key(&limit.key),
                member: member.clone(),
                connection: Arc::clone(&connection),
                control: Arc::clone(control),
                node: Arc::clone(env.node),
            }))
        });
        ctx.keep(self, Entered(taken.collect()));
        let delay_s = self.delay_s;
        let entered = async move {
            let mut delay = Duration::ZERO;
            for (limit, member) in members {
                let args = [ttl_s.to_string(), limit.most.to_string(), member];
                match ENTER_SCRIPT.run::<i64>(&connection, &redis_key(&limit.key), &args).await? {
                    value if value < 0 => return Ok(None),
                    value => delay += waits(delay_s, value.unsigned_abs(), limit.conn),
                }
            }
            Ok::<_, redis::RedisError>(Some(delay))
        };
        let refusal = Arc::clone(&self.refusal);
        Step::wait(entered, move |entered, _, env| match entered {
            Ok(Some(_)) if refusal.is_dry() => Step::Next,
            Ok(Some(delay)) => after(delay),
            Ok(None) => refusal.over(env, None),
            Err(error) => refusal.undetermined(error),
        })
    }
}

fn redis_key(key: &[u8]) -> Vec<u8> {
    [b"limit_conn:", key].concat()
}

/// A name for one request at one limit. Not the request's id: clients may choose that, and all
/// requests of one id would count once.
fn member() -> String {
    use std::hash::{BuildHasher, RandomState};
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    format!("{:016x}{number:x}", RandomState::new().hash_one(number))
}

fn after(delay: Duration) -> Step {
    if delay < Duration::from_millis(1) {
        return Step::Next;
    }
    Step::wait(async move { tokio::time::sleep(delay).await }, |(), _, _| Step::Next)
}

impl Plugin for LimitConn {
    fn access(&self, ctx: &mut Context, env: &Env<'_>) -> Step {
        let limits = match self.limits(ctx) {
            Ok(limits) => limits,
            Err(unlimited) => return self.refusal.unlimited(unlimited),
        };
        match &self.slots {
            Slots::Local(counts) => self.local(counts, limits, ctx, env),
            Slots::Redis { target, control, ttl_s } => self.remote(target, control, *ttl_s, limits, ctx, env),
        }
    }

    fn log(&self, ctx: &mut Context, _: &Env<'_>) {
        drop(ctx.take_kept::<_, Entered>(self));
    }

    fn foresee(&self, ctx: &mut Context) -> Option<Value> {
        let limits = match self.limits(ctx) {
            Ok(limits) => limits,
            Err(unlimited) => return Some(json!({"problem": unlimited.reason})),
        };
        let limits = limits.iter().map(|Limit { key, conn, most }| {
            let mut shown = json!({"conn": conn, "burst": most - conn});
            match &self.slots {
                Slots::Local(counts) => {
                    let now = counts.now(key);
                    (shown["now"], shown["remaining"]) = (now.into(), most.saturating_sub(now).into());
                }
                Slots::Redis { .. } => shown["counted_in"] = "redis".into(),
            }
            shown
        });
        Some(json!({"limits": limits.collect::<Vec<_>>()}))
    }
}

/// Gives a slot back: on the connection that took it, if it is still open. Where Redis is gone, the member
/// expires.
async fn leave(Remote { key, member, connection, control, .. }: Remote) {
    let mut command = redis::cmd("ZREM");
    command.arg(&key[..]).arg(&member);
    if let Some(Ok(_)) = connection.ask_in_order(&command).await {
        return;
    }
    if let Err(error) = control.ask(&command).await {
        static COMPLAINT: LogThrottle = LogThrottle::new();
        if let Some(left_out) = COMPLAINT.due() {
            tracing::error!(%error, left_out, "limit-conn: a finished request counts until its key_ttl");
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use sigma_plugin::{Entry, Reply};

    use super::*;
    use crate::testing::{Case, entry, refusal};

    /// Sends a request through the access phase: its response, and how long it took.
    fn ask(case: &mut Case, entry: &Entry, target: &str) -> (Option<Reply>, Duration) {
        let began = Instant::now();
        case.request(&format!("GET {target} HTTP/1.1\nHost: h\n"));
        (case.run(entry, Phase::Access), began.elapsed())
    }

    #[test]
    fn the_crowd_waits_and_the_rest_is_refused() {
        let conf = json!({"conn": 1, "burst": 1, "default_conn_delay": 0.05, "key": "arg_k", "rejected_msg": "full"});
        let entry = entry("limit-conn", conf).unwrap();
        // Each exchange has its own context, and so remembers its own place.
        let mut cases: Vec<Case> = (0..3).map(|_| Case::new("GET / HTTP/1.1\nHost: h\n")).collect();
        let (first, delay) = ask(&mut cases[0], &entry, "/");
        assert!(first.is_none() && delay < Duration::from_millis(50), "{delay:?}");
        let (second, delay) = ask(&mut cases[1], &entry, "/");
        assert!(second.is_none() && delay >= Duration::from_millis(50), "{delay:?}");
        let third = ask(&mut cases[2], &entry, "/").0.unwrap();
        assert_eq!((third.status, third.body), (503, Some(b"{\"error_msg\":\"full\"}\n".to_vec())));
        cases[2].log(&entry);
        assert!(ask(&mut cases[2], &entry, "/").0.is_some(), "who was refused has no place to give back");
        cases[0].log(&entry);
        assert!(ask(&mut cases[2], &entry, "/").0.is_none());
        assert!(ask(&mut cases[0], &entry, "/?k=other").0.is_none());
    }

    #[test]
    fn a_place_is_given_back_however_the_exchange_ends() {
        let conf = json!({"conn": 1, "burst": 0, "default_conn_delay": 0.1, "key": "remote_addr"});
        let entry = entry("limit-conn", conf).unwrap();
        let mut after = Case::new("GET / HTTP/1.1\nHost: h\n");
        let mut cut_off = Case::new("GET / HTTP/1.1\nHost: h\n");
        assert!(ask(&mut cut_off, &entry, "/").0.is_none());
        assert!(ask(&mut after, &entry, "/").0.is_some());
        drop(cut_off);
        let panics = std::panic::AssertUnwindSafe(|| {
            let mut case = Case::new("GET / HTTP/1.1\nHost: h\n");
            assert!(ask(&mut case, &entry, "/").0.is_none());
            std::panic::resume_unwind(Box::new("a fault of a plugin"));
        });
        assert!(std::panic::catch_unwind(panics).is_err());
        assert!(ask(&mut after, &entry, "/").0.is_none());
        // Another request on the same connection, although the end of this one was not reported.
        assert!(ask(&mut after, &entry, "/").0.is_none());
    }

    #[test]
    fn a_value_cannot_use_the_quota_of_an_address() {
        let conf = json!({"conn": 1, "burst": 0, "default_conn_delay": 0.1, "key": "http_x"});
        let entry = entry("limit-conn", conf).unwrap();
        let mut liar = Case::new("GET / HTTP/1.1\nHost: h\n");
        liar.request("GET / HTTP/1.1\nHost: h\nX: 127.0.0.1\n");
        assert!(liar.run(&entry, Phase::Access).is_none());
        let mut case = Case::new("GET / HTTP/1.1\nHost: h\n");
        assert!(ask(&mut case, &entry, "/").0.is_none());
    }

    #[test]
    fn rules_apply_where_they_can() {
        let rule = |conn: Value, key: &str| json!({"conn": conn, "burst": 0, "key": key});
        let conf = json!({"default_conn_delay": 0.1, "rules": [
            rule(json!(2), "$arg_a"), rule(json!("$arg_most"), "b$arg_b")
        ]});
        let listed = entry("limit-conn", conf).unwrap();
        let single = json!({"conn": "$arg_most", "burst": 0, "default_conn_delay": 0.1, "key": "arg_a", "allow_degradation": true});
        let lenient = entry("limit-conn", single).unwrap();
        // Exchanges that do not end, and so keep their places.
        let mut going_on = Vec::new();
        let mut status = |entry: &Entry, target: &str| {
            going_on.push(Case::new("GET / HTTP/1.1\nHost: h\n"));
            let reply = ask(going_on.last_mut().unwrap(), entry, target).0;
            reply.map_or(200, |reply| reply.status)
        };
        assert_eq!(
            [status(&listed, "/?a=1"), status(&listed, "/?a=1"), status(&listed, "/?a=1")],
            [200, 200, 503]
        );
        assert_eq!([status(&listed, "/?b=1&most=1"), status(&listed, "/?b=1&most=1")], [200, 503]);
        assert_eq!([status(&listed, "/?b=1&most=x"), status(&listed, "/")], [400, 500]);
        // A client cannot switch a limit off, whether another rule applies or degradation is allowed.
        assert_eq!(status(&listed, "/?a=2&b=1&most=x"), 400);
        assert_eq!([status(&lenient, "/?most=0"), status(&lenient, "/")], [400, 400]);
    }

    #[test]
    fn configurations() {
        let check = |conf: Value, reason: &str| assert_eq!(refusal("limit-conn", &conf), reason, "{conf}");
        let single = |further: Value| {
            let mut conf = json!({"conn": 1, "burst": 0, "default_conn_delay": 0.1, "key": "remote_addr"});
            conf.as_object_mut().unwrap().extend(further.as_object().unwrap().clone());
            conf
        };
        check(single(json!({})), "");
        check(single(json!({"policy": "redis"})), "then clause did not match");
        check(single(json!({"policy": "redis-cluster"})), "else clause did not match");
        check(
            single(json!({"rules": []})),
            "value should match only one schema, but matches both schemas 1 and 2",
        );
        check(
            single(json!({"conn": "ten"})),
            "property \"conn\" validation failed: \"ten\" is not a whole number from 1 to 9007199254740991 or a variable",
        );
        let rules = json!([{"conn": 1, "burst": "-1", "key": "$uri"}]);
        let refused = refusal("limit-conn", &json!({"default_conn_delay": 1, "rules": rules}));
        assert!(refused.starts_with("property \"rules[0].burst\" validation failed: "), "{refused}");
        check(json!({"default_conn_delay": 1}), "value should match only one schema, but matches none");
    }
}
