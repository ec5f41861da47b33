//! Ends of HTTP/2 connections that use the notation of HTTP/1.
//!
//! One background thread drives the connections of all tests, so that windows open and pings are
//! answered while a test blocks on something else.

use std::future::{Future, poll_fn};
use std::sync::OnceLock;
use std::sync::mpsc::channel;

use anyhow::{Context, Result, bail, ensure};
use bytes::Bytes;
use h2::client::{ResponseFuture, SendRequest};
use h2::server::SendResponse;
use h2::{Reason, RecvStream, SendStream};
use http::{HeaderMap, Request, Response};
use tokio::net::TcpStream;
use tokio::runtime::Handle;
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};
use tokio::task::JoinHandle;

use crate::DEADLINE;
use crate::message::{Framing, Head, Message};
use crate::socket::Socket;
use crate::wire::End;

/// Returns the runtime of the thread that drives the connections.
pub(crate) fn runtime() -> &'static Handle {
    static HANDLE: OnceLock<Handle> = OnceLock::new();
    HANDLE.get_or_init(|| {
        let (sender, receiver) = channel();
        std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            let runtime = runtime.expect("a runtime for the tests");
            sender.send(runtime.handle().clone()).expect("the test waits for it");
            runtime.block_on(std::future::pending::<()>());
        });
        receiver.recv().expect("the thread has begun")
    })
}

fn block<T>(work: impl Future<Output = Result<T>>) -> Result<T> {
    runtime().block_on(async {
        match tokio::time::timeout(DEADLINE, work).await {
            Ok(result) => result,
            Err(_) => bail!("nothing within {DEADLINE:?}"),
        }
    })
}

pub(crate) fn tokio_socket(socket: Socket) -> Result<TcpStream> {
    let Socket::Tcp(socket) = socket else { bail!("streams are for TCP here") };
    socket.set_nonblocking(true)?;
    let _within = runtime().enter();
    Ok(TcpStream::from_std(socket)?)
}

/// The unsent rest of a message in the notation of HTTP/1.
#[derive(Debug, Default)]
struct Writer {
    notation: Vec<u8>,
    framing: Option<Framing>,
    out: Option<SendStream<Bytes>>,
}

impl Writer {
    /// Returns the head at the front, once it is complete and no body is under way.
    fn head(&mut self) -> Result<Option<Head>> {
        if self.framing.is_some() {
            return Ok(None);
        }
        let Some(end) = self.notation.windows(4).position(|w| w == b"\r\n\r\n") else { return Ok(None) };
        let rest = self.notation.split_off(end + 4);
        let head = Head::parse(&std::mem::replace(&mut self.notation, rest))?;
        Ok(Some(head))
    }

    fn begin_body(&mut self, framing: Framing, out: SendStream<Bytes>) {
        self.framing = (framing != Framing::None && framing != Framing::Length(0)).then_some(framing);
        self.out = Some(out);
    }

    /// Sends the part of the body that the notation contains.
    fn write_body(&mut self) -> Result<()> {
        while let (Some(framing), Some(out)) = (self.framing, &mut self.out) {
            match framing {
                Framing::Length(n) => {
                    let len = self.notation.len().min(usize::try_from(n)?);
                    if len == 0 {
                        return Ok(());
                    }
                    let left = n - len as u64;
                    let data = Bytes::from(self.notation.drain(..len).collect::<Vec<u8>>());
                    self.framing = (left > 0).then_some(Framing::Length(left));
                    push(out, data, left == 0)?;
                }
                Framing::UntilClose => {
                    let data = std::mem::take(&mut self.notation);
                    return push(out, data.into(), false);
                }
                Framing::Chunked => {
                    let Some((data, trailers)) = take_chunk(&mut self.notation)? else { return Ok(()) };
                    if !data.is_empty() {
                        push(out, data.into(), false)?;
                        continue;
                    }
                    self.framing = None;
                    if trailers.is_empty() {
                        push(out, Bytes::new(), true)?;
                    } else {
                        let mut map = HeaderMap::new();
                        for (name, value) in trailers {
                            map.append(http::HeaderName::from_bytes(name.as_bytes())?, value.parse()?);
                        }
                        out.send_trailers(map)?;
                    }
                }
                Framing::None => return Ok(()),
            }
        }
        Ok(())
    }
}

/// Sends data at once: test bodies are smaller than any window.
fn push(out: &mut SendStream<Bytes>, data: Bytes, last: bool) -> Result<()> {
    out.reserve_capacity(data.len());
    Ok(out.send_data(data, last)?)
}

type Chunk = (Vec<u8>, Vec<(String, String)>);

