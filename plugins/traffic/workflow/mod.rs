//! `workflow`: one action for the requests of which a condition holds.

use std::sync::Arc;

use schemars::JsonSchema;
use serde::Deserialize;
use serde::de::{Deserializer, Error};
use serde_json::{Value, json};
use sigma_plugin::descriptor::Child;
use sigma_plugin::variable_fields::{VariableField, VariableForm};
use sigma_plugin::{
    Build, Configuration, Context, Descriptor, Entry, Env, Phase, PhaseSet, Plugin, ResponseStep, Step,
};
use sigma_schema::Problem;
use sigma_schema::described::schema_of;
use sigma_schema::expr::{Certainty, Expr};
use sigma_schema::problem::{element, member};
use sigma_schema::validation::Schema;

use sigma_plugin_kit::condition;

/// The plugin.
pub(crate) static WORKFLOW: Descriptor = Descriptor {
    name: "workflow",
    priority: 1006,
    example: include_str!("example.md"),
    phases: PhaseSet::of(&[Phase::Access, Phase::HeaderFilter, Phase::Log]),
    warnings: Some(|_, conf| idle_actions(conf)),
    variables: &[VariableField::guard("rules.*.case", VariableForm::Condition)],
    children: Some(children),
    build,
    ..Descriptor::of::<Config>()
};

/// The action that responds.
const RETURN: &str = "return";

/// The plugins that an action may be.
const PLUGINS: [&str; 2] = ["limit-count", "limit-conn"];

/// Refuses or limits requests that match a condition.
///
/// The rules are checked in order; only the first matching one applies. Its action is `return`, `limit-count` or
/// `limit-conn`, with the configuration of that plugin. Each rule has its own counters. A plugin that runs as an action
/// runs only once for a request, even if the route or a global rule has it too.
#[derive(Deserialize, JsonSchema)]
struct Config {
    /// Rules; the first matching one decides.
    rules: Vec<RuleConfig>,
}

#[derive(Deserialize, JsonSchema)]
struct RuleConfig {
    /// An expression on variables. Default: all requests.
    #[serde(default, deserialize_with = "case")]
    #[schemars(length(min = 1), extend("items" = {"anyOf": [{"type": "array"}, {"type": "string"}]}))]
    case: Option<Expr>,
    /// The action, as name and configuration: `[return, {code: 403}]`. Only the first action runs.
    #[schemars(length(min = 1), inner(length(min = 1)))]
    actions: Vec<Vec<Value>>,
}

/// The configuration of `return`. A status below 200 is not a final response.
#[derive(Deserialize, JsonSchema)]
#[schemars(deny_unknown_fields)]
struct Return {
    #[schemars(range(min = 200, max = 599))]
    code: u16,
}

/// A condition that cannot be read must not become one that holds always, or never.
fn case<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Expr>, D::Error> {
    let case = condition::read("case", deserializer)?;
    match case.needs_body() {
        Some(variable) => Err(D::Error::custom(format!(
            "failed to validate the 'case' expression: `{variable}` is read from the request body, which has not \
             arrived when this is decided"
        ))),
        None => Ok(Some(case)),
    }
}

/// The name of an action and its configuration.
fn parts(action: &[Value]) -> (&Value, Value) {
    let name = action.first().unwrap_or(&Value::Null);
    (name, action.get(1).cloned().unwrap_or_else(|| json!({})))
}

/// Returns the status of a `return`.
fn status(conf: &Value) -> Result<u16, String> {
    Schema::compile(&schema_of::<Return>())?.check(conf)?;
    Return::deserialize(conf).map(|told| told.code).map_err(|error| error.to_string())
}

impl Configuration for Config {
    fn check(&self) -> Result<(), String> {
        for (name, conf) in self.rules.iter().flat_map(|rule| &rule.actions).map(|action| parts(action)) {
            let told = match name.as_str() {
                Some(RETURN) => status(&conf).map(drop),
                Some("limit-count") if conf.get("group").is_some() => {
                    Err("group is not supported".to_owned())
                }
                Some(name) if PLUGINS.contains(&name) => Ok(()),
                Some(name) => return Err(format!("unsupported action: {name}")),
                None => return Err(format!("unsupported action: {name}")),
            };
            told.map_err(|reason| refused(name.as_str().unwrap_or_default()) + &reason)?;
        }
        Ok(())
    }
}

