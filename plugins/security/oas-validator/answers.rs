//! Answers: the statuses that an operation may have, and which fields and bodies each comes with.

use sigma_http::{HeaderId, Method, ResponseHead};
use sigma_plugin::Context;
use sigma_schema::openapi::Part;
use sigma_schema::validation::SchemaId;

use super::media_type::{Range, content_type, essence, is_json};
use super::parameter::{Limits, Parameter};
use super::shape::{Source, Texts};
use sigma_plugin_kit::tallies::Event;

/// The responses of an operation.
#[derive(Debug)]
pub(super) struct Answers(
    /// By their statuses: exact ones stand before classes, and those before all others.
    Vec<(Statuses, DescribedResponse)>,
);

/// Statuses that a document writes together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Statuses {
    /// `404`.
    Exactly(u16),
    /// `4XX`.
    Class(u16),
    /// `default`.
    Any,
}

/// The response of one status.
#[derive(Debug)]
struct DescribedResponse {
    fields: Vec<Parameter>,
    /// The schemas by media type, the most exact one first; None if nothing is said of the body.
    content: Option<Vec<(Range, Option<SchemaId>)>>,
}

/// The kind of a fault in a response.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Status,
    Header,
    ContentType,
    Body,
    /// Its body could not be looked at.
    Unread,
}

/// The handling of a faulty response.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fate {
    Reported,
    Refused,
}

/// A problem of a response, and its consequence.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Unfit {
    pub(crate) kind: Kind,
    pub(crate) fate: Fate,
}

impl Event for Unfit {
    const METRIC: &'static str = "oas_validator_answer_problems_total";
    const HELP: &'static str = "Errors that oas-validator found in responses of nodes";
    const LABELS: &'static [&'static [(&'static str, &'static str)]] = &[
        &[("problem", "status"), ("answer", "reported")],
        &[("problem", "status"), ("answer", "refused")],
        &[("problem", "header"), ("answer", "reported")],
        &[("problem", "header"), ("answer", "refused")],
        &[("problem", "content_type"), ("answer", "reported")],
        &[("problem", "content_type"), ("answer", "refused")],
        &[("problem", "body"), ("answer", "reported")],
        &[("problem", "body"), ("answer", "refused")],
        &[("problem", "unread"), ("answer", "reported")],
        &[("problem", "unread"), ("answer", "refused")],
    ];

    fn number(self) -> usize {
        self.kind as usize * 2 + self.fate as usize
    }
}

/// One thing that is wrong.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Wrong {
    pub(super) kind: Kind,
    /// The message for a client: no value of a body or a field.
    pub(super) told: String,
    /// Further details for the log; may be empty.
    pub(super) details: String,
}

/// The result of the check of a response's head.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Looked {
    pub(super) wrong: Vec<Wrong>,
    /// The schema of the body, if that has to be looked at.
    pub(super) schema: Option<SchemaId>,
}

impl Statuses {
    fn of(text: &str) -> Option<Statuses> {
        if text == "default" {
            return Some(Statuses::Any);
        }
        match text.as_bytes() {
            [class @ b'1'..=b'5', b'X', b'X'] => Some(Statuses::Class(u16::from(class - b'0'))),
            [b'1'..=b'9', b'0'..=b'9', b'0'..=b'9'] => text.parse().ok().map(Statuses::Exactly),
            _ => None,
        }
    }

    fn includes(self, status: u16) -> bool {
        match self {
            Statuses::Exactly(one) => one == status,
            Statuses::Class(class) => class == status / 100,
            Statuses::Any => true,
        }
    }
}

impl Answers {
    /// Reads `responses` of an operation.
    ///
    /// # Errors
    /// Returns an error, which is a sentence, if they are not understood.
    pub(super) fn read(source: &mut Source<'_>, part: &Part<'_>) -> Result<Answers, String> {
        let document = source.document;
        let mut all = Vec::new();
        for (name, part) in part.members() {
            let statuses = Statuses::of(name);
            let statuses =
                statuses.ok_or_else(|| part.wrong("is not a status such as 404, 4XX or default"))?;
            all.push((statuses, DescribedResponse::read(source, &document.resolved(part)?)?));
        }
        all.sort_by_key(|(statuses, _)| *statuses);
        Ok(Answers(all))
    }

    /// Whether bodies of some are looked at.
    pub(super) fn look_at_bodies(&self) -> bool {
        let mut content = self.0.iter().filter_map(|(_, answer)| answer.content.as_ref()).flatten();
        content.any(|(range, schema)| schema.is_some() && range.may_be_json())
    }

