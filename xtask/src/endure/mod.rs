//! `cargo xtask endure`: reloads, upgrades of the binary, and kills of the gateway in supervised mode, under
//! connections of HTTP/1, HTTP/2, gRPC, WebSockets, TCP and UDP.
//!
//! Nothing may be lost by a reload or an upgrade. A kill loses exchanges in flight; no client is refused
//! meanwhile.

mod client;
mod hostile;
mod http2;
mod origin;
mod outcome;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use rustix::process::{Pid, Signal, kill_process};

use client::{Kind, Ports, Tally};
use http2::METHOD;
use origin::Origin;

/// How much.
#[derive(clap::Args)]
pub(crate) struct Options {
    /// Connections of clients
    #[arg(long, default_value_t = 300, value_parser = clap::value_parser!(u32).range(7..=1000))]
    connections: u32,
    /// Reloads of the configuration
    #[arg(long, default_value_t = 50)]
    reloads: u32,
    /// Upgrades of the binary
    #[arg(long, default_value_t = 20)]
    upgrades: u32,
    /// Kills of a supervised gateway
    #[arg(long, default_value_t = 20)]
    kills: u32,
    /// Instead of all that: floods of every kind at once, next to honest clients
    #[arg(long)]
    hostile: bool,
    /// With `--hostile`: how long the floods last
    #[arg(long, default_value_t = 600, value_parser = clap::value_parser!(u64).range(10..=86_400))]
    seconds: u64,
    /// With `--hostile`: the most memory that the gateway may take
    #[arg(long, value_name = "MIB", default_value_t = 512)]
    memory: u64,
    /// A Sigma binary to use instead of building one with the profile `release`
    #[arg(long, value_name = "FILE")]
    sigma: Option<PathBuf>,
}

const PATIENCE: Duration = Duration::from_secs(30);

/// Between two disturbances: time for clients to ask several times.
const PAUSE: Duration = Duration::from_millis(300);

/// Runs it and prints the counts; fails if more is lost than allowed.
pub(crate) fn run(root: &Path, options: &Options) -> anyhow::Result<()> {
    let sigma = match &options.sigma {
        Some(path) => path.canonicalize().with_context(|| format!("no Sigma at {}", path.display()))?,
        None => crate::soak::build(root)?,
    };
    let work = root.join("target/endure");
    fs::create_dir_all(&work).with_context(|| format!("cannot create {}", work.display()))?;
    if options.hostile {
        return hostile::run(&sigma, &work, Duration::from_secs(options.seconds), options.memory);
    }
    let origin = Origin::start()?;
    let mut lost = phase(&sigma, &work, &origin, options, "reloads", |gateway| {
        for number in 0..options.reloads {
            gateway.reload(&origin, number)?;
            std::thread::sleep(PAUSE);
        }
        Ok(())
    })?;
    lost += phase(&sigma, &work, &origin, options, "upgrades", |gateway| {
        for _ in 0..options.upgrades {
            gateway.upgrade()?;
            std::thread::sleep(PAUSE);
        }
        Ok(())
    })?;
    let mut times = Vec::new();
    phase(&sigma, &work, &origin, options, "kills", |gateway| {
        for _ in 0..options.kills {
            times.push(gateway.kill_one()?);
            std::thread::sleep(PAUSE);
        }
        Ok(())
    })?;
    times.sort();
    if let (Some(half), Some(slowest)) = (times.get(times.len() / 2), times.last()) {
        let [half, slowest] = [half, slowest].map(Duration::as_millis);
        println!("after a kill, a new connection was served in {half} ms (median), {slowest} ms at most");
    }
    ensure!(lost == 0, "{lost} were lost by reloads and upgrades");
    Ok(())
}

/// Disturbs a gateway under load. Returns how much was lost or refused.
fn phase(
    sigma: &Path,
    work: &Path,
    origin: &Origin,
    options: &Options,
    name: &'static str,
    disturb: impl FnOnce(&Gateway) -> anyhow::Result<()>,
) -> anyhow::Result<u64> {
    let gateway = Gateway::start(sigma, work, origin, name)?;
    let tallies: [Tally; Kind::ALL.len()] = Default::default();
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for number in 0..options.connections as usize {
            let (kind, tally) = (Kind::ALL[number % Kind::ALL.len()], &tallies[number % Kind::ALL.len()]);
            let (ports, stop) = (gateway.ports, &stop);
            scope.spawn(move || client::run(kind, ports, stop, tally));
        }
        std::thread::sleep(PAUSE);
        let result = disturb(&gateway);
        std::thread::sleep(PAUSE);
        stop.store(true, Ordering::Relaxed);
        result
    })?;
    println!("{name}:");
    let mut sum = 0;
    for (kind, tally) in Kind::ALL.iter().zip(&tallies) {
        let count = |counter: &std::sync::atomic::AtomicU64| counter.load(Ordering::Relaxed);
        let (lost, refused) = (count(&tally.lost), count(&tally.refused));
        println!(
            "  {:<28} {:>7} asked, {lost} lost, {refused} refused, {} connections ended by their protocol",
            kind.name(),
            count(&tally.asked),
            count(&tally.ended)
        );
        sum += lost + refused;
    }
    Ok(sum)
}

