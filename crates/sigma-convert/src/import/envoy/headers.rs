//! Changes of header fields, and command operators in their values.

use serde_json::{Map, Value, json};

use super::super::tree::Tree;
use super::Model;
use super::fields::{field, items, text};
use super::matching::variable;

/// Changes of fields of one direction.
#[derive(Debug, Clone, Default)]
pub(super) struct Changes {
    set: Vec<(String, String)>,
    add: Vec<(String, String)>,
    remove: Vec<String>,
    /// Fields that are added if they are missing.
    absent: Vec<(String, String)>,
}

impl Changes {
    /// Returns whether a field gets a value.
    pub(super) fn sets(&self, name: &str) -> bool {
        let all = self.set.iter().chain(&self.add).chain(&self.absent);
        all.into_iter().any(|(known, _)| known.eq_ignore_ascii_case(name))
    }

    /// Makes additions of a field its only value.
    pub(super) fn replaces(&mut self, name: &str) {
        let (own, others) = std::mem::take(&mut self.add)
            .into_iter()
            .partition(|(known, _): &(String, String)| known.eq_ignore_ascii_case(name));
        self.add = others;
        self.set.extend::<Vec<(String, String)>>(own);
    }

    /// Adds the changes of a route, a virtual host or a route configuration.
    pub(super) fn take(&mut self, model: &mut Model<'_>, from: &Tree, direction: &str) {
        for option in items(from, &format!("{direction}_headers_to_add")) {
            self.option(model, option);
        }
        for name in items(from, &format!("{direction}_headers_to_remove")) {
            self.remove.extend(name.text().map(str::to_owned));
        }
    }

    /// Adds one `HeaderValueOption`.
    pub(super) fn option(&mut self, model: &mut Model<'_>, option: &Tree) {
        let Some(header) = field(option, "header") else { return };
        let Some(name) = text(header, "key").map(str::to_owned) else { return };
        let value = text(header, "value").unwrap_or_default();
        let either = &mut |first: &str, other: &str| model.variable_or(header.line, first, other);
        let value = operators(value, either).unwrap_or_else(|operator| {
            model.gap(header.line, format!("The operator {operator} has no counterpart; it is empty."));
            String::new()
        });
        let appends = field(option, "append").and_then(Tree::boolean) != Some(false);
        match text(option, "append_action") {
            Some("OVERWRITE_IF_EXISTS_OR_ADD" | "OVERWRITE_IF_EXISTS") => self.set.push((name, value)),
            Some("ADD_IF_ABSENT") if !value.contains(['$', '{', '}', '?']) => {
                self.absent.push((name, value));
            }
            Some("ADD_IF_ABSENT") => {
                model.note(header.line, "The field is set even if it already exists.");
                self.set.push((name, value));
            }
            None if !appends => self.set.push((name, value)),
            _ => self.add.push((name, value)),
        }
    }

    /// Adds a field to remove.
    pub(super) fn remove(&mut self, name: &str) {
        self.remove.push(name.to_owned());
    }

    /// Adds a field to set.
    pub(super) fn set(&mut self, name: &str, value: &str) {
        self.set.push((name.to_owned(), value.to_owned()));
    }

    /// Returns the rules of proxy-rewrite, or of response-rewrite.
    pub(super) fn rules(&self, is_response: bool) -> Option<Value> {
        let mut rules = Map::new();
        let object = |list: &[(String, String)]| {
            Value::Object(list.iter().map(|(name, value)| (name.clone(), value.clone().into())).collect())
        };
        let mut set = self.set.clone();
        let family = if is_response { "sent_http" } else { "http" };
        set.extend(self.absent.iter().map(|(name, value)| {
            let variable = name.to_ascii_lowercase().replace('-', "_");
            (name.clone(), format!("${{{family}_{variable} ?? {value}}}"))
        }));
        if !set.is_empty() {
            rules.insert("set".to_owned(), object(&set));
        }
        if !self.add.is_empty() {
            let lines: Vec<String> =
                self.add.iter().map(|(name, value)| format!("{name}: {value}")).collect();
            rules.insert("add".to_owned(), if is_response { json!(lines) } else { object(&self.add) });
        }
        if !self.remove.is_empty() {
            rules.insert("remove".to_owned(), json!(self.remove));
        }
        (!rules.is_empty()).then_some(Value::Object(rules))
    }
}

/// Makes a text that is the first one, or the other where the first one is empty.
type Either<'e> = &'e mut dyn FnMut(&str, &str) -> String;

