//! Rules of requests and responses: `http-request`, `tcp-request`, `http-response`.

use serde_json::json;

use super::super::decision::Target;
use super::acl::Unreadable;
use super::action;
use super::chain::{Scope, concerned};
use super::effects::{Auth, Change, FieldRule};
use super::expr::{Atom, Expr, Subject};
use super::format;
use super::lua;
use super::parser::Line;
use super::proxy::Proxy;
use super::sample;
use super::value::{Kind, Sample};
use super::{Outcome, Translation};

/// The remark on conditions after rules that change the path.
pub(super) const PATH_BEFORE: &str = "The condition sees the path before the rules that change it.";

impl Translation<'_, '_> {
    /// Reads a rule; its action is the word at `at`.
    pub(super) fn rule(&mut self, line: &Line, at: usize, scope: &mut Scope) {
        let (words, condition) = action::parts(line.from(at));
        let expr = scope.acls.condition(condition, &scope.variables, self.input.access);
        let name = words.first().map_or("", String::as_str);
        let (name, argument) = match name.split_once('(') {
            Some((name, rest)) => (name, rest.trim_end_matches(')')),
            None => (name, ""),
        };
        match name {
            "deny" | "reject" | "tarpit" | "silent-drop" | "return" | "auth" => {
                self.guard(line, name, words, expr, scope);
            }
            "redirect" => self.redirect(line, line.from(at + 1).to_vec(), scope),
            "allow" | "accept" => match expr {
                Ok(expr) => {
                    if line.word(0) == "http-request" && expr != Expr::True {
                        scope.effects.skipped.push(expr);
                    }
                    self.tell(line, Outcome::Done, "");
                }
                // Rules after it apply to more requests, never to fewer.
                Err(unread) => self.tell(line, Outcome::Missing, unread.reason),
            },
            "inspect-delay" | "wait-for-handshake" | "disable-l7-retry" | "normalize-uri" | "strict-mode" => {
                self.tell(line, Outcome::Nothing, "Sigma does not need this step.");
            }
            "capture"
            | "set-log-level"
            | "set-nice"
            | "set-tos"
            | "set-mark"
            | "set-priority-class"
            | "set-priority-offset"
            | "early-hint"
            | "unset-var"
            | "set-bandwidth-limit" => {
                self.tell(line, Outcome::Nothing, "It has no effect here.");
            }
            "send-spoe-group" => self.agent(line, scope),
            "wait-for-body" => {
                scope.effects.plugins.insert("proxy-control".to_owned(), json!({"request_buffering": true}));
                self.tell(line, Outcome::Done, "");
            }
            _ => self.effect(line, name, argument, words, expr, scope),
        }
    }

