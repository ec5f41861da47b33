//! `limit-bandwidth`: bytes a second, of each exchange and session and of all with one key.

use std::cell::Cell;
use std::sync::Arc;
use std::time::Duration;

use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::Value;
use sigma_plugin::counter::Shared;
use sigma_plugin::flow::Transport;
use sigma_plugin::pace::{Direction, Pace, Pause};
use sigma_plugin::variable_fields::{VariableField, VariableForm};
use sigma_plugin::{
    Build, Configuration, Context, Descriptor, Env, Flow, FlowPlugin, FlowStep, Local, Phase, PhaseSet,
    Plugin, Session, Step,
};
use sigma_schema::Problem;
use tokio::time::Instant;

use crate::shared::quota::{Key, KeyType, Space, User};
use sigma_plugin_kit::tallies::{Counted, Event, Tally, counted};

/// The plugin.
pub(crate) static LIMIT_BANDWIDTH: Descriptor = Descriptor {
    name: "limit-bandwidth",
    priority: 999,
    example: include_str!("example.md"),
    phases: PhaseSet::of(&[Phase::Access]),
    warnings: Some(|_, conf| idle_key_types(conf)),
    build: |build| Ok(Arc::new(LimitBandwidth::new(build)?)),
    flow: Some(Flow::of::<Config>(|build| Ok(Arc::new(LimitBandwidth::new(build)?)))),
    variables: &[VariableField::guard("rules.*.key", VariableForm::Key)],
    ..Descriptor::of::<Config>()
};

/// Limits the bandwidth in bytes per second. Sigma's own: APISIX has no such plugin.
///
/// Bytes over a limit wait, and their sender is slowed down: the gateway reads nothing more before they are sent. So
/// it slows uploads, downloads and gRPC streams, tunnels after a protocol switch such as WebSockets, and TCP sessions
/// on stream routes. TLS bytes are not counted if TLS ends at the gateway. HTTP bodies count as they are sent, after
/// compression; heads do not count. While bytes wait, timeouts for progress of a node or client do not run, but the
/// timeout of the whole exchange does. `limit-conn` limits the number of waiting exchanges. A session over UDP cannot
/// be slowed down: it is closed with 503.
///
/// One key has one rate over all workers. A counter is removed when it was unused for the time in which its burst is
/// restored. Counters restart when the configuration changes or another process takes over. Keys take at most 128
/// MiB; beyond that, the keys that would be removed first are removed.
#[derive(Deserialize, JsonSchema)]
struct Config {
    /// The limits; each one applies.
    #[schemars(length(min = 1, max = 16))]
    rules: Vec<Rule>,
    /// Name of a zone: configurations of the same zone share the counters of their keys, rule by rule. Without it, each
    /// configuration counts for itself.
    #[serde(rename = "zone")]
    #[schemars(length(min = 1))]
    _zone: Option<String>,
}

/// One limit.
#[derive(Deserialize, JsonSchema)]
struct Rule {
    /// Bytes per second.
    #[schemars(range(min = 1, max = 1_099_511_627_776_u64))]
    rate: u64,
    /// Burst: bytes that are sent at once after an idle time.
    #[schemars(range(max = 1_099_511_627_776_u64), extend("default" = 0))]
    burst: u64,
    /// Counted bytes: from the client (`request`), to the client (`response`), each direction separately at this rate
    /// (`each`), or both together (`sum`).
    #[schemars(extend("default" = "each"))]
    direction: Counts,
    /// Key of the counter; see `key_type`. Without a value the client's address is used, of IPv6 its network (/64).
    /// Default: each exchange, tunnel and session has its own counter.
    key: Option<String>,
    /// Form of `key`: the name of a variable (`var`), a text with variables (`var_combination`), or one constant for
    /// all (`constant`).
    #[schemars(with = "String", extend("enum" = ["var", "var_combination", "constant"], "default" = "var"))]
    key_type: KeyType,
    /// Share of each transfer in the rate of its key: when transfers wait, one with weight 3 gets three times as much as
    /// one with weight 1. Transfers that do not use their share leave it to the others. For a key that several
    /// transfers have: in one `zone` the rules of several routes can have different weights. Give each of them one.
    #[schemars(range(min = 1, max = 16))]
    weight: Option<u64>,
}

