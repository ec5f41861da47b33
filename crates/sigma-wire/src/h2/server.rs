//! The client's side of one exchange: a stream of its connection.

use std::task::{Context, Poll, ready};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use h2::server::SendResponse;
use h2::{Reason, RecvStream};
use http::header::{DATE, HeaderMap, HeaderValue};
use http::{Request, Response, StatusCode};
use sha1::{Digest, Sha1};
use sigma_http::h1::{ParseError, frame_response};
use sigma_http::{
    BodyLength, Fault, FaultKind, Frame, HeaderId, Method, PseudoFields, RequestHead, ResponseHead, Version,
};
use sigma_net::Deadline;

use super::body::{Broken, Inflow, Outflow};
use super::fields::{field_map, fields};
use super::session::{Active, Incoming};
use crate::Departure;
use crate::rules::{self, check_body};

/// RFC 6455 §1.3
const WEBSOCKET_GUID: &[u8] = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11";

/// The answer's way out.
#[derive(Debug)]
enum Output {
    /// Its head was not sent yet.
    Head(SendResponse<Bytes>),
    /// The head is out, the body follows.
    Body(Outflow),
    /// There is nobody to answer any more.
    Lost,
}

/// What an extended CONNECT has come to (RFC 8441).
#[derive(Debug)]
enum Tunnel {
    /// The request is an ordinary one.
    None,
    /// A tunnel is asked for; an HTTP/1 node that agrees to WebSocket says this.
    Asked(Option<String>),
    /// The stream carries plain bytes.
    Open,
}

/// One stream, with the one exchange that it is for.
#[derive(Debug)]
pub struct ServerStream {
    output: Output,
    input: Option<Inflow>,
    length: BodyLength,
    tunnel: Tunnel,
    pub(crate) deadline: Deadline,
    number: u32,
    /// The answer has no body whatever its head says.
    bodiless: bool,
    head_received: u64,
    body_received: u64,
    head_sent: u64,
    body_sent: u64,
    // The last one, as the connection has to know when all the others are gone.
    active: Active,
}

impl ServerStream {
    /// Turns the codec's request into `head`; what is wrong with it is to be answered on the stream.
    /// `random` is for the key of a WebSocket handshake that the gateway makes on the client's behalf.
    pub fn accept(
        incoming: Incoming,
        random: [u64; 2],
        head: &mut RequestHead,
    ) -> (ServerStream, Result<(), Fault>) {
        let Incoming { request, respond, number, active } = incoming;
        let mut stream = ServerStream::new(respond, number, active);
        let accepted = stream.assemble(request, random, head);
        (stream, accepted)
    }

    fn new(respond: SendResponse<Bytes>, number: u32, active: Active) -> ServerStream {
        ServerStream {
            output: Output::Head(respond),
            input: None,
            length: BodyLength::None,
            tunnel: Tunnel::None,
            deadline: Deadline::new(),
            number,
            bodiless: false,
            head_received: 0,
            body_received: 0,
            head_sent: 0,
            body_sent: 0,
            active,
        }
    }

    fn assemble(
        &mut self,
        request: Request<RecvStream>,
        random: [u64; 2],
        head: &mut RequestHead,
    ) -> Result<(), Fault> {
        let (parts, body) = request.into_parts();
        let input = Inflow::new(body);
        let protocol = parts.extensions.get::<h2::ext::Protocol>();
        let pseudo = PseudoFields {
            method: parts.method.as_str().as_bytes(),
            authority: parts.uri.authority().map(|a| a.as_str().as_bytes()),
            path: parts.uri.path_and_query().map(|p| p.as_str().as_bytes()),
            protocol: protocol.map(|p| p.as_str().as_bytes()),
        };
        if parts.uri.scheme_str().is_some_and(str::is_empty) {
            return Err(Fault::new(FaultKind::BadRequest, "the :scheme is empty"));
        }
        self.bodiless = pseudo.method == b"HEAD";
        let assembled =
            head.assemble(Version::Http2, &pseudo, fields(&parts.headers), &self.active.limits().head);
        assembled.map_err(rules::of_request)?;
        self.head_received = field_bytes(&parts.headers) + pseudo.path.map_or(0, |p| p.len() as u64);
        if let Some(protocol) = protocol {
            self.ask_tunnel(protocol.as_str(), random, head);
        } else {
            self.length = body_length(head, &input)?;
        }
        self.input = Some(input);
        match self.length {
            BodyLength::Known(n) => check_body(n, self.active.limits().body_bytes),
            _ => Ok(()),
        }
    }