    /// Rules that change what continues.
    fn effect(
        &mut self,
        line: &Line,
        name: &str,
        argument: &str,
        words: &[String],
        expr: Result<Expr, Unreadable>,
        scope: &mut Scope,
    ) {
        let expr = match expr {
            Ok(expr) => scope.effects.guarded(expr),
            Err(unread) => return self.tell(line, Outcome::Missing, unread.reason),
        };
        let is_late = super::acl::reads_path(&expr) && !scope.effects.paths.is_empty();
        let result = match name {
            "set-header" | "add-header" | "del-header" | "replace-header" | "replace-value" => {
                field_rule(name, words, expr, scope).map(|rule| scope.effects.request.push(rule))
            }
            "set-path" | "set-pathq" | "replace-path" | "replace-pathq" | "set-query" | "set-uri"
            | "replace-uri" | "set-method" => match super::paths::rule(name, words, expr.clone(), scope) {
                Ok(rule) => {
                    let fields = &rule.fields;
                    let joins =
                        |known: &super::effects::PathRule| super::effects::join(&known.fields, fields);
                    let is_joined = scope.effects.paths.iter().all(joins);
                    scope.effects.paths.push(rule);
                    match is_joined {
                        true => Ok(()),
                        false => {
                            Err("Of several changes of the path, the last one has an effect.".to_owned())
                        }
                    }
                }
                Err(reason) => computed_path(name, words, expr, scope).map_err(|_| reason),
            },
            "set-var" | "set-var-fmt" => set_variable(name, argument, words, expr, scope),
            "set-src" => set_source(words, scope),
            "cache-use" => {
                let cache = self.cache(words.get(1).map_or("", String::as_str));
                scope.effects.fields.insert("cache".to_owned(), cache);
                Ok(())
            }
            "use-service" => {
                self.tell(
                    line,
                    Outcome::Differs,
                    "The plugin prometheus has Sigma's own metrics; this path returns 404.",
                );
                let target = Target::Respond { status: 404, body: None, headers: Vec::new() };
                self.decide(line, scope, expr, target);
                return;
            }
            name if name.starts_with("track-sc") => super::limits::track(name, words, expr, scope),
            name if name.starts_with("sc-") => Ok(()),
            name if name.starts_with("lua.") || name == "lua" => {
                self.tell(line, Outcome::Guard, "Lua for HAProxy may guard access, so later routes are closed: write it as serverless-pre-function.");
                scope.effects.closed.get_or_insert_with(|| "Lua of HAProxy".to_owned());
                return;
            }
            other => Err(format!("`{other}` has no counterpart.")),
        };
        let has_path =
            words.iter().any(|word| word.contains("path") || word.contains("url") || word.contains("base"));
        match result {
            Ok(()) if is_late => self.tell(line, Outcome::Differs, PATH_BEFORE),
            Ok(()) if name.ends_with("header") && has_path && !scope.effects.paths.is_empty() => {
                self.tell(line, Outcome::Differs, "The value has the path before the rules that change it.");
            }
            Ok(()) => self.tell(line, Outcome::Done, ""),
            Err(reason) => self.tell(line, Outcome::Missing, reason),
        }
    }

    /// Rules that end a request. One that cannot be said closes everything after it.
    fn guard(
        &mut self,
        line: &Line,
        name: &str,
        words: &[String],
        expr: Result<Expr, Unreadable>,
        scope: &mut Scope,
    ) {
        let expr = match expr {
            Ok(expr) => expr,
            Err(Unreadable { reason, wider }) => return self.close_within(line, scope, *wider, &reason),
        };
        if super::acl::reads_path(&expr) && !scope.effects.paths.is_empty() {
            if name == "return" {
                self.tell(line, Outcome::Differs, PATH_BEFORE);
            } else {
                // The new path may be one that the rule refuses.
                let changed = scope.effects.changed_paths();
                let wider = Expr::all(vec![super::acl::without_path(expr.clone()), changed]);
                self.close_within(line, scope, wider, "The condition sees the path after a change.");
            }
        }
        if expr.has(|subject| matches!(subject, Subject::Credentials(_))) {
            return self.login(line, name, words, expr, scope);
        }
        if expr.has(|subject| matches!(subject, Subject::Above { .. })) {
            return self.limit(line, name, words, expr, scope);
        }
        if name == "auth" {
            return self.close(line, scope, "`auth` needs a list of users.");
        }
        let default = if name == "return" { 200 } else { 403 };
        let target = match name {
            "reject" | "silent-drop" => Ok(Target::Drop),
            _ => action::respond(words, default, &scope.variables, self.input.access),
        };
        match target {
            Ok(target) => {
                match name {
                    "tarpit" => self.tell(line, Outcome::Differs, "The response is not delayed."),
                    _ => self.tell(line, Outcome::Done, ""),
                }
                self.decide(line, scope, expr, target);
            }
            Err(_) if action::computed_response(words, default, &scope.variables).is_ok() => {
                self.tell(line, Outcome::Done, "");
                let code = action::computed_response(words, default, &scope.variables);
                self.reply(line, scope, expr, code.unwrap_or_default());
            }
            // The refusal itself counts, its text does not.
            Err(reason) if name != "return" => {
                self.tell(line, Outcome::Differs, reason);
                self.decide(
                    line,
                    scope,
                    expr,
                    Target::Respond { status: 403, body: None, headers: Vec::new() },
                );
            }
            Err(reason) => {
                self.tell(line, Outcome::Missing, format!("{reason} The route answers 503."));
                self.decide(line, scope, expr, Target::Closed(reason));
            }
        }
    }

