//! Servers that receive bytes over TCP, TLS or UDP from plugins. All of it runs on the control thread, outside the
//! requests.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::Value;
use sigma_net::Stream;
use sigma_net::tls::{Authorities, ClientSettings, ClientTls, Trust, is_server_name};
use sigma_plugin::Node;
use sigma_schema::Problem;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{UdpSocket, lookup_host};
use tokio::sync::OnceCell;
use tokio::time::Instant;

use crate::batch::Refusal;
use crate::cleartext::is_remote;
use crate::log_throttle::LogThrottle;

/// A server's name or address, an IPv6 address without brackets.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Deserialize, JsonSchema)]
#[serde(try_from = "String")]
pub struct Host(#[schemars(with = "String")] Box<str>);

impl TryFrom<String> for Host {
    type Error = String;

    fn try_from(text: String) -> Result<Host, String> {
        let host = text.trim_start_matches('[').trim_end_matches(']');
        if host.parse::<IpAddr>().is_err() && !is_server_name(host) {
            return Err(format!("host: `{text}` is neither a name nor an address"));
        }
        Ok(Host(host.into()))
    }
}

impl fmt::Display for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Where a server is.
pub struct ServerLocation {
    /// The plugin that sends.
    pub plugin: &'static str,
    /// The host name or address.
    pub host: Host,
    /// The port.
    pub port: u16,
    /// For each step: connecting, the handshake, sending.
    pub timeout: Duration,
}

/// An operation on a server, as the error log names it.
#[derive(Debug, Clone, Copy)]
enum Act {
    ConnectTcp,
    Shake,
    SendTcp,
    Receive,
    ConnectUdp,
    SendUdp,
}

impl Act {
    /// Returns the failed operation, up to the reason. APISIX has no space there for datagrams.
    fn words(self) -> (&'static str, &'static str) {
        match self {
            Act::ConnectTcp => ("connect to TCP server", "err: "),
            Act::Shake => ("perform TLS handshake to TCP server", "err: "),
            Act::SendTcp => ("send data to TCP server", "err: "),
            Act::Receive => ("receive data from TCP server", "err: "),
            Act::ConnectUdp => ("connect to UDP server", "err: "),
            Act::SendUdp => ("send data to UDP server", "err:"),
        }
    }
}

impl ServerLocation {
    /// Does it within the time, or says where and why it failed.
    async fn in_time<T>(&self, act: Act, work: impl Future<Output = Result<T, String>>) -> Result<T, String> {
        let ((what, err), ServerLocation { host: Host(host), port, .. }) = (act.words(), self);
        let failure = |reason: &str| format!("failed to {what}: host[{host}] port[{port}] {err}{reason}");
        match tokio::time::timeout(self.timeout, work).await {
            Ok(done) => done.map_err(|reason| failure(&reason)),
            Err(_) => Err(failure("timeout")),
        }
    }

    async fn addresses(&self) -> Result<Vec<SocketAddr>, String> {
        let found = lookup_host((&*self.host.0, self.port)).await.map_err(|error| error.to_string())?;
        let found: Vec<SocketAddr> = found.collect();
        if found.is_empty() { Err("the host name has no address".to_owned()) } else { Ok(found) }
    }

    async fn connect(&self) -> Result<Stream, String> {
        let mut reason = String::new();
        for address in self.addresses().await? {
            match Stream::dial_tcp(address).await {
                Ok(stream) => return Ok(stream),
                Err(error) => reason = error.to_string(),
            }
        }
        Err(reason)
    }

    fn warn_of_cleartext(&self) {
        let ServerLocation { plugin, host: Host(host), port, .. } = self;
        if is_remote(host) {
            tracing::warn!("{plugin}: entries are sent to {host}:{port} in cleartext");
        }
    }
}

/// The encryption of connections, and the verification of the server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Security {
    /// No encryption.
    Cleartext,
    /// TLS without verification of the server's certificate.
    Unverified,
    /// TLS; the certificate must be valid for the host.
    Verified,
}

impl Security {
    /// Returns the value for `tls` and `ssl_verify`.
    pub fn of(tls: bool, verify: bool) -> Security {
        match (tls, verify) {
            (false, _) => Security::Cleartext,
            (true, false) => Security::Unverified,
            (true, true) => Security::Verified,
        }
    }
}

