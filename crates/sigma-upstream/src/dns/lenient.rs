//! DNS responses with malformed records.
//!
//! The resolver rejects the whole response if it cannot parse one record. The sockets in this module give each
//! malformed record a type that the resolver ignores. A message keeps its length, and valid records keep their
//! offset: names in a message refer to offsets.

use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use hickory_resolver::net::runtime::iocompat::AsyncIoTokioAsStd;
use hickory_resolver::net::runtime::{
    DnsUdpSocket, RuntimeProvider, TokioHandle, TokioRuntimeProvider, TokioTime,
};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpStream, UdpSocket};

/// Bytes of a message's header (RFC 1035 §4.1.1).
const HEADER: usize = 12;

/// Bytes of a record after its name and before its data: type, class, TTL and length.
const FIXED: usize = 10;

/// The longest name in a message (RFC 1035 §2.3.4).
const LONGEST_NAME: usize = 255;

/// The class of the Internet. The resolver takes no other, and rejects a response with one.
const IN: u16 = 1;

const A: u16 = 1;
const AAAA: u16 = 28;
const SRV: u16 = 33;

/// A type for private use (RFC 6895 §3.1). The resolver reads its data as bytes and ignores it.
const LEFT_OUT: u16 = 0xff00;

/// The runtime of a resolver whose sockets leave out malformed records.
#[derive(Clone, Default)]
pub(super) struct Lenient(TokioRuntimeProvider);

type Opening<S> = Pin<Box<dyn Future<Output = io::Result<S>> + Send>>;

impl RuntimeProvider for Lenient {
    type Handle = TokioHandle;
    type Timer = TokioTime;
    type Udp = LenientUdp;
    type Tcp = AsyncIoTokioAsStd<LenientTcp>;

    fn create_handle(&self) -> TokioHandle {
        self.0.create_handle()
    }

    fn connect_tcp(
        &self,
        server: SocketAddr,
        local: Option<SocketAddr>,
        timeout: Option<Duration>,
    ) -> Opening<Self::Tcp> {
        let connecting = self.0.connect_tcp(server, local, timeout);
        Box::pin(async move {
            let AsyncIoTokioAsStd(stream) = connecting.await?;
            Ok(AsyncIoTokioAsStd(LenientTcp {
                stream,
                server,
                message: Vec::new(),
                given: 0,
                is_whole: false,
            }))
        })
    }

    fn bind_udp(&self, local: SocketAddr, server: SocketAddr) -> Opening<LenientUdp> {
        let binding = self.0.bind_udp(local, server);
        Box::pin(async move { binding.await.map(LenientUdp) })
    }
}

/// A socket for datagrams.
pub(super) struct LenientUdp(UdpSocket);

impl DnsUdpSocket for LenientUdp {
    type Time = TokioTime;

    fn poll_recv_from(&self, cx: &mut Context<'_>, buf: &mut [u8]) -> Poll<io::Result<(usize, SocketAddr)>> {
        let (len, server) = ready!(DnsUdpSocket::poll_recv_from(&self.0, cx, buf))?;
        leave_out_of(server, &mut buf[..len]);
        Poll::Ready(Ok((len, server)))
    }

    fn poll_send_to(&self, cx: &mut Context<'_>, buf: &[u8], target: SocketAddr) -> Poll<io::Result<usize>> {
        DnsUdpSocket::poll_send_to(&self.0, cx, buf, target)
    }
}

/// A connection. It reads whole messages, each after its length in two bytes (RFC 1035 §4.2.2).
pub(super) struct LenientTcp {
    stream: TcpStream,
    server: SocketAddr,
    /// The length and the message that follows it.
    message: Vec<u8>,
    given: usize,
    is_whole: bool,
}

impl LenientTcp {
    /// Returns the missing bytes of the length, or of the message.
    fn missing(&self) -> usize {
        match self.message.first_chunk() {
            None => 2 - self.message.len(),
            Some(length) => 2 + usize::from(u16::from_be_bytes(*length)) - self.message.len(),
        }
    }
}