    pub(super) fn close(&mut self, line: &Line, scope: &mut Scope, reason: &str) {
        self.tell(line, Outcome::Guard, format!("{reason} Later routes are closed."));
        scope.effects.closed.get_or_insert_with(|| reason.to_owned());
    }

    /// Closes the requests that a guard without a counterpart may concern.
    pub(super) fn close_within(&mut self, line: &Line, scope: &mut Scope, wider: Expr, reason: &str) {
        let wider = scope.effects.guarded(wider).without(&|subject| {
            matches!(subject, Subject::Above { .. } | Subject::Credentials(_) | Subject::Response)
        });
        if wider == Expr::True {
            return self.close(line, scope, reason);
        }
        self.tell(line, Outcome::Guard, format!("{reason} {} are closed.", concerned(&wider)));
        self.decide(line, scope, wider, Target::Closed(reason.to_owned()));
    }

    /// `auth` or `deny` unless the credentials are in a list.
    fn login(&mut self, line: &Line, name: &str, words: &[String], expr: Expr, scope: &mut Scope) {
        let mut list = None;
        let mut rest = Vec::new();
        for part in scope.effects.guarded(expr).conjuncts() {
            match &part {
                Expr::Not(inner) => match &**inner {
                    Expr::Atom(Atom { subject: Subject::Credentials(name), .. }) => list = Some(name.clone()),
                    _ => rest.push(part),
                },
                _ => rest.push(part),
            }
        }
        let condition = Expr::all(rest);
        let is_plain =
            !condition.has(|subject| matches!(subject, Subject::Credentials(_) | Subject::Above { .. }));
        let list = list.filter(|_| is_plain).unwrap_or_default();
        let (name_of_list, groups) = list.split_once(' ').unwrap_or((&list, ""));
        let groups: Vec<&str> = groups.split_whitespace().collect();
        let fields = self.users.get(name_of_list).map(|section| super::users::fields(section, &groups));
        let Some(fields) = fields else {
            let reason = "The condition on credentials has no counterpart.";
            return self.close_within(line, scope, condition, reason);
        };
        if scope.effects.auth.is_some() {
            let reason = "A route cannot have a second list of users.";
            return self.close_within(line, scope, condition, reason);
        }
        let mut fields = match fields {
            Ok(fields) => fields,
            Err(reason) => return self.close_within(line, scope, condition, &reason),
        };
        let realm = words.iter().position(|word| word == "realm").and_then(|at| words.get(at + 1));
        if let Some(realm) = realm {
            fields.insert("realm".to_owned(), realm.clone().into());
        }
        scope.effects.auth = Some(Auth { condition, fields });
        match name {
            "auth" => self.tell(line, Outcome::Done, ""),
            _ => self.tell(
                line,
                Outcome::Differs,
                "Clients without credentials get 401, not the status of the line.",
            ),
        }
    }

