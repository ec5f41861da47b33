//! Fields of requests and responses.

use serde_json::{Map, Value, json};

use super::super::report::Verdict;
use super::converter::Converter;
use super::level::{Level, milliseconds};
use super::parse::Directive;
use super::state::State;

/// Statuses on which `add_header` and `expires` act without `always`.
const STATUSES: [u16; 10] = [200, 201, 204, 206, 301, 302, 303, 304, 307, 308];

/// Fields of a response, in the order of their addition.
#[derive(Default)]
struct Added {
    /// With its status condition: true for `always`.
    fields: Vec<(String, String, bool)>,
}

impl Added {
    /// Joins the values of fields of which a response has one line.
    fn merge(&mut self) {
        let mut merged: Vec<(String, String, bool)> = Vec::new();
        for (name, value, is_always) in self.fields.drain(..) {
            let known = merged.iter_mut().find(|known| {
                is_single(&name) && known.0.eq_ignore_ascii_case(&name) && known.2 == is_always
            });
            match known {
                Some(known) => known.1 = format!("{}, {value}", known.1),
                None => merged.push((name, value, is_always)),
            }
        }
        self.fields = merged;
    }
}

impl<'a> Converter<'a> {
    /// Returns the configuration of response-rewrite for a level; `hidden` are fields of nodes that clients do not get.
    pub(super) fn response_fields(
        &mut self,
        level: &Level<'a>,
        state: &State<'a>,
        hidden: &[String],
    ) -> Map<String, Value> {
        let mut added = Added::default();
        if !state.is_error {
            self.expires(level, &mut added);
        }
        if level.last("limit_req").is_some() {
            // Refusals of nginx lack this field; a node's own stays.
            let own = json!({"match": ".", "value": "${upstream_http_retry_after}"});
            let map = json!({"map": "${upstream_status}", "regex": [own], "default": ""});
            let value = self.variables.made('r', map);
            added.fields.push(("Retry-After".to_owned(), value, true));
        }
        for directive in level.all(&["add_header"]) {
            let is_always = directive.args.iter().skip(2).any(|arg| arg == "always");
            let value = self.text(directive, directive.arg(1), state, level);
            if !value.is_empty() && (is_always || !state.is_error) {
                added.fields.push((directive.arg(0).to_owned(), value, is_always));
            }
        }
        added.merge();
        let mut hidden = hidden.to_vec();
        if state.is_error {
            hidden.extend(["Last-Modified", "ETag"].map(str::to_owned));
        }
        let is_hidden = |name: &str| hidden.iter().any(|known| known.eq_ignore_ascii_case(name));
        let mut config = Map::new();
        let mut headers = Map::new();
        let (mut add, mut set) = (Vec::new(), Map::new());
        for (name, value, is_always) in added.fields {
            let value = if is_always { value } else { self.by_status(&value) };
            if is_single(&name) || is_hidden(&name) {
                let list = set.entry(name).or_insert_with(|| json!([]));
                if let Value::Array(list) = list {
                    list.push(value.into());
                }
            } else {
                add.push(format!("{name}: {value}"));
            }
        }
        // Several values of one field are one line.
        for value in set.values_mut() {
            let values = value.as_array().into_iter().flatten().filter_map(Value::as_str);
            *value = values.collect::<Vec<_>>().join(", ").into();
        }
        if !add.is_empty() {
            headers.insert("add".to_owned(), json!(add));
        }
        if !set.is_empty() {
            headers.insert("set".to_owned(), Value::Object(set));
        }
        // A field that is set replaces the node's.
        let is_set = |name: &str| {
            let set = headers.get("set").and_then(Value::as_object);
            set.is_some_and(|set| set.keys().any(|known| known.eq_ignore_ascii_case(name)))
        };
        let removed: Vec<&String> = hidden.iter().filter(|name| !is_set(name)).collect();
        if !removed.is_empty() {
            headers.insert("remove".to_owned(), json!(removed));
        }
        if !headers.is_empty() {
            config.insert("headers".to_owned(), Value::Object(headers));
        }
        config
    }

