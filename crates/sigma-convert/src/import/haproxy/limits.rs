//! Limits on the counters of stick tables.

use serde_json::{Map, Value, json};

use super::super::decision::Target;
use super::action;
use super::chain::{Scope, Tracked};
use super::effects::Limit;
use super::expr::{Atom, Expr, Subject};
use super::parser::Line;
use super::proxy::milliseconds;
use super::sample;
use super::{Outcome, Translation};

/// The index of keys that are tracked by their name alone, such as `src_http_req_rate`.
const UNTRACKED: u8 = u8::MAX;

impl Translation<'_, '_> {
    /// `deny if { sc_http_req_rate(0) gt N }`.
    pub(super) fn limit(&mut self, line: &Line, name: &str, words: &[String], expr: Expr, scope: &mut Scope) {
        let mut above = None;
        let mut rest = Vec::new();
        for part in scope.effects.guarded(expr).conjuncts() {
            match &part {
                Expr::Atom(Atom { subject: subject @ Subject::Above { .. }, .. }) if above.is_none() => {
                    above = Some(subject.clone());
                }
                _ => rest.push(part),
            }
        }
        let Some(Subject::Above { counter, index, table, number }) = above else {
            let reason = "A condition on a counter cannot be one of several alternatives.";
            return self.close_within(line, scope, Expr::all(rest), reason);
        };
        let tracked = match index {
            UNTRACKED => Some(Tracked {
                key: Some("remote_addr".to_owned()),
                condition: Expr::True,
                table: table.unwrap_or_else(|| scope.name.clone()),
            }),
            index => scope.tracked.get(&index).cloned(),
        };
        let Some(Tracked { key: Some(key), condition, table }) = tracked else {
            return self.close_within(
                line,
                scope,
                Expr::all(rest),
                "The key of the counter has no variable.",
            );
        };
        rest.push(condition);
        let condition = Expr::all(rest);
        let response = match name {
            "reject" | "silent-drop" => Ok(Target::Respond { status: 429, body: None, headers: Vec::new() }),
            "return" => action::respond(words, 429, &scope.variables, self.input.access),
            _ => action::respond(words, 403, &scope.variables, self.input.access),
        };
        let (status, body) = match response {
            Ok(Target::Respond { status, body, headers }) => {
                let kind = headers.into_iter().find(|(name, _)| name == "Content-Type");
                if let Some((_, kind)) = kind.filter(|_| body.is_some()) {
                    scope.effects.refusals.push((status, kind));
                }
                (status, body)
            }
            _ => (429, None),
        };
        let rates = self.rates.get(&table).or_else(|| self.rates.get(&scope.name));
        let period = rates.and_then(|rates| rates.get(&counter)).copied();
        match limit(&counter, &key, number, period, status, body) {
            Ok((plugin, mut fields)) => {
                if plugin == "limit-count" {
                    // All routes of the rule share its counters.
                    let group = format!("line-{}-{}", line.place.file, line.place.line);
                    fields.insert("group".to_owned(), group.into());
                }
                scope.effects.limits.push(Limit { condition, plugin, fields });
                let text = "Refused requests do not count here. HAProxy counts them too, so it refuses a client that keeps sending for longer.";
                self.tell(line, Outcome::Differs, text);
            }
            Err(reason) => self.close_within(line, scope, condition, &reason),
        }
    }
}

/// `track-sc0`: the key of later counters.
pub(super) fn track(name: &str, words: &[String], condition: Expr, scope: &mut Scope) -> Result<(), String> {
    let index = name.trim_start_matches("track-sc").parse().map_err(|_| "The counter has no number.")?;
    let text = words.get(1).map_or("", String::as_str);
    let sample = sample::read(text, &scope.variables);
    let table = words.iter().position(|word| word == "table").and_then(|at| words.get(at + 1));
    let table = table.cloned().unwrap_or_else(|| scope.name.clone());
    let key = sample.ok().and_then(|sample| sample.variable);
    let result = if key.is_some() {
        Ok(())
    } else {
        Err("The key has no variable; limits on it close their routes.".to_owned())
    };
    // A key that is absent is not tracked.
    let condition = match &key {
        Some(key) if key.starts_with("http_") || key.starts_with("arg_") || key.starts_with("cookie_") => {
            let present = Expr::Atom(Atom {
                vars: Some(json!([key, "~=", null])),
                lua: format!("(ngx.var.{key} ~= nil)"),
                subject: Subject::Other,
            });
            Expr::all(vec![condition, present])
        }
        _ => condition,
    };
    scope.tracked.insert(index, Tracked { key, condition, table });
    result
}

/// The plugin of a limit.
fn limit(
    counter: &str,
    key: &str,
    number: u64,
    period: Option<u64>,
    status: u16,
    body: Option<String>,
) -> Result<(&'static str, Map<String, Value>), String> {
    let mut fields = Map::new();
    fields.insert("key".to_owned(), key.into());
    fields.insert("key_type".to_owned(), "var".into());
    fields.insert("rejected_code".to_owned(), status.into());
    if let Some(body) = body.filter(|body| !body.is_empty()) {
        fields.insert("_meta".to_owned(), json!({"error_response": body}));
    }
    match counter {
        "http_req_rate" | "conn_rate" | "sess_rate" => {
            let period = period.ok_or("No stick table stores this rate.")?;
            let seconds = period.div_ceil(1000).max(1);
            if number == 0 {
                return Err("A limit of 0 requests refuses all requests.".to_owned());
            }
            fields.insert("count".to_owned(), number.into());
            fields.insert("time_window".to_owned(), seconds.into());
            fields.insert("window_type".to_owned(), "sliding".into());
            fields.insert("show_limit_quota_header".to_owned(), false.into());
            Ok(("limit-count", fields))
        }
        "conn_cur" => {
            fields.insert("conn".to_owned(), number.max(1).into());
            fields.insert("burst".to_owned(), 0.into());
            fields.insert("default_conn_delay".to_owned(), json!(0.1));
            Ok(("limit-conn", fields))
        }
        other => Err(format!("The counter `{other}` has no counterpart.")),
    }
}

/// The periods of the rates that a stick table stores, in milliseconds.
pub(super) fn rates(line: &Line) -> std::collections::HashMap<String, u64> {
    let store = line.words.iter().position(|word| word == "store").and_then(|at| line.words.get(at + 1));
    let mut rates = std::collections::HashMap::new();
    for part in store.map_or("", String::as_str).split(',') {
        if let Some((name, rest)) = part.split_once('(') {
            rates.insert(name.trim().to_owned(), milliseconds(rest.trim_end_matches(')')).unwrap_or(1000));
        }
    }
    rates
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stick_tables_have_rates() {
        let line = Line {
            place: super::super::super::source::SourceLine::default(),
            words: "stick-table type ip size 1m store http_req_rate(60s),gpc0"
                .split(' ')
                .map(str::to_owned)
                .collect(),
            raw: String::new(),
        };
        assert_eq!(rates(&line).get("http_req_rate"), Some(&60_000));
    }
}
