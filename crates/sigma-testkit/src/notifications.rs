//! The notifications that a gateway sends to its service manager (sd_notify(3)).

use std::fs::{self, Permissions};
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tempfile::TempDir;

/// Larger than any notification.
const BYTES: usize = 4_096;

/// The socket of a service manager. A thread reads it all the time, as its queue is short.
#[derive(Debug)]
pub(crate) struct Notifications {
    received: Arc<Mutex<String>>,
    path: PathBuf,
    _dir: TempDir,
}

impl Notifications {
    /// Binds the socket in a folder that every user may reach: a gateway may give up its rights.
    pub(crate) fn bind() -> io::Result<Notifications> {
        let dir = tempfile::Builder::new().permissions(Permissions::from_mode(0o755)).tempdir()?;
        let path = dir.path().join("notify");
        let socket = UnixDatagram::bind(&path)?;
        fs::set_permissions(&path, Permissions::from_mode(0o777))?;
        let received = Arc::<Mutex<String>>::default();
        let sink = Arc::clone(&received);
        std::thread::spawn(move || {
            let mut bytes = [0; BYTES];
            // Nothing is received at the end.
            while let Ok(len @ 1..) = socket.recv(&mut bytes) {
                lock(&sink).push_str(&String::from_utf8_lossy(&bytes[..len]));
            }
        });
        Ok(Notifications { received, path, _dir: dir })
    }

    /// Returns the path of the socket.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the lines that were received and not taken yet.
    pub(crate) fn received(&self) -> MutexGuard<'_, String> {
        lock(&self.received)
    }

    /// Takes all text up to and with `line`; returns false if `line` is not in it.
    pub(crate) fn take(&self, line: &str) -> bool {
        let mut received = self.received();
        let found = received.find(line).map(|start| start + line.len());
        received.drain(..found.unwrap_or_default());
        found.is_some()
    }
}

impl Drop for Notifications {
    fn drop(&mut self) {
        // An empty datagram ends the thread. Without a thread the socket refuses it.
        let _ = UnixDatagram::unbound().and_then(|socket| socket.send_to(&[], &self.path));
    }
}

fn lock(text: &Mutex<String>) -> MutexGuard<'_, String> {
    text.lock().unwrap_or_else(PoisonError::into_inner)
}
