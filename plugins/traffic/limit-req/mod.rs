//! `limit-req`: requests per second, by a leaky bucket.

use std::sync::Arc;
use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use sigma_plugin::counter::Shared;
use sigma_plugin::variable_fields::{VariableField, VariableForm};
use sigma_plugin::{
    Build, Configuration, Context, Descriptor, Env, Inheritable, Phase, PhaseSet, Plugin, Step, inheritance,
};

use crate::shared::quota::{self, Amount, Key, KeyType, Refusal, RefusalFields, Space};
use sigma_plugin_kit::clock;
use sigma_plugin_kit::redis::{Connections, Policy, Script, Target, idle_settings, policies};

/// The plugin.
pub(crate) static LIMIT_REQ: Descriptor = Descriptor {
    name: "limit-req",
    priority: 1001,
    example: include_str!("example.md"),
    phases: PhaseSet::of(&[Phase::Access]),
    warnings: Some(|_, conf| {
        [quota::client_chosen(conf), idle_settings(conf), quota::unset_status(conf)].concat()
    }),
    build: |build| Ok(Arc::new(LimitReq::new(build)?)),
    variables: &[
        VariableField::guard("key", VariableForm::Key),
        VariableField::guard("cost", VariableForm::Template),
    ],
    ..Descriptor::of::<Config>()
};

/// Limits requests per second (rate limit with a leaky bucket).
///
/// Requests flow through a bucket that leaks `rate` of them per second. Faster requests are delayed to fit the rate,
/// while at most `burst` requests wait; further requests are refused. With `nodelay` the burst passes at once. A
/// refusal with 429 or 503 has `Retry-After`, in whole seconds.
///
/// This gateway stores keys in at most 128 MiB, about 800,000; beyond that, keys whose buckets are empty first are
/// removed.
#[derive(Deserialize, JsonSchema)]
struct Config {
    /// Requests per second.
    #[schemars(extend("exclusiveMinimum" = 0))]
    rate: f64,
    /// Tolerated requests beyond the rate.
    #[schemars(extend("minimum" = 0))]
    burst: f64,
    /// Cost of a request, in requests. A text is a template that must produce such a number for each request. A request
    /// that costs more than `burst` + 1 is always refused. Sigma's own.
    #[schemars(extend("default" = 1, "own_default" = true))]
    cost: Amount<1>,
    /// Key of the counter; see `key_type`. Without a value the client's address is used; a missing value is never a
    /// key. IPv6 addresses count by network (/64), unless a text with variables names `$remote_addr`.
    key: String,
    /// Form of `key`: the name of a variable (`var`), or a text with variables (`var_combination`).
    #[schemars(with = "String", extend("enum" = ["var", "var_combination"], "default" = "var"))]
    key_type: KeyType,
    #[serde(flatten)]
    #[schemars(schema_with = "policies::<(), false>")]
    policy: Policy,
    #[serde(flatten)]
    refusal: RefusalFields,
    /// Whether requests within the burst are not delayed.
    #[schemars(extend("default" = false))]
    nodelay: bool,
    /// Name of the counters: configurations with the same name count together. Unset: each configuration has its own
    /// counters. Sigma's own.
    #[serde(rename = "zone")]
    #[schemars(length(min = 1, max = 64))]
    _zone: Option<String>,
}

impl Configuration for Config {
    fn check(&self) -> Result<(), String> {
        self.cost.check("cost")?;
        match self.cost.constant() {
            Some(cost) if cost > self.burst + 1.0 => {
                Err(format!("no request is allowed: its cost {cost} exceeds burst {} plus one", self.burst))
            }
            _ => Ok(()),
        }
    }
}

/// The buckets of all keys of this gateway.
#[derive(Default)]
struct Buckets(Shared<Level>);

impl Inheritable for Buckets {
    const NAME: &'static str = "limit-req";

    fn leave(&self) -> Value {
        inheritance::entries(&self.0)
    }

