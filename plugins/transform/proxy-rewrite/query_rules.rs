//! `args` of proxy-rewrite: arguments of the query that are renamed, removed, set and added.

use std::borrow::Cow;

use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Map, Value};
use sigma_plugin::Context;
use sigma_plugin::variables::percent_decoded;
use sigma_schema::template::Template;

use sigma_plugin_kit::percent::encode_component;

/// Changes of arguments, in this order. Names are compared decoded; unchanged arguments stay byte for byte.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(extend("minProperties" = 1))]
pub(super) struct QueryRules {
    /// Names of the only arguments of the client that stay. The arguments of `uri` stay always.
    pass: Option<Vec<String>>,
    /// New names by the old ones.
    rename: Option<Templates>,
    /// Names of arguments to remove.
    #[schemars(length(min = 1))]
    remove: Option<Vec<String>>,
    /// Arguments that replace arguments with the same name, at the position of the first one; values may contain
    /// variables.
    set: Option<Templates>,
    /// Arguments to add; values may contain variables.
    add: Option<Templates>,
}

/// Texts by their names, in the order in which they are written.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(try_from = "Map<String, Value>")]
#[schemars(with = "Value", extend(
    "type" = "object",
    "minProperties" = 1,
    "additionalProperties" = {"oneOf": [{"type": "string"}, {"type": "number"}]}
))]
struct Templates(Vec<(String, Template)>);

impl TryFrom<Map<String, Value>> for Templates {
    type Error = String;

    fn try_from(members: Map<String, Value>) -> Result<Templates, String> {
        let one = |(name, value): (String, Value)| {
            if name.is_empty() {
                return Err("args: an argument has no name".to_owned());
            }
            let text = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
            Ok((name, Template::parse(&text)))
        };
        members.into_iter().map(one).collect::<Result<_, _>>().map(Templates)
    }
}

impl Templates {
    fn all(&self) -> impl Iterator<Item = &(String, Template)> {
        self.0.iter()
    }
}

impl QueryRules {
    /// Removes arguments of the client that are not in `pass` from the query for the node.
    pub(super) fn reduce(&self, ctx: &mut Context) {
        let Some(pass) = &self.pass else { return };
        let Some(query) = ctx.outgoing_query() else { return };
        let kept: Vec<&[u8]> =
            query.split(|b| *b == b'&').filter(|pair| pass.iter().any(|name| is_named(pair, name))).collect();
        let kept = kept.join(&b'&');
        let path = ctx.outgoing_target().split(|b| *b == b'?').next().unwrap_or_default();
        let query: &[&[u8]] = if kept.is_empty() { &[] } else { &[b"?", &kept] };
        ctx.target = [path, &query.concat()].concat();
    }

    /// The target with another query.
    pub(super) fn applied(&self, target: &[u8], ctx: &Context) -> Vec<u8> {
        let (path, query) = match target.iter().position(|b| *b == b'?') {
            Some(at) => (&target[..at], &target[at + 1..]),
            None => (target, &b""[..]),
        };
        let mut pairs: Vec<Cow<'_, [u8]>> =
            query.split(|b| *b == b'&').filter(|pair| !pair.is_empty()).map(Cow::Borrowed).collect();
        for (old, new) in self.rename.iter().flat_map(Templates::all) {
            for pair in pairs.iter_mut().filter(|pair| is_named(pair, old)) {
                let value = pair.iter().position(|b| *b == b'=').map_or(&b""[..], |at| &pair[at..]);
                *pair = Cow::Owned([&encoded(&new.rendered(ctx)), value].concat());
            }
        }
        pairs.retain(|pair| !self.remove.iter().flatten().any(|name| is_named(pair, name)));
        for (name, value) in self.set.iter().flat_map(Templates::all) {
            let new = Cow::Owned(argument(name, value, ctx));
            let first = pairs.iter().position(|pair| is_named(pair, name));
            pairs.retain(|pair| !is_named(pair, name));
            pairs.insert(first.unwrap_or(pairs.len()), new);
        }
        let added = self.add.iter().flat_map(Templates::all);
        pairs.extend(added.map(|(name, value)| Cow::Owned(argument(name, value, ctx))));
        let mut out = path.to_vec();
        for (at, pair) in pairs.iter().enumerate() {
            out.push(if at == 0 { b'?' } else { b'&' });
            out.extend_from_slice(pair);
        }
        out
    }
}

fn is_named(pair: &[u8], name: &str) -> bool {
    let end = pair.iter().position(|b| *b == b'=').unwrap_or(pair.len());
    *percent_decoded(&pair[..end]) == *name.as_bytes()
}

fn argument(name: &str, value: &Template, ctx: &Context) -> Vec<u8> {
    [encoded(name.as_bytes()), encoded(&value.rendered(ctx))].join(&b'=')
}

/// Returns a text as one part of a query: no variable's value begins another argument.
fn encoded(text: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(text.len());
    encode_component(text, &mut out);
    out
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};
    use sigma_plugin::Phase;

    use crate::testing::{Case, assert_refusal, entry};

    #[test]
    fn arguments() {
        let check = |args: Value, target: &str, expected: &str| {
            let plugin = entry("proxy-rewrite", json!({ "args": args })).unwrap();
            let mut case = Case::new(&format!("GET {target} HTTP/1.1\nHost: h\nX: a&b=c"));
            assert!(case.run(&plugin, Phase::Rewrite).is_none());
            assert_eq!(case.target(), expected, "{args} {target}");
        };
        check(json!({"add": {"v": 2}}), "/a", "/a?v=2");
        check(json!({"add": {"x": "$http_x"}}), "/a?x=%20", "/a?x=%20&x=a%26b%3Dc");
        check(json!({"set": {"b": "2"}}), "/a?a=1&b=0&c=3&b", "/a?a=1&b=2&c=3");
        check(json!({"set": {"b": "2"}}), "/a?a=1", "/a?a=1&b=2");
        check(json!({"remove": ["debug", "x"]}), "/a?de%62ug=1&a&x=1", "/a?a");
        check(json!({"remove": ["a"]}), "/a?a=1", "/a");
        check(json!({"pass": ["a", "b"]}), "/a?c=1&a=1&%62&ab=2", "/a?a=1&%62");
        check(json!({"pass": []}), "/a?c=1", "/a");
        check(json!({"pass": ["a"], "set": {"b": 1}}), "/a?b=0&a=1", "/a?a=1&b=1");
        check(
            json!({"rename": {"q": "query text"}}),
            "/a?q=%41&qq=1&q",
            "/a?query%20text=%41&qq=1&query%20text",
        );
        check(
            json!({"rename": {"a": "b"}, "remove": ["c"], "set": {"d": 1}, "add": {"e": "$arg_a"}}),
            "/x?a=1&c=2",
            "/x?b=1&d=1&e=1",
        );
    }

    #[test]
    fn configurations() {
        let check = |conf: Value, expected: &str| assert_refusal("proxy-rewrite", &conf, expected);
        check(json!({"args": {"add": {"a": "b"}}}), "");
        check(json!({"args": {}}), "property \"args\" validation failed");
        check(json!({"args": {"add": {"": "b"}}}), "args: an argument has no name");
        check(json!({"args": {"drop": ["a"]}}), "drop");
    }
}
