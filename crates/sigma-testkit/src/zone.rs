//! The name server of one zone, which takes signed updates.

use std::collections::HashMap;
use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result};
use hickory_proto::op::{Message, MessageType, OpCode, ResponseCode, UpdateMessage};
use hickory_proto::rr::rdata::name::{CNAME, NS};
use hickory_proto::rr::rdata::tsig::TsigAlgorithm;
use hickory_proto::rr::rdata::{A, SOA, TXT};
use hickory_proto::rr::{DNSClass, Name, RData, Record, RecordType, TSigResponseContext, TSigner};

/// How soon a server that is dropped closes its sockets.
const TICK: Duration = Duration::from_millis(20);

/// How long a connection may make it wait.
const PATIENCE: Duration = Duration::from_secs(5);

/// By how many seconds the clocks of both sides may differ.
const FUDGE: u16 = 300;

/// Aliases that are followed within a response.
const ALIASES: usize = 4;

/// A server that answers for a zone on a port of 127.0.0.1, over UDP and TCP. Every name has the address 127.0.0.1;
/// texts come by updates that are signed with its key. Dropping it closes the port.
pub struct Zone {
    address: SocketAddr,
    content: Arc<Mutex<Content>>,
    stopped: Arc<AtomicBool>,
}

struct Content {
    origin: Name,
    signer: TSigner,
    texts: HashMap<Name, Vec<String>>,
    aliases: HashMap<Name, Name>,
    updates: usize,
    truncates: bool,
    believes: bool,
}

fn name(text: &str) -> Name {
    let mut name = Name::from_ascii(text).expect("a name of the test");
    name.set_fqdn(true);
    name
}

impl Zone {
    /// Starts a zone without texts. Updates are signed with `secret`, which is called `key`, by `algorithm`, such as
    /// `hmac-sha256`.
    ///
    /// # Errors
    /// Returns an error if there is no free port, or no such algorithm.
    pub fn start(origin: &str, key: &str, algorithm: &str, secret: &[u8]) -> Result<Zone> {
        let algorithm = TsigAlgorithm::from_name(Name::from_ascii(algorithm)?);
        let signer = TSigner::new(secret.to_vec(), algorithm, name(key), FUDGE)?;
        let (udp, tcp) = sockets().context("bind a name server")?;
        let content = Content {
            origin: name(origin),
            signer,
            texts: HashMap::new(),
            aliases: HashMap::new(),
            updates: 0,
            truncates: false,
            believes: false,
        };
        let zone = Zone {
            address: udp.local_addr()?,
            content: Arc::new(Mutex::new(content)),
            stopped: Arc::default(),
        };
        let (content, stopped) = (Arc::clone(&zone.content), Arc::clone(&zone.stopped));
        std::thread::spawn(move || {
            let mut query = [0; 4_096];
            while !stopped.load(Ordering::SeqCst) {
                if let Ok((len, client)) = udp.recv_from(&mut query)
                    && let Some(reply) = lock(&content).reply(&query[..len], true)
                {
                    let _ = udp.send_to(&reply, client);
                }
            }
        });
        let (content, stopped) = (Arc::clone(&zone.content), Arc::clone(&zone.stopped));
        std::thread::spawn(move || {
            while !stopped.load(Ordering::SeqCst) {
                match tcp.accept() {
                    Ok((client, _)) => drop(serve(client, &content)),
                    Err(error) if error.kind() == ErrorKind::WouldBlock => std::thread::sleep(TICK),
                    Err(_) => return,
                }
            }
        });
        Ok(zone)
    }

    /// Returns its address.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Makes `from` an alias of `to`.
    pub fn set_alias(&self, from: &str, to: &str) {
        lock(&self.content).aliases.insert(name(from), name(to));
    }

    /// Returns the texts of a name.
    pub fn texts(&self, of: &str) -> Vec<String> {
        lock(&self.content).texts.get(&name(of)).cloned().unwrap_or_default()
    }

    /// Returns the number of applied updates.
    pub fn updates(&self) -> usize {
        lock(&self.content).updates
    }

    /// Makes every response too large for a datagram.
    pub fn truncate(&self) {
        lock(&self.content).truncates = true;
    }

    /// Applies every update from now on, and signs no response.
    pub fn believe_all(&self) {
        lock(&self.content).believes = true;
    }
}

impl Drop for Zone {
    fn drop(&mut self) {
        self.stopped.store(true, Ordering::SeqCst);
    }
}

/// Returns both sockets with one port.
fn sockets() -> Result<(UdpSocket, TcpListener)> {
    let mut last = None;
    for _ in 0..20 {
        let tcp = TcpListener::bind("127.0.0.1:0")?;
        match UdpSocket::bind(tcp.local_addr()?) {
            Ok(udp) => {
                udp.set_read_timeout(Some(TICK))?;
                tcp.set_nonblocking(true)?;
                return Ok((udp, tcp));
            }
            Err(error) => last = Some(error),
        }
    }
    Err(last.map_or_else(|| anyhow::anyhow!("no port"), anyhow::Error::from))
}

