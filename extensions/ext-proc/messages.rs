//! The messages of `envoy.service.ext_proc.v3.ExternalProcessor`, as far as they are used.
//!
//! They are written by hand after Envoy's `external_processor.proto` and `processing_mode.proto`, so that no build
//! needs a compiler of Protocol Buffers. A field that is missing here is skipped when it is read. The tags are
//! Envoy's and never change.

use std::collections::HashMap;

use sigma_plugin_kit::envoy::{HeaderMap, HeaderOption, Struct};

/// The path of the method.
pub(crate) const PROCESS: &str = "/envoy.service.ext_proc.v3.ExternalProcessor/Process";

/// The key of the attributes.
pub(crate) const FILTER: &str = "envoy.filters.http.ext_proc";

/// A message of the gateway.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct ProcessingRequest {
    #[prost(oneof = "Part", tags = "2, 3, 4, 5, 6, 7")]
    pub(crate) request: Option<Part>,
    #[prost(map = "string, message", tag = "9")]
    pub(crate) attributes: HashMap<String, Struct>,
    #[prost(bool, tag = "10")]
    pub(crate) observability_mode: bool,
    /// Only in the first message.
    #[prost(message, optional, tag = "11")]
    pub(crate) protocol_config: Option<ProtocolConfiguration>,
}

