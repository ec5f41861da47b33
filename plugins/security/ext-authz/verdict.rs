//! The response of an authoriser, checked before any of it takes effect.

use prost::Message;
use sigma_http::{HeaderId, Headers};
use sigma_plugin::outbound::ServiceResponse;
use sigma_plugin::{Context, OwnedField, Reply};

use super::messages::{CheckResponse, DeniedHttpResponse, OkHttpResponse};
use crate::shared::inquiry::{self, Outcome, bytes_of, sets_cookie};
use sigma_plugin_kit::envoy::{HeaderOption, Struct};
use sigma_plugin_kit::fields::{frames, is_name};

/// Variables that one response may set.
const VARIABLES_MAX: usize = 64;

/// Bytes before a message of gRPC: whether it is compressed, and its length.
const PREFIX: usize = 5;

/// The decision on the request.
pub(super) enum Verdict {
    /// It passes, with these changes.
    Pass(Box<Changes>),
    /// It is responded with this.
    Refuse(Box<Reply>),
    /// There was no decision, for this reason.
    None(String),
}

impl inquiry::Verdict for Verdict {
    fn outcome(&self) -> Outcome {
        match self {
            Verdict::Pass(changes) if sets_cookie(changes.response.iter().map(|field| &*field.name)) => {
                Outcome::Alone
            }
            Verdict::Pass(_) => Outcome::Passes,
            Verdict::Refuse(reply) => Outcome::of(reply),
            Verdict::None(_) => Outcome::Alone,
        }
    }

    fn bytes(&self) -> usize {
        match self {
            Verdict::Pass(changes) => changes.bytes(),
            Verdict::Refuse(reply) => bytes_of(reply),
            Verdict::None(_) => 0,
        }
    }

    fn failure(&self) -> Option<&str> {
        match self {
            Verdict::None(error) => Some(error),
            _ => None,
        }
    }
}

/// An authoriser's changes of a request that passes, and of its response.
#[derive(Default)]
pub(super) struct Changes {
    request: Vec<Field>,
    removed: Vec<String>,
    /// Fields for the client.
    pub(super) response: Vec<Field>,
    arguments: Vec<(String, String)>,
    arguments_removed: Vec<String>,
    variables: Vec<(String, String)>,
}

/// One field, and the handling of existing fields of its name.
#[derive(Clone)]
pub(super) struct Field {
    name: String,
    value: Vec<u8>,
    action: Action,
}

#[derive(Clone, Copy, PartialEq)]
enum Action {
    Append,
    AddIfAbsent,
    Set,
    OverwriteIfPresent,
}

/// A message of gRPC as it goes over the wire.
pub(super) fn framed(message: &impl Message) -> Vec<u8> {
    let length = message.encoded_len();
    let mut out = Vec::with_capacity(PREFIX + length);
    out.push(0);
    // The body of a request has a limit far below 4 GiB.
    out.extend_from_slice(&u32::try_from(length).unwrap_or(u32::MAX).to_be_bytes());
    out.extend_from_slice(&message.encode_to_vec());
    out
}

/// The verdict in a response.
///
/// # Errors
/// Returns an error, which is a sentence without anything of the response's, if it cannot be believed.
pub(super) fn of(answer: &ServiceResponse) -> Result<Verdict, String> {
    let code = answer.trailers.find(b"grpc-status").or_else(|| answer.headers.find(b"grpc-status"));
    match (answer.status, code) {
        (200, Some(b"0")) => {}
        (200, Some(code)) => {
            let code = std::str::from_utf8(code).ok().and_then(|code| code.parse::<u16>().ok());
            return Err(format!("the authorizer responded with the gRPC status {}", code.unwrap_or(2)));
        }
        (200, None) => return Err("the authorizer's response has no gRPC status".to_owned()),
        (status, _) => return Err(format!("the authorizer responded with the HTTP status {status}")),
    }
    let response = message(&answer.body).and_then(|bytes| CheckResponse::decode(bytes).ok());
    let response = response.ok_or_else(|| "the authorizer's response is malformed".to_owned())?;
    // Without a status there is no decision, with any other content.
    let status = response.status.ok_or_else(|| "the authorizer's response has no decision".to_owned())?;
    let variables = response.dynamic_metadata.as_ref().map(variables).unwrap_or_default();
    match (status.code, response.ok_response, response.denied_response) {
        (0, ok, None) => Ok(Verdict::Pass(Box::new(changes(ok.unwrap_or_default(), variables)?))),
        (0, ..) => Err("the authorizer allows and denies the request at once".to_owned()),
        (_, _, denied) => Ok(Verdict::Refuse(Box::new(refusal(denied.unwrap_or_default())?))),
    }
}

/// The one message of a body, not compressed.
fn message(body: &[u8]) -> Option<&[u8]> {
    let (prefix, message) = body.split_first_chunk::<PREFIX>()?;
    let [0, length @ ..] = prefix else { return None };
    (u32::from_be_bytes(*length) as usize == message.len()).then_some(message)
}

fn changes(ok: OkHttpResponse, variables: Vec<(String, String)>) -> Result<Changes, String> {
    let arguments = ok.query_parameters_to_set.into_iter().map(|argument| (argument.key, argument.value));
    Ok(Changes {
        request: fields(ok.headers)?,
        // The authoriser cannot change fields that frame the request, or the host.
        removed: ok
            .headers_to_remove
            .into_iter()
            .filter(|name| is_name(name) && !is_reserved(name))
            .collect(),
        response: fields(ok.response_headers_to_add)?,
        arguments: arguments.collect(),
        arguments_removed: ok.query_parameters_to_remove,
        variables,
    })
}

