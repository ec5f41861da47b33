//! Texts with variables that become a URI: values of variables stay data (RFC 3986 §2.4).

use std::borrow::Cow;

use serde::Deserialize;
use sigma_plugin::Context;
use sigma_plugin::variables::percent_encode_path;
use sigma_schema::expr::{VarName, VarValue, Variables};
use sigma_schema::template::Template;

use crate::percent::{encode_component, percent_encoded};
use crate::substitute::verbatim;

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
pub fn escape_illegal(text: &[u8], out: &mut Vec<u8>) {
    let is_illegal =
        |byte: u8| matches!(byte, 0..=b' ' | b'"' | b'<' | b'>' | b'^' | b'`' | b'{' | b'|' | b'}' | 0x7f..);
    out.extend(percent_encoded(text, is_illegal));
}

/// Appends a decoded path, or a part of one, in the form that a URI has it. Backslashes stay.
pub fn encode_path(path: &[u8], out: &mut Vec<u8>) {
    for (at, part) in path.split(|byte| *byte == b'\\').enumerate() {
        if at > 0 {
            out.push(b'\\');
        }
        percent_encode_path(part, out);
    }
}

/// Variables as a URI has them before its query.
pub struct BeforeQuery<'a> {
    /// The exchange.
    pub ctx: &'a Context,
    /// The values of all variables but the request's target.
    pub values: &'a dyn Variables,
    /// The variable that the text begins with: it brings a URI, and not a part of one.
    pub leading: Option<&'a VarName>,
    /// The query of the request follows in any case.
    pub query_follows: bool,
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
        let value = self.values.get(name)?;
        let VarValue::Text(text) = &value else { return Some(value) };
        let is_part = self.leading != Some(name) || matches!(name, VarName::Uri);
        match is_decoded(name) && is_part {
            true => encode_path(text, &mut out),
            false => escape_illegal(text, &mut out),
        }
        Some(VarValue::Text(Cow::Owned(out)))
    }
}

/// Variables as a URI has them, in a text that has URIs in it. Values that may be more than a part of a URI stay as they
/// are.
pub struct InText<'a> {
    /// The exchange.
    pub ctx: &'a Context,
    /// The values of all variables but the request's target.
    pub values: &'a dyn Variables,
}

impl Variables for InText<'_> {
    fn get(&self, name: &VarName) -> Option<VarValue<'_>> {
        if !is_target(name) && !is_decoded(name) {
            return self.values.get(name);
        }
        // The value does not outlive this form of the variables.
        match (BeforeQuery { ctx: self.ctx, values: self.values, leading: None, query_follows: false })
            .get(name)?
        {
            VarValue::Text(text) => Some(VarValue::Text(Cow::Owned(text.into_owned()))),
            VarValue::Bool(truth) => Some(VarValue::Bool(truth)),
            VarValue::List(_) => self.values.get(name),
        }
    }
}

/// A text that becomes a URI reference.
#[derive(Debug, Deserialize)]
#[serde(from = "String")]
pub struct UriTemplate {
    path: Template,
    query: Option<QueryTemplate>,
}

impl From<String> for UriTemplate {
    fn from(text: String) -> UriTemplate {
        UriTemplate::parse(&text)
    }
}

impl UriTemplate {
    /// Parses a text with variables.
    pub fn parse(text: &str) -> UriTemplate {
        let (path, query) = split_outside_braces(text, b'?');
        UriTemplate { path: Template::parse(path), query: query.map(QueryTemplate::parse) }
    }

    /// Returns the URI reference; `literal` writes the operator's own text before the query.
    pub fn rendered(&self, ctx: &Context, literal: &dyn Fn(&[u8], &mut Vec<u8>)) -> Vec<u8> {
        self.rendered_with(ctx, ctx, literal)
    }

