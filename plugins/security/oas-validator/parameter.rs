//! Parameters: their forms in a request, and their schemas.

use std::borrow::Cow;
use std::collections::BTreeMap;

use serde_json::Value;
use sigma_schema::openapi::Part;
use sigma_schema::validation::SchemaId;

use super::media_type::is_json;
use super::shape::{Shape, Source, Texts};
use sigma_plugin_kit::json_body::{self, Unread};

/// The location of a parameter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Location {
    Path,
    Query,
    Header,
    Cookie,
}

/// How a value is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Style {
    Simple,
    Label,
    Matrix,
    Form,
    SpaceDelimited,
    PipeDelimited,
    DeepObject,
}

/// A parameter.
#[derive(Debug)]
pub(super) struct Parameter {
    pub(super) location: Location,
    name: String,
    is_required: bool,
    /// A query parameter without a value is in order.
    may_be_empty: bool,
    content: Content,
}

/// The content of a parameter.
#[derive(Debug)]
enum Content {
    /// A value in a style.
    Styled(Written, Shape),
    /// JSON.
    Json(Option<SchemaId>),
    /// A value that is not checked.
    Anything,
}

/// A style, and whether the parts of a value stand for themselves.
#[derive(Debug, Clone, Copy)]
pub(super) struct Written {
    pub(super) style: Style,
    pub(super) explode: bool,
}

/// Names and values as they stand in a query, a form or a cookie, in order. A name without a value has an empty one.
pub(super) type Pairs<'p> = [Pair<'p>];

/// A name and its value.
pub(super) type Pair<'p> = (Cow<'p, str>, Cow<'p, str>);

/// Fields that have their own meaning, with any description in a document.
const UNDESCRIBED: [&str; 3] = ["accept", "content-type", "authorization"];

impl Location {
    pub(super) const ALL: [Location; 4] =
        [Location::Path, Location::Query, Location::Header, Location::Cookie];

    pub(super) fn name(self) -> &'static str {
        match self {
            Location::Path => "path",
            Location::Query => "query",
            Location::Header => "header",
            Location::Cookie => "cookie",
        }
    }
}

impl Style {
    fn of(part: &Part<'_>, location: Location) -> Result<Style, String> {
        let default = match location {
            Location::Path | Location::Header => Style::Simple,
            Location::Query | Location::Cookie => Style::Form,
        };
        let Some(name) = part.text("style") else { return Ok(default) };
        let (style, allowed): (Style, &[Location]) = match name {
            "simple" => (Style::Simple, &[Location::Path, Location::Header]),
            "label" => (Style::Label, &[Location::Path]),
            "matrix" => (Style::Matrix, &[Location::Path]),
            "form" => (Style::Form, &[Location::Query, Location::Cookie]),
            "spaceDelimited" => (Style::SpaceDelimited, &[Location::Query]),
            "pipeDelimited" => (Style::PipeDelimited, &[Location::Query]),
            "deepObject" => (Style::DeepObject, &[Location::Query]),
            _ => return Err(part.wrong(&format!("has the unknown style `{name}`"))),
        };
        match allowed.contains(&location) {
            true => Ok(style),
            false => Err(part.wrong(&format!(
                "has the style `{name}`, which a {} parameter cannot have",
                location.name()
            ))),
        }
    }
}

impl Written {
    /// That of a part that has a `style` and an `explode`, or may have.
    ///
    /// # Errors
    /// Returns an error, which is a sentence, if there is no such style here.
    pub(super) fn of(part: &Part<'_>, location: Location) -> Result<Written, String> {
        let style = Style::of(part, location)?;
        let explode = part.value.get("explode").and_then(Value::as_bool).unwrap_or(style == Style::Form);
        Ok(Written { style, explode })
    }
}

impl Content {
    fn read(source: &mut Source<'_>, part: &Part<'_>, location: Location) -> Result<Content, String> {
        Ok(match (part.member("schema"), part.member("content")) {
            (Some(schema), _) => Content::Styled(Written::of(part, location)?, Shape::of(source, schema)?),
            (None, Some(content)) => match content.members().next() {
                Some((media_type, media)) if is_json(media_type) => {
                    let schema = media.member("schema");
                    Content::Json(schema.map(|schema| source.reading.schema(&schema.pointer)).transpose()?)
                }
                _ => Content::Anything,
            },
            (None, None) => {
                Written::of(part, location)?;
                Content::Anything
            }
        })
    }
}

impl Parameter {
    /// Reads a parameter; None for a field that no document describes.
    ///
    /// # Errors
    /// Returns an error, which is a sentence, if it is not understood.
    pub(super) fn read(source: &mut Source<'_>, part: &Part<'_>) -> Result<Option<Parameter>, String> {
        let name = part.text("name").unwrap_or_default();
        let location = Location::ALL.into_iter().find(|location| part.text("in") == Some(location.name()));
        let location =
            location.ok_or_else(|| part.wrong("has an invalid `in`; write path, query, header or cookie"))?;
        if location == Location::Header && UNDESCRIBED.iter().any(|known| name.eq_ignore_ascii_case(known)) {
            return Ok(None);
        }
        Ok(Some(Parameter {
            location,
            name: name.to_owned(),
            is_required: part.is("required") || location == Location::Path,
            may_be_empty: part.is("allowEmptyValue") && location == Location::Query,
            content: Content::read(source, part, location)?,
        }))
    }