    /// RFC 8441 §5: the key and its answer have no place in this version and are the gateway's.
    fn ask_tunnel(&mut self, protocol: &str, random: [u64; 2], head: &mut RequestHead) {
        let mut accept = None;
        if protocol.eq_ignore_ascii_case("websocket") {
            let key = STANDARD.encode([random[0].to_ne_bytes(), random[1].to_ne_bytes()].concat());
            head.headers.remove_name(b"sec-websocket-key");
            head.headers.append("Sec-WebSocket-Key", key.as_bytes());
            let digest = Sha1::new().chain_update(key.as_bytes()).chain_update(WEBSOCKET_GUID).finalize();
            accept = Some(STANDARD.encode(digest));
        }
        self.tunnel = Tunnel::Asked(accept);
    }

    pub(crate) fn asks_tunnel(&self) -> bool {
        matches!(self.tunnel, Tunnel::Asked(_))
    }

    /// Whether the final head of a node may answer what this client asked.
    pub(crate) fn check_answer(&self, head: &ResponseHead) -> Result<(), Fault> {
        let Tunnel::Asked(accept) = &self.tunnel else { return Ok(()) };
        let failed = |reason| Err(Fault::new(FaultKind::UpgradeFailed, reason));
        match (head.status, accept) {
            (101, Some(accept)) => match head.headers.find(b"sec-websocket-accept") {
                Some(got) if got == accept.as_bytes() => Ok(()),
                _ => failed("the node's Sec-WebSocket-Accept does not fit the key"),
            },
            // A success would tell the client that its tunnel is open.
            (200..=299, _) => failed("the node answered without opening a tunnel"),
            _ => Ok(()),
        }
    }

    pub(crate) fn body_length(&self) -> BodyLength {
        self.length
    }

    pub(crate) fn poll_frame(&mut self, cx: &mut Context<'_>) -> Poll<Result<Frame, Fault>> {
        let Some(input) = &mut self.input else { return Poll::Ready(Ok(Frame::End)) };
        Poll::Ready(match ready!(input.poll_frame(cx)) {
            Ok(Frame::Data(data)) => {
                self.body_received += data.len() as u64;
                // What goes through a tunnel has no length.
                let limit = match self.tunnel {
                    Tunnel::Open => 0,
                    Tunnel::None | Tunnel::Asked(_) => self.active.limits().body_bytes,
                };
                check_body(self.body_received, limit).map(|()| Frame::Data(data))
            }
            Ok(end) => Ok(end),
            Err(Broken::Rule(reason)) => Err(Fault::new(FaultKind::BadRequest, reason)),
            Err(Broken::Stream(_)) => Err(gone()),
        })
    }

    pub(crate) fn poll_departure(&mut self, cx: &mut Context<'_>) -> Poll<Departure> {
        match &mut self.output {
            Output::Head(respond) => respond.poll_reset(cx).map(|_| Departure::Gone),
            Output::Body(body) => body.poll_reset(cx).map(|()| Departure::Gone),
            Output::Lost => Poll::Ready(Departure::Gone),
        }
    }

    pub(crate) fn send_interim(&mut self, head: &mut ResponseHead) {
        if head.status == 101 {
            // RFC 8441 §5: what answers an upgrade in HTTP/1.1 is a plain success here.
            head.headers.remove_name(b"sec-websocket-accept");
            head.headers.remove(HeaderId::ContentLength);
            self.respond(200, field_map(&head.headers, |_| true), BodyLength::Streamed);
            return;
        }
        let Output::Head(respond) = &mut self.output else { return };
        frame_response(head, BodyLength::None, false);
        let Ok(response) = response(head.status, field_map(&head.headers, |_| true)) else { return };
        if respond.send_informational(response).is_err() {
            self.output = Output::Lost;
        }
    }

