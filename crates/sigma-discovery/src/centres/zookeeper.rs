//! Documents in nodes of ZooKeeper, each with a watch.
//!
//! A connection has a session of its own, which is not resumed: after a reconnection the node is read again, so that no
//! change is missed. Messages are in the format jute: a length, then big-endian numbers, texts and buffers with their
//! length.

use std::time::Duration;

use sigma_config::config_sources::ZookeeperDocuments;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::timeout;

use super::DocumentSource;
use crate::source::Trouble;

/// Types of requests.
const GET_DATA: i32 = 4;
const PING: i32 = 11;
const AUTH: i32 = 100;

/// Numbers of messages that are no responses to ordinary requests.
const PING_XID: i32 = -2;
const AUTH_XID: i32 = -4;
const EVENT_XID: i32 = -1;

/// The number of the request that reads the node.
const READ_XID: i32 = 1;

/// Errors of ZooKeeper.
const NO_NODE: i32 = -101;
const NO_AUTH: i32 = -102;
const AUTH_FAILED: i32 = -115;

/// Bytes of a message besides the document.
const OVERHEAD: usize = 4096;

/// The document of one node.
pub(super) struct ZookeeperNode {
    settings: ZookeeperDocuments,
    servers: Vec<String>,
    at: usize,
    path: Box<str>,
    most: usize,
    connection: Option<Connection>,
}

impl ZookeeperNode {
    pub(super) fn new(settings: &ZookeeperDocuments, path: &str, document_bytes: u32) -> ZookeeperNode {
        let mut servers = settings.servers.clone();
        fastrand::shuffle(&mut servers);
        ZookeeperNode {
            settings: settings.clone(),
            servers,
            at: 0,
            path: path.into(),
            most: document_bytes as usize,
            connection: None,
        }
    }

    fn session_timeout(&self) -> Duration {
        Duration::from_millis(self.settings.session_timeout_ms.into())
    }

    async fn connect(&self) -> Result<Connection, Trouble> {
        let server = &self.servers[self.at];
        let within = self.session_timeout();
        let opened =
            timeout(within, Connection::open(server, within, self.settings.digest.reveal(), self.most));
        let opened = opened.await.unwrap_or_else(|_| Err("no response in time".to_owned()));
        opened.map_err(|reason| Trouble(format!("{server}: {reason}")))
    }

    /// Reads the node: at once on a new connection, otherwise after its watch has fired.
    async fn read(&mut self) -> Result<Vec<u8>, Trouble> {
        let mut connection = match self.connection.take() {
            Some(mut connection) => {
                let waited = connection.wait_for_event().await;
                waited.map_err(|reason| Trouble(format!("{}: {reason}", self.servers[self.at])))?;
                connection
            }
            None => self.connect().await?,
        };
        let read = timeout(self.session_timeout(), connection.get_data(&self.path)).await;
        let read = read.unwrap_or_else(|_| Err("no response in time".to_owned()));
        let text = read.map_err(|reason| Trouble(format!("{}: {reason}", self.servers[self.at])))?;
        self.connection = Some(connection);
        Ok(text)
    }
}

impl DocumentSource for ZookeeperNode {
    async fn next(&mut self) -> Result<Option<Vec<u8>>, Trouble> {
        let read = self.read().await;
        if read.is_err() {
            self.at = (self.at + 1) % self.servers.len();
        }
        read.map(Some)
    }
}

/// A connection with an established session.
struct Connection {
    stream: TcpStream,
    /// Received bytes that are no whole message yet: waiting may be interrupted at any byte.
    received: Vec<u8>,
    session_timeout: Duration,
    most: usize,
}

/// A message to ZooKeeper.
struct Outgoing(Vec<u8>);

impl Outgoing {
    fn new() -> Outgoing {
        Outgoing(vec![0; 4])
    }

    fn int(mut self, number: i32) -> Outgoing {
        self.0.extend_from_slice(&number.to_be_bytes());
        self
    }

    fn long(mut self, number: i64) -> Outgoing {
        self.0.extend_from_slice(&number.to_be_bytes());
        self
    }

    fn bool(mut self, truth: bool) -> Outgoing {
        self.0.push(truth.into());
        self
    }

    /// Adds a text or a buffer. The settings limit its length.
    fn buffer(self, bytes: &[u8]) -> Outgoing {
        let mut with_length = self.int(i32::try_from(bytes.len()).unwrap_or_default());
        with_length.0.extend_from_slice(bytes);
        with_length
    }

    fn finished(mut self) -> Vec<u8> {
        let length = u32::try_from(self.0.len() - 4).unwrap_or_default();
        self.0[..4].copy_from_slice(&length.to_be_bytes());
        self.0
    }
}

/// The unread part of a message of ZooKeeper.
struct Incoming<'a>(&'a [u8]);

