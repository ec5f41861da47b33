//! `cargo xtask endure --hostile`: all floods at once against one gateway, next to honest clients.
//!
//! Everything stays on loopback. Attackers have addresses of their own (127.0.1.1 and up), so that limits per address
//! tell them from honest clients (127.0.0.1). The run fails if an honest request failed, or if the gateway took more
//! memory than it may.

mod floods;
mod frames;
mod honest;
mod origin;

use std::fs;
use std::net::{Ipv4Addr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};

use floods::{FLOODS, Flood};
use honest::{HONEST, Honest, Record};
use origin::Origin;

/// Longest time for a start.
const PATIENCE: Duration = Duration::from_secs(30);
/// Between two looks at the memory of the gateway.
const LOOK: Duration = Duration::from_millis(200);
/// The time without floods, for comparison, in parts of the whole.
const CALM_PART: u32 = 10;

/// Where the gateway listens.
#[derive(Clone, Copy)]
pub(super) struct Ports {
    pub(super) http: u16,
    pub(super) tls: u16,
    pub(super) udp: u16,
}

/// Runs the floods for `duration`; fails if honest clients notice, or the gateway takes more than `memory_mib`.
pub(super) fn run(sigma: &Path, work: &Path, duration: Duration, memory_mib: u64) -> anyhow::Result<()> {
    let origin = Origin::start()?;
    let gateway = Gateway::start(sigma, work, &origin)?;
    println!("calm, for {} s:", (duration / CALM_PART).as_secs_f32());
    let (calm, _) = phase(&gateway, duration / CALM_PART, &[])?;
    let failed_in_calm = report(&calm);
    println!("{} floods at once, for {} s:", FLOODS.len(), duration.as_secs());
    let (records, usage) = phase(&gateway, duration, &FLOODS)?;
    let failed = report(&records);
    println!(
        "memory: {} MiB before, {} MiB at most, {} MiB at the end; descriptors: {} at most",
        usage.first_kib / 1024,
        usage.peak_kib / 1024,
        usage.last_kib / 1024,
        usage.descriptors
    );
    ensure!(failed_in_calm == 0, "{failed_in_calm} requests failed before any flood");
    ensure!(failed == 0, "{failed} honest requests failed: read target/endure/hostile.log");
    let peak_mib = usage.peak_kib / 1024;
    ensure!(peak_mib <= memory_mib, "the gateway took {peak_mib} MiB, and may take {memory_mib}");
    Ok(())
}

/// Honest clients, and floods next to them.
fn phase(gateway: &Gateway, time: Duration, floods: &[Flood]) -> anyhow::Result<(Vec<Record>, Usage)> {
    let stop = AtomicBool::new(false);
    let counts: Vec<AtomicU64> = floods.iter().map(|_| AtomicU64::new(0)).collect();
    let ports = gateway.ports;
    let (records, usage) = std::thread::scope(|scope| {
        for (flood, count) in floods.iter().zip(&counts) {
            let stop = &stop;
            scope.spawn(move || (flood.run)(ports, stop, count));
        }
        let clients: Vec<_> = HONEST
            .iter()
            .map(|kind: &Honest| {
                let stop = &stop;
                scope.spawn(move || honest::run(kind, ports, stop))
            })
            .collect();
        let usage = gateway.watch(time);
        stop.store(true, Ordering::Relaxed);
        let records = clients.into_iter().map(|client| client.join().unwrap_or_default()).collect();
        (records, usage)
    });
    for (flood, count) in floods.iter().zip(&counts) {
        println!("  flood {:<30} {:>10} {}", flood.name, count.load(Ordering::Relaxed), flood.unit);
    }
    Ok((records, usage?))
}

/// Prints a line for each kind of honest clients. Returns how many requests failed; a kind without any counts as one.
fn report(records: &[Record]) -> u64 {
    println!("  {:<36} {:>8} {:>7} {:>10} {:>10}", "honest clients", "asked", "failed", "p50 ms", "p99 ms");
    let mut failed = 0;
    for (kind, record) in HONEST.iter().zip(records) {
        let [p50, p99] = [50, 99].map(|percent| record.percentile_us(percent) as f64 / 1000.0);
        println!("  {:<36} {:>8} {:>7} {p50:>10.2} {p99:>10.2}", kind.name, record.asked, record.failed);
        if let Some(error) = &record.first_error {
            println!("    the first failure: {error}");
        }
        failed += record.failed + u64::from(record.asked == 0);
    }
    failed
}

