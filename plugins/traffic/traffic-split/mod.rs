//! `traffic-split`: chooses the upstream by conditions and weights.

use std::sync::Arc;

use schemars::{JsonSchema, Schema};
use serde::Deserialize;
use serde_json::Value;
use sigma_config::kind::Kind;
use sigma_config::resources::Upstream;
use sigma_config::stored;
use sigma_plugin::descriptor::InlineUpstream;
use sigma_plugin::variable_fields::{VariableField, VariableForm};
use sigma_plugin::{
    Build, Configuration, Context, Descriptor, Env, Flow, FlowPlugin, FlowStep, Phase, PhaseSet, Plugin,
    Session, Step,
};
use sigma_schema::described::{CONFIDENTIAL, OWN_DEFAULT, take_descriptions};
use sigma_schema::expr::{Expr, Variables};
use sigma_schema::id::Id;

use sigma_plugin_kit::condition;
use sigma_plugin_kit::turns::Entries;

/// The plugin.
pub(crate) static TRAFFIC_SPLIT: Descriptor = Descriptor {
    name: "traffic-split",
    priority: 966,
    example: include_str!("example.md"),
    phases: PhaseSet::of(&[Phase::Access]),
    upstreams: Some(upstreams),
    build,
    flow: Some(Flow::of::<Config>(build_flow)),
    variables: &[VariableField::shown("rules.*.match.*.vars", VariableForm::Condition)],
    ..Descriptor::of::<Config>()
};

/// Most bytes of a form that conditions may look at.
const FORM_LIMIT: usize = 1024 * 1024;

/// Sends shares of the traffic to other upstreams.
///
/// The first matching rule applies; its upstreams share the traffic by weight. An entry without an upstream means the
/// upstream of the route. Clients can change between upstreams with each request; to keep them on one version see
/// [canary with sticky sessions](../recipes.md#canary-with-sticky-sessions). `vars` has
/// [conditions on variables](../routing.md#conditions-on-variables).
#[derive(Deserialize, JsonSchema)]
struct Config {
    /// Rules; the first matching one decides.
    rules: Option<Vec<RuleConfig>>,
}

#[derive(Deserialize, JsonSchema)]
struct RuleConfig {
    /// Conditions; one must match. Unset: all requests.
    #[serde(rename = "match")]
    conditions: Option<Vec<Condition>>,
    /// The upstreams, selected in turn by weight.
    #[schemars(length(min = 1, max = 20), extend("default" = [{"weight": 1}]))]
    weighted_upstreams: Vec<Weighted>,
}

#[derive(Deserialize, JsonSchema)]
struct Condition {
    /// An expression on variables.
    #[serde(default, deserialize_with = "condition::vars")]
    vars: Option<Expr>,
}

#[derive(Deserialize, JsonSchema)]
struct Weighted {
    /// The id of an upstream.
    upstream_id: Option<Id>,
    /// An upstream of the plugin's own.
    #[schemars(transform = as_upstream)]
    upstream: Option<Value>,
    /// Weight among the entries.
    #[schemars(extend("default" = 1))]
    weight: u64,
}

/// The parts of an upstream, as JSON pointers, that APISIX does not have.
const OWN_PARTS: [&str; 15] = [
    "/properties/members",
    "/properties/session_affinity",
    "/properties/stick_table",
    "/properties/slow_start",
    "/properties/zone_aware",
    "/properties/subsets",
    "/properties/checks/properties/agent",
    "/properties/outlier_detection",
    "/properties/retry_policy",
    "/properties/deadline",
    "/properties/limits",
    "/properties/circuit_breaker",
    "/properties/admission_control",
    "/properties/adaptive_concurrency",
    "/properties/fastcgi",
];