impl<'a> Incoming<'a> {
    fn take(&mut self, count: usize) -> Result<&'a [u8], String> {
        let (taken, rest) =
            self.0.split_at_checked(count).ok_or_else(|| "a message is incomplete".to_owned())?;
        self.0 = rest;
        Ok(taken)
    }

    fn int(&mut self) -> Result<i32, String> {
        let bytes = self.take(4)?;
        Ok(i32::from_be_bytes(bytes.try_into().unwrap_or_default()))
    }

    fn long(&mut self) -> Result<i64, String> {
        let bytes = self.take(8)?;
        Ok(i64::from_be_bytes(bytes.try_into().unwrap_or_default()))
    }

    /// Returns a buffer; a missing one has the length -1.
    fn buffer(&mut self) -> Result<&'a [u8], String> {
        let length = self.int()?;
        self.take(usize::try_from(length).unwrap_or(0))
    }
}

impl Connection {
    async fn open(
        server: &str,
        session_timeout: Duration,
        digest: &str,
        most: usize,
    ) -> Result<Connection, String> {
        let stream = TcpStream::connect(server).await.map_err(|error| error.to_string())?;
        let mut connection = Connection { stream, received: Vec::new(), session_timeout, most };
        let milliseconds = i32::try_from(session_timeout.as_millis()).unwrap_or(i32::MAX);
        // Protocol version, last seen transaction, timeout, session and its password: a new session. Not read-only.
        let hello = Outgoing::new().int(0).long(0).int(milliseconds).long(0).buffer(&[0; 16]).bool(false);
        connection.send(hello).await?;
        let message = connection.message().await?;
        let mut welcome = Incoming(&message);
        let (_version, granted) = (welcome.int()?, welcome.int()?);
        // The server decides on the timeout; 0 refuses the session.
        connection.session_timeout = match u64::try_from(granted) {
            Ok(0) | Err(_) => return Err("the server refuses a session".to_owned()),
            Ok(granted) => Duration::from_millis(granted).min(session_timeout),
        };
        if !digest.is_empty() {
            let login = Outgoing::new().int(AUTH_XID).int(AUTH).int(0).buffer(b"digest");
            connection.send(login.buffer(digest.as_bytes())).await?;
            connection.response(AUTH_XID).await?;
        }
        Ok(connection)
    }

    async fn send(&mut self, message: Outgoing) -> Result<(), String> {
        let sent = timeout(self.session_timeout, self.stream.write_all(&message.finished())).await;
        match sent {
            Ok(sent) => sent.map_err(|error| error.to_string()),
            Err(_) => Err("the server does not read".to_owned()),
        }
    }

    /// Returns the next whole message. Dropped at any time, it loses no byte.
    async fn message(&mut self) -> Result<Vec<u8>, String> {
        loop {
            if let Some((length, rest)) = self.received.split_first_chunk::<4>() {
                let length = u32::from_be_bytes(*length) as usize;
                if length > self.most + OVERHEAD {
                    let most = self.most;
                    return Err(format!(
                        "a message of {length} bytes is too long; the limit of a document is {most} bytes (`config_sources.document_bytes`)"
                    ));
                }
                if rest.len() >= length {
                    let message = rest[..length].to_vec();
                    self.received.drain(..4 + length);
                    return Ok(message);
                }
            }
            match self.stream.read_buf(&mut self.received).await {
                Ok(0) => return Err("the server closed the connection".to_owned()),
                Ok(_) => {}
                Err(error) => return Err(error.to_string()),
            }
        }
    }

    /// Returns the content of the response with this number, after its header. Events before it are outdated by it.
    async fn response(&mut self, xid: i32) -> Result<Vec<u8>, String> {
        loop {
            let message = self.message().await?;
            let mut rest = Incoming(&message);
            let (of, _transaction, error) = (rest.int()?, rest.long()?, rest.int()?);
            if of != xid {
                continue;
            }
            return match error {
                0 => Ok(rest.0.to_vec()),
                NO_NODE => Err("the node does not exist".to_owned()),
                NO_AUTH => {
                    Err("the node may not be read; check `config_sources.zookeeper.digest`".to_owned())
                }
                AUTH_FAILED => Err("the login failed; check `config_sources.zookeeper.digest`".to_owned()),
                other => Err(format!("error {other}")),
            };
        }
    }

    /// Reads a node, and sets a watch on it.
    async fn get_data(&mut self, path: &str) -> Result<Vec<u8>, String> {
        let question = Outgoing::new().int(READ_XID).int(GET_DATA).buffer(path.as_bytes()).bool(true);
        self.send(question).await?;
        let content = self.response(READ_XID).await?;
        let data = Incoming(&content).buffer()?;
        match data.len() > self.most {
            true => {
                Err(format!("the document exceeds {} bytes (`config_sources.document_bytes`)", self.most))
            }
            false => Ok(data.to_vec()),
        }
    }

    /// Waits for an event, which ends the watch. The session is kept alive by pings.
    async fn wait_for_event(&mut self) -> Result<(), String> {
        let third = self.session_timeout / 3;
        let mut has_asked = false;
        loop {
            match timeout(third, self.message()).await {
                Ok(message) => {
                    has_asked = false;
                    if Incoming(&message?).int()? == EVENT_XID {
                        return Ok(());
                    }
                }
                Err(_) if has_asked => return Err("the server is silent".to_owned()),
                Err(_) => {
                    self.send(Outgoing::new().int(PING_XID).int(PING)).await?;
                    has_asked = true;
                }
            }
        }
    }
}
