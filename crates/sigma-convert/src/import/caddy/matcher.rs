//! Matchers: sets of conditions that a line of a site names.

use std::collections::HashMap;

use serde_json::{Value, json};

use super::cel;
use super::parse::Line;
use super::text::Variables;

/// A condition on a request.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Condition {
    /// It always holds.
    Always,
    /// A pattern of the path as it is at this line.
    Path(String),
    /// A regular expression of the path as it is at this line.
    PathRegex(String),
    /// The path is a file below the folder; with the line of the matcher.
    File(u32),
    /// A condition on variables.
    Variable(Value),
    /// Hosts.
    Hosts(Vec<String>),
    /// Methods.
    Methods(Vec<String>),
    /// All must hold.
    All(Vec<Condition>),
    /// One must hold.
    Any(Vec<Condition>),
    /// It must not hold.
    Not(Box<Condition>),
}

impl Condition {
    /// Returns the only path pattern, which decides the order of lines.
    pub(super) fn only_path(&self) -> Option<&str> {
        match self {
            Condition::Path(path) => Some(path),
            Condition::All(parts) => {
                let mut paths = parts.iter().filter_map(|part| part.only_path());
                let first = paths.next()?;
                paths.next().is_none().then_some(first)
            }
            _ => None,
        }
    }
}

/// Named matchers of a site.
pub(super) type Named = HashMap<String, Condition>;

/// Reads the definition of a matcher: `@name kind args…`, or a block.
pub(super) fn define(line: &Line, named: &mut Named, variables: &mut Variables) -> Result<(), String> {
    let name = line.name().trim_start_matches('@').to_owned();
    let condition = match &line.block {
        Some(lines) if line.words.len() == 1 => set(lines, named, variables)?,
        _ => {
            let inner = Line { words: line.words[1..].to_vec(), block: line.block.clone() };
            let is_expression = inner.words.len() == 1 && inner.words[0].quoted;
            match is_expression {
                true => cel::condition(inner.name(), variables)?,
                false => one(&inner, named, variables)?,
            }
        }
    };
    named.insert(name, condition);
    Ok(())
}

/// Reads a set: all kinds must hold; paths, hosts and methods of several lines are alternatives.
pub(super) fn set(lines: &[Line], named: &Named, variables: &mut Variables) -> Result<Condition, String> {
    let mut parts: Vec<Condition> = Vec::new();
    let mut paths = Vec::new();
    let (mut hosts, mut methods, mut arguments) = (Vec::new(), Vec::new(), Vec::new());
    let mut fields: Vec<(String, Vec<Condition>)> = Vec::new();
    for line in lines {
        match line.name() {
            "path" => paths.extend(line.args().into_iter().map(Condition::Path)),
            "host" => hosts.extend(line.args()),
            "method" => methods.extend(line.args()),
            "query" => arguments.extend(line.args()),
            "header" | "header_regexp" => {
                let key = format!("{} {}", line.name(), line.arg(0).unwrap_or_default().to_ascii_lowercase());
                let condition = one(line, named, variables)?;
                match fields.iter_mut().find(|(known, _)| *known == key) {
                    Some((_, list)) => list.push(condition),
                    None => fields.push((key, vec![condition])),
                }
            }
            _ => parts.push(one(line, named, variables)?),
        }
    }
    if !paths.is_empty() {
        parts.push(any(paths));
    }
    if !hosts.is_empty() {
        parts.push(Condition::Hosts(hosts));
    }
    if !methods.is_empty() {
        parts.push(Condition::Methods(methods));
    }
    if !arguments.is_empty() {
        parts.push(queries(&arguments));
    }
    parts.extend(fields.into_iter().map(|(_, list)| any(list)));
    Ok(all(parts))
}

/// Returns the expression of a condition.
pub(super) fn expression(condition: &Condition) -> Option<&str> {
    match condition {
        Condition::PathRegex(pattern) => Some(pattern),
        Condition::Variable(value) if value[1] == "~~" => value[2].as_str(),
        Condition::All(parts) => parts.iter().find_map(expression),
        _ => None,
    }
}

/// Joins conditions of which one must hold.
pub(super) fn any(mut parts: Vec<Condition>) -> Condition {
    match parts.len() {
        1 => parts.remove(0),
        _ => Condition::Any(parts),
    }
}

