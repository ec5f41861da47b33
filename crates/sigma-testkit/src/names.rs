//! A name server that answers when it is told to.

use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::{Context, Result};

/// How often it looks whether it is to end.
const PATIENCE: Duration = Duration::from_millis(50);

/// A name server on a port of its own. It is silent until it has an address to give, which is then
/// the answer for every name.
#[derive(Debug)]
pub struct NameServer {
    address: SocketAddr,
    state: Arc<State>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug, Default)]
struct State {
    asked: AtomicUsize,
    answer: Mutex<Option<Ipv4Addr>>,
    is_over: AtomicBool,
}

impl NameServer {
    /// One that is silent.
    pub fn silent() -> Result<NameServer> {
        let socket = UdpSocket::bind("127.0.0.1:0").context("a socket for names")?;
        socket.set_read_timeout(Some(PATIENCE))?;
        let (address, state) = (socket.local_addr()?, Arc::new(State::default()));
        let shared = Arc::clone(&state);
        let thread = std::thread::spawn(move || serve(&socket, &shared));
        Ok(NameServer { address, state, thread: Some(thread) })
    }

    /// Where it is asked.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// How many questions have come.
    pub fn asked(&self) -> usize {
        self.state.asked.load(Ordering::SeqCst)
    }

    /// Answers from now on.
    pub fn answer(&self, address: Ipv4Addr) {
        *self.state.answer.lock().unwrap_or_else(PoisonError::into_inner) = Some(address);
    }
}

impl Drop for NameServer {
    fn drop(&mut self) {
        self.state.is_over.store(true, Ordering::SeqCst);
        // It has panicked, and said so.
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

fn serve(socket: &UdpSocket, state: &State) {
    let mut query = [0; 1500];
    while !state.is_over.load(Ordering::SeqCst) {
        let Ok((length, client)) = socket.recv_from(&mut query) else { continue };
        state.asked.fetch_add(1, Ordering::SeqCst);
        let answer = *state.answer.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(reply) = answer.and_then(|address| reply(&query[..length], address)) {
            // Who asked and left learns nothing.
            let _ = socket.send_to(&reply, client);
        }
    }
}

/// The answer to a question: an address with a TTL of a second, or nothing for other records.
fn reply(query: &[u8], address: Ipv4Addr) -> Option<Vec<u8>> {
    let name_end = 12 + query.get(12..)?.iter().position(|&byte| byte == 0)?;
    let question = query.get(12..name_end + 5)?;
    let is_address = query.get(name_end + 1..name_end + 3)? == [0, 1];
    let mut out = vec![query[0], query[1], 0x81, 0x80, 0, 1, 0, u8::from(is_address), 0, 0, 0, 0];
    out.extend_from_slice(question);
    if is_address {
        out.extend_from_slice(&[0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 1, 0, 4]);
        out.extend_from_slice(&address.octets());
    }
    Some(out)
}