/// Returns warnings about `tls`, `ssl_verify` and fields that are useful only with `tls`.
pub fn warnings(conf: &Value, with_tls: &[&str]) -> Vec<Problem> {
    let mut found = Vec::new();
    let is = |field: &str| conf.get(field) == Some(&Value::Bool(true));
    if is("tls") && !is("ssl_verify") {
        let message = "another server can impersonate the receiver and get the entries";
        found.push(Problem::new("tls", "unverified", message).hint("set `ssl_verify` to true"));
    }
    for field in with_tls.iter().filter(|field| !is("tls") && conf.get(**field).is_some_and(says)) {
        let message = "it has no effect: the entries are sent in cleartext";
        found.push(Problem::new(*field, "without_effect", message).hint("set `tls` to true"));
    }
    found
}

fn says(value: &Value) -> bool {
    value != &Value::Bool(false)
}

/// A server that takes bytes over TCP.
pub struct TcpServer {
    place: ServerLocation,
    security: Security,
    /// The name that the server has in TLS.
    server_name: Box<str>,
    /// Made with the first connection: it reads the system's certificates.
    tls: OnceCell<ClientTls>,
    /// Connections that wait for the next batch, at most so many, and since when.
    waiting: Mutex<Vec<(Instant, Stream)>>,
    pool_size: usize,
    /// For how long one may wait.
    idle: Duration,
}

impl TcpServer {
    /// A server with a new connection for each batch.
    pub fn new(place: ServerLocation, security: Security) -> TcpServer {
        if security == Security::Cleartext {
            place.warn_of_cleartext();
        }
        TcpServer::quiet(place, security)
    }

    /// The same, without a warning.
    pub fn quiet(place: ServerLocation, security: Security) -> TcpServer {
        let server_name = place.host.0.clone();
        let (tls, waiting) = (OnceCell::new(), Mutex::default());
        TcpServer { place, security, server_name, tls, waiting, pool_size: 0, idle: Duration::MAX }
    }

    /// Keeps so many connections for the next batches.
    pub fn keeping(self, pool_size: usize) -> TcpServer {
        TcpServer { pool_size, ..self }
    }

    /// Keeps connections for no longer than this.
    pub fn keeping_for(self, pool_size: usize, idle: Duration) -> TcpServer {
        TcpServer { idle, ..self.keeping(pool_size) }
    }

    /// Sets the encryption of connections, which overrides the security.
    pub fn encrypted_by(self, tls: ClientTls) -> TcpServer {
        TcpServer { tls: OnceCell::new_with(Some(tls)), ..self }
    }

    /// Sets the name of the server in TLS, if it is not its host.
    pub fn named(self, server_name: &str) -> TcpServer {
        TcpServer { server_name: server_name.into(), ..self }
    }

    /// Returns a waiting connection that was not closed meanwhile.
    pub fn kept(&self) -> Option<Stream> {
        let mut waiting = lock(&self.waiting);
        waiting.retain(|(since, _)| since.elapsed() < self.idle);
        std::iter::from_fn(|| waiting.pop())
            .find_map(|(_, mut stream)| stream.is_quiet_now().then_some(stream))
    }

    /// Makes a new connection.
    pub async fn connect(&self) -> Result<Stream, String> {
        let stream = self.place.in_time(Act::ConnectTcp, self.place.connect()).await?;
        if self.security == Security::Cleartext {
            return Ok(stream);
        }
        let shaken = async {
            let tls = self.tls.get_or_try_init(|| async { client(self.security) }).await?;
            tls.shake(stream, &self.server_name).await.map_err(|error| error.to_string())
        };
        self.place.in_time(Act::Shake, shaken).await
    }

    /// Sends all of it on one connection.
    pub async fn send(&self, bytes: &[u8]) -> Result<(), Refusal> {
        let mut stream = match self.kept() {
            Some(stream) => stream,
            None => self.connect().await?,
        };
        self.write(&mut stream, bytes).await?;
        if self.pool_size == 0 {
            self.close(stream).await;
        } else {
            self.keep(stream);
        }
        Ok(())
    }

    /// Writes it to a connection.
    pub async fn write(&self, stream: &mut Stream, bytes: &[u8]) -> Result<(), String> {
        let sent = async {
            stream.write_all(bytes).await.map_err(|error| error.to_string())?;
            stream.flush().await.map_err(|error| error.to_string())
        };
        self.place.in_time(Act::SendTcp, sent).await
    }