/// Takes a whole chunk, or the last one with its trailers; None while bytes are missing.
fn take_chunk(notation: &mut Vec<u8>) -> Result<Option<Chunk>> {
    let Some(line) = notation.windows(2).position(|w| w == b"\r\n") else { return Ok(None) };
    let text = String::from_utf8_lossy(&notation[..line]).into_owned();
    let size = usize::from_str_radix(text.split(';').next().unwrap_or_default(), 16)?;
    if size > 0 {
        if notation.len() < line + 2 + size + 2 {
            return Ok(None);
        }
        let data = notation[line + 2..line + 2 + size].to_vec();
        notation.drain(..line + 2 + size + 2);
        return Ok(Some((data, Vec::new())));
    }
    let rest = &notation[line..];
    let Some(end) = rest.windows(4).position(|w| w == b"\r\n\r\n") else { return Ok(None) };
    let head = [b"x", &rest[..end + 4]].concat();
    let trailers = Head::parse(&head)?.fields;
    notation.drain(..line + end + 4);
    Ok(Some((Vec::new(), trailers)))
}

/// Returns the fields for HTTP/2 of a head in the notation of HTTP/1.
fn to_map(head: &Head) -> Result<HeaderMap> {
    let mut map = HeaderMap::new();
    for (name, value) in &head.fields {
        let name = name.to_ascii_lowercase();
        let of_connection = [
            "connection",
            "transfer-encoding",
            "keep-alive",
            "proxy-connection",
            "upgrade",
            "host",
            "trailer",
        ];
        if of_connection.contains(&name.as_str()) || (name == "te" && value != "trailers") {
            continue;
        }
        let value: Vec<u8> = value.chars().map(|c| c as u8).collect();
        map.append(http::HeaderName::from_bytes(name.as_bytes())?, http::HeaderValue::from_bytes(&value)?);
    }
    Ok(map)
}

fn from_map(map: &HeaderMap) -> Vec<(String, String)> {
    let text = |value: &[u8]| value.iter().map(|&b| b as char).collect();
    map.iter().map(|(name, value)| (name.to_string(), text(value.as_bytes()))).collect()
}

/// The reader of a message after its head.
#[derive(Debug)]
struct Reader {
    stream: RecvStream,
    /// Bytes that were received and not requested yet.
    ahead: Vec<u8>,
}

impl Reader {
    /// Reads more bytes; returns false at the clean end.
    async fn fill(&mut self) -> Result<bool> {
        match self.stream.data().await {
            None => Ok(false),
            Some(data) => {
                let data = data?;
                self.stream.flow_control().release_capacity(data.len())?;
                self.ahead.extend_from_slice(&data);
                Ok(true)
            }
        }
    }

    async fn exactly(&mut self, n: usize) -> Result<Vec<u8>> {
        while self.ahead.len() < n {
            ensure!(self.fill().await?, "the body ended after {:?}", self.ahead);
        }
        let rest = self.ahead.split_off(n);
        Ok(std::mem::replace(&mut self.ahead, rest))
    }

    async fn message(mut self, head: Head) -> Result<Message> {
        while self.fill().await? {}
        let trailers = self.stream.trailers().await?.map(|map| from_map(&map)).unwrap_or_default();
        let framing = head.framing()?.unwrap_or(Framing::None);
        Ok(Message { head, framing, body: self.ahead, trailers })
    }
}

fn expect_bytes(got: &[u8], wanted: &[u8]) -> Result<()> {
    ensure!(got == wanted, "expected {wanted:?}\n     got {got:?}");
    Ok(())
}

/// A client's connection; one request at a time.
pub(crate) struct StreamClient {
    sender: SendRequest<Bytes>,
    driver: JoinHandle<()>,
    writer: Writer,
    response: Option<ResponseFuture>,
    reader: Option<Reader>,
}

impl StreamClient {
    pub(crate) fn over(socket: Socket) -> Result<StreamClient> {
        let socket = tokio_socket(socket)?;
        block(async move {
            let (sender, connection) = h2::client::handshake(socket).await?;
            // Its end is visible in its streams.
            let driver = tokio::spawn(async move { connection.await.unwrap_or_default() });
            Ok(StreamClient { sender, driver, writer: Writer::default(), response: None, reader: None })
        })
    }

    fn begin(&mut self, head: &Head) -> Result<()> {
        let (method, target) = head.request_line()?;
        let host = head.get("host").unwrap_or_default();
        let uri = http::Uri::builder().scheme("http").authority(host).path_and_query(target).build()?;
        let mut request = Request::builder().method(method).uri(uri).body(())?;
        *request.headers_mut() = to_map(head)?;
        let framing = head.framing()?.unwrap_or(Framing::None);
        let last = matches!(framing, Framing::None | Framing::Length(0));
        let mut sender = self.sender.clone();
        let (response, out) = block(async move {
            poll_fn(|cx| sender.poll_ready(cx)).await?;
            Ok(sender.send_request(request, last)?)
        })?;
        self.response = Some(response);
        self.reader = None;
        self.writer.begin_body(framing, out);
        Ok(())
    }

