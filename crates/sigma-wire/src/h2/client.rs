//! One exchange on a shared connection.

use std::rc::Rc;
use std::task::{Context, Poll, ready};

use h2::client::ResponseFuture;
use h2::{Error, Reason, RecvStream};
use http::header::{HeaderValue, TE};
use http::uri::Scheme;
use http::{Method as HttpMethod, Request, Response, Uri};
use sigma_http::h1::{HeadLimits, frame_request};
use sigma_http::{BodyLength, Fault, FaultKind, Frame, HeaderId, Method, RequestHead, ResponseHead, Version};
use sigma_net::Deadline;

use super::body::{Broken, Inflow, Outflow};
use super::fields::{field_map, fields};
use super::shared::{Reused, SharedConnection};
use crate::rules::{self, bad_response};

/// A stream to a node, from the request's head to the response's end.
#[derive(Debug)]
pub struct ClientStream {
    connection: Rc<SharedConnection>,
    pub(crate) deadline: Deadline,
    reused: Reused,
    output: Option<Outflow>,
    response: Option<ResponseFuture>,
    input: Option<Inflow>,
    length: BodyLength,
    interims: u8,
    /// Bytes of the head, for those who look for progress.
    head_bytes: u64,
    /// What the connection had read when the request left.
    read_before: u64,
    answered: bool,
    /// The node says that it did nothing with the request.
    unprocessed: bool,
    /// Why the request could not be sent.
    refused: Option<Fault>,
}

impl ClientStream {
    /// Takes a place on a connection. `reused`: it may have gone stale since its last exchange.
    pub(crate) fn new(connection: Rc<SharedConnection>, reused: Reused) -> ClientStream {
        connection.enter();
        let read_before = connection.monitor().read();
        ClientStream {
            connection,
            deadline: Deadline::new(),
            reused,
            output: None,
            response: None,
            input: None,
            length: BodyLength::None,
            interims: 0,
            head_bytes: 0,
            read_before,
            answered: false,
            unprocessed: false,
            refused: None,
        }
    }

    pub(crate) fn send_head(
        &mut self,
        head: &mut RequestHead,
        rewritten: Option<&[u8]>,
        length: BodyLength,
        upgrade: Option<&[u8]>,
    ) {
        if upgrade.is_some() {
            // Whoever asks for an upgrade dials for the version that has them.
            self.refused = Some(Fault::new(FaultKind::Internal, "no upgrade is asked for over HTTP/2"));
            return;
        }
        frame_request(&mut head.headers, length);
        let target = rewritten.unwrap_or_else(|| head.path_and_query());
        let request = match request(head, target, self.connection.scheme()) {
            Ok(request) => request,
            Err(reason) => {
                self.refused = Some(Fault::new(FaultKind::Internal, reason));
                return;
            }
        };
        self.head_bytes = head.headers.iter().map(|(n, v)| (n.len() + v.len()) as u64).sum();
        let bodiless = length.is_empty();
        match self.connection.sender().send_request(request, bodiless) {
            Ok((response, stream)) => {
                self.response = Some(response);
                let output = if bodiless { Outflow::ended(stream) } else { Outflow::new(stream, length) };
                self.output = Some(output);
            }
            Err(error) => {
                // Nothing left: the connection was over before this request.
                self.unprocessed = true;
                self.refused = Some(self.fault(&error));
            }
        }
    }

    pub(crate) fn has_room(&self) -> bool {
        self.output.as_ref().is_none_or(Outflow::has_room)
    }

    pub(crate) fn send(&mut self, frame: Frame) {
        if let Some(output) = &mut self.output {
            output.send(frame);
        }
    }

