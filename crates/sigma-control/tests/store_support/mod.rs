//! A real etcd for the tests of stores, and short words for what they do.
#![allow(dead_code, reason = "each test binary uses its part")]

use std::io::{Read, Write as _};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use sigma_control::store::etcd::{Etcd, EtcdOptions};
use sigma_control::store::{Condition, Event, Transaction, Watch, Write};

/// How long anything may take before the test has failed.
pub(crate) const DEADLINE: Duration = Duration::from_secs(30);

/// An etcd of this test alone; killed when it is dropped.
pub(crate) struct EtcdServer {
    dir: tempfile::TempDir,
    client: u16,
    peer: u16,
    process: Option<Child>,
    /// Authority, certificate and key, which clients have to show as well.
    tls: Option<[PathBuf; 3]>,
}

impl EtcdServer {
    pub(crate) fn start() -> EtcdServer {
        let mut server = EtcdServer::absent();
        server.run();
        server
    }

    /// A place where an etcd can be started later.
    pub(crate) fn absent() -> EtcdServer {
        let dir = tempfile::tempdir().unwrap();
        let (client, peer) = (sigma_testkit::free_port(), sigma_testkit::free_port());
        EtcdServer { dir, client, peer, process: None, tls: None }
    }

    /// One that speaks TLS, with a certificate for `etcd.test`, and wants the same from clients.
    pub(crate) fn start_with_tls() -> EtcdServer {
        let mut server = EtcdServer::absent();
        let paths = ["ca.pem", "cert.pem", "key.pem"].map(|name| server.dir().join(name));
        let mut authority = rcgen::CertificateParams::default();
        authority.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
        let authority_key = rcgen::KeyPair::generate().unwrap();
        let authority = rcgen::CertifiedIssuer::self_signed(authority, authority_key).unwrap();
        let mut params = rcgen::CertificateParams::new(["etcd.test".to_owned()]).unwrap();
        params.extended_key_usages =
            vec![rcgen::ExtendedKeyUsagePurpose::ServerAuth, rcgen::ExtendedKeyUsagePurpose::ClientAuth];
        let key = rcgen::KeyPair::generate().unwrap();
        let certificate = params.signed_by(&key, &authority).unwrap();
        let texts = [authority.pem(), certificate.pem(), key.serialize_pem()];
        for (path, text) in paths.iter().zip(texts) {
            std::fs::write(path, text).unwrap();
        }
        server.tls = Some(paths);
        server.run();
        server
    }

    /// Authority, certificate and key.
    pub(crate) fn tls(&self) -> &[PathBuf; 3] {
        self.tls.as_ref().unwrap()
    }

    pub(crate) fn endpoint(&self) -> String {
        let scheme = if self.tls.is_some() { "https" } else { "http" };
        format!("{scheme}://127.0.0.1:{}", self.client)
    }

    pub(crate) fn dir(&self) -> &Path {
        self.dir.path()
    }

