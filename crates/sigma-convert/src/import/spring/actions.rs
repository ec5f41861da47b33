//! The actions of a route's filters, gathered and written as plugins.

use serde_json::{Map, Value, json};

use super::rewriting::{self, Step};

/// The Host that the node gets.
#[derive(Debug, Clone, PartialEq, Eq, Default, Hash)]
pub(super) enum HostField {
    /// The node's own name.
    #[default]
    Node,
    /// The client's.
    Client,
    /// This one.
    Fixed(String),
}

/// A change of a header field.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Change {
    Add(String),
    Set(String),
    Remove,
}

/// Everything that the filters of a route do.
#[derive(Debug, Default)]
pub(super) struct Actions {
    pub steps: Vec<Step>,
    pub host: HostField,
    /// Changes of request fields, in order.
    pub request: Vec<(String, Change)>,
    /// Changes of response fields, in order.
    pub response: Vec<(String, Change)>,
    /// Further rules of query arguments.
    pub args: Map<String, Value>,
    pub status: Option<u16>,
    /// Status, target, and whether the query is appended.
    pub redirect: Option<(u16, String, bool)>,
    pub resilience: Resilience,
    pub cache: Option<Value>,
    /// Further plugins.
    pub plugins: Map<String, Value>,
    pub code: LuaCode,
    /// Variables with maps, by name.
    pub variables: Map<String, Value>,
    /// Why the route is closed.
    pub closed: Option<String>,
}

/// Retries and circuit breaker of a route.
#[derive(Debug, Default)]
pub(super) struct Resilience {
    pub retry: Option<Value>,
    pub retries: Option<u64>,
    pub breaker: Option<Value>,
    /// Seconds until the breaker's time limit.
    pub time_limit: Option<f64>,
}

/// Lua that does what no plugin does.
#[derive(Debug, Default)]
pub(super) struct LuaCode {
    /// Functions before the request is sent.
    pub request: Vec<String>,
    /// Statements on the fields of a node's response.
    pub response: Vec<String>,
    /// Functions on the fields of the gateway's own responses.
    pub own_responses: Vec<String>,
}

impl LuaCode {
    /// Adds the plugin that runs before the request is sent.
    fn before_request(&self, plugins: &mut Map<String, Value>) {
        if !self.request.is_empty() {
            plugins.insert(
                "serverless-pre-function".to_owned(),
                json!({"phase": "rewrite", "functions": self.request}),
            );
        }
    }

    /// Adds the plugin that changes the fields of responses.
    fn after_response(&self, plugins: &mut Map<String, Value>) {
        if !self.response.is_empty() {
            let mut functions: Vec<String> = self.response.iter().map(|code| function(code)).collect();
            functions.extend(self.own_responses.iter().cloned());
            plugins.insert(
                "serverless-post-function".to_owned(),
                json!({"phase": "header_filter", "functions": functions}),
            );
        }
    }
}

/// The condition for responses of nodes: Spring changes no others.
pub(super) fn of_node() -> Value {
    json!([["upstream_status", "~=", null]])
}

impl Actions {
    /// Closes the route; the first reason stays.
    pub(super) fn close(&mut self, reason: &str) {
        self.closed.get_or_insert_with(|| reason.to_owned());
    }

    /// Adds a member to a rule of query arguments.
    pub(super) fn arg(&mut self, rule: &str, name: &str, value: Value) {
        let rules = self.args.entry(rule.to_owned()).or_insert_with(|| json!({}));
        match rules {
            Value::Array(list) => list.push(value),
            rules => rules[name] = value,
        }
    }

    /// Adds the name of a query argument to remove.
    pub(super) fn remove_arg(&mut self, name: &str) {
        let list = self.args.entry("remove".to_owned()).or_insert_with(|| json!([]));
        if let Value::Array(list) = list {
            list.push(name.into());
        }
    }

    /// Writes the plugins. `id` distinguishes the route's variables.
    pub(super) fn plugins(&mut self, id: &str) -> Map<String, Value> {
        let mut plugins = std::mem::take(&mut self.plugins);
        match rewriting::joined(&self.steps) {
            Err(reason) => self.close(&reason),
            Ok(rewriting) => {
                if let Some(regex) = rewriting.prefix {
                    let name = format!("prefix_{id}");
                    let map =
                        json!({"map": "$uri", "regex": [{"match": regex, "value": "$1"}], "default": ""});
                    self.variables.insert(name.clone(), map);
                    self.request
                        .push(("X-Forwarded-Prefix".to_owned(), Change::Set(format!("${{var_{name}}}"))));
                }
                self.proxy_rewrite(rewriting.fields, &mut plugins);
            }
        }
        self.code.before_request(&mut plugins);
        if let Some((status, target, appends)) = &self.redirect {
            plugins.insert(
                "redirect".to_owned(),
                json!({"ret_code": status, "uri": target, "append_query_string": appends}),
            );
            // The response does not come from a node: filters of responses have no effect on it.
            return plugins;
        }
        self.response_rewrite(&mut plugins);
        self.code.after_response(&mut plugins);
        plugins
    }

