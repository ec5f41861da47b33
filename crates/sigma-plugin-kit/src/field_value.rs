//! Values of header fields, texts with variables.

use std::borrow::Cow;

use sigma_plugin::Context;
use sigma_schema::expr::Variables;
use sigma_schema::template::Template;

use crate::uri_template::{InText, UriReference};

/// Fields whose value is a URI reference (RFC 9110 §10.1.3, §10.2.2, §8.7, RFC 4918 §10.3).
const REFERENCES: [&str; 4] = ["Location", "Content-Location", "Referer", "Destination"];

/// Fields with URI references within other text (RFC 8288).
const WITH_REFERENCES: [&str; 2] = ["Link", "Refresh"];

/// The value of a header field. A decoded path is no URI, so variables are encoded where the field has one.
#[derive(Debug)]
pub struct FieldValue(Form);

#[derive(Debug)]
enum Form {
    Text(Template),
    Reference(UriReference),
    WithReferences(Template),
}

impl FieldValue {
    /// Parses the value of the field `name`.
    pub fn parse(name: &str, text: &str) -> FieldValue {
        let is_among = |names: &[&str]| names.iter().any(|known| known.eq_ignore_ascii_case(name));
        let template = Template::parse(text);
        FieldValue(match template.literal() {
            Some(_) => Form::Text(template),
            None if is_among(&REFERENCES) => Form::Reference(UriReference::parse(text)),
            None if is_among(&WITH_REFERENCES) => Form::WithReferences(template),
            None => Form::Text(template),
        })
    }

    /// Returns the value for this exchange.
    pub fn rendered(&self, ctx: &Context) -> Vec<u8> {
        self.rendered_with(ctx, ctx).into_owned()
    }

    /// Does the same with other values of variables than the exchange has.
    pub fn rendered_with(&self, ctx: &Context, values: &dyn Variables) -> Cow<'_, [u8]> {
        match &self.0 {
            Form::Text(template) => match template.literal() {
                Some(text) => Cow::Borrowed(text.as_bytes()),
                None => Cow::Owned(template.rendered(values)),
            },
            Form::Reference(reference) => Cow::Owned(reference.rendered_with(ctx, values)),
            Form::WithReferences(template) => Cow::Owned(template.rendered(&InText { ctx, values })),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Case;

    #[test]
    fn uris_in_fields_are_encoded() {
        let check = |name: &str, text: &str, target: &str, expected: &str| {
            let mut case = Case::new(&format!("GET {target} HTTP/1.1\nHost: h.example\nX-A: b c"));
            case.respond(200, "Location: //other/x y\nLink: </a b>; rel=\"x\"");
            let value = FieldValue::parse(name, text).rendered(&case.ctx);
            assert_eq!(String::from_utf8_lossy(&value), expected, "{name}: {text} of {target}");
        };
        for name in ["Location", "location", "Content-Location", "Referer"] {
            check(name, "$request_uri", "/a%20b?c=%26", "/a%20b?c=%26");
            check(name, "https://$host$request_uri", "/a%3Fb%23c?d", "https://h.example/a%3Fb%23c?d");
            check(name, "$uri", "/a%20b%3Fc%E4%BD%A0?d", "/a%20b%3Fc%E4%BD%A0");
            check(name, "$uri/", "/%5cevil.example", "/evil.example/");
            check(name, "$uri", "/a%0d%0aSet-Cookie:%20a", "/a%0D%0ASet-Cookie:%20a");
            check(name, "/login?next=$request_uri", "/a%20b?c=d&e", "/login?next=/a%20b?c=d%26e");
            check(name, "/login?next=$uri", "/a%26b", "/login?next=/a%26b");
            check(name, "/x?a=$arg_q", "/?q=a%20b", "/x?a=a%20b");
            check(name, "/lit eral", "/", "/lit eral");
            check(name, "$http_x_a", "/", "b%20c");
        }
        check("X-Path", "$uri", "/a%20b", "/a b");
        check(
            "Link",
            "<https://$host$request_uri>; rel=\"canonical\"",
            "/a%20b?c",
            "<https://h.example/a%20b?c>; rel=\"canonical\"",
        );
        check(
            "Link",
            "<$uri>; rel=\"canonical\"",
            "/a%3E%20b",
            "<$uri>; rel=\"canonical\"".replace("$uri", "/a%3E%20b").as_str(),
        );
        check("Refresh", "5; url=/x?next=$request_uri", "/a%20b", "5; url=/x?next=/a%20b");
        check("Refresh", "$http_x_a", "/", "b c");
    }
}