    fn take_over(&self, left: &Value) {
        inheritance::enter(&self.0, left);
    }
}

/// How full a bucket is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
struct Level {
    /// Thousandths of requests that have not leaked yet; None for a new bucket.
    excess: Option<f64>,
    /// When that was, in milliseconds.
    at_ms: u64,
}

/// The size of a bucket and of its leak.
#[derive(Debug, Clone, Copy)]
struct Bucket {
    rate: f64,
    burst: f64,
}

impl Bucket {
    /// Pours in as much as `cost` requests; the excess with it, or None if it does not fit. An empty bucket
    /// has room for one request in addition to the burst.
    fn pour(self, level: &mut Level, cost: u64, now_ms: u64) -> Option<f64> {
        let cost = cost as f64 * 1000.0;
        let excess = match level.excess {
            None => cost - 1000.0,
            Some(excess) => {
                (excess - self.rate * now_ms.abs_diff(level.at_ms) as f64 + cost).max(cost - 1000.0)
            }
        };
        if excess > self.burst * 1000.0 {
            return None;
        }
        *level = Level { excess: Some(excess), at_ms: now_ms };
        Some(excess)
    }

    /// Seconds after which a request fits that does not fit now; None if it never does.
    fn wait_s(self, level: Level, cost: u64, now_ms: u64) -> Option<f64> {
        let leaked = self.rate * now_ms.abs_diff(level.at_ms) as f64;
        let excess = level.excess.unwrap_or_default() - leaked + cost as f64 * 1000.0;
        self.wait_for(excess - self.burst * 1000.0, cost)
    }

    /// Seconds until so many thousandths have leaked; None if the request is larger than the bucket.
    fn wait_for(self, surplus: f64, cost: u64) -> Option<f64> {
        (cost as f64 <= self.burst + 1.0).then(|| surplus / self.rate / 1000.0)
    }

    /// Milliseconds after which a bucket is as good as new, and a second more.
    fn lifetime_ms(self) -> u64 {
        // Redis takes no expiry that does not fit its clock; thirty thousand years are as good.
        (((self.burst + 1.0) / self.rate).ceil() * 1000.0).min(1e15) as u64 + 1000
    }
}

/// [`Bucket::pour`] on the server. APISIX lets a bucket expire after burst ÷ rate seconds, which forgets the
/// last request too early at rates below one; it has the time of one request more here. The clock is the
/// server's: the clocks of gateways differ, and can be changed. A request that does not fit returns the
/// negative number of thousandths that are too many.
const POUR: &str = "
if redis.replicate_commands then redis.replicate_commands() end
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local rate, burst = tonumber(ARGV[1]), tonumber(ARGV[2])
local level = redis.call('HMGET', KEYS[1], 'excess', 'last')
local cost = tonumber(ARGV[4]) * 1000
local excess = cost - 1000
if level[1] and level[2] then
    excess = math.max(tonumber(level[1]) - rate * math.abs(now - tonumber(level[2])) + cost, excess)
end
if excess > burst * 1000 then
    return tostring(burst * 1000 - excess)
end
redis.call('HSET', KEYS[1], 'excess', tostring(excess), 'last', string.format('%.0f', now))
redis.call('PEXPIRE', KEYS[1], ARGV[3])
return tostring(excess)
";

static POUR_SCRIPT: Script = Script::new(POUR, || Script::digest_of(POUR));

enum Store {
    Local(Arc<Buckets>),
    Redis(Arc<Target>),
}

struct LimitReq {
    bucket: Bucket,
    cost: Amount<1>,
    key: Key,
    space: Space,
    nodelay: bool,
    refusal: Arc<Refusal>,
    store: Store,
}

impl LimitReq {
    fn new(build: &Build<'_>) -> Result<LimitReq, String> {
        let config: Config = build.config()?;
        Ok(LimitReq {
            bucket: Bucket { rate: config.rate, burst: config.burst },
            cost: config.cost,
            key: Key::new(&config.key, config.key_type),
            space: Space::of(build),
            nodelay: config.nodelay,
            refusal: config.refusal.of(build),
            store: match config.policy.target() {
                None => Store::Local(build.node.inherited(Buckets::default)),
                Some(target) => Store::Redis(target.shared(build.node)),
            },
        })
    }

