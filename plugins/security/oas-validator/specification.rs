//! A document, made ready for requests.

use std::borrow::Cow;

use sigma_http::Headers;
use sigma_plugin::Context;
use sigma_plugin::variables::cookies;
use sigma_schema::document::Document;
use sigma_schema::openapi::server::base_path;
use sigma_schema::openapi::template::Template;
use sigma_schema::openapi::{OpenApi, Operation as Described};
use sigma_schema::validation::{SchemaId, Schemas, Sender};

use super::answers::{Answers, Looked};
use super::body::{self, Body};
use super::parameter::{Limits, Location, Parameter};
use super::shape::{Source, Texts};
use super::tree::Tree;

/// Most bytes of a document. The largest that vendors publish have about as many.
pub(super) const MOST_BYTES: usize = 16 << 20;

/// The requirements on requests.
#[derive(Debug)]
pub(super) struct Specification {
    schemas: Schemas,
    /// Those of responses.
    answer_schemas: Schemas,
    tree: Tree,
    operations: Vec<Operation>,
}

/// The parts of a document that are read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Scope {
    Requests,
    RequestsAndAnswers,
}

/// The requirements on requests of one method and path.
#[derive(Debug)]
pub(super) struct Operation {
    /// The names of the parameters in the path, in order.
    path: Vec<String>,
    parameters: Vec<Parameter>,
    pub(super) body: Option<Body>,
    /// The requirements on responses; None if the document does not have any, or they are not used.
    pub(super) answers: Option<Answers>,
}

/// The operation that a request is of.
pub(super) struct Match<'s> {
    specification: &'s Specification,
    /// The number of the operation in its document.
    pub(super) number: usize,
    pub(super) operation: &'s Operation,
    /// The parts of its path for the parameters.
    captures: Vec<Vec<u8>>,
}

impl Specification {
    /// Reads a text of JSON or YAML.
    ///
    /// # Errors
    /// Returns an error, which is the whole reason, if it is no document of OpenAPI, or one that cannot be followed.
    pub(super) fn read(text: &str, scope: Scope) -> Result<Specification, String> {
        let document = Document::parse(text, MOST_BYTES).map_err(|problems| {
            let first = problems.first().map(ToString::to_string).unwrap_or_default();
            format!("invalid JSON string provided, err: {first}")
        })?;
        let document = OpenApi::of(document.value)?;
        let mut source = Source::new(&document, Sender::Client);
        let mut answers = Source::new(&document, Sender::Node);
        let (mut tree, mut operations) = (Tree::default(), Vec::new());
        for described in document.operations()? {
            let template = Template::parse(described.path)?;
            let mut bases: Vec<&str> = described.servers.iter().map(|url| base_path(url)).collect();
            bases.sort_unstable();
            bases.dedup();
            for base in bases {
                let whole = Template::parse(&format!("{}{}", rooted(base), described.path))?;
                tree.add(&described.method, &whole, operations.len())
                    .map_err(|error| format!("{} {}: {error}", described.method, described.path))?;
            }
            let mut operation = Operation::read(&mut source, &described, &template)?;
            let part = described.operation.member("responses");
            if let Some(part) = part.filter(|_| scope == Scope::RequestsAndAnswers) {
                operation.answers = Some(Answers::read(&mut answers, &part)?);
            }
            operations.push(operation);
        }
        let (schemas, answer_schemas) = (source.reading.finish()?, answers.reading.finish()?);
        Ok(Specification { schemas, answer_schemas, tree, operations })
    }

    /// The operation of a request.
    pub(super) fn find<'s>(&'s self, method: &[u8], path: &[u8]) -> Option<Match<'s>> {
        let (number, captures) = self.tree.find(method, path)?;
        let captures = captures.into_iter().map(<[u8]>::to_vec).collect();
        Some(Match { specification: self, number, operation: &self.operations[number], captures })
    }

    /// The responses of an operation; None if nothing is said of them.
    pub(super) fn answers(&self, operation: usize) -> Option<&Answers> {
        self.operations.get(operation)?.answers.as_ref()
    }

    /// Checks the head of a response to a request of an operation.
    pub(super) fn look(&self, operation: usize, ctx: &Context, limits: Limits) -> Looked {
        let texts = Texts::new(&self.answer_schemas);
        self.answers(operation).map_or_else(Looked::default, |answers| answers.look(ctx, &texts, limits))
    }

    /// Checks the body of a response.
    pub(super) fn answer(&self, schema: SchemaId, body: &[u8], limits: Limits) -> Result<(), String> {
        let value = body::json(body, limits)?;
        self.answer_schemas.check_of_stranger(schema, &value, limits.steps)
    }
}