    fn proxy_rewrite(&self, mut fields: Map<String, Value>, plugins: &mut Map<String, Value>) {
        let headers = rules(&self.request, false);
        if !headers.is_empty() {
            fields.insert("headers".to_owned(), Value::Object(headers));
        }
        if !self.args.is_empty() {
            fields.insert("args".to_owned(), Value::Object(self.args.clone()));
        }
        if !fields.is_empty() {
            plugins.insert("proxy-rewrite".to_owned(), Value::Object(fields));
        }
    }

    fn response_rewrite(&self, plugins: &mut Map<String, Value>) {
        let mut fields = Map::new();
        let headers = rules(&self.response, true);
        if !headers.is_empty() {
            fields.insert("headers".to_owned(), Value::Object(headers));
        }
        if let Some(status) = self.status {
            fields.insert("status_code".to_owned(), status.into());
        }
        if !fields.is_empty() {
            fields.insert("vars".to_owned(), of_node());
            plugins.insert("response-rewrite".to_owned(), Value::Object(fields));
        }
    }
}

/// The three lists of field rules: the last state of each field counts. `lines`: fields to add are `Name: value`.
fn rules(changes: &[(String, Change)], lines: bool) -> Map<String, Value> {
    let mut fields: Vec<(&str, Vec<&str>, Option<&str>, bool)> = Vec::new();
    for (name, change) in changes {
        let at = fields.iter().position(|field| field.0.eq_ignore_ascii_case(name)).unwrap_or_else(|| {
            fields.push((name, Vec::new(), None, false));
            fields.len() - 1
        });
        let (_, added, set, removed) = &mut fields[at];
        match change {
            Change::Add(value) => added.push(value),
            Change::Set(value) => {
                added.clear();
                *set = Some(value.as_str());
                *removed = false;
            }
            Change::Remove => {
                added.clear();
                *set = None;
                *removed = true;
            }
        }
    }
    let (mut add, mut add_lines, mut set_fields, mut remove) =
        (Map::new(), Vec::new(), Map::new(), Vec::new());
    for (name, added, set, removed) in fields {
        let mut values: Vec<&str> = set.into_iter().collect();
        if set.is_some() || removed {
            values.extend(&added);
            match &values[..] {
                [] => remove.push(name),
                [value] => drop(set_fields.insert(name.to_owned(), (*value).into())),
                // A list is for requests only; responses get one line.
                values if lines => drop(set_fields.insert(name.to_owned(), values.join(", ").into())),
                values => drop(set_fields.insert(name.to_owned(), json!(values))),
            }
        } else if lines {
            add_lines.extend(added.iter().map(|value| Value::from(format!("{name}: {value}"))));
        } else {
            let value = if let [value] = &added[..] { json!(value) } else { json!(added) };
            add.insert(name.to_owned(), value);
        }
    }
    let mut rules = Map::new();
    if !add.is_empty() {
        rules.insert("add".to_owned(), Value::Object(add));
    }
    if !add_lines.is_empty() {
        rules.insert("add".to_owned(), Value::Array(add_lines));
    }
    if !set_fields.is_empty() {
        rules.insert("set".to_owned(), Value::Object(set_fields));
    }
    if !remove.is_empty() {
        rules.insert("remove".to_owned(), json!(remove));
    }
    rules
}

/// A function of Lua that runs for responses of nodes.
fn function(code: &str) -> String {
    format!("return function(conf, ctx)\n  if not ngx.var.upstream_status then return end\n{code}end\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_of_fields_become_rules() {
        let change = |name: &str, change: Change| (name.to_owned(), change);
        let changes = [
            change("X-A", Change::Add("1".to_owned())),
            change("X-B", Change::Add("1".to_owned())),
            change("x-b", Change::Set("2".to_owned())),
            change("X-C", Change::Set("3".to_owned())),
            change("X-C", Change::Remove),
            change("X-D", Change::Remove),
            change("X-D", Change::Add("4".to_owned())),
        ];
        assert_eq!(
            Value::Object(rules(&changes, false)),
            json!({"add": {"X-A": "1"}, "set": {"X-B": "2", "X-D": "4"}, "remove": ["X-C"]})
        );
        assert_eq!(rules(&changes, true)["add"], json!(["X-A: 1"]));
    }
}