/// The bytes that a rule counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
enum Counts {
    Request,
    Response,
    Each,
    Sum,
}

impl Configuration for Config {}

/// A `key_type` says nothing without a `key`.
fn idle_key_types(conf: &Value) -> Vec<Problem> {
    let rules = conf.get("rules").and_then(Value::as_array).into_iter().flatten().enumerate();
    let idle = rules.filter(|(_, rule)| rule.get("key").is_none() && rule.get("key_type").is_some());
    idle.map(|(at, _)| {
        let message = "without a `key`, each exchange has its own limit";
        Problem::new(format!("rules[{at}].key_type"), "no_effect", message).hint("name a `key`")
    })
    .collect()
}

/// How much passes: the bucket of a rule, or of one direction of it.
///
/// The level of a bucket is a time, in nanoseconds: when all that was booked has passed at the rate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Bucket {
    rate: u64,
    /// Nanoseconds that the burst takes at the rate.
    burst_ns: u64,
    /// The share of a transfer, of [`WEIGHT_MAX`].
    weight: Option<u64>,
}

/// The largest weight.
const WEIGHT_MAX: u64 = 16;

/// The piece of the largest weight: no more than a node sends at once over any protocol, so that each transfer that
/// waits has a whole piece.
const WEIGHED_PIECE: u64 = 16 * 1024;

/// The pieces of a second: enough that slow transfers flow, few enough that they cost little.
const PIECES_A_SECOND: u64 = 8;

/// The largest piece. Faster transfers rarely wait.
const LARGEST_PIECE: u64 = 64 * 1024;

/// The time at which levels begin: so late that the first user has rested for as long as any burst takes.
const BEGINNING_NS: u64 = u64::MAX / 2;

/// No timer is as fine.
const SHORTEST_PAUSE: Duration = Duration::from_millis(1);

impl Bucket {
    fn new(rate: u64, burst: u64, weight: Option<u64>) -> Bucket {
        let rate = rate.max(1);
        Bucket { rate, burst_ns: took_ns(burst, rate).min(BEGINNING_NS), weight }
    }

    /// Returns the largest piece. Of transfers that wait, each passes one piece in turn, so their shares are as their
    /// pieces.
    fn piece(self) -> usize {
        let piece = self.rate / PIECES_A_SECOND;
        let piece = match self.weight {
            None => piece.clamp(1, LARGEST_PIECE),
            Some(weight) => piece.clamp(WEIGHT_MAX, WEIGHED_PIECE) * weight.clamp(1, WEIGHT_MAX) / WEIGHT_MAX,
        };
        piece as usize
    }

    /// Books bytes; how many nanoseconds they have to wait.
    fn book(self, level: &mut u64, bytes: usize, now_ns: u64) -> u64 {
        let begins = (*level).max(now_ns.saturating_sub(self.burst_ns));
        *level = begins.saturating_add(took_ns(bytes as u64, self.rate));
        begins.saturating_sub(now_ns)
    }

    fn give_back(self, level: &mut u64, bytes: usize) {
        *level = level.saturating_sub(took_ns(bytes as u64, self.rate));
    }

    /// From when on a level says no more than none at all.
    fn expires_ms(self, level: u64) -> u64 {
        level.saturating_add(self.burst_ns) / 1_000_000 + 1
    }
}

/// Nanoseconds that bytes take at a rate.
fn took_ns(bytes: u64, rate: u64) -> u64 {
    let ns = u128::from(bytes) * 1_000_000_000 / u128::from(rate);
    u64::try_from(ns).unwrap_or(u64::MAX)
}

