//! Texts with variables, and the variables themselves.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Map, Value, json};

use super::level::Level;
use super::pattern::Pattern;
use super::state::{Captures, State};

/// Maximum bytes of a text with the values of its variables: `set` can name a variable many times.
const TEXT_BYTES: usize = 64 * 1024;

/// Variables with the same name and meaning.
const SAME: &[&str] = &[
    "uri",
    "args",
    "is_args",
    "host",
    "scheme",
    "remote_addr",
    "remote_port",
    "remote_user",
    "binary_remote_addr",
    "request_method",
    "request_id",
    "request_length",
    "request_time",
    "request_completion",
    "request",
    "request_body",
    "server_addr",
    "server_port",
    "server_protocol",
    "status",
    "body_bytes_sent",
    "bytes_sent",
    "connection",
    "connection_requests",
    "connection_time",
    "content_type",
    "content_length",
    "hostname",
    "pid",
    "nginx_version",
    "msec",
    "time_local",
    "time_iso8601",
    "https",
    "http2",
    "realip_remote_addr",
    "realip_remote_port",
    "proxy_add_x_forwarded_for",
    "proxy_protocol_addr",
    "proxy_protocol_port",
    "proxy_protocol_server_addr",
    "proxy_protocol_server_port",
    "upstream_addr",
    "upstream_status",
    "upstream_response_time",
    "upstream_connect_time",
    "upstream_header_time",
    "upstream_bytes_received",
    "upstream_bytes_sent",
    "upstream_cache_status",
    "ssl_protocol",
    "ssl_cipher",
    "ssl_curve",
    "ssl_server_name",
    "ssl_alpn_protocol",
    "ssl_session_reused",
    "ssl_client_verify",
    "ssl_client_s_dn",
    "ssl_client_i_dn",
    "ssl_client_serial",
    "ssl_client_fingerprint",
    "ssl_client_raw_cert",
    "ssl_client_escaped_cert",
    "query_string",
    "document_uri",
    "fastcgi_script_name",
    "fastcgi_path_info",
    "ssl_preread_server_name",
    "ssl_preread_alpn_protocols",
    "protocol",
    "session_time",
    "bytes_received",
];

/// Prefixes of families of variables with the same meaning.
const FAMILIES: &[&str] = &["http_", "cookie_", "arg_", "sent_http_", "upstream_http_", "upstream_cookie_"];

/// Variables that are empty here and seldom matter.
const EMPTY: &[&str] = &[
    "pipe",
    "gzip_ratio",
    "limit_rate",
    "tcpinfo_rtt",
    "upstream_response_length",
    "request_body_file",
    "ssl_client_v_end",
    "ssl_client_v_start",
    "ssl_client_v_remain",
    "ssl_session_id",
    "uid_got",
    "uid_set",
    "upstream_queue_time",
    "ssl_early_data",
    "limit_req_status",
    "limit_conn_status",
    "memcached_key",
];

/// Variables of the whole configuration.
#[derive(Default)]
pub(super) struct Variables {
    /// Names that `map`, `geo` and `split_clients` define.
    pub(super) defined: BTreeMap<String, ()>,
    /// Names that `auth_request_set` defines, with the field of the service's response.
    pub(super) answers: BTreeMap<String, String>,
    /// The setting `variables`.
    pub(super) setting: Map<String, Value>,
    /// Names of made variables by their meaning.
    made: BTreeMap<String, String>,
    /// Names that global texts read: routes set them.
    pub(super) read_globally: Vec<String>,
    /// Names that some `set` writes.
    pub(super) written: Vec<String>,
    /// Names of groups of the expressions of servers, locations, rewrites and conditions.
    pub(super) groups: BTreeSet<String>,
    /// Names whose definition is not converted as a whole: a guard must not depend on them.
    pub(super) doubtful: BTreeSet<String>,
}

impl Variables {
    /// Returns the text of a made variable, the same for the same meaning.
    pub(super) fn made(&mut self, letter: char, meaning: Value) -> String {
        format!("${{{}}}", self.made_name(letter, meaning))
    }

    /// Returns the name of a made variable, with its prefix.
    pub(super) fn made_name(&mut self, letter: char, meaning: Value) -> String {
        let key = meaning.to_string();
        let number = self.made.len() + 1;
        let name = self.made.entry(key).or_insert_with(|| format!("{letter}{number}")).clone();
        self.setting.entry(name.clone()).or_insert(meaning);
        format!("var_{name}")
    }

