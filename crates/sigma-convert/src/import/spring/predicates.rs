//! Predicates: the conditions of a route.

use std::collections::BTreeMap;

use serde_json::{Value, json};
use sigma_schema::civil::Date;

use super::super::decision::{Host, Path};
use super::super::words::{header_variable, network};
use super::definition::Definition;
use super::pattern;
use super::settings::{Settings, relaxed};
use super::versions::VersionSource;

/// The conditions of a route, as its decision gets them.
#[derive(Debug, Default)]
pub(super) struct Conditions {
    pub paths: Vec<Path>,
    pub hosts: Vec<Host>,
    pub methods: Vec<String>,
    pub vars: Vec<Value>,
    /// Names of path variables.
    pub variables: Vec<String>,
    /// Variables of the host with the patterns that set them.
    pub host_variables: BTreeMap<String, Vec<Value>>,
    /// Group and weight.
    pub weight: Option<(String, u64)>,
    /// A method that routes cannot name: the route never matches here.
    pub never: bool,
}

/// The result of a predicate.
pub(super) enum Outcome {
    Done,
    Differs(&'static str),
    /// The condition cannot be said: the route is closed.
    Unknown(String),
}

/// Known methods of routes.
const METHODS: [&str; 10] =
    ["GET", "POST", "PUT", "DELETE", "PATCH", "HEAD", "OPTIONS", "CONNECT", "TRACE", "PURGE"];

impl Conditions {
    /// Adds a predicate.
    pub(super) fn add(&mut self, it: &Definition, settings: &Settings<'_>) -> Outcome {
        let result = match relaxed(&it.name).as_str() {
            "path" => self.path(it),
            "host" => self.host(it),
            "method" => self.method(it),
            "header" => self.header(it),
            "query" => self.query(it),
            "cookie" => self.cookie(it),
            "after" | "before" | "between" => self.time(it),
            "remoteaddr" => self.remote_addr(it),
            "xforwardedremoteaddr" => self.forwarded_addr(it),
            "weight" => self.weight(it),
            "version" => self.version(it, settings),
            other => {
                Err(format!("The predicate `{other}` is code of the application; the route returns 503."))
            }
        };
        result.unwrap_or_else(Outcome::Unknown)
    }

    fn path(&mut self, it: &Definition) -> Result<Outcome, String> {
        let slash = it.flag("matchTrailingSlash").unwrap_or(true);
        let patterns = it.many("patterns");
        let patterns = if patterns.is_empty() { it.many("pattern") } else { patterns };
        let mut paths = Vec::new();
        for pattern in &patterns {
            paths.extend(pattern::paths(pattern, slash)?);
            self.variables.extend(pattern::variables(pattern));
        }
        if patterns.is_empty() {
            return Err("The predicate has no pattern.".to_owned());
        }
        if self.paths.is_empty() {
            self.paths = paths;
        } else {
            // A second predicate is a further condition.
            self.vars.push(any(paths.iter().map(path_condition).collect()));
        }
        Ok(Outcome::Done)
    }

    fn host(&mut self, it: &Definition) -> Result<Outcome, String> {
        let mut hosts = Vec::new();
        let mut patterns = it.many("patterns");
        if patterns.is_empty() {
            patterns = it.many("pattern");
        }
        for pattern in &patterns {
            for host in pattern::host(pattern)? {
                if let Host::Regex(regex) = &host {
                    self.name_groups(regex);
                }
                if !hosts.contains(&host) {
                    hosts.push(host);
                }
            }
        }
        if hosts.is_empty() {
            return Err("The predicate has no pattern.".to_owned());
        }
        if !self.hosts.is_empty() {
            return Err(
                "A second predicate `Host` cannot be combined with the first one; join them.".to_owned()
            );
        }
        self.hosts = hosts;
        Ok(Outcome::Differs(
            "Sigma compares the host without its port; Spring compares both, so a request that names a port \
             matches here only.",
        ))
    }