fn serve(mut client: TcpStream, content: &Mutex<Content>) -> Result<()> {
    client.set_nonblocking(false)?;
    client.set_read_timeout(Some(PATIENCE))?;
    let mut len = [0; 2];
    client.read_exact(&mut len)?;
    let mut query = vec![0; u16::from_be_bytes(len).into()];
    client.read_exact(&mut query)?;
    let reply = lock(content).reply(&query, false);
    if let Some(reply) = reply {
        client.write_all(&u16::try_from(reply.len())?.to_be_bytes())?;
        client.write_all(&reply)?;
    }
    Ok(())
}

impl Content {
    /// Returns the response; None for an invalid question.
    fn reply(&mut self, bytes: &[u8], is_datagram: bool) -> Option<Vec<u8>> {
        let query = Message::from_vec(bytes).ok()?;
        let mut reply = Message::new(query.metadata.id, MessageType::Response, query.metadata.op_code);
        reply.add_queries(query.queries.clone());
        if is_datagram && self.truncates {
            reply.metadata.truncation = true;
            return reply.to_vec().ok();
        }
        match query.metadata.op_code {
            OpCode::Update => self.update(bytes, &query, reply),
            _ => {
                self.answer(&query, &mut reply)?;
                reply.to_vec().ok()
            }
        }
    }

    fn answer(&self, query: &Message, reply: &mut Message) -> Option<()> {
        let question = query.queries.first()?;
        let (mut asked, kind) = (question.name().clone(), question.query_type());
        reply.metadata.authoritative = true;
        for _ in 0..ALIASES {
            let Some(target) = self.aliases.get(&asked) else { break };
            reply.add_answer(Record::from_rdata(asked.clone(), 1, RData::CNAME(CNAME(target.clone()))));
            asked.clone_from(target);
        }
        let is_origin = asked == self.origin;
        let data = match kind {
            RecordType::A => vec![RData::A(A(Ipv4Addr::LOCALHOST))],
            RecordType::TXT => {
                let texts = self.texts.get(&asked).into_iter().flatten();
                texts.map(|text| RData::TXT(TXT::new(vec![text.clone()]))).collect()
            }
            RecordType::SOA if is_origin => vec![self.authority()],
            RecordType::NS if is_origin => vec![RData::NS(NS(self.server()))],
            _ => Vec::new(),
        };
        if data.is_empty() {
            reply.add_authority(Record::from_rdata(self.origin.clone(), 1, self.authority()));
        }
        reply.add_answers(data.into_iter().map(|data| Record::from_rdata(asked.clone(), 1, data)));
        Some(())
    }

    fn server(&self) -> Name {
        name("ns").append_domain(&self.origin).unwrap_or_else(|_| self.origin.clone())
    }

    fn authority(&self) -> RData {
        RData::SOA(SOA::new(self.server(), self.server(), 1, 60, 60, 60, 60))
    }

    fn update(&mut self, bytes: &[u8], query: &Message, mut reply: Message) -> Option<Vec<u8>> {
        let verified = self.signer.verify_message_byte(bytes, None, true);
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        let mac = match verified {
            Ok((mac, _, valid)) if valid.contains(&now) => Some(mac),
            _ if self.believes => None,
            _ => {
                reply.metadata.response_code = ResponseCode::NotAuth;
                return reply.to_vec().ok();
            }
        };
        let in_zone = query.queries.first().is_some_and(|zone| *zone.name() == self.origin);
        if in_zone && query.updates().iter().all(|record| self.origin.zone_of(&record.name)) {
            query.updates().iter().for_each(|record| self.apply(record));
            self.updates += 1;
        } else {
            reply.metadata.response_code = ResponseCode::NotZone;
        }
        if let Some(mac) = mac.filter(|_| !self.believes) {
            let unsigned = reply.to_vec().ok()?;
            let context = TSigResponseContext::new(query.metadata.id, now, self.signer.clone(), mac, None);
            reply.set_signature(context.sign(&unsigned).ok()?);
        }
        reply.to_vec().ok()
    }

    fn apply(&mut self, record: &Record) {
        let RData::TXT(text) = &record.data else { return };
        let text = String::from_utf8_lossy(&text.txt_data.concat()).into_owned();
        let texts = self.texts.entry(record.name.clone()).or_default();
        texts.retain(|known| *known != text);
        if record.dns_class == DNSClass::IN {
            texts.push(text);
        }
    }
}

fn lock(content: &Mutex<Content>) -> MutexGuard<'_, Content> {
    content.lock().unwrap_or_else(PoisonError::into_inner)
}
