//! A real etcd, for the tests of stores and of many nodes.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::ports::free_port;
use crate::{Address, Message, Peer, process, until};

/// How long a start may take on a loaded machine.
const START: Duration = Duration::from_secs(30);

const MISSING: &str =
    "etcd does not start; install it with `apt-get install etcd-server`, or run `make test`";

/// An etcd of a single test, with its own folder; killed when it is dropped.
#[derive(Debug)]
pub struct EtcdServer {
    dir: TempDir,
    client: u16,
    peer: u16,
    process: Option<Child>,
    /// Authority, certificate and key, which clients must have as well.
    tls: Option<[PathBuf; 3]>,
}

impl EtcdServer {
    /// Starts one, and waits until it is healthy.
    pub fn start() -> Result<EtcdServer> {
        let mut server = EtcdServer::absent()?;
        server.run()?;
        Ok(server)
    }

    /// Returns an etcd that can be started later.
    pub fn absent() -> Result<EtcdServer> {
        let dir = tempfile::tempdir().context("temporary folder")?;
        Ok(EtcdServer { dir, client: free_port(), peer: free_port(), process: None, tls: None })
    }

    /// Starts one with TLS and a certificate for `etcd.test`, which requires the same of clients.
    pub fn start_with_tls() -> Result<EtcdServer> {
        let mut server = EtcdServer::absent()?;
        let paths = ["ca.pem", "cert.pem", "key.pem"].map(|name| server.dir().join(name));
        let mut authority = rcgen::CertificateParams::default();
        authority.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
        let authority = rcgen::CertifiedIssuer::self_signed(authority, rcgen::KeyPair::generate()?)?;
        let mut params = rcgen::CertificateParams::new(["etcd.test".to_owned()])?;
        params.extended_key_usages =
            vec![rcgen::ExtendedKeyUsagePurpose::ServerAuth, rcgen::ExtendedKeyUsagePurpose::ClientAuth];
        let key = rcgen::KeyPair::generate()?;
        let certificate = params.signed_by(&key, &authority)?;
        let texts = [authority.pem(), certificate.pem(), key.serialize_pem()];
        for (path, text) in paths.iter().zip(texts) {
            std::fs::write(path, text)?;
        }
        server.tls = Some(paths);
        server.run()?;
        Ok(server)
    }

    /// Returns the authority, certificate and key of one with TLS.
    pub fn tls(&self) -> Option<&[PathBuf; 3]> {
        self.tls.as_ref()
    }

    /// Returns its URL for clients.
    pub fn endpoint(&self) -> String {
        let scheme = if self.tls.is_some() { "https" } else { "http" };
        format!("{scheme}://127.0.0.1:{}", self.client)
    }

    /// Returns the port for clients.
    pub fn port(&self) -> u16 {
        self.client
    }

    /// Returns its folder, which may contain other files of the test too.
    pub fn dir(&self) -> &Path {
        self.dir.path()
    }

    /// Starts it, or starts it again on the same data, and waits until it is healthy.
    pub fn run(&mut self) -> Result<()> {
        let (client, peer) = (self.endpoint(), format!("http://127.0.0.1:{}", self.peer));
        let mut command = process::command("etcd").context(MISSING)?;
        if let Some([ca, cert, key]) = &self.tls {
            command.arg("--client-cert-auth").arg("--trusted-ca-file").arg(ca);
            command.arg("--cert-file").arg(cert).arg("--key-file").arg(key);
        }
        command
            .args(["--name", "one", "--data-dir"])
            .arg(self.data())
            .args(["--listen-client-urls", &client, "--advertise-client-urls", &client])
            .args(["--listen-peer-urls", &peer, "--initial-advertise-peer-urls", &peer])
            .args(["--initial-cluster", &format!("one={peer}"), "--log-level", "error"])
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        self.process = Some(process::spawn(command).context(MISSING)?);
        ensure!(until(START, || self.is_healthy()), "etcd is not healthy after {START:?}");
        Ok(())
    }

    /// Deletes all data; only while it is not running.
    pub fn forget(&self) -> Result<()> {
        Ok(std::fs::remove_dir_all(self.data())?)
    }