    /// Returns the next head, interim ones included.
    async fn next_head(&mut self) -> Result<Head> {
        let response = self.response.as_mut().context("no request is under way")?;
        let interim = poll_fn(|cx| {
            use std::task::Poll;
            match response.poll_informational(cx) {
                Poll::Ready(Some(interim)) => Poll::Ready(Ok(Err(interim))),
                _ => std::pin::Pin::new(&mut *response).poll(cx).map(|r| r.map(Ok)),
            }
        });
        let (status, fields) = match interim.await? {
            Err(interim) => {
                let interim = interim?;
                (interim.status(), from_map(interim.headers()))
            }
            Ok(response) => {
                let (parts, stream) = response.into_parts();
                self.response = None;
                self.reader = Some(Reader { stream, ahead: Vec::new() });
                (parts.status, from_map(&parts.headers))
            }
        };
        Ok(Head { line: format!("HTTP/1.1 {} ", status.as_str()), fields })
    }
}

impl End for StreamClient {
    fn send(&mut self, notation: &[u8]) -> Result<()> {
        self.writer.notation.extend_from_slice(notation);
        loop {
            // A node may respond, and reset its stream, before the body has left.
            let _ = self.writer.write_body();
            match self.writer.head()? {
                Some(head) => self.begin(&head)?,
                None => return Ok(()),
            }
        }
    }

    fn exact(&mut self, notation: &[u8]) -> Result<()> {
        let reader = self.reader.as_mut().context("no answer has begun")?;
        expect_bytes(&block(reader.exactly(notation.len()))?, notation)
    }

    fn response(&mut self, _: &str) -> Result<Message> {
        block(async {
            let head = self.next_head().await?;
            match self.reader.take() {
                Some(reader) => reader.message(head).await,
                None => Ok(Message { head, framing: Framing::None, body: Vec::new(), trailers: Vec::new() }),
            }
        })
    }

    fn request(&mut self) -> Result<Message> {
        bail!("a client reads no requests")
    }

    fn head(&mut self) -> Result<Head> {
        block(self.next_head())
    }

    fn cut(&mut self) -> Result<Message> {
        block(async {
            let head = self.next_head().await?;
            let mut reader = self.reader.take().context("an interim answer")?;
            loop {
                match reader.fill().await {
                    Ok(true) => {}
                    Ok(false) => bail!("the message is complete: {head:?}"),
                    Err(_) => break,
                }
            }
            let framing = head.framing()?.unwrap_or(Framing::UntilClose);
            Ok(Message { head, framing, body: reader.ahead, trailers: Vec::new() })
        })
    }

    /// Reads until the stream ends, if there is one; else until the connection does.
    fn rest(&mut self) -> Result<Vec<u8>> {
        block(async {
            if self.response.is_some() {
                let Ok(head) = self.next_head().await else { return Ok(Vec::new()) };
                return Ok(format!("{}\r\n", head.line).into_bytes());
            }
            if let Some(mut reader) = self.reader.take() {
                while let Ok(true) = reader.fill().await {}
                return Ok(reader.ahead);
            }
            (&mut self.driver).await?;
            Ok(Vec::new())
        })
    }

    fn half_close(&mut self) -> Result<()> {
        bail!("a connection with streams has no half-close; mark the case `only: h1 client`")
    }

    fn reset(self: Box<Self>) -> Result<()> {
        Ok(())
    }
}

impl Drop for StreamClient {
    fn drop(&mut self) {
        // The socket closes with its driver, at any point.
        self.driver.abort();
    }
}

/// A node's end of a connection; the streams are taken one by one.
pub(crate) struct StreamOrigin {
    streams: UnboundedReceiver<(Request<RecvStream>, SendResponse<Bytes>)>,
    driver: JoinHandle<()>,
    writer: Writer,
    respond: Option<SendResponse<Bytes>>,
    reader: Option<Reader>,
    head_request: bool,
}

impl StreamOrigin {
    pub(crate) fn over(socket: Socket) -> Result<StreamOrigin> {
        let socket = tokio_socket(socket)?;
        let (sender, streams) = unbounded_channel();
        let driver = runtime().spawn(async move {
            let Ok(mut connection) = h2::server::handshake(socket).await else { return };
            while let Some(Ok(stream)) = connection.accept().await {
                // A test that is over takes no more streams.
                let _ = sender.send(stream);
            }
        });
        let writer = Writer::default();
        Ok(StreamOrigin { streams, driver, writer, respond: None, reader: None, head_request: false })
    }

