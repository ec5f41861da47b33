//! What the limiting plugins have in common: whose quota a request uses, how large it is, and how
//! a request over it is refused.

use std::fmt::Display;

use aws_lc_rs::digest;
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde::Deserialize;
use serde_json::{Value, json};
use sigma_config::Problem;
use sigma_config::expr::{VarName, VarValue, Variables};
use sigma_config::template::Template;
use sigma_plugin::{Build, Context, Reply, Step};

use crate::seldom::Seldom;

/// How `key` is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum KeyType {
    /// The name of a variable.
    Var,
    /// A text with variables.
    VarCombination,
    /// Itself.
    Constant,
}

/// Whose quota a request uses.
#[derive(Debug)]
pub(super) enum Key {
    Variable(VarName),
    Template(Template),
    Constant(Vec<u8>),
}

impl Key {
    pub(super) fn new(key: &str, kind: KeyType) -> Key {
        match kind {
            KeyType::Var => Key::Variable(VarName::parse(key)),
            KeyType::VarCombination => Key::template(key),
            KeyType::Constant => Key::Constant(key.as_bytes().to_vec()),
        }
    }

    pub(super) fn template(text: &str) -> Key {
        Key::Template(Template::parse(text))
    }

    /// Appends its value to `out`, or what stands for a long one; false if the variable, or every
    /// variable of the template, is absent.
    fn write(&self, ctx: &Context, out: &mut Vec<u8>) -> bool {
        let begin = out.len();
        let found = match self {
            Key::Variable(name) => match ctx.get(name) {
                Some(VarValue::Text(text)) => {
                    out.extend_from_slice(&text);
                    true
                }
                Some(VarValue::Bool(truth)) => {
                    out.extend_from_slice(truth.to_string().as_bytes());
                    true
                }
                Some(VarValue::List(items)) => {
                    out.extend(items.join(&b", "[..]));
                    true
                }
                None => false,
            },
            Key::Template(template) => template.render(ctx, out) > 0,
            Key::Constant(text) => {
                out.extend_from_slice(text);
                true
            }
        };
        if out.len() - begin > LONGEST_KEY {
            let short = bounded(out.split_off(begin));
            out.extend(short);
        }
        if !found {
            out.truncate(begin);
        }
        found
    }
}

/// The `rules` of a configuration as it is written that never apply: a key without variables counts
/// as absent, as in APISIX.
pub(super) fn idle_rules(conf: &Value) -> Vec<Problem> {
    let rules = conf.get("rules").and_then(Value::as_array).into_iter().flatten().enumerate();
    let keys = rules.filter_map(|(at, rule)| Some((at, Template::parse(rule.get("key")?.as_str()?))));
    let idle = keys.filter(|(_, key)| key.variables().next().is_none());
    idle.map(|(at, _)| {
        let message = "the rule never applies: its key has no variable";
        Problem::new(format!("rules[{at}].key"), "no_effect", message)
            .hint("name the variable whose requests it counts, e.g. `$remote_addr`")
    })
    .collect()
}

/// The keys of the counters of one limit.
///
/// They follow the resource, and begin anew when the configuration changes. Three kinds of values
/// never meet, although clients choose many of them: those of the limit's own key, the addresses
/// that stand in where that key has no value, and the values of other limits of the same
/// configuration. Otherwise a client could use up what is another's by sending its address.
#[derive(Debug, Clone)]
pub(super) struct Space {
    beginning: String,
}

/// Room for the value of a key, so that most take one allocation.
const USUAL_KEY: usize = 40;

impl Space {
    /// That of a configuration's only limit.
    pub(super) fn of(build: &Build<'_>) -> Space {
        Space::named(format!("{}:{:x}", build.resource, build.conf_hash()))
    }

    /// That of a group of configurations.
    pub(super) fn named(name: String) -> Space {
        Space { beginning: name }
    }

    /// That of the rule with this number, from 1.
    pub(super) fn rule(mut self, number: usize) -> Space {
        self.beginning.push_str(&format!("#{number}"));
        self
    }

    /// What a request is counted under, by its value of `key` alone.
    pub(super) fn by_value(&self, key: &Key, ctx: &Context) -> Option<Vec<u8>> {
        let mut full = Vec::with_capacity(self.beginning.len() + USUAL_KEY);
        full.extend_from_slice(self.beginning.as_bytes());
        full.push(b':');
        key.write(ctx, &mut full).then_some(full)
    }