    /// Saves its data as `etcdctl snapshot save` does, for [`EtcdServer::restore`].
    pub fn save(&self) -> Result<()> {
        let file = self.snapshot();
        etcdctl(&["--endpoints", &self.endpoint(), "snapshot", "save"], &file)
    }

    /// Starts it again on the saved data, as the same member of the same cluster.
    pub fn restore(&mut self) -> Result<()> {
        self.kill()?;
        self.forget()?;
        let peer = format!("http://127.0.0.1:{}", self.peer);
        let (cluster, data) = (format!("one={peer}"), self.data());
        let data = data.to_str().context("a folder that is not text")?;
        let member = ["--name", "one", "--initial-cluster", &cluster, "--initial-advertise-peer-urls", &peer];
        etcdctl(&[&["snapshot", "restore", "--data-dir", data], &member[..]].concat(), &self.snapshot())?;
        self.run()
    }

    /// `kill -9`. Its data stays for [`EtcdServer::run`].
    pub fn kill(&mut self) -> Result<()> {
        if let Some(mut process) = self.process.take() {
            process.kill()?;
            process.wait()?;
        }
        Ok(())
    }

    /// Stops it at any point (SIGSTOP): connections stay, answers do not come.
    pub fn pause(&self) -> Result<()> {
        self.signal(Signal::STOP)
    }

    /// Continues it.
    pub fn resume(&self) -> Result<()> {
        self.signal(Signal::CONT)
    }

    /// Writes a key without a gateway, as another program would; returns the revision.
    pub fn put(&self, key: &str, value: &str) -> Result<u64> {
        let body = json!({"key": base64(key.as_bytes()), "value": base64(value.as_bytes())});
        self.revision_of(&self.call("/v3/kv/put", &body)?)
    }

    /// Deletes a key without a gateway; returns the revision.
    pub fn delete(&self, key: &str) -> Result<u64> {
        self.revision_of(&self.call("/v3/kv/deleterange", &json!({"key": base64(key.as_bytes())}))?)
    }

    /// Returns the value of a key, and the revision in which it was written.
    pub fn get(&self, key: &str) -> Result<Option<(Vec<u8>, u64)>> {
        let answer = self.call("/v3/kv/range", &json!({"key": base64(key.as_bytes())}))?;
        let Some(kv) = answer["kvs"].get(0) else { return Ok(None) };
        // Its gateway leaves out empty values.
        let value = plain(kv["value"].as_str().unwrap_or_default())?;
        Ok(Some((value, number(&kv["mod_revision"])?)))
    }

    /// Returns how many keys begin with `prefix`, which does not end with the highest byte.
    pub fn count(&self, prefix: &str) -> Result<u64> {
        let mut end = prefix.as_bytes().to_vec();
        *end.last_mut().context("an empty prefix")? += 1;
        let range = json!({"key": base64(prefix.as_bytes()), "range_end": base64(&end), "count_only": true});
        let answer = self.call("/v3/kv/range", &range)?;
        if answer["count"].is_null() { Ok(0) } else { number(&answer["count"]) }
    }

    /// Returns the number of leases.
    pub fn leases(&self) -> Result<usize> {
        let answer = self.call("/v3/lease/leases", &json!({}))?;
        Ok(answer["leases"].as_array().map_or(0, Vec::len))
    }

    /// Creates the user `root` with this password, and from now on rejects requests without a user.
    pub fn protect(&self, password: &str) -> Result<()> {
        self.call("/v3/auth/user/add", &json!({"name": "root", "password": password}))?;
        self.call("/v3/auth/role/add", &json!({"name": "root"}))?;
        self.call("/v3/auth/user/grant", &json!({"user": "root", "role": "root"}))?;
        self.call("/v3/auth/enable", &json!({}))?;
        Ok(())
    }

    /// Forgets all history up to the present revision.
    pub fn compact(&self) -> Result<()> {
        let now = self.revision_of(&self.call("/v3/kv/range", &json!({"key": base64(b"/")}))?)?;
        self.call("/v3/kv/compaction", &json!({"revision": now.to_string(), "physical": true}))?;
        Ok(())
    }

