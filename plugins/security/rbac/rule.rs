//! Rules of policies: their form, and whether a request meets them.
//!
//! The logic has three values (Kleene's): a missing value is neither true nor false, and neither is its
//! negation.

use std::cell::OnceCell;
use std::collections::BTreeMap;

use serde::de::Error;
use serde::{Deserialize, Deserializer};
use serde_json::Value;
use sigma_plugin::Context;
use sigma_schema::expr::{Expr, VarName, VarValue, Variables};

use sigma_plugin_kit::label_values;

/// The variable with the claims of a verified token.
const CLAIMS: &str = "jwt_auth_payload";

/// The action, as it is written.
#[derive(Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Permission {
    Any(Yes),
    AndRules(Permissions),
    OrRules(Permissions),
    NotRule(Box<Permission>),
    Vars(Expr),
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Permissions {
    rules: Vec<Permission>,
}

/// The user, as it is written.
#[derive(Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Principal {
    Any(Yes),
    AndIds(Principals),
    OrIds(Principals),
    NotId(Box<Principal>),
    Vars(Expr),
    Consumer(Who),
    Claim(Claim),
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Principals {
    ids: Vec<Principal>,
}

/// `true`, and nothing else: `any: false` would match no user.
pub(super) struct Yes;

impl<'de> Deserialize<'de> for Yes {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Yes, D::Error> {
        match bool::deserialize(deserializer)? {
            true => Ok(Yes),
            false => Err(D::Error::custom("`any` must be `true` or absent")),
        }
    }
}

/// An authenticated consumer. All conditions have to hold.
#[derive(Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Who {
    names: Option<Vec<String>>,
    groups: Option<Vec<String>>,
    labels: Option<BTreeMap<String, Vec<String>>>,
}

/// A claim of the request's token, with one of these values.
#[derive(Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Claim {
    path: Path,
    values: Vec<Value>,
    /// The separator of the values in a text, such as the space in `scope`.
    separator: Option<String>,
}

/// The members that lead to a claim.
#[derive(Clone)]
struct Path(Vec<String>);

impl<'de> Deserialize<'de> for Path {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Path, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum Written {
            /// With dots in between.
            Text(String),
            /// For names with a dot in them.
            Steps(Vec<String>),
        }
        let steps = match Written::deserialize(deserializer) {
            Ok(Written::Text(text)) => text.split('.').map(str::to_owned).collect(),
            Ok(Written::Steps(steps)) => steps,
            Err(_) => Vec::new(),
        };
        match steps.is_empty() || steps.iter().any(String::is_empty) {
            true => Err(D::Error::custom(
                "`path` must be a string such as `realm_access.roles`, or a list of names",
            )),
            false => Ok(Path(steps)),
        }
    }
}

/// A rule that is in order.
pub(super) enum Rule {
    Any,
    All(Vec<Rule>),
    Either(Vec<Rule>),
    Not(Box<Rule>),
    Vars(Expr),
    Consumer(Who),
    Claim(Claim),
}

impl Rule {
    /// # Errors
    /// Returns an error, which is a sentence, if the permission is meaningless.
    pub(super) fn of_permission(written: &Permission) -> Result<Rule, String> {
        let all = |several: &Permissions| listed("rules", several.rules.iter().map(Rule::of_permission));
        Ok(match written {
            Permission::Any(Yes) => Rule::Any,
            Permission::AndRules(several) => Rule::All(all(several)?),
            Permission::OrRules(several) => Rule::Either(all(several)?),
            Permission::NotRule(one) => Rule::Not(Box::new(Rule::of_permission(one)?)),
            Permission::Vars(expr) => Rule::of_condition(expr)?,
        })
    }

    /// # Errors
    /// Returns an error, which is a sentence, if the principal is meaningless.
    pub(super) fn of_principal(written: &Principal) -> Result<Rule, String> {
        let all = |several: &Principals| listed("ids", several.ids.iter().map(Rule::of_principal));
        Ok(match written {
            Principal::Any(Yes) => Rule::Any,
            Principal::AndIds(several) => Rule::All(all(several)?),
            Principal::OrIds(several) => Rule::Either(all(several)?),
            Principal::NotId(one) => Rule::Not(Box::new(Rule::of_principal(one)?)),
            Principal::Vars(expr) => Rule::of_condition(expr)?,
            Principal::Consumer(who)
                if who.names.is_none() && who.groups.is_none() && who.labels.is_none() =>
            {
                return Err("`consumer` needs `names`, `groups` or `labels`".to_owned());
            }
            Principal::Consumer(who) => Rule::Consumer(who.clone()),
            Principal::Claim(claim) if claim.values.is_empty() => {
                return Err("`claim` needs `values`".to_owned());
            }
            Principal::Claim(claim) => Rule::Claim(claim.clone()),
        })
    }

