//! The destination of a connection before a redirection of the kernel.

use std::net::SocketAddr;
use std::os::fd::AsFd;

use rustix::net::sockopt;
use socket2::SockRef;

/// Returns the original destination of a TCP connection, whose family the local address tells.
pub(crate) fn of(socket: &impl AsFd) -> Option<SocketAddr> {
    match SockRef::from(socket).local_addr().ok()?.as_socket()? {
        SocketAddr::V4(_) => sockopt::ip_original_dst(socket).ok().map(SocketAddr::V4),
        SocketAddr::V6(_) => sockopt::ipv6_original_dst(socket).ok().map(SocketAddr::V6),
    }
}