fn as_upstream(schema: &mut Schema) {
    let mut upstream = stored::schema(Kind::Upstream).clone();
    // Its fields are explained where upstreams are.
    take_descriptions(&mut upstream);
    for secret in ["/properties/session_affinity/properties/secret", "/properties/tls/properties/client_key"]
    {
        // The secrets of other upstreams are found at their own place; this one is a plugin's.
        if let Some(field) = upstream.pointer_mut(secret).and_then(Value::as_object_mut) {
            field.insert(CONFIDENTIAL.to_owned(), true.into());
        }
    }
    for part in OWN_PARTS {
        if let Some(part) = upstream.pointer_mut(part).and_then(Value::as_object_mut) {
            part.insert(OWN_DEFAULT.to_owned(), true.into());
        }
    }
    schema.ensure_object().extend(upstream.as_object().cloned().unwrap_or_default());
}

impl Configuration for Config {
    fn check(&self) -> Result<(), String> {
        let entries = self.rules.iter().flatten().flat_map(|rule| &rule.weighted_upstreams);
        let mut own =
            entries.filter(|entry| entry.upstream_id.is_none()).filter_map(|entry| entry.upstream.as_ref());
        let check = |upstream| Upstream::deserialize(upstream).map(drop);
        own.try_for_each(check).map_err(|error| format!("invalid upstream: {error}"))
    }
}

/// The upstreams inside a configuration, named by the numbers of their rule and entry.
fn upstreams(conf: &Value) -> Vec<InlineUpstream> {
    let list = |value: Option<&Value>| value.and_then(Value::as_array).cloned().unwrap_or_default();
    let mut found = Vec::new();
    for (rule, config) in list(conf.get("rules")).iter().enumerate() {
        for (entry, weighted) in list(config.get("weighted_upstreams")).iter().enumerate() {
            if let (None, Some(upstream)) = (weighted.get("upstream_id"), weighted.get("upstream")) {
                found.push(InlineUpstream { name: inline_name(rule, entry), upstream: upstream.clone() });
            }
        }
    }
    found
}

fn inline_name(rule: usize, entry: usize) -> String {
    format!("{rule}.{entry}")
}

fn build(build: &Build<'_>) -> Result<Arc<dyn Plugin>, String> {
    Ok(Arc::new(TrafficSplit::new(build)?))
}

fn build_flow(build: &Build<'_>) -> Result<Arc<dyn FlowPlugin>, String> {
    Ok(Arc::new(TrafficSplit::new(build)?))
}

struct Rule {
    conditions: Vec<Expr>,
    /// Keys of upstreams that take turns; None for the route's own.
    entries: Arc<Entries<Option<Box<str>>>>,
    reads_form: bool,
}

impl Rule {
    fn new(build: &Build<'_>, at: usize, config: RuleConfig) -> Rule {
        let mut list: Vec<(Option<Box<str>>, u64)> = Vec::new();
        for (entry, weighted) in config.weighted_upstreams.iter().enumerate() {
            let key: Option<Box<str>> = match (&weighted.upstream_id, &weighted.upstream) {
                (Some(id), _) => Some(format!("upstreams/{id}").into()),
                (None, Some(_)) => Some(build.upstream_key(&inline_name(at, entry)).into()),
                (None, None) => None,
            };
            // A name that occurs twice counts once, with the last weight.
            match list.iter_mut().find(|(known, _)| *known == key) {
                Some((_, weight)) => *weight = weighted.weight,
                None => list.push((key, weighted.weight)),
            }
        }
        let conditions: Vec<Expr> =
            config.conditions.into_iter().flatten().map(|one| one.vars.unwrap_or(Expr::ALWAYS)).collect();
        let reads_form = conditions.iter().any(|condition| condition.needs_body().is_some());
        Rule { conditions, entries: Arc::new(Entries::new(list)), reads_form }
    }

    fn holds(&self, variables: &dyn Variables) -> bool {
        self.conditions.is_empty() || self.conditions.iter().any(|condition| condition.eval(variables))
    }
}

/// The upstream that the first rule chooses that holds; None for the route's own.
fn chosen(rules: &[Rule], variables: &dyn Variables, env: &Env<'_>) -> Option<Box<str>> {
    let rule = rules.iter().find(|rule| rule.holds(variables))?;
    rule.entries.next(env.local)?.clone()
}

