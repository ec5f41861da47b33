//! How messages travel: in the query of a redirect, deflated and signed as a text (SAML Bindings §3.4), or in a form
//! (§3.5).

use std::io::Write;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use flate2::Compression;
use flate2::read::DeflateDecoder;
use flate2::write::DeflateEncoder;
use sigma_plugin::variables::pairs;

use super::keys::{OwnKey, ProviderKeys, RSA_SHA512};
use crate::shared::form::{Form, escaped, fields};
use sigma_plugin_kit::inflate::{self, Failure};

/// Whether a message is a request or a response.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Request,
    Response,
}

impl Kind {
    fn parameter(self) -> &'static str {
        match self {
            Kind::Request => "SAMLRequest",
            Kind::Response => "SAMLResponse",
        }
    }
}

/// A message as it came.
#[derive(Debug)]
pub(super) struct Message {
    pub(super) kind: Kind,
    pub(super) text: Vec<u8>,
    pub(super) relay_state: Option<String>,
    /// Whether the provider has signed all of it; if not, there has to be a signature within.
    pub(super) is_signed: bool,
}

/// The parameters of a form.
const PARAMETERS: [&str; 6] =
    ["SAMLRequest", "SAMLResponse", "RelayState", "SigAlg", "Signature", "SAMLEncoding"];

const DEFLATE: &[u8] = b"urn:oasis:names:tc:SAML:2.0:bindings:URL-Encoding:DEFLATE";

/// The message in the query of a redirect. Its signature is of the query as it is written.
///
/// # Errors
/// Returns an error, which is a text for the log, if there is no message, or the provider has not signed it.
pub(super) fn of_query(query: &[u8], keys: &ProviderKeys, limit: usize) -> Result<Message, &'static str> {
    let mut found: [Option<(&[u8], Vec<u8>)>; PARAMETERS.len()] = Default::default();
    for pair in query.split(|byte| *byte == b'&') {
        let Some((name, value)) = pairs(pair).next() else { continue };
        let Some(at) = PARAMETERS.iter().position(|known| known.as_bytes() == &*name) else { continue };
        let is_plain =
            pair.strip_prefix(PARAMETERS[at].as_bytes()).is_some_and(|rest| rest.starts_with(b"="));
        let value = value.filter(|_| is_plain).ok_or("a parameter of the message has an invalid encoding")?;
        if found[at].replace((pair, value.into_owned())).is_some() {
            return Err("a parameter of the message occurs twice");
        }
    }
    let [request, response, relay_state, algorithm, signature, encoding] = found;
    let (kind, (pair, value)) = match (request, response) {
        (Some(request), None) => (Kind::Request, request),
        (None, Some(response)) => (Kind::Response, response),
        _ => return Err("the request has no SAML message, or two"),
    };
    if encoding.is_some_and(|(_, encoding)| encoding != DEFLATE) {
        return Err("the encoding of the message is not supported");
    }
    let (Some((algorithm_pair, algorithm)), Some((_, signature))) = (algorithm, signature) else {
        return Err("the message is not signed");
    };
    let relay_pair = relay_state.as_ref().map(|(pair, _)| *pair);
    let signed: Vec<&[u8]> = [Some(pair), relay_pair, Some(algorithm_pair)].into_iter().flatten().collect();
    let algorithm = str::from_utf8(&algorithm).map_err(|_| "the algorithm is not text")?;
    keys.verify(algorithm, &signed.join(&b'&'), &decoded(&signature)?)?;
    let relay_state = relay_state.map(|(_, value)| String::from_utf8(value)).transpose();
    let relay_state = relay_state.map_err(|_| "RelayState is not text")?;
    Ok(Message { kind, text: inflated(&decoded(&value)?, limit)?, relay_state, is_signed: true })
}

/// Returns the message in a form, in which only signatures within the message count.
///
/// # Errors
/// Returns an error, which is a text for the log, if there is no message.
pub(super) fn of_form(form: &[u8], limit: usize) -> Result<Message, &'static str> {
    let fields = fields(form).ok_or("a field of the form occurs twice, or is not text")?;
    let field = |name: &str| fields.get(name).and_then(|value| value.as_str());
    let (kind, value) = match (field("SAMLRequest"), field("SAMLResponse")) {
        (Some(request), None) => (Kind::Request, request),
        (None, Some(response)) => (Kind::Response, response),
        _ => return Err("the request has no SAML message, or two"),
    };
    let text = decoded(value.as_bytes())?;
    if text.len() > limit {
        return Err("the message is too large");
    }
    Ok(Message { kind, text, relay_state: field("RelayState").map(str::to_owned), is_signed: false })
}

/// The URL that a browser is sent to with a message.
///
/// # Errors
/// Returns an error, which is a text for the log, if it cannot be signed.
pub(super) fn redirect(
    to: &str,
    kind: Kind,
    message: &str,
    relay_state: Option<&str>,
    key: &OwnKey,
) -> Result<String, &'static str> {
    let mut encoder = DeflateEncoder::new(Vec::new(), Compression::default());
    let deflated = encoder.write_all(message.as_bytes()).and_then(|()| encoder.finish());
    let deflated = deflated.map_err(|_| "cannot compress a message")?;
    let mut form = Form::default().with(kind.parameter(), STANDARD.encode(deflated));
    if let Some(relay_state) = relay_state {
        form = form.with("RelayState", relay_state);
    }
    let signed = form.with("SigAlg", RSA_SHA512).text();
    let signature = STANDARD.encode(key.sign(signed.as_bytes())?);
    Ok(format!("{to}?{signed}&Signature={}", escaped(signature.as_bytes())))
}

fn decoded(text: &[u8]) -> Result<Vec<u8>, &'static str> {
    let text: Vec<u8> = text.iter().copied().filter(|byte| !byte.is_ascii_whitespace()).collect();
    STANDARD.decode(text).map_err(|_| "the message is not Base64")
}

fn inflated(deflated: &[u8], limit: usize) -> Result<Vec<u8>, &'static str> {
    inflate::decoded(DeflateDecoder::new(deflated), deflated.len(), limit).map_err(|failure| match failure {
        Failure::TooLong => "the message is too large",
        Failure::Broken => "the message is not DEFLATE data",
    })
}
