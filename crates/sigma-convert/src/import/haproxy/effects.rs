//! Effects of rules on requests that continue, and the plugins for them.

use serde_json::{Map, Value, json};

use super::expr::Expr;
use super::format::Text;
use super::lua;

/// The variable for the maker of a response: rules of responses skip HAProxy's own errors.
const SOURCE: &str = "response_source";

/// The priority of functions that respond: before the plugin respond, after all guards.
const REPLY_PRIORITY: i32 = 491;

/// A change of a header field under a condition.
#[derive(Debug, Clone)]
pub(super) struct FieldRule {
    pub condition: Expr,
    pub name: String,
    pub change: Change,
}

/// The change of a field.
#[derive(Debug, Clone)]
pub(super) enum Change {
    Set(Text),
    Add(Text),
    Delete,
    /// Replaces values: the regular expression, the replacement, and whether each value of a list counts.
    Replace {
        regex: String,
        by: String,
        each: bool,
    },
    /// Another statement of Lua.
    Statement(String),
}

/// A change of the path or query.
#[derive(Debug, Clone)]
pub(super) struct PathRule {
    pub condition: Expr,
    /// The paths that it changes; None: all of them.
    pub changed: Option<Expr>,
    /// Fields of proxy-rewrite.
    pub fields: Map<String, Value>,
}

/// A limit on the rate or number of requests of a key.
#[derive(Debug, Clone)]
pub(super) struct Limit {
    pub condition: Expr,
    /// Name and fields of the plugin.
    pub plugin: &'static str,
    pub fields: Map<String, Value>,
}

/// A login.
#[derive(Debug, Clone)]
pub(super) struct Auth {
    pub condition: Expr,
    pub fields: Map<String, Value>,
}

/// The effects of all rules so far.
#[derive(Debug, Clone, Default)]
pub(super) struct Effects {
    pub request: Vec<FieldRule>,
    pub response: Vec<FieldRule>,
    pub paths: Vec<PathRule>,
    pub limits: Vec<Limit>,
    pub auth: Option<Auth>,
    pub plugins: Map<String, Value>,
    pub fields: Map<String, Value>,
    /// Statuses of limits, with the media type of their bodies.
    pub refusals: Vec<(u16, String)>,
    /// Conditions under which no further rule runs.
    pub skipped: Vec<Expr>,
    /// Why everything after is closed.
    pub closed: Option<String>,
    /// The statements of Lua that make the response of a decision.
    pub reply: Option<String>,
}

impl Effects {
    /// The condition of a rule: its own, and no `allow` before.
    pub(super) fn guarded(&self, condition: Expr) -> Expr {
        let mut list = vec![condition];
        list.extend(self.skipped.iter().cloned().map(Expr::not));
        Expr::all(list)
    }

    /// The condition for requests whose path a rule changes.
    pub(super) fn changed_paths(&self) -> Expr {
        let changed = self.paths.iter().map(|rule| {
            let mut list = vec![rule.condition.clone()];
            list.extend(rule.changed.clone());
            Expr::all(list)
        });
        Expr::any(changed.collect())
    }

    /// Writes the plugins of a decision; `paths` are the rules that apply to it.
    ///
    /// # Errors
    /// Returns the reason if guards cannot be joined.
    pub(super) fn plugins(
        &self,
        paths: &[Map<String, Value>],
        is_proxied: bool,
    ) -> Result<Map<String, Value>, String> {
        let mut plugins = self.plugins.clone();
        for limit in &self.limits {
            let mut fields = limit.fields.clone();
            filter(&mut fields, &limit.condition)?;
            if plugins.insert(limit.plugin.to_owned(), Value::Object(fields)).is_some() {
                return Err(
                    "A route cannot have two limits of the same kind: the route returns 503.".to_owned()
                );
            }
        }
        if let Some(auth) = &self.auth {
            let mut fields = auth.fields.clone();
            filter(&mut fields, &auth.condition)?;
            plugins.insert("basic-auth".to_owned(), Value::Object(fields));
        }
        if !is_proxied {
            if let Some(code) = &self.reply {
                // It runs before `respond`, and after all guards.
                let function = json!({"phase": "access", "functions": [lua::function(code)]});
                plugins.insert("serverless-pre-function".to_owned(), function);
                plugins["serverless-pre-function"]["_meta"] = json!({"priority": REPLY_PRIORITY});
            }
            return Ok(plugins);
        }
        let mut rewrite = Map::new();
        for fields in paths {
            join_paths(&mut rewrite, fields);
        }
        let (plain, computed): (Vec<FieldRule>, Vec<FieldRule>) = match native(&self.request) {
            Some(_) => (self.request.clone(), Vec::new()),
            None => self.request.iter().cloned().partition(|rule| self.is_alone(rule)),
        };
        if let Some(mut rules) = native(&plain).filter(|rules| !rules.is_empty()) {
            if rules.values().any(|map| map.to_string().contains('$')) {
                rules.insert("keep_empty".to_owned(), true.into());
            }
            rewrite.insert("headers".to_owned(), Value::Object(rules));
        }
        if !computed.is_empty() {
            let code = code(&computed, "request");
            let fields = json!({"phase": "rewrite", "functions": [lua::function(&code)]});
            plugins.insert("serverless-pre-function".to_owned(), fields);
        }
        if !rewrite.is_empty() {
            plugins.insert("proxy-rewrite".to_owned(), Value::Object(rewrite));
        }
        self.response_plugins(&mut plugins);
        Ok(plugins)
    }

