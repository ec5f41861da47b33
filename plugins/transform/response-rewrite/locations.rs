//! Rewrites `Location` fields and cookies of responses: addresses of nodes become addresses for clients.

use std::borrow::Cow;

use schemars::JsonSchema;
use serde::Deserialize;
use sigma_http::Headers;
use sigma_plugin::Context;
use sigma_schema::template::Template;

use sigma_plugin_kit::substitute::Substitution;
use sigma_plugin_kit::uri_template::InText;

/// A replacement. The first one whose text is found applies.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[schemars(extend("oneOf" = [{"required": ["from"]}, {"required": ["regex"]}]))]
pub(super) struct Replacement {
    /// The text to replace: the beginning of a location or path, or a whole domain.
    #[schemars(length(min = 1))]
    from: Option<String>,
    /// A regular expression instead of `from`; case is ignored.
    #[schemars(length(min = 1))]
    regex: Option<String>,
    /// The replacement, a text with variables; with `regex`, `$1` is a group.
    to: String,
}

/// The rewriting of the attributes of cookies.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(extend("minProperties" = 1))]
pub(super) struct CookieConfig {
    /// Replacements of `Domain`; case and a leading dot are ignored. An attribute with an empty result is removed.
    domain: Option<Vec<Replacement>>,
    /// Replacements of `Path`.
    path: Option<Vec<Replacement>>,
    /// Attributes without a value, and `SameSite`.
    flags: Option<Vec<Flags>>,
}

/// The flags of some cookies: `true` sets a flag, `false` removes it, and an unset one stays as it is. The first entry
/// for the name of the cookie applies.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Flags {
    /// The name of the cookie. Default: all cookies.
    #[schemars(length(min = 1))]
    cookie: Option<String>,
    /// `Secure`.
    secure: Option<bool>,
    /// `HttpOnly`.
    http_only: Option<bool>,
    /// `Partitioned`.
    partitioned: Option<bool>,
    /// `SameSite`; `off` removes it.
    same_site: Option<SameSite>,
}

#[derive(Debug, Clone, Copy, PartialEq, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
enum SameSite {
    Strict,
    Lax,
    None,
    Off,
}

/// A compiled [`Replacement`].
enum Rule {
    Text(String, Template),
    Pattern(Substitution, Vec<Template>),
}

/// Marks a variable in the replacement of an expression; no field of a response has this byte.
const MARK: char = '\u{1}';

/// Replaces the variables of a text by marks; groups such as `$1` stay.
fn marked(text: &str) -> (String, Vec<Template>) {
    let (mut made, mut variables, mut rest) = (String::new(), Vec::new(), text);
    while let Some(at) = rest.find('$') {
        let after = &rest[at + 1..];
        let (name, length) = match after.strip_prefix('{').and_then(|inner| inner.split_once('}')) {
            Some((name, _)) => (name, name.len() + 2),
            None => {
                let is_word = |char: char| char.is_ascii_alphanumeric() || char == '_';
                let end = after.find(|char| !is_word(char)).unwrap_or(after.len());
                (&after[..end], end)
            }
        };
        let is_variable = name.starts_with(|first: char| first.is_ascii_alphabetic());
        made.push_str(&rest[..at]);
        if is_variable && !after.starts_with('$') {
            made.push(MARK);
            variables.push(Template::parse(&format!("${{{name}}}")));
        } else {
            made.push_str(&rest[at..at + 1 + length]);
        }
        rest = &after[length..];
    }
    made.push_str(rest);
    (made, variables)
}

/// Replaces the marks by the values of their variables.
fn unmarked(text: Vec<u8>, variables: &[Template], ctx: &Context) -> Vec<u8> {
    if variables.is_empty() {
        return text;
    }
    let mut variables = variables.iter();
    let mut made = Vec::with_capacity(text.len());
    for byte in text {
        match char::from(byte) {
            MARK => {
                made.extend(variables.next().map(|value| value.rendered(&in_uri(ctx))).unwrap_or_default())
            }
            _ => made.push(byte),
        }
    }
    made
}

/// The variables in replacements: a decoded path is no URI, nor the path of a cookie.
fn in_uri(ctx: &Context) -> InText<'_> {
    InText { ctx, values: ctx }
}

/// The replacements of one kind of text.
struct Rules(Vec<Rule>);