    /// A rule of responses.
    pub(super) fn response_rule(&mut self, line: &Line, scope: &mut Scope) {
        let (words, condition) = action::parts(line.from(1));
        let expr = match scope.acls.condition(condition, &scope.variables, self.input.access) {
            Ok(expr) => expr,
            Err(unread) => return self.tell(line, Outcome::Missing, unread.reason),
        };
        let name = words.first().map_or("", String::as_str);
        match name {
            "set-header" | "add-header" | "del-header" | "replace-header" | "replace-value" => {
                match field_rule(name, words, expr, scope) {
                    Ok(rule) => {
                        scope.effects.response.push(rule);
                        self.tell(line, Outcome::Done, "");
                    }
                    Err(reason) => self.tell(line, Outcome::Missing, reason),
                }
            }
            "set-status" if expr == Expr::True => {
                let status = words.get(1).and_then(|text| text.parse::<u16>().ok()).unwrap_or(200);
                scope.effects.plugins.insert("response-rewrite".to_owned(), json!({"status_code": status}));
                self.tell(line, Outcome::Done, "");
            }
            "set-status" => {
                let status = words.get(1).and_then(|text| text.parse::<u16>().ok()).unwrap_or(200);
                let change = Change::Statement(format!("ngx.status = {status}"));
                scope.effects.response.push(FieldRule { condition: expr, name: String::new(), change });
                self.tell(line, Outcome::Done, "");
            }
            "cache-store" => {
                let cache = self.cache(words.get(1).map_or("", String::as_str));
                scope.effects.fields.insert("cache".to_owned(), cache);
                self.tell(line, Outcome::Done, "");
            }
            "deny" => {
                self.tell(
                    line,
                    Outcome::Guard,
                    "Responses cannot be refused by their fields; later routes are closed.",
                );
                scope.effects.closed.get_or_insert_with(|| "a rule denies responses".to_owned());
            }
            "allow" | "capture" | "set-log-level" | "set-nice" | "set-tos" | "set-mark" | "sc-inc-gpc0"
            | "strict-mode" => {
                self.tell(line, Outcome::Nothing, "It has no effect here.");
            }
            other => self.tell(line, Outcome::Missing, format!("`{other}` of responses has no counterpart.")),
        }
    }

    /// Settings of a proxy that act on each request.
    pub(super) fn proxy_effects(&mut self, proxy: &Proxy, scope: &mut Scope) {
        if let Some(line) = proxy.option("forwardfor") {
            let after = |name: &str| {
                line.words.iter().position(|word| word == name).and_then(|at| line.words.get(at + 1))
            };
            let is_absent = line.words.iter().any(|word| word == "if-none");
            match after("header") {
                Some(name) if !name.eq_ignore_ascii_case("x-forwarded-for") => {
                    let text = format::Text {
                        template: Some("${remote_addr}".to_owned()),
                        lua: "ngx.var.remote_addr".to_owned(),
                    };
                    let variable = super::super::words::header_variable(name).unwrap_or_default();
                    let text = match is_absent {
                        true => format::Text {
                            template: Some(format!("${{{variable} ?? ${{remote_addr}}}}")).filter(|_| false),
                            lua: format!("ngx.var.{variable} or ngx.var.remote_addr"),
                        },
                        false => text,
                    };
                    let change = if is_absent { Change::Set(text) } else { Change::Add(text) };
                    scope.effects.request.push(FieldRule {
                        condition: Expr::True,
                        name: name.clone(),
                        change,
                    });
                    self.tell(line, Outcome::Done, "");
                }
                _ if after("except").is_some() || is_absent => {
                    self.tell(line, Outcome::Differs, "X-Forwarded-For is always sent.");
                }
                _ => self.tell(line, Outcome::Done, ""),
            }
        }
        let algorithms: Vec<&str> =
            proxy.all(&["compression", "algo"]).flat_map(|line| line.from(2)).map(String::as_str).collect();
        if algorithms.iter().any(|name| matches!(*name, "gzip" | "deflate" | "raw-deflate")) {
            let types: Vec<&String> =
                proxy.all(&["compression", "type"]).flat_map(|line| line.from(2)).collect();
            let types = if types.is_empty() { json!("*") } else { json!(types) };
            let gzip = json!({"types": types, "min_length": 1, "vary": true,
                "_meta": {"filter": [["http_accept_encoding", "~*", "gzip|\\*"]]}});
            scope.effects.plugins.insert("gzip".to_owned(), gzip);
        }
        let pages = self.error_pages(proxy);
        if !pages.is_empty() {
            scope.effects.plugins.insert("error-page".to_owned(), json!({"pages": pages}));
        }
    }
}

