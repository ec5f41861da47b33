//! A real LDAP directory, for the tests of plugins that ask one.

use std::fs;
use std::process::{Child, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use tempfile::TempDir;

use crate::ports::free_port;
use crate::{process, until};

/// A directory starts at once; on a loaded machine later.
const START: Duration = Duration::from_secs(60);

const MISSING: &str = "is missing; install it with `apt-get install --no-install-recommends slapd`";

/// A running `slapd` over `dc=test`, whose administrator is `cn=admin,dc=test` with the password
/// `admins-password`. Dropping it kills the process.
#[derive(Debug)]
pub struct Slapd {
    child: Child,
    port: u16,
    tls_port: u16,
    dir: TempDir,
}

impl Slapd {
    /// Starts a directory with these entries, written as LDIF, that shows this certificate (PEM, with its key).
    pub fn start(entries: &str, cert: &str, key: &str) -> Result<Slapd> {
        let dir = tempfile::tempdir()?;
        let place = dir.path().to_str().context("the folder's name")?;
        let schemas = ["core", "cosine", "inetorgperson"];
        let schemas = schemas.map(|name| format!("include /etc/ldap/schema/{name}.schema\n")).concat();
        let config = format!(
            "{schemas}pidfile {place}/pid\nmodulepath /usr/lib/ldap\nmoduleload back_mdb\n\
             TLSCertificateFile {place}/cert.pem\nTLSCertificateKeyFile {place}/key.pem\n\
             database mdb\nsuffix \"dc=test\"\ndirectory {place}/data\nrootdn \"cn=admin,dc=test\"\n\
             rootpw admins-password\naccess to attrs=userPassword by anonymous auth by * none\n\
             access to * by * read\n"
        );
        fs::create_dir(dir.path().join("data"))?;
        for (name, text) in
            [("slapd.conf", &*config), ("entries.ldif", entries), ("cert.pem", cert), ("key.pem", key)]
        {
            fs::write(dir.path().join(name), text)?;
        }
        let added = process::command("slapadd")
            .with_context(|| format!("slapadd {MISSING}"))?
            .args(["-f", &format!("{place}/slapd.conf"), "-l", &format!("{place}/entries.ldif")])
            .output()?;
        ensure!(added.status.success(), "slapadd: {}", String::from_utf8_lossy(&added.stderr));
        let (port, tls_port) = (free_port(), free_port());
        let child = spawn(place, port, tls_port)?;
        Ok(Slapd { child, port, tls_port, dir })
    }

    /// Returns the port for cleartext and StartTLS.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Returns the port for TLS from the first byte.
    pub fn tls_port(&self) -> u16 {
        self.tls_port
    }

    /// Kills it, as a crash would.
    pub fn kill(&mut self) -> Result<()> {
        self.child.kill()?;
        self.child.wait()?;
        Ok(())
    }

    /// Starts it again on the same data.
    pub fn start_again(&mut self) -> Result<()> {
        let place = self.dir.path().to_str().context("the folder's name")?;
        self.child = spawn(place, self.port, self.tls_port)?;
        Ok(())
    }
}

fn spawn(place: &str, port: u16, tls_port: u16) -> Result<Child> {
    let mut command = process::command("slapd").with_context(|| format!("slapd {MISSING}"))?;
    command
        .args(["-f", &format!("{place}/slapd.conf"), "-d", "0"])
        .args(["-h", &format!("ldap://127.0.0.1:{port}/ ldaps://127.0.0.1:{tls_port}/")])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    let child = process::spawn(command).context("start slapd")?;
    let accepts = |port| std::net::TcpStream::connect(("127.0.0.1", port)).is_ok();
    ensure!(until(START, || accepts(port) && accepts(tls_port)), "slapd does not accept on port {port}");
    Ok(child)
}

impl Drop for Slapd {
    fn drop(&mut self) {
        // It may have been killed before.
        let _ = self.kill();
    }
}