fn refused(name: &str) -> String {
    format!("failed to validate the '{name}' action: ")
}

fn list(value: Option<&Value>) -> &[Value] {
    value.and_then(Value::as_array).map_or(&[], Vec::as_slice)
}

/// All actions of a configuration as it is written, with their places.
fn actions(conf: &Value) -> impl Iterator<Item = (String, usize, &[Value])> {
    list(conf.get("rules")).iter().enumerate().flat_map(move |(rule, config)| {
        let place = member(&element("rules", rule), "actions");
        let actions = list(config.get("actions")).iter().enumerate();
        actions.filter_map(move |(at, action)| Some((element(&place, at), at, action.as_array()?.as_slice())))
    })
}

fn children(conf: &Value) -> Vec<Child> {
    let child = |(place, _, action): (String, usize, &[Value])| {
        let (name, conf) = parts(action);
        let name = name.as_str().filter(|name| PLUGINS.contains(name))?;
        Some(Child {
            name: name.to_owned(),
            conf,
            place: element(&place, 1),
            unknown: format!("unsupported action: {name}"),
            refused: refused(name),
            unauthenticating: None,
        })
    };
    actions(conf).filter_map(child).collect()
}

/// Actions that never run.
fn idle_actions(conf: &Value) -> Vec<Problem> {
    let told = |(place, ..): (String, usize, &[Value])| {
        Problem::new(place, "no_effect", "only the first action of a rule runs").hint("remove it")
    };
    actions(conf).filter(|(_, at, _)| *at > 0).map(told).collect()
}

fn build(build: &Build<'_>) -> Result<Arc<dyn Plugin>, String> {
    let Config { rules } = build.config()?;
    let rules = rules.into_iter().enumerate().map(|(at, rule)| Rule::new(build, at + 1, rule));
    Ok(Arc::new(Workflow { rules: rules.collect::<Result<_, _>>()? }))
}

struct Workflow {
    rules: Vec<Rule>,
}

struct Rule {
    case: Expr,
    action: Action,
}

enum Action {
    Return(u16),
    Run(Arc<Entry>),
}

impl Rule {
    /// Creates the rule with this number, which keeps its counters apart from other rules' counters.
    fn new(build: &Build<'_>, number: usize, config: RuleConfig) -> Result<Rule, String> {
        let (name, conf) = parts(config.actions.first().map_or(&[], Vec::as_slice));
        let action = match name.as_str() {
            Some(RETURN) => Action::Return(status(&conf)?),
            name => Action::Run(build.child(name.unwrap_or_default(), &conf, &number.to_string())?),
        };
        Ok(Rule { case: config.case.unwrap_or(Expr::ALWAYS), action })
    }
}

/// The plugin that runs for an exchange.
struct Running(Arc<Entry>);

impl Workflow {
    /// The first rule that applies. Where a repeated field, argument or cookie leaves several possible, one that
    /// refuses goes before the others.
    fn rule(&self, ctx: &Context) -> Option<&Rule> {
        let mut first = None;
        for rule in &self.rules {
            let certainty = rule.case.certainty(ctx);
            let refuses = matches!(rule.action, Action::Return(_));
            match certainty {
                Certainty::No => {}
                _ if refuses || (certainty == Certainty::Certain && first.is_none()) => return Some(rule),
                Certainty::Certain => break,
                Certainty::Possible => first = first.or(Some(rule)),
            }
        }
        first
    }

    fn running(&self, ctx: &mut Context) -> Option<Arc<Entry>> {
        ctx.kept::<_, Running>(self).map(|Running(entry)| Arc::clone(entry))
    }
}

impl Plugin for Workflow {
    fn access(&self, ctx: &mut Context, env: &Env<'_>) -> Step {
        let Some(rule) = self.rule(ctx) else { return Step::Next };
        match &rule.action {
            Action::Return(status) => Step::json(*status, &json!({"error_msg": "rejected by workflow"})),
            Action::Run(entry) => {
                // Before it begins: the slot that it takes up while it waits is given back in the log phase.
                ctx.keep(self, Running(Arc::clone(entry)));
                ctx.skip(entry.name());
                entry.plugin.access(ctx, env)
            }
        }
    }

    fn header_filter(&self, ctx: &mut Context, env: &Env<'_>) -> ResponseStep {
        match self.running(ctx) {
            Some(entry) => entry.plugin.header_filter(ctx, env),
            None => ResponseStep::Next,
        }
    }