/// A change of a header field.
fn field_rule(name: &str, words: &[String], condition: Expr, scope: &Scope) -> Result<FieldRule, String> {
    let field = words.get(1).ok_or("The field has no name.")?.clone();
    let text = |at: usize| format::read(words.get(at).map_or("", String::as_str), &scope.variables);
    let change = match name {
        "set-header" => Change::Set(text(2)?),
        "add-header" => Change::Add(text(2)?),
        "del-header" => {
            if words.get(2).is_some_and(|word| word == "-m") && words.get(3).is_none_or(|word| word != "str")
            {
                return Err("Fields can only be removed by their whole name.".to_owned());
            }
            Change::Delete
        }
        _ => {
            let regex = words.get(2).ok_or("There is no regular expression.")?.clone();
            regex::Regex::new(&regex).map_err(|_| "The regular expression is not supported.")?;
            let by = words.get(3).map_or("", String::as_str);
            if by.contains("%[") {
                return Err("The replacement has a value of the request.".to_owned());
            }
            Change::Replace {
                regex,
                by: lua::replacement(&by.replace("%%", "%")),
                each: name == "replace-value",
            }
        }
    };
    Ok(FieldRule { condition, name: field, change })
}

fn set_variable(
    name: &str,
    argument: &str,
    words: &[String],
    condition: Expr,
    scope: &mut Scope,
) -> Result<(), String> {
    let variable = argument.split(',').next().unwrap_or_default().trim().to_owned();
    let text = words.get(1..).unwrap_or_default().join(" ");
    let sample = match name {
        "set-var" => sample::read(&text, &scope.variables)?,
        _ => {
            let text = format::read(&text, &scope.variables)?;
            Sample {
                variable: None,
                text: text.template,
                lua: format!("({})", text.lua),
                lowered: false,
                kind: Kind::Text,
            }
        }
    };
    let sample = match condition {
        Expr::True => sample,
        condition
            if condition
                .has(|subject| matches!(subject, Subject::Above { .. } | Subject::Credentials(_))) =>
        {
            scope.variables.remove(&variable);
            return Err("The condition of the variable asks for a counter or a login.".to_owned());
        }
        condition => {
            let before = scope.variables.get(&variable).map_or("nil", |known| known.lua.as_str());
            let value = format!("(({}) and ({} or \"\") or {before})", condition.lua(), sample.lua);
            Sample { lowered: sample.lowered, ..Sample::lua(value, Kind::Text) }
        }
    };
    scope.variables.insert(variable, sample);
    Ok(())
}

/// A change of the path or query that Lua has to compute.
fn computed_path(name: &str, words: &[String], condition: Expr, scope: &mut Scope) -> Result<(), String> {
    let call = match name {
        "set-query" => "ngx.req.set_uri_args",
        "set-path" => "ngx.req.set_uri",
        _ => return Err("The change has no counterpart.".to_owned()),
    };
    if !scope.effects.paths.is_empty() {
        return Err("Another line changes the path.".to_owned());
    }
    let text = format::read(words.get(1).map_or("", String::as_str), &scope.variables)?;
    let change = Change::Statement(format!("{call}({})", text.lua));
    scope.effects.request.push(FieldRule { condition, name: String::new(), change });
    Ok(())
}

fn set_source(words: &[String], scope: &mut Scope) -> Result<(), String> {
    let text = words.get(1).map_or("", String::as_str);
    let sample = sample::read(text, &scope.variables)?;
    let source = sample.variable.ok_or("The address has no variable.")?;
    scope.effects.plugins.insert("real-ip".to_owned(), json!({"source": source, "trust_any_peer": true}));
    Ok(())
}
