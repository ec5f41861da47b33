//! Runs a wire case against a gateway, for a pair of protocols.
//!
//! A case is written in the notation of HTTP/1. A side with another version implements [`End`] by translating that
//! notation, so the same cases serve every pair; those that are about the notation itself are marked `only: h1`.

use std::fmt;
use std::sync::mpsc::Receiver;

use anyhow::{Context, Result, bail, ensure};

use crate::case::{Action, Case, Check, Expect, Side, Step};
use crate::message::{Framing, Head, Message};
use crate::origin::Origin;
use crate::peer::Peer;
use crate::ports::free_port;
use crate::socket::Address;
use crate::streams::{StreamClient, StreamOrigin};
use crate::tls::{Above, TestTls};
use crate::{DEADLINE, Gateway, until};

/// A version of HTTP on one side of the gateway.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Protocol {
    /// HTTP/1.1 and HTTP/1.0 in clear text.
    H1,
    /// HTTP/2 in clear text, by prior knowledge.
    H2,
}

impl Protocol {
    fn above(self) -> Above {
        match self {
            Protocol::H1 => Above::H1,
            Protocol::H2 => Above::H2,
        }
    }
}

impl fmt::Display for Pair {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = |protocol| match protocol {
            Protocol::H1 => "h1",
            Protocol::H2 => "h2",
        };
        let sealed = if self.transport == Transport::Tls { " over TLS" } else { "" };
        let moved = if self.io_uring { " by io_uring" } else { "" };
        write!(f, "{}-{}{sealed}{moved}", name(self.downstream), name(self.upstream))
    }
}

/// The transport under the versions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Transport {
    /// TCP.
    Clear,
    /// TLS, on both sides of the gateway.
    Tls,
}

impl Transport {
    /// Returns the scheme of its URIs.
    fn scheme(self) -> &'static str {
        match self {
            Transport::Clear => "http",
            Transport::Tls => "https",
        }
    }
}

/// The protocols of the client and the origin.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pair {
    /// Client to gateway.
    pub downstream: Protocol,
    /// Gateway to origin.
    pub upstream: Protocol,
    /// The transport.
    pub transport: Transport,
    /// The gateway's connections use io_uring.
    pub io_uring: bool,
}

impl Pair {
    /// Every pair that the cases are run for.
    pub const ALL: &[Pair] = &[
        Pair::new(Protocol::H1, Protocol::H1, Transport::Clear),
        Pair::new(Protocol::H2, Protocol::H1, Transport::Clear),
        Pair::new(Protocol::H1, Protocol::H2, Transport::Clear),
        Pair::new(Protocol::H2, Protocol::H2, Transport::Clear),
        Pair::new(Protocol::H1, Protocol::H1, Transport::Tls),
        Pair::new(Protocol::H2, Protocol::H1, Transport::Tls),
        Pair::new(Protocol::H1, Protocol::H2, Transport::Tls),
        Pair::new(Protocol::H2, Protocol::H2, Transport::Tls),
    ];

    const fn new(downstream: Protocol, upstream: Protocol, transport: Transport) -> Pair {
        Pair { downstream, upstream, transport, io_uring: false }
    }

    /// Returns the same with io_uring, or with epoll on a machine without it.
    #[must_use]
    pub fn by_io_uring(self) -> Pair {
        Pair { io_uring: true, ..self }
    }

    /// Returns true if `case` applies to this pair.
    pub fn applies(self, case: &Case) -> bool {
        // Cases with routes of their own say how their origins are spoken to.
        let own_routes = case.config.lines().any(|line| line.starts_with("routes:"));
        (self.transport == Transport::Clear || !(case.clear || own_routes))
            && (self.downstream == Protocol::H1 || !case.h1_client)
            && (self.upstream == Protocol::H1 || !(case.h1_origin || own_routes))
    }
}

/// One end of a connection, in the notation of HTTP/1.
pub trait End {
    /// Sends the message in `notation`.
    fn send(&mut self, notation: &[u8]) -> Result<()>;
    /// Reads exactly these bytes; an error for versions that have no such notation.
    fn exact(&mut self, notation: &[u8]) -> Result<()>;
    /// Reads a response to a request of `method`.
    fn response(&mut self, method: &str) -> Result<Message>;
    /// Reads a request.
    fn request(&mut self) -> Result<Message>;
    /// Reads a head only.
    fn head(&mut self) -> Result<Head>;
    /// Reads a message that is cut: its head, and the received body bytes.
    fn cut(&mut self) -> Result<Message>;
    /// Reads everything until the other side ends.
    fn rest(&mut self) -> Result<Vec<u8>>;
    /// Reads the rest of a request that must not become complete, until it ends.
    fn leftover(&mut self) -> Result<Vec<u8>> {
        self.rest()
    }
    /// Closes the sending direction.
    fn half_close(&mut self) -> Result<()>;
    /// Closes abruptly.
    fn reset(self: Box<Self>) -> Result<()>;
}

