//! Shared parts of the limiting plugins: the key of a request's quota, its size, and the refusal of a request
//! over it.

use std::borrow::Cow;
use std::fmt::Display;
use std::net::IpAddr;
use std::sync::Arc;

use aws_lc_rs::digest;
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::Deserialize;
use serde_json::{Value, json};
use sigma_plugin::address::{IpText, network_of};
use sigma_plugin::{Build, Context, Env, Reply, Session, Step};
use sigma_schema::Problem;
use sigma_schema::expr::{VarName, VarValue, Variables};
use sigma_schema::template::Template;

use sigma_plugin_kit::log_throttle::LogThrottle;
use sigma_plugin_kit::tallies::{Counted, Event, counted};

/// The form of `key`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum KeyType {
    /// The name of a variable.
    Var,
    /// A text with variables.
    VarCombination,
    /// The text itself.
    Constant,
}

/// The user of a quota: a request, or a session.
#[derive(Clone, Copy)]
pub(crate) struct User<'u> {
    addr: Option<IpAddr>,
    variables: &'u dyn Variables,
}

impl<'u> From<&'u Context> for User<'u> {
    fn from(ctx: &'u Context) -> User<'u> {
        User { addr: ctx.client.addr, variables: ctx }
    }
}

impl<'u> From<&'u Session> for User<'u> {
    fn from(session: &'u Session) -> User<'u> {
        User { addr: session.client.addr, variables: session }
    }
}

/// The key of a request's quota.
#[derive(Debug)]
pub(crate) enum Key {
    Variable(VarName),
    Template(Template),
    Constant(Vec<u8>),
}

impl Key {
    pub(crate) fn new(key: &str, kind: KeyType) -> Key {
        match kind {
            KeyType::Var => Key::Variable(VarName::parse(key)),
            KeyType::VarCombination => Key::template(key),
            KeyType::Constant => Key::Constant(key.as_bytes().to_vec()),
        }
    }

    pub(crate) fn template(text: &str) -> Key {
        Key::Template(Template::parse(text))
    }

