//! Two gateways, one behind the other.

use std::fs::{self, File};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};

const START_LIMIT: Duration = Duration::from_secs(30);

/// What every answer has for a body.
pub(super) const BODY: &str = "what is asked for";

/// What a client may take back, and how often it may say what carries no message: more than it does.
const LIMITS: &str =
    "http2: { resets_per_minute: 4000000000, control_frames_per_second: 4000000000, pending_resets: 1000 }";

/// Both gateways; dropped, they end.
pub(super) struct Chain {
    pub(super) first: Gateway,
    pub(super) second: Gateway,
}

/// A gateway that runs.
pub(super) struct Gateway {
    child: Child,
    pub(super) name: &'static str,
    pub(super) port: u16,
}

impl Chain {
    pub(super) fn start(sigma: &Path, work: &Path) -> anyhow::Result<Chain> {
        let own = format!("plugins: {{ mocking: {{ response_example: \"{BODY}\" }} }}");
        let routes = format!("  - {{ uri: \"/*\", {own} }}");
        let second = Gateway::start(sigma, work, "second", &routes)?;
        let node = format!("nodes: {{ \"127.0.0.1:{}\": 1 }}", second.port);
        let routes = format!(
            "  - {{ uri: \"/own*\", {own} }}\n  - {{ uri: \"/h2*\", upstream: {{ scheme: grpc, {node} }} }}\n  - {{ uri: \"/h1*\", upstream: {{ {node} }} }}"
        );
        let first = Gateway::start(sigma, work, "first", &routes)?;
        Ok(Chain { first, second })
    }

    pub(super) fn gateways(&self) -> [&Gateway; 2] {
        [&self.first, &self.second]
    }
}

impl Gateway {
    fn start(sigma: &Path, work: &Path, name: &'static str, routes: &str) -> anyhow::Result<Gateway> {
        let port = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?.port();
        let text = format!(
            "workers: 1\nlisteners: [\"127.0.0.1:{port}\"]\n{LIMITS}\nlimits: {{ keepalive_requests: 1000000000 }}\nroutes:\n{routes}\n"
        );
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
    pub(super) fn memory_kib(&self) -> anyhow::Result<u64> {
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