    /// Whether a plain rule for a request field has nothing to do with the other rules.
    fn is_alone(&self, rule: &FieldRule) -> bool {
        let reads_fields = matches!(&rule.change, Change::Set(Text { template: Some(text), .. })
            | Change::Add(Text { template: Some(text), .. }) if text.contains("http_"));
        let same = self.request.iter().filter(|other| other.name.eq_ignore_ascii_case(&rule.name));
        !reads_fields && same.count() == 1 && native(std::slice::from_ref(rule)).is_some()
    }

    fn response_plugins(&self, plugins: &mut Map<String, Value>) {
        match native_response(&self.response).filter(|_| self.refusals.is_empty()) {
            Some(rules) if !rules.is_empty() => {
                let fields = json!({"headers": rules, "vars": [[SOURCE, "==", "upstream"]]});
                plugins.insert("response-rewrite".to_owned(), fields);
            }
            Some(_) => {}
            None => {
                let refusal = |(status, kind): &(u16, String)| {
                    let kind = lua::text(kind);
                    format!("    if ngx.status == {status} then ngx.header[\"Content-Type\"] = {kind} end\n")
                };
                let refusals: String = self.refusals.iter().map(refusal).collect();
                let code = format!(
                    "  if ngx.var.{SOURCE} ~= \"upstream\" then\n{refusals}    return\n  end\n{}",
                    code(&self.response, "response")
                );
                let fields = json!({"phase": "header_filter", "functions": [lua::function(&code)]});
                plugins.insert("serverless-post-function".to_owned(), fields);
            }
        }
    }
}

/// Adds a change of the path. The first pattern that matches counts.
fn join_paths(rewrite: &mut Map<String, Value>, fields: &Map<String, Value>) {
    for (name, value) in fields {
        if let ("regex_uri", Value::Array(pairs)) = (name.as_str(), value)
            && let Some(Value::Array(known)) = rewrite.get_mut(name)
        {
            known.extend(pairs.clone());
            continue;
        }
        rewrite.insert(name.clone(), value.clone());
    }
}

/// Whether two changes of the path have their effect on one request both.
pub(super) fn join(one: &Map<String, Value>, other: &Map<String, Value>) -> bool {
    let is_path =
        |fields: &Map<String, Value>| fields.contains_key("uri") || fields.contains_key("regex_uri");
    let is_regex = |fields: &Map<String, Value>| fields.contains_key("regex_uri");
    !(is_path(one) && is_path(other)) || is_regex(one) && is_regex(other)
}

/// Inserts a condition as the filter of a plugin.
fn filter(fields: &mut Map<String, Value>, condition: &Expr) -> Result<(), String> {
    if *condition == Expr::True {
        return Ok(());
    }
    let vars =
        condition.vars().ok_or("The condition of a guard has no counterpart: the route returns 503.")?;
    let meta = fields.entry("_meta".to_owned()).or_insert_with(|| json!({}));
    meta["filter"] = json!([vars]);
    Ok(())
}

/// Rules of the plugin proxy-rewrite, if all changes are plain ones.
fn native(rules: &[FieldRule]) -> Option<Map<String, Value>> {
    let (mut add, mut set, mut remove) = (Map::new(), Map::new(), Vec::new());
    for rule in rules {
        if rule.condition != Expr::True {
            return None;
        }
        let is_known = |map: &Map<String, Value>| map.keys().any(|key| key.eq_ignore_ascii_case(&rule.name));
        let is_removed = remove.iter().any(|name: &String| name.eq_ignore_ascii_case(&rule.name));
        if is_known(&add) || is_known(&set) || is_removed {
            return None;
        }
        match &rule.change {
            Change::Set(text) => drop(set.insert(rule.name.clone(), text.template.clone()?.into())),
            Change::Add(text) => drop(add.insert(rule.name.clone(), text.template.clone()?.into())),
            Change::Delete => remove.push(rule.name.clone()),
            Change::Replace { .. } | Change::Statement(_) => return None,
        }
    }
    let mut out = Map::new();
    for (name, map) in [("add", add), ("set", set)] {
        if !map.is_empty() {
            out.insert(name.to_owned(), Value::Object(map));
        }
    }
    if !remove.is_empty() {
        out.insert("remove".to_owned(), json!(remove));
    }
    Some(out)
}

