//! Redis servers for tests: alone, as a cluster, behind a sentinel.

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use tempfile::TempDir;

use crate::ports::free_port;
use crate::{process, until};

/// A cluster needs some seconds to agree; on a loaded machine more.
const START: Duration = Duration::from_secs(60);

const MISSING: &str = "is missing; install it with `apt-get install redis-server`";

/// A running `redis-server` that keeps nothing. Dropping it kills the process.
#[derive(Debug)]
pub struct Redis {
    child: Child,
    port: u16,
    dir: TempDir,
}

impl Redis {
    /// Starts a server on a free port with these further arguments.
    pub fn start(arguments: &[&str]) -> Result<Redis> {
        Redis::start_on(free_port(), arguments)
    }

    /// Starts a server on a port that is known to be free.
    pub fn start_on(port: u16, arguments: &[&str]) -> Result<Redis> {
        Redis::spawn(port, tempfile::tempdir()?, arguments)
    }

    fn spawn(port: u16, dir: TempDir, arguments: &[&str]) -> Result<Redis> {
        let mut command =
            process::command("redis-server").with_context(|| format!("redis-server {MISSING}"))?;
        command
            .args(arguments)
            .args(["--bind", "127.0.0.1", "--save", "", "--appendonly", "no", "--dir"])
            .arg(dir.path())
            .args(if arguments.contains(&"--tls-port") {
                vec![]
            } else {
                vec!["--port".to_owned(), port.to_string()]
            })
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        let child = process::spawn(command).context("start redis-server")?;
        let redis = Redis { child, port, dir };
        let accepts = || std::net::TcpStream::connect(("127.0.0.1", port)).is_ok();
        ensure!(until(START, accepts), "redis-server does not accept on port {port}");
        Ok(redis)
    }

    /// Starts a sentinel that watches `master` under the name `mymaster`.
    pub fn sentinel(master: &Redis, further: &str) -> Result<Redis> {
        let dir = tempfile::tempdir()?;
        let file = dir.path().join("sentinel.conf");
        let watched = master.port;
        std::fs::write(
            &file,
            format!(
                "sentinel monitor mymaster 127.0.0.1 {watched} 1\nsentinel down-after-milliseconds mymaster 500\n\
                 sentinel failover-timeout mymaster 3000\n{further}\n"
            ),
        )?;
        let file = file.to_str().context("the folder's name")?.to_owned();
        Redis::spawn(free_port(), dir, &[&file, "--sentinel"])
    }

    /// Starts a cluster of three masters.
    pub fn cluster() -> Result<Vec<Redis>> {
        let one = |_| {
            let bus = free_port().to_string();
            Redis::start(&[
                "--cluster-enabled",
                "yes",
                "--cluster-port",
                &bus,
                "--cluster-node-timeout",
                "2000",
            ])
        };
        let nodes = (0..3).map(one).collect::<Result<Vec<Redis>>>()?;
        let places: Vec<String> = nodes.iter().map(|node| format!("127.0.0.1:{}", node.port)).collect();
        let created = Command::new("redis-cli")
            .args(["--cluster", "create"])
            .args(&places)
            .args(["--cluster-replicas", "0", "--cluster-yes"])
            .output()
            .with_context(|| format!("redis-cli {MISSING}"))?;
        ensure!(created.status.success(), "redis-cli: {}", String::from_utf8_lossy(&created.stdout));
        let agrees =
            |node: &Redis| node.ask(&["cluster", "info"]).is_ok_and(|info| info.contains("cluster_state:ok"));
        ensure!(until(START, || nodes.iter().all(agrees)), "the cluster does not come up");
        Ok(nodes)
    }

    /// Returns its port.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Returns its folder.
    pub fn dir(&self) -> &Path {
        self.dir.path()
    }

    /// Returns its response to a command, as `redis-cli` prints it.
    pub fn ask(&self, command: &[&str]) -> Result<String> {
        let port = self.port.to_string();
        let answer = Command::new("redis-cli").args(["-p", &port]).args(command).output();
        let answer = answer.with_context(|| format!("redis-cli {MISSING}"))?;
        Ok(String::from_utf8_lossy(&answer.stdout).trim_end().to_owned())
    }

    /// Kills it, as a crash would.
    pub fn kill(&mut self) -> Result<()> {
        self.child.kill()?;
        self.child.wait()?;
        Ok(())
    }
}

impl Drop for Redis {
    fn drop(&mut self) {
        // It may have been killed before.
        let _ = self.kill();
    }
}
