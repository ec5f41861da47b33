//! Texts with variables that become a URI: values of variables stay data (RFC 3986 §2.4).

use std::borrow::Cow;

use serde::Deserialize;
use sigma_plugin::Context;
use sigma_plugin::variables::percent_encode_path;
use sigma_schema::expr::{VarName, VarValue, Variables};
use sigma_schema::template::Template;

use super::percent::{encode_component, percent_encoded};

/// Whether the value of a variable is data whose escapes were decoded.
fn is_decoded(name: &VarName) -> bool {
    match name {
        VarName::Uri | VarName::Arg(_) | VarName::UriParam(_) | VarName::PostArg(_) => true,
        VarName::Other(name) => {
            // A number is a group of the path expression.
            name == "document_uri"
                || name.starts_with("post_arg_")
                || name.starts_with(|first: char| first.is_ascii_digit())
        }
        _ => false,
    }
}

/// Whether a variable is the target of the request.
fn is_target(name: &VarName) -> bool {
    matches!(name, VarName::RequestUri | VarName::RealRequestUri)
}

/// Appends a text and escapes all characters that are illegal in URIs; existing escapes stay. Backslashes
/// stay as well.
pub(super) fn escape_illegal(text: &[u8], out: &mut Vec<u8>) {
    let is_illegal =
        |byte: u8| matches!(byte, 0..=b' ' | b'"' | b'<' | b'>' | b'^' | b'`' | b'{' | b'|' | b'}' | 0x7f..);
    out.extend(percent_encoded(text, is_illegal));
}

/// Appends a decoded path, or a part of one, in the form that a URI has it. Backslashes stay.
pub(super) fn encode_path(path: &[u8], out: &mut Vec<u8>) {
    for (at, part) in path.split(|byte| *byte == b'\\').enumerate() {
        if at > 0 {
            out.push(b'\\');
        }
        percent_encode_path(part, out);
    }
}

/// Variables as a URI has them before its query.
pub(super) struct BeforeQuery<'a> {
    pub(super) ctx: &'a Context,
    /// The variable that the text begins with: it brings a URI, and not a part of one.
    pub(super) leading: Option<&'a VarName>,
    /// The query of the request follows in any case.
    pub(super) query_follows: bool,
}

impl Variables for BeforeQuery<'_> {
    fn get(&self, name: &VarName) -> Option<VarValue<'_>> {
        let mut out = Vec::new();
        if is_target(name) {
            let target = self.ctx.request.path_and_query();
            let target = if self.query_follows { self.ctx.request.raw_path() } else { target };
            escape_illegal(target, &mut out);
            return Some(VarValue::Text(Cow::Owned(out)));
        }
        let value = self.ctx.get(name)?;
        let VarValue::Text(text) = &value else { return Some(value) };
        let is_part = self.leading != Some(name) || matches!(name, VarName::Uri);
        match is_decoded(name) && is_part {
            true => encode_path(text, &mut out),
            false => escape_illegal(text, &mut out),
        }
        Some(VarValue::Text(Cow::Owned(out)))
    }
}

/// A text that becomes a URI reference.
#[derive(Deserialize)]
#[serde(from = "String")]
pub(super) struct UriTemplate {
    path: Template,
    query: Option<QueryTemplate>,
}

impl From<String> for UriTemplate {
    fn from(text: String) -> UriTemplate {
        UriTemplate::parse(&text)
    }
}

impl UriTemplate {
    pub(super) fn parse(text: &str) -> UriTemplate {
        let (path, query) = split_outside_braces(text, b'?');
        UriTemplate { path: Template::parse(path), query: query.map(QueryTemplate::parse) }
    }

    /// The URI reference; `literal` writes the operator's own text before the query.
    pub(super) fn rendered(&self, ctx: &Context, literal: &dyn Fn(&[u8], &mut Vec<u8>)) -> Vec<u8> {
        let leading = self.path.leading_variable();
        let mut out = Vec::new();
        self.path.render_with(&BeforeQuery { ctx, leading, query_follows: false }, literal, &mut out);
        if let Some(query) = &self.query {
            out.push(if out.contains(&b'?') { b'&' } else { b'?' });
            escape_illegal(&query.rendered(ctx), &mut out);
        }
        out
    }
}

/// The query of a template, argument by argument.
pub(super) struct QueryTemplate {
    /// All of it, for when nothing is encoded.
    pub(super) whole: Template,
    /// Names, and values behind a `=`.
    arguments: Vec<(Template, Option<Template>)>,
}

impl QueryTemplate {
    pub(super) fn parse(query: &str) -> QueryTemplate {
        let mut arguments = Vec::new();
        let mut rest = Some(query);
        while let Some(text) = rest {
            let (argument, after) = split_outside_braces(text, b'&');
            let (name, value) = split_outside_braces(argument, b'=');
            arguments.push((Template::parse(name), value.map(Template::parse)));
            rest = after;
        }
        QueryTemplate { whole: Template::parse(query), arguments }
    }

    pub(super) fn rendered(&self, ctx: &Context) -> Vec<u8> {
        let mut out = Vec::new();
        for (at, (name, value)) in self.arguments.iter().enumerate() {
            if at > 0 {
                out.push(b'&');
            }
            name.render(&Encoded { ctx, part: QueryPart::Name }, &mut out);
            if let Some(value) = value {
                out.push(b'=');
                value.render(&Encoded { ctx, part: QueryPart::Value }, &mut out);
            }
        }
        out
    }
}

/// The position of a variable in a query.
#[derive(Clone, Copy, PartialEq, Eq)]
enum QueryPart {
    Name,
    Value,
}

/// Variables in such a form that they stay within their argument.
struct Encoded<'a> {
    ctx: &'a Context,
    part: QueryPart,
}

impl Variables for Encoded<'_> {
    fn get(&self, name: &VarName) -> Option<VarValue<'_>> {
        let value = self.ctx.get(name)?;
        let VarValue::Text(text) = &value else { return Some(value) };
        let encoded = if is_decoded(name) {
            let mut out = Vec::with_capacity(text.len());
            encode_component(text, &mut out);
            out
        } else if self.part == QueryPart::Value {
            // Its escapes stay as they are: `$args`, `$http_*` and their like come as they were sent.
            percent_encoded(text, |byte| matches!(byte, b'&' | b'#' | b';'))
        } else {
            // As a whole argument the operator may want it to be several.
            percent_encoded(text, |byte| byte == b'#')
        };
        Some(VarValue::Text(Cow::Owned(encoded)))
    }
}

/// A template in two at the first such byte that is not inside `${…}`.
pub(super) fn split_outside_braces(text: &str, separator: u8) -> (&str, Option<&str>) {
    let mut in_braces = false;
    for (at, byte) in text.bytes().enumerate() {
        match byte {
            b'{' if text[..at].ends_with('$') => in_braces = true,
            b'}' => in_braces = false,
            _ if byte == separator && !in_braces => return (&text[..at], Some(&text[at + 1..])),
            _ => {}
        }
    }
    (text, None)
}