/// Joins conditions that must all hold.
pub(super) fn all(mut parts: Vec<Condition>) -> Condition {
    match parts.len() {
        0 => Condition::Always,
        1 => parts.remove(0),
        _ => Condition::All(parts),
    }
}

/// Reads one line of a matcher.
fn one(line: &Line, named: &Named, variables: &mut Variables) -> Result<Condition, String> {
    let args = line.args();
    let first = args.first().map_or("", String::as_str);
    let need = |count: usize| match args.len() >= count {
        true => Ok(()),
        false => Err(format!("`{}` needs an argument", line.name())),
    };
    match line.name() {
        "path" => {
            need(1)?;
            Ok(any(args.into_iter().map(Condition::Path).collect()))
        }
        "path_regexp" => {
            need(1)?;
            let (name, pattern) = if args.len() > 1 { (first, args[1].as_str()) } else { ("", first) };
            let pattern = regex(pattern)?;
            variables.groups(name, "$uri", &pattern);
            Ok(Condition::PathRegex(pattern))
        }
        "host" => {
            need(1)?;
            Ok(Condition::Hosts(args))
        }
        "method" => {
            need(1)?;
            Ok(Condition::Methods(args))
        }
        "header" => header(&args),
        "header_regexp" => header_regexp(&args, variables),
        "query" => Ok(queries(&args)),
        "remote_ip" | "client_ip" => {
            let ranges: Vec<String> =
                args.iter().filter(|it| *it != "forwarded").flat_map(|it| range(it)).collect();
            let variable = if line.name() == "client_ip" { "remote_addr" } else { "realip_remote_addr" };
            Ok(Condition::Variable(json!([variable, "ipmatch", ranges])))
        }
        "protocol" => Ok(Condition::Variable(match first {
            "https" => json!(["scheme", "==", "https"]),
            "http" => json!(["scheme", "==", "http"]),
            "grpc" => json!(["http_content_type", "~~", "^application/grpc"]),
            other => json!(["server_protocol", "==", other.to_ascii_uppercase().trim_end_matches('+')]),
        })),
        "expression" => cel::condition(&args.join(" "), variables),
        "not" => {
            let inner = match &line.block {
                Some(lines) if line.words.len() == 1 => set(lines, named, variables)?,
                _ => one(
                    &Line { words: line.words[1..].to_vec(), block: line.block.clone() },
                    named,
                    variables,
                )?,
            };
            Ok(Condition::Not(Box::new(inner)))
        }
        "vars" | "vars_regexp" => vars(line, &args, variables),
        "file" => file(line, &args),
        other => match named.get(other.trim_start_matches('@')) {
            Some(condition) if other.starts_with('@') => Ok(condition.clone()),
            _ => Err(format!("the matcher `{other}` is not converted")),
        },
    }
}

/// `file`: whether the path of the request is a file.
fn file(line: &Line, args: &[String]) -> Result<Condition, String> {
    let mut candidates = args.to_vec();
    for inner in line.block.as_deref().unwrap_or_default() {
        match inner.name() {
            "try_files" => candidates.extend(inner.args()),
            other => return Err(format!("`{other}` of the matcher `file` is not converted")),
        }
    }
    let own = ["{path}", "{path}/", "{http.request.uri.path}", "{http.request.uri.path}/"];
    match candidates.iter().all(|candidate| own.contains(&candidate.as_str())) {
        true => Ok(Condition::File(line.place().line)),
        false => Err("the matcher `file` is converted for the path of the request alone".to_owned()),
    }
}

/// `header_regexp [name] field pattern`.
fn header_regexp(args: &[String], variables: &mut Variables) -> Result<Condition, String> {
    let [rest @ .., field, pattern] = args else {
        return Err("`header_regexp` needs a field and a pattern".to_owned());
    };
    let pattern = regex(pattern)?;
    let variable = header_variable(field)?;
    let name = rest.first().map_or("", String::as_str);
    variables.groups(name, &format!("${variable}"), &pattern);
    Ok(Condition::Variable(json!([variable, "~~", pattern])))
}