    /// Returns the text of a group of a match.
    pub(super) fn group(&mut self, captures: &Captures, number: usize) -> String {
        match captures {
            Captures::None => String::new(),
            Captures::Route if number == 0 => String::new(),
            Captures::Route => format!("${{{number}}}"),
            Captures::Fixed(groups) => groups.get(number).cloned().unwrap_or_default(),
            Captures::Of { subject, pattern } => {
                let value = format!("${{{number}}}");
                let meaning = json!({"map": subject, "regex": [matched(pattern, &value)], "default": ""});
                self.made('c', meaning)
            }
        }
    }

    /// Returns the texts of the named groups of a match.
    pub(super) fn named(&mut self, captures: &Captures, pattern: &Pattern) -> Vec<(String, String)> {
        let names = pattern.names();
        let text = |this: &mut Self, name: &String| match captures {
            Captures::Route => format!("${{uri_param_{name}}}"),
            captures => this.group(captures, pattern.group(name).unwrap_or(0)),
        };
        names.iter().map(|name| (name.clone(), text(self, name))).collect()
    }

    /// Returns a name of a variable with this text: itself, or a made one.
    pub(super) fn name_of(&mut self, text: &str) -> String {
        let single = text.strip_prefix("${").and_then(|rest| rest.strip_suffix('}'));
        match single.filter(|name| !name.contains(['$', '{', '}'])) {
            Some(name) => name.to_owned(),
            None => self.made_name('t', json!({"value": text})),
        }
    }
}

/// An entry of `regex` in a variable by map.
pub(super) fn matched(pattern: &Pattern, value: &str) -> Value {
    let mut entry = json!({"match": pattern.text, "value": value});
    if pattern.ignore_case {
        entry["ignore_case"] = true.into();
    }
    entry
}

/// A text of the configuration, in pieces.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Piece<'t> {
    Text(&'t str),
    Variable(&'t str),
}

/// Splits a text at its variables.
pub(super) fn pieces(text: &str) -> Vec<Piece<'_>> {
    let mut pieces = Vec::new();
    let mut rest = text;
    while let Some(at) = rest.find('$') {
        let after = &rest[at + 1..];
        let (name, length) = match after.strip_prefix('{') {
            Some(inner) => match inner.find('}') {
                Some(end) => (&inner[..end], end + 2),
                None => ("", 0),
            },
            None if after.starts_with(|char: char| char.is_ascii_digit()) => (&after[..1], 1),
            None => {
                let is_word = |char: char| char.is_ascii_alphanumeric() || char == '_';
                let end = after.find(|char: char| !is_word(char)).unwrap_or(after.len());
                (&after[..end], end)
            }
        };
        if name.is_empty() {
            pieces.push(Piece::Text(&rest[..=at]));
            rest = after;
            continue;
        }
        if at > 0 {
            pieces.push(Piece::Text(&rest[..at]));
        }
        pieces.push(Piece::Variable(name));
        rest = &after[length..];
    }
    if !rest.is_empty() {
        pieces.push(Piece::Text(rest));
    }
    pieces
}

/// Returns Sigma's text, with the variables that have no counterpart.
pub(super) fn text(
    variables: &mut Variables,
    source: &str,
    state: &State<'_>,
    level: &Level<'_>,
) -> (String, Vec<String>) {
    let (mut made, mut unknown) = (String::new(), Vec::new());
    for piece in pieces(source) {
        match piece {
            Piece::Text(text) => made.push_str(text),
            Piece::Variable(name) => match variable(variables, name, state, level) {
                Some(text) if made.len() + text.len() <= TEXT_BYTES => made.push_str(&text),
                _ => unknown.push(name.to_owned()),
            },
        }
    }
    (made, unknown)
}

/// Returns the first variable of a text whose value is not known here: it has no counterpart, or was made of one without.
pub(super) fn doubtful(
    variables: &mut Variables,
    source: &str,
    state: &State<'_>,
    level: &Level<'_>,
) -> Option<String> {
    let named = |piece| if let Piece::Variable(name) = piece { Some(name) } else { None };
    pieces(source).into_iter().filter_map(named).find_map(|name| {
        let is_unknown = !state.variables.sets.contains_key(name)
            && (is_doubtful(variables, name) || variable(variables, name, state, level).is_none());
        (is_unknown || state.variables.doubtful.contains(name)).then(|| name.to_owned())
    })
}

