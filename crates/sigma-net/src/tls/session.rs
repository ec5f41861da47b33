//! A TLS session without a socket: records in, plaintext out, and vice versa.
//!
//! It uses rustls' unbuffered connections, so that an idle session holds no buffers.

use rustls::client::UnbufferedClientConnection;
use rustls::server::{ServerConnectionData, UnbufferedServerConnection};
use rustls::unbuffered::{
    ConnectionState, EncodeError, EncryptError, ReadEarlyData, UnbufferedStatus, WriteTraffic,
};
use rustls::{CommonState, Error, ProtocolVersion};

use super::buffer::{Buffer, FULL_BYTES};

/// The largest plaintext of a record (RFC 8446 §5.1).
pub(super) const RECORD_BYTES: usize = 16_384;

/// The largest overhead of a record over its plaintext, for all offered versions and ciphers.
const RECORD_OVERHEAD: usize = 64;

/// Either side of a connection.
// Both are of about the same size, and the whole stream is boxed.
pub(super) enum Side {
    Server(UnbufferedServerConnection),
    Client(UnbufferedClientConnection),
}

pub(super) struct Session {
    side: Side,
    /// Records from the peer; the last one may be partial.
    pub(super) incoming: Buffer,
    /// Records for the peer.
    pub(super) outgoing: Buffer,
    /// Plaintext that did not fit the reader's buffer.
    plain: Buffer,
    peer_closed: bool,
    close_queued: bool,
    failure: Option<Error>,
}

