//! A scripted provider of Dubbo. It shares no code with the gateway's codec.

use std::sync::{Arc, Mutex};

use anyhow::{Result, ensure};

use crate::origin::Origin;
use crate::peer::Peer;

/// A received frame: its header without the length, and the rest.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DubboFrame {
    /// The third byte: request, two-way, event, and the serialization.
    pub flags: u8,
    /// The fourth byte.
    pub status: u8,
    /// The number of the call.
    pub id: u64,
    /// The values.
    pub body: Vec<u8>,
}

impl DubboFrame {
    /// Reads the next frame of a connection.
    ///
    /// # Errors
    /// Returns an error without one.
    pub fn read(peer: &mut Peer) -> Result<DubboFrame> {
        let head = peer.read_exactly(16)?;
        ensure!(head[..2] == [0xda, 0xbb], "no frame of Dubbo: {head:?}");
        let length = u32::from_be_bytes([head[12], head[13], head[14], head[15]]);
        let id = head[4..12].iter().fold(0, |id, byte| id << 8 | u64::from(*byte));
        Ok(DubboFrame { flags: head[2], status: head[3], id, body: peer.read_exactly(length as usize)? })
    }

    /// Returns the frame as bytes.
    pub fn bytes(&self) -> Vec<u8> {
        let mut out = vec![0xda, 0xbb, self.flags, self.status];
        out.extend_from_slice(&self.id.to_be_bytes());
        out.extend_from_slice(&(self.body.len() as u32).to_be_bytes());
        out.extend_from_slice(&self.body);
        out
    }

    /// Returns the response to this call with a status and values.
    pub fn answered(&self, status: u8, body: impl Into<Vec<u8>>) -> Vec<u8> {
        DubboFrame { flags: self.flags & 0x1f, status, id: self.id, body: body.into() }.bytes()
    }

    /// Returns the lines of a call in JSON.
    pub fn lines(&self) -> Vec<String> {
        String::from_utf8_lossy(&self.body).lines().map(str::to_owned).collect()
    }

    /// Returns true if the call contains these bytes.
    pub fn has(&self, part: &[u8]) -> bool {
        self.body.windows(part.len()).any(|window| window == part)
    }
}

/// A provider, with the calls that it received.
#[derive(Debug)]
pub struct DubboProvider {
    origin: Origin,
    seen: Arc<Mutex<Vec<DubboFrame>>>,
}

impl DubboProvider {
    /// Starts a provider that responds to each call with the bytes that a function returns; without any it closes the
    /// connection.
    ///
    /// # Errors
    /// Returns an error if it cannot listen.
    pub fn start(answer: impl Fn(&DubboFrame) -> Vec<u8> + Send + Sync + 'static) -> Result<DubboProvider> {
        let seen = Arc::new(Mutex::new(Vec::new()));
        let notes = Arc::clone(&seen);
        let origin = Origin::serve(move |mut peer| {
            while let Ok(frame) = DubboFrame::read(&mut peer) {
                // Responses to heartbeats are noted, too.
                let is_call = frame.flags & 0xa0 == 0x80;
                let bytes = if is_call { answer(&frame) } else { Vec::new() };
                notes.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).push(frame);
                if is_call && (bytes.is_empty() || peer.send(bytes).is_err()) {
                    return;
                }
            }
        })?;
        Ok(DubboProvider { origin, seen })
    }

    /// Returns the port that it listens on.
    pub fn port(&self) -> u16 {
        self.origin.port()
    }

    /// Returns the number of its connections so far.
    pub fn connections(&self) -> usize {
        self.origin.connections()
    }

    /// Returns the received frames.
    pub fn seen(&self) -> Vec<DubboFrame> {
        self.seen.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).clone()
    }
}

/// Returns a short text in Hessian 2, of less than 1024 units.
pub fn hessian_text(text: &str) -> Vec<u8> {
    let [high, low] = (text.encode_utf16().count() as u16).to_be_bytes();
    let mut out = if high == 0 && low < 32 { vec![low] } else { vec![0x30 + high, low] };
    out.extend_from_slice(text.as_bytes());
    out
}

/// Returns the values of a response of this kind with a map of texts in Hessian 2: 1, or 4 with attachments.
pub fn hessian_map(kind: u8, pairs: &[(&str, &str)]) -> Vec<u8> {
    let mut out = vec![0x90 + kind, b'H'];
    for (key, value) in pairs {
        out.extend(hessian_text(key));
        out.extend(hessian_text(value));
    }
    out.push(b'Z');
    if kind == 4 {
        out.extend_from_slice(b"H\x05dubbo\x052.0.2Z");
    }
    out
}
