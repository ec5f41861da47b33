//! ACLs and conditions: `if a !b or { path_beg /x }`.

use std::collections::HashMap;
use std::rc::Rc;

use serde_json::{Value, json};

use super::super::decision::Path;
use super::super::source::Files;
use super::expr::{Atom, Expr, Subject};
use super::lua;
use super::sample::{self, Variables};
use super::value::{Kind, Sample};

/// Maximum number of patterns of a file.
const MOST_PATTERNS: usize = 100_000;

/// Named conditions of a proxy.
#[derive(Debug, Clone, Default)]
pub(super) struct Acls {
    /// Shared by the decisions of a frontend, which may have thousands.
    named: Rc<HashMap<String, Vec<Named>>>,
}

/// A line `acl`: its condition, or its words, which a variable that is set later may make readable.
#[derive(Debug, Clone)]
enum Named {
    Read(Expr),
    Unread(Vec<String>),
}

/// A condition with a part that has no counterpart.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Unreadable {
    pub reason: String,
    /// A condition that holds at least as often.
    pub wider: Box<Expr>,
}

/// How patterns are compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Method {
    Exact,
    Begin,
    End,
    Inside,
    Segment,
    Domain,
    Regex,
    Found,
    Length,
    Number,
    Address,
    Bool,
}

impl Acls {
    /// Adds a line `acl NAME …`; several of one name are alternatives.
    pub(super) fn add(
        &mut self,
        name: &str,
        words: &[String],
        variables: &Variables,
        files: &dyn Files,
    ) -> Result<(), String> {
        let expr = test(words, variables, files);
        let result = expr.as_ref().map(|_| ()).map_err(Clone::clone);
        let named = expr.map_or_else(|_| Named::Unread(words.to_vec()), Named::Read);
        Rc::make_mut(&mut self.named).entry(name.to_owned()).or_default().push(named);
        result
    }

    /// Reads the condition after the words of a rule: nothing, `if …` or `unless …`.
    ///
    /// # Errors
    /// Returns a sentence if a part of it has no counterpart, with a condition that holds at least as often.
    pub(super) fn condition(
        &self,
        words: &[String],
        variables: &Variables,
        files: &dyn Files,
    ) -> Result<Expr, Unreadable> {
        let Some((first, rest)) = words.split_first() else { return Ok(Expr::True) };
        let mut unread = None;
        let found = self.alternatives(rest, variables, files, &mut unread);
        let expr = found.map_err(|reason| Unreadable { reason, wider: Box::new(Expr::True) })?;
        match (first.as_str(), unread) {
            ("if", None) => Ok(expr),
            ("unless", None) => Ok(expr.not()),
            ("if", Some(reason)) => Err(Unreadable { reason, wider: Box::new(expr) }),
            (_, Some(reason)) => Err(Unreadable { reason, wider: Box::new(Expr::True) }),
            (other, None) => Err(Unreadable {
                reason: format!("`{other}` is not a condition."),
                wider: Box::new(Expr::True),
            }),
        }
    }

    /// Reads alternatives. A part without a counterpart counts as true, with its reason in `unread`.
    fn alternatives(
        &self,
        words: &[String],
        variables: &Variables,
        files: &dyn Files,
        unread: &mut Option<String>,
    ) -> Result<Expr, String> {
        let mut any = Vec::new();
        let mut all = Vec::new();
        let mut at = 0;
        let mut is_negated = false;
        while let Some(word) = words.get(at) {
            at += 1;
            match word.as_str() {
                "or" | "||" => any.push(Expr::all(std::mem::take(&mut all))),
                "and" | "&&" => {}
                "!" => is_negated = !is_negated,
                "{" | "!{" => {
                    is_negated ^= word.starts_with('!');
                    let end =
                        words[at..].iter().position(|word| word == "}").ok_or("A brace is not closed.")?;
                    let expr = test(&words[at..at + end], variables, files);
                    at += end + 1;
                    all.push(counted(expr, std::mem::take(&mut is_negated), unread));
                }
                name => {
                    let bare = name.trim_start_matches('!');
                    is_negated ^= (name.len() - bare.len()) % 2 == 1;
                    let expr = self.named(bare, variables, files);
                    all.push(counted(expr, std::mem::take(&mut is_negated), unread));
                }
            }
        }
        any.push(Expr::all(all));
        Ok(Expr::any(any))
    }