fn refusal(denied: DeniedHttpResponse) -> Result<Reply, String> {
    let status = match denied.status.map_or(0, |status| status.code) {
        0 => 403,
        code => u16::try_from(code)
            .ok()
            .filter(|code| (200..=599).contains(code))
            .ok_or("the authorizer denies with an invalid status")?,
    };
    let mut reply = Reply::new(status).because("the authorizer denies the request");
    for field in fields(denied.headers)? {
        if field.action == Action::Set {
            reply.headers.retain(|(name, _)| !name.eq_ignore_ascii_case(&field.name));
        }
        reply = reply.header(field.name, field.value);
    }
    Ok(reply.text(denied.body))
}

/// Whether a field is not a matter of the authoriser: it frames a message or says whom it is for.
pub(super) fn is_reserved(name: &str) -> bool {
    frames(name) || HeaderId::of(name.as_bytes()) == HeaderId::Host
}

/// Fields that can be sent.
///
/// # Errors
/// Returns an error if one of them cannot.
fn fields(options: Vec<HeaderOption>) -> Result<Vec<Field>, String> {
    let field = |option: HeaderOption| {
        let header = option.header.unwrap_or_default();
        let value = if header.raw_value.is_empty() { header.value.into_bytes() } else { header.raw_value };
        let is_torn = value.iter().any(|byte| matches!(byte, b'\r' | b'\n' | 0));
        if !is_name(&header.key) || is_reserved(&header.key) || is_torn {
            return Err("the authorizer sets a field that it may not set".to_owned());
        }
        let action = match (option.append, option.append_action) {
            (Some(append), _) if append.value => Action::Append,
            // The default of the protocol's field would append; the default of this message sets.
            (Some(_), _) | (None, 0 | 2) => Action::Set,
            (None, 1) => Action::AddIfAbsent,
            (None, 3) => Action::OverwriteIfPresent,
            (None, _) => return Err("the authorizer requests an unknown change of a field".to_owned()),
        };
        Ok(Field { name: header.key, value, action })
    };
    options.into_iter().map(field).collect()
}

impl Changes {
    /// About how many bytes they take.
    fn bytes(&self) -> usize {
        let fields =
            self.request.iter().chain(&self.response).map(|field| field.name.len() + field.value.len());
        let pairs =
            self.arguments.iter().chain(&self.variables).map(|(name, value)| name.len() + value.len());
        let names = self.removed.iter().chain(&self.arguments_removed).map(String::len);
        fields.chain(pairs).chain(names).sum()
    }

    /// All that the authoriser has said of the request's sender.
    pub(super) fn granted(&self) -> impl Iterator<Item = &[u8]> {
        let fields = self.request.iter().flat_map(|field| [field.name.as_bytes(), &field.value]);
        let pairs = self.arguments.iter().chain(&self.variables);
        fields.chain(pairs.flat_map(|(name, value)| [name.as_bytes(), value.as_bytes()]))
    }

    /// Changes the request. Fields for the client stay in `response`.
    pub(super) fn apply(&self, ctx: &mut Context) {
        for name in &self.removed {
            ctx.claim(OwnedField::sole(&**name));
            ctx.request.headers.remove_name(name.as_bytes());
        }
        for Field { name, action, .. } in &self.request {
            ctx.claim(match action {
                Action::Set => OwnedField::sole(&**name),
                Action::Append | Action::AddIfAbsent | Action::OverwriteIfPresent => {
                    OwnedField::shared(&**name)
                }
            });
        }
        apply(&self.request, &mut ctx.request.headers);
        let replaced = self.arguments.iter().map(|(name, _)| name);
        for name in self.arguments_removed.iter().chain(replaced) {
            ctx.hide_argument(name);
        }
        for (name, value) in &self.arguments {
            let mut target = ctx.outgoing_target().to_vec();
            target.push(if target.contains(&b'?') { b'&' } else { b'?' });
            encode(name, &mut target);
            target.push(b'=');
            encode(value, &mut target);
            ctx.target = target;
        }
        for (name, value) in &self.variables {
            ctx.set_variable(name, value.as_str());
        }
    }
}

/// Changes the fields of a message.
pub(super) fn apply(fields: &[Field], headers: &mut Headers) {
    for Field { name, value, action } in fields {
        let is_present = headers.find(name.as_bytes()).is_some();
        match action {
            Action::Append => headers.append(name, value),
            Action::AddIfAbsent if is_present => {}
            Action::OverwriteIfPresent if !is_present => {}
            Action::AddIfAbsent | Action::Set | Action::OverwriteIfPresent => {
                headers.remove_name(name.as_bytes());
                headers.append(name, value);
            }
        }
    }
}

/// A part of a query, with everything escaped that could end it.
pub(super) fn encode(text: &str, out: &mut Vec<u8>) {
    for byte in text.bytes() {
        match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => out.push(byte),
            _ => out.extend_from_slice(format!("%{byte:02X}").as_bytes()),
        }
    }
}

/// The members of metadata as variables `ext_authz_NAME`, in the order of their names.
fn variables(metadata: &Struct) -> Vec<(String, String)> {
    let is_word =
        |name: &str| name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_') && !name.is_empty();
    let mut names: Vec<&String> = metadata.fields.keys().filter(|name| is_word(name)).collect();
    names.sort();
    let named = names.into_iter().take(VARIABLES_MAX);
    named
        .filter_map(|name| {
            let value = match metadata.fields[name].json() {
                serde_json::Value::Null => return None,
                serde_json::Value::String(text) => text,
                other => other.to_string(),
            };
            Some((format!("ext_authz_{name}"), value))
        })
        .collect()
}