/// The path of a server, from the root.
fn rooted(base: &str) -> Cow<'_, str> {
    match base {
        "" => Cow::Borrowed(""),
        base if base.starts_with('/') => Cow::Borrowed(base),
        // Relative to where the document is, which is the root here.
        base => Cow::Owned(format!("/{}", base.trim_start_matches("./"))),
    }
}

impl Operation {
    fn read<'d>(
        source: &mut Source<'d>,
        described: &Described<'d>,
        template: &Template,
    ) -> Result<Operation, String> {
        let mut parameters = Vec::new();
        for part in &described.parameters {
            parameters.extend(Parameter::read(source, part)?);
        }
        // A segment without a parameter is still in the path, and may have any value.
        let path = template.parameters().map(str::to_owned).collect();
        let body = described.operation.member("requestBody");
        let document = source.document;
        let body = body.map(|part| Body::read(source, &document.resolved(part)?)).transpose()?;
        Ok(Operation { path, parameters, body, answers: None })
    }
}

/// The parts that a validation leaves out.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Skipped {
    pub(super) path: bool,
    pub(super) query: bool,
    pub(super) header: bool,
    pub(super) cookie: bool,
}

impl Skipped {
    fn has(self, location: Location) -> bool {
        match location {
            Location::Path => self.path,
            Location::Query => self.query,
            Location::Header => self.header,
            Location::Cookie => self.cookie,
        }
    }
}

impl Match<'_> {
    /// Returns the faults in the parameters of a request, a line each.
    pub(super) fn parameters(&self, ctx: &Context, skipped: Skipped, limits: Limits) -> Vec<String> {
        let texts = Texts::new(&self.specification.schemas);
        let query = body::query(ctx.request.query().unwrap_or_default());
        let cookies: Result<Vec<_>, String> = cookies(&ctx.request.headers)
            .map(|(name, value)| Ok((body::text(name.into())?, body::text(value.into())?)))
            .collect();
        let mut problems = Vec::new();
        for parameter in &self.operation.parameters {
            let location = parameter.location;
            if skipped.has(location) {
                continue;
            }
            let outcome = match location {
                Location::Path => self.path(parameter, &texts, limits),
                Location::Header => header(parameter, ctx, &texts, limits),
                Location::Query | Location::Cookie => {
                    let pairs = if location == Location::Query { &query } else { &cookies };
                    let others = self.others(parameter);
                    match pairs {
                        Ok(pairs) => parameter.check_pairs(pairs, &others, &texts, limits),
                        Err(error) => Err(error.clone()),
                    }
                }
            };
            if let Err(reason) = outcome {
                problems.push(format!("{} parameter '{}': {reason}", location.name(), parameter.name()));
            }
        }
        problems
    }

    /// The names of the other parameters in the same place.
    fn others(&self, parameter: &Parameter) -> Vec<&str> {
        let all = self.operation.parameters.iter();
        let others =
            all.filter(|other| other.location == parameter.location && !std::ptr::eq(*other, parameter));
        others.map(Parameter::name).collect()
    }

    fn path(&self, parameter: &Parameter, texts: &Texts<'_>, limits: Limits) -> Result<(), String> {
        let at = self.operation.path.iter().position(|name| name == parameter.name());
        let value = at.and_then(|at| self.captures.get(at));
        let value = value.map(|value| body::text(value.as_slice().into())).transpose()?;
        parameter.check_lines(value.as_deref().as_slice(), texts, limits)
    }

    /// Returns the fault of a body that is not empty, of one `Content-Type`.
    pub(super) fn body(
        &self,
        described: &Body,
        content_type: &str,
        body: &[u8],
        limits: Limits,
    ) -> Result<(), String> {
        described.check(content_type, body, &self.specification.schemas, limits)
    }
}

fn header(parameter: &Parameter, ctx: &Context, texts: &Texts<'_>, limits: Limits) -> Result<(), String> {
    let name = parameter.name().as_bytes();
    let fields = ctx.request.headers.iter().filter(|(known, _)| known.eq_ignore_ascii_case(name));
    let lines = fields.map(|(_, value)| std::str::from_utf8(value).map_err(|_| "it is not UTF-8".to_owned()));
    parameter.check_lines(&lines.collect::<Result<Vec<&str>, String>>()?, texts, limits)
}

/// Whether the body of a request is encoded, so that it cannot be looked at.
///
/// # Errors
/// Returns an error, which is a sentence, if it is.
pub(super) fn check_coding(headers: &Headers) -> Result<(), String> {
    let mut fields = headers.iter();
    let is_plain = fields.all(|(name, coding)| {
        !name.eq_ignore_ascii_case(b"content-encoding") || coding.eq_ignore_ascii_case(b"identity")
    });
    if is_plain { Ok(()) } else { Err("it has a Content-Encoding; send the body unencoded".to_owned()) }
}