/// The gateway's use of the machine.
struct Usage {
    first_kib: u64,
    peak_kib: u64,
    last_kib: u64,
    descriptors: usize,
}

/// The gateway; dropped, it ends.
struct Gateway {
    child: Child,
    ports: Ports,
}

impl Gateway {
    fn start(sigma: &Path, work: &Path, origin: &Origin) -> anyhow::Result<Gateway> {
        let free =
            || Ok::<_, std::io::Error>(TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?.port());
        let ports = Ports { http: free()?, tls: free()?, udp: free()? };
        let (cert, key) = certificate(work)?;
        let config = work.join("hostile.yaml");
        fs::write(&config, document(ports, origin, &cert, &key))?;
        let log = fs::File::create(work.join("hostile.log"))?;
        let child = Command::new(sigma)
            .args(["run", "-c"])
            .arg(&config)
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            .spawn()
            .with_context(|| format!("cannot start {}", sigma.display()))?;
        let mut gateway = Gateway { child, ports };
        let begin = Instant::now();
        while !honest::is_served(ports) {
            if gateway.child.try_wait()?.is_some() || begin.elapsed() > PATIENCE {
                bail!("the gateway does not start: read target/endure/hostile.log");
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        Ok(gateway)
    }

    /// Looks at memory and descriptors for so long.
    fn watch(&self, time: Duration) -> anyhow::Result<Usage> {
        let begin = Instant::now();
        let first_kib = self.memory_kib()?;
        let mut usage = Usage { first_kib, peak_kib: first_kib, last_kib: first_kib, descriptors: 0 };
        while begin.elapsed() < time {
            std::thread::sleep(LOOK);
            usage.last_kib = self.memory_kib()?;
            usage.peak_kib = usage.peak_kib.max(usage.last_kib);
            let descriptors = fs::read_dir(format!("/proc/{}/fd", self.child.id()))?.count();
            usage.descriptors = usage.descriptors.max(descriptors);
        }
        Ok(usage)
    }

    /// Resident memory in KiB.
    fn memory_kib(&self) -> anyhow::Result<u64> {
        let path = format!("/proc/{}/status", self.child.id());
        let status = fs::read_to_string(&path).with_context(|| {
            format!("cannot read {path}; if the gateway has ended: read target/endure/hostile.log")
        })?;
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
        let number = line.and_then(|line| line.trim().strip_suffix(" kB")?.parse().ok());
        number.context("the gateway has ended: read target/endure/hostile.log")
    }
}

impl Drop for Gateway {
    fn drop(&mut self) {
        // Already ended is as good.
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

/// A certificate for the TLS listener, made by OpenSSL.
fn certificate(work: &Path) -> anyhow::Result<(PathBuf, PathBuf)> {
    let (cert, key) = (work.join("hostile.crt"), work.join("hostile.key"));
    let output = Command::new("openssl")
        .args(["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"])
        .args(["-days", "2", "-subj", "/CN=hostile.test", "-addext", "subjectAltName=DNS:hostile.test"])
        .arg("-keyout")
        .arg(&key)
        .arg("-out")
        .arg(&cert)
        .output()
        .context("cannot run openssl, which makes the certificate: install it")?;
    ensure!(output.status.success(), "openssl: {}", String::from_utf8_lossy(&output.stderr));
    Ok((cert, key))
}

fn document(ports: Ports, origin: &Origin, cert: &Path, key: &Path) -> String {
    let Ports { http, tls, udp } = ports;
    format!(
        "workers: 2
limits: {{ connections_per_address: 1000, held_bytes_per_worker: 100000000 }}
timeouts: {{ request_head_ms: 10000, request_body_ms: 10000, response_send_ms: 10000 }}
listeners:
  - \"127.0.0.1:{http}\"
  - {{ address: \"127.0.0.1:{tls}\", tls: {{ certificates: [{{ cert: {}, key: {} }}] }} }}
  - {{ address: \"127.0.0.1:{udp}\", stream: udp }}
routes:
  - {{ id: all, uri: \"/*\", upstream_id: origin }}
  - id: held
    uri: /held
    plugins: {{ request-validation: {{ body_schema: {{ type: object }} }} }}
    upstream_id: origin
upstreams:
  - {{ id: origin, nodes: {{ \"127.0.0.1:{}\": 1 }} }}
stream_routes:
  - {{ id: udp, upstream: {{ scheme: udp, nodes: {{ \"127.0.0.1:{}\": 1 }} }} }}
",
        cert.display(),
        key.display(),
        origin.http,
        origin.udp
    )
}
