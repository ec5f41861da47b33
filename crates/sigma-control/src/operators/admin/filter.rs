//! Paging and filters of lists.

use axum::http::StatusCode;
use regex::{Regex, RegexBuilder};
use serde_json::Value;

use super::call::Arguments;
use super::collection::Collection;
use super::reply::{Refusal, Reply, ResourceEntry};
use sigma_config::kind::Kind;

/// Largest compiled pattern in bytes: those that people write take a few thousand, and a larger one
/// takes the thread of all operators' listeners a while.
const PATTERN_BYTES_MAX: usize = 256 * 1024;
/// The sizes that a page may have.
const PAGE_SIZES: std::ops::RangeInclusive<f64> = 10.0..=500.0;

/// The filter of a list.
#[derive(Debug, Default)]
pub(crate) struct Filter {
    name: Option<Regex>,
    uri: Option<Regex>,
    label: Option<String>,
    fields: Vec<(&'static str, String)>,
    /// Items to skip, and items to show.
    page: Option<(usize, usize)>,
}

impl Filter {
    /// Reads the arguments that `collection` knows.
    pub(crate) fn parse(arguments: &Arguments, collection: &Collection) -> Result<Filter, Refusal> {
        let regex = |name: &str| {
            let compile = |text| {
                RegexBuilder::new(text).size_limit(PATTERN_BYTES_MAX).build().map_err(|error| {
                    let reason = error.to_string();
                    let reason = reason.lines().last().unwrap_or_default();
                    Refusal::bad(format_args!("invalid argument {name}: {reason}"))
                })
            };
            arguments.get(name).map(compile).transpose()
        };
        Ok(Filter {
            name: regex("name")?,
            uri: regex("uri")?,
            label: arguments.get("label").map(str::to_owned),
            fields: fields(arguments, collection),
            page: page(arguments)?,
        })
    }

    fn holds(&self, value: &Value) -> bool {
        let text = |key: &str| value.get(key).and_then(Value::as_str);
        // APISIX searches an item without a name as the text `nil`.
        let name = |regex: &Regex| regex.is_match(text("name").unwrap_or("nil"));
        let uri = |regex: &Regex| {
            let uris = value.get("uris").and_then(Value::as_array).into_iter().flatten();
            uris.filter_map(Value::as_str).chain(text("uri")).any(|uri| regex.is_match(uri))
        };
        let label = |label: &String| value.get("labels").is_some_and(|labels| labels.get(label).is_some());
        let field = |(key, wanted): &(&str, String)| match value.get(*key) {
            Some(Value::String(text)) => text == wanted,
            Some(Value::Number(number)) => number.to_string() == *wanted,
            _ => false,
        };
        self.name.as_ref().is_none_or(name)
            && self.uri.as_ref().is_none_or(uri)
            && self.label.as_ref().is_none_or(label)
            && self.fields.iter().all(field)
    }

    /// Keeps the requested items; returns how many there are on all pages.
    pub(crate) fn apply(&self, items: &mut Vec<ResourceEntry>) -> usize {
        items.retain(|item| self.holds(&item.value));
        let total = items.len();
        if let Some((skip, show)) = self.page {
            items.sort_by_key(|item| item.created);
            items.drain(..skip.min(total));
            items.truncate(show);
        }
        total
    }
}

/// `filter=` holds its own query, e.g. `service_id=1&upstream_id=2`.
fn fields(arguments: &Arguments, collection: &Collection) -> Vec<(&'static str, String)> {
    let Some(text) = arguments.get("filter") else { return Vec::new() };
    if !collection.is(Kind::Route) && !collection.is(Kind::StreamRoute) {
        return Vec::new();
    }
    let inner = Arguments::parse(text);
    for unknown in inner.names().filter(|name| !["service_id", "upstream_id"].contains(name)) {
        tracing::warn!(name = unknown, "ignored an unknown filter of the Admin API");
    }
    let field = |name: &'static str| Some((name, inner.last(name)?.to_owned()));
    ["service_id", "upstream_id"].into_iter().filter_map(field).collect()
}

/// Paging needs two numbers; with one of them missing there is no paging.
fn page(arguments: &Arguments) -> Result<Option<(usize, usize)>, Refusal> {
    let number = |name| arguments.get(name)?.trim().parse::<f64>().ok().filter(|n| n.is_finite());
    let (Some(page), Some(size)) = (number("page"), number("page_size")) else { return Ok(None) };
    if !PAGE_SIZES.contains(&size) {
        let reply = Reply::text(StatusCode::BAD_REQUEST, "page_size must be between 10 and 500");
        return Err(Refusal(Box::new(reply)));
    }
    // Both are positive, and `as` saturates: a page far out is a page past the end.
    let (page, size) = (page.max(1.0) as usize, size as usize);
    Ok(Some(((page - 1).saturating_mul(size), size)))
}
