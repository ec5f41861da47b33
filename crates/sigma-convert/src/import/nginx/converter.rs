//! The converter: what all parts share while one configuration is read.

use std::collections::BTreeMap;
use std::rc::Rc;

use serde_json::{Map, Value};

use super::super::decision::{Decision, Plan, Target};
use super::super::report::{Report, Verdict};
use super::super::source::Files;
use super::access::GUARDS;
use super::level::Level;
use super::parse::Directive;
use super::state::State;
use super::texts::{self, Variables};
use super::upstreams::Group;

/// The state of a conversion.
pub(super) struct Converter<'a> {
    pub(super) access: &'a dyn Files,
    pub(super) base: String,
    pub(super) plan: Plan,
    pub(super) report: Report,
    pub(super) variables: Variables,
    pub(super) blocks: NamedBlocks<'a>,
    /// Ids of upstreams by their content.
    pub(super) upstream_ids: BTreeMap<String, String>,
    /// The body limit of all locations, if they have one and the same.
    pub(super) common_body_limit: Option<u64>,
    /// Whether there are more decisions than a configuration may have.
    pub(super) is_too_large: bool,
    /// Whether the file is one of `conf.d`, which the main file includes within `http`.
    pub(super) is_part: bool,
    /// Paths that lines of the file name as targets of internal requests.
    pub(super) internal_paths: Vec<String>,
    /// Named locations and error paths that are being followed.
    pub(super) depth: usize,
}

/// The blocks and directives that others refer to by name.
#[derive(Default)]
pub(super) struct NamedBlocks<'a> {
    /// Blocks `upstream` by name.
    pub(super) groups: BTreeMap<String, Group>,
    /// Zones of `limit_req` and `limit_conn`.
    pub(super) zones: BTreeMap<String, &'a Directive>,
    /// Paths of `proxy_cache_path` by zone.
    pub(super) caches: BTreeMap<String, &'a Directive>,
    /// Values of each map, if they are constants.
    pub(super) map_values: BTreeMap<String, Vec<String>>,
}

impl<'a> Converter<'a> {
    /// Adds a remark on a directive.
    pub(super) fn remark(&mut self, directive: &Directive, verdict: Verdict, text: impl Into<String>) {
        self.report.add(directive.place, &directive.source(), verdict, text);
    }

    /// Adds a remark on a directive that guards access.
    pub(super) fn guard(&mut self, directive: &Directive, verdict: Verdict, text: impl Into<String>) {
        self.report.add_guard(directive.place, &directive.source(), verdict, text);
    }

    /// Returns Sigma's text of a text with variables; unknown variables are empty and have a remark.
    pub(super) fn text(
        &mut self,
        directive: &Directive,
        source: &str,
        state: &State<'a>,
        level: &Level<'a>,
    ) -> String {
        let (text, unknown) = texts::text(&mut self.variables, source, state, level);
        for name in unknown {
            let is_environment =
                name.bytes().all(|byte| byte.is_ascii_uppercase() || byte.is_ascii_digit() || byte == b'_');
            let text = match is_environment {
                true => format!(
                    "${name} is not a variable of nginx: fill templates with `envsubst` before the import"
                ),
                false => format!("the variable ${name} has no counterpart and is empty"),
            };
            self.remark(directive, Verdict::NotPossible, text);
        }
        text
    }

    /// Adds a decision; the one of a closed server is closed.
    pub(super) fn emit(&mut self, state: &State<'a>, _level: &Level<'a>, mut decision: Decision) {
        if let Some(reason) = &state.server.closed {
            decision.target = Target::Closed(reason.clone());
        }
        let mut set = Map::new();
        for name in &self.variables.read_globally {
            if let Some(text) = state.variables.sets.get(name) {
                set.insert(name.clone(), text.clone().into());
            }
        }
        if !set.is_empty() {
            decision.fields.insert("set".to_owned(), Value::Object(set));
        }
        self.plan.decisions.push(decision);
    }

    /// Returns whether a level or one around it guards access.
    pub(super) fn has_guards(&self, level: &Rc<Level<'a>>) -> bool {
        GUARDS.iter().any(|name| level.last(name).is_some_and(|directive| directive.arg(0) != "off"))
            || level.directives.iter().any(|directive| {
                directive.name == "return" && matches!(directive.arg(0), "403" | "401" | "404" | "444")
            })
    }
}