/// Rules of the plugin response-rewrite, if all changes are plain ones.
fn native_response(rules: &[FieldRule]) -> Option<Map<String, Value>> {
    let mut out = native(rules)?;
    if let Some(Value::Object(add)) = out.remove("add") {
        let mut lines = Vec::new();
        for (name, value) in add {
            let text = value.as_str()?;
            if text.contains(':') || text.ends_with('/') || text.is_empty() {
                return None;
            }
            lines.push(format!("{name}: {text}"));
        }
        out.insert("add".to_owned(), json!(lines));
    }
    Some(out)
}

/// The rules as statements of Lua, in order.
fn code(rules: &[FieldRule], side: &str) -> String {
    let mut out = String::new();
    let is_request = side == "request";
    for rule in rules {
        let name = lua::text(&rule.name);
        let (get, set) = match is_request {
            true => (format!("ngx.req.get_headers()[{name}]"), format!("ngx.req.set_header({name}, VALUE)")),
            false => (format!("ngx.header[{name}]"), format!("ngx.header[{name}] = VALUE")),
        };
        let statement = match &rule.change {
            Change::Statement(statement) => statement.clone(),
            Change::Set(text) => set.replace("VALUE", &text.lua),
            Change::Delete if is_request => format!("ngx.req.clear_header({name})"),
            Change::Delete => set.replace("VALUE", "nil"),
            Change::Add(text) => format!(
                "do local old = {get}
    if type(old) ~= \"table\" then old = {{ old }} end
    old[#old + 1] = {}
    {} end",
                text.lua,
                set.replace("VALUE", "old")
            ),
            Change::Replace { regex, by, each } => {
                let replaced = replaced(regex, by, *each);
                format!(
                    "do local old = {get}
    if old then
      if type(old) ~= \"table\" then old = {{ old }} end
      for at, value in ipairs(old) do old[at] = {replaced} end
      {}
    end end",
                    set.replace("VALUE", "old")
                )
            }
        };
        match &rule.condition {
            Expr::True => out.push_str(&format!("  {statement}\n")),
            condition => out.push_str(&format!("  if {} then\n    {statement}\n  end\n", condition.lua())),
        }
    }
    out
}

/// The new value of `value`: each value of a list by itself, or the field as a whole.
fn replaced(regex: &str, by: &str, each: bool) -> String {
    let (regex, by) = (lua::text(&whole(regex)), lua::text(by));
    if !each {
        return format!("ngx.re.sub(value, {regex}, {by}, \"jo\") or value");
    }
    format!(
        "string.gsub(value, \"[^,]+\", function(part)
        local found, count = ngx.re.sub(string.match(part, \"^%s*(.-)%s*$\"), {regex}, {by}, \"jo\")
        return count == 1 and found or part
      end)"
    )
}

/// A regular expression whose match is the whole value, because the whole value is replaced.
fn whole(regex: &str) -> String {
    let start = if regex.starts_with('^') { "" } else { "^.*?" };
    let end = if regex.ends_with('$') { "" } else { ".*$" };
    format!("{start}(?:{regex}){end}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(value: &str) -> Text {
        super::super::format::read(value, &super::super::sample::Variables::new()).expect(value)
    }

    #[test]
    fn plain_changes_become_rules_and_others_lua() {
        let rule =
            |name: &str, change: Change| FieldRule { condition: Expr::True, name: name.to_owned(), change };
        let mut effects = Effects::default();
        effects.request.push(rule("X-A", Change::Set(text("%[src]"))));
        effects.request.push(rule("X-B", Change::Delete));
        let plugins = effects.plugins(&[], true).expect("plugins");
        assert_eq!(
            plugins["proxy-rewrite"],
            json!({"headers": {"set": {"X-A": "${remote_addr}"}, "remove": ["X-B"], "keep_empty": true}})
        );
        effects.request.push(rule("X-A", Change::Add(text("b"))));
        let plugins = effects.plugins(&[], true).expect("plugins");
        assert_eq!(plugins["proxy-rewrite"], json!({"headers": {"remove": ["X-B"]}}));
        let code = plugins["serverless-pre-function"]["functions"][0].as_str().expect("code");
        assert!(code.contains("ngx.req.set_header(\"X-A\", (ngx.var.remote_addr or \"\"))"), "{code}");
        assert!(!code.contains("X-B"), "{code}");
    }
}