    fn named(&self, name: &str, variables: &Variables, files: &dyn Files) -> Result<Expr, String> {
        if let Some(list) = self.named.get(name) {
            let read = |named: &Named| match named {
                Named::Read(expr) => Ok(expr.clone()),
                Named::Unread(words) => test(words, variables, files),
            };
            return list.iter().map(read).collect::<Result<Vec<_>, _>>().map(Expr::any);
        }
        predefined(name).ok_or_else(|| format!("The condition `{name}` is unknown."))
    }
}

/// A part of a condition, or true with its reason.
fn counted(expr: Result<Expr, String>, is_negated: bool, unread: &mut Option<String>) -> Expr {
    match expr {
        Ok(expr) if is_negated => expr.not(),
        Ok(expr) => expr,
        Err(reason) => {
            unread.get_or_insert(reason);
            Expr::True
        }
    }
}

/// HAProxy's own conditions.
fn predefined(name: &str) -> Option<Expr> {
    let methods =
        |list: &[&str]| atom(Some(json!(["request_method", "in", list])), method_lua(list), Subject::Other);
    Some(match name {
        "TRUE" | "HTTP" | "HTTP_1.1" | "HTTP_2.0" | "REQ_CONTENT" | "WAIT_END" | "HTTP_URL_SLASH" => {
            Expr::True
        }
        "FALSE" | "HTTP_URL_ABS" | "HTTP_URL_STAR" => Expr::False,
        "HTTP_1.0" => atom(
            Some(json!(["server_protocol", "==", "HTTP/1.0"])),
            "(ngx.var.server_protocol == \"HTTP/1.0\")".to_owned(),
            Subject::Other,
        ),
        "LOCALHOST" => networks("remote_addr", &["127.0.0.0/8".to_owned(), "::1".to_owned()]),
        "METH_GET" => methods(&["GET", "HEAD"]),
        "METH_CONNECT" | "METH_DELETE" | "METH_HEAD" | "METH_OPTIONS" | "METH_POST" | "METH_PUT"
        | "METH_TRACE" => methods(&[&name[5..]]),
        "HTTP_CONTENT" => atom(
            Some(json!(["content_length", ">", 0])),
            "((tonumber(ngx.var.content_length) or 0) > 0)".to_owned(),
            Subject::Other,
        ),
        _ => return None,
    })
}

fn method_lua(list: &[&str]) -> String {
    let parts: Vec<String> =
        list.iter().map(|name| format!("ngx.req.get_method() == {}", lua::text(name))).collect();
    format!("({})", parts.join(" or "))
}

fn atom(vars: Option<Value>, lua: String, subject: Subject) -> Expr {
    Expr::Atom(Atom { vars, lua, subject })
}

/// Reads `FETCH[,converter…] [flags] patterns…`.
fn test(words: &[String], variables: &Variables, files: &dyn Files) -> Result<Expr, String> {
    let (fetch, rest) = words.split_first().ok_or("A condition is empty.")?;
    let (fetch, mut method) = suffix(fetch);
    let sample = sample::read(&fetch, variables)?;
    let mut ignores_case = sample.lowered;
    let mut patterns: Vec<String> = Vec::new();
    let mut at = 0;
    while let Some(word) = rest.get(at) {
        at += 1;
        let mut next = || {
            let word = rest.get(at).cloned().unwrap_or_default();
            at += 1;
            word
        };
        match word.as_str() {
            "-i" => ignores_case = true,
            "-n" | "-M" => {}
            "-u" => drop(next()),
            "-m" => method = Some(match_method(&next())?),
            "-f" => patterns.extend(file_patterns(&next(), files)?),
            "--" => {
                patterns.extend(rest.get(at..).unwrap_or_default().iter().cloned());
                break;
            }
            _ => patterns.push(word.clone()),
        }
    }
    let method = method.unwrap_or(match sample.kind {
        Kind::Number => Method::Number,
        Kind::Address => Method::Address,
        Kind::Bool(_) => Method::Bool,
        _ => Method::Exact,
    });
    compare(&sample, method, ignores_case, patterns)
}