    /// What a request is counted under: its value of `key`, or else the client's address.
    pub(super) fn by_value_or_address(&self, key: &Key, ctx: &Context) -> Vec<u8> {
        self.by_value(key, ctx).unwrap_or_else(|| {
            // No value stands behind this sign, see `by_value`.
            [self.beginning.as_bytes(), b"@:", ctx.remote_addr().as_bytes()].concat()
        })
    }
}

/// Bytes of a key that counters are kept under as it is. Clients choose what their requests hold, and
/// a flood of long keys must take no more memory, here or in Redis, than one of short ones.
const LONGEST_KEY: usize = 256;

/// Bytes of a longer key that are kept, for people to recognise it.
const SHOWN_KEY: usize = 64;

/// A key, or the beginning of a long one with its digest: the same in all gateways.
pub(crate) fn bounded(key: Vec<u8>) -> Vec<u8> {
    if key.len() <= LONGEST_KEY {
        return key;
    }
    let digest = URL_SAFE_NO_PAD.encode(digest::digest(&digest::SHA256, &key));
    [&key[..SHOWN_KEY], b"~", digest.as_bytes()].concat()
}

/// A number, or a text with variables that makes one for each request.
#[derive(Debug)]
pub(super) enum Amount {
    Fixed(u64),
    Template(Template),
}

/// The largest number that every part of a chain of gateways counts exactly: 2^53 − 1.
const LARGEST: f64 = 9_007_199_254_740_991.0;

impl Amount {
    /// Of a checked configuration: an integer or a string.
    pub(super) fn new(value: &Value) -> Amount {
        match value {
            Value::String(text) => Amount::Template(Template::parse(text)),
            number => Amount::Fixed(number.as_u64().unwrap_or(0)),
        }
    }

    /// Checks what is the same for all requests: a number, or a text without variables.
    ///
    /// # Errors
    /// It is no whole number from `least` on; `field` is where it stands.
    pub(super) fn check(value: &Value, field: &str, least: u64) -> Result<(), String> {
        let fits = match Amount::new(value) {
            Amount::Template(template) if template.variables().next().is_some() => true,
            // Nothing is asked for in a text without variables.
            amount => amount.resolve(&Context::default(), least).is_some(),
        };
        if fits {
            return Ok(());
        }
        Err(format!(
            "property \"{field}\" validation failed: {value} is no whole number from {least} to {LARGEST}, \
            and has no variable that could make one"
        ))
    }

    /// The amount for this request; None if it is no whole number from `least` on.
    pub(super) fn resolve(&self, ctx: &Context, least: u64) -> Option<u64> {
        match self {
            Amount::Fixed(amount) => {
                Some(*amount).filter(|amount| *amount >= least && *amount as f64 <= LARGEST)
            }
            Amount::Template(template) => {
                let mut text = Vec::new();
                template.render(ctx, &mut text);
                let number: f64 = std::str::from_utf8(&text).ok()?.trim().parse().ok()?;
                let whole = number.fract() == 0.0 && (least as f64..=LARGEST).contains(&number);
                whole.then_some(number as u64)
            }
        }
    }
}

/// The schema of an [`Amount`] above a bound, or from one on.
pub(super) fn amount_schema(bound: &str, value: u64, about: &str) -> Value {
    json!({
        "oneOf": [{"type": "integer", bound: value}, {"type": "string"}],
        "description": format!("{about} A text is a template that must make such a number for each request.")
    })
}

/// What becomes of a request whose limit cannot be determined.
#[derive(Debug, Clone)]
pub(super) struct Undetermined {
    plugin: &'static str,
    resource: Box<str>,
    passes: bool,
}

impl Undetermined {
    /// `passes` is the setting `allow_degradation`.
    pub(super) fn new(plugin: &'static str, build: &Build<'_>, passes: bool) -> Undetermined {
        Undetermined { plugin, resource: build.resource.into(), passes }
    }

    /// Passes or refuses the request, and says why.
    pub(super) fn step(&self, reason: impl Display) -> Step {
        static COMPLAINT: Seldom = Seldom::new();
        let Undetermined { plugin, resource, passes } = self;
        if let Some(left_out) = COMPLAINT.due() {
            tracing::error!(%plugin, %resource, passes, %reason, left_out, "a limit cannot be determined");
        }
        if *passes {
            return Step::Next;
        }
        Step::json(500, &json!({"error_msg": format!("failed to {}", plugin.replace('-', " "))}))
    }
}

