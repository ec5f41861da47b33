//! Clients and nodes: their requests and responses, their misbehaviour, and their expectations of the gateway between
//! them.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::LazyLock;

use crate::simulation::message::{Ended, Framing, Head, Reader, STALL_MS, TRAILER};
use crate::simulation::stream::{Mood, PeerEnd};
use crate::simulation::world::World;

/// A request and its response.
#[derive(Debug, Clone, Copy)]
pub(super) struct Ask {
    pub(super) id: usize,
    method: &'static str,
    body: usize,
    body_chunked: bool,
    answer: usize,
    answer_framing: Framing,
    trailers: bool,
    interim: bool,
}

impl Ask {
    fn head(&self) -> String {
        let framing = match (self.body, self.body_chunked) {
            (0, false) => String::new(),
            (_, true) => "Transfer-Encoding: chunked\r\n".to_owned(),
            (length, false) => format!("Content-Length: {length}\r\n"),
        };
        format!("{} /{} HTTP/1.1\r\nHost: example.org\r\n{framing}\r\n", self.method, self.id)
    }

    fn is_idempotent(&self) -> bool {
        self.method != "POST"
    }

    /// The body of this request (0) or of its response (1), if it has this length.
    fn content(&self, side: usize, length: usize) -> &'static [u8] {
        let begin = (self.id * 2 + side) * 97;
        &NOISE[begin..begin + length]
    }
}

/// Bytes that bodies are cut from, each from another place.
static NOISE: LazyLock<Vec<u8>> = LazyLock::new(|| {
    let mut random = fastrand::Rng::with_seed(0);
    std::iter::repeat_with(|| random.u8(..)).take(256 * 1024).collect()
});

/// `body` in chunks of sizes by chance.
fn chunked(world: &World, mut body: &[u8], trailers: bool) -> Vec<u8> {
    let mut out = Vec::new();
    while !body.is_empty() {
        let (chunk, rest) = body.split_at(1 + world.pick(0..body.len()));
        out.extend_from_slice(format!("{:x}\r\n", chunk.len()).as_bytes());
        out.extend_from_slice(chunk);
        out.extend_from_slice(b"\r\n");
        body = rest;
    }
    out.extend_from_slice(b"0\r\n");
    if trailers {
        out.extend_from_slice(format!("{TRAILER}\r\n").as_bytes());
    }
    out.extend_from_slice(b"\r\n");
    out
}

/// How much is sent, and in which pieces.
#[derive(Debug, Clone, Copy)]
struct Scale {
    piece: usize,
    body: usize,
}

const SCALES: [Scale; 3] = [
    Scale { piece: 2, body: 200 },
    Scale { piece: 100, body: 3_000 },
    Scale { piece: 70_000, body: 100_000 },
];

/// One simulation: its requests and their results.
pub(super) struct Play {
    pub(super) world: World,
    /// No peer misbehaves, so everything has to succeed. Bytes still come late and in pieces.
    pub(super) calm: bool,
    scale: Scale,
    asks: RefCell<Vec<Asked>>,
    wrongs: RefCell<Vec<String>>,
}

struct Asked {
    ask: Ask,
    /// How many nodes have got the head.
    heads: usize,
    /// The node cut a response that lasts until the end of the connection, which no reader can notice.
    cut_unseen: bool,
    answered: bool,
}

impl Play {
    pub(super) fn new(world: &World) -> Play {
        let (calm, scale) = (world.chance(40), world.one_of(&SCALES));
        Play { world: world.clone(), calm, scale, asks: RefCell::default(), wrongs: RefCell::default() }
    }

    /// Returns the behaviour of a new connection.
    pub(super) fn mood(&self) -> Mood {
        let world = &self.world;
        let breaks = !self.calm && world.chance(20);
        Mood {
            piece: self.scale.piece,
            delayed: world.one_of(&[0, 5, 30]),
            room: world.one_of(&[16, 300, 5_000, 65_536]).max(self.scale.piece / 4),
            breaks_at: breaks.then(|| 1 + world.pick(0..50)),
        }
    }

    fn reader(&self) -> Reader {
        let paused = self.world.one_of(&[0, 5]);
        Reader::new(&self.world, self.scale.piece, paused)
    }

    /// Returns true if a failure happens, which is only possible if not all behave.
    fn goes_wrong(&self, percent: usize) -> bool {
        !self.calm && self.world.chance(percent)
    }

    /// Returns a new request.
    pub(super) fn ask(&self) -> Ask {
        let world = &self.world;
        let length = || world.one_of(&[0, 1, 3, self.scale.body / 10, 1 + world.pick(0..self.scale.body)]);
        let method = world.one_of(&["GET", "GET", "GET", "HEAD", "POST", "POST", "PUT"]);
        let has_body = matches!(method, "POST" | "PUT");
        let answer = length();
        let ask = Ask {
            id: self.asks.borrow().len(),
            method,
            body: if has_body { length() } else { 0 },
            body_chunked: has_body && world.chance(50),
            answer,
            answer_framing: world.one_of(&[
                Framing::Known(answer),
                Framing::Known(answer),
                Framing::Chunked,
                Framing::Chunked,
                Framing::UntilClose,
            ]),
            trailers: world.chance(30),
            interim: world.chance(10),
        };
        self.asks.borrow_mut().push(Asked { ask, heads: 0, cut_unseen: false, answered: false });
        ask
    }

