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
        if let Some(kind) = self.plain_type(level, state) {
            added.fields.push(("Content-Type".to_owned(), kind, false));
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
            hidden.push("Last-Modified".to_owned());
        }
        let mut config = Map::new();
        let mut headers = Map::new();
        let (mut add, mut set) = (Vec::new(), Map::new());
        for (name, value, is_always) in added.fields {
            let value = if is_always { value } else { self.by_status(&value) };
            if is_single(&name) {
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
        if !hidden.is_empty() {
            headers.insert("remove".to_owned(), json!(hidden));
        }
        if !headers.is_empty() {
            config.insert("headers".to_owned(), Value::Object(headers));
        }
        config
    }

    /// The media type of files without an extension, where `default_type` is not Sigma's.
    fn plain_type(&mut self, level: &Level<'a>, state: &State<'a>) -> Option<String> {
        let kind = level.text("default_type").unwrap_or("text/plain");
        if !state.serves_files || state.is_error || kind == "application/octet-stream" {
            return None;
        }
        let kept = json!({"match": "\\.[A-Za-z0-9]+$|/$", "value": "${sent_http_content_type}"});
        let map = json!({"map": "${uri}", "regex": [kept], "default": kind});
        Some(self.variables.made('m', map))
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
        let Some(values) = self.map_values.get(name) else {
            let text = format!("${name} has no constant values; write `Cache-Control` by hand");
            return self.remark(directive, Verdict::NotPossible, text);
        };
        let exact: Map<String, Value> =
            values.iter().filter_map(|value| Some((value.clone(), cache_control(value)?.into()))).collect();
        let map = json!({"map": format!("${{var_{name}}}"), "exact": exact, "default": ""});
        let text = self.variables.made('e', map);
        self.remark(
            directive,
            Verdict::Differs,
            "`Cache-Control` is set, and no `Expires`, which says the same.",
        );
        added.fields.push(("Cache-Control".to_owned(), text, false));
    }

    /// Returns the function that sets `Expires`, whose value is a time from now.
    pub(super) fn expires_function(level: &Level<'a>) -> Option<String> {
        let directive = level.last("expires").filter(|directive| directive.args.len() == 1)?;
        let value = match directive.arg(0) {
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
        };
        let codes: Vec<String> = STATUSES.iter().map(|code| format!("[{code}] = true")).collect();
        Some(format!(
            "local statuses = {{ {} }}\nreturn function(conf, ctx)\n  if statuses[ngx.status] then ngx.header[\"Expires\"] = {value} end\nend\n",
            codes.join(", ")
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
                _ => self.request_field(directive, value, &mut set),
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

    fn request_field(&mut self, directive: &Directive, value: String, set: &mut Map<String, Value>) {
        // A value of the service of authorization is set after its call.
        let is_answer =
            directive.arg(1).strip_prefix('$').is_some_and(|name| self.variables.answers.contains_key(name));
        let value = if is_answer { String::new() } else { value };
        set.insert(directive.arg(0).to_owned(), value.into());
    }
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