    /// Appends its value to `out`, or a digest of a long one; false if the variable, or every variable of the
    /// template, is absent.
    fn write(&self, user: User<'_>, out: &mut Vec<u8>) -> bool {
        let begin = out.len();
        let found = match (self, user.addr) {
            // By far the most frequent key. A customer has a whole network of IPv6.
            (Key::Variable(VarName::RemoteAddr), Some(addr)) => {
                out.extend_from_slice(IpText::of(network_of(addr)).as_bytes());
                true
            }
            (Key::Variable(name), _) => match user.variables.get(name) {
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
            (Key::Template(template), _) => template.render(user.variables, out) > 0,
            (Key::Constant(text), _) => {
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
pub(crate) fn idle_rules(conf: &Value) -> Vec<Problem> {
    let rules = conf.get("rules").and_then(Value::as_array).into_iter().flatten().enumerate();
    let keys = rules.filter_map(|(at, rule)| Some((at, Template::parse(rule.get("key")?.as_str()?))));
    let idle = keys.filter(|(_, key)| key.variables().next().is_none());
    idle.map(|(at, _)| {
        let message = "the rule never applies, because its key has no variable";
        Problem::new(format!("rules[{at}].key"), "no_effect", message)
            .hint("write the variable to count by, e.g. `$remote_addr`")
    })
    .collect()
}

/// Returns the warning that clients choose their own key.
pub(crate) fn client_chosen(conf: &Value) -> Vec<Problem> {
    let is_name = conf.get("key_type").and_then(Value::as_str).unwrap_or("var") == "var";
    let key = conf.get("key").and_then(Value::as_str).filter(|_| is_name);
    let Some((key, name)) = key.map(|key| (key, VarName::parse(key))) else { return Vec::new() };
    if !matches!(name, VarName::Http(_) | VarName::Arg(_) | VarName::Cookie(_)) {
        return Vec::new();
    }
    let message =
        format!("clients can evade the limit: they choose `{key}` and can change it in each request");
    let hint = "count by `remote_addr`, or by `consumer_name` behind a plugin that authenticates";
    vec![Problem::new("key", "client_chosen", message).hint(hint)]
}

/// The keys of the counters of one limit.
///
/// Keys belong to the resource, and start again when the configuration changes. Three kinds of values never
/// meet, although clients choose many of them: values of the limit's own key, addresses that are used where
/// that key has no value, and the values of other limits of the same configuration. Otherwise a client could
/// use up the quota of another one by sending its address.
#[derive(Debug, Clone)]
pub(crate) struct Space {
    beginning: String,
}

/// Room for the value of a key, so that most take one allocation.
const USUAL_KEY: usize = 40;

impl Space {
    /// That of a configuration's only limit: of its `zone`, or its own.
    pub(crate) fn of(build: &Build<'_>) -> Space {
        if let Some(zone) = build.conf.get("zone").and_then(Value::as_str) {
            return Space::named(format!("zone:{zone}"));
        }
        Space::named(format!("{}:{:x}", build.resource, build.conf_hash()))
    }

    /// That of a group of configurations.
    pub(crate) fn named(name: String) -> Space {
        Space { beginning: name }
    }

    /// That of the rule with this number, from 1.
    pub(crate) fn rule(mut self, number: usize) -> Space {
        self.beginning.push_str(&format!("#{number}"));
        self
    }

    /// Returns the counter key of a request, by its value of `key` alone.
    pub(crate) fn by_value<'u>(&self, key: &Key, user: impl Into<User<'u>>) -> Option<Vec<u8>> {
        let mut full = Vec::with_capacity(self.beginning.len() + USUAL_KEY);
        full.extend_from_slice(self.beginning.as_bytes());
        full.push(b':');
        key.write(user.into(), &mut full).then_some(full)
    }

    /// Returns the counter key of a request: its value of `key`, or else the client's address or network.
    pub(crate) fn by_value_or_address<'u>(&self, key: &Key, user: impl Into<User<'u>>) -> Vec<u8> {
        let user = user.into();
        self.by_value(key, user).unwrap_or_else(|| {
            let address = user.addr.map(|addr| IpText::of(network_of(addr)));
            let address = address.as_ref().map_or(&b"unix:"[..], |address| address.as_bytes());
            // No value follows this sign, see `by_value`.
            [self.beginning.as_bytes(), b"@:", address].concat()
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

/// A whole number from `LEAST` on, or a text with variables that makes one for each request.
#[derive(Debug, Deserialize)]
#[serde(from = "Value")]
pub(crate) struct Amount<const LEAST: u64> {
    written: Value,
    /// None for a number.
    template: Option<Template>,
}

/// The largest number that every part of a chain of gateways counts exactly: 2^53 − 1.
const LARGEST: f64 = 9_007_199_254_740_991.0;

impl<const LEAST: u64> From<Value> for Amount<LEAST> {
    fn from(written: Value) -> Amount<LEAST> {
        Amount { template: written.as_str().map(Template::parse), written }
    }
}

impl<const LEAST: u64> JsonSchema for Amount<LEAST> {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "Amount".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        let (bound, value) = if LEAST == 0 { ("minimum", 0) } else { ("exclusiveMinimum", LEAST - 1) };
        json_schema!({"oneOf": [{"type": "integer", bound: value}, {"type": "string"}]})
    }
}

impl<const LEAST: u64> Amount<LEAST> {
    /// Checks a setting that is constant for all requests: a number, or a text without variables.
    ///
    /// # Errors
    /// Returns an error, which names `field`, if it is not a whole number from `LEAST` on.
    pub(crate) fn check(&self, field: &str) -> Result<(), String> {
        let varies = self.template.as_ref().is_some_and(|text| text.variables().next().is_some());
        // Nothing is requested in a text without variables.
        if varies || self.resolve(&Context::default()).is_some() {
            return Ok(());
        }
        Err(format!(
            "property \"{field}\" validation failed: {} is not a whole number from {LEAST} to {LARGEST} or a variable",
            self.written
        ))
    }

    /// Returns the number, if it is the same for all requests.
    pub(crate) fn constant(&self) -> Option<f64> {
        self.written.as_f64().or_else(|| self.written.as_str()?.trim().parse().ok())
    }

    /// The amount for this request.
    ///
    /// # Errors
    /// Returns an error, whose words are `reason`, if it is not a whole number from `LEAST` on.
    pub(crate) fn of(&self, ctx: &Context, reason: &'static str) -> Result<u64, Unlimited> {
        self.resolve(ctx).ok_or_else(|| {
            let mut variables = self.template.iter().flat_map(Template::variables);
            Unlimited { reason, is_of_client: variables.any(is_sent) }
        })
    }

    /// The amount for this request; None if it is no whole number from `LEAST` on.
    pub(crate) fn resolve(&self, ctx: &Context) -> Option<u64> {
        let Some(template) = &self.template else {
            return self.written.as_u64().filter(|amount| *amount >= LEAST && *amount as f64 <= LARGEST);
        };
        let mut text = Vec::new();
        template.render(ctx, &mut text);
        let number: f64 = std::str::from_utf8(&text).ok()?.trim().parse().ok()?;
        let whole = number.fract() == 0.0 && (LEAST as f64..=LARGEST).contains(&number);
        whole.then_some(number as u64)
    }
}

/// Whether the value of a variable comes from the client.
fn is_sent(name: &VarName) -> bool {
    match name {
        VarName::Http(_) | VarName::Arg(_) | VarName::Cookie(_) | VarName::PostArg(_) => true,
        VarName::Uri | VarName::RequestUri | VarName::RealRequestUri | VarName::UriParam(_) => true,
        VarName::Args | VarName::Host | VarName::Method => true,
        VarName::Other(name) => name.starts_with("graphql_"),
        _ => false,
    }
}

/// The settings for refused requests.
#[derive(Debug, Deserialize, JsonSchema)]
pub(crate) struct RefusalFields {
    /// Status of requests over the limit.
    #[schemars(range(min = 200, max = 599), extend("default" = 503))]
    rejected_code: u16,
    /// Text of the member `error_msg` in the body of refusals. Default: a plain response.
    #[schemars(length(min = 1))]
    rejected_msg: Option<String>,
    /// Whether requests are allowed if the limit is unknown, for example without Redis. Otherwise they get 500. An
    /// invalid number from the client always gets 400.
    #[schemars(extend("default" = false))]
    allow_degradation: bool,
    /// Whether requests are only counted, without refusals and delays. Requests over the limit are in the error log,
    /// and in the metric `limit_dry_run_refusals_total`. Sigma's own.
    #[schemars(extend("default" = false, "own_default" = true))]
    dry_run: bool,
}

/// Returns a warning where requests over the limit get the default status 503.
pub(crate) fn unset_status(conf: &Value) -> Vec<Problem> {
    if conf.get("rejected_code").is_some() || conf.get("dry_run") == Some(&Value::Bool(true)) {
        return Vec::new();
    }
    let message = "clients over the limit get 503, as in an outage";
    vec![
        Problem::new("rejected_code", "default_status", message)
            .hint("write `rejected_code: 429`, or 503 if you mean it"),
    ]
}

/// Why a request is refused whose limit cannot be determined.
pub(crate) const UNDETERMINED: &str = "cannot determine a limit";

/// Why a request has no limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Unlimited {
    pub(crate) reason: &'static str,
    /// The client sent the invalid value.
    pub(crate) is_of_client: bool,
}

impl From<&'static str> for Unlimited {
    fn from(reason: &'static str) -> Unlimited {
        Unlimited { reason, is_of_client: false }
    }
}

/// A request that only a dry run has let pass.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Spared;

impl Event for Spared {
    const METRIC: &'static str = "limit_dry_run_refusals_total";
    const HELP: &'static str = "Requests over a limit that were allowed because of dry_run";
    const LABELS: &'static [&'static [(&'static str, &'static str)]] = &[&[]];

    fn number(self) -> usize {
        0
    }
}

/// The statuses whose responses say when to try again (RFC 6585, RFC 9110).
const RETRIED: [u16; 2] = [429, 503];

/// Whole seconds, rounded up: earlier is too early.
pub(crate) fn whole_seconds(seconds: f64) -> u64 {
    // A float saturates; a number that is a whole second but for the last bits is that second.
    (seconds - 1e-6).ceil().max(0.0) as u64
}

/// How requests are answered that do not pass.
#[derive(Debug)]
pub(crate) struct Refusal {
    fields: RefusalFields,
    plugin: Box<str>,
    resource: Box<str>,
    spared: Counted<Spared>,
}

impl RefusalFields {
    /// That of an instance.
    pub(crate) fn of(self, build: &Build<'_>) -> Arc<Refusal> {
        Arc::new(Refusal {
            fields: self,
            plugin: build.plugin.into(),
            resource: build.resource.into(),
            spared: counted(build.node, &format!("{}#{}", build.resource, build.plugin)),
        })
    }
}

impl Refusal {
    /// Whether requests are counted without being refused or delayed.
    pub(crate) fn is_dry(&self) -> bool {
        self.fields.dry_run
    }

    /// Refuses a request that exceeds the limit. With `wait_s`, the seconds after which it would pass, a 429 or 503
    /// has `Retry-After`.
    pub(crate) fn over(&self, env: &Env<'_>, wait_s: Option<f64>) -> Step {
        if self.fields.dry_run {
            static REPORT: LogThrottle = LogThrottle::new();
            self.spared.count(env, Spared);
            if let Some(left_out) = REPORT.due() {
                let (plugin, resource) = (&self.plugin, &self.resource);
                tracing::warn!(%plugin, %resource, left_out, "dry_run: allowed a request over the limit");
            }
            return Step::Next;
        }
        let status = self.fields.rejected_code;
        let mut reply = Reply::new(status);
        if let Some(wait_s) = wait_s.filter(|_| RETRIED.contains(&status)) {
            reply = reply.header("Retry-After", whole_seconds(wait_s).max(1).to_string());
        }
        match &self.fields.rejected_msg {
            Some(message) => reply.json(&json!({"error_msg": message})).into(),
            None => reply.into(),
        }
    }

    /// Passes or refuses a request whose limit cannot be determined. An invalid value of the client is 400, even with
    /// `allow_degradation`: otherwise a client could switch the limit off.
    pub(crate) fn unlimited(&self, Unlimited { reason, is_of_client }: Unlimited) -> Step {
        if !is_of_client || self.fields.dry_run {
            return self.undetermined(reason);
        }
        Reply::new(400)
            .json(&json!({"error_msg": format!("{}: {reason}", self.failed())}))
            .because(UNDETERMINED)
            .into()
    }

    fn failed(&self) -> String {
        format!("failed to {}", self.plugin.trim_start_matches("graphql-").replace('-', " "))
    }

    /// Passes or refuses a request whose limit cannot be determined, and says why.
    pub(crate) fn undetermined(&self, reason: impl Display) -> Step {
        static COMPLAINT: LogThrottle = LogThrottle::new();
        let passes = self.fields.allow_degradation || self.fields.dry_run;
        let (plugin, resource) = (&self.plugin, &self.resource);
        if let Some(left_out) = COMPLAINT.due() {
            tracing::error!(%plugin, %resource, passes, %reason, left_out, "cannot determine a limit");
        }
        if passes {
            return Step::Next;
        }
        Reply::new(500).json(&json!({"error_msg": self.failed()})).because(UNDETERMINED).into()
    }
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
            assert!(Key::new("http_x-key", KeyType::Var).write((&case.ctx).into(), &mut written));
            written
        };
        let (long, longer) = ("k".repeat(LONGEST_KEY), "k".repeat(10_000));
        assert_eq!(key(&long), long.as_bytes());
        assert_eq!(key(&longer).len(), SHOWN_KEY + 1 + 43);
        assert_eq!(key(&longer), key(&longer));
        assert_ne!(key(&longer), key(&format!("{longer}k")));
    }

    #[test]
    fn network_of_ipv6_is_one_key_and_a_template_counts_addresses() {
        let written = |key: &Key, addr: &str| {
            let mut case = Case::new("GET / HTTP/1.1\nHost: h");
            case.ctx.client.addr = Some(addr.parse().unwrap());
            Space::named("r".to_owned()).by_value_or_address(key, &case.ctx)
        };
        let (own, absent) = (Key::new("remote_addr", KeyType::Var), Key::new("http_x", KeyType::Var));
        let each = Key::new("$remote_addr", KeyType::VarCombination);
        for key in [&own, &absent] {
            assert_eq!(written(key, "2001:db8::1"), written(key, "2001:db8::ffff:1"));
            assert_ne!(written(key, "2001:db8::1"), written(key, "2001:db8:0:1::1"));
            assert_ne!(written(key, "192.0.2.1"), written(key, "192.0.2.2"));
        }
        assert_ne!(written(&each, "2001:db8::1"), written(&each, "2001:db8::2"));
    }

    #[test]
    fn values_addresses_and_rules_never_meet() {
        let key = Key::new("http_x", KeyType::Var);
        let with = |fields: &str| Case::new(&format!("GET / HTTP/1.1\nHost: h{fields}"));
        let absent = with("");
        let space = || Space::named("r".to_owned());
        let address = space().by_value_or_address(&key, &absent.ctx);
        for value in ["127.0.0.1", "@:127.0.0.1", "@127.0.0.1", ":127.0.0.1", "#1:127.0.0.1"] {
            let claimed = with(&format!("\nX: {value}"));
            assert_ne!(space().by_value_or_address(&key, &claimed.ctx), address, "{value}");
            assert_ne!(
                space().by_value(&key, &claimed.ctx),
                space().rule(1).by_value(&key, &with("\nX: 127.0.0.1").ctx),
                "{value}"
            );
        }
        assert_eq!(space().by_value(&key, &absent.ctx), None);
        assert_eq!(space().rule(2).by_value(&key, &with("\nX: a").ctx).unwrap(), b"r#2:a");
    }

    #[test]
    fn rules_that_never_apply_have_warnings() {
        let conf = json!({"key": "x", "rules": [{"key": "$uri"}, {"key": "all"}, {"key": "\\$uri"}, {}]});
        let told: Vec<String> = idle_rules(&conf).into_iter().map(|problem| problem.pointer).collect();
        assert_eq!(told, ["rules[1].key", "rules[2].key"]);
    }

    #[test]
    fn amounts_without_variables_are_checked() {
        for good in [json!(1), json!("7"), json!(" 60 "), json!("$http_x"), json!("${arg_a ?? x}")] {
            assert_eq!(Amount::<1>::from(good.clone()).check("count"), Ok(()), "{good}");
        }
        for bad in
            [json!("1m"), json!(""), json!("0"), json!("1.5"), json!("\\$x"), json!(1e17), json!("inf")]
        {
            let refusal = Amount::<1>::from(bad).check("count").unwrap_err();
            assert!(refusal.starts_with("property \"count\" validation failed: "), "{refusal}");
        }
    }
}
