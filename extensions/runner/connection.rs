//! A connection to the runner: one exchange after the other, frame by frame.

use std::io::ErrorKind;
use std::path::Path;
use std::time::Duration;

use sigma_buffer::held::{self, CountedBytes};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio::time::{sleep, timeout};

use crate::messages::{HEADER_BYTES, header};

/// The time for a connection.
const CONNECT: Duration = Duration::from_secs(1);
/// The pause before another attempt while the queue of the runner's socket is full.
const PAUSE: Duration = Duration::from_millis(10);
/// The time for a frame to leave, and for one to arrive.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);
/// The growth of a buffer for a payload: a runner that announces 16 MiB takes them only by sending them.
const STEP_BYTES: usize = 64 << 10;

/// A connection.
#[derive(Debug)]
pub(crate) struct Connection(UnixStream);

/// A frame of the runner, whose bytes count in the worker's budget.
#[derive(Debug)]
pub(crate) struct Received {
    pub(crate) kind: u8,
    pub(crate) payload: Vec<u8>,
    held: CountedBytes,
}

impl Connection {
    /// Connects.
    ///
    /// # Errors
    /// Returns the reason if the runner does not accept in time.
    pub(crate) async fn open(path: &Path) -> Result<Connection, String> {
        let attempts = async {
            loop {
                match UnixStream::connect(path).await {
                    // The queue of the socket is full.
                    Err(error) if error.kind() == ErrorKind::WouldBlock => sleep(PAUSE).await,
                    opened => return opened,
                }
            }
        };
        match timeout(CONNECT, attempts).await {
            Ok(Ok(stream)) => Ok(Connection(stream)),
            Ok(Err(error)) => Err(reason(&error)),
            Err(_) => Err("timeout".to_owned()),
        }
    }

    /// Returns true if an idle connection can be used: the runner has neither closed it nor sent bytes that no call
    /// waits for.
    pub(crate) fn is_idle(&self) -> bool {
        let read = self.0.try_read(&mut [0]);
        matches!(read, Err(error) if error.kind() == ErrorKind::WouldBlock)
    }

    /// Sends a frame.
    ///
    /// # Errors
    /// Returns the reason if it does not leave in time.
    pub(crate) async fn send(&mut self, frame: &[u8]) -> Result<(), String> {
        match timeout(PATIENCE, self.0.write_all(frame)).await {
            Ok(sent) => sent.map_err(|error| reason(&error)),
            Err(_) => Err("timeout".to_owned()),
        }
    }

    /// Receives a frame of a type that `is_expected`.
    ///
    /// # Errors
    /// Returns the reason if it does not arrive whole and in time, or if there is no memory for it.
    pub(crate) async fn receive(&mut self, is_expected: impl Fn(u8) -> bool) -> Result<Received, String> {
        timeout(PATIENCE, self.frame(is_expected)).await.unwrap_or_else(|_| Err("timeout".to_owned()))
    }

    async fn frame(&mut self, is_expected: impl Fn(u8) -> bool) -> Result<Received, String> {
        let mut start = [0; HEADER_BYTES];
        let mut length = 0;
        while length < HEADER_BYTES {
            match self.0.read(&mut start[length..]).await {
                Ok(0) if length == 0 => return Err("closed".to_owned()),
                Ok(0) => return Err("header too short".to_owned()),
                Ok(more) => length += more,
                Err(error) => return Err(reason(&error)),
            }
        }
        let (kind, length) = header(start);
        // Its length may be no length.
        if !is_expected(kind) {
            return Err(format!("unexpected type {kind}"));
        }
        let mut received = Received { kind, payload: Vec::new(), held: CountedBytes::default() };
        while received.payload.len() < length {
            let step = STEP_BYTES.min(length - received.payload.len());
            received.grow(step)?;
            let piece = (&mut self.0).take(step as u64).read_buf(&mut received.payload).await;
            if piece.map_err(|error| reason(&error))? == 0 {
                return Err("data truncated".to_owned());
            }
        }
        Ok(received)
    }
}

impl Received {
    fn grow(&mut self, bytes: usize) -> Result<(), String> {
        if bytes > held::body_room() {
            held::refused();
            return Err("the worker has no memory for the runner's message".to_owned());
        }
        self.payload.reserve(bytes);
        self.held.set(self.payload.capacity());
        Ok(())
    }
}

/// Returns the words of nginx for the errors that operators know from APISIX.
fn reason(error: &std::io::Error) -> String {
    match error.kind() {
        ErrorKind::NotFound => "no such file or directory".to_owned(),
        ErrorKind::ConnectionRefused => "connection refused".to_owned(),
        ErrorKind::PermissionDenied => "permission denied".to_owned(),
        ErrorKind::BrokenPipe => "broken pipe".to_owned(),
        ErrorKind::ConnectionReset => "connection reset by peer".to_owned(),
        _ => error.to_string(),
    }
}