/// Splits a name such as `path_beg(…)` or `hdr_end(host)` into the fetch and its way of comparing.
fn suffix(fetch: &str) -> (String, Option<Method>) {
    let end = fetch.find(['(', ',']).unwrap_or(fetch.len());
    let (name, rest) = fetch.split_at(end);
    let known = [
        ("_beg", Method::Begin),
        ("_end", Method::End),
        ("_sub", Method::Inside),
        ("_dir", Method::Segment),
        ("_dom", Method::Domain),
        ("_reg", Method::Regex),
        ("_len", Method::Length),
    ];
    let bases = [
        "path",
        "hdr",
        "url",
        "base",
        "cook",
        "req.hdr",
        "req.cook",
        "urlp",
        "url_param",
        "res.hdr",
        "shdr",
        "ssl_fc_sni",
        "method",
        "query",
    ];
    for (ending, method) in known {
        if let Some(base) = name.strip_suffix(ending).filter(|base| bases.contains(base)) {
            return (format!("{base}{rest}"), Some(method));
        }
    }
    (fetch.to_owned(), None)
}

fn match_method(word: &str) -> Result<Method, String> {
    Ok(match word {
        "str" => Method::Exact,
        "beg" => Method::Begin,
        "end" => Method::End,
        "sub" => Method::Inside,
        "dir" => Method::Segment,
        "dom" => Method::Domain,
        "reg" => Method::Regex,
        "found" => Method::Found,
        "len" => Method::Length,
        "int" => Method::Number,
        "ip" => Method::Address,
        "bool" => Method::Bool,
        other => return Err(format!("The method `-m {other}` has no counterpart.")),
    })
}

/// The patterns of a file, one a line.
pub(super) fn file_patterns(path: &str, files: &dyn Files) -> Result<Vec<String>, String> {
    let text = files.read(path).map_err(|reason| format!("{path} cannot be read: {reason}."))?;
    let lines: Vec<String> = text
        .lines()
        .map(str::trim)
        .filter(|line| !line.is_empty() && !line.starts_with('#'))
        .map(str::to_owned)
        .collect();
    if lines.len() > MOST_PATTERNS {
        return Err(format!("{path} has more than {MOST_PATTERNS} patterns."));
    }
    Ok(lines)
}

/// The comparison of a sample with patterns, of which one must fit.
fn compare(
    sample: &Sample,
    method: Method,
    ignores_case: bool,
    patterns: Vec<String>,
) -> Result<Expr, String> {
    if let Kind::Special(subject) = &sample.kind {
        let by_lua = || computed_number(sample.lua.clone(), &patterns);
        return super::counters::compare(sample, subject, method == Method::Found, &patterns, by_lua);
    }
    match method {
        Method::Found => return Ok(found(sample)),
        Method::Bool => return boolean(sample, &patterns),
        Method::Number | Method::Length => return numbers(sample, method, &patterns),
        Method::Address => {
            let list: Vec<String> = patterns.iter().map(|text| network(text)).collect::<Result<_, _>>()?;
            return match &sample.variable {
                Some(variable) => Ok(networks(variable, &list)),
                None => Err("The address has no variable.".to_owned()),
            };
        }
        _ => {}
    }
    if patterns.is_empty() {
        return Err("The condition has no pattern.".to_owned());
    }
    if sample.kind == Kind::Method && method == Method::Exact {
        let list: Vec<&str> = patterns.iter().map(String::as_str).collect();
        return Ok(atom(Some(json!(["request_method", "in", list])), method_lua(&list), Subject::Other));
    }
    let regex = regex_of(sample, method, &patterns)?;
    // A text of a thousand patterns is still one expression.
    regex::RegexBuilder::new(&regex).size_limit(64 << 20).build().map_err(|_| {
        "The regular expression has a part that Sigma's engine lacks, such as look-around.".to_owned()
    })?;
    let subject = subject(sample, method, ignores_case, &patterns, &regex);
    let vars = sample.variable.as_ref().map(|variable| {
        let is_exact = method == Method::Exact && !ignores_case && !matches!(sample.kind, Kind::List);
        match &patterns[..] {
            [pattern] if is_exact => json!([variable, "==", pattern]),
            _ if is_exact => json!([variable, "in", patterns]),
            _ => json!([variable, if ignores_case { "~*" } else { "~~" }, regex]),
        }
    });
    let flags = if ignores_case { "joi" } else { "jo" };
    let value = if sample.kind == Kind::Number { format!("tostring({})", sample.lua) } else { whole(sample) };
    Ok(atom(vars, format!("matches({value}, {}, {})", lua::text(&regex), lua::text(flags)), subject))
}