    /// Calls its JSON gateway.
    fn call(&self, path: &str, body: &Value) -> Result<Value> {
        let body = body.to_string();
        let request = format!(
            "POST {path} HTTP/1.1\r\nHost: etcd\r\nContent-Type: application/json\r\nConnection: close\r\nContent-Length: {}\r\n\r\n{body}",
            body.len()
        );
        let answer: Message = Peer::connect(&Address::loopback(self.client))?.ask(request)?;
        if answer.status() != 200 {
            bail!("etcd answers {path} with {}: {}", answer.status(), answer.text());
        }
        answer.json()
    }

    fn revision_of(&self, answer: &Value) -> Result<u64> {
        number(&answer["header"]["revision"])
    }

    fn data(&self) -> PathBuf {
        self.dir.path().join("etcd")
    }

    fn snapshot(&self) -> PathBuf {
        self.dir.path().join("snapshot")
    }

    fn signal(&self, signal: Signal) -> Result<()> {
        let id = self.process.as_ref().context("etcd is not running")?.id();
        let id = Pid::from_raw(i32::try_from(id)?).context("process id 0")?;
        Ok(kill_process(id, signal)?)
    }

    fn is_healthy(&self) -> bool {
        let Ok(mut stream) = TcpStream::connect(("127.0.0.1", self.client)) else { return false };
        if self.tls.is_some() {
            // A client over TLS retries by itself.
            return true;
        }
        let mut answer = String::new();
        stream.set_read_timeout(Some(Duration::from_secs(2))).is_ok()
            && stream.write_all(b"GET /health HTTP/1.0\r\n\r\n").is_ok()
            && stream.read_to_string(&mut answer).is_ok()
            && answer.contains("\"true\"")
    }
}

impl Drop for EtcdServer {
    fn drop(&mut self) {
        // A failure cannot be reported here.
        let _ = self.kill();
    }
}

fn etcdctl(arguments: &[&str], file: &Path) -> Result<()> {
    let output = Command::new("etcdctl").env("ETCDCTL_API", "3").args(arguments).arg(file).output();
    let output = output.context(
        "etcdctl does not start; install it with `apt-get install etcd-client`, or run `make test`",
    )?;
    ensure!(output.status.success(), "etcdctl: {}", String::from_utf8_lossy(&output.stderr));
    Ok(())
}

/// Parses a number: its gateway writes numbers of 64 bits as texts.
fn number(value: &Value) -> Result<u64> {
    let text = value.as_str().with_context(|| format!("no number in etcd's answer: {value}"))?;
    Ok(text.parse()?)
}

/// The alphabet of RFC 4648, section 4: etcd's JSON encodes keys and values with it.
const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

fn base64(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for group in bytes.chunks(3) {
        let bits =
            group.iter().fold(0_u32, |bits, &byte| bits << 8 | u32::from(byte)) << (8 * (3 - group.len()));
        for place in 0..4 {
            let letter = ALPHABET[(bits >> (18 - 6 * place)) as usize & 63];
            text.push(if place <= group.len() { char::from(letter) } else { '=' });
        }
    }
    text
}

fn plain(coded: &str) -> Result<Vec<u8>> {
    let mut bytes = Vec::with_capacity(coded.len() / 4 * 3);
    for group in coded.trim_end_matches('=').as_bytes().chunks(4) {
        let mut bits = 0_u32;
        for place in 0..4 {
            let letter = group.get(place).copied().unwrap_or(b'A');
            let number = ALPHABET.iter().position(|&known| known == letter);
            bits = bits << 6 | u32::try_from(number.context("no base64 in etcd's answer")?)?;
        }
        bytes.extend_from_slice(&bits.to_be_bytes()[1..group.len()]);
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::{base64, plain};

    #[test]
    fn base64_of_the_rfc() {
        // RFC 4648, section 10.
        for (text, coded) in
            [("", ""), ("f", "Zg=="), ("fo", "Zm8="), ("foo", "Zm9v"), ("foobar", "Zm9vYmFy")]
        {
            assert_eq!(base64(text.as_bytes()), coded);
            assert_eq!(plain(coded).unwrap(), text.as_bytes());
        }
    }
}
