//! The configuration.

use std::time::Duration;

use schemars::JsonSchema;
use serde::Deserialize;
use sigma_plugin::Configuration;

use super::window::WindowType;
use crate::shared::quota::{Amount, KeyType, RefusalFields};
use sigma_plugin_kit::redis::{Policy, policies};

/// Limits requests per time window (rate limit, quota).
///
/// Each key may send `count` requests in `time_window` seconds. **Further requests get 503 unless `rejected_code` is
/// set; 429 is the usual choice.** The default key is the client's address, also on a consumer. For a limit per
/// consumer, set `key: consumer_name`. A fixed window begins with the first request of a key; a sliding window also
/// weighs the previous one. Counters are in this gateway, or in Redis, where several gateways share them.
///
/// This gateway stores keys in at most 128 MiB, about 800,000; beyond that, keys whose windows end first are removed.
#[derive(Deserialize, JsonSchema)]
#[schemars(extend("anyOf" = [{"required": ["count", "time_window"]}, {"required": ["rules"]}]))]
pub(crate) struct Config {
    /// Requests per window. A text is a template that must produce such a number for each request.
    pub(super) count: Option<Amount<1>>,
    /// Length of a window in seconds. A text is a template that must produce such a number for each request.
    pub(super) time_window: Option<Amount<1>>,
    /// Whether windows are fixed, or slide.
    #[schemars(extend("default" = "fixed"))]
    pub(super) window_type: WindowType,
    /// Name of a group. Configurations in one group must be equal and share their counters.
    pub(super) group: Option<String>,
    /// Key of the counter; see `key_type`. Without a value the client's address is used; a missing value is never a
    /// key. IPv6 addresses count by network (/64), unless a text with variables names `$remote_addr`.
    #[schemars(extend("default" = "remote_addr"))]
    pub(super) key: String,
    /// Form of `key`: the name of a variable (`var`), or a text with variables (`var_combination`).
    #[schemars(extend("default" = "var"))]
    pub(super) key_type: KeyType,
    /// Several limits instead of one; each one applies.
    pub(super) rules: Option<Vec<ListedLimit>>,
    #[serde(flatten)]
    pub(super) refusal: RefusalFields,
    #[serde(flatten)]
    #[schemars(schema_with = "policies::<(), true>")]
    pub(super) policy: Policy,
    /// With a `policy` other than `local`: seconds between two synchronisations with Redis; the gateway counts in
    /// between. -1: Redis counts each request.
    #[schemars(with = "f64", extend("default" = -1))]
    sync_interval: Option<f64>,
    /// Whether responses have the quota in header fields, and refusals with 429 or 503 have `Retry-After`.
    #[schemars(extend("default" = true))]
    pub(super) show_limit_quota_header: bool,
    /// Form of the reset header: whole seconds, rounded up, or hundredths of a second as in APISIX. Sigma's own.
    #[schemars(extend("default" = "seconds", "own_default" = true))]
    pub(super) reset_form: ResetForm,
    /// Whether responses also have `RateLimit-Policy` and `RateLimit` (draft-ietf-httpapi-ratelimit-headers-10). A
    /// policy has the name `default`, or the `header_prefix` or number of its rule. Sigma's own.
    #[schemars(extend("default" = false, "own_default" = true))]
    pub(super) standard_fields: bool,
    /// Response header with the cost of the request, a whole number. A request counts `cost_default` at its start and
    /// the rest when its response arrives, even beyond the quota. Sigma's own.
    #[schemars(with = "Option<String>", regex(pattern = FIELD_NAME))]
    pub(super) cost_header: Option<Box<str>>,
    /// With `cost_header`: the minimum cost of a request, and the cost without a response or without a whole number
    /// in the header. Sigma's own.
    #[schemars(range(min = 1, max = 1_000_000_000), extend("default" = 1, "own_default" = true))]
    pub(super) cost_default: u64,
    /// With `cost_header`: the maximum cost that a response can set. Sigma's own.
    #[schemars(range(min = 1, max = 1_000_000_000), extend("default" = 1_000_000, "own_default" = true))]
    pub(super) cost_most: u64,
    /// Whether clients do not get the `cost_header`. Sigma's own.
    #[schemars(extend("default" = false, "own_default" = true))]
    pub(super) hide_cost_header: bool,
}

/// The form of the header with the seconds until the quota is restored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub(super) enum ResetForm {
    /// Whole seconds.
    Seconds,
    /// Seconds with up to two decimals.
    Hundredths,
}