/// The value of all occurrences of a field, of which one must fit.
fn whole(sample: &Sample) -> String {
    match &sample.variable {
        Some(variable) if sample.lua == format!("last(ngx.var.{variable})") => format!("ngx.var.{variable}"),
        _ => sample.lua.clone(),
    }
}

/// Paths and hosts that the router can find by tree.
fn subject(sample: &Sample, method: Method, ignores_case: bool, patterns: &[String], regex: &str) -> Subject {
    if sample.lua.contains("header(") {
        return Subject::Response;
    }
    match (&sample.kind, method) {
        (Kind::Path, Method::Exact | Method::Begin) if !ignores_case => {
            let path = |text: &String| match method {
                Method::Exact => Path::Exact(text.clone()),
                _ => Path::Prefix(text.clone()),
            };
            Subject::Paths(patterns.iter().map(path).collect())
        }
        (Kind::Path, _) => {
            Subject::Paths(vec![Path::Regex { pattern: regex.to_owned(), ignore_case: ignores_case }])
        }
        (Kind::Host, Method::Exact) if ignores_case => {
            let names = patterns.iter().map(|text| text.to_ascii_lowercase());
            Subject::Hosts(names.map(|name| name.split(':').next().unwrap_or_default().to_owned()).collect())
        }
        _ => Subject::Other,
    }
}

fn regex_of(sample: &Sample, method: Method, patterns: &[String]) -> Result<String, String> {
    if method == Method::Regex {
        return Ok(match patterns {
            [one] => one.clone(),
            many => many.iter().map(|text| format!("(?:{text})")).collect::<Vec<_>>().join("|"),
        });
    }
    let escaped: Vec<String> = patterns.iter().map(|text| regex::escape(text)).collect();
    let joined = match &escaped[..] {
        [one] => one.clone(),
        many => format!("(?:{})", many.join("|")),
    };
    // Values of a list are compared one by one.
    let (start, end) = match sample.kind {
        Kind::List => ("(?:^|,)[ \\t]*", "[ \\t]*(?:,|$)"),
        _ => ("^", "$"),
    };
    Ok(match method {
        Method::Begin => format!("{start}{joined}"),
        Method::End => format!("{joined}{end}"),
        Method::Inside => joined,
        Method::Segment => format!("(?:^|[/?]){joined}(?:[/?]|$)"),
        Method::Domain => format!("(?:^|[/?.:]){joined}(?:[/?.:]|$)"),
        Method::Exact => format!("{start}{joined}{end}"),
        _ => return Err("The comparison has no counterpart.".to_owned()),
    })
}

fn found(sample: &Sample) -> Expr {
    if let Some(name) = sample.variable.as_deref().and_then(|variable| variable.strip_prefix("arg_")) {
        // A name without `=` is not found.
        let regex = format!("(?:^|&){name}=");
        let lua = format!("matches(ngx.var.args, {}, \"jo\")", lua::text(&regex));
        return atom(Some(json!(["args", "~~", regex])), lua, Subject::Other);
    }
    let vars = sample.variable.as_ref().map(|variable| json!([variable, "~=", null]));
    let subject = if sample.lua.contains("header(") { Subject::Response } else { Subject::Other };
    atom(vars, format!("({} ~= nil)", whole(sample)), subject)
}

