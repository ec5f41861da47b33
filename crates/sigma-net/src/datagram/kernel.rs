//! `recvmmsg` and `sendmmsg`, which the standard library lacks. Their pointers lead to the stack of the call or to
//! the batch, which outlive it.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr;

use libc::{c_void, iovec, mmsghdr, msghdr, socklen_t};
use socket2::{SockAddr, Socket};

use super::control::{Control, Name};
use super::{BATCH, DatagramAddresses, Received};
use crate::socket_options::NumberOption;

/// The buffers of one receive call, and the received datagrams.
pub struct Batch {
    /// One slot after the other. Pages beyond the largest datagram are never touched.
    bytes: Box<[u8]>,
    slot: usize,
    names: Box<[Name; BATCH]>,
    froms: Box<[Option<SocketAddr>; BATCH]>,
    tos: Box<[Option<IpAddr>; BATCH]>,
    /// The length of each, and whether it was cut.
    lens: [(usize, bool); BATCH],
    len: usize,
}

impl Batch {
    /// Returns buffers for datagrams of this size.
    pub fn new(datagram_bytes: usize) -> Batch {
        let slot = datagram_bytes.max(1);
        Batch {
            bytes: vec![0; slot * BATCH].into(),
            slot,
            names: Box::new([Name::EMPTY; BATCH]),
            froms: Box::new([None; BATCH]),
            tos: Box::new([None; BATCH]),
            lens: [(0, false); BATCH],
            len: 0,
        }
    }

    /// Returns the size of the largest datagram that fits.
    pub fn datagram_bytes(&self) -> usize {
        self.slot
    }

    /// Returns the number of received datagrams.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns true if no datagram was received.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns the received datagrams.
    pub fn iter(&self) -> impl Iterator<Item = Received<'_>> {
        let slots = self.bytes.chunks_exact(self.slot).zip(&self.lens);
        slots.zip(&*self.froms).zip(&*self.tos).take(self.len).map(|(((slot, (len, is_cut)), from), to)| {
            Received { from: *from, to: *to, bytes: &slot[..*len], is_cut: *is_cut }
        })
    }

    /// Receives the waiting datagrams of the socket.
    #[expect(unsafe_code)]
    pub(super) fn receive(&mut self, socket: BorrowedFd<'_>) -> io::Result<()> {
        self.len = 0;
        let mut controls = [Control::EMPTY; BATCH];
        let mut vectors = [iovec { iov_base: ptr::null_mut(), iov_len: 0 }; BATCH];
        let mut headers = [mmsghdr { msg_hdr: blank(), msg_len: 0 }; BATCH];
        let slots = self.bytes.chunks_exact_mut(self.slot);
        for ((((header, vector), slot), name), control) in
            headers.iter_mut().zip(&mut vectors).zip(slots).zip(&mut *self.names).zip(&mut controls)
        {
            *vector = iovec { iov_base: slot.as_mut_ptr().cast(), iov_len: slot.len() };
            let header = &mut header.msg_hdr;
            header.msg_iov = vector;
            header.msg_iovlen = 1;
            header.msg_name = name.0.as_mut_ptr().cast();
            header.msg_namelen = name.0.len() as socklen_t;
            header.msg_control = control.0.as_mut_ptr().cast();
            header.msg_controllen = control.0.len();
        }
        // SAFETY: there are BATCH headers, and each points to its own name, vector with its slot, and control buffer,
        // with their lengths; all of them live until after the call.
        let received = unsafe {
            libc::recvmmsg(
                socket.as_raw_fd(),
                headers.as_mut_ptr(),
                BATCH as u32,
                libc::MSG_DONTWAIT,
                ptr::null_mut(),
            )
        };
        self.len = usize::try_from(received).map_err(|_| io::Error::last_os_error())?;
        for (index, header) in headers.iter().enumerate().take(self.len) {
            let is_cut = header.msg_hdr.msg_flags & libc::MSG_TRUNC != 0;
            self.lens[index] = ((header.msg_len as usize).min(self.slot), is_cut);
            self.froms[index] = self.names[index].addr(header.msg_hdr.msg_namelen as usize);
            self.tos[index] = controls[index].local(header.msg_hdr.msg_controllen);
        }
        Ok(())
    }
}