    fn log(&self, ctx: &mut Context, env: &Env<'_>) {
        if let Some(entry) = self.running(ctx) {
            entry.plugin.log(ctx, env);
        }
    }
}

#[cfg(test)]
mod tests {
    use sigma_schema::plugins::PluginScope;

    use super::*;
    use crate::testing::{Case, entry, refusal, refusal_in, summary, warned};

    const HEAD: &str = "GET /a?x=1 HTTP/1.1\nHost: h\n";

    fn answer(case: &mut Case, entry: &Entry, head: &str) -> String {
        case.request(head);
        summary(case.run(entry, Phase::Access).as_ref())
    }

    #[test]
    fn the_first_rule_that_holds_decides() {
        let check = |rules: Value, expected: &str| {
            let entry = entry("workflow", json!({"rules": rules})).unwrap();
            assert_eq!(answer(&mut Case::new(HEAD), &entry, HEAD), expected, "{rules}");
        };
        let rejected = |code: u16| format!("{code} {{\"error_msg\":\"rejected by workflow\"}}");
        let code = |code: u16| json!([["return", {"code": code}]]);
        check(json!([]), "passed");
        check(json!([{"case": [["arg_x", "==", "2"]], "actions": code(403)}]), "passed");
        check(json!([{"actions": code(200)}]), &rejected(200));
        check(
            json!([
                {"case": [["arg_x", "==", "2"]], "actions": code(403)},
                {"case": ["OR", ["arg_x", "==", "2"], ["uri", "==", "/a"]], "actions": code(404)},
                {"actions": code(405)}
            ]),
            &rejected(404),
        );
        // A request that one rule lets pass is stopped by no other rule.
        let limit = json!(["limit-count", {"count": 1, "time_window": 9}]);
        check(json!([{"actions": [limit, ["return", {"code": 403}]]}, {"actions": code(403)}]), "passed");
    }

    #[test]
    fn repeated_arguments_pass_no_rule_that_refuses() {
        let check = |rules: Value, query: &str, expected: &str| {
            let entry = entry("workflow", json!({"rules": rules})).unwrap();
            let head = format!("GET /a?{query} HTTP/1.1\nHost: h\n");
            assert_eq!(answer(&mut Case::new(HEAD), &entry, &head), expected, "{rules} {query}");
        };
        let is = |role: &str| json!([["arg_role", "==", role]]);
        let refuse = json!([["return", {"code": 403}]]);
        let limit = json!([["limit-count", {"count": 1, "time_window": 9}]]);
        let rejected = "403 {\"error_msg\":\"rejected by workflow\"}";
        let rules =
            json!([{"case": is("staff"), "actions": limit}, {"case": is("guest"), "actions": refuse}]);
        check(rules.clone(), "role=staff", "passed");
        check(rules.clone(), "role=guest", rejected);
        check(rules.clone(), "role=x&role=guest", rejected);
        check(rules.clone(), "role=staff&role=guest", rejected);
        check(rules.clone(), "role=guest&role=staff", rejected);
        check(rules, "role=x&role=staff", "passed");
        check(json!([{"case": is("x"), "actions": limit}, {"actions": refuse}]), "role=x&role=y", rejected);
    }

    #[test]
    fn each_rule_counts_separately_and_replaces_the_plugin() {
        let conf = json!({"count": 1, "time_window": 1_000_000, "rejected_code": 429, "rejected_msg": "no"});
        let rule = |x: &str| json!({"case": [["arg_x", "==", x]], "actions": [["limit-count", conf]]});
        let flow = entry("workflow", json!({"rules": [rule("1"), rule("2")]})).unwrap();
        let direct = entry("limit-count", conf.clone()).unwrap();
        let other = entry("limit-req", json!({"rate": 1, "burst": 1, "key": "uri"})).unwrap();
        let mut case = Case::new(HEAD);
        let mut check = |head: &str, expected: &str, runs: bool| {
            assert_eq!(answer(&mut case, &flow, head), expected, "{head}");
            assert_eq!((case.ctx.admits(&direct), case.ctx.admits(&other)), (runs, true), "{head}");
            case.respond(200, "");
            case.header_filter(&flow);
            case.answered("x-ratelimit-remaining")
        };
        assert_eq!(check(HEAD, "passed", false), "0");
        assert_eq!(check(HEAD, "429 {\"error_msg\":\"no\"}", false), "0");
        assert_eq!(check("GET /a?x=2 HTTP/1.1\nHost: h", "passed", false), "0");
        assert_eq!(check("GET /a?x=3 HTTP/1.1\nHost: h", "passed", true), "");
    }

