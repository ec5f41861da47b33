//! `recvmmsg` and `sendmmsg`, which the standard library lacks. Their pointers lead to the stack of the call or to
//! the batch, which outlive it.

use std::io;
use std::mem::{MaybeUninit, size_of};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr;

use libc::{c_int, c_void, cmsghdr, iovec, mmsghdr, msghdr, sockaddr_storage, socklen_t};
use socket2::{SockAddr, SockAddrStorage, Socket};

use super::{BATCH, DatagramAddresses, Received};

/// The buffer for the only control message: the local address of a datagram.
const CONTROL_BYTES: usize = 64;

/// Control messages, with the alignment of their header.
#[derive(Clone, Copy)]
#[repr(C, align(8))]
struct Control([u8; CONTROL_BYTES]);

const EMPTY: Control = Control([0; CONTROL_BYTES]);

/// The buffers of one receive call, and the received datagrams.
pub struct Batch {
    /// One slot after the other. Pages beyond the largest datagram are never touched.
    bytes: Box<[u8]>,
    slot: usize,
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
        let mut names = [const { MaybeUninit::<sockaddr_storage>::uninit() }; BATCH];
        let mut controls = [EMPTY; BATCH];
        let mut vectors = [iovec { iov_base: ptr::null_mut(), iov_len: 0 }; BATCH];
        let mut headers = [mmsghdr { msg_hdr: blank(), msg_len: 0 }; BATCH];
        let slots = self.bytes.chunks_exact_mut(self.slot);
        for ((((header, vector), slot), name), control) in
            headers.iter_mut().zip(&mut vectors).zip(slots).zip(&mut names).zip(&mut controls)
        {
            *vector = iovec { iov_base: slot.as_mut_ptr().cast(), iov_len: slot.len() };
            let header = &mut header.msg_hdr;
            header.msg_iov = vector;
            header.msg_iovlen = 1;
            header.msg_name = name.as_mut_ptr().cast();
            header.msg_namelen = size_of::<sockaddr_storage>() as socklen_t;
            header.msg_control = control.0.as_mut_ptr().cast();
            header.msg_controllen = CONTROL_BYTES;
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
            self.froms[index] = name_of(&header.msg_hdr);
            self.tos[index] = local_of(&header.msg_hdr);
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

/// Returns the address that the kernel wrote into a header.
#[expect(unsafe_code)]
fn name_of(header: &msghdr) -> Option<SocketAddr> {
    if header.msg_namelen == 0 {
        return None;
    }
    // SAFETY: `msg_name` is the storage set by `receive`, and the length says how many bytes the kernel has written.
    // All bit patterns are valid.
    let name = unsafe {
        let mut storage = SockAddrStorage::zeroed();
        let len = (header.msg_namelen as usize).min(size_of::<sockaddr_storage>());
        ptr::copy_nonoverlapping(header.msg_name.cast::<u8>(), ptr::from_mut(&mut storage).cast::<u8>(), len);
        SockAddr::new(storage, header.msg_namelen)
    };
    name.as_socket()
}

/// Returns the destination address of a datagram, if the kernel reports it.
#[expect(unsafe_code)]
fn local_of(header: &msghdr) -> Option<IpAddr> {
    // SAFETY: `msg_control` is the buffer set by `receive`, aligned and zeroed. The kernel has written whole messages
    // and their length. The macros stay within that length; data is copied unaligned after a check of its length.
    unsafe {
        let mut message = libc::CMSG_FIRSTHDR(header);
        while let Some(found) = message.as_ref() {
            let data = libc::CMSG_DATA(message);
            let has = |bytes: usize| found.cmsg_len >= libc::CMSG_LEN(bytes as u32) as usize;
            match (found.cmsg_level, found.cmsg_type) {
                (libc::IPPROTO_IP, libc::IP_PKTINFO) if has(size_of::<libc::in_pktinfo>()) => {
                    // For a broadcast it is the address of the interface, which can be the source of a response.
                    let info: libc::in_pktinfo = ptr::read_unaligned(data.cast());
                    return Some(Ipv4Addr::from(u32::from_be(info.ipi_spec_dst.s_addr)).into());
                }
                (libc::IPPROTO_IPV6, libc::IPV6_PKTINFO) if has(size_of::<libc::in6_pktinfo>()) => {
                    let info: libc::in6_pktinfo = ptr::read_unaligned(data.cast());
                    let addr = Ipv6Addr::from(info.ipi6_addr.s6_addr);
                    // A multicast address cannot be a source.
                    return (!addr.is_multicast()).then_some(addr.into());
                }
                _ => message = libc::CMSG_NXTHDR(header, message),
            }
        }
    }
    None
}

/// Writes the source address of a datagram; returns the number of bytes.
#[expect(unsafe_code)]
fn write_local(control: &mut Control, local: IpAddr) -> usize {
    fn put<T>(control: &mut Control, level: c_int, kind: c_int, data: T) -> usize {
        let bytes = size_of::<T>() as u32;
        // SAFETY: both only compute.
        let (len, space) = unsafe { (libc::CMSG_LEN(bytes) as usize, libc::CMSG_SPACE(bytes) as usize) };
        assert!(space <= CONTROL_BYTES, "a control message has its room");
        let message: *mut cmsghdr = control.0.as_mut_ptr().cast();
        // SAFETY: the buffer has the header's alignment and, as asserted, room for the header and the data.
        unsafe {
            (*message).cmsg_level = level;
            (*message).cmsg_type = kind;
            (*message).cmsg_len = len;
            ptr::write_unaligned(libc::CMSG_DATA(message).cast(), data);
        }
        space
    }
    match local {
        IpAddr::V4(ip) => {
            let spec = libc::in_addr { s_addr: u32::from(ip).to_be() };
            let any = libc::in_addr { s_addr: 0 };
            let info = libc::in_pktinfo { ipi_ifindex: 0, ipi_spec_dst: spec, ipi_addr: any };
            put(control, libc::IPPROTO_IP, libc::IP_PKTINFO, info)
        }
        IpAddr::V6(ip) => {
            let addr = libc::in6_addr { s6_addr: ip.octets() };
            let info = libc::in6_pktinfo { ipi6_addr: addr, ipi6_ifindex: 0 };
            put(control, libc::IPPROTO_IPV6, libc::IPV6_PKTINFO, info)
        }
    }
}

/// See [`super::DatagramSocket::send`].
pub(super) fn send<'d>(
    socket: BorrowedFd<'_>,
    way: Option<DatagramAddresses>,
    datagrams: impl IntoIterator<Item = &'d [u8]>,
) -> io::Result<usize> {
    let name = way.map(|way| SockAddr::from(way.peer));
    let mut control = EMPTY;
    let control_len = way.and_then(|way| way.local).map_or(0, |local| write_local(&mut control, local));
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
#[expect(unsafe_code)]
pub(crate) fn tell_local_addr(socket: &Socket, addr: SocketAddr) -> io::Result<()> {
    let (level, option) = match addr {
        SocketAddr::V4(_) => (libc::IPPROTO_IP, libc::IP_PKTINFO),
        SocketAddr::V6(_) => (libc::IPPROTO_IPV6, libc::IPV6_RECVPKTINFO),
    };
    let on: c_int = 1;
    let len = size_of::<c_int>() as socklen_t;
    // SAFETY: the value is an int, as these options require, and lives until after the call.
    match unsafe { libc::setsockopt(socket.as_raw_fd(), level, option, ptr::from_ref(&on).cast(), len) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}