    /// Sends a message, and receives another one of at most `longest` bytes; both begin with their length in four
    /// bytes, which is not part of the argument and the result.
    pub async fn ask(&self, stream: &mut Stream, message: &[u8], longest: usize) -> Result<Vec<u8>, String> {
        let length = u32::try_from(message.len()).map_err(|_| "the message is too long".to_owned())?;
        self.write(stream, &[&length.to_be_bytes(), message].concat()).await?;
        let received = async {
            let length = stream.read_u32().await.map_err(|error| error.to_string())? as usize;
            if length > longest {
                return Err(format!("the response is longer than {longest} bytes"));
            }
            let mut answer = Vec::new();
            // Memory grows with the received bytes, regardless of the announced length.
            stream.take(length as u64).read_to_end(&mut answer).await.map_err(|error| error.to_string())?;
            match answer.len() == length {
                true => Ok(answer),
                false => Err("the connection ended during a response".to_owned()),
            }
        };
        self.place.in_time(Act::Receive, received).await
    }

    /// Keeps a connection for later.
    pub fn keep(&self, stream: Stream) {
        let mut waiting = lock(&self.waiting);
        if waiting.len() < self.pool_size {
            waiting.push((Instant::now(), stream));
        }
    }

    /// Ends a connection whose bytes have left. A server of TLS may have sent tickets: closing with unread bytes
    /// resets the connection, and the server may lose the bytes that it did not read. So they are read until it
    /// closes, too, but for no longer than the timeout of a step.
    async fn close(&self, mut stream: Stream) {
        let closed = async {
            stream.shutdown().await?;
            let mut rest = [0; 1024];
            while self.security != Security::Cleartext && stream.read(&mut rest).await? > 0 {}
            std::io::Result::Ok(())
        };
        // The entries are delivered however the connection ends.
        let _ = tokio::time::timeout(self.place.timeout, closed).await;
    }
}

fn client(security: Security) -> Result<ClientTls, String> {
    let trust = match security {
        Security::Verified => Trust::Authorities(Authorities::system().map_err(|error| error.to_string())?),
        Security::Unverified | Security::Cleartext => Trust::Anyone,
    };
    let settings = ClientSettings { trust, ..ClientSettings::default() };
    ClientTls::new(settings).map_err(|error| error.to_string())
}

fn lock<T>(waiting: &Mutex<T>) -> MutexGuard<'_, T> {
    // A panic while it was held leaves connections, which are looked at before they are used.
    waiting.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A server that takes datagrams.
pub struct UdpServer {
    place: ServerLocation,
    /// Gets the lost batch.
    node: Arc<Node>,
    complaint: LogThrottle,
}

impl UdpServer {
    /// A server that has no socket yet.
    pub fn new(place: ServerLocation, node: &Arc<Node>) -> UdpServer {
        place.warn_of_cleartext();
        UdpServer { place, node: Arc::clone(node), complaint: LogThrottle::new() }
    }

    async fn socket(&self) -> Result<UdpSocket, String> {
        let address = self.place.addresses().await?[0];
        let own: SocketAddr = match address {
            SocketAddr::V4(_) => (Ipv4Addr::UNSPECIFIED, 0).into(),
            SocketAddr::V6(_) => (Ipv6Addr::UNSPECIFIED, 0).into(),
        };
        let socket = UdpSocket::bind(own).await.map_err(|error| error.to_string())?;
        socket.connect(address).await.map_err(|error| error.to_string())?;
        Ok(socket)
    }

    /// Sends these datagrams. A text that is too long for a datagram is dropped: another attempt would change
    /// nothing. A refusal says how many datagrams have left.
    pub async fn send(&self, datagrams: impl Iterator<Item = &[u8]>) -> Result<(), Refusal> {
        let socket = self.place.in_time(Act::ConnectUdp, self.socket()).await?;
        let mut too_long = 0;
        for (at, datagram) in datagrams.enumerate() {
            let sent = self.place.in_time(Act::SendUdp, async {
                match socket.send(datagram).await {
                    Err(error) if error.raw_os_error() == Some(rustix::io::Errno::MSGSIZE.raw_os_error()) => {
                        Ok(false)
                    }
                    sent => sent.map(|_| true).map_err(|error| error.to_string()),
                }
            });
            match sent.await {
                Ok(true) => {}
                Ok(false) => too_long += 1,
                Err(reason) => return Err(Refusal { reason, taken: at }),
            }
        }
        self.node.lose_lines(too_long);
        if too_long > 0
            && let Some(left_out) = self.complaint.due()
        {
            let plugin = self.place.plugin;
            tracing::error!(left_out, too_long, "{plugin}: entries too large for a datagram were dropped");
        }
        Ok(())
    }
}
