//! The server that takes lines.

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use sigma_net::Stream;
use sigma_net::tls::{Authorities, ClientSettings, ClientTls, Trust};
use tokio::io::AsyncWriteExt;
use tokio::net::{UdpSocket, lookup_host};
use tokio::sync::OnceCell;

use crate::batch::{Destination, Refusal, Sending};

/// Whether connections are encrypted, and whether the server is known to be the right one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Security {
    Cleartext,
    Unverified,
    Verified,
}

/// Where lines go.
pub(super) struct Server {
    host: Box<str>,
    port: u16,
    /// For connecting, and for sending.
    timeout: Duration,
    way: Way,
}

enum Way {
    Udp,
    Tcp {
        security: Security,
        /// Made with the first connection: it reads the system's certificates.
        tls: OnceCell<ClientTls>,
        /// Connections that wait for the next batch, at most so many.
        waiting: Mutex<Vec<Stream>>,
        pool_size: usize,
    },
}

impl Server {
    pub(super) fn tcp(
        host: &str,
        port: u16,
        security: Security,
        timeout: Duration,
        pool_size: usize,
    ) -> Server {
        let way = Way::Tcp { security, tls: OnceCell::new(), waiting: Mutex::default(), pool_size };
        if security == Security::Cleartext {
            tracing::warn!("syslog: entries are sent to {host}:{port} in the clear");
        }
        Server { host: host.into(), port, timeout, way }
    }

    pub(super) fn udp(host: &str, port: u16, timeout: Duration) -> Server {
        tracing::warn!("syslog: entries are sent to {host}:{port} in the clear");
        Server { host: host.into(), port, timeout, way: Way::Udp }
    }

    /// Everything within the time, or the error that says what took too long.
    async fn in_time<T>(
        &self,
        what: &str,
        work: impl Future<Output = Result<T, String>>,
    ) -> Result<T, String> {
        let (host, port) = (&self.host, self.port);
        let failure = |reason: &str| format!("failed to {what}: host[{host}] port[{port}] err: {reason}");
        match tokio::time::timeout(self.timeout, work).await {
            Ok(done) => done.map_err(|reason| failure(&reason)),
            Err(_) => Err(failure("timeout")),
        }
    }

    async fn addresses(&self) -> Result<Vec<SocketAddr>, String> {
        let found = lookup_host((&*self.host, self.port)).await.map_err(|error| error.to_string())?;
        let found: Vec<SocketAddr> = found.collect();
        if found.is_empty() { Err("the name has no address".to_owned()) } else { Ok(found) }
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

    /// A connection for one batch: one that waits and was not closed meanwhile, or a new one.
    async fn connection(
        &self,
        security: Security,
        tls: &OnceCell<ClientTls>,
        waiting: &Mutex<Vec<Stream>>,
    ) -> Result<Stream, String> {
        let kept = {
            let mut waiting = lock(waiting);
            std::iter::from_fn(|| waiting.pop()).find_map(|mut stream| stream.is_quiet().then_some(stream))
        };
        if let Some(stream) = kept {
            return Ok(stream);
        }
        let stream = self.in_time("connect to TCP server", self.connect()).await?;
        if security == Security::Cleartext {
            return Ok(stream);
        }
        let shaken = async {
            let tls = tls.get_or_try_init(|| async { client(security) }).await?;
            tls.shake(stream, &self.host).await.map_err(|error| error.to_string())
        };
        self.in_time("perform TLS handshake to TCP server", shaken).await
    }

    async fn send_datagrams(&self, lines: &[Vec<u8>]) -> Result<(), Refusal> {
        let bound = async {
            let address = self.addresses().await?[0];
            let own: SocketAddr = match address {
                SocketAddr::V4(_) => (Ipv4Addr::UNSPECIFIED, 0).into(),
                SocketAddr::V6(_) => (Ipv6Addr::UNSPECIFIED, 0).into(),
            };
            let socket = UdpSocket::bind(own).await.map_err(|error| error.to_string())?;
            socket.connect(address).await.map_err(|error| error.to_string())?;
            Ok(socket)
        };
        let socket = self.in_time("connect to UDP server", bound).await?;
        let mut too_long = 0;
        for (at, line) in lines.iter().enumerate() {
            // A datagram ends by itself.
            let line = line.strip_suffix(b"\n").unwrap_or(line);
            let sent = self.in_time("send data to UDP server", async {
                match socket.send(line).await {
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
        if too_long > 0 {
            // Another attempt would change nothing.
            tracing::error!(too_long, "syslog: lines that fit into no datagram were dropped");
        }
        Ok(())
    }
}

impl Destination for Server {
    fn send<'s>(&'s self, lines: &'s [Vec<u8>]) -> Sending<'s> {
        Box::pin(async move {
            let Way::Tcp { security, tls, waiting, pool_size } = &self.way else {
                return self.send_datagrams(lines).await;
            };
            let mut stream = self.connection(*security, tls, waiting).await?;
            let bytes = lines.concat();
            let sent = async {
                stream.write_all(&bytes).await.map_err(|error| error.to_string())?;
                stream.flush().await.map_err(|error| error.to_string())
            };
            self.in_time("send data to TCP server", sent).await?;
            let mut waiting = lock(waiting);
            if waiting.len() < *pool_size {
                waiting.push(stream);
            }
            Ok(())
        })
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

fn lock(waiting: &Mutex<Vec<Stream>>) -> MutexGuard<'_, Vec<Stream>> {
    // A panic while it was held leaves connections, which are looked at before they are used.
    waiting.lock().unwrap_or_else(PoisonError::into_inner)
}