fn boolean(sample: &Sample, patterns: &[String]) -> Result<Expr, String> {
    let is_true = !matches!(patterns.first().map(String::as_str), Some("false" | "0" | "off" | "no"));
    let expr = match (&sample.kind, sample.lua.as_str()) {
        (Kind::Bool(None), "true") => Expr::True,
        (Kind::Bool(None), "false") => Expr::False,
        (Kind::Bool(vars), _) => atom(vars.clone(), sample.lua.clone(), Subject::Other),
        _ => return Err("The value is not true or false.".to_owned()),
    };
    Ok(if is_true { expr } else { expr.not() })
}

/// `gt 5`, `ge 5`, `5:10`, `5`.
fn numbers(sample: &Sample, method: Method, patterns: &[String]) -> Result<Expr, String> {
    let value = match method {
        Method::Length => format!("(#({} or \"\"))", sample.lua),
        _ => format!("tonumber({})", sample.lua),
    };
    let variable = sample.variable.as_ref().filter(|_| method == Method::Number);
    let parse = |text: &str| text.parse::<f64>().map_err(|_| format!("`{text}` is not a number."));
    let one = |operator: &str, number: f64| {
        if let Some(variable) = sample.variable.as_ref().filter(|_| method == Method::Length) {
            let whole = number.max(0.0) as u64;
            let regex = match operator {
                ">" => format!("(?s)^.{{{},}}$", whole + 1),
                ">=" => format!("(?s)^.{{{whole},}}$"),
                "<" => format!("(?s)^.{{0,{}}}$", whole.saturating_sub(1)),
                "<=" => format!("(?s)^.{{0,{whole}}}$"),
                _ => format!("(?s)^.{{{whole}}}$"),
            };
            return variable_matches(variable, &regex, false);
        }
        let vars = variable.map(|variable| match operator {
            "==" => json!(["AND", [variable, ">=", number], [variable, "<=", number]]),
            operator => json!([variable, operator, number]),
        });
        let subject = if sample.lua == "ngx.status" { Subject::Response } else { Subject::Other };
        atom(vars, format!("(({value} or 0/0) {operator} {number})"), subject)
    };
    let mut any = Vec::new();
    let mut words = patterns.iter();
    while let Some(word) = words.next() {
        let operator = match word.as_str() {
            "gt" => Some(">"),
            "ge" => Some(">="),
            "lt" => Some("<"),
            "le" => Some("<="),
            "eq" => Some("=="),
            _ => None,
        };
        if let Some(operator) = operator {
            any.push(one(operator, parse(words.next().map_or("", String::as_str))?));
        } else if let Some((low, high)) = word.split_once([':', '-']).filter(|(low, _)| !low.is_empty()) {
            let low = one(">=", parse(low)?);
            any.push(if high.is_empty() { low } else { Expr::all(vec![low, one("<=", parse(high)?)]) });
        } else {
            any.push(one("==", parse(word)?));
        }
    }
    if any.is_empty() { Ok(found(sample)) } else { Ok(Expr::any(any)) }
}

fn networks(variable: &str, list: &[String]) -> Expr {
    let quoted: Vec<String> = list.iter().map(|text| lua::text(text)).collect();
    let lua = format!("within(ngx.var.{variable}, {{ {} }})", quoted.join(", "));
    atom(Some(json!([variable, "ipmatch", list])), lua, Subject::Other)
}

/// The condition for one path.
pub(super) fn exact_path(path: &str) -> Expr {
    let regex = format!("^{}$", regex::escape(path));
    let lua = format!("matches(ngx.var.uri, {}, \"jo\")", lua::text(&regex));
    atom(Some(json!(["uri", "==", path])), lua, Subject::Paths(vec![Path::Exact(path.to_owned())]))
}

/// The condition for paths that a regular expression matches.
pub(super) fn path_regex(regex: &str) -> Option<Expr> {
    regex::Regex::new(regex).ok().map(|_| variable_matches("uri", regex, false))
}

/// Whether a condition depends on the path.
pub(super) fn reads_path(expr: &Expr) -> bool {
    let mut found = false;
    expr.atoms(&mut |atom| found |= atom_reads_path(atom));
    found
}