/// The levels of all keys of this gateway.
struct Levels {
    by_key: Shared<u64>,
    began: Instant,
}

impl Default for Levels {
    fn default() -> Levels {
        Levels { by_key: Shared::default(), began: Instant::now() }
    }
}

impl Levels {
    fn now_ns(&self) -> u64 {
        BEGINNING_NS.saturating_add(u64::try_from(self.began.elapsed().as_nanos()).unwrap_or(u64::MAX))
    }
}

/// Bytes that waited.
#[derive(Debug, Clone, Copy)]
pub(crate) struct DelayedBytes;

/// Milliseconds for which they did.
#[derive(Debug, Clone, Copy)]
pub(crate) struct DelayMs;

impl Event for DelayedBytes {
    const METRIC: &'static str = "limit_bandwidth_delayed_bytes_total";
    const HELP: &'static str = "Bytes that waited for a limit of bandwidth";
    const LABELS: &'static [&'static [(&'static str, &'static str)]] = &[&[]];

    fn number(self) -> usize {
        0
    }
}

impl Event for DelayMs {
    const METRIC: &'static str = "limit_bandwidth_delay_milliseconds_total";
    const HELP: &'static str =
        "Milliseconds that pieces of bodies and sessions waited for a limit of bandwidth";
    const LABELS: &'static [&'static [(&'static str, &'static str)]] = &[&[]];

    fn number(self) -> usize {
        0
    }
}

/// One limit of a configuration, of the directions that it counts together.
struct Limit {
    bucket: Bucket,
    directions: &'static [Direction],
    /// The key whose bytes are counted together; None if each counts by itself.
    key: Option<(Key, Space)>,
}

/// An instance.
struct LimitBandwidth {
    limits: Vec<Limit>,
    levels: Arc<Levels>,
    delayed: Counted<DelayedBytes>,
    delay: Counted<DelayMs>,
}

/// Both directions, in the order in which rules are numbered.
const TO_NODE: &[Direction] = &[Direction::ToNode];
const TO_CLIENT: &[Direction] = &[Direction::ToClient];
const BOTH: &[Direction] = &[Direction::ToNode, Direction::ToClient];

impl LimitBandwidth {
    fn new(build: &Build<'_>) -> Result<LimitBandwidth, String> {
        let config: Config = build.config()?;
        let mut limits = Vec::new();
        for Rule { rate, burst, direction, key, key_type, weight } in config.rules {
            let directions: &[&[Direction]] = match direction {
                Counts::Request => &[TO_NODE],
                Counts::Response => &[TO_CLIENT],
                Counts::Each => &[TO_NODE, TO_CLIENT],
                Counts::Sum => &[BOTH],
            };
            for directions in directions {
                let number = limits.len() + 1;
                let key = key.as_ref().map(|key| (Key::new(key, key_type), Space::of(build).rule(number)));
                limits.push(Limit { bucket: Bucket::new(rate, burst, weight), directions, key });
            }
        }
        let place = format!("{}#{}", build.resource, build.plugin);
        Ok(LimitBandwidth {
            limits,
            levels: build.node.part(Levels::default),
            delayed: counted(build.node, &place),
            delay: counted(build.node, &place),
        })
    }

    /// The pace of an exchange or session.
    fn pace(&self, user: User<'_>, local: &Local) -> Box<dyn Pace> {
        let limits = self.limits.iter().map(|limit| {
            let level = match &limit.key {
                None => Level::Own(Cell::new(0)),
                Some((key, space)) => Level::Shared(space.by_value_or_address(key, user)),
            };
            Applied { bucket: limit.bucket, directions: limit.directions, level }
        });
        Box::new(Slowed {
            limits: limits.collect(),
            levels: Arc::clone(&self.levels),
            delayed: self.delayed.tally(local),
            delay: self.delay.tally(local),
        })
    }
}