impl End for Peer {
    fn send(&mut self, notation: &[u8]) -> Result<()> {
        Peer::send(self, notation)
    }

    fn exact(&mut self, notation: &[u8]) -> Result<()> {
        let got = self.read_exactly(notation.len())?;
        ensure!(got == notation, "expected {:?}\n     got {:?}", chars(notation), chars(&got));
        Ok(())
    }

    fn response(&mut self, method: &str) -> Result<Message> {
        self.read_response(method)
    }

    fn request(&mut self) -> Result<Message> {
        self.read_request()
    }

    fn head(&mut self) -> Result<Head> {
        self.read_head()
    }

    fn cut(&mut self) -> Result<Message> {
        let head = self.read_head()?;
        let framing = head.framing()?.unwrap_or(Framing::UntilClose);
        let body = self.read_to_close()?;
        ensure!(!complete(framing, &body), "the message is complete: {head:?}, body {:?}", chars(&body));
        Ok(Message { head, framing, body, trailers: Vec::new() })
    }

    fn rest(&mut self) -> Result<Vec<u8>> {
        self.read_to_close()
    }

    fn half_close(&mut self) -> Result<()> {
        Peer::half_close(self)
    }

    fn reset(self: Box<Self>) -> Result<()> {
        Peer::reset(*self)
    }
}

/// Most cases in one gateway: enough that its start counts little, few enough that all CPUs have some.
const TOGETHER: usize = 32;

/// Groups cases that may share a gateway: those without settings of their own, unless they say `alone`. Each has its
/// own listener, route and origin there, so that none notices the others.
pub fn groups(cases: Vec<(String, Case)>) -> Vec<Vec<(String, Case)>> {
    let (sharing, alone): (Vec<_>, Vec<_>) = cases
        .into_iter()
        .partition(|(_, case)| case.config.is_empty() && !case.alone && !has(&case.route, "id:"));
    let mut groups: Vec<_> = sharing.chunks(TOGETHER).map(<[_]>::to_vec).collect();
    groups.extend(alone.into_iter().map(|case| vec![case]));
    groups
}

/// Runs cases in one gateway, one after the other; returns the failures, with the case and the step.
pub fn run(cases: &[(String, Case)], binary: &str, pair: Pair) -> Vec<String> {
    let (gateway, scenes) = match start(cases, binary, pair) {
        Ok(started) => started,
        Err(error) => return cases.iter().map(|(name, _)| format!("{name} ({pair}): {error:#}")).collect(),
    };
    let (mut failed, mut played) = (Vec::new(), Vec::new());
    for ((name, case), scene) in cases.iter().zip(scenes) {
        let address = scene.port.map_or(gateway.address(), Address::loopback);
        let Scene { origin, streams, .. } = scene;
        let (clients, origins) = (Vec::new(), Vec::new());
        let mut stage = Stage { pair, gateway: &gateway, address, origin, streams, clients, origins };
        for step in &case.steps {
            let place = || format!("line {}: {}", step.line, clip(&step.text, 120));
            if let Err(error) = stage.step(step).with_context(place) {
                failed.push(format!("{name} ({pair}): {:#}", stage.explain(&error)));
                break;
            }
        }
        played.push(stage.origin);
    }
    // The gateway first: while it lives, no other process may get the port of an origin that it knows.
    drop(gateway);
    drop(played);
    failed
}

/// The resources of one case.
struct Scene {
    origin: Origin,
    /// Its connections, if the origin sends its preface before a step names them.
    streams: Option<Receiver<StreamOrigin>>,
    /// A port without a listener.
    refused: u16,
    /// The port of its listener; None for the first one, which the gateway chooses.
    port: Option<u16>,
}