fn atom_reads_path(atom: &Atom) -> bool {
    let names = ["ngx.var.uri", "ngx.var.request_uri", "ngx.var.real_request_uri"];
    matches!(atom.subject, Subject::Paths(_)) || names.iter().any(|name| atom.lua.contains(name))
}

/// A condition that holds at least as often, and does not depend on the path.
pub(super) fn without_path(expr: Expr) -> Expr {
    match expr {
        Expr::All(list) => Expr::all(list.into_iter().map(without_path).collect()),
        Expr::Any(list) => Expr::any(list.into_iter().map(without_path).collect()),
        other if reads_path(&other) => Expr::True,
        other => other,
    }
}

/// A condition on a variable that must match a regular expression.
pub(super) fn variable_matches(variable: &str, regex: &str, ignores_case: bool) -> Expr {
    let (operator, flags) = if ignores_case { ("~*", "joi") } else { ("~~", "jo") };
    let lua = format!("matches(ngx.var.{variable}, {}, {})", lua::text(regex), lua::text(flags));
    atom(Some(json!([variable, operator, regex])), lua, Subject::Other)
}

/// A comparison of a number that Lua computes.
fn computed_number(lua: String, patterns: &[String]) -> Result<Expr, String> {
    numbers(&Sample::lua(lua, Kind::Number), Method::Number, patterns)
}

/// An address or network without host bits.
pub(super) fn network(text: &str) -> Result<String, String> {
    super::super::words::network(text).ok_or_else(|| format!("`{text}` is not an address or network."))
}

#[cfg(test)]
mod tests {
    use super::super::super::source::MemoryFiles;
    use super::*;

    fn words(text: &str) -> Vec<String> {
        text.split_whitespace().map(str::to_owned).collect()
    }

    fn vars(text: &str) -> Value {
        let acls = Acls::default();
        let expr = acls.condition(&words(text), &Variables::new(), &MemoryFiles::default()).expect(text);
        expr.vars().unwrap_or(Value::Null)
    }

    #[test]
    fn conditions_become_vars() {
        for (text, expected) in [
            ("if { path /a }", json!(["uri", "==", "/a"])),
            ("if { path_beg /a /b }", json!(["uri", "~~", "^(?:/a|/b)"])),
            ("if { path_end -i .png }", json!(["uri", "~*", "\\.png$"])),
            ("if { hdr(host) -i a.test }", json!(["http_host", "~*", "^a\\.test$"])),
            ("if { req.hdr(X-V) -m int lt 3 }", json!(["http_x_v", "<", 3.0])),
            ("if { src 10.0.0.1/8 }", json!(["remote_addr", "ipmatch", ["10.0.0.0/8"]])),
            ("unless METH_GET", json!(["request_method", "!", "in", ["GET", "HEAD"]])),
            ("if { url_param(debug) -m found }", json!(["args", "~~", "(?:^|&)debug="])),
            (
                "if { ssl_fc } !{ method POST }",
                json!(["AND", ["scheme", "==", "https"], ["request_method", "!", "in", ["POST"]]]),
            ),
            ("if { path /a } || { path /b }", json!(["OR", ["uri", "==", "/a"], ["uri", "==", "/b"]])),
            ("if { path_len gt 20 }", json!(["uri", "~~", "(?s)^.{21,}$"])),
            ("if { req.hdr(accept) de }", json!(["http_accept", "~~", "(?:^|,)[ \\t]*de[ \\t]*(?:,|$)"])),
        ] {
            assert_eq!(vars(text), expected, "{text}");
        }
    }

    #[test]
    fn names_are_alternatives() {
        let mut acls = Acls::default();
        let files = MemoryFiles::default();
        acls.add("x", &words("path /a"), &Variables::new(), &files).expect("a condition");
        acls.add("x", &words("path /b"), &Variables::new(), &files).expect("a condition");
        let expr = acls.condition(&words("if !x"), &Variables::new(), &files).expect("a condition");
        assert_eq!(expr.vars(), Some(json!(["!OR", ["uri", "==", "/a"], ["uri", "==", "/b"]])));
        assert!(acls.condition(&words("if y"), &Variables::new(), &files).is_err());
    }
}