/// Settings that mean nothing without `cost_header`.
pub(super) const OF_COST_HEADER: [&str; 3] = ["cost_default", "cost_most", "hide_cost_header"];

/// An entry of `rules`.
#[derive(Deserialize, JsonSchema)]
pub(super) struct ListedLimit {
    /// Requests per window. A text is a template that must produce such a number for each request.
    pub(super) count: Amount<1>,
    /// Length of a window in seconds. A text is a template that must produce such a number for each request.
    pub(super) time_window: Amount<1>,
    /// Key of the counter: a text with variables. The rule is skipped if no variable has a value.
    pub(super) key: String,
    /// Distinguishes the rule's response headers. Default: the number of the rule.
    #[schemars(regex(pattern = FIELD_NAME_PART))]
    pub(super) header_prefix: Option<String>,
}

/// The characters of the name of a header field (RFC 9110 §5.6.2).
const FIELD_NAME_PART: &str = "^[!#$%&'*+.^_`|~0-9A-Za-z-]*$";
const FIELD_NAME: &str = "^[!#$%&'*+.^_`|~0-9A-Za-z-]+$";

/// The plugin metadata.
#[derive(Deserialize, JsonSchema)]
#[serde(default)]
pub(crate) struct Metadata {
    /// Header with the quota.
    #[schemars(regex(pattern = FIELD_NAME))]
    pub(super) limit_header: String,
    /// Header with the remaining quota.
    #[schemars(regex(pattern = FIELD_NAME))]
    pub(super) remaining_header: String,
    /// Header with the seconds until the quota is restored.
    #[schemars(regex(pattern = FIELD_NAME))]
    pub(super) reset_header: String,
}

impl Default for Metadata {
    fn default() -> Metadata {
        Metadata {
            limit_header: "X-RateLimit-Limit".to_owned(),
            remaining_header: "X-RateLimit-Remaining".to_owned(),
            reset_header: "X-RateLimit-Reset".to_owned(),
        }
    }
}

impl Configuration for Config {
    fn check(&self) -> Result<(), String> {
        if self.rules.is_some() && (self.count.is_some() || self.time_window.is_some()) {
            return Err("count/time_window and rules cannot be specified at the same time".to_owned());
        }
        if self.rules.is_some() && self.group.is_some() {
            return Err("group and rules cannot be specified at the same time".to_owned());
        }
        if self.cost_header.is_some() && self.cost_most < self.cost_default {
            return Err("cost_most should not be smaller than cost_default".to_owned());
        }
        self.check_sync()?;
        let rules = self.rules.as_deref().unwrap_or_default();
        let is_repeated =
            |(at, rule): &(usize, &ListedLimit)| rules[..*at].iter().any(|other| other.key == rule.key);
        if let Some((_, rule)) = rules.iter().enumerate().find(is_repeated) {
            return Err(format!("duplicate key '{}' in rules", rule.key));
        }
        self.count.iter().try_for_each(|count| count.check("count"))?;
        self.time_window.iter().try_for_each(|window| window.check("time_window"))?;
        rules.iter().enumerate().try_for_each(|(at, rule)| {
            rule.count.check(&format!("rules[{at}].count"))?;
            rule.time_window.check(&format!("rules[{at}].time_window"))
        })
    }
}

impl Config {
    /// The time between two messages to Redis; None if Redis is requested each request.
    pub(super) fn sync_interval(&self) -> Option<Duration> {
        let seconds = self.sync_interval.filter(|seconds| *seconds > 0.0)?;
        // A timer of years is as good as any longer one.
        Some(Duration::from_secs_f64(seconds.min(1e8)))
    }

    /// Whether answers say what requests have cost.
    pub(crate) fn learns(&self) -> bool {
        self.cost_header.is_some()
    }

    fn check_sync(&self) -> Result<(), String> {
        let interval = self.sync_interval.unwrap_or(-1.0);
        if interval == -1.0 || matches!(self.policy, Policy::Local) {
            return Ok(());
        }
        if interval < 0.1 {
            return Err("sync_interval should not be smaller than 0.1".to_owned());
        }
        let windows = self.rules.iter().flatten().map(|rule| &rule.time_window).chain(&self.time_window);
        match windows.filter_map(Amount::constant).all(|window| interval < window) {
            true => Ok(()),
            false => Err("sync_interval should be smaller than time_window".to_owned()),
        }
    }
}