    /// Adds the fields of files to the fields of the upstream's responses: each has its own.
    pub(super) fn beside(&mut self, files: Map<String, Value>, rewrite: &mut Map<String, Value>) {
        let part =
            |from: &Map<String, Value>, name: &str| from.get("headers").and_then(|it| it.get(name)).cloned();
        let lines = |from: &Map<String, Value>| -> Vec<String> {
            let list = part(from, "add").and_then(|list| list.as_array().cloned()).unwrap_or_default();
            list.iter().filter_map(|line| line.as_str().map(str::to_owned)).collect()
        };
        let set = |from: &Map<String, Value>| {
            part(from, "set").and_then(|set| set.as_object().cloned()).unwrap_or_default()
        };
        let (own_lines, other_lines) = (lines(&files), lines(rewrite));
        let mut add = Vec::new();
        for line in own_lines.iter().chain(&other_lines) {
            let Some((name, value)) = line.split_once(": ") else { continue };
            let (is_own, is_other) = (own_lines.contains(line), other_lines.contains(line));
            let (of_file, of_node) = (if is_own { value } else { "" }, if is_other { value } else { "" });
            let line = format!("{name}: {}", self.by_source(of_file, of_node));
            if !add.contains(&line) {
                add.push(line);
            }
        }
        let (own_set, other_set) = (set(&files), set(rewrite));
        let mut all = Map::new();
        for name in own_set.keys().chain(other_set.keys()) {
            let text = |from: &Map<String, Value>| {
                from.get(name).and_then(Value::as_str).unwrap_or_default().to_owned()
            };
            let (of_file, mut of_node) = (text(&own_set), text(&other_set));
            if !other_set.contains_key(name) {
                // The node's own field stays.
                of_node = format!("${{upstream_http_{}}}", name.to_ascii_lowercase().replace('-', "_"));
            }
            all.insert(name.clone(), self.by_source(&of_file, &of_node).into());
        }
        let headers = rewrite.entry("headers").or_insert_with(|| json!({}));
        if !add.is_empty() {
            headers["add"] = json!(add);
        }
        if !all.is_empty() {
            headers["set"] = Value::Object(all);
        }
        if headers.as_object().is_some_and(Map::is_empty) {
            rewrite.remove("headers");
        }
    }

    /// A value of files, and another one of responses of the upstream.
    fn by_source(&mut self, of_file: &str, of_node: &str) -> String {
        if of_file == of_node {
            return of_file.to_owned();
        }
        let node = json!({"match": ".", "value": of_node});
        self.variables.made('u', json!({"map": "${upstream_status}", "regex": [node], "default": of_file}))
    }

    /// A value that is empty for statuses of errors.
    fn by_status(&mut self, value: &str) -> String {
        let codes: Vec<String> = STATUSES.iter().map(u16::to_string).collect();
        let pattern = format!("^(?:{})$", codes.join("|"));
        let map = json!({"map": "${status}", "regex": [{"match": pattern, "value": value}], "default": ""});
        self.variables.made('h', map)
    }

    /// `expires` as `Cache-Control`; `Expires` itself says the same to older caches.
    fn expires(&mut self, level: &Level<'a>, added: &mut Added) {
        let Some(directive) = level.last("expires") else { return };
        let arg = directive.args.last().map_or("", String::as_str);
        if let Some(name) = arg.strip_prefix('$').filter(|_| directive.args.len() == 1) {
            return self.mapped_expires(directive, name, added);
        }
        if directive.args.len() > 1 || arg.starts_with('@') {
            let text = format!("`{arg}` depends on the file or the clock; write `cache_control` by hand");
            return self.remark(directive, Verdict::NotPossible, text);
        }
        let Some(control) = cache_control(arg) else { return };
        added.fields.push(("Cache-Control".to_owned(), control, false));
    }

    /// `expires` of a map with constant values.
    fn mapped_expires(&mut self, directive: &Directive, name: &str, added: &mut Added) {
        let Some(values) = self.blocks.map_values.get(name) else {
            let text = format!("${name} has no constant values; write `Cache-Control` by hand");
            return self.remark(directive, Verdict::NotPossible, text);
        };
        let exact: Map<String, Value> =
            values.iter().filter_map(|value| Some((value.clone(), cache_control(value)?.into()))).collect();
        let map = json!({"map": format!("${{var_{name}}}"), "exact": exact, "default": ""});
        let text = self.variables.made('e', map);
        added.fields.push(("Cache-Control".to_owned(), text, false));
    }

    /// Returns the function that sets `Expires`, whose value is a time from now.
    pub(super) fn expires_function(
        &self,
        level: &Level<'a>,
        has_other_route: bool,
        is_of_files: bool,
    ) -> Option<String> {
        let directive = level.last("expires").filter(|directive| directive.args.len() == 1)?;
        let codes: Vec<String> = STATUSES.iter().map(|code| format!("[{code}] = true")).collect();
        let statuses = format!("local statuses = {{ {} }}\n", codes.join(", "));
        let skipped = match has_other_route {
            true => "  if ctx.var.other_route == \"1\" then return end\n",
            false if is_of_files => "  if ctx.var.upstream_status then return end\n",
            false => "",
        };
        if let Some(name) = directive.arg(0).strip_prefix('$') {
            let values = self.blocks.map_values.get(name)?;
            let mut cases: Vec<String> = values
                .iter()
                .filter_map(|value| {
                    let text = expires_text(value)?;
                    Some(format!("  if value == \"{value}\" then ngx.header[\"Expires\"] = {text} end\n"))
                })
                .collect();
            cases.dedup();
            let cases = cases.concat();
            return Some(format!(
                "{statuses}return function(conf, ctx)\n{skipped}  if not statuses[ngx.status] then return end\n  \
                 local value = ctx.var.var_{name}\n{cases}end\n"
            ));
        }
        let value = expires_text(directive.arg(0))?;
        Some(format!(
            "{statuses}return function(conf, ctx)\n{skipped}  if statuses[ngx.status] then ngx.header[\"Expires\"] = {value} end\nend\n"
        ))
    }

