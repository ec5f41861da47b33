//! `consumer-restriction`: allowed consumers, and their methods.

use std::borrow::Cow;

use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Value, json};
use sigma_plugin::{Configuration, Context, Descriptor, Env, Phase, PhaseSet, Plugin, Step};
use sigma_schema::Problem;

/// Allows or denies consumers, groups, routes or services.
pub(crate) static CONSUMER_RESTRICTION: Descriptor = Descriptor {
    name: "consumer-restriction",
    priority: 2400,
    example: include_str!("example.md"),
    phases: PhaseSet::of(&[Phase::Access]),
    warnings: Some(|_, conf| idle_methods(conf)),
    ..Descriptor::itself::<ConsumerRestriction>()
};

/// Allows or denies requests by consumer, consumer group, route or service, and optionally by method.
///
/// An authentication plugin must identify the consumer first. `blacklist` has precedence over `whitelist`; values in
/// `whitelist` may use every method.
#[derive(Deserialize, JsonSchema)]
#[schemars(extend("anyOf" = [
    {"required": ["blacklist"]}, {"required": ["whitelist"]}, {"required": ["allowed_by_methods"]}
]))]
struct ConsumerRestriction {
    /// Type of the values in the lists.
    #[serde(rename = "type")]
    #[schemars(extend("default" = "consumer_name"))]
    subject: Subject,
    /// Refused values.
    #[schemars(length(min = 1))]
    blacklist: Option<Vec<String>>,
    /// Permitted values; all others are refused.
    #[schemars(length(min = 1))]
    whitelist: Option<Vec<String>>,
    /// Permitted methods of single values. Values without an entry may use every method.
    allowed_by_methods: Option<Vec<Methods>>,
    /// The status of a refusal.
    #[schemars(range(min = 200, max = 999), extend("default" = 403))]
    rejected_code: u16,
    /// The message of a refusal.
    rejected_msg: Option<String>,
}

impl Configuration for ConsumerRestriction {}

/// Returns the warning that `allowed_by_methods` limits no consumer: with a whitelist it is not used.
fn idle_methods(conf: &Value) -> Vec<Problem> {
    let is_idle = conf.get("whitelist").is_some() && conf.get("allowed_by_methods").is_some();
    let message =
        "`allowed_by_methods` has no effect together with `whitelist`: its members may use every method";
    let hint = "remove one of them";
    let problem = is_idle.then(|| Problem::new("allowed_by_methods", "no_effect", message).hint(hint));
    problem.into_iter().collect()
}

#[derive(Clone, Copy, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
enum Subject {
    ConsumerName,
    ConsumerGroupId,
    ServiceId,
    RouteId,
}

#[derive(Deserialize, JsonSchema)]
struct Methods {
    /// The value to which the entry applies, of the kind in `type`.
    user: Option<String>,
    /// The permitted methods.
    #[schemars(length(min = 1), extend("items" = {"type": "string", "enum": [
        "GET", "POST", "PUT", "DELETE", "PATCH", "HEAD", "OPTIONS", "CONNECT", "TRACE", "PURGE"
    ]}))]
    methods: Option<Vec<String>>,
}

impl Subject {
    /// Its name in messages, and who that is in an exchange.
    fn of(self, ctx: &Context) -> (&'static str, Option<&str>) {
        let (consumer, route) = (ctx.consumer(), ctx.route.as_deref());
        match self {
            Subject::ConsumerName => ("consumer_name", consumer.map(|consumer| &*consumer.name)),
            Subject::ConsumerGroupId => {
                ("consumer_group_id", consumer.and_then(|consumer| consumer.group_id.as_deref()))
            }
            Subject::ServiceId => ("service_id", route.and_then(|route| route.service_id.as_deref())),
            Subject::RouteId => ("route_id", route.map(|route| &*route.id)),
        }
    }
}

impl ConsumerRestriction {
    fn admits(&self, name: &str, method: &[u8]) -> bool {
        let holds = |list: &[String]| list.iter().any(|listed| listed == name);
        if self.blacklist.as_deref().is_some_and(holds) {
            return false;
        }
        if let Some(whitelist) = &self.whitelist {
            // A listed consumer may use every method; others may use none.
            return holds(whitelist);
        }
        let mut rules = self.allowed_by_methods.iter().flatten();
        let rule = rules.find(|rule| rule.user.as_deref() == Some(name));
        rule.is_none_or(|rule| rule.methods.iter().flatten().any(|allowed| allowed.as_bytes() == method))
    }
}

impl Plugin for ConsumerRestriction {
    fn access(&self, ctx: &mut Context, _: &Env<'_>) -> Step {
        let (subject, name) = self.subject.of(ctx);
        let Some(name) = name else {
            let message = format!("The request is rejected, please check the {subject} for this request");
            return Step::json(401, &json!({ "message": message }));
        };
        if self.admits(name, ctx.request.method_token()) {
            return Step::Next;
        }
        let message = match &self.rejected_msg {
            Some(message) => Cow::Borrowed(message.as_str()),
            None => Cow::Owned(format!("The {subject} is forbidden.")),
        };
        Step::json(self.rejected_code, &json!({ "message": message }))
    }
}