/// How a text has to be found.
#[derive(Clone, Copy)]
enum Find {
    /// At the beginning.
    Prefix,
    /// As a whole, without case.
    Whole,
}

impl Rules {
    fn of(place: &str, configs: Option<Vec<Replacement>>) -> Result<Rules, String> {
        let rule = |Replacement { from, regex, to }| match (from, regex) {
            (Some(from), _) => Ok(Rule::Text(from, Template::parse(&to))),
            (None, regex) => {
                let regex = regex.unwrap_or_default();
                let (to, variables) = marked(&to);
                let made = Substitution::new(&regex, &to, "joi");
                made.map(|made| Rule::Pattern(made, variables))
                    .map_err(|reason| format!("{place}: regex \"{regex}\" validation failed: {reason}"))
            }
        };
        configs.into_iter().flatten().map(rule).collect::<Result<_, _>>().map(Rules)
    }

    /// Returns the replacement of `text`; None if it stays.
    fn replaced(&self, text: &[u8], find: Find, ctx: &Context) -> Option<Vec<u8>> {
        self.0.iter().find_map(|rule| match (rule, find) {
            (Rule::Pattern(substitution, variables), _) => {
                let (replaced, _) = substitution.first(text)?;
                Some(unmarked(replaced, variables, ctx))
            }
            (Rule::Text(from, to), Find::Prefix) => {
                let rest = text.strip_prefix(from.as_bytes())?;
                Some([&to.rendered(&in_uri(ctx)), rest].concat())
            }
            (Rule::Text(from, to), Find::Whole) => {
                let from = from.strip_prefix('.').unwrap_or(from);
                let text = text.strip_prefix(b".").unwrap_or(text);
                text.eq_ignore_ascii_case(from.as_bytes()).then(|| to.rendered(&in_uri(ctx)))
            }
        })
    }
}

/// All that is rewritten.
pub(super) struct Locations {
    location: Rules,
    domain: Rules,
    path: Rules,
    flags: Vec<Flags>,
}

impl Locations {
    /// Compiles the configuration; None if nothing is.
    ///
    /// # Errors
    /// Returns an error, which names its place, if a pattern is invalid.
    pub(super) fn of(
        location: Option<Vec<Replacement>>,
        cookies: Option<CookieConfig>,
    ) -> Result<Option<Locations>, String> {
        if location.is_none() && cookies.is_none() {
            return Ok(None);
        }
        let cookies = cookies.unwrap_or_default();
        Ok(Some(Locations {
            location: Rules::of("location", location)?,
            domain: Rules::of("cookies.domain", cookies.domain)?,
            path: Rules::of("cookies.path", cookies.path)?,
            flags: cookies.flags.unwrap_or_default(),
        }))
    }

    /// Rewrites the fields of the response.
    pub(super) fn apply(&self, ctx: &mut Context) {
        for (name, rewritten) in [
            ("Location", Locations::location as fn(&Locations, &[u8], &Context) -> Option<Vec<u8>>),
            ("Refresh", Locations::refresh),
            ("Set-Cookie", Locations::cookie),
        ] {
            let values = of_name(&ctx.response.headers, name);
            let new: Vec<Option<Vec<u8>>> = values.iter().map(|value| rewritten(self, value, ctx)).collect();
            if new.iter().all(Option::is_none) {
                continue;
            }
            ctx.response.headers.remove_name(name.as_bytes());
            for (old, new) in values.into_iter().zip(new) {
                ctx.response.headers.append(name, &new.unwrap_or(old));
            }
        }
    }

    fn location(&self, value: &[u8], ctx: &Context) -> Option<Vec<u8>> {
        self.location.replaced(value, Find::Prefix, ctx)
    }

    /// The location in `5; url=LOCATION`.
    fn refresh(&self, value: &[u8], ctx: &Context) -> Option<Vec<u8>> {
        let at = value.windows(4).position(|part| part.eq_ignore_ascii_case(b"url="))? + 4;
        let new = self.location.replaced(&value[at..], Find::Prefix, ctx)?;
        Some([&value[..at], &new].concat())
    }