    fn wrong(&self, what: impl Into<String>) {
        self.wrongs.borrow_mut().push(what.into());
    }

    /// Returns an error with all violations.
    pub(super) fn verdict(&self) -> Result<(), String> {
        for Asked { ask, heads, answered, .. } in &*self.asks.borrow() {
            if !ask.is_idempotent() && *heads > 1 {
                self.wrong(format!("{heads} nodes got {ask:?}"));
            }
            if self.calm && !answered {
                self.wrong(format!("nobody answered {ask:?}"));
            }
        }
        let wrongs = self.wrongs.borrow();
        if wrongs.is_empty() { Ok(()) } else { Err(wrongs.join("\n")) }
    }
}

/// Sends requests on one connection and checks the responses.
pub(super) async fn client(play: Rc<Play>, mut end: PeerEnd, asks: Vec<Ask>) {
    let world = &play.world;
    let mut reader = play.reader();
    if play.goes_wrong(10) {
        reader.stalls_after = Some(world.pick(0..play.scale.body));
    }
    // Only heads, so that no side has to take more than it is ready to.
    let pipelined = world.chance(30) && asks.iter().all(|ask| ask.body == 0);
    let ahead = if pipelined { asks.len() } else { 1 };
    for batch in asks.chunks(ahead) {
        for ask in batch {
            if !send_request(&play, &mut end, ask).await {
                return;
            }
        }
        for ask in batch {
            if play.goes_wrong(4) {
                match world.pick(0..3) {
                    0 => end.reset(),
                    1 => end.finish(),
                    _ => return,
                }
            }
            match read_answer(&play, &mut end, &mut reader, ask).await {
                Ok(true) => {}
                Ok(false) => return,
                Err(what) => return play.wrong(format!("{what}, in answer to {ask:?}")),
            }
        }
    }
}

/// Sends a request; returns true if all of it left.
async fn send_request(play: &Play, end: &mut PeerEnd, ask: &Ask) -> bool {
    let mut wire = ask.head().into_bytes();
    let body = ask.content(0, ask.body);
    if ask.body_chunked {
        wire.extend(chunked(&play.world, body, ask.trailers));
    } else {
        wire.extend_from_slice(body);
    }
    if !play.goes_wrong(5) {
        return end.write(&wire).await.is_ok();
    }
    let part = play.world.pick(0..wire.len());
    if end.write(&wire[..part]).await.is_ok() {
        match play.world.pick(0..3) {
            0 => end.reset(),
            1 => end.finish(),
            _ => play.world.sleep(STALL_MS).await,
        }
    }
    false
}

/// Reads a response; returns true if the connection can be used again.
async fn read_answer(play: &Play, end: &mut PeerEnd, reader: &mut Reader, ask: &Ask) -> Result<bool, String> {
    let head = loop {
        let Some(head) = reader.head(end).await? else { return Ok(false) };
        if !head.start.starts_with("HTTP/1.1 1") {
            break head;
        }
    };
    let framing = if ask.method == "HEAD" { Framing::None } else { head.framing(Framing::UntilClose)? };
    let (body, ended) = reader.body(end, framing).await?;
    if framing == Framing::UntilClose {
        return Err(format!("HTTP/1.1 can tell where an answer ends: {head:?}"));
    }
    if head.start != "HTTP/1.1 200 OK" {
        return foreign_answer(play, &head, &body, ended);
    }
    if head.only("x-id")? != Some(&ask.id.to_string()) {
        return Err(format!("somebody else's answer: {head:?}"));
    }
    let expected = ask.content(1, if ask.method == "HEAD" { 0 } else { ask.answer });
    if !expected.starts_with(&body) {
        return Err(format!("{} bytes of body, not what was sent", body.len()));
    }
    let mut asks = play.asks.borrow_mut();
    if ended == Ended::Complete && body.len() < expected.len() && !asks[ask.id].cut_unseen {
        return Err(format!("{} of {} bytes passed for the whole", body.len(), expected.len()));
    }
    asks[ask.id].answered = ended == Ended::Complete;
    Ok(ended == Ended::Complete && !head.closes())
}

/// Checks a response that no node sent.
fn foreign_answer(play: &Play, head: &Head, body: &[u8], ended: Ended) -> Result<bool, String> {
    let text = String::from_utf8_lossy(body);
    let is_error = head.start.starts_with("HTTP/1.1 4") || head.start.starts_with("HTTP/1.1 5");
    if play.calm || !is_error || (ended == Ended::Complete && !body.is_empty() && !text.contains("error_msg"))
    {
        return Err(format!("{head:?} {text}"));
    }
    Ok(ended == Ended::Complete && !head.closes())
}