/// Has the rules choose the upstream of a request.
fn choose(rules: &[Rule], ctx: &mut Context, env: &Env<'_>) {
    if let Some(key) = chosen(rules, ctx, env) {
        ctx.upstream = Some(key);
    }
}

struct TrafficSplit {
    rules: Arc<[Rule]>,
    /// Conditions look at the body.
    reads_form: bool,
}

impl TrafficSplit {
    fn new(build: &Build<'_>) -> Result<TrafficSplit, String> {
        let config: Config = build.config()?;
        let rules = config.rules.unwrap_or_default().into_iter().enumerate();
        let rules: Vec<Rule> = rules.map(|(at, config)| Rule::new(build, at, config)).collect();
        let reads_form = rules.iter().any(|rule| rule.reads_form);
        Ok(TrafficSplit { rules: rules.into(), reads_form })
    }
}

impl FlowPlugin for TrafficSplit {
    fn preread(&self, session: &mut Session, env: &Env<'_>) -> FlowStep {
        if let Some(key) = chosen(&self.rules, session, env) {
            session.upstream = Some(key);
        }
        FlowStep::Next
    }
}

impl Plugin for TrafficSplit {
    fn access(&self, ctx: &mut Context, env: &Env<'_>) -> Step {
        if !self.reads_form || ctx.body.is_some() {
            choose(&self.rules, ctx, env);
            return Step::Next;
        }
        let rules = Arc::clone(&self.rules);
        let then = move |ctx: &mut Context, env: &Env<'_>, _| {
            choose(&rules, ctx, env);
            Step::Next
        };
        Step::ReadBody { limit: FORM_LIMIT, then: Box::new(then) }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use sigma_schema::plugins::{PluginSchemas as _, PluginScope};

    use super::*;
    use crate::testing::{Case, entry, refusal};

    const INLINE: &str = "/apisix/routes/1#traffic-split/0.0";

    /// The upstreams of so many requests with this head, counted.
    fn counted(conf: &Value, head: &str, requests: usize) -> Vec<(String, usize)> {
        let entry = entry("traffic-split", conf.clone()).unwrap();
        let mut case = Case::new(head);
        let mut counts = std::collections::BTreeMap::<String, usize>::new();
        for _ in 0..requests {
            case.request(head);
            assert!(case.run(&entry, Phase::Access).is_none());
            let upstream = case.ctx.upstream.as_deref().unwrap_or("own");
            *counts.entry(upstream.to_owned()).or_default() += 1;
        }
        counts.into_iter().collect()
    }

    #[test]
    fn secrets_of_inline_upstreams_are_secret_fields() {
        let roster = crate::testing::roster();
        let fields = roster.secret_fields("traffic-split", PluginScope::Http);
        let of = |field: &str| format!("rules.weighted_upstreams.upstream.{field}");
        assert_eq!(fields.len(), 2, "{fields:?}");
        for field in ["session_affinity.secret", "tls.client_key"] {
            assert!(fields.contains(&of(field).as_str()), "{fields:?}");
        }
    }

    #[test]
    fn weights_are_exact_over_rounds() {
        fn check(weighted: Value, expected: &[(&str, usize)]) {
            let conf = json!({"rules": [{"weighted_upstreams": weighted}]});
            let expected: Vec<(String, usize)> =
                expected.iter().map(|(key, n)| ((*key).to_owned(), *n)).collect();
            assert_eq!(counted(&conf, "GET / HTTP/1.1\nHost: h\n", 100), expected, "{conf}");
        }
        let inline = json!({"nodes": {"127.0.0.1:1": 1}});
        check(json!([{"upstream": inline, "weight": 2}, {"weight": 3}]), &[(INLINE, 40), ("own", 60)]);
        check(json!([{"upstream_id": 7, "weight": 20}, {"weight": 30}]), &[("own", 60), ("upstreams/7", 40)]);
        check(json!([{"upstream_id": "a", "weight": 0}, {"weight": 1}]), &[("own", 100)]);
        check(json!([{"upstream_id": "a", "weight": 0}]), &[("upstreams/a", 100)]);
        check(json!([{"upstream_id": "a", "weight": 0}, {"weight": 0}]), &[("own", 50), ("upstreams/a", 50)]);
        check(
            json!([{"upstream_id": "a", "weight": 9}, {"weight": 1}, {"upstream_id": "a"}]),
            &[("own", 50), ("upstreams/a", 50)],
        );
        check(
            json!([{"weight": 5}, {"weight": 1}, {"upstream_id": "a", "weight": 1}]),
            &[("own", 50), ("upstreams/a", 50)],
        );
        check(json!([{"upstream_id": "both", "upstream": inline}]), &[("upstreams/both", 100)]);
    }