    /// A cookie with other attributes (RFC 6265 §4.1.1).
    fn cookie(&self, value: &[u8], ctx: &Context) -> Option<Vec<u8>> {
        let mut parts = value.split(|b| *b == b';');
        let pair = parts.next()?;
        let mut attributes: Vec<Cow<'_, [u8]>> = parts.map(|part| Cow::Borrowed(part.trim_ascii())).collect();
        for (name, rules, find) in [("Domain", &self.domain, Find::Whole), ("Path", &self.path, Find::Prefix)]
        {
            attributes.retain_mut(|attribute| {
                let Some(new) = value_of(attribute, name).and_then(|value| rules.replaced(value, find, ctx))
                else {
                    return true;
                };
                let stays = !new.is_empty();
                *attribute = Cow::Owned([name.as_bytes(), b"=", &clean(new)].concat());
                stays
            });
        }
        let name = pair.split(|b| *b == b'=').next().unwrap_or_default().trim_ascii();
        let of_cookie = |flags: &&Flags| flags.cookie.as_ref().is_none_or(|known| known.as_bytes() == name);
        if let Some(flags) = self.flags.iter().find(of_cookie) {
            flags.apply(&mut attributes);
        }
        let new = attributes.iter().fold(pair.trim_ascii().to_vec(), |mut new, attribute| {
            new.extend_from_slice(b"; ");
            new.extend_from_slice(attribute);
            new
        });
        (new != value).then_some(new)
    }
}

impl Flags {
    fn apply(&self, attributes: &mut Vec<Cow<'_, [u8]>>) {
        let flags = [
            (self.secure, &b"Secure"[..]),
            (self.http_only, b"HttpOnly"),
            (self.partitioned, b"Partitioned"),
        ];
        for (wanted, name) in flags {
            let Some(wanted) = wanted else { continue };
            let has = attributes.iter().any(|attribute| attribute.eq_ignore_ascii_case(name));
            match (wanted, has) {
                (true, false) => attributes.push(Cow::Borrowed(name)),
                (false, true) => attributes.retain(|attribute| !attribute.eq_ignore_ascii_case(name)),
                _ => {}
            }
        }
        let Some(same_site) = self.same_site else { return };
        attributes.retain(|attribute| value_of(attribute, "SameSite").is_none());
        let text: &[u8] = match same_site {
            SameSite::Off => return,
            SameSite::Strict => b"SameSite=Strict",
            SameSite::Lax => b"SameSite=Lax",
            SameSite::None => b"SameSite=None",
        };
        attributes.push(Cow::Borrowed(text));
    }
}

/// The values of a field.
fn of_name(headers: &Headers, name: &str) -> Vec<Vec<u8>> {
    let fields = headers.iter().filter(|(known, _)| known.eq_ignore_ascii_case(name.as_bytes()));
    fields.map(|(_, value)| value.to_vec()).collect()
}

/// The value of an attribute with this name.
fn value_of<'a>(attribute: &'a [u8], name: &str) -> Option<&'a [u8]> {
    let at = attribute.iter().position(|b| *b == b'=')?;
    attribute[..at]
        .trim_ascii()
        .eq_ignore_ascii_case(name.as_bytes())
        .then(|| attribute[at + 1..].trim_ascii())
}