/// Returns a text with variables instead of command operators, or the first operator without a counterpart.
fn operators(text: &str, either: Either<'_>) -> Result<String, String> {
    let mut out = String::new();
    let mut rest = text;
    while let Some(at) = rest.find(['%', '$']) {
        out.push_str(&rest[..at]);
        rest = &rest[at..];
        if let Some(after) = rest.strip_prefix('$') {
            out.push_str("\\$");
            rest = after;
            continue;
        }
        if let Some(after) = rest.strip_prefix("%%") {
            out.push('%');
            rest = after;
            continue;
        }
        let Some((operator, after)) = rest[1..].split_once('%') else {
            out.push_str(rest);
            return Ok(out);
        };
        out.push_str(&operator_text(operator, either).ok_or_else(|| format!("`%{operator}%`"))?);
        rest = after;
    }
    out.push_str(rest);
    Ok(out)
}

/// The text of an operator; the second field of `REQ(X?Y)` counts where the first one is missing.
fn operator_text(operator: &str, either: Either<'_>) -> Option<String> {
    let argument = operator.split_once('(').and_then(|(name, rest)| Some((name, rest.split_once('?')?)));
    match argument {
        Some((name @ ("REQ" | "RESP"), (first, rest))) => {
            let other = rest.split(')').next().unwrap_or_default();
            let first = operator_variable(&format!("{name}({first})"))?;
            let other = operator_variable(&format!("{name}({other})"))?;
            Some(either(&first, &other))
        }
        _ => operator_variable(operator),
    }
}

fn operator_variable(operator: &str) -> Option<String> {
    let (name, argument) = match operator.split_once('(') {
        Some((name, argument)) => (name, argument.split(')').next().unwrap_or_default()),
        None => (operator, ""),
    };
    let variable = match name {
        "DOWNSTREAM_REMOTE_ADDRESS_WITHOUT_PORT" | "DOWNSTREAM_DIRECT_REMOTE_ADDRESS_WITHOUT_PORT" => {
            "remote_addr".to_owned()
        }
        "DOWNSTREAM_REMOTE_ADDRESS" => return Some("${remote_addr}:${remote_port}".to_owned()),
        "DOWNSTREAM_REMOTE_PORT" => "remote_port".to_owned(),
        "DOWNSTREAM_LOCAL_ADDRESS_WITHOUT_PORT" => "server_addr".to_owned(),
        "DOWNSTREAM_LOCAL_ADDRESS" => return Some("${server_addr}:${server_port}".to_owned()),
        "DOWNSTREAM_LOCAL_PORT" => "server_port".to_owned(),
        "DOWNSTREAM_TLS_VERSION" => "ssl_protocol".to_owned(),
        "DOWNSTREAM_TLS_CIPHER" => "ssl_cipher".to_owned(),
        "DOWNSTREAM_PEER_SUBJECT" => "ssl_client_s_dn".to_owned(),
        "DOWNSTREAM_PEER_ISSUER" => "ssl_client_i_dn".to_owned(),
        "DOWNSTREAM_PEER_SERIAL" => "ssl_client_serial".to_owned(),
        "DOWNSTREAM_PEER_CERT" => "ssl_client_escaped_cert".to_owned(),
        "REQUESTED_SERVER_NAME" => "ssl_server_name".to_owned(),
        "PROTOCOL" => "server_protocol".to_owned(),
        "RESPONSE_CODE" => "status".to_owned(),
        "UPSTREAM_REMOTE_ADDRESS" | "UPSTREAM_HOST" => "upstream_addr".to_owned(),
        "HOSTNAME" => "hostname".to_owned(),
        "STREAM_ID" => "request_id".to_owned(),
        "PATH" => "request_uri".to_owned(),
        "REQ" => variable(argument).ok()?,
        "RESP" => format!("sent_http_{}", argument.to_ascii_lowercase().replace('-', "_")),
        _ => return None,
    };
    Some(format!("${{{variable}}}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operators_are_variables() {
        let read = |text: &str| operators(text, &mut |first, other| format!("({first}|{other})"));
        let found = read("a %REQ(X-A)% %DOWNSTREAM_REMOTE_ADDRESS_WITHOUT_PORT%%% $1").unwrap();
        assert_eq!(found, "a ${http_x_a} ${remote_addr}% \\$1");
        assert_eq!(read("%REQ(X-A?X-B)%").unwrap(), "(${http_x_a}|${http_x_b})");
        assert!(read("%UNKNOWN%").is_err());
    }
}