    pub(crate) fn send_head(&mut self, head: &mut ResponseHead, length: BodyLength, date: &[u8]) {
        self.bodiless = frame_response(head, length, self.bodiless).is_empty();
        let mut map = field_map(&head.headers, |_| true);
        if !map.contains_key(DATE)
            && let Ok(date) = HeaderValue::from_bytes(date)
        {
            map.insert(DATE, date);
        }
        self.respond(head.status, map, length);
    }

    fn respond(&mut self, status: u16, map: HeaderMap, length: BodyLength) {
        let Output::Head(respond) = &mut self.output else { return };
        self.head_sent = field_bytes(&map);
        let Ok(response) = response(status, map) else {
            self.output = Output::Lost;
            return;
        };
        self.output = match respond.send_response(response, self.bodiless) {
            Ok(stream) if self.bodiless => Output::Body(Outflow::ended(stream)),
            Ok(stream) => Output::Body(Outflow::new(stream, length)),
            Err(error) => {
                tracing::debug!(%error, "a stream took no answer");
                Output::Lost
            }
        };
    }

    pub(crate) fn has_room(&self) -> bool {
        match &self.output {
            Output::Body(body) => body.has_room(),
            Output::Head(_) | Output::Lost => true,
        }
    }

    pub(crate) fn send(&mut self, frame: Frame) {
        if self.bodiless {
            return;
        }
        if let Output::Body(body) = &mut self.output {
            if let Frame::Data(data) = &frame {
                self.body_sent += data.len() as u64;
            }
            body.send(frame);
        }
    }

    pub(crate) fn poll_flush(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Fault>> {
        match &mut self.output {
            Output::Head(_) => Poll::Ready(Ok(())),
            Output::Body(body) => body.poll_flush(cx).map_err(|_| gone()),
            Output::Lost => Poll::Ready(Err(gone())),
        }
    }

    pub(crate) fn upgrade(&mut self) {
        self.tunnel = Tunnel::Open;
    }

    pub(crate) fn abort(&mut self) {
        match &mut self.output {
            Output::Head(respond) => respond.send_reset(Reason::INTERNAL_ERROR),
            Output::Body(body) => body.reset(Reason::INTERNAL_ERROR),
            Output::Lost => {}
        }
        self.output = Output::Lost;
    }

    pub(crate) fn bytes_written(&self) -> u64 {
        match &self.output {
            Output::Body(body) => self.head_sent + body.taken(),
            Output::Head(_) | Output::Lost => self.head_sent,
        }
    }

    /// Heads are counted as they are before compression: what the codec makes of them depends on
    /// all heads before.
    pub(crate) fn bytes_sent(&self) -> (u64, u64) {
        (self.head_sent + self.body_sent, self.body_sent)
    }

    pub(crate) fn bytes_received(&self) -> u64 {
        self.head_received + self.body_received
    }

    pub(crate) fn requests(&self) -> u32 {
        self.number
    }
}

/// The fault of a client that went away, or that took its stream back.
fn gone() -> Fault {
    Fault::new(FaultKind::ClientGone, "the client closed the stream")
}

/// How the body is framed for everybody behind.
fn body_length(head: &RequestHead, input: &Inflow) -> Result<BodyLength, Fault> {
    let declared = sigma_http::h1::request_body(head);
    match declared.map_err(|reason| rules::of_request(ParseError::Invalid(reason)))? {
        BodyLength::None if head.method == Method::Connect || input.is_ended() => Ok(BodyLength::None),
        BodyLength::None => Ok(BodyLength::Streamed),
        length => Ok(length),
    }
}

fn response(status: u16, map: HeaderMap) -> Result<Response<()>, http::status::InvalidStatusCode> {
    let mut response = Response::new(());
    *response.status_mut() = StatusCode::from_u16(status)?;
    *response.version_mut() = http::Version::HTTP_2;
    *response.headers_mut() = map;
    Ok(response)
}

fn field_bytes(map: &HeaderMap) -> u64 {
    fields(map).map(|(name, value)| (name.len() + value.len()) as u64).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The example of RFC 6455 §1.3.
    #[test]
    fn the_answer_to_a_key() {
        let digest =
            Sha1::new().chain_update(b"dGhlIHNhbXBsZSBub25jZQ==").chain_update(WEBSOCKET_GUID).finalize();
        assert_eq!(STANDARD.encode(digest), "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=");
    }
}
