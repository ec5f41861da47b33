//! The messages that clients and nodes read. A strict reader of HTTP/1.1 (RFC 9112), with code of its own, so that it
//! does not repeat a mistake of the gateway's codecs.

use super::stream::PeerEnd;
use super::world::{FOR_EVER_MS, World};

/// A message's head.
#[derive(Debug)]
pub struct Head {
    /// The line of the request or status.
    pub start: String,
    fields: Vec<(String, String)>,
}

impl Head {
    /// Returns the only value of a field. None without one.
    ///
    /// # Errors
    /// Returns an error if there are several.
    pub fn only(&self, name: &str) -> Result<Option<&str>, String> {
        let mut values = self.fields.iter().filter(|(field, _)| field.eq_ignore_ascii_case(name));
        match (values.next(), values.next()) {
            (_, Some(_)) => Err(format!("{name} is there twice: {self:?}")),
            (first, None) => Ok(first.map(|(_, value)| value.as_str())),
        }
    }

    /// Returns all fields in their order.
    pub fn fields(&self) -> &[(String, String)] {
        &self.fields
    }

    /// Returns true if the connection ends after this message.
    pub fn closes(&self) -> bool {
        self.only("connection").is_ok_and(|value| value.is_some_and(|value| value.contains("close")))
    }

    /// Returns the framing of the body, or `otherwise` if the head has no word about it; for a response, if it may have one.
    ///
    /// # Errors
    /// Returns an error if there are two framings.
    pub fn framing(&self, otherwise: Framing) -> Result<Framing, String> {
        match (self.only("transfer-encoding")?, self.only("content-length")?) {
            (Some("chunked"), None) => Ok(Framing::Chunked),
            (None, Some(length)) => {
                length.parse().map(Framing::Known).map_err(|error| format!("{error}: {self:?}"))
            }
            (None, None) => Ok(otherwise),
            _ => Err(format!("two framings: {self:?}")),
        }
    }
}

/// The framing of a body.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Framing {
    /// There is no body.
    None,
    /// It has this length.
    Known(usize),
    /// It is in chunks.
    Chunked,
    /// It lasts until the end of the connection.
    UntilClose,
}

/// The end of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ended {
    /// All of it came.
    Complete,
    /// The connection ended before its end.
    Cut,
}

/// A reader of messages from a connection, as fast as its pace allows.
#[derive(Debug)]
pub struct Reader {
    world: World,
    /// Bytes that were read and not used yet.
    bytes: Vec<u8>,
    /// Largest piece read at once.
    piece: usize,
    /// The percentage of reads that come after a pause.
    paused: usize,
    /// It stops reading after this many bytes, for longer than any timeout.
    pub stalls_after: Option<usize>,
    read: usize,
}

/// A pause that outlasts every timeout.
pub const STALL_MS: u64 = 2 * FOR_EVER_MS;

impl Reader {
    /// A reader of pieces up to `piece` bytes, which pauses before `paused` percent of them.
    pub fn new(world: &World, piece: usize, paused: usize) -> Reader {
        Reader { world: world.clone(), bytes: Vec::new(), piece, paused, stalls_after: None, read: 0 }
    }

    /// Reads more; returns false at the end.
    async fn more(&mut self, end: &mut PeerEnd) -> bool {
        if self.stalls_after.is_some_and(|after| self.read >= after) {
            self.stalls_after = None;
            self.world.sleep(STALL_MS).await;
        }
        if self.world.chance(self.paused) {
            self.world.sleep(self.world.one_of(&[1, 10, 300])).await;
        }
        let most = 1 + self.world.pick(0..self.piece);
        let read = end.read(&mut self.bytes, most).await.unwrap_or(0);
        self.read += read;
        read > 0
    }

    /// Returns the next head. None if the connection ended before.
    ///
    /// # Errors
    /// Returns an error if it is malformed.
    pub async fn head(&mut self, end: &mut PeerEnd) -> Result<Option<Head>, String> {
        loop {
            if let Some(at) = self.bytes.windows(4).position(|window| window == b"\r\n\r\n") {
                let text: Vec<u8> = self.bytes.drain(..at + 4).collect();
                return parse(&String::from_utf8_lossy(&text[..at])).map(Some);
            }
            if !self.more(end).await {
                return Ok(None);
            }
        }
    }

    /// Returns one line, without its end. None if the connection ended before.
    pub async fn line(&mut self, end: &mut PeerEnd) -> Option<String> {
        loop {
            if let Some(at) = self.bytes.windows(2).position(|window| window == b"\r\n") {
                let line: Vec<u8> = self.bytes.drain(..at + 2).collect();
                return Some(String::from_utf8_lossy(&line[..at]).into_owned());
            }
            if !self.more(end).await {
                return None;
            }
        }
    }

    /// Moves the next `n` bytes into `body`, or those that came before the end.
    async fn take(&mut self, end: &mut PeerEnd, n: usize, body: &mut Vec<u8>) -> Ended {
        let mut left = n;
        while left > 0 {
            if self.bytes.is_empty() && !self.more(end).await {
                return Ended::Cut;
            }
            let now = left.min(self.bytes.len());
            body.extend(self.bytes.drain(..now));
            left -= now;
        }
        Ended::Complete
    }

    /// Reads a body in this framing.
    ///
    /// # Errors
    /// Returns an error if its chunks are malformed.
    pub async fn body(&mut self, end: &mut PeerEnd, framing: Framing) -> Result<(Vec<u8>, Ended), String> {
        let mut body = Vec::new();
        let ended = match framing {
            Framing::None => Ended::Complete,
            Framing::Known(n) => self.take(end, n, &mut body).await,
            Framing::Chunked => self.chunks(end, &mut body).await?,
            Framing::UntilClose => {
                while self.more(end).await {}
                body.append(&mut self.bytes);
                Ended::Complete
            }
        };
        Ok((body, ended))
    }

    async fn chunks(&mut self, end: &mut PeerEnd, body: &mut Vec<u8>) -> Result<Ended, String> {
        loop {
            let Some(line) = self.line(end).await else { return Ok(Ended::Cut) };
            let size = usize::from_str_radix(&line, 16).map_err(|_| format!("a chunk of size {line:?}"))?;
            if size == 0 {
                break;
            }
            if self.take(end, size, body).await == Ended::Cut {
                return Ok(Ended::Cut);
            }
            match self.line(end).await {
                None => return Ok(Ended::Cut),
                Some(line) if line.is_empty() => {}
                Some(line) => return Err(format!("{line:?} behind a chunk")),
            }
        }
        // Trailers, up to an empty line.
        loop {
            match self.line(end).await {
                None => return Ok(Ended::Cut),
                Some(line) if line.is_empty() => return Ok(Ended::Complete),
                Some(line) if line == TRAILER => {}
                Some(line) => return Err(format!("{line:?} among trailers")),
            }
        }
    }
}

/// The trailer that every message has which has trailers.
pub const TRAILER: &str = "X-Trailer: 1";

fn parse(text: &str) -> Result<Head, String> {
    let mut lines = text.split("\r\n");
    let start = lines.next().unwrap_or_default().to_owned();
    let field = |line: &str| {
        let (name, value) = line.split_once(": ").ok_or_else(|| format!("{line:?} is not a field"))?;
        Ok((name.to_owned(), value.to_owned()))
    };
    let fields = lines.map(field).collect::<Result<_, String>>()?;
    Ok(Head { start, fields })
}