/// Starts a gateway with a listener, a route and an origin for each case.
fn start(cases: &[(String, Case)], binary: &str, pair: Pair) -> Result<(Gateway, Vec<Scene>)> {
    // A port may be taken by another process between the choice and the bind.
    let mut last = None;
    for _ in 0..3 {
        let scene = |number: usize| {
            let port = (number > 0).then(free_port);
            let (origin, streams) = match (pair.upstream, pair.transport) {
                (Protocol::H2, Transport::Clear) => Origin::streams().map(|(it, all)| (it, Some(all)))?,
                _ => (Origin::scripted()?, None),
            };
            Ok(Scene { origin, streams, refused: free_port(), port })
        };
        let scenes = (0..cases.len()).map(scene).collect::<Result<Vec<_>>>()?;
        match Gateway::start(binary, &configuration(cases, &scenes, pair)) {
            Ok(gateway) => return Ok((gateway, scenes)),
            Err(error) if format!("{error:#}").contains("in use") => last = Some(error),
            Err(error) => return Err(error).context("configuration of the case"),
        }
    }
    Err(last.context("not started")?)
}

/// Returns true if a line of `text` begins with `key`.
fn has(text: &str, key: &str) -> bool {
    text.lines().any(|line| line.starts_with(key))
}

fn configuration(cases: &[(String, Case)], scenes: &[Scene], pair: Pair) -> String {
    let mut yaml = String::from("workers: 1\nlisteners:\n");
    for (number, scene) in scenes.iter().enumerate() {
        let address = scene.port.map_or("{listen}".to_owned(), |port| format!("127.0.0.1:{port}"));
        yaml.push_str(&format!("  - address: \"{address}\"\n    name: listener-{number}\n"));
        if pair.transport == Transport::Tls {
            let [cert, key] = TestTls::get().files();
            let files = format!("{{cert: {}, key: {}}}", cert.display(), key.display());
            yaml.push_str(&format!("    tls:\n      certificates: [{files}]\n"));
        }
    }
    if pair.io_uring {
        yaml.push_str("io: auto\n");
    }
    let config: String = cases.iter().map(|(_, case)| &*case.config).collect();
    if !has(&config, "error_log:") {
        yaml.push_str("error_log:\n  level: info\n");
    }
    if !has(&config, "routes:") {
        yaml.push_str("routes:\n");
        for (number, ((_, case), scene)) in cases.iter().zip(scenes).enumerate() {
            yaml.push_str(&scene.fill(&route(case, number, pair)));
        }
    }
    // Groups of several cases have no such settings.
    for (scene, (_, case)) in scenes.iter().zip(cases) {
        yaml.push_str(&scene.fill(&case.config));
    }
    yaml
}

impl Scene {
    /// Fills in the case's addresses.
    fn fill(&self, yaml: &str) -> String {
        yaml.replace("{origin}", &format!("127.0.0.1:{}", self.origin.port()))
            .replace("{origin_port}", &self.origin.port().to_string())
            .replace("{refused_port}", &self.refused.to_string())
            .replace("{refused}", &format!("127.0.0.1:{}", self.refused))
    }
}

/// Returns the catch-all route of a case, on its listener.
fn route(case: &Case, number: usize, pair: Pair) -> String {
    let mut yaml = format!("  - uri: \"/*\"\n    listeners: [listener-{number}]\n");
    if !has(&case.route, "id:") {
        let id = if number == 0 { "all".to_owned() } else { format!("all-{number}") };
        yaml.push_str(&format!("    id: {id}\n"));
    }
    indent(&mut yaml, &case.route, "    ");
    yaml.push_str("    upstream:\n");
    match (pair.upstream, pair.transport) {
        (Protocol::H1, Transport::Clear) => {}
        (Protocol::H1, Transport::Tls) => yaml.push_str("      scheme: https\n"),
        (Protocol::H2, Transport::Clear) => yaml.push_str("      scheme: grpc\n"),
        (Protocol::H2, Transport::Tls) => yaml.push_str("      scheme: grpcs\n"),
    }
    if !has(&case.upstream, "nodes:") {
        yaml.push_str("      nodes:\n        \"{origin}\": 1\n");
    }
    indent(&mut yaml, &case.upstream, "      ");
    yaml
}

fn indent(out: &mut String, block: &str, by: &str) {
    for line in block.lines() {
        out.push_str(by);
        out.push_str(line);
        out.push('\n');
    }
}

/// A case in progress.
struct Stage<'g> {
    pair: Pair,
    gateway: &'g Gateway,
    /// The address of its listener.
    address: Address,
    origin: Origin,
    streams: Option<Receiver<StreamOrigin>>,
    clients: Vec<Option<Box<dyn End>>>,
    origins: Vec<Option<Box<dyn End>>>,
}

