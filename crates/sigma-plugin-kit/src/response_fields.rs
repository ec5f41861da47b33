//! Texts and fields that depend on the request.

use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Map, Value};
use sigma_http::Headers;
use sigma_http::header::list_items;
use sigma_plugin::{Context, Reply};

use crate::field_value::FieldValue;
use crate::fields::{frames, is_name};

/// Marks a response as dependent on a request field, if it is not yet.
pub fn add_vary(headers: &mut Headers, field: &str) {
    let lines = headers.iter().filter(|(name, _)| name.eq_ignore_ascii_case(b"Vary"));
    let says = |item: &[u8]| item == b"*" || item.eq_ignore_ascii_case(field.as_bytes());
    let is_said = lines.flat_map(|(_, value)| list_items(value)).any(says);
    if !is_said {
        headers.append("Vary", field.as_bytes());
    }
}

/// Header fields of a response, whose values may contain variables.
#[derive(Deserialize, JsonSchema)]
#[serde(try_from = "Map<String, Value>")]
#[schemars(
    with = "Value",
    extend(
        "type" = "object",
        "minProperties" = 1,
        "additionalProperties" = {"oneOf": [{"type": "string"}, {"type": "number"}]}
    )
)]
pub struct Fields(Vec<(String, FieldValue)>);

impl TryFrom<Map<String, Value>> for Fields {
    type Error = String;

    fn try_from(fields: Map<String, Value>) -> Result<Fields, String> {
        let text = |value: Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
        Fields::new(fields.into_iter().map(|(name, value)| (name, text(value))))
    }
}

impl Fields {
    /// Compiles these fields. Fields that frame the response are left to the gateway.
    ///
    /// # Errors
    /// Returns an error for an invalid name, which would break the response.
    pub fn new(fields: impl Iterator<Item = (String, String)>) -> Result<Fields, String> {
        let checked = fields.map(|(name, value)| match is_name(&name) {
            true => {
                let value = FieldValue::parse(&name, &value);
                Ok((name, value))
            }
            false => Err(format!("`{name}` is not the name of a header field")),
        });
        let all: Vec<_> = checked.collect::<Result<_, _>>()?;
        Ok(Fields(all.into_iter().filter(|(name, _)| !frames(name)).collect()))
    }

    /// Returns true if a field of this name is among them.
    pub fn has(&self, name: &str) -> bool {
        self.0.iter().any(|(known, _)| known.eq_ignore_ascii_case(name))
    }

    /// Sets them in the response, and replaces existing ones of the same name.
    pub fn set_in(&self, ctx: &mut Context) {
        for (name, value) in &self.0 {
            let value = value.rendered(ctx);
            ctx.response.headers.replace(name, &value);
        }
    }

    /// Returns the response with these fields.
    pub fn added_to(&self, reply: Reply, ctx: &Context) -> Reply {
        self.0.iter().fold(reply, |reply, (name, value)| reply.header(name.clone(), value.rendered(ctx)))
    }
}
