//! `proxy_cache` and `fastcgi_cache`.

use serde_json::{Map, Value, json};

use super::super::report::Verdict;
use super::converter::Converter;
use super::level::{Level, milliseconds};
use super::state::State;
use super::texts::{Piece, pieces};

impl<'a> Converter<'a> {
    /// `proxy_cache` and its relatives.
    pub(super) fn cache(&mut self, level: &Level<'a>, state: &State<'a>, family: &str) -> Option<Value> {
        let name = |rest: &str| format!("{family}_cache{rest}");
        let line = level.last(&name("")).filter(|line| line.arg(0) != "off")?;
        let text = "Responses to requests with `Authorization` are not shared, and a request that changes a resource removes its \
                    stored responses.";
        self.remark(line, Verdict::Differs, text);
        let mut cache = Map::new();
        cache.insert("cache_status".to_owned(), false.into());
        if let Some(directive) = level.last(&name("_key")) {
            let key = self.text(directive, directive.arg(0), state, level);
            // Responses to GET serve HEAD too, and no other method is stored.
            let key: Vec<String> =
                parts(&key).into_iter().filter(|part| part != "${request_method}").collect();
            if !key.is_empty() {
                cache.insert("key".to_owned(), json!(key));
            }
        }
        let mut valid = Vec::new();
        for directive in level.all(&[name("_valid").as_str()]) {
            let Some((time, statuses)) = directive.args.split_last() else { continue };
            let Some(time) = milliseconds(time).map(|time| time / 1000).filter(|time| *time > 0) else {
                continue;
            };
            let mut entry = json!({"seconds": time});
            let listed: Vec<u16> = match statuses {
                [] => vec![200, 301, 302],
                statuses => statuses.iter().filter_map(|status| status.parse().ok()).collect(),
            };
            if !listed.is_empty() {
                entry["statuses"] = json!(listed);
            }
            valid.push(entry);
        }
        if !valid.is_empty() {
            cache.insert("valid".to_owned(), json!(valid));
        }
        self.cache_texts(level, &name("_bypass"), "bypass", state, &mut cache);
        self.cache_texts(level, &format!("{family}_no_cache"), "no_store", state, &mut cache);
        if let Some(uses) = level.text(&name("_min_uses")).and_then(|text| text.parse::<u64>().ok()) {
            cache.insert("min_uses".to_owned(), uses.clamp(1, 1000).into());
        }
        if !level.is_on(&name("_lock")) {
            cache.insert("lock_timeout".to_owned(), 0.into());
        }
        let stale =
            level.last(&name("_use_stale")).map(|directive| directive.args.as_slice()).unwrap_or_default();
        if stale.iter().any(|arg| matches!(arg.as_str(), "error" | "timeout")) {
            cache.insert("stale_if_error".to_owned(), 31_536_000.into());
            let statuses: Vec<u16> = stale
                .iter()
                .filter_map(|arg| arg.strip_prefix("http_")?.parse().ok())
                .filter(|it| *it >= 400)
                .collect();
            if !statuses.is_empty() {
                cache.insert("stale_statuses".to_owned(), json!(statuses));
            }
        }
        if stale.iter().any(|arg| arg == "updating") {
            cache.insert("stale_while_revalidate".to_owned(), 31_536_000.into());
        }
        let ignored: Vec<&String> = level
            .last(&format!("{family}_ignore_headers"))
            .map(|directive| directive.args.iter())
            .into_iter()
            .flatten()
            .filter(|name| {
                ["Cache-Control", "Expires", "Set-Cookie", "Vary", "X-Accel-Expires"].contains(&name.as_str())
            })
            .collect();
        if !ignored.is_empty() {
            cache.insert("ignore_headers".to_owned(), json!(ignored));
        }
        Some(Value::Object(cache))
    }

    fn cache_texts(
        &mut self,
        level: &Level<'a>,
        name: &str,
        key: &str,
        state: &State<'a>,
        cache: &mut Map<String, Value>,
    ) {
        let Some(directive) = level.last(name) else { return };
        let texts: Vec<String> =
            directive.args.iter().flat_map(|arg| parts(&self.text(directive, arg, state, level))).collect();
        cache.insert(key.to_owned(), json!(texts));
    }
}

/// The texts and variables of a text, one by one.
fn parts(text: &str) -> Vec<String> {
    let part = |piece| match piece {
        Piece::Text(text) => text.to_owned(),
        Piece::Variable(name) => format!("${{{name}}}"),
    };
    pieces(text).into_iter().map(part).collect()
}