/// A gateway whose process changes.
struct Gateway {
    child: Child,
    work: PathBuf,
    name: &'static str,
    ports: Ports,
}

impl Gateway {
    fn start(sigma: &Path, work: &Path, origin: &Origin, name: &'static str) -> anyhow::Result<Gateway> {
        let free =
            || Ok::<_, std::io::Error>(std::net::TcpListener::bind("127.0.0.1:0")?.local_addr()?.port());
        let ports = Ports { http: free()?, tcp: free()?, udp: free()? };
        let config = work.join(format!("{name}.yaml"));
        // A file of an earlier run names a process of that run.
        drop(fs::remove_file(work.join(format!("{name}.pid"))));
        let log = fs::File::create(work.join(format!("{name}.log")))?;
        fs::write(&config, document(work, origin, name, ports, 0))?;
        let child = Command::new(sigma)
            .args(["run", "-c"])
            .arg(&config)
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            .spawn()
            .with_context(|| format!("cannot start {}", sigma.display()))?;
        let gateway = Gateway { child, work: work.to_owned(), name, ports };
        gateway.wait_until("it serves", || gateway.pid().is_some() && client::is_served(ports))?;
        Ok(gateway)
    }

    fn wait_until(&self, what: &str, holds: impl Fn() -> bool) -> anyhow::Result<()> {
        let begin = Instant::now();
        while !holds() {
            if begin.elapsed() > PATIENCE {
                bail!("waited in vain until {what}: read target/endure/{}.log", self.name);
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        Ok(())
    }

    fn pid(&self) -> Option<Pid> {
        let text = fs::read_to_string(self.work.join(format!("{}.pid", self.name))).ok()?;
        text.trim().parse().ok().and_then(Pid::from_raw)
    }

    fn signal(&self, signal: Signal) -> anyhow::Result<()> {
        Ok(kill_process(self.pid().context("no pid file")?, signal)?)
    }

    fn reload(&self, origin: &Origin, number: u32) -> anyhow::Result<()> {
        let path = self.work.join(format!("{}.yaml", self.name));
        fs::write(path, document(&self.work, origin, self.name, self.ports, number + 1))?;
        self.signal(Signal::HUP)
    }

    fn upgrade(&self) -> anyhow::Result<()> {
        let before = self.pid();
        self.signal(Signal::USR2)?;
        self.wait_until("another process serves", || self.pid().is_some() && self.pid() != before)
    }

    /// Kills the gateway of a parent. Returns the time until a new connection is served.
    fn kill_one(&self) -> anyhow::Result<Duration> {
        let parent = self.pid().context("no pid file")?.as_raw_nonzero();
        let children = fs::read_to_string(format!("/proc/{parent}/task/{parent}/children"))?;
        let child = children.split_whitespace().next().and_then(|pid| pid.parse().ok());
        let child = child.and_then(Pid::from_raw).context("the parent has no gateway")?;
        kill_process(child, Signal::KILL)?;
        let begin = Instant::now();
        self.wait_until("a new connection is served", || client::is_served(self.ports))?;
        Ok(begin.elapsed())
    }
}

impl Drop for Gateway {
    fn drop(&mut self) {
        // The last of its processes; the others have ended, or drain.
        if let Some(pid) = self.pid() {
            let _ = kill_process(pid, Signal::TERM);
        }
        let begin = Instant::now();
        while self.pid().is_some() && begin.elapsed() < PATIENCE {
            std::thread::sleep(Duration::from_millis(10));
        }
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

/// The configuration; `number` makes it another one.
fn document(work: &Path, origin: &Origin, name: &str, ports: Ports, number: u32) -> String {
    let process = match name {
        // Deaths as frequent as these would be answered by pauses.
        "kills" => "mode: supervised, restart_pause_ms: 1, restart_pause_max_ms: 1",
        _ => "mode: single",
    };
    let Ports { http, tcp, udp } = ports;
    format!(
        "workers: 2
process: {{ {process} }}
pid_file: {}
timeouts: {{ drain_ms: 6000, drain_idle_ms: 2000, drain_spread_percent: 50 }}
listeners:
  - \"127.0.0.1:{http}\"
  - {{ address: \"127.0.0.1:{tcp}\", stream: tcp }}
  - {{ address: \"127.0.0.1:{udp}\", stream: udp }}
routes:
  - id: all
    desc: \"{number}\"
    uri: \"/*\"
    enable_websocket: true
    upstream: {{ nodes: {{ \"127.0.0.1:{}\": 1 }} }}
  - id: grpc
    uri: {METHOD}
    upstream: {{ scheme: grpc, nodes: {{ \"127.0.0.1:{}\": 1 }} }}
stream_routes:
  - {{ id: tcp, server_port: {tcp}, upstream: {{ nodes: {{ \"127.0.0.1:{}\": 1 }} }} }}
  - {{ id: udp, server_port: {udp}, upstream: {{ scheme: udp, nodes: {{ \"127.0.0.1:{}\": 1 }} }} }}
",
        work.join(format!("{name}.pid")).display(),
        origin.http,
        origin.grpc,
        origin.tcp,
        origin.udp
    )
}
