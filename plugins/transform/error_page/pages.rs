//! The pages that a route names itself: texts by the client's preference, responses from another route, redirects.

use std::borrow::Cow;

use schemars::JsonSchema;
use serde::Deserialize;
use sigma_http::HeaderId;
use sigma_http::header::list_items;
use sigma_plugin::{Context, Reply, ResponseStep};
use sigma_schema::expr::{VarName, VarValue, Variables};
use sigma_schema::template::Template;

use super::kept_fields;
use crate::redirect::{stay_on_host, without_controls};
use crate::uri_template::UriTemplate;
use sigma_plugin_kit::coding::thousandths;
use sigma_plugin_kit::own_route;
use sigma_plugin_kit::substitute::verbatim;

/// Statuses, and the page for them: exactly one of texts (`html`, `json`, `text`), `uri` and `location`.
#[derive(Deserialize, JsonSchema)]
#[schemars(deny_unknown_fields)]
pub(super) struct StatusPage {
    /// Statuses from 400, or classes such as `4xx` and `5xx`.
    #[schemars(with = "Vec<serde_json::Value>", length(min = 1), extend("items" = {"anyOf": [
        {"type": "integer", "minimum": 400, "maximum": 599}, {"type": "string", "enum": ["4xx", "5xx"]}
    ]}))]
    status: Vec<Statuses>,
    /// Page for clients that prefer `text/html`, a text with variables.
    html: Option<Template>,
    /// Body for clients that prefer `application/json`, a text with variables.
    json: Option<Template>,
    /// Body for other clients, a text with variables.
    text: Option<Template>,
    /// Path and query of a page from another route, a text with variables; the route may be `internal`. If its response
    /// is an error itself, the first response stays.
    #[schemars(with = "Option<String>", regex(pattern = "^/"))]
    uri: Option<Target>,
    /// Address of a page to which clients are redirected, a text with variables.
    #[schemars(with = "Option<String>", length(min = 1))]
    location: Option<Target>,
    /// Status of the response. Default: the one that the page replaces; 302 with `location`.
    #[schemars(range(min = 200, max = 599))]
    response_status: Option<u16>,
    /// Whether the response has the status of the other route's.
    #[schemars(extend("default" = false))]
    use_page_status: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(untagged)]
enum Statuses {
    One(u16),
    Class(Class),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
enum Class {
    #[serde(rename = "4xx")]
    Client,
    #[serde(rename = "5xx")]
    Server,
}

/// A URI reference with variables.
#[derive(Deserialize)]
#[serde(from = "String")]
struct Target {
    target: UriTemplate,
    names_host: bool,
}

impl From<String> for Target {
    fn from(text: String) -> Target {
        Target { target: UriTemplate::parse(&text), names_host: text.starts_with("//") }
    }
}

impl Target {
    fn rendered(&self, ctx: &Context) -> Vec<u8> {
        let mut target = self.target.rendered(ctx, &verbatim);
        stay_on_host(&mut target, self.names_host);
        without_controls(&target, false)
    }
}

impl StatusPage {
    /// Returns the mistake that the schema accepts.
    pub(super) fn mistake(&self) -> Option<&'static str> {
        let has_text = self.html.is_some() || self.json.is_some() || self.text.is_some();
        match usize::from(has_text) + usize::from(self.uri.is_some()) + usize::from(self.location.is_some()) {
            1 if self.use_page_status && self.uri.is_none() => Some("`use_page_status` needs a `uri`"),
            1 => None,
            _ => Some(
                "a page needs texts (`html`, `json`, `text`), a `uri` or a `location`, and only one of them",
            ),
        }
    }

    pub(super) fn is_for(&self, status: u16) -> bool {
        self.status.iter().any(|statuses| match statuses {
            Statuses::One(one) => *one == status,
            Statuses::Class(Class::Client) => status / 100 == 4,
            Statuses::Class(Class::Server) => status / 100 == 5,
        })
    }

    /// Replaces the response.
    pub(super) fn step(&self, ctx: &Context) -> ResponseStep {
        let status = self.response_status.unwrap_or(ctx.response.status);
        if let Some(location) = &self.location {
            let reply = Reply::new(self.response_status.unwrap_or(302));
            let reply = reply.header("Location", location.rendered(ctx)).text("");
            return ResponseStep::Replace(Box::new(reply));
        }
        if let Some(uri) = &self.uri {
            let call = own_route::page(ctx, uri.rendered(ctx));
            let status = (!self.use_page_status).then_some(status);
            return ResponseStep::Ask {
                calls: vec![call],
                then: Box::new(move |ctx, _, mut asked| match asked.pop() {
                    Some(Ok(page)) if page.status < 400 => {
                        let status = status.unwrap_or(page.status);
                        let mut reply = own_route::reply(page, status);
                        let has = |reply: &Reply, name: &str| {
                            reply.headers.iter().any(|(known, _)| known.eq_ignore_ascii_case(name))
                        };
                        for (name, value) in kept_fields(ctx) {
                            if !has(&reply, &name) {
                                reply = reply.header(name, value);
                            }
                        }
                        ResponseStep::Replace(Box::new(reply))
                    }
                    Some(Ok(page)) => {
                        tracing::warn!(
                            status = page.status,
                            "the route of an error page responds with an error"
                        );
                        ResponseStep::Next
                    }
                    Some(Err(error)) => {
                        tracing::warn!(%error, "the route of an error page does not respond");
                        ResponseStep::Next
                    }
                    None => ResponseStep::Next,
                }),
            };
        }
        let Some(form) = self.form(ctx) else { return ResponseStep::Next };
        let body = form.rendered(ctx);
        let mut reply = Reply::new(status).text(body);
        reply = reply.header(HeaderId::ContentType.name(), form.content_type);
        if self.forms().count() > 1 {
            reply = reply.header("Vary", "Accept");
        }
        for (name, value) in kept_fields(ctx) {
            reply = reply.header(name, value);
        }
        ResponseStep::Replace(Box::new(reply))
    }

