//! What an operator may write.

use std::time::Duration;

use serde::Deserialize;
use serde_json::{Value, json};

use super::super::quota::{
    Amount, Key, KeyType, Refusal, allow_degradation_schema, amount_schema, key_type_schema,
    rejected_code_schema, rejected_msg_schema,
};
use super::window::WindowType;
use crate::redis::{Policy, check_target, policy_conditions, schema_of_policies};

const POLICIES: &[&str] = &["local", "redis", "redis-cluster", "redis-sentinel"];
const COUNT: &str = "Requests that pass in a window.";
const WINDOW: &str = "Length of a window in seconds.";

pub(super) fn schema() -> Value {
    let rule = json!({
        "type": "object",
        "properties": {
            "count": amount_schema("exclusiveMinimum", 0, COUNT),
            "time_window": amount_schema("exclusiveMinimum", 0, WINDOW),
            "key": {"type": "string", "description": "A text with variables: whose requests are counted together. \
                The rule is skipped where no variable has a value."},
            "header_prefix": {"type": "string", "pattern": FIELD_NAME_PART, "description": "Tells the rule's response headers apart; \
                without it the number of the rule."}
        },
        "required": ["count", "time_window", "key"]
    });
    let sync_interval = json!({"sync_interval": {"type": "number", "default": -1,
        "description": "Seconds between two messages to Redis; meanwhile requests are counted here. \
            -1 to ask Redis for each request."}});
    let mut schema = json!({
        "type": "object",
        "properties": {
            "count": amount_schema("exclusiveMinimum", 0, COUNT),
            "time_window": amount_schema("exclusiveMinimum", 0, WINDOW),
            "window_type": {"type": "string", "enum": ["fixed", "sliding"], "default": "fixed",
                "description": "Whether a window begins with the first request, or slides."},
            "group": {"type": "string", "description": "Configurations of one group, which are equal, share their counters."},
            "key": {"type": "string", "default": "remote_addr", "description": "Whose requests are counted together; \
                see `key_type`. If it has no value, the client's address; no value is ever taken for one."},
            "key_type": key_type_schema(&["var", "var_combination", "constant"]),
            "rules": {"type": "array", "items": rule, "description": "Several limits in place of one; each counts."},
            "rejected_code": rejected_code_schema(),
            "rejected_msg": rejected_msg_schema(),
            "policy": schema_of_policies(POLICIES),
            "allow_degradation": allow_degradation_schema(),
            "show_limit_quota_header": {"type": "boolean", "default": true,
                "description": "Whether responses tell the client its quota."}
        },
        "anyOf": [{"required": ["count", "time_window"]}, {"required": ["rules"]}]
    });
    if let Some(members) = schema.as_object_mut() {
        members.extend(policy_conditions(POLICIES, &sync_interval));
    }
    schema
}

/// What may stand in the name of a header field (RFC 9110 §5.6.2).
const FIELD_NAME_PART: &str = "^[!#$%&'*+.^_`|~0-9A-Za-z-]*$";
const FIELD_NAME: &str = "^[!#$%&'*+.^_`|~0-9A-Za-z-]+$";

pub(super) fn metadata_schema() -> Value {
    json!({
        "type": "object",
        "properties": {
            "limit_header": {"type": "string", "pattern": FIELD_NAME, "default": "X-RateLimit-Limit", "description": "Header with the quota."},
            "remaining_header": {"type": "string", "pattern": FIELD_NAME, "default": "X-RateLimit-Remaining",
                "description": "Header with what is left of it."},
            "reset_header": {"type": "string", "pattern": FIELD_NAME, "default": "X-RateLimit-Reset",
                "description": "Header with the seconds until it is whole again."}
        }
    })
}

/// Rules beyond the schema.
pub(super) fn check(conf: &Value) -> Result<(), String> {
    let has = |field: &str| conf.get(field).is_some();
    if has("rules") && (has("count") || has("time_window")) {
        return Err("count/time_window and rules cannot be specified at the same time".to_owned());
    }
    if has("rules") && has("group") {
        return Err("group and rules cannot be specified at the same time".to_owned());
    }
    check_sync(conf)?;
    let rules = conf.get("rules").and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
    let keys: Vec<&str> = rules.iter().filter_map(|rule| rule.get("key")?.as_str()).collect();
    if let Some((_, key)) = keys.iter().enumerate().find(|(at, key)| keys[..*at].contains(key)) {
        return Err(format!("duplicate key '{key}' in rules"));
    }
    let amounts = [("count", 1), ("time_window", 1)];
    for (field, least) in amounts {
        conf.get(field).into_iter().try_for_each(|amount| Amount::check(amount, field, least))?;
        for (at, rule) in rules.iter().enumerate() {
            let amount = rule.get(field).unwrap_or_default();
            Amount::check(amount, &format!("rules[{at}].{field}"), least)?;
        }
    }
    let config = Config::deserialize(conf).map_err(|error| error.to_string())?;
    check_target(config.policy, conf)
}