    #[test]
    fn the_first_rule_that_holds_decides() {
        let conf = json!({"rules": [
            {"match": [{"vars": [["arg_a", "==", "1"], ["http_x-b", "==", "2"]]}, {"vars": [["cookie_c", "==", "3"]]}],
                "weighted_upstreams": [{"upstream_id": "one"}]},
            {"match": [{"vars": [["post_arg_name", "==", "jack"]]}], "weighted_upstreams": [{"upstream_id": "two"}]},
            {"match": [{"vars": [["uri", "~~", "^/own"]]}]},
            {"match": [], "weighted_upstreams": [{"upstream_id": "rest"}]}
        ]});
        let check = |head: &str, body: &str, expected: &str| {
            let entry = entry("traffic-split", conf.clone()).unwrap();
            let mut case = Case::new(head);
            case.body = body.as_bytes().to_vec();
            assert!(case.run(&entry, Phase::Access).is_none());
            assert_eq!(case.ctx.upstream.as_deref().unwrap_or("own"), expected, "{head}");
        };
        check("GET /?a=1 HTTP/1.1\nHost: h\nX-B: 2\n", "", "upstreams/one");
        check("GET /?a=1 HTTP/1.1\nHost: h\n", "", "upstreams/rest");
        check("GET / HTTP/1.1\nHost: h\nCookie: c=3\n", "", "upstreams/one");
        check("GET /own HTTP/1.1\nHost: h\n", "", "own");
        let form =
            "POST / HTTP/1.1\nHost: h\nContent-Type: application/x-www-form-urlencoded; charset=utf-8\n";
        check(form, "x=y&name=jack", "upstreams/two");
        check(form, "name=rose", "upstreams/rest");
    }

    #[test]
    fn upstreams_inside_are_listed() {
        let conf = json!({"rules": [{}, {"weighted_upstreams": [{"upstream_id": 1, "upstream": {}}, {"upstream": {"nodes": {"a:1": 1}}}]}]});
        let expected = InlineUpstream { name: "1.1".to_owned(), upstream: json!({"nodes": {"a:1": 1}}) };
        assert_eq!(upstreams(&conf), [expected]);
    }

    #[test]
    fn configurations() {
        let check = |conf: Value, reason: &str| {
            let refused = refusal("traffic-split", &conf);
            assert!(
                refused == reason || !reason.is_empty() && refused.starts_with(reason),
                "{conf}: {refused}"
            );
        };
        check(json!({}), "");
        check(json!({"rules": []}), "");
        let vars = |vars: Value| json!({"rules": [{"match": [{"vars": vars}]}]});
        check(vars(json!([["a", "==", "b"]])), "");
        check(vars(json!([["a", "nonsense", "b"]])), "failed to validate the 'vars' expression: ");
        check(
            json!({"rules": [{"weighted_upstreams": [{"upstream": {"nodes": 5}}]}]}),
            "property \"rules\" validation failed: failed to validate item 1: property \"weighted_upstreams\" \
             validation failed: failed to validate item 1: property \"upstream\" validation failed: property \
             \"nodes\" validation failed: object matches none of the required",
        );
    }
}