    /// Reads a field of a response.
    ///
    /// # Errors
    /// Returns an error, which is a sentence, if it is not understood.
    pub(super) fn field(source: &mut Source<'_>, name: &str, part: &Part<'_>) -> Result<Parameter, String> {
        let content = Content::read(source, part, Location::Header)?;
        Ok(Parameter {
            location: Location::Header,
            name: name.to_owned(),
            is_required: part.is("required"),
            may_be_empty: false,
            content,
        })
    }

    /// Its name.
    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// Checks the request's values: pairs of a query or of cookies.
    ///
    /// # Errors
    /// Returns an error, which is a sentence, if the parameter is missing or does not fit.
    pub(super) fn check_pairs(
        &self,
        pairs: &Pairs<'_>,
        others: &[&str],
        texts: &Texts<'_>,
        limits: Limits,
    ) -> Result<(), String> {
        let own: Vec<&str> =
            pairs.iter().filter(|(name, _)| *name == self.name).map(|(_, value)| &**value).collect();
        if self.may_be_empty && matches!(own[..], [""]) {
            return Ok(());
        }
        match &self.content {
            Content::Styled(written, shape) => {
                let value = written.pairs(&self.name, shape, pairs, others, texts)?;
                self.fits(value.as_ref(), shape.id, texts, limits)
            }
            content => self.unstyled(content, &own, texts, limits),
        }
    }

    /// Checks the request's values: the lines of a field, or a part of the path.
    ///
    /// # Errors
    /// Returns an error, which is a sentence, if the parameter is missing or does not fit.
    pub(super) fn check_lines(
        &self,
        lines: &[&str],
        texts: &Texts<'_>,
        limits: Limits,
    ) -> Result<(), String> {
        match &self.content {
            Content::Styled(written, shape) => {
                let value = match lines {
                    [] => None,
                    [line] => Some(written.line(&self.name, shape, line, texts)?),
                    // Several lines of a field are one (RFC 9110 §5.3).
                    lines if shape.is_list() => {
                        Some(written.line(&self.name, shape, &lines.join(","), texts)?)
                    }
                    _ => return Err("it occurs more than once".to_owned()),
                };
                self.fits(value.as_ref(), shape.id, texts, limits)
            }
            content => self.unstyled(content, lines, texts, limits),
        }
    }

    fn fits(
        &self,
        value: Option<&Value>,
        id: SchemaId,
        texts: &Texts<'_>,
        limits: Limits,
    ) -> Result<(), String> {
        match value {
            Some(value) => texts.schemas.check_of_stranger(id, value, limits.steps),
            None => self.missing(),
        }
    }

    fn missing(&self) -> Result<(), String> {
        if self.is_required { Err("it is required".to_owned()) } else { Ok(()) }
    }

    fn unstyled(
        &self,
        content: &Content,
        own: &[&str],
        texts: &Texts<'_>,
        limits: Limits,
    ) -> Result<(), String> {
        let text = match own {
            [] => return self.missing(),
            [text] => text,
            _ => return Err("it occurs more than once".to_owned()),
        };
        let Content::Json(schema) = content else { return Ok(()) };
        let value = json_body::read_unambiguous(text.as_bytes(), limits.values);
        let value = value.map_err(|unread| match unread {
            Unread::TooMany => format!("it has more than {} values", limits.values),
            Unread::Invalid(reason) => format!("invalid JSON: {reason}"),
        })?;
        schema.map_or(Ok(()), |id| texts.schemas.check_of_stranger(id, &value, limits.steps))
    }
}

/// The limits of a request's cost.
#[derive(Debug, Clone, Copy)]
pub(super) struct Limits {
    /// Values in a body or a parameter.
    pub(super) values: usize,
    /// Steps of one validation.
    pub(super) steps: u64,
}

