//! One question to a name server: over UDP, and over TCP where no response comes or it does not fit.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use hickory_proto::op::{Message, Query, ResponseCode};
use hickory_proto::rr::{Name, RecordType};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpStream, UdpSocket};

/// How long a response is waited for, in each way and at each try.
const PATIENCE: Duration = Duration::from_secs(2);

/// How often a question is sent over UDP.
const TRIES: usize = 2;

/// The bytes of a message before its questions (RFC 1035 §4.1.1).
const HEADER: usize = 12;

/// The largest response over UDP; a server sends more than 512 bytes only to who requests them.
const DATAGRAM_MAX: usize = 4_096;

/// Requests the records of a name. An empty result is a response.
pub(super) async fn ask(
    server: SocketAddr,
    name: &Name,
    kind: RecordType,
    is_recursive: bool,
) -> Result<Message, String> {
    let mut question = Message::query();
    question.metadata.recursion_desired = is_recursive;
    question.add_query(Query::query(name.clone(), kind));
    let sent = question.to_vec().map_err(|error| format!("cannot make a DNS query for {name}: {error}"))?;
    let answer = exchange(server, &sent).await?;
    let answer =
        Message::from_vec(&answer).map_err(|error| format!("{server} sent a malformed response: {error}"))?;
    if answer.queries != question.queries {
        return Err(format!("{server} responded to another query"));
    }
    match answer.metadata.response_code {
        ResponseCode::NoError | ResponseCode::NXDomain => Ok(answer),
        other => Err(format!("{server} responded {other} to the query for {kind} of {name}")),
    }
}

/// Sends a message; returns the response to it.
pub(super) async fn exchange(server: SocketAddr, message: &[u8]) -> Result<Vec<u8>, String> {
    for _ in 0..TRIES {
        match tokio::time::timeout(PATIENCE, over_udp(server, message)).await {
            Ok(Ok(answer)) if !is_truncated(&answer) => return Ok(answer),
            // It does not fit, or there is no listener.
            Ok(_) => break,
            Err(_) => {}
        }
    }
    match tokio::time::timeout(PATIENCE, over_tcp(server, message)).await {
        Ok(answer) => answer.map_err(|error| format!("cannot query the name server {server}: {error}")),
        Err(_) => Err(format!("the name server {server} does not respond")),
    }
}

async fn over_udp(server: SocketAddr, message: &[u8]) -> std::io::Result<Vec<u8>> {
    let any: IpAddr =
        if server.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
    let socket = UdpSocket::bind((any, 0)).await?;
    // Datagrams from elsewhere are dropped from now on.
    socket.connect(server).await?;
    socket.send(message).await?;
    let mut answer = vec![0; DATAGRAM_MAX];
    loop {
        let len = socket.recv(&mut answer).await?;
        if is_answer(&answer[..len], message) {
            answer.truncate(len);
            return Ok(answer);
        }
    }
}

async fn over_tcp(server: SocketAddr, message: &[u8]) -> std::io::Result<Vec<u8>> {
    let too_long = |_| std::io::Error::other("the message is too long");
    let mut stream = TcpStream::connect(server).await?;
    let len = u16::try_from(message.len()).map_err(too_long)?;
    stream.write_all(&[&len.to_be_bytes(), message].concat()).await?;
    let len = stream.read_u16().await?;
    let mut answer = vec![0; len.into()];
    stream.read_exact(&mut answer).await?;
    match is_answer(&answer, message) {
        true => Ok(answer),
        false => Err(std::io::Error::other("the response is for another query")),
    }
}

/// Whether a message is the response to another one, by its number.
fn is_answer(answer: &[u8], question: &[u8]) -> bool {
    answer.len() >= HEADER && answer.get(..2) == question.get(..2) && answer[2] & 0x80 != 0
}

/// Whether there is more of a response.
fn is_truncated(answer: &[u8]) -> bool {
    answer.get(2).is_some_and(|flags| flags & 0x02 != 0)
}
