//! The pages that a route names itself: texts by the client's preference, responses from another route, redirects.

use std::borrow::Cow;
use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::Deserialize;
use sigma_http::HeaderId;
use sigma_http::header::list_items;
use sigma_plugin::outbound::Call;
use sigma_plugin::{Context, Reply, ResponseStep};
use sigma_schema::expr::{VarName, VarValue, Variables};
use sigma_schema::template::Template;

use super::kept_fields;
use sigma_plugin_kit::coding::thousandths;
use sigma_plugin_kit::field_value::FieldValue;
use sigma_plugin_kit::own_route;
use sigma_plugin_kit::uri_template::UriReference;

/// Statuses, and the page for them: exactly one of texts (`html`, `json`, `text`), `uri`, `named` and `location`.
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
    /// is an error itself, the first response stays, unless `use_page_status` is on.
    #[schemars(with = "Option<String>", regex(pattern = "^[/$]"))]
    uri: Option<UriReference>,
    /// Name of internal routes that get the request again, with its method and target: routes with `internal` and the
    /// condition `["internal_name", "==", NAME]`. A request whose body is gone keeps the first response. Requests and
    /// responses are as with `uri`.
    #[schemars(length(min = 1, max = 128))]
    named: Option<String>,
    /// Address of a page to which clients are redirected, a text with variables.
    #[schemars(with = "Option<String>", length(min = 1))]
    location: Option<UriReference>,
    /// Further fields of the page; values are texts with variables. They replace the page's own.
    #[schemars(with = "BTreeMap<String, String>", extend("maxProperties" = 64, "default" = {}))]
    headers: PageFields,
    /// Status of the response. Default: the one that the page replaces; 302 with `location`.
    #[schemars(range(min = 200, max = 599))]
    response_status: Option<u16>,
    /// Whether the response has the status of the other route's.
    #[schemars(extend("default" = false))]
    use_page_status: bool,
    /// Fields of the replaced response that stay. Default: all but the fields of its body; no field with `location`.
    #[schemars(length(max = 64), inner(length(min = 1, max = 256)))]
    keep_fields: Option<Vec<String>>,
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

/// Fields of a page.
#[derive(Deserialize)]
#[serde(from = "BTreeMap<String, String>")]
struct PageFields(Vec<(String, FieldValue)>);

impl From<BTreeMap<String, String>> for PageFields {
    fn from(fields: BTreeMap<String, String>) -> PageFields {
        let field = |(name, text): (String, String)| {
            let value = FieldValue::parse(&name, &text);
            (name, value)
        };
        PageFields(fields.into_iter().map(field).collect())
    }
}

impl StatusPage {
    /// Returns the mistake that the schema accepts.
    pub(super) fn mistake(&self) -> Option<&'static str> {
        let has_text = self.html.is_some() || self.json.is_some() || self.text.is_some();
        let has_route = self.uri.is_some() || self.named.is_some();
        let kinds = [has_text, self.uri.is_some(), self.named.is_some(), self.location.is_some()];
        match kinds.into_iter().filter(|is_set| *is_set).count() {
            1 if self.use_page_status && !has_route => Some("`use_page_status` needs a `uri` or `named`"),
            1 => None,
            _ => Some(
                "a page needs exactly one of texts (`html`, `json`, `text`), `uri`, `named` and `location`",
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
            let mut reply = reply.header("Location", location.rendered(ctx)).text("");
            for (name, value) in self.kept(ctx).into_iter().filter(|_| self.keep_fields.is_some()) {
                reply = reply.header(name, value);
            }
            return ResponseStep::Replace(Box::new(reply));
        }
        if let Some(name) = &self.named {
            // The body of a request that is too large is gone in any case.
            let drops_body = ctx.response.status == 413;
            return match own_route::named(ctx, name, drops_body) {
                Some(call) => self.ask(ctx, call),
                None => ResponseStep::Next,
            };
        }
        if let Some(uri) = &self.uri {
            return self.ask(ctx, own_route::page(ctx, uri.rendered(ctx)));
        }
        let Some(form) = self.form(ctx) else { return ResponseStep::Next };
        let body = form.rendered(ctx);
        let mut reply = Reply::new(status).text(body);
        reply = reply.header(HeaderId::ContentType.name(), form.content_type);
        if self.forms().count() > 1 {
            reply = reply.header("Vary", "Accept");
        }
        for (name, value) in self.kept(ctx) {
            reply = reply.header(name, value);
        }
        ResponseStep::Replace(Box::new(self.with_headers(reply, ctx)))
    }

    /// Sets the further fields of the page.
    fn with_headers(&self, mut reply: Reply, ctx: &Context) -> Reply {
        for (name, value) in &self.headers.0 {
            reply.headers.retain(|(known, _)| !known.eq_ignore_ascii_case(name));
            reply = reply.header(name.clone(), value.rendered(ctx));
        }
        reply
    }

    /// The fields of the replaced response that stay.
    fn kept(&self, ctx: &Context) -> Vec<(String, Vec<u8>)> {
        let is_kept = |name: &str| {
            let listed = self.keep_fields.as_ref();
            listed.is_none_or(|listed| listed.iter().any(|known| known.eq_ignore_ascii_case(name)))
        };
        kept_fields(ctx).filter(|(name, _)| is_kept(name)).collect()
    }

    /// Replaces the response by the one of another route. A page is no error itself; with `use_page_status` any response
    /// of the other route counts.
    fn ask(&self, ctx: &Context, call: Call) -> ResponseStep {
        let status = self.response_status.unwrap_or(ctx.response.status);
        let status = (!self.use_page_status).then_some(status);
        let takes_errors = self.use_page_status || self.named.is_some();
        let fields = self.kept(ctx);
        let headers: Vec<(String, Vec<u8>)> =
            self.headers.0.iter().map(|(name, value)| (name.clone(), value.rendered(ctx))).collect();
        ResponseStep::Ask {
            calls: vec![call],
            then: Box::new(move |_, _, mut asked| match asked.pop() {
                Some(Ok(page)) if page.status < 400 || takes_errors => {
                    let status = status.unwrap_or(page.status);
                    let mut reply = own_route::reply(page, status);
                    let has = |reply: &Reply, name: &str| {
                        reply.headers.iter().any(|(known, _)| known.eq_ignore_ascii_case(name))
                    };
                    for (name, value) in fields {
                        if !has(&reply, &name) {
                            reply = reply.header(name, value);
                        }
                    }
                    for (name, value) in headers {
                        reply.headers.retain(|(known, _)| !known.eq_ignore_ascii_case(&name));
                        reply = reply.header(name, value);
                    }
                    ResponseStep::Replace(Box::new(reply))
                }
                Some(Ok(page)) => {
                    tracing::warn!(status = page.status, "the route of an error page responds with an error");
                    ResponseStep::Next
                }
                Some(Err(error)) => {
                    tracing::warn!(%error, "the route of an error page does not respond");
                    ResponseStep::Next
                }
                None => ResponseStep::Next,
            }),
        }
    }

    /// The forms that there are, the ones of programs before the one of browsers, which request theirs by name.
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