impl Written {
    /// The value of a parameter among pairs; None if it is not there. `others` are names that other parameters have.
    ///
    /// # Errors
    /// Returns an error, which is a sentence, if the pairs could be read in several ways.
    pub(super) fn pairs(
        self,
        name: &str,
        shape: &Shape,
        pairs: &Pairs<'_>,
        others: &[&str],
        texts: &Texts<'_>,
    ) -> Result<Option<Value>, String> {
        if self.style == Style::DeepObject {
            return deep_object(name, shape, pairs, texts);
        }
        let own: Vec<&str> =
            pairs.iter().filter(|(known, _)| known == name).map(|(_, value)| &**value).collect();
        if self.explode && shape.is_object() && !shape.is_list() && !shape.is_scalar() {
            let is_member = |known: &str| {
                shape.has_member(known) || (shape.member(known).is_some() && !others.contains(&known))
            };
            let members = pairs.iter().filter(|(known, _)| is_member(known));
            let members: Vec<(&str, &str)> = members.map(|(known, value)| (&**known, &**value)).collect();
            return match members.is_empty() {
                true => Ok(None),
                false => texts.object(shape, members.into_iter()).map(Some),
            };
        }
        let delimiter = match self.style {
            Style::SpaceDelimited => ' ',
            Style::PipeDelimited => '|',
            _ => ',',
        };
        match own[..] {
            [] => Ok(None),
            [text] if !self.explode => delimited(shape, text, delimiter, texts).map(Some),
            _ if !self.explode => Err("it occurs more than once".to_owned()),
            _ => texts.repeated(Some(shape), &own).map(Some),
        }
    }

    /// The value of a parameter in one text.
    fn line(self, name: &str, shape: &Shape, text: &str, texts: &Texts<'_>) -> Result<Value, String> {
        match self.style {
            Style::Label => {
                let text = text.strip_prefix('.').ok_or("a `.` is expected before it")?;
                if self.explode {
                    exploded(shape, text, '.', texts)
                } else {
                    delimited(shape, text, ',', texts)
                }
            }
            Style::Matrix => {
                let text = text.strip_prefix(';').ok_or("a `;` is expected before it")?;
                let is_object = shape.is_object() && !shape.is_scalar();
                if self.explode && is_object {
                    return exploded(shape, text, ';', texts);
                }
                let parts = text.split(';').map(|part| part.split_once('=').unwrap_or((part, "")));
                let own: Option<Vec<&str>> =
                    parts.map(|(known, value)| (known == name).then_some(value)).collect();
                match own.as_deref() {
                    Some([text]) if !self.explode => delimited(shape, text, ',', texts),
                    Some(own) if self.explode => texts.repeated(Some(shape), own),
                    _ => Err(format!("`;{name}=` is expected before each value")),
                }
            }
            _ if self.explode && shape.is_object() && !shape.is_scalar() => exploded(shape, text, ',', texts),
            _ => delimited(shape, text, ',', texts),
        }
    }
}

/// A value whose parts have something between them: items of a list, or names and values in turn.
fn delimited(shape: &Shape, text: &str, delimiter: char, texts: &Texts<'_>) -> Result<Value, String> {
    if shape.is_list() {
        let value = texts.repeated(Some(shape), &[text])?;
        return Ok(match value {
            // The schema takes it as one text.
            value if !value.is_array() => value,
            _ => texts.list(shape, divided(text, delimiter)),
        });
    }
    if !shape.is_object() || shape.is_scalar() {
        return Ok(texts.scalar(Some(shape), text));
    }
    let parts: Vec<&str> = divided(text, delimiter).collect();
    if parts.len() % 2 == 1 {
        return Err("a name without a value".to_owned());
    }
    texts.object(shape, parts.chunks_exact(2).map(|pair| (pair[0], pair[1])))
}

/// A value whose parts have something between them: items of a list, or `name=value`.
fn exploded(shape: &Shape, text: &str, delimiter: char, texts: &Texts<'_>) -> Result<Value, String> {
    if !shape.is_object() || shape.is_scalar() {
        return delimited(shape, text, delimiter, texts);
    }
    texts.object(shape, divided(text, delimiter).map(|part| part.split_once('=').unwrap_or((part, ""))))
}

/// Returns the parts between delimiters; nothing in an empty text.
fn divided(text: &str, delimiter: char) -> impl Iterator<Item = &str> {
    text.split(delimiter).map(str::trim).filter(move |_| !text.is_empty())
}

/// `name[member]=value`, one level deep.
fn deep_object(
    name: &str,
    shape: &Shape,
    pairs: &Pairs<'_>,
    texts: &Texts<'_>,
) -> Result<Option<Value>, String> {
    let mut members: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for (known, value) in pairs {
        let Some(inner) = known.strip_prefix(name).and_then(|rest| rest.strip_prefix('[')) else {
            // A reader of the name alone would see another value.
            if known == name {
                return Err(format!("`{name}[…]` is expected"));
            }
            continue;
        };
        let member =
            inner.strip_suffix(']').filter(|member| !member.is_empty() && !member.contains(['[', ']']));
        let member = member.ok_or("nested members are not supported")?;
        members.entry(member).or_default().push(value);
    }
    if members.is_empty() {
        return Ok(None);
    }
    let members = members.into_iter().map(|(member, values)| {
        let value = texts.repeated(shape.member(member), &values);
        value.map(|value| (member.to_owned(), value)).map_err(|error| format!("[{member}]: {error}"))
    });
    members.collect::<Result<_, String>>().map(|members| Some(Value::Object(members)))
}