/// A limit as it is for one exchange or session.
struct Applied {
    bucket: Bucket,
    directions: &'static [Direction],
    level: Level,
}

enum Level {
    Own(Cell<u64>),
    /// That of a key.
    Shared(Vec<u8>),
}

/// The pace of one exchange or session.
struct Slowed {
    limits: Box<[Applied]>,
    levels: Arc<Levels>,
    delayed: Tally<DelayedBytes>,
    delay: Tally<DelayMs>,
}

impl Slowed {
    fn of(&self, direction: Direction) -> impl Iterator<Item = &Applied> {
        self.limits.iter().filter(move |limit| limit.directions.contains(&direction))
    }
}

impl Applied {
    fn book(&self, levels: &Levels, bytes: usize, now_ns: u64) -> u64 {
        match &self.level {
            Level::Own(level) => {
                let mut moved = level.get();
                let wait_ns = self.bucket.book(&mut moved, bytes, now_ns);
                level.set(moved);
                wait_ns
            }
            Level::Shared(key) => levels.by_key.with(key, now_ns / 1_000_000, |slot| {
                let wait_ns = self.bucket.book(&mut slot.value, bytes, now_ns);
                slot.expires_ms = self.bucket.expires_ms(slot.value);
                wait_ns
            }),
        }
    }

    fn give_back(&self, levels: &Levels, bytes: usize, now_ns: u64) {
        match &self.level {
            Level::Own(level) => {
                let mut moved = level.get();
                self.bucket.give_back(&mut moved, bytes);
                level.set(moved);
            }
            Level::Shared(key) => {
                levels.by_key.peek(key, now_ns / 1_000_000, |slot| {
                    self.bucket.give_back(&mut slot.value, bytes);
                    slot.expires_ms = self.bucket.expires_ms(slot.value);
                });
            }
        }
    }
}

impl Pace for Slowed {
    fn piece(&self, direction: Direction) -> Option<usize> {
        self.of(direction).map(|limit| limit.bucket.piece()).min()
    }

    fn book(&self, direction: Direction, bytes: usize) -> Option<Pause> {
        let now_ns = self.levels.now_ns();
        let wait_ns = self.of(direction).map(|limit| limit.book(&self.levels, bytes, now_ns)).max()?;
        let wait = Duration::from_nanos(wait_ns);
        if wait < SHORTEST_PAUSE {
            return None;
        }
        self.delayed.add(DelayedBytes, bytes as u64);
        self.delay.add(DelayMs, wait_ns / 1_000_000);
        Some(Box::pin(tokio::time::sleep(wait)))
    }

    fn give_back(&self, direction: Direction, bytes: usize) {
        let now_ns = self.levels.now_ns();
        self.of(direction).for_each(|limit| limit.give_back(&self.levels, bytes, now_ns));
    }
}

impl Plugin for LimitBandwidth {
    fn access(&self, ctx: &mut Context, env: &Env<'_>) -> Step {
        let pace = self.pace((&*ctx).into(), env.local);
        ctx.slow_down(pace);
        Step::Next
    }
}

