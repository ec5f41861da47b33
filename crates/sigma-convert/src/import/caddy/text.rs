//! Placeholders of Caddy as variables of Sigma.

use serde_json::{Map, Value, json};

/// Variables of the document that texts need.
#[derive(Debug, Default)]
pub(super) struct Variables {
    pub(super) own: Map<String, Value>,
    /// Whether proxies in front are trusted: the peer is then not always the client.
    pub(super) has_proxies: bool,
    /// The expressions of matchers: `{re.1}` is of the one that matched last.
    patterns: Vec<String>,
    /// The number of the expression that matched last, in the line that is read.
    pub(super) last: Option<usize>,
}

impl Variables {
    /// Returns a text with Sigma's variables, and the placeholders without a counterpart, which are empty in it.
    pub(super) fn text(&mut self, text: &str) -> (String, Vec<String>) {
        let mut out = String::new();
        let mut unknown = Vec::new();
        let mut rest = text;
        while let Some(at) = rest.find(['{', '$', '\\']) {
            out.push_str(&rest[..at]);
            rest = &rest[at..];
            if let Some(after) = rest.strip_prefix('$') {
                out.push_str("\\$");
                rest = after;
                continue;
            }
            if let Some(after) = rest.strip_prefix('\\') {
                // An escaped brace is a brace.
                let brace = after.chars().next().filter(|char| matches!(char, '{' | '}'));
                out.push(brace.unwrap_or('\\'));
                rest = &after[brace.map_or(0, char::len_utf8)..];
                continue;
            }
            let Some((name, after)) = rest[1..].split_once('}') else {
                out.push_str(rest);
                return (out, unknown);
            };
            if name.is_empty()
                || name.contains(|char: char| char.is_whitespace() || matches!(char, '"' | '{' | ','))
            {
                out.push('{');
                rest = &rest[1..];
                continue;
            }
            match self.variable(name) {
                Some(text) => out.push_str(&text),
                None => unknown.push(format!("`{{{name}}}`")),
            }
            rest = after;
        }
        out.push_str(rest);
        (out, unknown)
    }

    /// Returns the variable of a placeholder as `${name}`.
    pub(super) fn variable(&mut self, name: &str) -> Option<String> {
        self.name(name).map(|name| match name.contains('$') || name.is_empty() {
            true => name,
            false => format!("${{{name}}}"),
        })
    }

    /// Returns the name of the variable of a placeholder, or a text of several variables.
    pub(super) fn name(&mut self, name: &str) -> Option<String> {
        let short = name.strip_prefix("http.request.").unwrap_or(name);
        let fixed = match short {
            "host" => "host",
            "hostport" => "http_host",
            "port" => "server_port",
            "path" | "uri.path" | "orig_uri.path" | "orig_path" => "uri",
            "uri" | "orig_uri" => "request_uri",
            "query" | "uri.query" | "orig_uri.query" => "args",
            "prefixed_query" | "?query" | "uri.prefixed_query" => "${is_args}${args}",
            "scheme" => "scheme",
            "method" | "orig_method" => "request_method",
            "remote_host" | "remote.host" if self.has_proxies => "realip_remote_addr",
            "remote_host" | "remote.host" | "client_ip" | "http.vars.client_ip" | "vars.client_ip" => {
                "remote_addr"
            }
            "remote_port" | "remote.port" => "remote_port",
            "remote" => "${remote_addr}:${remote_port}",
            "proto" => "server_protocol",
            "uuid" => "request_id",
            "http.auth.user.id" => "remote_user",
            "tls_version" | "tls.version" => "ssl_protocol",
            "tls_cipher" | "tls.cipher_suite" => "ssl_cipher",
            "tls_client_subject" | "tls.client.subject" => "ssl_client_s_dn",
            "tls_client_issuer" | "tls.client.issuer" => "ssl_client_i_dn",
            "tls_client_serial" | "tls.client.serial" => "ssl_client_serial",
            "tls_client_fingerprint" | "tls.client.fingerprint" => "ssl_client_fingerprint",
            "tls_client_certificate_pem" | "tls.client.certificate_pem" => "ssl_client_escaped_cert",
            "tls.server_name" => "ssl_server_name",
            "err.status_code"
            | "http.error.status_code"
            | "rp.status_code"
            | "http.reverse_proxy.status_code" => "status",
            "rp.upstream.hostport" | "upstream_hostport" | "http.reverse_proxy.upstream.hostport" => {
                "upstream_host"
            }
            "system.hostname" => "hostname",
            "time.now.unix" => "msec",
            "err.status_text" | "http.error.status_text" => return Some(self.status_text()),
            _ => return self.family(short),
        };
        Some(fixed.to_owned())
    }

