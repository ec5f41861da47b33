//! Bodies as the values that templates are about.

use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Map, Value};

use super::{xml, yaml};
use crate::shared::arguments::{self, add, text};
use sigma_plugin_kit::json_body::{self, Unread};
use sigma_plugin_kit::multipart;

/// The format of a body.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub(super) enum Format {
    Xml,
    Json,
    Encoded,
    /// The arguments of the query, with any body.
    Args,
    Plain,
    Multipart,
    Yaml,
}

impl Format {
    /// That of a content type, as far as it is known.
    pub(super) fn of(content_type: &str) -> Option<Format> {
        let content_type = content_type.to_ascii_lowercase();
        let known = [
            ("text/xml", Format::Xml),
            ("application/json", Format::Json),
            ("application/x-www-form-urlencoded", Format::Encoded),
            ("multipart/", Format::Multipart),
            ("application/yaml", Format::Yaml),
            ("application/x-yaml", Format::Yaml),
            ("text/yaml", Format::Yaml),
            ("text/x-yaml", Format::Yaml),
            ("+yaml", Format::Yaml),
        ];
        known.into_iter().find(|(name, _)| content_type.contains(name)).map(|(_, format)| format)
    }

    /// The value of a body, or of a query; nothing for a body that is not parsed.
    ///
    /// # Errors
    /// Returns an error, which is a sentence, if the body is not of this form, or has more than `most_values` values.
    pub(super) fn read(self, body: &[u8], content_type: &str, most_values: usize) -> Result<Value, String> {
        let too_many = || format!("more than {most_values} values");
        match self {
            Format::Plain => Ok(Value::Null),
            Format::Json => json_body::read(body, most_values).map_err(|unread| match unread {
                Unread::TooMany => too_many(),
                Unread::Invalid(reason) => reason,
            }),
            Format::Xml => xml::read(text(body)?, most_values),
            Format::Encoded | Format::Args => arguments::read(body, most_values),
            Format::Multipart => multipart(body, content_type, most_values),
            Format::Yaml => yaml::read(text(body)?, most_values),
        }
    }
}

/// The parts of a form (RFC 7578) by their names.
fn multipart(body: &[u8], content_type: &str, most_values: usize) -> Result<Value, String> {
    let boundary = multipart::boundary(content_type)?;
    let mut fields = Map::new();
    for part in multipart::parts(body, &boundary, most_values)? {
        add(&mut fields, &part.name, text(part.content)?.into());
    }
    Ok(Value::Object(fields))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    #[test]
    fn formats_by_content_type() {
        let check = |content_type, expected| assert_eq!(Format::of(content_type), expected, "{content_type}");
        check("text/xml; charset=utf-8", Some(Format::Xml));
        check("application/json", Some(Format::Json));
        check("Application/X-www-form-urlencoded", Some(Format::Encoded));
        check("multipart/form-data; boundary=x", Some(Format::Multipart));
        check("application/yaml", Some(Format::Yaml));
        check("application/openapi+yaml; version=3.1", Some(Format::Yaml));
        check("text/x-yaml", Some(Format::Yaml));
        check("text/plain", None);
        check("", None);
    }

    #[test]
    fn bodies() {
        let check = |format: Format, body: &str, expected: Result<Value, &str>| {
            let found = format.read(body.as_bytes(), "multipart/form-data; boundary=\"b b\"; charset=x", 4);
            assert_eq!(found, expected.map_err(str::to_owned), "{body}");
        };
        check(Format::Json, "{\"a\":1,\"a\":2}", Ok(json!({"a": 2})));
        check(Format::Json, "[1,2,3,4]", Err("more than 4 values"));
        check(Format::Xml, "<a>1</a>", Ok(json!({"a": "1"})));
        check(Format::Encoded, "a=1&a=%20&b&c=", Ok(json!({"a": ["1", " "], "b": true, "c": ""})));
        check(Format::Args, "a=%ff", Err("it is not UTF-8"));
        check(Format::Args, "a&b&c&d&e", Err("more than 4 values"));
        check(Format::Plain, "{", Ok(Value::Null));
        check(Format::Yaml, "a: &x [1]\nb: 2", Err("line 1: more than 4 values"));
        check(Format::Yaml, "a: [1]\nb: 2", Ok(json!({"a": [1], "b": 2})));
        let part = |name: &str, value: &str| {
            format!(
                "--b b\r\nContent-Disposition: form-data; name=\"{name}\"; filename=x\r\nContent-Type: a/b\r\n\r\n{value}\r\n"
            )
        };
        let form = format!(
            "preamble\r\n{}{}{}--b b--\r\nend",
            part("a", "1\r\n2"),
            part("b\\\"", ""),
            part("a", "--b")
        );
        check(Format::Multipart, &form, Ok(json!({"a": ["1\r\n2", "--b"], "b\"": ""})));
        check(Format::Multipart, "--b b--", Ok(json!({})));
        check(Format::Multipart, "x", Err("the boundary is missing"));
        check(Format::Multipart, &part("a", "1"), Err("the last boundary is missing"));
        check(Format::Multipart, "--b b\r\n\r\n1\r\n--b b--", Err("a part has no name"));
        check(Format::Multipart, "--b b\r\nx\r\n--b b--", Err("a part has no empty line after its fields"));
        let many = format!("{}--b b--", part("a", "").repeat(5));
        check(Format::Multipart, &many, Err("more than 4 values"));
        assert!(Format::Multipart.read(b"", "multipart/form-data", 4).is_err());
    }

    /// Fields with texts of all characters that each form can have: names once, in an order that stays.
    fn fields() -> impl Strategy<Value = Map<String, Value>> {
        let fields = prop::collection::btree_map("[a-z]{1,6}", "[ -~\n\té&<>\"'\\\\%+=;:{}#-]{0,12}", 0..6);
        fields.prop_map(|fields| fields.into_iter().map(|(name, text)| (name, text.into())).collect())
    }

    fn escaped(text: &str) -> String {
        text.bytes().map(|b| format!("%{b:02X}")).collect()
    }

    proptest! {
        /// A body that is written in any of the forms reads as its source.
        #[test]
        fn bodies_are_there_and_back_again(fields in fields()) {
            let pairs = || fields.iter().map(|(name, value)| (name.as_str(), value.as_str().unwrap()));
            let form = pairs().map(|(name, text)| format!("{name}={}", escaped(text)));
            let form = form.collect::<Vec<_>>().join("&");
            let parts: String = pairs()
                .map(|(name, text)| format!("--b b\r\nContent-Disposition: form-data; name=\"{name}\"\r\n\r\n{text}\r\n"))
                .collect();
            let json = Value::Object(fields.clone());
            // A text in double quotes is the same in JSON and in YAML.
            let yaml: String = pairs().map(|(name, text)| format!("{name}: {}\n", Value::from(text))).collect();
            let yaml = if yaml.is_empty() { "{}".to_owned() } else { yaml };
            for (format, body) in [
                (Format::Json, json.to_string()),
                (Format::Encoded, form.clone()),
                (Format::Args, form),
                (Format::Multipart, format!("{parts}--b b--")),
                (Format::Yaml, yaml),
            ] {
                let read = format.read(body.as_bytes(), "multipart/form-data; boundary=\"b b\"", 100);
                prop_assert_eq!(read.as_ref(), Ok(&json), "{}", body);
            }
        }
    }
}