    /// Starts it, or starts it again on the same data, and waits until it is healthy.
    pub(crate) fn run(&mut self) {
        let (client, peer) = (self.endpoint(), format!("http://127.0.0.1:{}", self.peer));
        let mut command = Command::new("etcd");
        if let Some([ca, cert, key]) = &self.tls {
            command.arg("--client-cert-auth").arg("--trusted-ca-file").arg(ca);
            command.arg("--cert-file").arg(cert).arg("--key-file").arg(key);
        }
        let process = command
            .args(["--name", "one", "--data-dir"])
            .arg(self.dir.path().join("etcd"))
            .args(["--listen-client-urls", &client, "--advertise-client-urls", &client])
            .args(["--listen-peer-urls", &peer, "--initial-advertise-peer-urls", &peer])
            .args(["--initial-cluster", &format!("one={peer}"), "--log-level", "error"])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn();
        let process = process.unwrap_or_else(|error| {
            panic!("etcd does not start ({error}); install it with `apt-get install etcd-server`, or run `make test`")
        });
        self.process = Some(process);
        let began = Instant::now();
        while !self.is_healthy() {
            assert!(began.elapsed() < DEADLINE, "etcd is not healthy");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Throws all data away; only while it is not running.
    pub(crate) fn forget(&self) {
        std::fs::remove_dir_all(self.dir.path().join("etcd")).unwrap();
    }

    pub(crate) fn kill(&mut self) {
        if let Some(mut process) = self.process.take() {
            process.kill().unwrap();
            process.wait().unwrap();
        }
    }

    pub(crate) fn pause(&self) {
        self.signal(Signal::STOP);
    }

    pub(crate) fn resume(&self) {
        self.signal(Signal::CONT);
    }

    fn signal(&self, signal: Signal) {
        let id = self.process.as_ref().unwrap().id();
        kill_process(Pid::from_raw(i32::try_from(id).unwrap()).unwrap(), signal).unwrap();
    }

    fn is_healthy(&self) -> bool {
        if self.tls.is_some() {
            // The store under test asks again by itself.
            return TcpStream::connect(("127.0.0.1", self.client)).is_ok();
        }
        let Ok(mut stream) = TcpStream::connect(("127.0.0.1", self.client)) else { return false };
        stream.set_read_timeout(Some(Duration::from_secs(2))).unwrap();
        let mut answer = String::new();
        let asked = stream.write_all(b"GET /health HTTP/1.0\r\n\r\n");
        asked.is_ok() && stream.read_to_string(&mut answer).is_ok() && answer.contains("\"true\"")
    }

    /// Options with short times, so that what is lost is noticed within a test.
    pub(crate) fn options(&self) -> EtcdOptions {
        EtcdOptions {
            endpoints: vec![self.endpoint()],
            timeout: Duration::from_secs(2),
            watch_timeout: Duration::from_secs(2),
            resync_delay: Duration::from_millis(200),
            ..EtcdOptions::default()
        }
    }

    pub(crate) fn store(&self) -> Etcd {
        Etcd::new(self.options()).unwrap()
    }

    pub(crate) async fn client(&self) -> etcd_client::Client {
        etcd_client::Client::connect([self.endpoint()], None).await.unwrap()
    }
}

impl Drop for EtcdServer {
    fn drop(&mut self) {
        self.kill();
    }
}

pub(crate) fn put(key: &str, value: &str) -> Write {
    Write::Put { key: key.into(), value: value.to_owned().into(), ttl: None }
}

pub(crate) fn put_for(key: &str, value: &str, ttl: Duration) -> Write {
    Write::Put { key: key.into(), value: value.to_owned().into(), ttl: Some(ttl) }
}

pub(crate) fn delete(key: &str) -> Write {
    Write::Delete { key: key.into() }
}

pub(crate) fn absent(key: &str) -> Condition {
    Condition::Absent { key: key.into() }
}

pub(crate) fn at(key: &str, revision: u64) -> Condition {
    Condition::ModifiedAt { key: key.into(), revision }
}

pub(crate) fn always(writes: impl Into<Vec<Write>>) -> Transaction {
    Transaction { conditions: Vec::new(), writes: writes.into() }
}

pub(crate) fn when(conditions: impl Into<Vec<Condition>>, writes: impl Into<Vec<Write>>) -> Transaction {
    Transaction { conditions: conditions.into(), writes: writes.into() }
}

/// The next event.
pub(crate) async fn next(watch: &mut Watch) -> Event {
    tokio::time::timeout(DEADLINE, watch.recv())
        .await
        .expect("an event in time")
        .expect("a watch that goes on")
}

/// Waits for an event that `wanted` accepts; others are passed over.
pub(crate) async fn until<T>(watch: &mut Watch, mut wanted: impl FnMut(&Event) -> Option<T>) -> T {
    let search = async {
        loop {
            if let Some(found) = wanted(&watch.recv().await.expect("a watch that goes on")) {
                return found;
            }
        }
    };
    tokio::time::timeout(DEADLINE, search).await.expect("the event in time")
}