    fn family(&mut self, name: &str) -> Option<String> {
        // Variables that a line `vars` sets; others are empty.
        if let Some(own) = name.strip_prefix("http.vars.").or_else(|| name.strip_prefix("vars.")) {
            let own = set_name(own);
            return Some(if self.own.contains_key(&own) { format!("var_{own}") } else { String::new() });
        }
        let field = |name: &str| name.to_ascii_lowercase().replace('-', "_");
        if let Some(header) = name.strip_prefix("header.") {
            return Some(format!("http_{}", field(header)));
        }
        if let Some(cookie) = name.strip_prefix("cookie.") {
            return Some(format!("cookie_{cookie}"));
        }
        if let Some(argument) = name.strip_prefix("query.").or_else(|| name.strip_prefix("uri.query.")) {
            return Some(format!("arg_{argument}"));
        }
        if let Some(number) = name.strip_prefix("labels.").or_else(|| name.strip_prefix("host.labels.")) {
            let number: usize = number.parse().ok().filter(|number| *number < 16)?;
            let pattern = format!("^(?:.*\\.)?([^.]+)(?:\\.[^.]+){{{number}}}$");
            return Some(self.mapped(&format!("label_{number}"), "$host", &pattern, "$1"));
        }
        let name = match name {
            "file" => "path.file",
            "dir" => "path.dir",
            name => name,
        };
        if let Some(part) = name.strip_prefix("path.").or_else(|| name.strip_prefix("uri.path.")) {
            let pattern = match part {
                "file" => "([^/]*)$".to_owned(),
                "file.base" => "([^/]*?)(?:\\.[^./]*)?$".to_owned(),
                "dir" => "^(.*/)[^/]*$".to_owned(),
                "file.ext" => "(\\.[^./]*)$".to_owned(),
                number => {
                    let number: usize = number.parse().ok().filter(|number| *number < 16)?;
                    format!("^/(?:[^/]*/){{{number}}}([^/]*)")
                }
            };
            let name = format!("path_{}", part.replace('.', "_"));
            return Some(self.mapped(&name, "$uri", &pattern, "$1"));
        }
        // Of several expressions, the last one that matched counts.
        let group = name.strip_prefix("re.").map(|group| group.replace(['.', '-'], "_"));
        let last = self.last.zip(group).map(|(number, group)| format!("re_p{number}_{group}"));
        if let Some(own) = last.filter(|own| self.own.contains_key(own)) {
            return Some(format!("var_{own}"));
        }
        // A line `map` has defined it.
        let own = name.replace(['.', '-'], "_");
        if self.own.contains_key(&own) {
            return Some(format!("var_{own}"));
        }
        let group = name.strip_prefix("re.").or_else(|| name.strip_prefix("http.regexp."))?;
        let variable = group.replace(['.', '-'], "_");
        // The matcher of this name has defined it.
        self.own.contains_key(&format!("re_{variable}")).then(|| format!("var_re_{variable}"))
    }

    fn mapped(&mut self, name: &str, source: &str, pattern: &str, value: &str) -> String {
        let map = json!({"map": source, "regex": [{"match": pattern, "value": value}], "default": ""});
        self.own.insert(name.to_owned(), map);
        format!("var_{name}")
    }