    pub(crate) fn poll_flush(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Fault>> {
        if let Some(fault) = self.refused {
            return Poll::Ready(Err(fault));
        }
        let Some(output) = &mut self.output else { return Poll::Ready(Ok(())) };
        match ready!(output.poll_flush(cx)) {
            Ok(()) => Poll::Ready(Ok(())),
            Err(error) => Poll::Ready(Err(self.fault(&error))),
        }
    }

    pub(crate) fn poll_head(
        &mut self,
        cx: &mut Context<'_>,
        method: Method,
        limits: &HeadLimits,
        head: &mut ResponseHead,
    ) -> Poll<Result<(), Fault>> {
        if let Some(fault) = self.refused {
            return Poll::Ready(Err(fault));
        }
        let Some(response) = &mut self.response else {
            return Poll::Ready(Err(terminated()));
        };
        if let Poll::Ready(Some(interim)) = response.poll_informational(cx) {
            return Poll::Ready(match interim {
                Ok(interim) => self.accept_interim(&interim, limits, head),
                Err(error) => Err(self.fault(&error)),
            });
        }
        match ready!(std::pin::Pin::new(response).poll(cx)) {
            Ok(response) => Poll::Ready(self.accept_head(response, method, limits, head)),
            Err(error) => Poll::Ready(Err(self.fault(&error))),
        }
    }

    fn accept_interim(
        &mut self,
        interim: &Response<()>,
        limits: &HeadLimits,
        head: &mut ResponseHead,
    ) -> Result<(), Fault> {
        self.answered = true;
        rules::count_interim(&mut self.interims)?;
        let status = interim.status().as_u16();
        head.assemble(Version::Http2, status, fields(interim.headers()), limits).map_err(rules::of_response)
    }

    fn accept_head(
        &mut self,
        response: Response<RecvStream>,
        method: Method,
        limits: &HeadLimits,
        head: &mut ResponseHead,
    ) -> Result<(), Fault> {
        self.answered = true;
        let (parts, body) = response.into_parts();
        head.assemble(Version::Http2, parts.status.as_u16(), fields(&parts.headers), limits)
            .map_err(rules::of_response)?;
        let input = Inflow::new(body);
        let declared = sigma_http::h1::response_body(head, method).map_err(bad_response)?;
        self.length = match declared {
            // No length and no body either: said so that a version that needs a length gets one.
            BodyLength::UntilClose if input.is_ended() => BodyLength::Known(0),
            BodyLength::UntilClose => BodyLength::Streamed,
            length => length,
        };
        self.input = Some(input);
        Ok(())
    }

    pub(crate) fn body_length(&self) -> BodyLength {
        self.length
    }

    pub(crate) fn poll_frame(&mut self, cx: &mut Context<'_>) -> Poll<Result<Frame, Fault>> {
        let Some(input) = &mut self.input else {
            return Poll::Ready(Err(terminated()));
        };
        Poll::Ready(match ready!(input.poll_frame(cx)) {
            Ok(frame) => Ok(frame),
            Err(Broken::Rule(reason)) => Err(bad_response(reason)),
            Err(Broken::Stream(error)) => {
                tracing::debug!(%error, "a node cut its answer short");
                Err(Fault::new(FaultKind::ResponseIncomplete, "the node cut its answer short"))
            }
        })
    }

    pub(crate) fn may_be_stale(&self) -> bool {
        self.reused == Reused::Yes && !self.answered
    }

    pub(crate) fn is_unsent(&self) -> bool {
        self.unprocessed
    }

    pub(crate) fn bytes_written(&self) -> u64 {
        self.head_bytes + self.output.as_ref().map_or(0, Outflow::taken)
    }

    /// What an error before the answer means. RFC 9113 §8.7: a stream that the node refused, or
    /// that is beyond the last one of its GOAWAY, was not processed in any way.
    fn fault(&mut self, error: &Error) -> Fault {
        tracing::debug!(%error, "a request to a node failed");
        if error.is_remote() && error.is_go_away() {
            self.connection.retire();
            self.unprocessed = true;
        }
        if error.is_remote() && error.reason() == Some(Reason::REFUSED_STREAM) {
            self.unprocessed = true;
        }
        if error.is_library() {
            return bad_response("the node breaks the HTTP/2 protocol");
        }
        terminated()
    }
}

impl Drop for ClientStream {
    fn drop(&mut self) {
        let ended = self.input.as_ref().is_some_and(Inflow::is_ended);
        self.connection.leave(ended.then(|| u32::from(self.interims) + 2));
        // A connection on which not a byte came for the whole time that an answer was awaited may
        // lead nowhere; those who follow get a fresh one.
        let mut cx = Context::from_waker(std::task::Waker::noop());
        let timed_out = !self.answered && self.deadline.poll_expired(&mut cx).is_ready();
        if timed_out && self.connection.monitor().read() == self.read_before {
            self.connection.retire();
        }
    }
}

/// The head as the codec takes it.
fn request(head: &RequestHead, target: &[u8], scheme: Scheme) -> Result<Request<()>, &'static str> {
    let method = HttpMethod::from_bytes(head.method_token()).map_err(|_| "the method cannot be sent")?;
    let host = head.headers.get(HeaderId::Host).unwrap_or_default();
    let uri = Uri::builder()
        .scheme(scheme)
        .authority(host)
        .path_and_query(&*sendable(target))
        .build()
        .map_err(|_| "the host or the target cannot be sent over HTTP/2")?;
    let mut request = Request::new(());
    *request.method_mut() = method;
    *request.uri_mut() = uri;
    *request.version_mut() = http::Version::HTTP_2;
    let mut map = field_map(&head.headers, |id| id != HeaderId::Host);
    // The gateway passes trailers on to every version, and gRPC asks for them.
    map.insert(TE, HeaderValue::from_static("trailers"));
    *request.headers_mut() = map;
    Ok(request)
}

/// The target with those bytes encoded that clients send raw, HTTP/1 passes on and the codec
/// refuses (RFC 3986 §2.2 reserves none of them).
fn sendable(target: &[u8]) -> std::borrow::Cow<'_, [u8]> {
    let raw = |byte: &u8| matches!(byte, b'<' | b'>' | b'`');
    if !target.iter().any(raw) {
        return target.into();
    }
    let mut out = Vec::with_capacity(target.len() + 8);
    for byte in target {
        match byte {
            b'<' => out.extend_from_slice(b"%3C"),
            b'>' => out.extend_from_slice(b"%3E"),
            b'`' => out.extend_from_slice(b"%60"),
            byte => out.push(*byte),
        }
    }
    out.into()
}

fn terminated() -> Fault {
    Fault::new(FaultKind::ConnectionTerminated, "the node ended the stream before its answer")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_in_the_codecs_terms() {
        let mut head = RequestHead::default();
        let wire = b"POST /a|<b>?`c HTTP/1.1\r\nHost: h.example:81\r\nX-A: 1\r\nTE: gzip\r\n\r\n";
        let limits = HeadLimits {
            line_bytes: 100,
            head_bytes: 200,
            fields: 9,
            tolerance: sigma_http::h1::Tolerance::NONE,
        };
        sigma_http::h1::parse_request(wire, &limits, &mut head).expect("a valid head");
        let request = request(&head, head.path_and_query(), Scheme::HTTP).expect("a request");
        assert_eq!(request.uri(), "http://h.example:81/a|%3Cb%3E?%60c");
        assert_eq!((request.headers()["te"].as_bytes(), request.headers().len()), (&b"trailers"[..], 2));
    }
}
