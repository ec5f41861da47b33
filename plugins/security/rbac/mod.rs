//! `rbac`: policies over permissions and principals, as Envoy has them.

mod decision;
mod rule;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::sync::Arc;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::Deserialize;
use serde_json::json;
use sigma_plugin::{Build, Configuration, Context, Descriptor, Env, Phase, PhaseSet, Plugin, Reply, Step};

use crate::shared::refusal::{self, Refusal};
use decision::{Decision, Force, Ruling};
use rule::{Facts, Permission, Principal, Rule, either};
use sigma_plugin_kit::log_throttle::LogThrottle;
use sigma_plugin_kit::tallies::{Counted, counted};

/// The plugin.
pub(crate) static RBAC: Descriptor = Descriptor {
    name: "rbac",
    priority: 2405,
    example: include_str!("example.md"),
    phases: PhaseSet::of(&[Phase::Access]),
    warnings: Some(refusal::warnings),
    build: |build| Ok(Arc::new(Rbac::new(build)?)),
    ..Descriptor::of::<Config>()
};

/// Authorizes requests by policies of permissions and principals (Envoy's RBAC).
///
/// A policy matches if one of its permissions and one of its principals match. `ALLOW` permits a request if a policy
/// matches; `DENY` permits it if no policy matches. A permission is one of `any: true`, `and_rules: {rules: […]}`,
/// `or_rules: {rules: […]}`, `not_rule: {…}` and `vars`, a condition on any variable. A principal is one of `any:
/// true`, `and_ids: {ids: […]}`, `or_ids: {ids: […]}`, `not_id: {…}`, `vars`, `consumer: {names, groups, labels}`,
/// all of them, and `claim: {path, values, separator}`, a claim of `jwt-auth` with `store_in_ctx`, which must have
/// one of `values`.
///
/// A missing value never grants access. A rule on a missing variable, claim or consumer does not match in an `ALLOW`,
/// negated or not. In a `DENY` it denies the request. `["…", "==", null]` tests for absence. For repeated fields,
/// arguments and cookies all values count, because nodes differ in the value that they use. A rule of a `DENY` matches
/// if one value matches, a rule of an `ALLOW` if all do. Items of a field separated by commas are values as well.
/// Metrics count by the resource of the rules (`rbac_decisions_total`).
#[derive(Deserialize, JsonSchema)]
#[schemars(extend("anyOf" = [{"required": ["rules"]}, {"required": ["shadow_rules"]}]))]
struct Config {
    /// The rules that decide. Without them every request is permitted.
    rules: Option<Rules>,
    /// Rules that do not decide: their decisions are counted, and refusals are logged.
    shadow_rules: Option<Rules>,
    /// The status of a refusal.
    #[schemars(range(min = 400, max = 599), extend("default" = 403))]
    rejected_code: u16,
    /// The message of a refusal.
    #[schemars(length(min = 1), extend("default" = "RBAC: access denied"))]
    rejected_msg: String,
    #[serde(flatten)]
    refusal: Refusal,
}

impl Configuration for Config {
    fn check(&self) -> Result<(), String> {
        let sets = [("rules", &self.rules), ("shadow_rules", &self.shadow_rules)];
        sets.into_iter().filter_map(|(field, rules)| Some((field, rules.as_ref()?))).try_for_each(
            |(field, rules)| {
                rules.policies.iter().try_for_each(|(name, policy)| {
                    policy.check().map_err(|reason| format!("{field}.policies.{name}: {reason}"))
                })
            },
        )
    }
}

/// Policies, and the action on requests that they match.
#[derive(Deserialize, JsonSchema)]
struct Rules {
    /// Whether a match permits or refuses a request.
    #[schemars(extend("default" = "ALLOW"))]
    #[serde(default)]
    action: Action,
    /// The policies, by name. Without a policy `ALLOW` refuses all requests.
    #[schemars(extend("additionalProperties" = policy_schema()))]
    policies: BTreeMap<String, Policy>,
}

#[derive(Clone, Copy, Default, PartialEq, Deserialize, JsonSchema)]
#[serde(rename_all = "UPPERCASE")]
enum Action {
    #[default]
    Allow,
    Deny,
}