/// `vars {name} values…` and `vars_regexp [name] {name} pattern`.
fn vars(line: &Line, args: &[String], variables: &mut Variables) -> Result<Condition, String> {
    let known = |variables: &mut Variables, field: &str| {
        // Routes are chosen before a line `vars` sets its variable.
        let is_usable =
            |name: &String| !(name.is_empty() || name.contains('$') || name.starts_with("var_vars_"));
        let variable = variables.name(field.trim_matches(['{', '}'])).filter(is_usable);
        variable.ok_or_else(|| format!("the variable `{field}` is unknown"))
    };
    match (line.name(), args) {
        ("vars", [field, values @ ..]) if !values.is_empty() => {
            Ok(Condition::Variable(json!([known(variables, field)?, "in", values])))
        }
        ("vars_regexp", [rest @ .., field, pattern]) => {
            let variable = known(variables, field)?;
            let pattern = regex(pattern)?;
            let name = rest.first().map_or("", String::as_str);
            variables.groups(name, &format!("${variable}"), &pattern);
            Ok(Condition::Variable(json!([variable, "~~", pattern])))
        }
        _ => Err(format!("`{}` needs a variable and a value", line.name())),
    }
}

/// Checks a regular expression of Go.
pub(super) fn regex(pattern: &str) -> Result<String, String> {
    match regex::RegexBuilder::new(pattern).size_limit(1 << 20).build() {
        Ok(_) => Ok(pattern.to_owned()),
        Err(_) => Err(format!("the regular expression `{pattern}` is not supported")),
    }
}

/// Returns the variable of a header field.
pub(super) fn header_variable(name: &str) -> Result<String, String> {
    let valid =
        !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_".contains(&byte));
    match (valid, name.eq_ignore_ascii_case("host")) {
        (true, true) => Ok("http_host".to_owned()),
        (true, false) => Ok(format!("http_{}", name.to_ascii_lowercase().replace('-', "_"))),
        (false, _) => Err(format!("`{name}` is not the name of a header field")),
    }
}

/// `header Field`, `header Field value`, `header !Field`; a value may begin or end with `*`.
fn header(args: &[String]) -> Result<Condition, String> {
    let field = args.first().ok_or("`header` needs a field")?;
    if let Some(absent) = field.strip_prefix('!') {
        return Ok(Condition::Variable(json!([header_variable(absent)?, "==", null])));
    }
    let variable = header_variable(field)?;
    let Some(value) = args.get(1) else {
        return Ok(Condition::Variable(json!([variable, "~=", null])));
    };
    let inner = value.trim_matches('*');
    Ok(Condition::Variable(match (value.starts_with('*'), value.ends_with('*')) {
        _ if value == "*" => json!([variable, "~=", null]),
        (false, false) => json!([variable, "==", value]),
        (true, false) => json!([variable, "~~", format!("{}$", regex::escape(inner))]),
        (false, true) => json!([variable, "~~", format!("^{}", regex::escape(inner))]),
        (true, true) => json!([variable, "~~", regex::escape(inner)]),
    }))
}

/// Arguments: values of one name are alternatives, all names must be there.
fn queries(pairs: &[String]) -> Condition {
    let mut names: Vec<(&str, Vec<Condition>)> = Vec::new();
    for pair in pairs {
        let name = pair.split_once('=').map_or(pair.as_str(), |(name, _)| name);
        match names.iter_mut().find(|(known, _)| *known == name) {
            Some((_, list)) => list.push(query(pair)),
            None => names.push((name, vec![query(pair)])),
        }
    }
    all(names.into_iter().map(|(_, list)| any(list)).collect())
}

/// `key=value`; the value `*` asks only whether the argument is there.
fn query(pair: &str) -> Condition {
    let (key, value) = pair.split_once('=').unwrap_or((pair, "*"));
    if key.is_empty() && value == "*" {
        return Condition::Variable(json!(["args", "==", ""]));
    }
    if value == "*" {
        return Condition::Variable(json!([format!("arg_{key}"), "~=", null]));
    }
    let pattern = format!("(?:^|&){}={}(?:&|$)", regex::escape(key), regex::escape(value));
    Condition::Variable(json!(["OR", [format!("arg_{key}"), "==", value], ["args", "~~", pattern]]))
}

/// The networks of an address; `private_ranges` is a word of Caddy's.
pub(super) fn range(text: &str) -> Vec<String> {
    match text {
        "private_ranges" => {
            ["192.168.0.0/16", "172.16.0.0/12", "10.0.0.0/8", "127.0.0.1/8", "fd00::/8", "::1/128"]
                .map(str::to_owned)
                .to_vec()
        }
        other => vec![other.to_owned()],
    }
}