    #[test]
    fn places_are_given_back() {
        let conf = json!({"conn": 1, "burst": 0, "default_conn_delay": 0.1, "key": "uri"});
        let flow = entry("workflow", json!({"rules": [{"actions": [["limit-conn", conf]]}]})).unwrap();
        let (mut first, mut second) = (Case::new(HEAD), Case::new(HEAD));
        second.node = Arc::clone(&first.node);
        assert_eq!(answer(&mut first, &flow, HEAD), "passed");
        assert!(answer(&mut second, &flow, HEAD).starts_with("503"));
        second.log(&flow);
        assert!(answer(&mut second, &flow, HEAD).starts_with("503"), "that place was not taken");
        first.log(&flow);
        assert_eq!(answer(&mut second, &flow, HEAD), "passed");
    }

    #[test]
    fn configurations() {
        let check = |rule: Value, reason: &str| {
            let conf = json!({"rules": [rule]});
            assert_eq!(refusal("workflow", &conf), reason, "{conf}");
            assert_eq!(refusal_in("workflow", PluginScope::Consumer, &conf), reason, "of a consumer: {conf}");
        };
        let action = |name: &str, conf: Value| json!({"actions": [[name, conf]]});
        let case = |case: Value| json!({"case": case, "actions": [["return", {"code": 403}]]});
        check(action("return", json!({"code": 403})), "");
        check(action("limit-count", json!({"count": 1, "time_window": 9})), "");
        const RETURN: &str = "failed to validate the 'return' action: ";
        check(json!({"actions": [["return"]]}), &format!("{RETURN}property \"code\" is required"));
        check(
            action("return", json!({"code": 100})),
            &format!("{RETURN}property \"code\" validation failed: expected 100 to be at least 200"),
        );
        check(action("key-auth", json!({})), "unsupported action: key-auth");
        check(json!({"actions": [[7]]}), "unsupported action: 7");
        const COUNT: &str = "failed to validate the 'limit-count' action: ";
        let group = json!({"count": 1, "time_window": 9, "group": "g"});
        check(action("limit-count", group), &format!("{COUNT}group is not supported"));
        let filtered = json!({"count": 1, "time_window": 9, "_meta": {"disable": true}});
        check(
            action("limit-count", filtered),
            &format!("{COUNT}`_meta` has no effect inside another plugin; remove it"),
        );
        let unknown = json!({"count": 1, "time_window": 9, "key": "remote_adr"});
        check(
            action("limit-count", unknown),
            &format!("{COUNT}unknown variable `remote_adr`; did you mean `remote_addr`? (at key)"),
        );
        // Every action is checked, not only the one that runs.
        let second = json!({"actions": [["return", {"code": 403}], ["limit-conn", {}]]});
        assert!(refusal("workflow", &json!({"rules": [second]})).contains("'limit-conn' action: "));
        const CASE: &str = "failed to validate the 'case' expression: ";
        for wrong in
            [json!([["uri", "~~", "("]]), json!([["uri", "??", "a"]]), json!([["post_arg.a", "==", "1"]])]
        {
            let reason = refusal("workflow", &json!({"rules": [case(wrong.clone())]}));
            assert!(reason.starts_with(CASE), "{wrong}: {reason}");
        }
        assert!(refusal("workflow", &json!({"rules": [case(json!([["ur", "==", "/a"]]))]})).contains("`ur`"));
        for empty in [json!({}), json!({"actions": []}), json!({"actions": [[]]}), case(json!([]))] {
            assert_ne!(refusal("workflow", &json!({"rules": [empty]})), "", "{empty}");
        }
    }

    #[test]
    fn rules_that_never_apply_have_warnings() {
        let limit = json!(["limit-conn", {"conn": 1, "burst": 0, "default_conn_delay": 1, "key": "uri", "only_use_default_delay": false, "rejected_code": 429}]);
        let conf = json!({"rules": [{"actions": [limit, ["return", {"code": 403}]]}]});
        let places = warned("workflow", PluginScope::Http, &conf);
        assert_eq!(places, ["rules[0].actions[1]", "rules[0].actions[0][1].only_use_default_delay"]);
    }
}