impl AsyncRead for LenientTcp {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        out: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = &mut *self;
        while !this.is_whole {
            let mut piece = [0; 2048];
            let room = this.missing().min(piece.len());
            let mut piece = ReadBuf::new(&mut piece[..room]);
            ready!(Pin::new(&mut this.stream).poll_read(cx, &mut piece))?;
            if piece.filled().is_empty() {
                return Poll::Ready(Ok(()));
            }
            this.message.extend_from_slice(piece.filled());
            if this.message.len() >= 2 && this.missing() == 0 {
                this.is_whole = true;
                leave_out_of(this.server, &mut this.message[2..]);
            }
        }
        let rest = &this.message[this.given..];
        let rest = &rest[..rest.len().min(out.remaining())];
        out.put_slice(rest);
        this.given += rest.len();
        if this.given == this.message.len() {
            this.message.clear();
            (this.given, this.is_whole) = (0, false);
        }
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for LenientTcp {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

fn leave_out_of(server: SocketAddr, message: &mut [u8]) {
    let left_out = leave_out(message);
    if left_out > 0 {
        let name = message.get(HEADER..).map(shown).unwrap_or_default();
        tracing::warn!(%server, name, left_out, "ignored malformed records in a DNS response");
    }
}

/// Formats the name at the beginning of `bytes` for a log.
fn shown(mut bytes: &[u8]) -> String {
    let mut text = String::new();
    while let Some((length @ 1..=63, rest)) = bytes.split_first() {
        let Some((label, rest)) = rest.split_at_checked(usize::from(*length)) else { break };
        text.push_str(&label.escape_ascii().to_string());
        text.push('.');
        bytes = rest;
    }
    text
}

/// A record that the resolver cannot parse, by its position in a message.
struct Malformed {
    at: usize,
    end: usize,
}

/// Replaces malformed records with empty ones, and returns their number. A response without a valid record of the
/// requested type is not changed: the resolver must not treat it as a response without records.
fn leave_out(message: &mut [u8]) -> usize {
    let Some(found) = Records::read(message) else { return 0 };
    let left_out = found.malformed.len() + usize::from(found.cut.is_some());
    if left_out == 0 || !found.has_sound {
        return 0;
    }
    for record in found.malformed {
        blank(message, &record);
    }
    if let Some((section, whole)) = found.cut {
        set(message, count_at(section), whole);
        for later in section + 1..3 {
            set(message, count_at(later), 0);
        }
    }
    left_out
}

/// Returns the offset of the record count of a section: answers, authorities, additional records.
fn count_at(section: usize) -> usize {
    6 + 2 * section
}

fn number(message: &[u8], at: usize) -> Option<u16> {
    message.get(at..)?.first_chunk().map(|bytes| u16::from_be_bytes(*bytes))
}

fn set(message: &mut [u8], at: usize, number: u16) {
    message[at..at + 2].copy_from_slice(&number.to_be_bytes());
}

/// Gives a record the root as its name and a type that the resolver ignores. It keeps its TTL.
fn blank(message: &mut [u8], record: &Malformed) {
    let Malformed { at, end } = *record;
    let Some(name) = skip_name(message, at) else { return };
    let ttl: [u8; 4] = message[name + 4..].first_chunk().copied().unwrap_or_default();
    message[at] = 0;
    set(message, at + 1, LEFT_OUT);
    set(message, at + 3, 1);
    message[at + 5..at + 9].copy_from_slice(&ttl);
    set(message, at + 9, (end - at - 1 - FIXED) as u16);
}

/// The records of a response.
struct Records {
    malformed: Vec<Malformed>,
    /// The section in which the message ends within a record, and the number of whole records before it there.
    cut: Option<(usize, u16)>,
    /// A response of the requested type is valid.
    has_sound: bool,
}

impl Records {
    /// Returns None if the message does not have one question, or ends before its records.
    fn read(message: &[u8]) -> Option<Records> {
        if number(message, 4)? != 1 {
            return None;
        }
        let question = skip_name(message, HEADER)?;
        let wanted = number(message, question)?;
        let mut at = question + 4;
        let mut found = Records { malformed: Vec::new(), cut: None, has_sound: false };
        for section in 0..3 {
            for whole in 0..number(message, count_at(section))? {
                let Some((kind, end, is_sound)) = record(message, at) else {
                    found.cut = Some((section, whole));
                    return Some(found);
                };
                found.has_sound |= section == 0 && kind == wanted && is_sound;
                if !is_sound && end - at > FIXED {
                    found.malformed.push(Malformed { at, end });
                }
                at = end;
            }
        }
        Some(found)
    }
}

/// Returns the type of the record at `at`, its end, and whether it is valid; None if the message ends before. The
/// data of SRV, A and AAAA records are checked.
fn record(message: &[u8], at: usize) -> Option<(u16, usize, bool)> {
    let fixed = skip_name(message, at)?;
    let kind = number(message, fixed)?;
    let data = fixed + FIXED;
    let end = data + usize::from(number(message, fixed + 8)?);
    if end > message.len() {
        return None;
    }
    let is_in = number(message, fixed + 2)? == IN;
    let is_sound = is_name(message, at)
        && match kind {
            A => is_in && end - data == 4,
            AAAA => is_in && end - data == 16,
            SRV => {
                is_in
                    && end - data > 6
                    && skip_name(message, data + 6) == Some(end)
                    && is_name(message, data + 6)
            }
            _ => true,
        };
    Some((kind, end, is_sound))
}

/// Returns the end of the name at `at`, without the part that a pointer refers to; None if the message ends before.
fn skip_name(message: &[u8], mut at: usize) -> Option<usize> {
    loop {
        match *message.get(at)? {
            0 => return Some(at + 1),
            length @ 1..=63 => at += 1 + usize::from(length),
            0xc0.. => return message.get(at + 1).map(|_| at + 2),
            _ => return None,
        }
    }
}

/// Returns true if a name is valid: its pointers lead backwards, and it ends within the length limit.
fn is_name(message: &[u8], mut at: usize) -> bool {
    let (mut begin, mut length) = (at, 0);
    while let Some(&first) = message.get(at) {
        match first {
            0 => return true,
            1..=63 => {
                at += 1 + usize::from(first);
                length += 1 + usize::from(first);
            }
            0xc0.. => {
                let Some(target) = number(message, at).map(|pointer| usize::from(pointer & 0x3fff)) else {
                    return false;
                };
                if target >= begin {
                    return false;
                }
                (at, begin) = (target, target);
            }
            _ => return false,
        }
        if length >= LONGEST_NAME {
            return false;
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use hickory_resolver::proto::op::Message;
    use hickory_resolver::proto::rr::RData;
    use proptest::prelude::*;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpListener;

    use super::*;

    /// Returns a response to a question for the servers of `web.`, with these records as answers.
    fn response(records: &[Vec<u8>]) -> Vec<u8> {
        let mut message = vec![0, 1, 0x81, 0x80, 0, 1, 0, records.len() as u8, 0, 0, 0, 0];
        message.extend_from_slice(b"\x03web\x00\x00\x21\x00\x01");
        message.extend(records.concat());
        message
    }

    /// Returns a record of the question's name.
    fn of_kind(kind: u16, data: &[u8]) -> Vec<u8> {
        let mut record = vec![0xc0, 12];
        record.extend(kind.to_be_bytes());
        record.extend([0, 1, 0, 0, 0, 9]);
        record.extend((data.len() as u16).to_be_bytes());
        record.extend_from_slice(data);
        record
    }

    fn server(port: u8, target: &[u8]) -> Vec<u8> {
        of_kind(SRV, &[&[0, 1, 0, 2, 0, port], target].concat())
    }

    fn ports(message: &[u8]) -> Option<Vec<u16>> {
        let message = Message::from_vec(message).ok()?;
        let ports = message.answers.iter().filter_map(|record| match &record.data {
            RData::SRV(server) => Some(server.port),
            _ => None,
        });
        Some(ports.collect())
    }

    /// The resolver does not read the original response as it should. Then it reads the two valid servers around the
    /// malformed record.
    fn check(what: &str, bad: Vec<u8>) {
        let mut message = response(&[server(1, b"\x01a\x00"), bad, server(2, b"\x01b\xc0\x0c")]);
        assert_ne!(ports(&message), Some(vec![1, 2]), "{what}");
        let len = message.len();
        assert_eq!(leave_out(&mut message), 1, "{what}");
        assert_eq!(message.len(), len);
        assert_eq!(ports(&message), Some(vec![1, 2]), "{what}");
    }

    #[test]
    fn malformed_records_are_left_out() {
        check("no data", of_kind(SRV, b""));
        check("data without a target", of_kind(SRV, &[0, 1, 0, 2, 0, 80]));
        check("data that end within the port", of_kind(SRV, &[0, 1, 0, 2, 0]));
        check("a target without an end", server(9, b"\x01a"));
        check("a label that is longer than the data", server(9, b"\x09a\x00"));
        check("data behind the target", server(9, b"\x01a\x00zz"));
        // The target begins at 21 + 21 + 12 + 6 = 60.
        check("a target that refers to itself", server(9, b"\xc0\x3c"));
        check("a target that refers to its own beginning", server(9, b"\x01a\xc0\x3c"));
        check("a target that refers to what follows", server(9, b"\xc0\x40"));
        check("a target that refers beyond the message", server(9, b"\xff\xff"));
        check("a label of an unknown type", server(9, b"\x80a\x00"));
        let mut lost = server(9, b"\x01a\x00");
        lost[..2].copy_from_slice(&[0xff, 0xff]);
        check("an owner that refers beyond the message", lost);
        let mut chaos = server(9, b"\x01a\x00");
        chaos[5] = 3;
        check("a record of another class", chaos);
        check("an address of three bytes", of_kind(A, &[10, 0, 0]));
        check("an IPv6 address of four bytes", of_kind(AAAA, &[10, 0, 0, 1]));
    }

    #[test]
    fn records_before_a_cut_are_used() {
        let mut message = response(&[server(1, b"\x01a\x00"), server(2, b"\x01b\x00")]);
        message.truncate(message.len() - 4);
        assert_eq!(ports(&message), None);
        assert_eq!(leave_out(&mut message), 1);
        assert_eq!(ports(&message), Some(vec![1]));
    }

    #[test]
    fn responses_without_a_valid_record_stay_unchanged() {
        for records in [vec![server(9, b"\x01a")], vec![of_kind(A, &[10, 0, 0, 1]), server(9, b"\xc0\x37")]] {
            let mut message = response(&records);
            let before = message.clone();
            assert_eq!(leave_out(&mut message), 0);
            assert_eq!(message, before);
        }
        let mut sound = response(&[server(1, b"\x00"), server(0, b"\x01a\x00")]);
        let before = sound.clone();
        assert_eq!(leave_out(&mut sound), 0);
        assert_eq!(sound, before);
    }

    #[tokio::test]
    async fn malformed_records_over_tcp_are_left_out() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let server_address = listener.local_addr().unwrap();
        let Lenient(provider) = Lenient::default();
        let (opened, accepted) =
            tokio::join!(Lenient(provider).connect_tcp(server_address, None, None), listener.accept());
        let (AsyncIoTokioAsStd(mut stream), (mut peer, _)) = (opened.unwrap(), accepted.unwrap());
        let message = response(&[server(1, b"\x01a\x00"), server(9, b"\xc0\x3c")]);
        let framed = [&(message.len() as u16).to_be_bytes()[..], &message].concat();
        for part in [&framed[..1], &framed[1..30], &framed[30..], &framed[..]] {
            peer.write_all(part).await.unwrap();
        }
        for _ in 0..2 {
            let length = stream.read_u16().await.unwrap();
            let mut read = vec![0; usize::from(length)];
            stream.read_exact(&mut read).await.unwrap();
            assert_eq!(ports(&read), Some(vec![1]));
        }
        drop(peer);
        assert_eq!(stream.read(&mut [0; 9]).await.unwrap(), 0);
    }

    proptest! {
        #[test]
        fn arbitrary_bytes_keep_their_length(
            bytes in proptest::collection::vec(any::<u8>(), 0..80),
            records in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..12), 0..4),
        ) {
            let records: Vec<Vec<u8>> = records.iter().map(|data| of_kind(SRV, data)).collect();
            for mut message in [bytes, response(&records), response(&[records, vec![server(1, b"\x01a\x00")]].concat())] {
                let len = message.len();
                leave_out(&mut message);
                prop_assert_eq!(message.len(), len);
            }
        }
    }
}