/// How a request over the limit is answered.
#[derive(Debug, Deserialize)]
pub(super) struct Refusal {
    rejected_code: u16,
    rejected_msg: Option<String>,
}

impl Refusal {
    /// The answer.
    pub(super) fn step(&self) -> Step {
        match &self.rejected_msg {
            Some(message) => Step::json(self.rejected_code, &json!({"error_msg": message})),
            None => Reply::new(self.rejected_code).into(),
        }
    }
}

pub(super) fn rejected_code_schema() -> Value {
    json!({"type": "integer", "minimum": 200, "maximum": 599, "default": 503,
        "description": "Status of requests over the limit."})
}

pub(super) fn rejected_msg_schema() -> Value {
    json!({"type": "string", "minLength": 1,
        "description": "Text of the member `error_msg` in the body of such answers; none for a plain answer."})
}

pub(super) fn allow_degradation_schema() -> Value {
    json!({"type": "boolean", "default": false,
        "description": "Whether requests pass when the limit cannot be determined, e.g. without Redis. If not, they are answered 500."})
}

pub(super) fn key_type_schema(types: &[&str]) -> Value {
    json!({"type": "string", "enum": types, "default": "var",
        "description": "Whether `key` is the name of a variable, or a text with variables."})
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Case;

    #[test]
    fn long_keys_are_short_and_still_differ() {
        let key = |value: &str| {
            let case = Case::new(&format!("GET / HTTP/1.1\nHost: h\nX-Key: {value}"));
            let mut written = Vec::new();
            assert!(Key::new("http_x-key", KeyType::Var).write(&case.cx, &mut written));
            written
        };
        let (long, longer) = ("k".repeat(LONGEST_KEY), "k".repeat(10_000));
        assert_eq!(key(&long), long.as_bytes());
        assert_eq!(key(&longer).len(), SHOWN_KEY + 1 + 43);
        assert_eq!(key(&longer), key(&longer));
        assert_ne!(key(&longer), key(&format!("{longer}k")));
    }

    #[test]
    fn values_addresses_and_rules_never_meet() {
        let key = Key::new("http_x", KeyType::Var);
        let with = |fields: &str| Case::new(&format!("GET / HTTP/1.1\nHost: h{fields}"));
        let absent = with("");
        let space = || Space::named("r".to_owned());
        let address = space().by_value_or_address(&key, &absent.cx);
        for value in ["127.0.0.1", "@:127.0.0.1", "@127.0.0.1", ":127.0.0.1", "#1:127.0.0.1"] {
            let claimed = with(&format!("\nX: {value}"));
            assert_ne!(space().by_value_or_address(&key, &claimed.cx), address, "{value}");
            assert_ne!(
                space().by_value(&key, &claimed.cx),
                space().rule(1).by_value(&key, &with("\nX: 127.0.0.1").cx),
                "{value}"
            );
        }
        assert_eq!(space().by_value(&key, &absent.cx), None);
        assert_eq!(space().rule(2).by_value(&key, &with("\nX: a").cx).unwrap(), b"r#2:a");
    }

    #[test]
    fn rules_that_never_apply_are_told() {
        let conf = json!({"key": "x", "rules": [{"key": "$uri"}, {"key": "all"}, {"key": "\\$uri"}, {}]});
        let told: Vec<String> = idle_rules(&conf).into_iter().map(|problem| problem.pointer).collect();
        assert_eq!(told, ["rules[1].key", "rules[2].key"]);
    }

    #[test]
    fn amounts_without_variables_are_checked() {
        for good in [json!(1), json!("7"), json!(" 60 "), json!("$http_x"), json!("${arg_a ?? x}")] {
            assert_eq!(Amount::check(&good, "count", 1), Ok(()), "{good}");
        }
        for bad in
            [json!("1m"), json!(""), json!("0"), json!("1.5"), json!("\\$x"), json!(1e17), json!("inf")]
        {
            let refusal = Amount::check(&bad, "count", 1).unwrap_err();
            assert!(refusal.starts_with("property \"count\" validation failed: "), "{refusal}");
        }
    }
}