fn check_sync(conf: &Value) -> Result<(), String> {
    let interval = conf.get("sync_interval").and_then(Value::as_f64).unwrap_or(-1.0);
    if interval == -1.0 {
        return Ok(());
    }
    if interval < 0.1 {
        return Err("sync_interval should not be smaller than 0.1".to_owned());
    }
    let rules = conf.get("rules").and_then(Value::as_array).into_iter().flatten();
    let seconds = |window: &Value| window.as_f64().or_else(|| window.as_str()?.trim().parse().ok());
    let windows = rules.chain([conf]).filter_map(|limit| seconds(limit.get("time_window")?));
    match windows.into_iter().all(|window| interval < window) {
        true => Ok(()),
        false => Err("sync_interval should be smaller than time_window".to_owned()),
    }
}

/// A configuration.
#[derive(Deserialize)]
#[serde(try_from = "Written")]
pub(super) struct Config {
    pub(super) limits: Vec<Limit>,
    pub(super) window_type: WindowType,
    pub(super) group: Option<String>,
    pub(super) policy: Policy,
    pub(super) sync_interval: Option<Duration>,
    pub(super) allow_degradation: bool,
    pub(super) show_limit_quota_header: bool,
    pub(super) refusal: Refusal,
}

/// One limit of it.
pub(super) struct Limit {
    pub(super) count: Amount,
    pub(super) window: Amount,
    pub(super) key: Key,
    /// What is known of it if it is one of `rules`.
    pub(super) rule: Option<ListedRule>,
}

/// One of `rules`.
pub(super) struct ListedRule {
    /// Its number, from 1.
    pub(super) number: usize,
    pub(super) header_prefix: String,
}

/// A configuration as it is written.
#[derive(Deserialize)]
struct Written {
    count: Option<Value>,
    time_window: Option<Value>,
    rules: Option<Vec<WrittenRule>>,
    window_type: WindowType,
    group: Option<String>,
    key: String,
    key_type: KeyType,
    policy: Policy,
    sync_interval: Option<f64>,
    allow_degradation: bool,
    show_limit_quota_header: bool,
    #[serde(flatten)]
    refusal: Refusal,
}

#[derive(Deserialize)]
struct WrittenRule {
    count: Value,
    time_window: Value,
    key: String,
    header_prefix: Option<String>,
}

impl TryFrom<Written> for Config {
    type Error = &'static str;

    fn try_from(written: Written) -> Result<Config, Self::Error> {
        let limits = match (written.rules, written.count, written.time_window) {
            (Some(rules), ..) => rules.into_iter().enumerate().map(|(at, rule)| rule.limit(at + 1)).collect(),
            (None, Some(count), Some(window)) => vec![Limit {
                count: Amount::new(&count),
                window: Amount::new(&window),
                key: Key::new(&written.key, written.key_type),
                rule: None,
            }],
            _ => return Err("either count and time_window or rules are needed"),
        };
        let sync_interval = written.sync_interval.filter(|seconds| *seconds > 0.0);
        Ok(Config {
            limits,
            window_type: written.window_type,
            group: written.group,
            policy: written.policy,
            // A timer of years is as good as any longer one.
            sync_interval: sync_interval.map(|seconds| Duration::from_secs_f64(seconds.min(1e8))),
            allow_degradation: written.allow_degradation,
            show_limit_quota_header: written.show_limit_quota_header,
            refusal: written.refusal,
        })
    }
}

impl WrittenRule {
    fn limit(self, number: usize) -> Limit {
        Limit {
            count: Amount::new(&self.count),
            window: Amount::new(&self.time_window),
            key: Key::template(&self.key),
            rule: Some(ListedRule {
                number,
                header_prefix: self.header_prefix.unwrap_or_else(|| number.to_string()),
            }),
        }
    }
}
