//! A name server whose records a test changes.

use std::collections::{HashMap, HashSet};
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result};

/// How soon a server that is dropped closes its socket.
const TICK: Duration = Duration::from_millis(20);

/// Where the questions begin in a message (RFC 1035 §4.1.1).
const HEADER: usize = 12;

/// A kind of records.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum RecordKind {
    /// IPv4 addresses.
    A = 1,
    /// IPv6 addresses.
    Aaaa = 28,
    /// Servers of a service.
    Srv = 33,
    /// Services of HTTPS.
    Https = 65,
}

/// A server of a service (RFC 2782).
#[derive(Debug, Clone, Copy)]
pub struct ServiceRecord<'s> {
    /// Lower ones are used first.
    pub priority: u16,
    /// Share among the servers of the same priority.
    pub weight: u16,
    /// The port that it listens on.
    pub port: u16,
    /// Its name.
    pub target: &'s str,
}

/// A service of HTTPS (RFC 9460).
#[derive(Debug, Clone, Copy)]
pub struct HttpsRecord<'s> {
    /// Lower ones are used first; 0 is an alias.
    pub priority: u16,
    /// The name of the server; empty for the name of the record.
    pub target: &'s str,
    /// The parameters, by their keys, as they are sent.
    pub params: &'s [(u16, &'s [u8])],
}

#[derive(Debug, Default)]
struct Zone {
    /// By name in lower case and kind; the data as it is sent.
    records: HashMap<(String, u16), Vec<Vec<u8>>>,
    silent: HashSet<u16>,
}

/// A server that answers over UDP on a port of 127.0.0.1, with a TTL of one second. An unknown name has the records of
/// the name `*`, and is responded with NXDOMAIN without such records. Dropping it closes the port.
#[derive(Debug)]
pub struct Dns {
    address: SocketAddr,
    zone: Arc<Mutex<Zone>>,
    asked: Arc<AtomicUsize>,
    stopped: Arc<AtomicBool>,
}

impl Dns {
    /// Starts a server without records.
    pub fn start() -> Result<Dns> {
        let socket = UdpSocket::bind("127.0.0.1:0").context("bind a name server")?;
        socket.set_read_timeout(Some(TICK))?;
        let dns = Dns {
            address: socket.local_addr()?,
            zone: Arc::default(),
            asked: Arc::default(),
            stopped: Arc::default(),
        };
        let (zone, asked, stopped) =
            (Arc::clone(&dns.zone), Arc::clone(&dns.asked), Arc::clone(&dns.stopped));
        std::thread::spawn(move || {
            let mut query = [0; 1500];
            while !stopped.load(Ordering::SeqCst) {
                let Ok((len, client)) = socket.recv_from(&mut query) else { continue };
                if let Some(reply) = lock(&zone).reply(&query[..len]) {
                    let _ = socket.send_to(&reply, client);
                }
                asked.fetch_add(1, Ordering::SeqCst);
            }
        });
        Ok(dns)
    }

    /// Returns its address.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Returns the number of questions so far.
    pub fn asked(&self) -> usize {
        self.asked.load(Ordering::SeqCst)
    }

    /// Sets the addresses of `name`, of both families, and removes all others.
    pub fn set_addresses(&self, name: &str, addresses: &[IpAddr]) {
        let (mut v4, mut v6) = (Vec::new(), Vec::new());
        for address in addresses {
            match address {
                IpAddr::V4(ip) => v4.push(ip.octets().to_vec()),
                IpAddr::V6(ip) => v6.push(ip.octets().to_vec()),
            }
        }
        self.set(name, RecordKind::A, v4);
        self.set(name, RecordKind::Aaaa, v6);
    }

    /// Sets the servers of `name` and removes all others.
    pub fn set_servers(&self, name: &str, servers: &[ServiceRecord<'_>]) {
        let data = |server: &ServiceRecord<'_>| {
            let mut data = Vec::new();
            for number in [server.priority, server.weight, server.port] {
                data.extend_from_slice(&number.to_be_bytes());
            }
            push_name(&mut data, server.target);
            data
        };
        self.set(name, RecordKind::Srv, servers.iter().map(data).collect());
    }

