//! Options of TCP sockets that listen. Accepted connections inherit them from the kernel.

use std::io;
use std::os::fd::AsFd;
use std::time::Duration;

use socket2::{SockRef, TcpKeepalive};

use crate::socket_options::NumberOption;

const FAST_OPEN: NumberOption = NumberOption { level: libc::IPPROTO_TCP, name: libc::TCP_FASTOPEN };
const DEFER_ACCEPT: NumberOption = NumberOption { level: libc::IPPROTO_TCP, name: libc::TCP_DEFER_ACCEPT };

/// The options of a listener's sockets. An unset option keeps the socket's own value.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct TcpOptions {
    /// The time without data until the kernel probes the client.
    pub keepalive_idle: Option<Duration>,
    /// The time between two probes.
    pub keepalive_interval: Option<Duration>,
    /// The probes without a reply that end the connection.
    pub keepalive_probes: Option<u32>,
    /// The number of connections whose first packet has data before their handshake is complete (RFC 7413).
    pub fast_open: Option<u32>,
    /// How long the kernel keeps a connection back until its first data are there.
    pub defer_accept: Option<Duration>,
    /// How long sent data may stay unacknowledged.
    pub user_timeout: Option<Duration>,
}

impl TcpOptions {
    /// Sets the options of a listening socket.
    ///
    /// # Errors
    /// Returns the error of the operating system, with the option in its text.
    pub fn apply(&self, socket: &impl AsFd) -> io::Result<()> {
        let named = |option: &'static str| {
            move |error: io::Error| io::Error::new(error.kind(), format!("{option}: {error}"))
        };
        let options = SockRef::from(socket);
        if let Some(keepalive) = self.keepalive() {
            options.set_tcp_keepalive(&keepalive).map_err(named("SO_KEEPALIVE"))?;
        }
        if let Some(queue) = self.fast_open {
            FAST_OPEN.set(socket, queue).map_err(named("TCP_FASTOPEN"))?;
        }
        if let Some(time) = self.defer_accept {
            let seconds = u32::try_from(time.as_secs()).unwrap_or(u32::MAX);
            DEFER_ACCEPT.set(socket, seconds).map_err(named("TCP_DEFER_ACCEPT"))?;
        }
        if self.user_timeout.is_some() {
            options.set_tcp_user_timeout(self.user_timeout).map_err(named("TCP_USER_TIMEOUT"))?;
        }
        Ok(())
    }

    /// Returns the settings of probes; None if no option is about them.
    fn keepalive(&self) -> Option<TcpKeepalive> {
        if self.keepalive_idle.is_none()
            && self.keepalive_interval.is_none()
            && self.keepalive_probes.is_none()
        {
            return None;
        }
        let mut keepalive = TcpKeepalive::new();
        if let Some(idle) = self.keepalive_idle {
            keepalive = keepalive.with_time(idle);
        }
        if let Some(interval) = self.keepalive_interval {
            keepalive = keepalive.with_interval(interval);
        }
        if let Some(probes) = self.keepalive_probes {
            keepalive = keepalive.with_retries(probes);
        }
        Some(keepalive)
    }
}

#[cfg(test)]
mod tests {
    use std::io::{ErrorKind, Write};
    use std::net::{TcpListener, TcpStream};

    use super::*;

    #[test]
    fn accepted_connections_inherit_the_options() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let options = TcpOptions {
            keepalive_idle: Some(Duration::from_secs(61)),
            keepalive_interval: Some(Duration::from_secs(7)),
            keepalive_probes: Some(3),
            user_timeout: Some(Duration::from_millis(9_000)),
            fast_open: Some(16),
            defer_accept: None,
        };
        options.apply(&listener).unwrap();
        let _client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (accepted, _) = listener.accept().unwrap();
        let found = SockRef::from(&accepted);
        assert!(found.keepalive().unwrap());
        assert_eq!(found.tcp_keepalive_time().unwrap(), Duration::from_secs(61));
        assert_eq!(found.tcp_keepalive_interval().unwrap(), Duration::from_secs(7));
        assert_eq!(found.tcp_keepalive_retries().unwrap(), 3);
        assert_eq!(found.tcp_user_timeout().unwrap(), Some(Duration::from_millis(9_000)));
    }

    #[test]
    fn unset_options_keep_the_values_of_the_socket() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        SockRef::from(&listener).set_keepalive(true).unwrap();
        TcpOptions::default().apply(&listener).unwrap();
        assert!(SockRef::from(&listener).keepalive().unwrap());
    }

    /// A connection without data is in no queue of the program.
    #[test]
    fn deferred_connections_come_with_their_data() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        TcpOptions { defer_accept: Some(Duration::from_secs(30)), ..TcpOptions::default() }
            .apply(&listener)
            .unwrap();
        let mut silent = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        listener.set_nonblocking(true).unwrap();
        assert_eq!(listener.accept().unwrap_err().kind(), ErrorKind::WouldBlock);
        listener.set_nonblocking(false).unwrap();
        silent.write_all(b"GET").unwrap();
        let (_, peer) = listener.accept().unwrap();
        assert_eq!(peer, silent.local_addr().unwrap());
    }
}
