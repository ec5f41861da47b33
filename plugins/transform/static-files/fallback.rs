//! Responses to paths without a file.

use std::borrow::Cow;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::Deserialize;
use sigma_plugin::step::BodyRead;
use sigma_plugin::{Context, Reply, Step};
use sigma_plugin_kit::own_route;
use sigma_plugin_kit::substitute::verbatim;

use sigma_plugin_kit::uri_template::{UriTemplate, without_controls};

/// The variable that says that another route has made the response, with its own fields.
pub(super) const OTHER_ROUTE: &str = "other_route";

/// The response to a path without a file.
#[derive(Deserialize)]
#[serde(try_from = "Form")]
pub(super) enum Fallback {
    /// This file below the root, with status 200.
    File(String),
    /// The upstream of the route, with this path and query; the request's own if the text is empty.
    Pass(Option<UriTemplate>),
    /// Another route.
    Route(UriTemplate),
    /// This status.
    Status(u16),
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Form {
    Path(String),
    Fields(Fields),
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Fields {
    file: Option<String>,
    pass: Option<String>,
    uri: Option<String>,
    status: Option<u16>,
}

impl TryFrom<Form> for Fallback {
    type Error = String;

    fn try_from(form: Form) -> Result<Fallback, String> {
        let fields = match form {
            Form::Path(file) => Fields { file: Some(file), pass: None, uri: None, status: None },
            Form::Fields(fields) => fields,
        };
        match fields {
            Fields { file: Some(file), pass: None, uri: None, status: None } if file.starts_with('/') => {
                Ok(Fallback::File(file))
            }
            Fields { file: Some(file), pass: None, uri: None, status: None } => {
                Err(format!("fallback: the file `{file}` does not begin with a slash"))
            }
            Fields { file: None, pass: Some(target), uri: None, status: None } => {
                if !target.is_empty() && !target.starts_with(['/', '$']) {
                    return Err(format!("fallback: the path `{target}` does not begin with a slash"));
                }
                Ok(Fallback::Pass((!target.is_empty()).then(|| UriTemplate::parse(&target))))
            }
            Fields { file: None, pass: None, uri: Some(uri), status: None }
                if uri.starts_with(['/', '$']) =>
            {
                Ok(Fallback::Route(UriTemplate::parse(&uri)))
            }
            Fields { file: None, pass: None, uri: Some(uri), status: None } => {
                Err(format!("fallback: the path `{uri}` does not begin with a slash"))
            }
            Fields { file: None, pass: None, uri: None, status: Some(status @ 400..=599) } => {
                Ok(Fallback::Status(status))
            }
            Fields { file: None, pass: None, uri: None, status: Some(status) } => {
                Err(format!("fallback: the status {status} is not an error, which is 400 to 599"))
            }
            _ => Err("fallback: write exactly one of `file`, `pass`, `uri` and `status`".to_owned()),
        }
    }
}

impl JsonSchema for Fallback {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "Fallback".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({"anyOf": [
            {"type": "string", "description": "Path of a file below the root, served with status 200."},
            {"type": "object", "minProperties": 1, "maxProperties": 1, "additionalProperties": false, "properties": {
                "file": {"type": "string", "description": "Path of a file below the root, served with status 200."},
                "pass": {
                    "type": "string",
                    "description": "Path and query for the upstream of the route, with variables. Empty: unchanged."
                },
                "uri": {
                    "type": "string",
                    "description": "Path and query of another route of this gateway, with variables."
                },
                "status": {"type": "integer", "description": "A status of 400 or more."}
            }}
        ]})
    }
}

impl Fallback {
    /// Returns true if the fallback, and not the plugin, serves methods other than GET and HEAD.
    pub(super) fn takes_all_methods(&self) -> bool {
        matches!(self, Fallback::Pass(_) | Fallback::Route(_))
    }

    /// Returns the step for a request without a file. A file is looked up by the caller.
    pub(super) fn step(&self, ctx: &mut Context) -> Step {
        match self {
            Fallback::File(_) => Step::status(404),
            Fallback::Status(status) => Step::status(*status),
            Fallback::Pass(None) => Step::Next,
            Fallback::Pass(Some(target)) => {
                ctx.target = rendered(target, ctx);
                Step::Next
            }
            Fallback::Route(target) => {
                let target = rendered(target, ctx);
                if !ctx.has_request_body {
                    return ask(ctx, target);
                }
                Step::ReadBody {
                    limit: own_route::MOST_REQUEST_BYTES,
                    then: Box::new(move |ctx, _, read| match read {
                        BodyRead::Whole => ask(ctx, target),
                        BodyRead::TooLarge => Step::status(413),
                    }),
                }
            }
        }
    }
}

/// Returns the path and query of a target.
pub(super) fn rendered(target: &UriTemplate, ctx: &Context) -> Vec<u8> {
    let mut target = without_controls(&target.rendered(ctx, &verbatim), false);
    // An argument list without the client's, which were empty.
    if target.last() == Some(&b'&') && target.contains(&b'?') {
        target.pop();
    }
    if target.first() != Some(&b'/') {
        target.insert(0, b'/');
    }
    target
}

/// Returns the step that asks another route for the response.
pub(super) fn ask(ctx: &Context, target: Vec<u8>) -> Step {
    let calls = vec![own_route::request(ctx, target)];
    Step::Ask {
        calls,
        then: Box::new(|ctx, _, mut asked| match asked.pop() {
            Some(Ok(answer)) => {
                ctx.set_variable(OTHER_ROUTE, "1");
                let status = answer.status;
                own_route::reply(answer, status).into()
            }
            Some(Err(error)) => {
                tracing::warn!(%error, "the route of a fallback does not respond");
                Reply::new(502).because("the route of the fallback does not respond").into()
            }
            None => Step::status(502),
        }),
    }
}
