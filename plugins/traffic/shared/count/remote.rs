//! How requests are counted in Redis. Keys are APISIX's.

use redis::RedisResult;

use super::window::{Moment, Quota, Verdict, WindowType};
use sigma_plugin_kit::clock;
use sigma_plugin_kit::redis::{Script, SharedConnection};

/// Longest expiry of a key in seconds: Redis takes none that does not fit its clock.
const LONGEST_S: u64 = 1_000_000_000_000;

/// Counts in a window that the first request begins; returns the remaining quota, and its milliseconds.
const FIXED: &str = "
local ttl = redis.call('PTTL', KEYS[1])
if ttl < 0 then
    redis.call('SET', KEYS[1], ARGV[3], 'EX', ARGV[2])
    return {ARGV[1] - ARGV[3], ARGV[2] * 1000}
end
return {ARGV[1] - redis.call('INCRBY', KEYS[1], ARGV[3]), ttl}
";

/// Counts in a window that is aligned to the clock, if there is room next to the weight of the previous one;
/// returns whether there was, and the count.
const SLIDING: &str = "
local current = tonumber(redis.call('GET', KEYS[1]) or '0')
local limit = tonumber(ARGV[1])
local taken = current + tonumber(ARGV[3]) - 1
if ARGV[5] == '0' and (taken >= limit or tonumber(ARGV[2]) + taken >= limit) then
    return {0, current}
end
current = redis.call('INCRBY', KEYS[1], ARGV[3])
redis.call('EXPIRE', KEYS[1], ARGV[4])
return {1, current}
";

static FIXED_SCRIPT: Script = Script::new(FIXED, || Script::digest_of(FIXED));
static SLIDING_SCRIPT: Script = Script::new(SLIDING, || Script::digest_of(SLIDING));

/// Which requests are counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Counting {
    /// Only requests that there is room for.
    IfRoom,
    /// All: they were let pass already. The verdict is on the next one.
    Always,
}

/// Counts a request that costs so much.
///
/// # Errors
/// Returns an error if Redis did not respond.
pub(super) async fn count(
    connection: &SharedConnection,
    kind: WindowType,
    counting: Counting,
    key: &[u8],
    quota: Quota,
    cost: u64,
) -> RedisResult<Verdict> {
    match kind {
        WindowType::Fixed => count_fixed(connection, key, quota, cost).await,
        WindowType::Sliding => count_sliding(connection, counting, key, quota, cost).await,
    }
}

/// Returns the cost that is added for a request: a cost over the limit uses up all of it as well, and no sum
/// of such costs ever leaves the numbers that Redis has.
fn bounded(cost: u64, quota: Quota) -> u64 {
    cost.min(quota.limit.saturating_add(1))
}

async fn count_fixed(
    connection: &SharedConnection,
    key: &[u8],
    quota: Quota,
    cost: u64,
) -> RedisResult<Verdict> {
    let key = [b"plugin-limit-count:v1:", key].concat();
    let args = [quota.limit, quota.window_s.min(LONGEST_S), bounded(cost, quota)];
    let (remaining, reset_ms): (i64, u64) = FIXED_SCRIPT.run(connection, &key, &args).await?;
    Ok(Verdict::new(u64::try_from(remaining).ok(), reset_ms as f64 / 1000.0))
}

async fn count_sliding(
    connection: &SharedConnection,
    counting: Counting,
    key: &[u8],
    quota: Quota,
    cost: u64,
) -> RedisResult<Verdict> {
    let moment = Moment::of(quota, clock::unix_ms());
    let name = |window: u64| [b"plugin-limit-count:", key, format!(".{window}.counter").as_bytes()].concat();
    let mut get = redis::cmd("GET");
    get.arg(name(moment.window.saturating_sub(1)));
    let last: Option<u64> = redis::from_redis_value(connection.ask(&get).await?)?;
    let estimate = moment.estimate(quota, last.unwrap_or(0));
    let args = [
        quota.limit.to_string(),
        estimate.weight.to_string(),
        bounded(cost, quota).to_string(),
        quota.window_s.saturating_mul(2).min(LONGEST_S).to_string(),
        u8::from(counting == Counting::Always).to_string(),
    ];
    let (counted, current): (u8, u64) = SLIDING_SCRIPT.run(connection, &name(moment.window), &args).await?;
    let refused = || estimate.refusal(quota, current, cost).unwrap_or(estimate.admitted(quota, quota.limit));
    Ok(if counted == 1 { estimate.admitted(quota, current) } else { refused() })
}
