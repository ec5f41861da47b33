//! Bodies: which media types an operation takes, and what each has to be.

use std::borrow::Cow;
use std::collections::BTreeMap;

use serde_json::{Map, Value};
use sigma_plugin::variables::pairs;
use sigma_schema::openapi::Part;
use sigma_schema::validation::{SchemaId, Schemas};

use super::media_type::{Range, essence, is_json};
use super::parameter::{Limits, Location, Pair, Written};
use super::shape::{Shape, Source, Texts};
use sigma_plugin_kit::json_body::{self, Unread};
use sigma_plugin_kit::multipart;

/// The body of an operation.
#[derive(Debug)]
pub(super) struct Body {
    pub(super) is_required: bool,
    /// By the media type, the most exact one first.
    media: Vec<(Range, Media)>,
}

/// The schema of a body of a media type.
#[derive(Debug)]
struct Media {
    schema: Option<SchemaId>,
    /// Where it may be a form.
    form: Option<Form>,
}

/// The fields of a form.
#[derive(Debug)]
struct Form {
    shape: Shape,
    /// How fields are written.
    encoding: BTreeMap<String, Encoding>,
}

#[derive(Debug)]
struct Encoding {
    written: Option<Written>,
    /// The media types that a part may have.
    media_types: Vec<Range>,
}

const FORM: &str = "application/x-www-form-urlencoded";
const MULTIPART: &str = "multipart/form-data";

impl Body {
    /// Reads the body of a request.
    ///
    /// # Errors
    /// Returns an error, which is a sentence, if it is not understood.
    pub(super) fn read(source: &mut Source<'_>, part: &Part<'_>) -> Result<Body, String> {
        let content = part.member("content").ok_or_else(|| part.wrong("has no `content`"))?;
        let mut media = Vec::new();
        for (media_type, part) in content.members() {
            let range = Range::of(media_type);
            if media.iter().any(|(known, _)| *known == range) {
                return Err(part.wrong("is the same media type as another one"));
            }
            let schema = part.member("schema");
            let may_be_form = range.includes(FORM) || range.includes(MULTIPART);
            let form = match schema.clone().filter(|_| may_be_form) {
                Some(schema) => Some(Form::read(source, schema, &part)?),
                None => None,
            };
            let schema = schema.map(|schema| source.reading.schema(&schema.pointer)).transpose()?;
            media.push((range, Media { schema, form }));
        }
        media.sort_by(|(one, _), (other, _)| one.cmp(other));
        Ok(Body { is_required: part.is("required"), media })
    }

    /// Checks a body that is not empty, of one `Content-Type`.
    ///
    /// # Errors
    /// Returns an error, which is a sentence, if it does not fit.
    pub(super) fn check(
        &self,
        content_type: &str,
        body: &[u8],
        schemas: &Schemas,
        limits: Limits,
    ) -> Result<(), String> {
        let essence = essence(content_type);
        let found = self.media.iter().find(|(range, _)| !essence.is_empty() && range.includes(&essence));
        let Some((_, media)) = found else {
            let shown = if essence.is_empty() { "(none)" } else { essence.as_str() };
            return Err(format!("content type {shown} is not declared in the spec"));
        };
        let texts = Texts::new(schemas);
        let value = match (&*essence, &media.form) {
            (essence, _) if is_json(essence) => json(body, limits)?,
            (FORM, form) => {
                let form = form.as_ref();
                urlencoded(form, body, &texts, limits).map_err(|error| format!("invalid form: {error}"))?
            }
            (MULTIPART, form) => {
                let form = form.as_ref();
                parts(form, content_type, body, &texts, limits)
                    .map_err(|error| format!("invalid multipart body: {error}"))?
            }
            // Its form is known to its reader only.
            _ => return Ok(()),
        };
        media.schema.map_or(Ok(()), |id| schemas.check_of_stranger(id, &value, limits.steps))
    }
}

impl Form {
    fn read(source: &mut Source<'_>, schema: Part<'_>, media: &Part<'_>) -> Result<Form, String> {
        let shape = Shape::of(source, schema)?;
        let mut encoding = BTreeMap::new();
        for (name, part) in media.member("encoding").iter().flat_map(Part::members) {
            let is_written = part.value.get("style").is_some() || part.value.get("explode").is_some();
            let written = is_written.then(|| Written::of(&part, Location::Query)).transpose()?;
            let media_types = part.text("contentType").into_iter().flat_map(|list| list.split(','));
            let media_types = media_types.map(Range::of).collect();
            encoding.insert(name.to_owned(), Encoding { written, media_types });
        }
        Ok(Form { shape, encoding })
    }
}

/// A body of JSON.
///
/// # Errors
/// Returns an error, which is a sentence, if it is invalid, or has too many values.
pub(super) fn json(body: &[u8], limits: Limits) -> Result<Value, String> {
    json_body::read_unambiguous(body, limits.values).map_err(|unread| match unread {
        Unread::TooMany => too_many(limits),
        Unread::Invalid(reason) => format!("invalid JSON body: {reason}"),
    })
}