    /// How long a request with this excess waits.
    fn delay(&self, excess: f64) -> Option<Duration> {
        let delay_ms = excess / self.bucket.rate;
        // No timer runs for years, at any rate.
        (delay_ms >= 1.0 && !self.nodelay && !self.refusal.is_dry())
            .then(|| Duration::from_secs_f64((delay_ms / 1000.0).min(1e8)))
    }

    fn local(&self, buckets: &Buckets, key: &[u8], cost: u64, env: &Env<'_>) -> Step {
        let now_ms = clock::process_ms();
        let poured = buckets.0.with(key, now_ms, |slot| {
            let before = slot.value;
            let poured = self.bucket.pour(&mut slot.value, cost, now_ms);
            if poured.is_some() || slot.value.excess.is_none() {
                slot.expires_ms = now_ms.saturating_add(self.bucket.lifetime_ms());
            }
            poured.ok_or(before)
        });
        match poured.map(|excess| self.delay(excess)) {
            Err(level) => self.refusal.over(env, self.bucket.wait_s(level, cost, now_ms)),
            Ok(None) => Step::Next,
            Ok(Some(delay)) => {
                Step::wait(async move { tokio::time::sleep(delay).await }, |(), _, _| Step::Next)
            }
        }
    }

    fn remote(&self, target: &Arc<Target>, key: &[u8], cost: u64, env: &Env<'_>) -> Step {
        let connection = env.local.part(Connections::default).to(target);
        let key = [b"limit_req:", key].concat();
        let Bucket { rate, burst } = self.bucket;
        let lifetime_ms = self.bucket.lifetime_ms();
        let args = [rate.to_string(), burst.to_string(), lifetime_ms.to_string(), cost.to_string()];
        let (nodelay, refusal) = (self.nodelay || self.refusal.is_dry(), Arc::clone(&self.refusal));
        let poured = async move {
            let excess = POUR_SCRIPT.run::<f64>(&connection, &key, &args).await;
            if let Ok(excess) = excess
                && excess / rate >= 1.0
                && !nodelay
            {
                tokio::time::sleep(Duration::from_secs_f64((excess / rate / 1000.0).min(1e8))).await;
            }
            excess
        };
        let bucket = self.bucket;
        Step::wait(poured, move |excess, _, env| match excess {
            Ok(excess) if excess < 0.0 => refusal.over(env, bucket.wait_for(-excess, cost)),
            Ok(_) => Step::Next,
            Err(error) => refusal.undetermined(error),
        })
    }
}

impl Plugin for LimitReq {
    fn access(&self, ctx: &mut Context, env: &Env<'_>) -> Step {
        let key = self.space.by_value_or_address(&self.key, &*ctx);
        let cost = match self.cost.of(ctx, "`cost` must be a whole number of 1 or more") {
            Ok(cost) => cost,
            Err(unlimited) => return self.refusal.unlimited(unlimited),
        };
        match &self.store {
            Store::Local(buckets) => self.local(buckets, &key, cost, env),
            Store::Redis(target) => self.remote(target, &key, cost, env),
        }
    }