    /// Sets the services of HTTPS of `name` and removes all others. Parameters may be malformed.
    pub fn set_https(&self, name: &str, records: &[HttpsRecord<'_>]) {
        let data = |record: &HttpsRecord<'_>| {
            let mut data = record.priority.to_be_bytes().to_vec();
            push_name(&mut data, record.target);
            for (key, value) in record.params {
                data.extend_from_slice(&key.to_be_bytes());
                data.extend_from_slice(&(value.len() as u16).to_be_bytes());
                data.extend_from_slice(value);
            }
            data
        };
        self.set(name, RecordKind::Https, records.iter().map(data).collect());
    }

    /// Sets the servers of `name`, whose data are sent unchanged, and removes all others.
    pub fn set_server_data(&self, name: &str, data: &[&[u8]]) {
        self.set(name, RecordKind::Srv, data.iter().map(|data| data.to_vec()).collect());
    }

    /// Stops answering questions for these kinds of records; the others get a response.
    pub fn silence(&self, kinds: &[RecordKind]) {
        lock(&self.zone).silent = kinds.iter().map(|kind| *kind as u16).collect();
    }

    fn set(&self, name: &str, kind: RecordKind, data: Vec<Vec<u8>>) {
        let key = (name.trim_end_matches('.').to_lowercase(), kind as u16);
        let records = &mut lock(&self.zone).records;
        match data.is_empty() {
            true => records.remove(&key),
            false => records.insert(key, data),
        };
    }
}

impl Drop for Dns {
    fn drop(&mut self) {
        self.stopped.store(true, Ordering::SeqCst);
    }
}

impl Zone {
    /// Returns the response, or None for none.
    fn reply(&self, query: &[u8]) -> Option<Vec<u8>> {
        let (mut name, mut at) = (String::new(), HEADER);
        while *query.get(at)? != 0 {
            let label = query.get(at + 1..at + 1 + usize::from(query[at]))?;
            if !name.is_empty() {
                name.push('.');
            }
            name.push_str(&String::from_utf8_lossy(label).to_lowercase());
            at += 1 + label.len();
        }
        let kind = u16::from_be_bytes(query.get(at + 1..at + 3)?.try_into().ok()?);
        if self.silent.contains(&kind) {
            return None;
        }
        let question = query.get(HEADER..at + 5)?;
        let has = |wanted: &str| self.records.keys().any(|(known, _)| known == wanted);
        if !has(&name) {
            "*".clone_into(&mut name);
        }
        let is_known = has(&name);
        let records = self.records.get(&(name, kind)).map_or(&[][..], Vec::as_slice);
        // A response, recursion desired and available; NXDOMAIN (3) for names without any record.
        let code = if is_known { 0x80 } else { 0x83 };
        let mut reply = vec![query[0], query[1], 0x81, code, 0, 1, 0, records.len() as u8, 0, 0, 0, 0];
        reply.extend_from_slice(question);
        for data in records {
            // The name of the question, the kind, class IN, one second.
            reply.extend_from_slice(&[0xc0, HEADER as u8, (kind >> 8) as u8, kind as u8, 0, 1, 0, 0, 0, 1]);
            reply.extend_from_slice(&(data.len() as u16).to_be_bytes());
            reply.extend_from_slice(data);
        }
        Some(reply)
    }
}

fn push_name(data: &mut Vec<u8>, name: &str) {
    for label in name.split('.').filter(|label| !label.is_empty()) {
        data.push(label.len() as u8);
        data.extend_from_slice(label.as_bytes());
    }
    data.push(0);
}

fn lock(zone: &Mutex<Zone>) -> MutexGuard<'_, Zone> {
    zone.lock().unwrap_or_else(PoisonError::into_inner)
}
