//! HTTP/2 and gRPC: a client of either, and a server that sends messages of gRPC back.

use std::io;
use std::net::TcpStream;

use bytes::Bytes;
use h2::client::SendRequest;
use h2::{Reason, RecvStream, SendStream};
use http::{HeaderMap, HeaderValue, Request, Response};
use tokio::runtime::{Builder, Runtime};
use tokio::time::timeout;

use super::outcome::{Outcome, PATIENCE, expect};

/// The method whose streams the server of gRPC sends back.
pub(super) const METHOD: &str = "/endure.Echo/Both";

/// A message of gRPC: four bytes behind their length.
const MESSAGE: &[u8] = b"\0\0\0\0\x04ping";
/// The field with the status of a stream.
const STATUS: &str = "grpc-status";
/// The status of a stream that the gateway ends (`UNAVAILABLE`): the caller may repeat the call.
const UNAVAILABLE: &str = "14";

/// The result of an awaited step.
type Step<T> = Result<T, h2::Error>;

/// A connection of HTTP/2.
pub(super) struct Client {
    runtime: Runtime,
    requests: SendRequest<Bytes>,
    /// Where messages of gRPC are sent; requests of plain HTTP have a stream each.
    is_grpc: bool,
    call: Option<(SendStream<Bytes>, RecvStream)>,
}

impl Client {
    /// Greets the gateway.
    pub(super) fn new(stream: TcpStream, is_grpc: bool) -> io::Result<Client> {
        let runtime = Builder::new_current_thread().enable_all().build()?;
        stream.set_nonblocking(true)?;
        let requests = runtime.block_on(async {
            let stream = tokio::net::TcpStream::from_std(stream)?;
            let (requests, connection) = h2::client::handshake(stream).await.map_err(io::Error::other)?;
            tokio::spawn(async move {
                // Requests report its errors.
                drop(connection.await);
            });
            Ok::<_, io::Error>(requests)
        })?;
        Ok(Client { runtime, requests, is_grpc, call: None })
    }

    /// Asks once: by a request, or by a message of the one call that the connection has.
    pub(super) fn ask(&mut self) -> io::Result<Outcome> {
        let (requests, call) = (&mut self.requests, &mut self.call);
        let is_grpc = self.is_grpc;
        let asked = async {
            let answer =
                async { if is_grpc { message(requests, call).await } else { request(requests).await } };
            timeout(PATIENCE, answer).await
        };
        match self.runtime.block_on(asked).map_err(io::Error::other)? {
            Ok(outcome) => outcome,
            // The gateway leaves, and has not begun with this request: clients make it again.
            Err(error) if error.is_go_away() && error.reason() == Some(Reason::NO_ERROR) => {
                Ok(Outcome::Ended)
            }
            Err(error) if error.reason() == Some(Reason::REFUSED_STREAM) => Ok(Outcome::Ended),
            Err(error) => Err(io::Error::other(error)),
        }
    }
}

async fn request(requests: &mut SendRequest<Bytes>) -> Step<io::Result<Outcome>> {
    let mut requests = requests.clone().ready().await?;
    let (answer, _) = requests.send_request(head("GET", "/question"), true)?;
    let (head, mut body) = answer.await?.into_parts();
    let mut all = Vec::new();
    while let Some(piece) = body.data().await {
        let piece = piece?;
        body.flow_control().release_capacity(piece.len())?;
        all.extend_from_slice(&piece);
    }
    Ok(expect(head.status == 200 && all == b"/question").map(|()| Outcome::Answered))
}

async fn message(
    requests: &mut SendRequest<Bytes>,
    call: &mut Option<(SendStream<Bytes>, RecvStream)>,
) -> Step<io::Result<Outcome>> {
    let (mut messages, mut answers) = match call.take() {
        Some(call) => call,
        None => {
            let mut requests = requests.clone().ready().await?;
            let (answer, mut messages) = requests.send_request(head("POST", METHOD), false)?;
            messages.send_data(Bytes::from_static(MESSAGE), false)?;
            let (head, mut answers) = answer.await?.into_parts();
            if let Some(status) = head.headers.get(STATUS) {
                return Ok(expect(status == UNAVAILABLE).map(|()| Outcome::Ended));
            }
            if !read_message(&mut answers).await? {
                return ended(&mut answers).await;
            }
            (messages, answers)
        }
    };
    messages.send_data(Bytes::from_static(MESSAGE), false)?;
    if !read_message(&mut answers).await? {
        return ended(&mut answers).await;
    }
    *call = Some((messages, answers));
    Ok(Ok(Outcome::Answered))
}

/// Reads one message; false if the stream is over instead.
async fn read_message(answers: &mut RecvStream) -> Step<bool> {
    let mut seen = 0;
    while seen < MESSAGE.len() {
        let Some(piece) = answers.data().await else { return Ok(false) };
        let piece = piece?;
        answers.flow_control().release_capacity(piece.len())?;
        seen += piece.len();
    }
    Ok(true)
}

/// The end of a stream that the gateway has ended.
async fn ended(answers: &mut RecvStream) -> Step<io::Result<Outcome>> {
    let trailers = answers.trailers().await?.unwrap_or_default();
    let is_unavailable = trailers.get(STATUS).is_some_and(|status| status == UNAVAILABLE);
    Ok(expect(is_unavailable).map(|()| Outcome::Ended))
}

fn head(method: &str, path: &str) -> Request<()> {
    let mut request = Request::new(());
    *request.method_mut() = method.parse().unwrap_or_default();
    *request.uri_mut() = format!("http://endure{path}").parse().unwrap_or_default();
    if path == METHOD {
        request.headers_mut().insert("te", HeaderValue::from_static("trailers"));
        request.headers_mut().insert("content-type", HeaderValue::from_static("application/grpc"));
    }
    request
}

/// Serves one connection of the gateway: sends the messages of each stream back.
pub(super) fn serve(stream: TcpStream) -> io::Result<()> {
    let runtime = Builder::new_current_thread().enable_all().build()?;
    stream.set_nonblocking(true)?;
    stream.set_nodelay(true)?;
    runtime.block_on(async {
        let stream = tokio::net::TcpStream::from_std(stream)?;
        let mut connection = h2::server::handshake(stream).await.map_err(io::Error::other)?;
        while let Some(call) = connection.accept().await {
            let (request, mut respond) = call.map_err(io::Error::other)?;
            tokio::spawn(async move {
                let mut head = Response::new(());
                head.headers_mut().insert("content-type", HeaderValue::from_static("application/grpc"));
                if let Ok(answers) = respond.send_response(head, false) {
                    // A stream that was reset needs no end.
                    drop(send_back(request.into_body(), answers).await);
                }
            });
        }
        Ok(())
    })
}

async fn send_back(mut messages: RecvStream, mut answers: SendStream<Bytes>) -> Step<()> {
    while let Some(piece) = messages.data().await {
        let piece = piece?;
        messages.flow_control().release_capacity(piece.len())?;
        answers.send_data(piece, false)?;
    }
    let mut trailers = HeaderMap::new();
    trailers.insert(STATUS, HeaderValue::from_static("0"));
    answers.send_trailers(trailers)
}