impl std::fmt::Debug for Batch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Batch").field("slot", &self.slot).field("len", &self.len).finish_non_exhaustive()
    }
}

/// Returns an empty header.
fn blank() -> msghdr {
    msghdr {
        msg_name: ptr::null_mut(),
        msg_namelen: 0,
        msg_iov: ptr::null_mut(),
        msg_iovlen: 0,
        msg_control: ptr::null_mut(),
        msg_controllen: 0,
        msg_flags: 0,
    }
}

/// See [`super::DatagramSocket::send`].
pub(super) fn send<'d>(
    socket: BorrowedFd<'_>,
    way: Option<DatagramAddresses>,
    datagrams: impl IntoIterator<Item = &'d [u8]>,
) -> io::Result<usize> {
    let name = way.map(|way| SockAddr::from(way.peer));
    let mut control = Control::EMPTY;
    let control_len = way.and_then(|way| way.local).map_or(0, |local| control.write_local(local));
    let mut shared = blank();
    if let Some(name) = &name {
        shared.msg_name = name.as_ptr().cast::<c_void>().cast_mut();
        shared.msg_namelen = name.len();
    }
    if control_len > 0 {
        shared.msg_control = control.0.as_mut_ptr().cast();
        shared.msg_controllen = control_len;
    }
    let (mut left, mut sent) = (datagrams.into_iter(), 0);
    loop {
        let mut vectors = [iovec { iov_base: ptr::null_mut(), iov_len: 0 }; BATCH];
        let mut headers = [mmsghdr { msg_hdr: shared, msg_len: 0 }; BATCH];
        let mut count = 0;
        let slots = headers.iter_mut().zip(&mut vectors);
        for ((header, vector), datagram) in slots.zip(&mut left) {
            *vector = iovec { iov_base: datagram.as_ptr().cast_mut().cast(), iov_len: datagram.len() };
            header.msg_hdr.msg_iov = vector;
            header.msg_hdr.msg_iovlen = 1;
            count += 1;
        }
        match send_batch(socket, &mut headers[..count]) {
            Ok(some) => sent += some,
            // The error is about the first datagram that was not sent.
            Err(error) if sent == 0 => return Err(error),
            Err(_) => return Ok(sent),
        }
        if count < BATCH || sent % BATCH != 0 {
            return Ok(sent);
        }
    }
}

/// Sends the datagrams of the headers; returns the number sent.
#[expect(unsafe_code)]
fn send_batch(socket: BorrowedFd<'_>, headers: &mut [mmsghdr]) -> io::Result<usize> {
    if headers.is_empty() {
        return Ok(0);
    }
    // SAFETY: only `send` makes these headers. Each points to a vector with a borrowed datagram, and all of them to
    // one name and one control message or to none. The kernel only reads them, and all live until after the call.
    let sent = unsafe {
        libc::sendmmsg(socket.as_raw_fd(), headers.as_mut_ptr(), headers.len() as u32, libc::MSG_DONTWAIT)
    };
    usize::try_from(sent).map_err(|_| io::Error::last_os_error())
}

/// Makes a socket of the family of `addr` report the local address of each datagram.
pub(crate) fn tell_local_addr(socket: &Socket, addr: SocketAddr) -> io::Result<()> {
    let option = match addr {
        SocketAddr::V4(_) => NumberOption { level: libc::IPPROTO_IP, name: libc::IP_PKTINFO },
        SocketAddr::V6(_) => NumberOption { level: libc::IPPROTO_IPV6, name: libc::IPV6_RECVPKTINFO },
    };
    option.set(socket, 1)
}