    /// Remembers the groups of a host's expression.
    fn name_groups(&mut self, regex: &str) {
        let Ok(compiled) = regex::Regex::new(regex) else { return };
        for (number, name) in compiled.capture_names().enumerate() {
            let Some(name) = name else { continue };
            let entry = json!({"match": regex, "ignore_case": true, "value": format!("${{{number}}}")});
            self.host_variables.entry(name.to_owned()).or_default().push(entry);
        }
    }

    fn method(&mut self, it: &Definition) -> Result<Outcome, String> {
        let mut methods = it.many("methods");
        if methods.is_empty() {
            methods = it.many("method");
        }
        let known = |name: &String| METHODS.contains(&name.as_str());
        let methods: Vec<String> = methods.into_iter().map(|name| name.to_ascii_uppercase()).collect();
        if let Some(name) = methods.iter().find(|name| !known(name)) {
            return Err(format!("Routes cannot name the method {name}."));
        }
        if self.methods.is_empty() {
            self.methods = methods;
        } else {
            self.methods.retain(|name| methods.contains(name));
            self.never |= self.methods.is_empty();
        }
        Ok(Outcome::Done)
    }

    fn header(&mut self, it: &Definition) -> Result<Outcome, String> {
        let name = it.one("header").or_else(|| it.one("name")).ok_or("The predicate has no header.")?;
        let variable = header_variable(name)?;
        self.vars.push(match it.one("regexp").filter(|text| !text.is_empty()) {
            Some(regexp) => json!([variable, "~~", pattern::full(regexp)?]),
            None => json!([variable, "~=", null]),
        });
        Ok(Outcome::Done)
    }

    fn query(&mut self, it: &Definition) -> Result<Outcome, String> {
        let name = it.one("param").or_else(|| it.one("name")).ok_or("The predicate has no parameter.")?;
        let escaped = regex::escape(name);
        self.vars.push(match it.one("regexp").filter(|text| !text.is_empty()) {
            Some(regexp) if is_variable(name) => {
                json!([format!("arg_{name}"), "~~", pattern::full(regexp)?])
            }
            Some(_) => return Err(format!("The argument `{name}` cannot be a variable.")),
            None => json!(["args", "~~", format!("(?:^|&){escaped}(?:[=&]|$)")]),
        });
        Ok(Outcome::Done)
    }

    fn cookie(&mut self, it: &Definition) -> Result<Outcome, String> {
        let name = it.one("name").ok_or("The predicate has no cookie.")?;
        if !is_variable(name) {
            return Err(format!("The cookie `{name}` cannot be a variable."));
        }
        let variable = format!("cookie_{name}");
        self.vars.push(match it.one("regexp").filter(|text| !text.is_empty()) {
            Some(regexp) => json!([variable, "~~", pattern::full(regexp)?]),
            None => json!([variable, "~=", null]),
        });
        Ok(Outcome::Done)
    }

    fn time(&mut self, it: &Definition) -> Result<Outcome, String> {
        let at = |name: &str| {
            let text = it.one(name).ok_or("The predicate has no date.".to_owned())?;
            seconds(text).ok_or(format!("`{text}` is not a date with an offset."))
        };
        match relaxed(&it.name).as_str() {
            "after" => self.vars.push(json!(["msec", ">", at("datetime")?])),
            "before" => self.vars.push(json!(["msec", "<", at("datetime")?])),
            _ => {
                self.vars.push(json!(["msec", ">", at("datetime1")?]));
                self.vars.push(json!(["msec", "<", at("datetime2")?]));
            }
        }
        Ok(Outcome::Done)
    }

    fn remote_addr(&mut self, it: &Definition) -> Result<Outcome, String> {
        let networks: Vec<String> = it
            .many("sources")
            .iter()
            .map(|text| network(text))
            .collect::<Option<_>>()
            .ok_or("A source is not an address or network.")?;
        if networks.is_empty() {
            return Err("The predicate has no source.".to_owned());
        }
        self.vars.push(json!(["remote_addr", "ipmatch", networks]));
        Ok(Outcome::Done)
    }