    fn of_condition(expr: &Expr) -> Result<Rule, String> {
        if expr.is_empty() {
            return Err("`vars` without a condition would match everything: write `any: true`".to_owned());
        }
        if let Some(name) = expr.needs_body() {
            return Err(format!("`vars` uses `{name}`, but the request body has not been read"));
        }
        match expr.unknown() {
            Some(reason) => Err(reason),
            None => Ok(Rule::Vars(expr.clone())),
        }
    }

    /// Whether it holds; None where something decides that the request lacks.
    fn decide(&self, facts: &Facts<'_>) -> Option<bool> {
        match self {
            Rule::Any => Some(true),
            Rule::All(rules) => all(rules, facts),
            Rule::Either(rules) => either(rules, facts),
            Rule::Not(rule) => rule.decide(facts).map(|holds| !holds),
            Rule::Vars(expr) => expr.decide(facts.ctx),
            Rule::Consumer(who) => who.decide(facts.ctx),
            Rule::Claim(claim) => claim.decide(facts.claims()?),
        }
    }
}

/// A list that must not be empty: all of nothing would match everything.
fn listed(field: &str, rules: impl Iterator<Item = Result<Rule, String>>) -> Result<Vec<Rule>, String> {
    let rules: Vec<Rule> = rules.collect::<Result<_, _>>()?;
    if rules.is_empty() { Err(format!("`{field}` is empty")) } else { Ok(rules) }
}

/// Whether one of the rules holds.
pub(super) fn either(rules: &[Rule], facts: &Facts<'_>) -> Option<bool> {
    joined(rules, facts, true)
}

fn all(rules: &[Rule], facts: &Facts<'_>) -> Option<bool> {
    joined(rules, facts, false)
}

/// The first rule that comes to `stops_at` decides.
fn joined(rules: &[Rule], facts: &Facts<'_>, stops_at: bool) -> Option<bool> {
    let mut result = Some(!stops_at);
    for rule in rules {
        match rule.decide(facts) {
            Some(holds) if holds == stops_at => return Some(stops_at),
            Some(_) => {}
            None => result = None,
        }
    }
    result
}

/// A request, as rules see it.
pub(super) struct Facts<'c> {
    ctx: &'c Context,
    /// Read when the first rule asks.
    claims: OnceCell<Option<Value>>,
}

impl<'c> Facts<'c> {
    pub(super) fn of(ctx: &'c Context) -> Facts<'c> {
        Facts { ctx, claims: OnceCell::new() }
    }

    fn claims(&self) -> Option<&Value> {
        let read = || match self.ctx.get(&VarName::parse(CLAIMS))? {
            VarValue::Text(text) => serde_json::from_slice(&text).ok(),
            _ => None,
        };
        self.claims.get_or_init(read).as_ref()
    }
}

impl Who {
    fn decide(&self, ctx: &Context) -> Option<bool> {
        let consumer = ctx.consumer()?;
        let named = |list: &Option<Vec<String>>, value: Option<&str>| match (list, value) {
            (None, _) => Some(true),
            (Some(list), value) => value.map(|value| list.iter().any(|listed| listed == value)),
        };
        let mut found =
            vec![named(&self.names, Some(&consumer.name)), named(&self.groups, consumer.group_id.as_deref())];
        for (label, wanted) in self.labels.iter().flatten() {
            let own = consumer.labels.iter().find(|(name, _)| **name == **label);
            let has = |text: &str| label_values::of(text).iter().any(|value| wanted.contains(value));
            found.push(own.map(|(_, text)| has(text)));
        }
        if found.contains(&Some(false)) {
            return Some(false);
        }
        found.iter().all(Option::is_some).then_some(true)
    }
}

impl Claim {
    fn decide(&self, claims: &Value) -> Option<bool> {
        let found = self.path.0.iter().try_fold(claims, |value, step| value.get(step))?;
        let among = |value: &Value| self.values.contains(value);
        Some(match (found, &self.separator) {
            (Value::Null, _) => return None,
            (Value::Array(items), _) => items.iter().any(among),
            (Value::String(text), Some(separator)) => {
                text.split(separator.as_str()).any(|part| self.values.iter().any(|value| value == part))
            }
            (value, _) => among(value),
        })
    }
}