/// A part of a request or of a response.
#[derive(Clone, PartialEq, prost::Oneof)]
pub(crate) enum Part {
    #[prost(message, tag = "2")]
    RequestHeaders(HttpHeaders),
    #[prost(message, tag = "3")]
    ResponseHeaders(HttpHeaders),
    #[prost(message, tag = "4")]
    RequestBody(HttpBody),
    #[prost(message, tag = "5")]
    ResponseBody(HttpBody),
    #[prost(message, tag = "6")]
    RequestTrailers(HttpTrailers),
    #[prost(message, tag = "7")]
    ResponseTrailers(HttpTrailers),
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct HttpHeaders {
    #[prost(message, optional, tag = "1")]
    pub(crate) headers: Option<HeaderMap>,
    /// Neither body nor trailers follow.
    #[prost(bool, tag = "3")]
    pub(crate) end_of_stream: bool,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct HttpBody {
    #[prost(bytes = "vec", tag = "1")]
    pub(crate) body: Vec<u8>,
    #[prost(bool, tag = "2")]
    pub(crate) end_of_stream: bool,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct HttpTrailers {
    #[prost(message, optional, tag = "1")]
    pub(crate) trailers: Option<HeaderMap>,
}

#[derive(Clone, Copy, PartialEq, prost::Message)]
pub(crate) struct ProtocolConfiguration {
    #[prost(int32, tag = "1")]
    pub(crate) request_body_mode: i32,
    #[prost(int32, tag = "2")]
    pub(crate) response_body_mode: i32,
}

/// A message of the processor.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct ProcessingResponse {
    #[prost(oneof = "PartResponse", tags = "1, 2, 3, 4, 5, 6, 7, 11")]
    pub(crate) response: Option<PartResponse>,
    #[prost(message, optional, tag = "8")]
    pub(crate) dynamic_metadata: Option<Struct>,
    #[prost(message, optional, tag = "9")]
    pub(crate) mode_override: Option<ModeOverride>,
    #[prost(message, optional, tag = "10")]
    pub(crate) override_message_timeout: Option<Duration>,
}

/// The response to a part, or the response to the client.
#[derive(Clone, PartialEq, prost::Oneof)]
pub(crate) enum PartResponse {
    #[prost(message, tag = "1")]
    RequestHeaders(CommonAnswer),
    #[prost(message, tag = "2")]
    ResponseHeaders(CommonAnswer),
    #[prost(message, tag = "3")]
    RequestBody(CommonAnswer),
    #[prost(message, tag = "4")]
    ResponseBody(CommonAnswer),
    #[prost(message, tag = "5")]
    RequestTrailers(TrailersAnswer),
    #[prost(message, tag = "6")]
    ResponseTrailers(TrailersAnswer),
    #[prost(message, tag = "7")]
    Immediate(ImmediateResponse),
    /// A response to the client in pieces.
    #[prost(message, tag = "11")]
    StreamedImmediate(StreamedImmediateResponse),
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct StreamedImmediateResponse {
    #[prost(oneof = "StreamedPart", tags = "1, 2, 3")]
    pub(crate) response: Option<StreamedPart>,
}

/// A part of a response in pieces; the head comes first.
#[derive(Clone, PartialEq, prost::Oneof)]
pub(crate) enum StreamedPart {
    /// With `:status` among its fields.
    #[prost(message, tag = "1")]
    Headers(HttpHeaders),
    #[prost(message, tag = "2")]
    Body(StreamedBody),
    #[prost(message, tag = "3")]
    Trailers(HeaderMap),
}

/// `HeadersResponse` and `BodyResponse`, which are alike.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct CommonAnswer {
    #[prost(message, optional, tag = "1")]
    pub(crate) response: Option<CommonResponse>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct TrailersAnswer {
    #[prost(message, optional, tag = "1")]
    pub(crate) header_mutation: Option<HeaderMutation>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct CommonResponse {
    /// [`CONTINUE_AND_REPLACE`], or 0 to continue.
    #[prost(int32, tag = "1")]
    pub(crate) status: i32,
    #[prost(message, optional, tag = "2")]
    pub(crate) header_mutation: Option<HeaderMutation>,
    #[prost(message, optional, tag = "3")]
    pub(crate) body_mutation: Option<BodyMutation>,
    #[prost(bool, tag = "5")]
    pub(crate) clear_route_cache: bool,
}

/// The status that replaces a message: no further part of it is sent.
pub(crate) const CONTINUE_AND_REPLACE: i32 = 1;

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct HeaderMutation {
    #[prost(message, repeated, tag = "1")]
    pub(crate) set_headers: Vec<HeaderOption>,
    #[prost(string, repeated, tag = "2")]
    pub(crate) remove_headers: Vec<String>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct BodyMutation {
    #[prost(oneof = "Mutation", tags = "1, 2, 3")]
    pub(crate) mutation: Option<Mutation>,
}

#[derive(Clone, PartialEq, prost::Oneof)]
pub(crate) enum Mutation {
    #[prost(bytes = "vec", tag = "1")]
    Body(Vec<u8>),
    #[prost(bool, tag = "2")]
    Clear(bool),
    #[prost(message, tag = "3")]
    Streamed(StreamedBody),
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct StreamedBody {
    #[prost(bytes = "vec", tag = "1")]
    pub(crate) body: Vec<u8>,
    #[prost(bool, tag = "2")]
    pub(crate) end_of_stream: bool,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct ImmediateResponse {
    #[prost(message, optional, tag = "1")]
    pub(crate) status: Option<HttpStatus>,
    #[prost(message, optional, tag = "2")]
    pub(crate) headers: Option<HeaderMutation>,
    #[prost(bytes = "vec", tag = "3")]
    pub(crate) body: Vec<u8>,
    #[prost(message, optional, tag = "4")]
    pub(crate) grpc_status: Option<GrpcStatus>,
}

#[derive(Clone, Copy, PartialEq, prost::Message)]
pub(crate) struct HttpStatus {
    #[prost(int32, tag = "1")]
    pub(crate) code: i32,
}

#[derive(Clone, Copy, PartialEq, prost::Message)]
pub(crate) struct GrpcStatus {
    #[prost(uint32, tag = "1")]
    pub(crate) status: u32,
}

/// `google.protobuf.Duration`.
#[derive(Clone, Copy, PartialEq, prost::Message)]
pub(crate) struct Duration {
    #[prost(int64, tag = "1")]
    pub(crate) seconds: i64,
    #[prost(int32, tag = "2")]
    pub(crate) nanos: i32,
}

/// `envoy.extensions.filters.http.ext_proc.v3.ProcessingMode`.
#[derive(Clone, Copy, PartialEq, prost::Message)]
pub(crate) struct ModeOverride {
    #[prost(int32, tag = "1")]
    pub(crate) request_header_mode: i32,
    #[prost(int32, tag = "2")]
    pub(crate) response_header_mode: i32,
    #[prost(int32, tag = "3")]
    pub(crate) request_body_mode: i32,
    #[prost(int32, tag = "4")]
    pub(crate) response_body_mode: i32,
    #[prost(int32, tag = "5")]
    pub(crate) request_trailer_mode: i32,
    #[prost(int32, tag = "6")]
    pub(crate) response_trailer_mode: i32,
}

#[cfg(test)]
mod tests {
    use prost::Message;
    use sigma_plugin_kit::envoy::HeaderValue;

    use super::*;

    /// Envoy writes the same bytes.
    #[test]
    fn requests_as_bytes() {
        let check = |request: Part, expected: &[u8]| {
            let message = ProcessingRequest { request: Some(request), ..ProcessingRequest::default() };
            assert_eq!(message.encode_to_vec(), expected, "{message:?}");
            assert_eq!(ProcessingRequest::decode(expected).unwrap(), message);
        };
        let field = HeaderValue { key: ":path".into(), raw_value: b"/a".to_vec(), ..HeaderValue::default() };
        let map = Some(HeaderMap { headers: vec![field] });
        let headers = HttpHeaders { headers: map.clone(), end_of_stream: true };
        let written: &[u8] = b"\x0a\x0d\x0a\x0b\x0a\x05:path\x1a\x02/a";
        check(Part::RequestHeaders(headers.clone()), &[b"\x12\x11", written, b"\x18\x01"].concat());
        check(Part::ResponseHeaders(headers), &[b"\x1a\x11", written, b"\x18\x01"].concat());
        let body = HttpBody { body: b"xy".to_vec(), end_of_stream: true };
        check(Part::RequestBody(body.clone()), b"\x22\x06\x0a\x02xy\x10\x01");
        check(Part::ResponseBody(body), b"\x2a\x06\x0a\x02xy\x10\x01");
        check(
            Part::RequestTrailers(HttpTrailers { trailers: map.clone() }),
            &[b"\x32\x0f", written].concat(),
        );
        check(Part::ResponseTrailers(HttpTrailers { trailers: map }), &[b"\x3a\x0f", written].concat());
    }

    #[test]
    fn first_request_as_bytes() {
        let protocol_config = Some(ProtocolConfiguration { request_body_mode: 2, response_body_mode: 4 });
        let message =
            ProcessingRequest { observability_mode: true, protocol_config, ..ProcessingRequest::default() };
        assert_eq!(message.encode_to_vec(), b"\x50\x01\x5a\x04\x08\x02\x10\x04");
    }

    #[test]
    fn answers_from_bytes() {
        let check = |bytes: &[u8], expected: ProcessingResponse| {
            assert_eq!(ProcessingResponse::decode(bytes).unwrap(), expected, "{bytes:?}");
        };
        let of = |answer| ProcessingResponse { response: Some(answer), ..ProcessingResponse::default() };
        let common = |response| CommonAnswer { response: Some(response) };
        check(b"\x0a\x00", of(PartResponse::RequestHeaders(CommonAnswer::default())));
        check(
            b"\x12\x06\x0a\x04\x08\x01\x28\x01",
            of(PartResponse::ResponseHeaders(common(CommonResponse {
                status: CONTINUE_AND_REPLACE,
                clear_route_cache: true,
                ..CommonResponse::default()
            }))),
        );
        let mutated = |mutation| {
            let body_mutation = Some(BodyMutation { mutation: Some(mutation) });
            common(CommonResponse { body_mutation, ..CommonResponse::default() })
        };
        check(
            b"\x1a\x07\x0a\x05\x1a\x03\x0a\x01x",
            of(PartResponse::RequestBody(mutated(Mutation::Body(b"x".into())))),
        );
        check(
            b"\x22\x06\x0a\x04\x1a\x02\x10\x01",
            of(PartResponse::ResponseBody(mutated(Mutation::Clear(true)))),
        );
        let streamed = StreamedBody { body: b"x".into(), end_of_stream: true };
        check(
            b"\x22\x0b\x0a\x09\x1a\x07\x1a\x05\x0a\x01x\x10\x01",
            of(PartResponse::ResponseBody(mutated(Mutation::Streamed(streamed)))),
        );
        let header = Some(HeaderValue { key: "a".into(), value: "b".into(), raw_value: Vec::new() });
        let mutation = HeaderMutation {
            set_headers: vec![HeaderOption {
                header,
                append: None,
                append_action: 2,
                keep_empty_value: true,
            }],
            remove_headers: vec!["c".into()],
        };
        check(
            b"\x2a\x13\x0a\x11\x0a\x0c\x0a\x06\x0a\x01a\x12\x01b\x18\x02\x20\x01\x12\x01c",
            of(PartResponse::RequestTrailers(TrailersAnswer { header_mutation: Some(mutation) })),
        );
        check(
            b"\x3a\x0d\x0a\x03\x08\x93\x03\x1a\x02no\x22\x02\x08\x07",
            of(PartResponse::Immediate(ImmediateResponse {
                status: Some(HttpStatus { code: 403 }),
                body: b"no".into(),
                grpc_status: Some(GrpcStatus { status: 7 }),
                ..ImmediateResponse::default()
            })),
        );
        let streamed =
            |part| of(PartResponse::StreamedImmediate(StreamedImmediateResponse { response: Some(part) }));
        check(b"\x5a\x02\x0a\x00", streamed(StreamedPart::Headers(HttpHeaders::default())));
        let body = StreamedBody { body: b"x".into(), end_of_stream: true };
        check(b"\x5a\x07\x12\x05\x0a\x01x\x10\x01", streamed(StreamedPart::Body(body)));
        check(b"\x5a\x02\x1a\x00", streamed(StreamedPart::Trailers(HeaderMap::default())));
    }

    #[test]
    fn members_next_to_the_answer() {
        let bytes = b"\x4a\x04\x08\x02\x18\x01\x52\x06\x08\x01\x10\x80\xc2\xd7\x2f\x60\x01";
        let message = ProcessingResponse::decode(&bytes[..bytes.len() - 3]);
        // A cut message is no message.
        assert!(message.is_err() || message.unwrap().override_message_timeout.is_none());
        let message =
            ProcessingResponse::decode(&b"\x4a\x04\x08\x02\x18\x01\x52\x02\x08\x01\x60\x01"[..]).unwrap();
        let mode = ModeOverride { request_header_mode: 2, request_body_mode: 1, ..ModeOverride::default() };
        assert_eq!(message.mode_override, Some(mode));
        assert_eq!(message.override_message_timeout, Some(Duration { seconds: 1, nanos: 0 }));
        assert_eq!(message.response, None);
    }

    #[test]
    fn garbage_is_refused() {
        for bytes in [&b"\xff\xff\xff"[..], b"\x0a\x05x", b"hello world"] {
            assert!(ProcessingResponse::decode(bytes).is_err(), "{bytes:?}");
        }
    }
}