/// The value of a variable must not begin another attribute.
fn clean(mut value: Vec<u8>) -> Vec<u8> {
    value.retain(|b| *b != b';' && !b.is_ascii_control());
    value
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use crate::testing::{Case, assert_refusal, entry};

    fn check(conf: &Value, fields: &str, name: &str, expected: &str) {
        let plugin = entry("response-rewrite", conf.clone()).unwrap();
        let mut case = Case::new("GET / HTTP/1.1\nHost: shop.test");
        case.respond(302, fields);
        case.header_filter(&plugin);
        assert_eq!(case.answered(name), expected, "{conf} {fields}");
    }

    #[test]
    fn locations_lead_to_the_gateway() {
        let conf = json!({"location": [
            {"from": "http://node:8080/", "to": "https://$host/"},
            {"regex": "^http://([a-z]+)\\.internal/", "to": "https://$1.test/"},
        ]});
        check(&conf, "Location: http://node:8080/a?b", "Location", "https://shop.test/a?b");
        check(&conf, "Location: http://API.internal/a", "Location", "https://API.test/a");
        check(&conf, "Location: http://other/a", "Location", "http://other/a");
        let mixed = json!({"location": [{"regex": "^http://([a-z]+):[0-9]+/(.*)$", "to": "https://$host/$1/${2}?to=$1"}]});
        check(&mixed, "Location: http://api:80/x", "Location", "https://shop.test/api/x?to=api");
        check(&conf, "Location: /a", "Location", "/a");
        check(&conf, "Refresh: 5; URL=http://node:8080/a", "Refresh", "5; URL=https://shop.test/a");
        check(&conf, "X-Location: http://node:8080/", "X-Location", "http://node:8080/");
    }

    #[test]
    fn paths_in_replacements_are_encoded() {
        let check = |conf: Value, fields: &str, name: &str, expected: &str| {
            let plugin = entry("response-rewrite", conf.clone()).unwrap();
            let mut case = Case::new("GET /a%20b%3Fc HTTP/1.1\nHost: shop.test");
            case.respond(302, fields);
            case.header_filter(&plugin);
            assert_eq!(case.answered(name), expected, "{conf} {fields}");
        };
        check(
            json!({"location": [{"from": "/", "to": "$uri/"}]}),
            "Location: /x",
            "Location",
            "/a%20b%3Fc/x",
        );
        let pattern = json!({"location": [{"regex": "^/(.*)", "to": "$request_uri/$1"}]});
        check(pattern, "Location: /x", "Location", "/a%20b%3Fc/x");
        let cookie = json!({"cookies": {"path": [{"from": "/", "to": "$uri/"}]}});
        check(cookie, "Set-Cookie: a=b; Path=/x", "Set-Cookie", "a=b; Path=/a%20b%3Fc/x");
    }

    #[test]
    fn cookies_hold_where_the_gateway_is() {
        let conf = json!({"cookies": {
            "domain": [{"from": ".node.test", "to": "$host"}, {"from": "gone.test", "to": ""}],
            "path": [{"from": "/app/", "to": "/"}],
        }});
        let check = |fields: &str, expected: &str| check(&conf, fields, "Set-Cookie", expected);
        check("Set-Cookie: a=b; Domain=Node.test; Path=/app/x", "a=b; Domain=shop.test; Path=/x");
        check("Set-Cookie: a=b; domain=gone.test; HttpOnly", "a=b; HttpOnly");
        check("Set-Cookie: a=b;Path=/application", "a=b; Path=/application");
        check("Set-Cookie: a=\"Domain=node.test\"", "a=\"Domain=node.test\"");
        check("Set-Cookie: a=1; Path=/app/\nSet-Cookie: b=2; Path=/", "a=1; Path=/, b=2; Path=/");
    }

    #[test]
    fn flags_of_cookies() {
        let conf = json!({"cookies": {"flags": [
            {"cookie": "free", "secure": false, "same_site": "off"},
            {"secure": true, "http_only": true, "same_site": "lax"},
        ]}});
        let check = |fields: &str, expected: &str| check(&conf, fields, "Set-Cookie", expected);
        check("Set-Cookie: a=b; secure", "a=b; secure; HttpOnly; SameSite=Lax");
        check("Set-Cookie: a=b; SameSite=None; Max-Age=1", "a=b; Max-Age=1; Secure; HttpOnly; SameSite=Lax");
        check("Set-Cookie: free=b; Secure; SameSite=None", "free=b");
        check("Set-Cookie: free=b; HttpOnly", "free=b; HttpOnly");
    }

    #[test]
    fn configurations() {
        let check = |conf: Value, expected: &str| assert_refusal("response-rewrite", &conf, expected);
        check(json!({"location": [{"from": "a", "to": ""}]}), "");
        check(json!({"location": [{"to": ""}]}), "property \"location\" validation failed");
        check(
            json!({"location": [{"from": "a", "regex": "b", "to": ""}]}),
            "property \"location\" validation failed",
        );
        check(json!({"location": [{"regex": "(", "to": ""}]}), "location: regex \"(\" validation failed");
        check(json!({"cookies": {}}), "property \"cookies\" validation failed");
        check(
            json!({"cookies": {"flags": [{"same_site": "any"}]}}),
            "property \"cookies\" validation failed",
        );
        check(
            json!({"cookies": {"path": [{"regex": "(", "to": ""}]}}),
            "cookies.path: regex \"(\" validation failed",
        );
    }
}