/// The misbehaviour of a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fault {
    Reset,
    End,
    Stall,
    /// The response is cut, after which one of the above follows.
    Cut,
    Garbage,
    /// An unexpected response follows. It comes in one piece with the first: later, while the next request is on its
    /// way, it could be the response to that.
    Unasked,
    /// The connection ends after a response that did not announce it.
    Unannounced,
    /// It responds before it has read the request.
    Early,
}

const FAULTS: [Fault; 8] = [
    Fault::Reset,
    Fault::End,
    Fault::Stall,
    Fault::Cut,
    Fault::Garbage,
    Fault::Unasked,
    Fault::Unannounced,
    Fault::Early,
];

/// Serves the requests of one connection.
pub(super) async fn node(play: Rc<Play>, mut end: PeerEnd) {
    let mut reader = play.reader();
    loop {
        match serve(&play, &mut end, &mut reader).await {
            Ok(true) => {}
            Ok(false) => return,
            Err(what) => return play.wrong(format!("a node read: {what}")),
        }
    }
}

/// Serves one request; returns true if the connection continues.
async fn serve(play: &Play, end: &mut PeerEnd, reader: &mut Reader) -> Result<bool, String> {
    let Some(head) = reader.head(end).await? else { return Ok(false) };
    let known = |id: usize| play.asks.borrow().get(id).map(|asked| asked.ask);
    let id = head.start.split(['/', ' ']).nth(2).and_then(|id| id.parse().ok());
    let Some(ask) = id.and_then(known).filter(|ask| head.start.starts_with(ask.method)) else {
        return Err(format!("{:?} was never asked", head.start));
    };
    play.asks.borrow_mut()[ask.id].heads += 1;
    let fault = play.goes_wrong(15).then(|| play.world.one_of(&FAULTS));
    if fault != Some(Fault::Early) {
        let (body, ended) = reader.body(end, head.framing(Framing::None)?).await?;
        let expected = ask.content(0, ask.body);
        if !expected.starts_with(&body) || (ended == Ended::Complete && body.len() < expected.len()) {
            return Err(format!("{} bytes of body ({ended:?}), not those of {ask:?}", body.len()));
        }
        if ended == Ended::Cut {
            return Ok(false);
        }
    }
    answer(play, end, &ask, fault).await
}

async fn answer(play: &Play, end: &mut PeerEnd, ask: &Ask, fault: Option<Fault>) -> Result<bool, String> {
    let world = &play.world;
    let mut wire = answer_bytes(world, ask);
    let closes = ask.answer_framing == Framing::UntilClose;
    match fault {
        Some(Fault::Garbage) => wire = b"HTTP/1.1 2xx\r\n\r\n".to_vec(),
        Some(Fault::Cut) => {
            wire.truncate(world.pick(0..wire.len()));
            play.asks.borrow_mut()[ask.id].cut_unseen = closes;
        }
        // If the end of the connection ends the response, it would be part of it.
        Some(Fault::Unasked) if !closes => {
            wire.extend_from_slice(b"HTTP/1.1 200 OK\r\nX-Id: unasked\r\n\r\n")
        }
        Some(Fault::Reset | Fault::End | Fault::Stall) => wire.clear(),
        Some(Fault::Unasked | Fault::Unannounced | Fault::Early) | None => {}
    }
    if fault == Some(Fault::Unasked) {
        end.write_at_once(&wire);
    } else if end.write(&wire).await.is_err() {
        return Ok(false);
    }
    match fault {
        None | Some(Fault::Unasked) => Ok(!closes),
        Some(Fault::Reset) => {
            end.reset();
            Ok(false)
        }
        Some(Fault::Stall) => {
            world.sleep(STALL_MS).await;
            Ok(false)
        }
        Some(Fault::Cut) if world.chance(30) => {
            end.reset();
            Ok(false)
        }
        Some(Fault::Cut) if world.chance(30) => {
            world.sleep(STALL_MS).await;
            Ok(false)
        }
        Some(_) => Ok(false),
    }
}

fn answer_bytes(world: &World, ask: &Ask) -> Vec<u8> {
    let mut wire = Vec::new();
    if ask.interim {
        wire.extend_from_slice(b"HTTP/1.1 103 Early Hints\r\nLink: <a>\r\n\r\n");
    }
    wire.extend_from_slice(format!("HTTP/1.1 200 OK\r\nX-Id: {}\r\n", ask.id).as_bytes());
    let framing = match ask.answer_framing {
        Framing::Known(length) => format!("Content-Length: {length}\r\n\r\n"),
        Framing::Chunked => "Transfer-Encoding: chunked\r\n\r\n".to_owned(),
        Framing::UntilClose | Framing::None => "Connection: close\r\n\r\n".to_owned(),
    };
    wire.extend_from_slice(framing.as_bytes());
    if ask.method == "HEAD" {
        return wire;
    }
    let body = ask.content(1, ask.answer);
    if ask.answer_framing == Framing::Chunked {
        wire.extend(chunked(world, body, ask.trailers));
    } else {
        wire.extend_from_slice(body);
    }
    wire
}