    async fn next_head(&mut self) -> Result<Head> {
        let (request, respond) = self.streams.recv().await.context("the connection has ended")?;
        let (parts, stream) = request.into_parts();
        self.head_request = parts.method == http::Method::HEAD;
        let target = parts.uri.path_and_query().map_or("*", |p| p.as_str());
        let mut fields: Vec<(String, String)> =
            parts.uri.authority().map(|a| ("Host".into(), a.to_string())).into_iter().collect();
        // The gateway adds this field to every request; cases do not check it.
        fields.extend(from_map(&parts.headers).into_iter().filter(|(name, _)| name != "te"));
        self.respond = Some(respond);
        self.reader = Some(Reader { stream, ahead: Vec::new() });
        self.writer = Writer::default();
        Ok(Head { line: format!("{} {target} HTTP/1.1", parts.method), fields })
    }

    fn begin(&mut self, head: &Head) -> Result<()> {
        let respond = self.respond.as_mut().context("no request was read")?;
        let status = head.status()?;
        let mut response = Response::builder().status(status).body(())?;
        *response.headers_mut() = to_map(head)?;
        if status < 200 {
            return Ok(respond.send_informational(response)?);
        }
        let bodiless = self.head_request || matches!(status, 204 | 304);
        let framing = if bodiless { Framing::None } else { head.framing()?.unwrap_or(Framing::UntilClose) };
        let last = matches!(framing, Framing::None | Framing::Length(0));
        let out = respond.send_response(response, last)?;
        self.writer.begin_body(framing, out);
        Ok(())
    }
}

impl End for StreamOrigin {
    fn send(&mut self, notation: &[u8]) -> Result<()> {
        self.writer.notation.extend_from_slice(notation);
        loop {
            self.writer.write_body()?;
            match self.writer.head()? {
                Some(head) => self.begin(&head)?,
                None => return Ok(()),
            }
        }
    }

    fn exact(&mut self, notation: &[u8]) -> Result<()> {
        let reader = self.reader.as_mut().context("no request was read")?;
        expect_bytes(&block(reader.exactly(notation.len()))?, notation)
    }

    fn response(&mut self, _: &str) -> Result<Message> {
        bail!("a node reads no responses")
    }

    fn request(&mut self) -> Result<Message> {
        block(async {
            let head = self.next_head().await?;
            let reader = self.reader.take().context("the head came with its body")?;
            reader.message(head).await
        })
    }

    fn head(&mut self) -> Result<Head> {
        block(self.next_head())
    }

    fn cut(&mut self) -> Result<Message> {
        bail!("requests are cut by a reset; write `origin closed` or `never complete`")
    }

    /// Reads until the stream is reset, if it is still open; else until the connection ends.
    fn rest(&mut self) -> Result<Vec<u8>> {
        block(async {
            match (&mut self.writer.out, &mut self.respond) {
                (Some(out), _) if self.writer.framing.is_some() => {
                    drop(poll_fn(|cx| out.poll_reset(cx)).await);
                }
                (None, Some(respond)) => drop(poll_fn(|cx| respond.poll_reset(cx)).await),
                _ => (&mut self.driver).await?,
            }
            Ok(Vec::new())
        })
    }

    /// A request that ends in order shows as the end of a chunked body does.
    fn leftover(&mut self) -> Result<Vec<u8>> {
        block(async {
            if self.reader.is_none()
                && let Ok((request, respond)) = self.streams.try_recv()
            {
                self.reader = Some(Reader { stream: request.into_body(), ahead: Vec::new() });
                self.respond = Some(respond);
            }
            let Some(mut reader) = self.reader.take() else { return Ok(Vec::new()) };
            while let Ok(more) = reader.fill().await {
                if !more {
                    reader.ahead.extend_from_slice(b"0\r\n\r\n");
                    break;
                }
            }
            Ok(reader.ahead)
        })
    }

    fn half_close(&mut self) -> Result<()> {
        bail!("a connection with streams has no half-close; mark the case `only: h1 origin`")
    }

    fn reset(mut self: Box<Self>) -> Result<()> {
        if let Some(respond) = &mut self.respond {
            respond.send_reset(Reason::INTERNAL_ERROR);
        }
        Ok(())
    }
}

impl Drop for StreamOrigin {
    fn drop(&mut self) {
        let until_close = self.writer.framing == Some(Framing::UntilClose);
        if let (true, Some(out)) = (until_close, &mut self.writer.out) {
            // The end of the connection would have been the end of the message.
            let _ = push(out, Bytes::new(), true);
            return;
        }
        self.driver.abort();
    }
}