    fn rendered_with(
        &self,
        ctx: &Context,
        values: &dyn Variables,
        literal: &dyn Fn(&[u8], &mut Vec<u8>),
    ) -> Vec<u8> {
        let leading = self.path.leading_variable();
        let mut out = Vec::new();
        let variables = BeforeQuery { ctx, values, leading, query_follows: false };
        self.path.render_with(&variables, literal, &mut out);
        if let Some(query) = &self.query {
            out.push(if out.contains(&b'?') { b'&' } else { b'?' });
            escape_illegal(&query.rendered_with(ctx, values), &mut out);
        }
        out
    }
}

/// A URI reference for clients, as in `Location`.
#[derive(Debug, Deserialize)]
#[serde(from = "String")]
pub struct UriReference {
    target: UriTemplate,
    /// The text itself begins with a host, or with a value that a node has sent as a reference.
    names_host: bool,
}

impl From<String> for UriReference {
    fn from(text: String) -> UriReference {
        UriReference::parse(&text)
    }
}

impl UriReference {
    /// Parses a text with variables.
    pub fn parse(text: &str) -> UriReference {
        let target = UriTemplate::parse(text);
        let is_of_node = match target.path.leading_variable() {
            Some(VarName::Other(name)) => {
                name.starts_with("upstream_http_") || name.starts_with("sent_http_")
            }
            _ => false,
        };
        UriReference { target, names_host: is_of_node || text.starts_with("//") }
    }

    /// Returns the reference for this exchange.
    pub fn rendered(&self, ctx: &Context) -> Vec<u8> {
        self.rendered_with(ctx, ctx)
    }

    /// Does the same with other values of variables than the exchange has.
    pub fn rendered_with(&self, ctx: &Context, values: &dyn Variables) -> Vec<u8> {
        let mut target = self.target.rendered_with(ctx, values, &verbatim);
        stay_on_host(&mut target, self.names_host);
        without_controls(&target, false)
    }
}

/// Keeps a target on this host, unless the operator's text names another one. Two slashes at the beginning would name a
/// host (RFC 3986 §4.2), and browsers take backslashes for slashes.
pub fn stay_on_host(target: &mut Vec<u8>, names_host: bool) {
    let slashes = target.iter().take_while(|byte| matches!(byte, b'/' | b'\\')).count();
    if slashes > 1 && !names_host {
        target.splice(..slashes, [b'/']);
    }
}

/// Encodes control characters, which a decoded path may have and a field must not, and backslashes.
pub fn without_controls(target: &[u8], keeps_backslash: bool) -> Vec<u8> {
    percent_encoded(target, |byte| byte < 0x20 || byte == 0x7f || (byte == b'\\' && !keeps_backslash))
}

/// The query of a template, argument by argument.
#[derive(Debug)]
pub struct QueryTemplate {
    /// All of it, for when nothing is encoded.
    pub whole: Template,
    /// Names, and values behind a `=`.
    arguments: Vec<(Template, Option<Template>)>,
}

impl QueryTemplate {
    /// Parses the text after a `?`.
    pub fn parse(query: &str) -> QueryTemplate {
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

    /// Returns the query, with its values encoded.
    pub fn rendered(&self, ctx: &Context) -> Vec<u8> {
        self.rendered_with(ctx, ctx)
    }

    fn rendered_with(&self, ctx: &Context, values: &dyn Variables) -> Vec<u8> {
        let mut out = Vec::new();
        for (at, (name, value)) in self.arguments.iter().enumerate() {
            if at > 0 {
                out.push(b'&');
            }
            name.render(&Encoded { ctx, values, part: QueryPart::Name }, &mut out);
            if let Some(value) = value {
                out.push(b'=');
                value.render(&Encoded { ctx, values, part: QueryPart::Value }, &mut out);
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
    values: &'a dyn Variables,
    part: QueryPart,
}

impl Variables for Encoded<'_> {
    fn get(&self, name: &VarName) -> Option<VarValue<'_>> {
        let value = match is_target(name) {
            true => VarValue::Text(Cow::Borrowed(self.ctx.request.path_and_query())),
            false => self.values.get(name)?,
        };
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
pub fn split_outside_braces(text: &str, separator: u8) -> (&str, Option<&str>) {
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
