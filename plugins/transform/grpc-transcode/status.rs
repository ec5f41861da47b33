//! How a call failed.

use base64::Engine;
use base64::alphabet::STANDARD as ALPHABET;
use base64::engine::general_purpose::STANDARD;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};
use prost_reflect::prost::Message;
use prost_reflect::{DescriptorPool, DynamicMessage};
use serde_json::{Value, json};
use sigma_http::{Chunk, Headers};
use sigma_plugin::variables::percent_decoded;
use sigma_plugin::{Context, Pieces, Transform};

use super::{Transcoder, size};

/// The field with the status of a call.
pub(super) const STATUS: &[u8] = b"grpc-status";
/// The field with its details.
pub(super) const DETAILS: &[u8] = b"grpc-status-details-bin";

/// The status of HTTP for one of gRPC.
pub(super) fn http(code: &[u8]) -> u16 {
    match code {
        b"1" => 499,
        b"2" | b"13" | b"15" => 500,
        b"3" | b"9" | b"11" => 400,
        b"4" => 504,
        b"5" => 404,
        b"6" | b"10" => 409,
        b"7" => 403,
        b"8" => 429,
        b"12" => 501,
        b"14" => 503,
        b"16" => 401,
        _ => 599,
    }
}

/// `google.rpc.Status`.
#[derive(Clone, PartialEq, prost::Message)]
struct Status {
    #[prost(int32, tag = "1")]
    code: i32,
    #[prost(string, tag = "2")]
    message: String,
    #[prost(message, repeated, tag = "3")]
    details: Vec<Detail>,
}

/// `google.protobuf.Any`.
#[derive(Clone, PartialEq, prost::Message)]
struct Detail {
    #[prost(string, tag = "1")]
    type_url: String,
    #[prost(bytes = "vec", tag = "2")]
    value: Vec<u8>,
}

impl Transcoder {
    /// The body that shows the details of a failure, or says why it cannot.
    pub(super) fn failure(&self, pool: &DescriptorPool, details: &[u8]) -> Vec<u8> {
        match self.status(pool, details) {
            Ok(status) => json!({ "error": status }).to_string().into_bytes(),
            Err(reason) => {
                tracing::debug!("grpc-transcode: {reason}");
                reason.into()
            }
        }
    }

    /// Gives a head that has not left the status of a failure; returns the body.
    pub(super) fn fail_late(&self, failure: Failure, ctx: &mut Context) -> Vec<u8> {
        ctx.response.status = http(&failure.code);
        let head = &mut ctx.response.headers;
        let fields = [("grpc-status", Some(&failure.code)), ("grpc-message", failure.message.as_ref())];
        for (name, value) in fields.into_iter().chain([("grpc-status-details-bin", failure.details.as_ref())])
        {
            if let Some(value) = value {
                head.replace(name, value);
            }
        }
        match (&failure.details, &self.service) {
            (Some(details), Ok(service)) if self.config.show_status_in_body => {
                self.failure(&service.pool, details)
            }
            _ => Vec::new(),
        }
    }

    fn status(&self, pool: &DescriptorPool, details: &[u8]) -> Result<Value, &'static str> {
        let config = GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent);
        let packed = GeneralPurpose::new(&ALPHABET, config).decode(details);
        let packed = packed.map_err(|_| "grpc-status-details-bin is not base64 format")?;
        let status = Status::decode(&packed[..]).map_err(|_| "failed to decode grpc-status-details-bin")?;
        let details = status.details.iter().map(|detail| self.detail(pool, detail));
        let details = details.collect::<Result<Vec<Value>, &'static str>>()?;
        let mut shown = json!({ "code": status.code, "message": status.message });
        if !details.is_empty() {
            shown["details"] = Value::Array(details);
        }
        Ok(shown)
    }

    fn detail(&self, pool: &DescriptorPool, detail: &Detail) -> Result<Value, &'static str> {
        if let Some(name) = &self.config.status_detail_type {
            const UNKNOWN: &str = "failed to call pb.decode to decode details in grpc-status-details-bin";
            const WRONG: &str = "failed to decode details in grpc-status-details-bin";
            pool.get_message_by_name(name).ok_or(UNKNOWN)?;
            return self.shown(pool, name, &detail.value).ok_or(WRONG);
        }
        let name = detail.type_url.rsplit('/').next().unwrap_or_default();
        let value = self.shown(pool, name, &detail.value);
        let value = value.unwrap_or_else(|| STANDARD.encode(&detail.value).into());
        Ok(json!({ "type_url": detail.type_url, "value": value }))
    }

    /// A message of this type as JSON.
    fn shown(&self, pool: &DescriptorPool, name: &str, bytes: &[u8]) -> Option<Value> {
        let desc = pool.get_message_by_name(name)?;
        if !size::fits(&desc, bytes, self.config.max_body_values) {
            return None;
        }
        let message = DynamicMessage::decode(desc, bytes).ok()?;
        let text = self.form.message(&message, self.config.max_resp_body_size).ok()?;
        serde_json::from_slice(&text).ok()
    }
}

/// How a call failed, as its trailers say.
pub(super) struct Failure {
    code: Vec<u8>,
    message: Option<Vec<u8>>,
    details: Option<Vec<u8>>,
}

impl Failure {
    /// The failure of a call that has ended; None if it succeeded. A call without a message and without a status
    /// has failed.
    pub(super) fn of(trailers: Option<&Headers>, has_message: bool) -> Option<Failure> {
        let field = |name: &[u8]| trailers.and_then(|trailers| trailers.find(name)).map(<[u8]>::to_vec);
        match field(STATUS) {
            Some(code) if code == b"0" => None,
            Some(code) => Some(Failure { code, message: field(b"grpc-message"), details: field(DETAILS) }),
            None if has_message => None,
            None => {
                let message = Some(b"upstream grpc status not received".to_vec());
                Some(Failure { code: b"2".to_vec(), message, details: None })
            }
        }
    }
}

/// The last line of a stream whose call failed; None if it did not.
pub(super) fn line(trailers: &Headers) -> Option<Vec<u8>> {
    let code = trailers.find(STATUS).filter(|code| *code != b"0")?;
    let code: i32 = std::str::from_utf8(code).ok()?.parse().ok()?;
    let message = percent_decoded(trailers.find(b"grpc-message").unwrap_or_default());
    let message = String::from_utf8_lossy(&message);
    Some(format!("{}\n", json!({ "error": { "code": code, "message": message } })).into_bytes())
}

/// A body that replaces another.
pub(super) struct Body(pub(super) Vec<u8>);

impl Transform for Body {
    fn data(&mut self, _: &mut Context, _: Chunk, _: &mut Pieces) {}

    fn end(&mut self, _: &mut Context, _: Option<&mut Headers>, out: &mut Pieces) {
        out.bytes(&self.0);
    }
}