fn too_many(limits: Limits) -> String {
    format!("it has more than {} values", limits.values)
}

/// A text that was sent as bytes.
pub(super) fn text(bytes: Cow<'_, [u8]>) -> Result<Cow<'_, str>, String> {
    let wrong = || "it is not UTF-8".to_owned();
    match bytes {
        Cow::Borrowed(bytes) => std::str::from_utf8(bytes).map(Cow::Borrowed).map_err(|_| wrong()),
        Cow::Owned(bytes) => String::from_utf8(bytes).map(Cow::Owned).map_err(|_| wrong()),
    }
}

/// A form as an object.
fn urlencoded(form: Option<&Form>, body: &[u8], texts: &Texts<'_>, limits: Limits) -> Result<Value, String> {
    if pairs(body).count() > limits.values {
        return Err(too_many(limits));
    }
    let given = query(body)?;
    let mut members = Map::new();
    let mut taken: Vec<&str> = Vec::new();
    for (name, encoding) in form.iter().flat_map(|form| &form.encoding) {
        let Some(written) = encoding.written else { continue };
        let Some(shape) = form.and_then(|form| form.shape.member(name)) else { continue };
        if let Some(value) =
            written.pairs(name, shape, &given, &[], texts).map_err(|error| format!("{name}: {error}"))?
        {
            members.insert(name.clone(), value);
        }
        taken.push(name);
    }
    let is_taken = |name: &str| taken.iter().any(|taken| is_of(name, taken));
    let mut others: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for (name, value) in given.iter().filter(|(name, _)| !is_taken(name)) {
        others.entry(name).or_default().push(value);
    }
    for (name, values) in others {
        let value = field(form.and_then(|form| form.shape.member(name)), &values, texts, limits);
        members.insert(name.to_owned(), value.map_err(|error| format!("{name}: {error}"))?);
    }
    Ok(Value::Object(members))
}

/// Whether a pair belongs to a field, itself or as a member of it.
fn is_of(name: &str, field: &str) -> bool {
    name.strip_prefix(field).is_some_and(|rest| rest.is_empty() || rest.starts_with('['))
}

/// A field of a form: an object is JSON, anything else as in a query.
fn field(shape: Option<&Shape>, values: &[&str], texts: &Texts<'_>, limits: Limits) -> Result<Value, String> {
    let is_object = |shape: &Shape| shape.is_object() && !shape.is_scalar() && !shape.is_list();
    match (shape, values) {
        (Some(shape), [text]) if is_object(shape) => json(text.as_bytes(), limits),
        (shape, values) => texts.repeated(shape, values),
    }
}

/// The parts of a body as an object.
fn parts(
    form: Option<&Form>,
    content_type: &str,
    body: &[u8],
    texts: &Texts<'_>,
    limits: Limits,
) -> Result<Value, String> {
    let boundary = multipart::boundary(content_type)?;
    let given = multipart::parts(body, &boundary, limits.values)?;
    let mut fields: BTreeMap<&str, Vec<Value>> = BTreeMap::new();
    for part in &given {
        let encoding = form.and_then(|form| form.encoding.get(&part.name));
        let media_type = essence(part.media_type.as_deref().unwrap_or("text/plain"));
        let allowed = encoding.map(|encoding| &encoding.media_types[..]).unwrap_or_default();
        if !allowed.is_empty() && !allowed.iter().any(|range| range.includes(&media_type)) {
            return Err(format!("{}: content type {media_type} is not declared in the spec", part.name));
        }
        let shape = form.and_then(|form| form.shape.member(&part.name));
        let item = shape.and_then(Shape::item);
        let of_part = item.or(shape);
        let is_object = of_part.is_some_and(|shape| shape.is_object() && !shape.is_scalar());
        // A part that is not text is a file.
        let text = String::from_utf8_lossy(part.content);
        let value = match is_json(&media_type) || is_object {
            true => json(part.content, limits).map_err(|error| format!("{}: {error}", part.name))?,
            false => texts.scalar(of_part, &text),
        };
        fields.entry(&part.name).or_default().push(value);
    }
    let mut members = Map::new();
    for (name, mut values) in fields {
        let is_list = form.and_then(|form| form.shape.member(name)).is_some_and(Shape::is_list);
        let value = match (is_list, values.len()) {
            // A list that is one part of JSON is a list already.
            (true, 1) if values[0].is_array() => values.remove(0),
            (true, _) => Value::Array(values),
            (false, 1) => values.remove(0),
            _ => return Err(format!("{name}: it occurs more than once")),
        };
        members.insert(name.to_owned(), value);
    }
    Ok(Value::Object(members))
}

/// The pairs of a query, decoded.
///
/// # Errors
/// Returns an error, which is a sentence, if one is no UTF-8.
pub(super) fn query(query: &[u8]) -> Result<Vec<Pair<'_>>, String> {
    pairs(query).map(|(name, value)| Ok((text(name)?, text(value.unwrap_or_default())?))).collect()
}
