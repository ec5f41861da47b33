//! A client of HTTP/2 that is cheap, and takes requests back in any state.
//!
//! It sends requests in batches and waits for the rest of each: a client that never waits does not test that
//! the gateway forgets.

use std::collections::HashMap;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpStream};
use std::time::Duration;

use anyhow::{Context, bail, ensure};

use super::PATHS;
use super::chain::BODY;

/// Requests at a time on a connection.
const BATCH: u32 = 20;
/// How long a response may take on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);
/// The last stream of a connection (RFC 9113 §5.1.1).
const LAST_STREAM: u32 = (1 << 31) - 1;
/// Bytes of a body that is begun and taken back.
const PIECE: usize = 1000;

const HEADER_BYTES: usize = 9;
const DATA: u8 = 0;
const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const SETTINGS: u8 = 4;
const PING: u8 = 6;
const GOAWAY: u8 = 7;
const WINDOW_UPDATE: u8 = 8;
const END_STREAM: u8 = 1;
const ACK: u8 = 1;
const END_HEADERS: u8 = 4;
const CANCEL: [u8; 4] = 8u32.to_be_bytes();

/// What was done.
#[derive(Debug, Default, Clone, Copy)]
pub(super) struct Done {
    pub(super) answered: u64,
    pub(super) taken_back: u64,
}

/// When a request is taken back.
#[derive(Clone, Copy)]
enum Back {
    /// In the same write.
    AtOnce,
    /// Behind a piece of its body.
    InBody,
    /// With the first frame of its response, or never if that is all.
    InAnswer,
}

/// One connection.
pub(super) struct Client {
    socket: TcpStream,
    next: u32,
    /// Requests so far, which choose the action on each.
    count: u64,
    resets_percent: u8,
    out: Vec<u8>,
    input: Vec<u8>,
    /// Streams that are answered some time, and whether they are taken back with that.
    open: HashMap<u32, bool>,
    /// Bytes whose window was not given back.
    unannounced: u32,
    pub(super) done: Done,
}