/// One policy: it matches when one of its permissions and one of its principals do.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Policy {
    /// Permissions: the actions and resources that the policy is about.
    #[schemars(schema_with = "list_schema")]
    permissions: Vec<Permission>,
    /// Principals: the users that the policy is about.
    #[schemars(schema_with = "list_schema")]
    principals: Vec<Principal>,
}

fn policy_schema() -> serde_json::Value {
    sigma_schema::described::schema_of::<Policy>()
}

fn list_schema(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "array",
        "minItems": 1,
        "items": {"type": "object", "minProperties": 1, "maxProperties": 1}
    })
}

impl Policy {
    fn check(&self) -> Result<(), String> {
        let permissions = self.permissions.iter().try_for_each(|one| Rule::of_permission(one).map(drop));
        permissions
            .and_then(|()| self.principals.iter().try_for_each(|one| Rule::of_principal(one).map(drop)))
    }
}

/// A policy as requests meet it.
struct Compiled {
    name: Box<str>,
    permissions: Vec<Rule>,
    principals: Vec<Rule>,
}

/// Rules as requests meet them.
struct Guard {
    action: Action,
    policies: Vec<Compiled>,
}

impl Guard {
    fn new(rules: Rules) -> Result<Guard, String> {
        let compiled = |(name, policy): (String, Policy)| {
            Ok(Compiled {
                name: name.into(),
                permissions: policy
                    .permissions
                    .iter()
                    .map(Rule::of_permission)
                    .collect::<Result<_, String>>()?,
                principals: policy
                    .principals
                    .iter()
                    .map(Rule::of_principal)
                    .collect::<Result<_, String>>()?,
            })
        };
        let policies = rules.policies.into_iter().map(compiled).collect::<Result<_, String>>()?;
        Ok(Guard { action: rules.action, policies })
    }

    /// Whether a request passes, and the policy that decided; `none` where none did.
    fn judge(&self, facts: &Facts<'_>) -> (Decision, &str) {
        let allows = self.action == Action::Allow;
        let decisive = self.policies.iter().find(|policy| {
            let what = either(&policy.permissions, facts);
            let matched = match what {
                Some(false) => Some(false),
                what => match either(&policy.principals, facts) {
                    Some(true) => what,
                    other => other,
                },
            };
            // A missing value matches no policy that allows, and every one that denies.
            matched.unwrap_or(!allows)
        });
        let passes = decisive.is_some() == allows;
        let decision = if passes { Decision::Allowed } else { Decision::Denied };
        (decision, decisive.map_or("none", |policy| &*policy.name))
    }
}

struct Rbac {
    enforced: Option<Guard>,
    shadow: Option<Guard>,
    reply: Reply,
    refusal: Refusal,
    counted: Counted<Ruling>,
    resource: Box<str>,
}

impl Rbac {
    fn new(build: &Build<'_>) -> Result<Rbac, String> {
        let config: Config = build.config()?;
        let message = json!({ "message": config.rejected_msg });
        Ok(Rbac {
            enforced: config.rules.map(Guard::new).transpose()?,
            shadow: config.shadow_rules.map(Guard::new).transpose()?,
            refusal: config.refusal,
            reply: Reply::new(config.rejected_code).json(&message).because("no policy allows the request"),
            counted: counted(build.node, build.resource),
            resource: build.resource.into(),
        })
    }
}

impl Plugin for Rbac {
    fn access(&self, ctx: &mut Context, env: &Env<'_>) -> Step {
        let facts = Facts::of(ctx);
        if let Some(shadow) = &self.shadow {
            let (decision, policy) = shadow.judge(&facts);
            self.counted.count(env, Ruling { force: Force::Shadow, decision });
            static COMPLAINT: LogThrottle = LogThrottle::new();
            if decision == Decision::Denied
                && let Some(left_out) = COMPLAINT.due()
            {
                let resource = &self.resource;
                tracing::warn!(%resource, policy, left_out, "rbac: the shadow rules would have denied a request");
            }
        }
        let Some(enforced) = &self.enforced else { return Step::Next };
        let (decision, _) = enforced.judge(&facts);
        self.counted.count(env, Ruling { force: Force::Enforced, decision });
        match decision {
            Decision::Allowed => Step::Next,
            Decision::Denied => self.refusal.step(self.reply.clone(), env),
        }
    }
}