    /// Makes a variable: a text that the first of some patterns changes. Returns its text.
    pub(super) fn chain(&mut self, line: u32, source: &str, pairs: &[String]) -> String {
        // A default would read the source again: reads would double with each link of a chain.
        let unchanged = json!({"match": "(?s)^(.*)$", "value": "$1"});
        let regexes: Vec<Value> = pairs.chunks(2).map(of_whole_text).chain([unchanged]).collect();
        let map = json!({"map": source, "regex": regexes, "default": ""});
        let mut number = 1;
        let mut name = format!("path_{line}");
        while self.own.get(&name).is_some_and(|known| *known != map) {
            number += 1;
            name = format!("path_{line}_{number}");
        }
        self.own.insert(name.clone(), map);
        format!("${{var_{name}}}")
    }

    /// Defines the variable of the client's path without its first slash.
    pub(super) fn define_rest(&mut self) {
        let rest = json!({"map": "${uri}", "regex": [first_slash()], "default": ""});
        self.own.insert("path_rest".to_owned(), rest);
    }

    /// Returns the text that [`Variables::rooted`] has made a path of.
    pub(super) fn unrooted(&self, path: &str) -> String {
        let name = path.strip_prefix("/${var_").and_then(|rest| rest.strip_suffix('}'));
        let map = name.and_then(|name| self.own.get(name));
        let source = map.filter(|map| map["regex"][0] == first_slash()).and_then(|map| map["map"].as_str());
        source.unwrap_or(path).to_owned()
    }

    /// Returns a path of a text with variables that begins with a slash: a new path has to show it.
    pub(super) fn rooted(&mut self, line: u32, text: &str) -> String {
        match text.starts_with('/') {
            true => text.to_owned(),
            false => format!("/{}", self.chain(line, text, &["(?s)^/(.*)$".to_owned(), "$1".to_owned()])),
        }
    }

    /// Defines the groups of a regular expression: `{re.NAME.1}`, and `{re.1}` of the last one.
    pub(super) fn groups(&mut self, name: &str, source: &str, pattern: &str) {
        let Ok(regex) = regex::Regex::new(pattern) else { return };
        let known = self.number_of(pattern).unwrap_or_else(|| {
            self.patterns.push(pattern.to_owned());
            self.patterns.len() - 1
        });
        for (number, group) in regex.capture_names().enumerate() {
            let mut names = vec![number.to_string()];
            names.extend(group.map(str::to_owned));
            for group in names {
                let value = if number == 0 { format!("({pattern})") } else { pattern.to_owned() };
                let at = if number == 0 { "$1".to_owned() } else { format!("${{{number}}}") };
                let map = json!({"map": source, "regex": [{"match": value, "value": at}], "default": ""});
                if !name.is_empty() {
                    self.own.insert(format!("re_{}_{group}", name.replace(['.', '-'], "_")), map.clone());
                }
                self.own.insert(format!("re_p{known}_{group}"), map.clone());
                self.own.insert(format!("re_{group}"), map);
            }
        }
    }

    /// Returns the number of an expression of a matcher.
    pub(super) fn number_of(&self, pattern: &str) -> Option<usize> {
        self.patterns.iter().position(|known| known == pattern)
    }

    fn status_text(&mut self) -> String {
        let texts = [
            ("400", "Bad Request"),
            ("401", "Unauthorized"),
            ("403", "Forbidden"),
            ("404", "Not Found"),
            ("405", "Method Not Allowed"),
            ("408", "Request Timeout"),
            ("410", "Gone"),
            ("413", "Request Entity Too Large"),
            ("429", "Too Many Requests"),
            ("500", "Internal Server Error"),
            ("502", "Bad Gateway"),
            ("503", "Service Unavailable"),
            ("504", "Gateway Timeout"),
        ];
        let exact: Map<String, Value> =
            texts.iter().map(|(code, text)| ((*code).to_owned(), json!(text))).collect();
        self.own.insert("status_text".to_owned(), json!({"map": "$status", "exact": exact, "default": ""}));
        "var_status_text".to_owned()
    }
}