    /// Checks the head of a response.
    pub(super) fn look(&self, ctx: &Context, texts: &Texts<'_>, limits: Limits) -> Looked {
        let head = &ctx.response;
        let Some((_, answer)) = self.0.iter().find(|(statuses, _)| statuses.includes(head.status)) else {
            let told = format!("status {} is not declared in the spec", head.status);
            let wrong = Wrong { kind: Kind::Status, told, details: String::new() };
            return Looked { wrong: vec![wrong], schema: None };
        };
        let fields = answer.fields.iter();
        let mut wrong: Vec<Wrong> =
            fields.filter_map(|field| field.wrong_in(head, texts, limits).err()).collect();
        let mut schema = None;
        let methods = [ctx.request.method, ctx.request.client_method()];
        let is_bodiless = methods.contains(&Method::Head) || matches!(head.status, 204 | 304);
        if let Some(content) = answer.content.as_ref().filter(|_| !is_bodiless) {
            match schema_of(content, head) {
                Ok(found) => schema = found,
                Err(told) => wrong.push(Wrong { kind: Kind::ContentType, told, details: String::new() }),
            }
        }
        Looked { wrong, schema }
    }
}

impl DescribedResponse {
    fn read(source: &mut Source<'_>, part: &Part<'_>) -> Result<DescribedResponse, String> {
        let document = source.document;
        let mut fields = Vec::new();
        for (name, part) in part.member("headers").iter().flat_map(Part::members) {
            // A document's description of it is ignored: `content` says it.
            if !name.eq_ignore_ascii_case("content-type") {
                fields.push(Parameter::field(source, name, &document.resolved(part)?)?);
            }
        }
        let mut content = None;
        if let Some(part) = part.member("content") {
            let mut all = Vec::new();
            for (media_type, part) in part.members() {
                let range = Range::of(media_type);
                if all.iter().any(|(known, _)| *known == range) {
                    return Err(part.wrong("is the same media type as another one"));
                }
                let schema = part.member("schema");
                all.push((range, schema.map(|schema| source.reading.schema(&schema.pointer)).transpose()?));
            }
            all.sort_by(|(one, _), (other, _)| one.cmp(other));
            content = Some(all);
        }
        Ok(DescribedResponse { fields, content })
    }
}

impl Parameter {
    /// Checks the field of a response.
    fn wrong_in(&self, head: &ResponseHead, texts: &Texts<'_>, limits: Limits) -> Result<(), Wrong> {
        let name = self.name();
        let lines = head.headers.iter().filter(|(known, _)| known.eq_ignore_ascii_case(name.as_bytes()));
        let lines =
            lines.map(|(_, value)| std::str::from_utf8(value).map_err(|_| "it is not UTF-8".to_owned()));
        let outcome = lines.collect::<Result<Vec<&str>, String>>().and_then(|lines| {
            // The one field whose lines are not one list (RFC 9110 §5.3).
            if name.eq_ignore_ascii_case("set-cookie") && lines.len() > 1 {
                return lines.iter().try_for_each(|line| self.check_lines(&[line], texts, limits));
            }
            self.check_lines(&lines, texts, limits)
        });
        outcome.map_err(|details| Wrong {
            kind: Kind::Header,
            told: format!("header '{name}' does not match"),
            details,
        })
    }
}

/// The schema of a body by its media type; None for one that is not checked.
///
/// # Errors
/// Returns an error, which is a sentence, if the body is of no type that may be there.
fn schema_of(content: &[(Range, Option<SchemaId>)], head: &ResponseHead) -> Result<Option<SchemaId>, String> {
    if content.is_empty() && !head.headers.has(HeaderId::ContentType) {
        return Ok(None);
    }
    let essence = essence(content_type(&head.headers)?);
    let found = content.iter().find(|(range, _)| !essence.is_empty() && range.includes(&essence));
    match found {
        Some((_, schema)) => Ok(schema.filter(|_| is_json(&essence))),
        None => {
            let shown = if essence.is_empty() { "(none)" } else { essence.as_str() };
            Err(format!("content type {shown} is not declared in the spec"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statuses() {
        let check = |text: &str, status: u16, expected: Option<bool>| {
            assert_eq!(Statuses::of(text).map(|all| all.includes(status)), expected, "{text} {status}");
        };
        check("404", 404, Some(true));
        check("404", 400, Some(false));
        check("4XX", 499, Some(true));
        check("4XX", 500, Some(false));
        check("default", 500, Some(true));
        for text in ["4xx", "40X", "6XX", "0XX", "", "Default", "099", "1000", "+40", "4XXX"] {
            check(text, 404, None);
        }
        let mut all = ["default", "4XX", "404"].map(|text| Statuses::of(text).unwrap());
        all.sort();
        assert_eq!(all, [Statuses::Exactly(404), Statuses::Class(4), Statuses::Any]);
    }

    #[test]
    fn every_event_has_its_labels() {
        let kinds = [Kind::Status, Kind::Header, Kind::ContentType, Kind::Body, Kind::Unread];
        let names = ["status", "header", "content_type", "body", "unread"];
        for (kind, name) in kinds.into_iter().zip(names) {
            for (fate, answer) in [(Fate::Reported, "reported"), (Fate::Refused, "refused")] {
                let labels = Unfit::LABELS[Unfit { kind, fate }.number()];
                assert_eq!(labels, [("problem", name), ("answer", answer)]);
            }
        }
    }
}