impl Stage<'_> {
    /// Returns the failure with the end of the gateway's own log.
    fn explain(&self, error: &anyhow::Error) -> anyhow::Error {
        let log = self.gateway.stderr();
        let lines: Vec<&str> = log.lines().collect();
        let tail = lines.iter().skip(lines.len().saturating_sub(8));
        let tail: String = tail.map(|l| format!("\n    | {}", clip(l, 300))).collect();
        anyhow::anyhow!("{error:#}{tail}")
    }

    fn step(&mut self, step: &Step) -> Result<()> {
        match &step.action {
            Action::Send(text) => {
                let text = bytes(&self.fill(text));
                self.end(step.side)?.send(&text)
            }
            Action::Exact(text) => {
                let text = bytes(&self.fill(text));
                self.end(step.side)?.exact(&text)
            }
            Action::Expect(expect) => self.expect(step.side, expect),
            Action::Refused(status) => {
                let rest = self.end(step.side)?.rest()?;
                let wanted = format!("HTTP/1.1 {status} ");
                let fits = rest.is_empty() || rest.starts_with(wanted.as_bytes());
                ensure!(fits, "expected {status} or a close, got {:?}", chars(&rest));
                Ok(())
            }
            Action::Closed => {
                let rest = self.end(step.side)?.rest()?;
                ensure!(rest.is_empty(), "bytes before the close: {:?}", chars(&rest));
                Ok(())
            }
            Action::Close => self.take(step.side).map(drop),
            Action::Reset => self.take(step.side)?.reset(),
            Action::HalfClose => self.end(step.side)?.half_close(),
            Action::Connections(n) => {
                until(DEADLINE, || self.origin.connections() >= *n);
                let seen = self.origin.connections();
                ensure!(seen == *n, "the origin saw {seen} connections, not {n}");
                Ok(())
            }
            Action::NeverComplete => self.never_complete(),
        }
    }

    fn expect(&mut self, side: Side, expect: &Expect) -> Result<()> {
        let (first, second) = (expect.start.0.as_str(), self.fill(&expect.start.1));
        let end = self.end(side)?;
        let message = if expect.head_only {
            let head = end.head()?;
            Message {
                framing: head.framing()?.unwrap_or(Framing::None),
                head,
                body: Vec::new(),
                trailers: Vec::new(),
            }
        } else if expect.cut {
            end.cut()?
        } else if matches!(side, Side::Client(_)) {
            end.response(first)?
        } else {
            end.request()?
        };
        let result = match side {
            Side::Client(_) => message.head.status().map(|s| s.to_string() == second),
            Side::Origin(_) => message.head.request_line().map(|line| line == (first, second.as_str())),
        };
        let shown = clip(&format!("{:?} body {:?}", message.head, chars(&message.body)), 1200);
        ensure!(result?, "unexpected start line in {shown}");
        for check in &expect.checks {
            self.check(check, &message).with_context(|| format!("in {shown}"))?;
        }
        Ok(())
    }

    fn check(&self, check: &Check, message: &Message) -> Result<()> {
        let head = &message.head;
        match check {
            Check::Equals(name, value) => {
                let (value, got) = (self.fill(value), head.all(name).collect::<Vec<_>>());
                ensure!(got == [value.as_str()], "{name} is {got:?}, not {value:?}");
            }
            Check::Contains(name, part) => {
                let part = self.fill(part);
                ensure!(head.get(name).is_some_and(|v| v.contains(&part)), "{name} has no {part:?}");
            }
            Check::Absent(name) => ensure!(head.get(name).is_none(), "{name} is present"),
            Check::Count(name, n) => {
                let got = head.all(name).count();
                ensure!(got == *n, "{name} occurs {got} times, not {n}");
            }
            Check::Body(text) => {
                let text = bytes(&self.fill(text));
                ensure!(message.body == text, "the body is not {:?}", chars(&text));
            }
            Check::BodyContains(text) => {
                let text = self.fill(text);
                ensure!(chars(&message.body).contains(&text), "the body has no {text:?}");
            }
            Check::Trailer(name, value) => {
                let found = message.trailers.iter().any(|(n, v)| n.eq_ignore_ascii_case(name) && v == value);
                ensure!(found, "no trailer {name}: {value} in {:?}", message.trailers);
            }
            Check::TrailerAbsent(name) => {
                let found = message.trailers.iter().any(|(n, _)| n.eq_ignore_ascii_case(name));
                ensure!(!found, "a trailer {name} in {:?}", message.trailers);
            }
            Check::Fault => {
                let kind = head.get("content-type").unwrap_or_default();
                ensure!(kind.starts_with("application/json"), "Content-Type is {kind:?}");
                let json = message.json().context("the body is not JSON")?;
                let whole = json["error_msg"].is_string() && json["reason"].is_string();
                ensure!(whole, "the JSON has not both error_msg and reason");
            }
        }
        Ok(())
    }

    /// Reads all origin connections to their end: the gateway must close them, and a request that
    /// it began must stay unfinished.
    fn never_complete(&mut self) -> Result<()> {
        while self.origins.len() < self.origin.connections() {
            self.accept()?;
        }
        for end in self.origins.iter_mut().flatten() {
            let rest = end.leftover().context("a connection to the origin stayed open")?;
            let whole = match rest.windows(4).position(|w| w == b"\r\n\r\n").map(|i| rest.split_at(i + 4)) {
                Some((head, body)) if head.starts_with(b"POST ") => {
                    complete(Head::parse(head)?.framing()?.unwrap_or(Framing::None), body)
                }
                // The head was read by an earlier step; a chunked body would end like this.
                _ => rest.ends_with(b"0\r\n\r\n"),
            };
            ensure!(!whole, "the origin got a complete request: {:?}", chars(&rest));
        }
        Ok(())
    }

    fn fill(&self, text: &str) -> String {
        let Some(port) = self.address.port() else { return text.to_string() };
        text.replace("{scheme}", self.pair.transport.scheme())
            .replace("{port}", &port.to_string())
            .replace("{origin_port}", &self.origin.port().to_string())
    }

    fn accept(&mut self) -> Result<()> {
        if let Some(streams) = &self.streams {
            let greeted = streams.recv_timeout(DEADLINE);
            let greeted = greeted.context("the gateway opened no connection to the origin")?;
            self.origins.push(Some(Box::new(greeted)));
            return Ok(());
        }
        let mut peer = self.origin.accept()?;
        if self.pair.transport == Transport::Tls {
            peer = Peer::over(TestTls::get().origin(peer.into_socket(), self.pair.upstream.above())?);
        }
        self.origins.push(Some(match self.pair.upstream {
            Protocol::H1 => Box::new(peer),
            Protocol::H2 => Box::new(StreamOrigin::over(peer.into_socket())?),
        }));
        Ok(())
    }

    /// Returns the end of a connection, opened or accepted when it is first named.
    fn end(&mut self, side: Side) -> Result<&mut Box<dyn End>> {
        let slot = match side {
            Side::Client(n) => {
                while self.clients.len() < n {
                    let mut peer = Peer::connect(&self.address)?;
                    if self.pair.transport == Transport::Tls {
                        let above = self.pair.downstream.above();
                        peer = Peer::over(TestTls::get().client(peer.into_socket(), above)?);
                    }
                    let end: Box<dyn End> = match self.pair.downstream {
                        Protocol::H1 => Box::new(peer),
                        Protocol::H2 => Box::new(StreamClient::over(peer.into_socket())?),
                    };
                    self.clients.push(Some(end));
                }
                &mut self.clients[n - 1]
            }
            Side::Origin(n) => {
                while self.origins.len() < n {
                    self.accept()?;
                }
                &mut self.origins[n - 1]
            }
        };
        slot.as_mut().context("the connection was closed by an earlier step")
    }

    fn take(&mut self, side: Side) -> Result<Box<dyn End>> {
        self.end(side)?;
        let slot = match side {
            Side::Client(n) => self.clients[n - 1].take(),
            Side::Origin(n) => self.origins[n - 1].take(),
        };
        match slot {
            Some(end) => Ok(end),
            None => bail!("the connection was closed by an earlier step"),
        }
    }
}

/// Returns true if `body`, still in its framing, is all of its message.
fn complete(framing: Framing, body: &[u8]) -> bool {
    match framing {
        Framing::Length(n) => body.len() as u64 >= n,
        Framing::Chunked => body == b"0\r\n\r\n" || body.windows(7).any(|w| w == b"\r\n0\r\n\r\n"),
        Framing::None | Framing::UntilClose => true,
    }
}

/// Returns one byte per character; the parser admits no others.
fn bytes(text: &str) -> Vec<u8> {
    text.chars().map(|c| c as u8).collect()
}

fn chars(bytes: &[u8]) -> String {
    bytes.iter().map(|&b| b as char).collect()
}

/// Shortens a text, for messages only.
fn clip(text: &str, most: usize) -> String {
    match text.char_indices().nth(most) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_string(),
    }
}