/// The name of a variable that a line `vars` sets.
pub(super) fn set_name(name: &str) -> String {
    let word = |char: char| if char.is_ascii_alphanumeric() { char } else { '_' };
    format!("vars_{}", name.chars().map(word).collect::<String>())
}

/// The rule of a variable for a pattern and its replacement. The value of a variable is a new text, so the parts around
/// the match become groups.
fn of_whole_text(pair: &[String]) -> Value {
    let (pattern, value) = (pair[0].as_str(), pair.get(1).map_or("", String::as_str));
    let bare = ["(?i)", "(?s)"].iter().fold(pattern, |rest, flag| rest.trim_start_matches(flag));
    let is_whole = bare.starts_with('^') && pattern.ends_with('$');
    let groups = regex::Regex::new(pattern).map_or(1, |regex| regex.captures_len());
    if is_whole {
        return json!({"match": pattern, "value": value});
    }
    json!({
        "match": format!(r"^([\s\S]*?)(?:{pattern})([\s\S]*)$"),
        "value": format!("${{1}}{}${{{}}}", shifted(value), groups + 1),
    })
}

/// A replacement whose groups have numbers that are higher by one.
fn shifted(value: &str) -> String {
    let mut parts = value.split('$');
    let mut text = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let braced = part.strip_prefix('{').and_then(|rest| rest.split_once('}'));
        let end = part.find(|letter: char| !letter.is_ascii_digit()).unwrap_or(part.len());
        let (name, rest) = braced.unwrap_or(part.split_at(end));
        text.push_str(&match name.parse::<usize>() {
            Ok(number) => format!("${{{}}}{rest}", number.saturating_add(1)),
            Err(_) => format!("${part}"),
        });
    }
    text
}

/// The rule of a variable that removes the first slash of a path.
fn first_slash() -> Value {
    json!({"match": "(?s)^/(.*)$", "value": "$1"})
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_of_variables_keep_the_text_around_a_match() {
        let rule = |pattern: &str, value: &str| of_whole_text(&[pattern.to_owned(), value.to_owned()]);
        assert_eq!(rule("^/a/(.*)$", "/$1"), json!({"match": "^/a/(.*)$", "value": "/$1"}));
        let changed =
            json!({"match": r"^([\s\S]*?)(?:/(v)(\d)/)([\s\S]*)$", "value": "${1}/${3}${2}$x/${4}"});
        assert_eq!(rule(r"/(v)(\d)/", "/$2${1}$x/"), changed);
    }

    #[test]
    fn rooted_texts_are_read_back() {
        let mut variables = Variables::default();
        let path = variables.rooted(7, "${arg_a}");
        assert_eq!((path.as_str(), variables.unrooted(&path).as_str()), ("/${var_path_7}", "${arg_a}"));
        assert_eq!(variables.rooted(7, "/a${arg_a}"), "/a${arg_a}");
        assert_eq!(variables.unrooted("/${var_other}"), "/${var_other}");
    }

    #[test]
    fn placeholders_are_variables() {
        let mut variables = Variables::default();
        let mut text = |text: &str| variables.text(text);
        assert_eq!(text("a {host} {header.X-A} $1").0, "a ${host} ${http_x_a} \\$1");
        assert_eq!(text("{\"a\": 1} {query.q}").0, "{\"a\": 1} ${arg_q}");
        assert_eq!(text("{http.request.host.labels.2}").0, "${var_label_2}");
        let (rest, unknown) = text("a {unknown.thing} {host}");
        assert_eq!((rest.as_str(), unknown), ("a  ${host}", vec!["`{unknown.thing}`".to_owned()]));
    }
}