impl FlowPlugin for LimitBandwidth {
    fn preread(&self, session: &mut Session, env: &Env<'_>) -> FlowStep {
        // Datagrams arrive at the sender's pace; they cannot be slowed down.
        if session.transport == Transport::Udp {
            return FlowStep::Close(503);
        }
        let pace = self.pace((&*session).into(), env.local);
        session.slow_down(pace);
        FlowStep::Next
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;
    use std::task::Poll;

    use serde_json::json;
    use sigma_plugin::Entry;
    use sigma_plugin::pace::Paces;
    use sigma_schema::plugins::PluginScope;

    use super::*;
    use crate::testing::{Case, FlowCase, entry, flow_entry, refusal, refusal_in, seeded, warned};

    #[test]
    fn a_bucket_fills_and_runs_dry() {
        const MS: u64 = 1_000_000;
        let bucket = Bucket::new(1_000, 500, None);
        let mut level = 0;
        // Bytes, the time, and how long they wait, in milliseconds.
        for (bytes, at, wait) in [
            (500, 10_000, 0),
            (100, 10_000, 0),
            (100, 10_000, 100),
            (50, 10_050, 150),
            // It has rested for as long as the burst takes, and longer.
            (100, 20_000, 0),
            (400, 20_000, 0),
            (1, 20_000, 0),
            (1, 20_000, 1),
        ] {
            assert_eq!(bucket.book(&mut level, bytes, at * MS), wait * MS, "{bytes} at {at}");
        }
        let before = level;
        assert!(bucket.book(&mut level, 700, 20_000 * MS) > 0);
        bucket.give_back(&mut level, 700);
        assert_eq!(level, before);
        for (rate, piece) in [(1, 1), (8, 1), (1_000, 125), (1 << 40, 65_536)] {
            assert_eq!(Bucket::new(rate, 0, None).piece(), piece);
        }
    }

    #[test]
    fn a_forgotten_bucket_is_as_one_that_has_rested() {
        for (rate, burst) in [(1, 0), (3, 1 << 40), (1_000, 500), (1 << 40, 1 << 40)] {
            let bucket = Bucket::new(rate, burst, None);
            for now_ns in [0, 1, 7_000_000_123, BEGINNING_NS] {
                let mut level = 0;
                bucket.book(&mut level, 12_345, now_ns);
                let Some(later_ns) = bucket.expires_ms(level).checked_mul(1_000_000) else { continue };
                let mut forgotten = 0;
                bucket.book(&mut level, 1, later_ns);
                bucket.book(&mut forgotten, 1, later_ns);
                assert_eq!(level, forgotten, "{rate} {burst} {now_ns}");
            }
        }
    }

    /// Two transfers that always wait pass bytes in the ratio of their weights, at the rate of both together.
    #[test]
    fn waiting_transfers_share_by_weight() {
        let share = |rate: u64, weights: [u64; 2]| {
            let mut level = 0;
            // The bytes of each, and the time at which it may send the piece that it has booked.
            let mut transfers = weights.map(|weight| (Bucket::new(rate, 0, Some(weight)), 0_u64, 0_u64));
            let end_ns = 60_000_000_000;
            while let Some(next) = transfers.iter_mut().min_by_key(|(_, _, at_ns)| *at_ns)
                && next.2 < end_ns
            {
                let (bucket, passed, at_ns) = next;
                let piece = bucket.piece();
                *passed += piece as u64;
                *at_ns += bucket.book(&mut level, piece, *at_ns).max(1);
            }
            transfers.map(|(_, passed, _)| passed)
        };
        for (rate, weights) in
            [(1_000_000, [3, 1]), (1_000_000, [16, 4]), (1 << 30, [5, 5]), (1 << 20, [1, 16])]
        {
            let [one, other] = share(rate, weights);
            let total = one + other;
            assert!(total.abs_diff(60 * rate) < rate, "{total} bytes at {rate}");
            let expected = total * weights[0] / (weights[0] + weights[1]);
            assert!(one.abs_diff(expected) * 20 < total, "{one} and {other} by {weights:?}");
        }
    }

    /// However bytes are booked, between two moments no more passes than the rate allows for the time, the
    /// burst and one piece.
    #[test]
    fn no_bucket_is_overdrawn() {
        for seed in 1..300u64 {
            let mut random = seeded(seed);
            let (rate, burst) = (1 + random(10_000), random(5_000));
            let bucket = Bucket::new(rate, burst, None);
            let (mut level, mut now_ns, mut passed) = (0, 5_000_000_000, Vec::new());
            for _ in 0..200 {
                now_ns += random(300_000_000);
                let bytes = 1 + random(bucket.piece() as u64);
                let wait_ns = bucket.book(&mut level, bytes as usize, now_ns);
                passed.push((now_ns + wait_ns, bytes));
            }
            for from in 0..passed.len() {
                let mut sum = 0;
                for (at_ns, bytes) in &passed[from..] {
                    sum += bytes;
                    let seconds = (at_ns - passed[from].0) as f64 / 1e9;
                    let most = burst as f64 + bucket.piece() as f64 + rate as f64 * seconds;
                    // Each byte may round a nanosecond away.
                    assert!(sum as f64 <= most + 1.0, "seed {seed} {bucket:?}: {sum} over {most}");
                }
            }
        }
    }

    /// Returns the paces of an exchange with the case's request.
    fn begin(case: &mut Case, plugin: &Entry, head: &str) -> Paces {
        case.request(head);
        paces_of(case, plugin)
    }

    fn paces_of(case: &mut Case, plugin: &Entry) -> Paces {
        let env = Env::new(&case.node, &case.local, &case.consumers);
        assert!(matches!(plugin.plugin.access(&mut case.ctx, &env), Step::Next));
        *case.ctx.paces.take().unwrap()
    }

    /// Has bytes pass; when all have, in milliseconds from `began`.
    async fn passed(paces: &mut Paces, direction: Direction, mut bytes: usize, began: Instant) -> u128 {
        while bytes > 0 {
            bytes -= poll_fn(|task| paces.poll_pass(direction, bytes, task)).await;
        }
        began.elapsed().as_millis()
    }

    const GET: &str = "GET / HTTP/1.1\nHost: h\n";

    // The clock of these tests moves only while they wait: times are the booked ones, and a timer's
    // millisecond.

    #[tokio::test(start_paused = true)]
    async fn each_exchange_has_its_own_rate_and_direction() {
        let rules = json!({"rules": [{"rate": 1000, "direction": "response"}]});
        let plugin = entry("limit-bandwidth", rules).unwrap();
        let mut case = Case::new(GET);
        let (mut first, mut second) = (begin(&mut case, &plugin, GET), begin(&mut case, &plugin, GET));
        let began = Instant::now();
        assert_eq!(passed(&mut first, Direction::ToNode, 1_000_000, began).await, 0);
        let both = tokio::join!(
            passed(&mut first, Direction::ToClient, 1_000, began),
            passed(&mut second, Direction::ToClient, 1_000, began)
        );
        // Eight pieces, the first at once.
        assert!((875..=876).contains(&both.0) && (875..=876).contains(&both.1), "{both:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn directions_by_themselves_or_together() {
        for (direction, expected) in [("each", 875), ("sum", 1_875)] {
            let rules = json!({"rules": [{"rate": 1000, "direction": direction}]});
            let plugin = entry("limit-bandwidth", rules).unwrap();
            let mut case = Case::new(GET);
            let paces = &mut begin(&mut case, &plugin, GET);
            let began = Instant::now();
            let (mut up, mut down) = (1_000, 1_000);
            poll_fn(|task| {
                for (direction, left) in [(Direction::ToNode, &mut up), (Direction::ToClient, &mut down)] {
                    while *left > 0 {
                        match paces.poll_pass(direction, *left, task) {
                            Poll::Ready(bytes) => *left -= bytes,
                            Poll::Pending => break,
                        }
                    }
                }
                if up + down == 0 { Poll::Ready(()) } else { Poll::Pending }
            })
            .await;
            let took = began.elapsed().as_millis();
            assert!((expected..=expected + 1).contains(&took), "{direction}: {took}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn one_key_shares_one_rate() {
        let rules = json!({"rules": [
            {"rate": 1000, "burst": 500, "key": "consumer_name"},
            {"rate": 1_000_000, "key": "all", "key_type": "constant"},
        ]});
        let plugin = entry("limit-bandwidth", rules).unwrap();
        let mut case = Case::new(GET);
        case.known("jack", &[]);
        let (mut first, mut second) = (paces_of(&mut case, &plugin), paces_of(&mut case, &plugin));
        let mut other = begin(&mut case, &plugin, GET);
        let mut address = begin(&mut case, &plugin, GET);
        let began = Instant::now();
        let (one, two) = tokio::join!(
            passed(&mut first, Direction::ToClient, 1_000, began),
            passed(&mut second, Direction::ToClient, 1_000, began)
        );
        // 2,000 bytes, of which 500 are the burst; the last piece does not wait for itself.
        assert!((1_375..=1_376).contains(&one.max(two)), "{one} {two}");
        // An unauthenticated request has the rate of its address.
        let began = Instant::now();
        let address_too = passed(&mut address, Direction::ToClient, 500, began).await;
        let after = passed(&mut other, Direction::ToClient, 250, began).await;
        assert!(address_too == 0 && (125..=126).contains(&after), "{address_too} {after}");
    }

    #[tokio::test(start_paused = true)]
    async fn early_ends_give_back_their_bytes() {
        let rules = json!({"rules": [{"rate": 8, "key": "remote_addr", "direction": "request"}]});
        let plugin = entry("limit-bandwidth", rules).unwrap();
        let mut case = Case::new(GET);
        let began = Instant::now();
        for number in 0..100 {
            let mut paces = begin(&mut case, &plugin, GET);
            // All but the first have booked a byte that never passes.
            let polled = poll_fn(|task| Poll::Ready(paces.poll_pass(Direction::ToNode, 2, task))).await;
            assert_eq!(polled.is_ready(), number == 0);
        }
        let mut last = begin(&mut case, &plugin, GET);
        let took = passed(&mut last, Direction::ToNode, 1, began).await;
        // Only the byte of the first has passed.
        assert!((125..=126).contains(&took), "{took}");
    }

    #[test]
    fn sessions() {
        let conf = json!({"rules": [{"rate": 1000, "key": "remote_addr"}]});
        let plugin = flow_entry("limit-bandwidth", conf).unwrap();
        let case = FlowCase::default();
        let mut session = Session::default();
        assert!(matches!(case.preread(&plugin, &mut session), FlowStep::Next) && session.paces.is_some());
        let mut session = Session::default();
        session.transport = Transport::Udp;
        assert!(matches!(case.preread(&plugin, &mut session), FlowStep::Close(503)));
    }

    #[test]
    fn configurations() {
        let check =
            |conf: Value, reason: &str| assert_eq!(refusal("limit-bandwidth", &conf), reason, "{conf}");
        let rule = |rule: Value| json!({"rules": [rule]});
        check(rule(json!({"rate": 1})), "");
        check(
            rule(
                json!({"rate": 1, "burst": 0, "direction": "sum", "key": "$remote_addr$uri", "key_type": "var_combination"}),
            ),
            "",
        );
        check(json!({}), "property \"rules\" is required");
        check(
            json!({"rules": []}),
            "property \"rules\" validation failed: expect array to have at least 1 items",
        );
        let of_item = |reason: &str| {
            format!("property \"rules\" validation failed: failed to validate item 1: {reason}")
        };
        check(rule(json!({})), &of_item("property \"rate\" is required"));
        check(
            rule(json!({"rate": 0})),
            &of_item("property \"rate\" validation failed: expected 0 to be at least 1"),
        );
        check(
            rule(json!({"rate": 1, "direction": "up"})),
            &of_item("property \"direction\" validation failed: matches none of the enum values"),
        );
        let conf = rule(json!({"rate": 1, "key_type": "constant"}));
        assert_eq!(warned("limit-bandwidth", PluginScope::Http, &conf), ["rules[0].key_type"]);
        let on_stream =
            refusal_in("limit-bandwidth", PluginScope::Stream, &rule(json!({"rate": 1, "key": "uri"})));
        assert_eq!(on_stream, "a TCP or UDP session has no variables of a request (at rules[0].key)");
    }
}