impl Client {
    pub(super) fn connect(port: u16, resets_percent: u8) -> anyhow::Result<Client> {
        let socket = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).context("cannot connect")?;
        socket.set_nodelay(true)?;
        socket.set_read_timeout(Some(PATIENCE))?;
        let mut client = Client {
            socket,
            next: 1,
            count: 0,
            resets_percent,
            out: b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec(),
            input: Vec::new(),
            open: HashMap::new(),
            unannounced: 0,
            done: Done::default(),
        };
        frame(&mut client.out, SETTINGS, 0, 0, &[]);
        Ok(client)
    }

    /// Whether the connection has streams for another batch.
    pub(super) fn has_streams(&self) -> bool {
        self.next <= LAST_STREAM - 2 * BATCH
    }

    /// Sends a batch and reads until all of it is answered or taken back.
    pub(super) fn batch(&mut self) -> anyhow::Result<()> {
        for _ in 0..BATCH {
            self.request();
        }
        self.socket.write_all(&self.out).context("the gateway takes no requests")?;
        self.out.clear();
        while !self.open.is_empty() {
            self.read().with_context(|| format!("{} requests are not answered", self.open.len()))?;
        }
        Ok(())
    }

    fn request(&mut self) {
        let stream = self.next;
        self.next += 2;
        self.count += 1;
        let path = PATHS[(self.count % 3) as usize];
        // GET or POST, http, an authority and a path, as literals without indexing.
        let back = self.back();
        let posts = matches!(back, Some(Back::InBody));
        let mut block = vec![if posts { 0x83 } else { 0x82 }, 0x86, 0x01, 1, b'h', 0x04, path.len() as u8];
        block.extend_from_slice(path.as_bytes());
        let flags = END_HEADERS | if posts { 0 } else { END_STREAM };
        frame(&mut self.out, HEADERS, flags, stream, &block);
        if posts {
            frame(&mut self.out, DATA, 0, stream, &[b'x'; PIECE]);
        }
        match back {
            Some(Back::AtOnce | Back::InBody) => {
                frame(&mut self.out, RST_STREAM, 0, stream, &CANCEL);
                self.done.taken_back += 1;
            }
            Some(Back::InAnswer) => drop(self.open.insert(stream, true)),
            None => drop(self.open.insert(stream, false)),
        }
    }

    /// Whether and when the next request is taken back: so many of a hundred, spread over them, each way in turn.
    fn back(&self) -> Option<Back> {
        let spread = self.count.wrapping_mul(37) % 100;
        (spread < self.resets_percent.into()).then_some(match self.count / 100 % 3 {
            0 => Back::AtOnce,
            1 => Back::InBody,
            _ => Back::InAnswer,
        })
    }

    /// Reads once, and follows the complete frames.
    fn read(&mut self) -> anyhow::Result<()> {
        let mut room = [0; 16 * 1024];
        let bytes = self.socket.read(&mut room).context("no answer")?;
        ensure!(bytes > 0, "the gateway closes the connection");
        self.input.extend_from_slice(&room[..bytes]);
        let input = std::mem::take(&mut self.input);
        let mut rest = &input[..];
        while let [a, b, c, kind, flags, d, e, f, g, tail @ ..] = rest {
            let length = u32::from_be_bytes([0, *a, *b, *c]) as usize;
            let Some((payload, after)) = tail.split_at_checked(length) else { break };
            self.take(*kind, *flags, u32::from_be_bytes([*d, *e, *f, *g]), payload)?;
            rest = after;
        }
        self.input = rest.to_vec();
        if !self.out.is_empty() {
            self.socket.write_all(&self.out).context("the gateway takes no frames")?;
            self.out.clear();
        }
        Ok(())
    }

    fn take(&mut self, kind: u8, flags: u8, stream: u32, payload: &[u8]) -> anyhow::Result<()> {
        match kind {
            SETTINGS if flags & ACK == 0 => frame(&mut self.out, SETTINGS, ACK, 0, &[]),
            PING if flags & ACK == 0 => frame(&mut self.out, PING, ACK, 0, payload),
            GOAWAY => bail!("the gateway says GOAWAY: {}", payload.escape_ascii()),
            RST_STREAM if self.open.contains_key(&stream) => {
                bail!("the gateway takes a request back: {}", payload.escape_ascii())
            }
            HEADERS | DATA => self.answer(kind, flags, stream, payload)?,
            _ => {}
        }
        Ok(())
    }

    fn answer(&mut self, kind: u8, flags: u8, stream: u32, payload: &[u8]) -> anyhow::Result<()> {
        if kind == DATA {
            self.unannounced += payload.len() as u32;
            if self.unannounced > 30_000 {
                frame(&mut self.out, WINDOW_UPDATE, 0, 0, &self.unannounced.to_be_bytes());
                self.unannounced = 0;
            }
        }
        let Some(goes_back) = self.open.get(&stream).copied() else { return Ok(()) };
        if kind == HEADERS {
            // `:status: 200` is its own index.
            ensure!(payload.first() == Some(&0x88), "not answered with 200: {}", payload.escape_ascii());
        } else {
            ensure!(BODY.as_bytes().starts_with(payload), "another body: {}", payload.escape_ascii());
        }
        if flags & END_STREAM != 0 {
            self.open.remove(&stream);
            self.done.answered += 1;
        } else if goes_back {
            self.open.remove(&stream);
            self.done.taken_back += 1;
            frame(&mut self.out, RST_STREAM, 0, stream, &CANCEL);
        }
        Ok(())
    }
}

fn frame(out: &mut Vec<u8>, kind: u8, flags: u8, stream: u32, payload: &[u8]) {
    out.reserve(HEADER_BYTES + payload.len());
    out.extend(&(payload.len() as u32).to_be_bytes()[1..]);
    out.extend([kind, flags]);
    out.extend(stream.to_be_bytes());
    out.extend_from_slice(payload);
}
