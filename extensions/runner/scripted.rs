//! A runner for tests: it follows a script on a real Unix socket, and notes the frames that it gets.

use std::io::{Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::{Arc, Mutex};

use tempfile::TempDir;

use crate::messages::{HEADER_BYTES, header};

/// A frame that the runner got.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Got {
    pub(crate) kind: u8,
    pub(crate) payload: Vec<u8>,
}

/// A step of the runner after it got a frame.
pub(crate) enum Act {
    Send(Vec<u8>),
    SendAndClose(Vec<u8>),
    Close,
    /// Nothing, until the other side closes.
    Hang,
}

/// The runner; its threads end with the sockets of the test.
pub(crate) struct Scripted {
    folder: TempDir,
    got: Arc<Mutex<Vec<Got>>>,
    connections: Arc<Mutex<usize>>,
}

impl Scripted {
    /// Starts one. `script` gets the number of the frame, over all connections, and the frame.
    pub(crate) fn start(script: impl Fn(usize, &Got) -> Act + Send + Sync + 'static) -> Scripted {
        let folder = tempfile::tempdir().unwrap();
        let listener = UnixListener::bind(folder.path().join("runner.sock")).unwrap();
        let (got, connections) = (Arc::<Mutex<Vec<Got>>>::default(), Arc::<Mutex<usize>>::default());
        let (noted, counted, script) = (Arc::clone(&got), Arc::clone(&connections), Arc::new(script));
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                *counted.lock().unwrap() += 1;
                let (noted, script) = (Arc::clone(&noted), Arc::clone(&script));
                std::thread::spawn(move || serve(stream.unwrap(), &noted, &*script));
            }
        });
        Scripted { folder, got, connections }
    }

    pub(crate) fn socket(&self) -> std::path::PathBuf {
        self.folder.path().join("runner.sock")
    }

    pub(crate) fn got(&self) -> Vec<Got> {
        self.got.lock().unwrap().clone()
    }

    pub(crate) fn kinds(&self) -> Vec<u8> {
        self.got().iter().map(|got| got.kind).collect()
    }

    pub(crate) fn connections(&self) -> usize {
        *self.connections.lock().unwrap()
    }
}

fn serve(mut stream: UnixStream, noted: &Mutex<Vec<Got>>, script: &dyn Fn(usize, &Got) -> Act) {
    loop {
        let mut start = [0; HEADER_BYTES];
        if stream.read_exact(&mut start).is_err() {
            return;
        }
        let (kind, length) = header(start);
        let mut payload = vec![0; length];
        if stream.read_exact(&mut payload).is_err() {
            return;
        }
        let got = Got { kind, payload };
        let number = {
            let mut all = noted.lock().unwrap();
            all.push(got.clone());
            all.len() - 1
        };
        match script(number, &got) {
            Act::Send(bytes) => stream.write_all(&bytes).unwrap_or_default(),
            Act::SendAndClose(bytes) => return stream.write_all(&bytes).unwrap_or_default(),
            Act::Close => return,
            Act::Hang => {
                let _ = stream.read(&mut [0]);
                return;
            }
        }
    }
}

/// A socket on which no runner listens.
pub(crate) fn nowhere() -> &'static Path {
    Path::new("/no/such/folder/runner.sock")
}