    /// The forms that there are, the ones of programs before the one of browsers, which ask for theirs by name.
    fn forms(&self) -> impl Iterator<Item = Form<'_>> {
        let form = |text, media_type, content_type, escape| Form { text, media_type, content_type, escape };
        let json = self.json.as_ref();
        let text = self.text.as_ref();
        let html = self.html.as_ref();
        [
            json.map(|json| form(json, "application/json", "application/json", escape_json as Escape)),
            text.map(|text| form(text, "text/plain", "text/plain; charset=utf-8", escape_nothing)),
            html.map(|html| form(html, "text/html", "text/html; charset=utf-8", escape_html)),
        ]
        .into_iter()
        .flatten()
    }

    /// Returns the form that the client prefers. A client that accepts none gets the first one all the same: an error
    /// without a body says less.
    fn form(&self, ctx: &Context) -> Option<Form<'_>> {
        let accept = ctx.request.headers.get_all(HeaderId::Accept).collect::<Vec<_>>().join(&b","[..]);
        let weight =
            |form: &Form<'_>| if accept.is_empty() { 1000 } else { weight(&accept, form.media_type) };
        // The first one of equals.
        self.forms().reduce(|best, form| if weight(&form) > weight(&best) { form } else { best })
    }
}

type Escape = fn(&[u8]) -> Vec<u8>;

/// A body in one media type.
struct Form<'a> {
    text: &'a Template,
    media_type: &'static str,
    content_type: &'static str,
    escape: Escape,
}

impl Form<'_> {
    fn rendered(&self, ctx: &Context) -> Vec<u8> {
        self.text.rendered(&Escaped { ctx, escape: self.escape })
    }
}

/// Variables in a text with a grammar: clients cannot add to it.
struct Escaped<'a> {
    ctx: &'a Context,
    escape: Escape,
}

impl Variables for Escaped<'_> {
    fn get(&self, name: &VarName) -> Option<VarValue<'_>> {
        match self.ctx.get(name)? {
            VarValue::Text(text) => Some(VarValue::Text(Cow::Owned((self.escape)(&text)))),
            VarValue::List(items) => {
                Some(VarValue::List(items.iter().map(|item| Cow::Owned((self.escape)(item))).collect()))
            }
            truth @ VarValue::Bool(_) => Some(truth),
        }
    }
}

fn escape_nothing(text: &[u8]) -> Vec<u8> {
    text.to_vec()
}

fn escape_html(text: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(text.len());
    for byte in text {
        match byte {
            b'<' => out.extend_from_slice(b"&lt;"),
            b'>' => out.extend_from_slice(b"&gt;"),
            b'&' => out.extend_from_slice(b"&amp;"),
            b'"' => out.extend_from_slice(b"&quot;"),
            b'\'' => out.extend_from_slice(b"&#39;"),
            byte => out.push(*byte),
        }
    }
    out
}

/// Returns the text as the inside of a JSON string.
fn escape_json(text: &[u8]) -> Vec<u8> {
    let quoted = serde_json::Value::from(String::from_utf8_lossy(text)).to_string();
    // A string of JSON has a quote at each end.
    quoted.as_bytes()[1..quoted.len() - 1].to_vec()
}

/// Returns the weight of a media type in `Accept` in thousandths (RFC 9110 §12.5.1); the most specific range counts.
fn weight(accept: &[u8], media_type: &str) -> u16 {
    let class = media_type.split('/').next().unwrap_or_default();
    let precision = |range: &[u8]| {
        if range.eq_ignore_ascii_case(media_type.as_bytes()) {
            Some(2)
        } else if range.len() == class.len() + 2
            && range[..class.len()].eq_ignore_ascii_case(class.as_bytes())
            && range.ends_with(b"/*")
        {
            Some(1)
        } else {
            (range == b"*/*").then_some(0)
        }
    };
    let ranges = list_items(accept).filter_map(|item| {
        let mut parts = item.split(|b| *b == b';').map(<[u8]>::trim_ascii);
        let precision = precision(parts.next()?)?;
        let weight = parts.find_map(|part| part.strip_prefix(b"q=").or_else(|| part.strip_prefix(b"Q=")));
        Some((precision, weight.map_or(1000, thousandths)))
    });
    ranges.max_by_key(|(precision, _)| *precision).map_or(0, |(_, weight)| weight)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn weights_come_from_the_most_specific_range() {
        let check = |accept: &str, media_type: &str, expected: u16| {
            assert_eq!(weight(accept.as_bytes(), media_type), expected, "{accept} {media_type}");
        };
        check("text/html, */*;q=0.1", "text/html", 1000);
        check("text/html, */*;q=0.1", "application/json", 100);
        check("text/*;q=0.5, text/html;level=1;q=0.7", "text/html", 700);
        check("text/*;q=0.5", "text/plain", 500);
        check("image/png", "text/html", 0);
        check("TEXT/HTML", "text/html", 1000);
    }

    #[test]
    fn values_of_variables_stay_values() {
        assert_eq!(escape_html(b"<a href='x'>&\""), b"&lt;a href=&#39;x&#39;&gt;&amp;&quot;");
        assert_eq!(escape_json(b"a\"b\\\n"), b"a\\\"b\\\\\\n");
    }
}