/// Returns true if a variable of the whole configuration has another value here, or none without further settings.
pub(super) fn is_doubtful(variables: &Variables, name: &str) -> bool {
    variables.doubtful.contains(name) || EMPTY.contains(&name) || name.starts_with("geoip")
}

fn variable(variables: &mut Variables, name: &str, state: &State<'_>, level: &Level<'_>) -> Option<String> {
    if let Ok(number) = name.parse::<usize>() {
        return Some(variables.group(&state.variables.captures, number));
    }
    if let Some(text) = state.variables.sets.get(name).or_else(|| state.variables.named.get(name)) {
        return Some(text.clone());
    }
    match name {
        "uri" | "document_uri" => return Some(state.uri_text()),
        "args" | "query_string" => {
            return Some(state.rewritten.args.clone().unwrap_or_else(|| "${args}".to_owned()));
        }
        "is_args" => {
            return Some(match &state.rewritten.args {
                None => "${is_args}".to_owned(),
                Some(args) if args.is_empty() => String::new(),
                Some(_) => "?".to_owned(),
            });
        }
        "server_name" => return Some(state.server.name.clone()),
        "invalid_referer" => return super::referers::invalid_referer(variables, state, level),
        "document_root" | "realpath_root" => return Some(folder(variables, state, level)),
        "request_filename" => {
            return Some(format!("{}{}", folder(variables, state, level), state.uri_text()));
        }
        _ => {}
    }
    let is_elsewhere = variables.groups.contains(name) || variables.written.iter().any(|it| it == name);
    if is_elsewhere && !variables.defined.contains_key(name) {
        // nginx: a variable that is set elsewhere is empty here.
        return Some(String::new());
    }
    global(variables, name)
}

/// The text of `root`, whose own variables cannot be the folder itself.
fn folder(variables: &mut Variables, state: &State<'_>, level: &Level<'_>) -> String {
    let root = level.text("root").unwrap_or_default();
    if root.contains("$document_root") || root.contains("$realpath_root") {
        return String::new();
    }
    text(variables, root, state, level).0
}

/// Returns Sigma's text of a variable that does not depend on the state of a request's rewriting.
pub(super) fn global(variables: &Variables, name: &str) -> Option<String> {
    if variables.defined.contains_key(name) {
        return Some(format!("${{var_{name}}}"));
    }
    if let Some(field) = variables.answers.get(name) {
        // The request has the field since the service has responded.
        return Some(format!("${{http_{}}}", field.to_ascii_lowercase().replace('-', "_")));
    }
    match name {
        "request_uri" => Some("${real_request_uri}".to_owned()),
        "http_host" => Some("${http_host}".to_owned()),
        "ssl_client_cert" => Some("${ssl_client_raw_cert}".to_owned()),
        "geoip_country_code" | "geoip2_data_country_code" => Some("${geoip_country_code}".to_owned()),
        _ if SAME.contains(&name) => Some(format!("${{{name}}}")),
        _ if FAMILIES.iter().any(|family| name.starts_with(family)) => Some(format!("${{{name}}}")),
        _ if EMPTY.contains(&name) => Some(String::new()),
        _ => None,
    }
}

/// Writes `${name}` as `$name` where the next character cannot belong to the name.
pub(super) fn pretty(text: &str) -> String {
    let mut made = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find("${") {
        let inner = &rest[at + 2..];
        let Some(end) = inner.find('}') else { break };
        let next = inner[end + 1..].chars().next();
        let is_plain = !next.is_some_and(|char| char.is_ascii_alphanumeric() || char == '_');
        made.push_str(&rest[..at]);
        made.push_str(&if is_plain {
            format!("${}", &inner[..end])
        } else {
            format!("${{{}}}", &inner[..end])
        });
        rest = &inner[end + 1..];
    }
    made.push_str(rest);
    made
}

/// Applies [`pretty`] to all texts of a value.
pub(super) fn prettify(value: &mut Value) {
    match value {
        Value::String(text) if text.contains("${") => *text = pretty(text),
        Value::Array(list) => list.iter_mut().for_each(prettify),
        Value::Object(map) => map.values_mut().for_each(prettify),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_split_at_variables() {
        use Piece::{Text, Variable};
        assert_eq!(
            pieces("a$b-${c}d$1x$"),
            [Text("a"), Variable("b"), Text("-"), Variable("c"), Text("d"), Variable("1"), Text("x$"),]
        );
        assert_eq!(pretty("a${b}c ${d}-${e"), "a${b}c $d-${e");
    }
}