    fn forwarded_addr(&mut self, it: &Definition) -> Result<Outcome, String> {
        let _ = it;
        Err("Sigma reads X-Forwarded-For from proxies in `trusted_addresses` only: set them with \
             `client_address`, then write `RemoteAddr` and convert again."
            .to_owned())
    }

    fn weight(&mut self, it: &Definition) -> Result<Outcome, String> {
        let group = it.one("group").ok_or("The predicate has no group.")?;
        let weight =
            it.one("weight").and_then(|text| text.parse().ok()).ok_or("The weight is not a number.")?;
        self.weight = Some((group.to_owned(), weight));
        Ok(Outcome::Done)
    }

    fn version(&mut self, it: &Definition, settings: &Settings<'_>) -> Result<Outcome, String> {
        let version = it.one("version").ok_or("The predicate has no version.")?;
        let condition = VersionSource::read(settings)?.condition(version)?;
        self.vars.push(condition);
        Ok(Outcome::Differs(
            "Spring answers 400 to a request without a version, or with an unsupported one; here no such route \
             matches it.",
        ))
    }
}

/// A path as a condition.
fn path_condition(path: &Path) -> Value {
    match path {
        Path::Exact(text) => json!(["uri", "==", text]),
        Path::Prefix(text) => json!(["uri", "~~", format!("^{}", regex::escape(text))]),
        Path::Segments(text) => json!(["uri", "~~", format!("^{}(?:/|$)", regex::escape(text))]),
        Path::Regex { pattern, .. } => json!(["uri", "~~", pattern]),
    }
}

/// A condition that holds if one of them holds.
fn any(mut conditions: Vec<Value>) -> Value {
    match conditions.len() {
        1 => conditions.remove(0),
        _ => {
            conditions.insert(0, "OR".into());
            Value::Array(conditions)
        }
    }
}

fn is_variable(name: &str) -> bool {
    !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
}

/// Unix seconds of an ISO date with offset, such as `2017-01-20T17:42:47.789-07:00[America/Denver]`, or of
/// milliseconds.
fn seconds(text: &str) -> Option<f64> {
    let text = text.split('[').next()?.trim();
    if let Ok(milliseconds) = text.parse::<f64>() {
        return Some(milliseconds / 1000.0);
    }
    let (date, rest) = text.split_once('T')?;
    let mut parts = date.rsplitn(3, '-');
    let mut part = || parts.next()?.parse::<i64>().ok();
    let (day, month, year) = (part()?, part()?, part()?);
    let days = Date::new(year, month, day)?.days_since_1970();
    let (time, offset) = match rest.find(['Z', '+']).or_else(|| rest.rfind('-')) {
        Some(at) => (&rest[..at], &rest[at..]),
        None => return None,
    };
    let offset = match offset {
        "Z" => 0.0,
        _ => {
            let sign = if offset.starts_with('-') { -1.0 } else { 1.0 };
            let mut parts = offset[1..].split(':').map(number);
            sign * (parts.next()?? * 3600.0 + parts.next().flatten().unwrap_or(0.0) * 60.0)
        }
    };
    let mut parts = time.split(':').map(|part| part.parse::<f64>().ok());
    let (hours, minutes) = (parts.next()??, parts.next()??);
    let within = hours * 3600.0 + minutes * 60.0 + parts.next().flatten().unwrap_or(0.0);
    Some(days as f64 * 86_400.0 + within - offset)
}

fn number(text: &str) -> Option<f64> {
    text.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_are_unix_seconds() {
        assert_eq!(seconds("1970-01-02T00:00:00Z"), Some(86_400.0));
        assert_eq!(seconds("2017-01-20T17:42:47.789-07:00[America/Denver]"), Some(1_484_959_367.789));
        assert_eq!(seconds("2099-01-01T00:00:00+01:00[Europe/Berlin]"), Some(4_070_905_200.0));
        assert_eq!(seconds("tomorrow"), None);
    }
}
