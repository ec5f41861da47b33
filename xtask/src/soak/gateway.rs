//! A gateway under load.

use std::fs::{self, File};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};

const START_LIMIT: Duration = Duration::from_secs(30);

/// A gateway; dropped, it ends.
pub(crate) struct Gateway {
    child: Child,
    pub(crate) name: &'static str,
    pub(crate) port: u16,
}

impl Gateway {
    /// Starts it with a configuration that names no listener; files are kept in `work` under its name.
    pub(crate) fn start(
        sigma: &Path,
        work: &Path,
        name: &'static str,
        config: &str,
    ) -> anyhow::Result<Gateway> {
        let port = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?.port();
        let text = format!("listeners: [\"127.0.0.1:{port}\"]\n{config}");
        let file = work.join(format!("{name}.yaml"));
        fs::write(&file, text).with_context(|| format!("cannot write {}", file.display()))?;
        let path = work.join(format!("{name}.log"));
        let log = File::create(&path).with_context(|| format!("cannot write {}", path.display()))?;
        let child = Command::new(sigma)
            .args(["run", "-c"])
            .arg(&file)
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            .spawn()
            .with_context(|| format!("cannot start {}", sigma.display()))?;
        let mut gateway = Gateway { child, name, port };
        let begin = Instant::now();
        while TcpStream::connect((Ipv4Addr::LOCALHOST, port)).is_err() {
            if gateway.child.try_wait()?.is_some() || begin.elapsed() > START_LIMIT {
                bail!("the {name} gateway does not start: read {}", path.display());
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        Ok(gateway)
    }

    /// Resident memory in KiB.
    pub(crate) fn memory_kib(&self) -> anyhow::Result<u64> {
        let path = format!("/proc/{}/status", self.child.id());
        let status =
            fs::read_to_string(&path).with_context(|| format!("the {} gateway is gone", self.name))?;
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
        let number = line.and_then(|line| line.trim().strip_suffix(" kB")?.parse().ok());
        number.with_context(|| format!("{path} tells no VmRSS"))
    }
}

impl Drop for Gateway {
    fn drop(&mut self) {
        // Already ended is as good.
        drop(self.child.kill());
        drop(self.child.wait());
    }
}