    fn foresee(&self, ctx: &mut Context) -> Option<Value> {
        let Bucket { rate, burst } = self.bucket;
        let mut shown = json!({"rate": rate, "burst": burst});
        let Store::Local(buckets) = &self.store else {
            shown["counted_in"] = "redis".into();
            return Some(shown);
        };
        let (key, now_ms) = (self.space.by_value_or_address(&self.key, &*ctx), clock::process_ms());
        // Poured into a copy.
        let mut level = buckets.0.peek(&key, now_ms, |slot| slot.value).unwrap_or_default();
        match self.bucket.pour(&mut level, self.cost.resolve(ctx).unwrap_or(1), now_ms) {
            Some(excess) => {
                let delay_ms = self.delay(excess).unwrap_or_default().as_millis();
                shown["delay_ms"] = u64::try_from(delay_ms).unwrap_or(u64::MAX).into();
            }
            None => shown["refused"] = true.into(),
        }
        Some(shown)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::testing::{Case, entry, refusal, seeded};

    #[test]
    fn a_bucket_leaks() {
        // Times of requests in milliseconds, and the delay of each; None for a refusal.
        fn check(rate: f64, burst: f64, requests: &[(u64, Option<f64>)]) {
            let (bucket, mut level) = (Bucket { rate, burst }, Level::default());
            for (at_ms, expected) in requests {
                let delay_ms = bucket.pour(&mut level, 1, *at_ms).map(|excess| excess / rate);
                assert_eq!(delay_ms, *expected, "rate {rate}, burst {burst}, at {at_ms}");
            }
        }
        check(1.0, 0.0, &[(0, Some(0.0)), (999, None), (1000, Some(0.0)), (1500, None), (9000, Some(0.0))]);
        check(
            10.0,
            2.0,
            &[(0, Some(0.0)), (0, Some(100.0)), (0, Some(200.0)), (0, None), (100, Some(200.0))],
        );
        check(0.5, 0.0, &[(0, Some(0.0)), (1999, None), (2000, Some(0.0))]);
        // A clock that goes back counts as one that went on.
        check(1.0, 0.0, &[(5000, Some(0.0)), (4000, Some(0.0)), (3900, None)]);
    }

    #[test]
    fn a_refused_request_fits_after_its_wait() {
        for (rate, burst, cost) in [(0.5, 0.0, 1), (3.0, 7.0, 2), (10.0, 1.0, 2), (1000.0, 0.0, 1)] {
            let (bucket, mut level) = (Bucket { rate, burst }, Level::default());
            while bucket.pour(&mut level, 1, 500).is_some() {}
            let wait_ms = (bucket.wait_s(level, cost, 501).unwrap() * 1000.0).ceil() as u64;
            let fits = |at_ms: u64| bucket.pour(&mut level.clone(), cost, at_ms).is_some();
            assert!(
                fits(501 + wait_ms) && (wait_ms <= 1 || !fits(501 + wait_ms - 2)),
                "{bucket:?} {wait_ms}"
            );
        }
        let small = Bucket { rate: 1.0, burst: 1.0 };
        assert_eq!(small.wait_s(Level::default(), 3, 0), None);
    }

    #[test]
    fn a_forgotten_bucket_is_empty() {
        for (rate, burst) in [(0.5, 0.0), (3.0, 7.0), (1000.0, 0.0)] {
            let (bucket, mut level) = (Bucket { rate, burst }, Level::default());
            while bucket.pour(&mut level, 1, 0).is_some() {}
            assert_eq!(bucket.pour(&mut level, 1, bucket.lifetime_ms()), Some(0.0));
        }
    }

    /// Between any two moments no more passes than the rate makes of the time, the burst, and one request.
    #[test]
    fn no_bucket_is_overdrawn() {
        for seed in 1..300u64 {
            let mut random = seeded(seed);
            let bucket = Bucket { rate: 0.5 + random(50) as f64, burst: random(20) as f64 };
            let (mut level, mut now_ms, mut passed) = (Level::default(), 5_000, Vec::new());
            for _ in 0..150 {
                now_ms += random(300);
                let cost = 1 + random(8);
                if bucket.pour(&mut level, cost, now_ms).is_some() {
                    passed.push((now_ms, cost as f64));
                }
            }
            for from in 0..passed.len() {
                let mut sum = 0.0;
                for (at_ms, cost) in &passed[from..] {
                    sum += cost;
                    let most = bucket.burst + 1.0 + bucket.rate * (at_ms - passed[from].0) as f64 / 1000.0;
                    assert!(sum <= most + 1e-6, "seed {seed} {bucket:?}: {sum} over {most}");
                }
            }
        }
    }

    #[test]
    fn dear_requests_fill_more() {
        let conf = json!({"rate": 0.001, "burst": 4, "nodelay": true, "key": "remote_addr", "cost": "${arg_n ?? 1}"});
        let entry = entry("limit-req", conf).unwrap();
        let mut case = Case::new("GET /?n=3 HTTP/1.1\nHost: h\n");
        let mut ask = |query: &str| {
            case.request(&format!("GET /{query} HTTP/1.1\nHost: h\n"));
            case.run(&entry, Phase::Access).map_or(200, |reply| reply.status)
        };
        assert_eq!([ask("?n=3"), ask("?n=3"), ask(""), ask("?n=1"), ask("?n=1")], [200, 503, 200, 200, 503]);
        assert_eq!([ask("?n=0"), ask("?n=x"), ask("?n=-1")], [400, 400, 400]);
    }

    #[test]
    fn requests_wait_or_are_refused() {
        let conf = json!({"rate": 20, "burst": 1, "key": "$arg_a", "key_type": "var_combination", "rejected_code": 429});
        let entry = entry("limit-req", conf).unwrap();
        let mut case = Case::new("GET / HTTP/1.1\nHost: h\n");
        let began = std::time::Instant::now();
        assert!(case.run(&entry, Phase::Access).is_none());
        assert!(case.run(&entry, Phase::Access).is_none());
        assert!(began.elapsed() >= Duration::from_millis(45), "{:?}", began.elapsed());
        let slow =
            crate::testing::entry("limit-req", json!({"rate": 0.01, "burst": 0, "key": "arg_a"})).unwrap();
        assert!(case.run(&slow, Phase::Access).is_none());
        let reply = case.run(&slow, Phase::Access).unwrap();
        assert_eq!((reply.status, reply.body), (503, None));
        assert_eq!(reply.headers, [("Retry-After".into(), b"100".to_vec())]);
        case.request("GET /?a=2 HTTP/1.1\nHost: h\n");
        assert!(case.run(&slow, Phase::Access).is_none());
    }

    #[test]
    fn a_look_pours_nothing() {
        let conf = json!({"rate": 0.01, "burst": 0, "key": "remote_addr"});
        let entry = entry("limit-req", conf).unwrap();
        let mut case = Case::new("GET / HTTP/1.1\nHost: h\n");
        for _ in 0..2 {
            assert_eq!(case.foresee(&entry), Some(json!({"rate": 0.01, "burst": 0.0, "delay_ms": 0})));
        }
        assert!(case.run(&entry, Phase::Access).is_none());
        assert_eq!(case.foresee(&entry), Some(json!({"rate": 0.01, "burst": 0.0, "refused": true})));
    }

    #[test]
    fn configurations() {
        let check = |conf: Value, reason: &str| assert_eq!(refusal("limit-req", &conf), reason, "{conf}");
        check(json!({"rate": 0.5, "burst": 0, "key": "remote_addr"}), "");
        check(json!({"rate": 1, "burst": 1, "key": "remote_addr", "cost": 2}), "");
        check(
            json!({"rate": 1, "burst": 1, "key": "remote_addr", "cost": "x"}),
            "property \"cost\" validation failed: \"x\" is not a whole number from 1 to 9007199254740991 or a variable",
        );
        check(
            json!({"rate": 1, "burst": 1, "key": "remote_addr", "cost": 3}),
            "no request is allowed: its cost 3 exceeds burst 1 plus one",
        );
        check(json!({"rate": 1, "burst": 0}), "property \"key\" is required");
        check(
            json!({"rate": 0, "burst": 0, "key": "k"}),
            "property \"rate\" validation failed: expected 0 to be greater than 0",
        );
        check(json!({"rate": 1, "burst": 0, "key": "k", "policy": "redis"}), "then clause did not match");
    }
}
