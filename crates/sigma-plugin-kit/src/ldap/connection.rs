//! Requests one after the other, on one connection.

use sigma_net::Stream;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::ber;
use super::directory::{Directory, Security};
use super::message::{self, DirectoryResponse, Entry, SUCCESS, Search};

/// Most bytes of a message from a directory: names and groups, no photographs.
const MESSAGE_BYTES: usize = 256 << 10;

/// Most entries of a search, regardless of the request: one user, or the groups of one.
const ENTRIES: usize = 1000;

/// Most milliseconds of a handshake, within the time of the whole request.
const HANDSHAKE_MS: u64 = 60_000;

/// The reason why a directory gave no useful response: a sentence, without anything that a client sent.
#[derive(Debug, PartialEq, Eq)]
pub struct Failure(pub String);

impl Failure {
    fn of(what: &str, error: &dyn std::fmt::Display) -> Failure {
        Failure(format!("{what}: {error}"))
    }
}

/// A connection to a directory.
pub struct Connection {
    stream: Stream,
    /// The last number that a request had.
    last_id: u32,
    /// Bytes that were read and not yet parsed.
    unread: Vec<u8>,
    /// It has responded since it was taken: until then the gateway may not have noticed its loss.
    pub(super) has_answered: bool,
}

impl Connection {
    /// Connects, and encrypts the connection if it has to be.
    pub(super) async fn open(directory: &Directory) -> Result<Connection, Failure> {
        let places = tokio::net::lookup_host((&*directory.host, directory.port)).await;
        let mut places = places.map_err(|error| Failure::of("its host name is not resolved", &error))?;
        let mut last = Failure("its host name has no address".to_owned());
        let stream = loop {
            let Some(place) = places.next() else { return Err(last) };
            match Stream::dial_tcp(place).await {
                Ok(stream) => break stream,
                Err(error) => last = Failure::of("no connection", &error),
            }
        };
        let mut connection = Connection { stream, last_id: 0, unread: Vec::new(), has_answered: false };
        match directory.security {
            Security::Cleartext => return Ok(connection),
            Security::Tls => {}
            Security::StartTls => connection.start_tls().await?,
        }
        let tls = directory.tls.as_ref().ok_or_else(|| Failure("it has no TLS settings".to_owned()))?;
        let shaken = tls.connect(connection.stream, &directory.host, HANDSHAKE_MS).await;
        connection.stream = shaken.map_err(|error| Failure::of("no TLS session", &error))?;
        Ok(connection)
    }

    async fn start_tls(&mut self) -> Result<(), Failure> {
        let id = self.next_id();
        self.send(message::start_tls(id)).await?;
        match self.receive(id).await? {
            DirectoryResponse::Extended(SUCCESS) => {}
            DirectoryResponse::Extended(code) => {
                return Err(Failure(format!("StartTLS is refused with {code}")));
            }
            _ => return Err(unexpected()),
        }
        // Bytes from before the handshake may come from an attacker, and must not count after it.
        match self.unread.is_empty() {
            true => Ok(()),
            false => Err(Failure("it sent cleartext after StartTLS".to_owned())),
        }
    }

    /// Returns true if it was not closed meanwhile.
    pub(super) fn is_usable(&mut self) -> bool {
        self.unread.is_empty() && self.stream.is_quiet()
    }

    /// Binds the connection to `name`, and returns the directory's result code.
    pub async fn bind(&mut self, name: &str, password: &[u8]) -> Result<u32, Failure> {
        let id = self.next_id();
        self.send(message::bind(id, name.as_bytes(), password)).await?;
        match self.receive(id).await? {
            DirectoryResponse::Bound(code) => Ok(code),
            _ => Err(unexpected()),
        }
    }

    /// Searches, and returns the directory's result code.
    pub async fn search(&mut self, search: &Search<'_>) -> Result<(u32, Vec<Entry>), Failure> {
        let id = self.next_id();
        self.send(search.request(id)).await?;
        let mut entries = Vec::new();
        loop {
            match self.receive(id).await? {
                DirectoryResponse::Searched(code) => return Ok((code, entries)),
                DirectoryResponse::Found(_) if entries.len() >= ENTRIES => {
                    return Err(Failure(format!("more than {ENTRIES} entries")));
                }
                DirectoryResponse::Found(entry) => entries.push(entry),
                DirectoryResponse::Elsewhere => {}
                _ => return Err(unexpected()),
            }
        }
    }

    fn next_id(&mut self) -> u32 {
        // RFC 4511 §4.1.1.1 has no larger ones.
        self.last_id = self.last_id % (i32::MAX as u32) + 1;
        self.last_id
    }

    async fn send(&mut self, request: Vec<u8>) -> Result<(), Failure> {
        let sent = async {
            self.stream.write_all(&request).await?;
            self.stream.flush().await
        };
        sent.await.map_err(|error| Failure::of("the connection is lost", &error))
    }

    /// Returns the next message, which must be a response to this request.
    async fn receive(&mut self, id: u32) -> Result<DirectoryResponse, Failure> {
        loop {
            let header =
                ber::header(&self.unread, MESSAGE_BYTES).map_err(|reason| Failure(reason.to_owned()))?;
            if let Some((_, size, length)) = header
                && self.unread.len() >= size + length
            {
                let answer = message::read(&self.unread[..size + length]);
                self.unread.drain(..size + length);
                self.has_answered = true;
                return match answer {
                    Some((for_id, answer)) if for_id == id => Ok(answer),
                    _ => Err(unexpected()),
                };
            }
            let read = self.stream.read_buf(&mut self.unread).await;
            if read.map_err(|error| Failure::of("the connection is lost", &error))? == 0 {
                return Err(Failure("the connection is closed".to_owned()));
            }
        }
    }
}

fn unexpected() -> Failure {
    Failure("it sent an unexpected response".to_owned())
}