    /// Returns the rules for the fields of requests to nodes, and whether upgrades are allowed.
    pub(super) fn request_fields(
        &mut self,
        level: &Level<'a>,
        state: &State<'a>,
        family: &str,
        host: &str,
    ) -> (Map<String, Value>, bool) {
        let mut set = Map::new();
        let (mut is_upgrade, mut has_host, mut own_host) = (false, false, None);
        let name = format!("{family}_set_header");
        for directive in level.all(&[name.as_str()]) {
            let (name, source) = (directive.arg(0), directive.arg(1));
            let value = self.text(directive, source, state, level);
            match name.to_ascii_lowercase().as_str() {
                "host" => {
                    has_host = true;
                    own_host = match value.as_str() {
                        "${http_host}" => None,
                        _ if source == "$proxy_host" => Some(host.to_owned()),
                        _ => Some(value),
                    };
                }
                "upgrade" => is_upgrade |= !value.is_empty(),
                // The gateway appends the client's address itself.
                "x-forwarded-for" if value == "${proxy_add_x_forwarded_for}" => {}
                "x-forwarded-for" if value == "${remote_addr}" => {
                    set.insert("X-Forwarded-For".to_owned(), "".into());
                }
                "connection" | "content-length" | "transfer-encoding" | "te" | "keep-alive" => {}
                _ => self.request_field(directive, value, level, state, &mut set),
            }
        }
        if !has_host {
            // nginx names a socket so.
            own_host = Some(if host.starts_with("unix:") { "localhost" } else { host }.to_owned());
        }
        // The last field: values of others may name the client's.
        if let Some(host) = own_host {
            set.insert("Host".to_owned(), host.into());
        }
        (set, is_upgrade)
    }

    fn request_field(
        &mut self,
        directive: &Directive,
        value: String,
        level: &Level<'a>,
        state: &State<'a>,
        set: &mut Map<String, Value>,
    ) {
        // A value of the service of authorization is set after its call, which gets the client's own.
        let answer =
            directive.arg(1).strip_prefix('$').filter(|name| self.variables.answers.contains_key(*name));
        let is_answer = answer.is_some();
        // Requests that need no service have an empty value: the client's own never passes.
        let is_exempt = answer.is_some_and(|name| state.variables.sets.contains_key(name));
        let is_called = level.last("auth_request").is_some_and(|service| service.arg(0) != "off");
        if is_answer && is_called && !is_exempt {
            return;
        }
        let value = if is_answer { String::new() } else { value };
        set.insert(directive.arg(0).to_owned(), value.into());
    }
}

/// The value of `Expires` of a time of `expires`, as an expression of Lua.
fn expires_text(time: &str) -> Option<String> {
    Some(match time {
        "off" => return None,
        "epoch" => "\"Thu, 01 Jan 1970 00:00:01 GMT\"".to_owned(),
        "max" => "\"Thu, 31 Dec 2037 23:55:55 GMT\"".to_owned(),
        time => {
            let (sign, time) = match time.strip_prefix('-') {
                Some(time) => ("-", time),
                None => ("+", time.trim_start_matches('+')),
            };
            format!("ngx.http_time(ngx.time() {sign} {})", milliseconds(time)? / 1000)
        }
    })
}

/// The value of `Cache-Control` of a time of `expires`.
fn cache_control(time: &str) -> Option<String> {
    match time {
        "off" => None,
        "epoch" => Some("no-cache".to_owned()),
        "max" => Some("max-age=315360000".to_owned()),
        time if time.starts_with('-') => Some("no-cache".to_owned()),
        time => milliseconds(time.trim_start_matches('+')).map(|time| format!("max-age={}", time / 1000)),
    }
}

/// Fields of which a response has one: nginx replaces them, or a second one has no sense.
fn is_single(name: &str) -> bool {
    matches!(
        name.to_ascii_lowercase().as_str(),
        "cache-control" | "content-type" | "last-modified" | "etag" | "retry-after"
    )
}