/// The purpose of a run over the incoming records.
enum Task<'a> {
    /// Up to the end of the handshake.
    Handshake,
    /// Plaintext goes to this buffer, with this number of bytes filled.
    Read(&'a mut [u8], usize),
    /// Encryption of this plaintext.
    Write(&'a [u8]),
    /// The closing alert of our side.
    Close,
}

/// The reason for the end of a run.
#[derive(Debug, PartialEq, Eq)]
enum Stop {
    /// It needs more records.
    Hungry,
    /// The task is done, or the reader's buffer is full.
    Done,
    /// Both sides are closed.
    Closed,
}

enum Step {
    Again,
    PeerClosed,
    Stop(Stop),
}

impl Session {
    pub(super) fn new(side: Side, incoming: Buffer) -> Session {
        Session {
            side,
            incoming,
            outgoing: Buffer::default(),
            plain: Buffer::default(),
            peer_closed: false,
            close_queued: false,
            failure: None,
        }
    }

    /// Returns the state of the connection, which both sides use.
    pub(super) fn common(&self) -> &CommonState {
        match &self.side {
            Side::Server(connection) => connection,
            Side::Client(connection) => connection,
        }
    }

    /// Continues the handshake; returns true once it is complete. Otherwise it needs more records.
    pub(super) fn shake(&mut self) -> Result<bool, Error> {
        self.run(&mut Task::Handshake)?;
        Ok(!self.common().is_handshaking())
    }

    /// Returns true if the client has sent bytes before the end of its handshake.
    pub(super) fn has_early_data(&self) -> bool {
        self.common().is_handshaking() && !self.plain.is_empty()
    }

    /// Returns true if the peer can continue without the handshake's bytes in `outgoing`: after TLS 1.3 a server has
    /// only tickets to send.
    pub(super) fn may_delay(&self) -> bool {
        matches!(self.side, Side::Server(_))
            && self.common().protocol_version() == Some(ProtocolVersion::TLSv1_3)
    }

    /// Decrypts into `into`; 0 if it needs more records or the peer has closed.
    pub(super) fn read(&mut self, into: &mut [u8]) -> Result<usize, Error> {
        let filled = self.plain.len().min(into.len());
        into[..filled].copy_from_slice(&self.plain.filled()[..filled]);
        self.plain.advance(filled);
        self.plain.rest();
        if filled == into.len() {
            return Ok(filled);
        }
        let mut task = Task::Read(into, filled);
        let result = self.run(&mut task);
        if self.incoming.is_empty() {
            self.incoming.rest();
        }
        match task {
            // The bytes before the failure are valid; the failure is kept for the next call.
            Task::Read(_, filled) if filled > 0 => {
                self.plain.rest();
                Ok(filled)
            }
            _ => result.map(|_| 0),
        }
    }

    /// Returns true after the peer's closing alert.
    pub(super) fn peer_closed(&self) -> bool {
        self.peer_closed
    }

    /// Returns true if it takes no more records before the present ones are used up.
    pub(super) fn is_stuffed(&self) -> bool {
        self.incoming.len() >= FULL_BYTES
    }

    /// Encrypts `plaintext` to the end of the outgoing records. `false` if the session is closed.
    pub(super) fn write(&mut self, plaintext: &[u8]) -> Result<bool, Error> {
        if self.close_queued {
            return Ok(false);
        }
        self.run(&mut Task::Write(plaintext)).map(|stop| stop == Stop::Done)
    }

    /// Queues our closing alert; once.
    pub(super) fn close(&mut self) {
        if !self.close_queued && self.failure.is_none() {
            self.close_queued = true;
            // A failed session has nothing left to send.
            let _ = self.run(&mut Task::Close);
        }
    }

    /// Frees the memory that an idle session does not need.
    pub(super) fn rest(&mut self) {
        self.incoming.rest();
        self.outgoing.rest();
        self.plain.rest();
    }

    /// Returns the memory of its buffers.
    #[cfg(test)]
    pub(super) fn held_bytes(&self) -> usize {
        self.incoming.memory() + self.outgoing.memory() + self.plain.memory()
    }

    fn run(&mut self, task: &mut Task<'_>) -> Result<Stop, Error> {
        if let Some(error) = &self.failure {
            return Err(error.clone());
        }
        loop {
            match self.step(task) {
                Ok(Step::Again) => {}
                Ok(Step::PeerClosed) => self.peer_closed = true,
                Ok(Step::Stop(stop)) => return Ok(stop),
                Err(error) => {
                    self.fail(error.clone());
                    return Err(error);
                }
            }
        }
    }

    fn step(&mut self, task: &mut Task<'_>) -> Result<Step, Error> {
        let (discard, step) = match &mut self.side {
            Side::Server(connection) => {
                let status = connection.process_tls_records(self.incoming.filled_mut());
                match status.state {
                    Ok(ConnectionState::ReadEarlyData(early)) => {
                        (status.discard, keep_early(early, task, &mut self.plain))
                    }
                    state => {
                        let status = UnbufferedStatus { state, ..status };
                        handle(status, task, &mut self.outgoing, &mut self.plain)
                    }
                }
            }
            Side::Client(connection) => {
                let status = connection.process_tls_records(self.incoming.filled_mut());
                handle(status, task, &mut self.outgoing, &mut self.plain)
            }
        };
        self.incoming.advance(discard);
        step
    }

    /// Keeps the failure, and queues the alert that reports it.
    fn fail(&mut self, error: Error) {
        self.failure = Some(error);
        // Only while there is something to send: the failed records must not be processed again.
        while self.common().wants_write() {
            if !matches!(self.step(&mut Task::Handshake), Ok(Step::Again)) {
                break;
            }
        }
    }
}

/// Handles one state of the connection; returns the number of used incoming bytes.
fn handle<Data>(
    status: UnbufferedStatus<'_, '_, Data>,
    task: &mut Task<'_>,
    outgoing: &mut Buffer,
    plain: &mut Buffer,
) -> (usize, Result<Step, Error>) {
    let mut discard = status.discard;
    let step = status.state.and_then(|state| match state {
        ConnectionState::ReadTraffic(mut traffic) => {
            while let Some(len) = traffic.peek_len() {
                match task {
                    Task::Handshake => return Ok(Step::Stop(Stop::Done)),
                    Task::Read(into, filled) if *filled > 0 && into.len() - *filled < len.get() => {
                        return Ok(Step::Stop(Stop::Done));
                    }
                    _ => {}
                }
                let Some(record) = traffic.next_record() else { break };
                let record = record?;
                discard += record.discard;
                keep(record.payload, task, plain);
            }
            match task {
                Task::Read(into, filled) if *filled == into.len() => Ok(Step::Stop(Stop::Done)),
                _ => Ok(Step::Again),
            }
        }
        ConnectionState::EncodeTlsData(mut data) => {
            let size = match data.encode(&mut []) {
                Ok(n) => n,
                Err(EncodeError::InsufficientSize(error)) => error.required_size,
                Err(EncodeError::AlreadyEncoded) => 0,
            };
            if size > 0 {
                let n =
                    data.encode(outgoing.spare(size)).map_err(|error| Error::General(error.to_string()))?;
                outgoing.grow(n);
            }
            Ok(Step::Again)
        }
        ConnectionState::TransmitTlsData(data) => {
            // The records are ours from here on, and are sent in order before all others.
            data.done();
            Ok(Step::Again)
        }
        ConnectionState::WriteTraffic(traffic) => write(traffic, task, outgoing),
        ConnectionState::PeerClosed => Ok(Step::PeerClosed),
        ConnectionState::Closed => Ok(Step::Stop(Stop::Closed)),
        ConnectionState::BlockedHandshake => Ok(Step::Stop(Stop::Hungry)),
        // A client gets no early data, so no other state occurs.
        _ => Err(Error::General("unexpected state".into())),
    });
    (discard, step)
}

/// Copies early data to the task's buffer, and the rest to `plain`: its limit is the one of the configuration.
fn keep_early(
    mut early: ReadEarlyData<'_, '_, ServerConnectionData>,
    task: &mut Task<'_>,
    plain: &mut Buffer,
) -> Result<Step, Error> {
    while let Some(record) = early.next_record() {
        keep(record?.payload, task, plain);
    }
    Ok(Step::Again)
}

/// Copies plaintext to the task's buffer, and the rest to `plain`.
fn keep(payload: &[u8], task: &mut Task<'_>, plain: &mut Buffer) {
    let mut rest = payload;
    if let Task::Read(into, filled) = task {
        let n = rest.len().min(into.len() - *filled);
        into[*filled..*filled + n].copy_from_slice(&rest[..n]);
        *filled += n;
        rest = &rest[n..];
    }
    if !rest.is_empty() {
        plain.extend(rest);
    }
}

fn write<Data>(
    mut traffic: WriteTraffic<'_, Data>,
    task: &Task<'_>,
    outgoing: &mut Buffer,
) -> Result<Step, Error> {
    let mut encrypt = |into: &mut [u8]| match task {
        Task::Handshake | Task::Read(..) => Ok(0),
        Task::Write(plaintext) => traffic.encrypt(plaintext, into),
        Task::Close => traffic.queue_close_notify(into),
    };
    let room = match task {
        Task::Handshake | Task::Read(..) => return Ok(Step::Stop(Stop::Hungry)),
        Task::Write(plaintext) => {
            plaintext.len() + RECORD_OVERHEAD * (plaintext.len().div_ceil(RECORD_BYTES) + 1)
        }
        Task::Close => RECORD_OVERHEAD,
    };
    let n = match encrypt(outgoing.spare(room)) {
        Err(EncryptError::InsufficientSize(error)) => encrypt(outgoing.spare(error.required_size)),
        result => result,
    };
    outgoing.grow(n.map_err(|_| Error::EncryptError)?);
    Ok(Step::Stop(Stop::Done))
}
