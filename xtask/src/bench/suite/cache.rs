//! Responses that were kept: Sigma's cache compared with nginx's `proxy_cache`, which has its bodies in files.
//!
//! The origin ends before the measurement: a response that does not come from the cache counts as an error.

use std::fmt::Write as _;
use std::fs;

use anyhow::{Context, ensure};

use super::{Outcome, Suite, kept, kept_sections};
use crate::bench::client::Client;
use crate::bench::contender::Contender;
use crate::bench::launch::{Launch, Running, Workplace};
use crate::bench::process::free_port;
use crate::bench::report::{self, Markers};
use crate::bench::shape::{Load, SMALL};
use crate::bench::trial::{self, Measure, Results, Target};
use crate::bench::{Bench, Folders, process};

pub(super) const SUITE: Suite = Suite {
    name: "cache",
    peers: &["nginx"],
    tools: &["wrk"],
    trials,
    measure,
    report: |_| Ok(String::new()),
    publish,
};

/// Where the tables stand in `docs/performance.md`.
const MARKS: Markers = Markers { start: "<!-- bench:cache:start -->", end: "<!-- bench:cache:end -->" };

/// Hits of small and of large responses, and the overhead of a response.
const TRIALS: [&str; 3] = ["hit-1k", "hit-1m", "memory"];

/// Responses that are kept where memory is measured.
const ENTRIES: u32 = 100_000;
/// Every so many of them are requested again, to see that they are there.
const PROBED: usize = 97;
const KIBIBYTE: usize = 1024;

fn trials() -> Vec<&'static str> {
    TRIALS.to_vec()
}

fn measure(bench: &Bench<'_>, trial: &str) -> anyhow::Result<Outcome> {
    match trial {
        "hit-1k" => {
            let load = Load { path: "/1k", ..SMALL };
            hits(bench, "hit-1k", "a hit of 1 KiB, 100 kept connections", &load, KIBIBYTE)
        }
        "hit-1m" => {
            let load = Load { path: "/1m", connections: 20, ..SMALL };
            hits(bench, "hit-1m", "a hit of 1 MiB, 20 kept connections", &load, KIBIBYTE * KIBIBYTE)
        }
        _ => memory(bench),
    }
}

/// A gateway that keeps answers.
#[derive(Clone, Copy)]
enum Keeper {
    Sigma,
    Nginx {
        /// Whether files of responses stay open between requests, which is not nginx's default.
        keeps_open: bool,
    },
}

const KEEPERS: [Keeper; 3] =
    [Keeper::Sigma, Keeper::Nginx { keeps_open: false }, Keeper::Nginx { keeps_open: true }];

impl Keeper {
    /// The name in tables; [`report`] finds nginx by it.
    fn label(self) -> &'static str {
        match self {
            Self::Sigma => "Sigma",
            Self::Nginx { keeps_open: false } => "nginx",
            Self::Nginx { keeps_open: true } => "nginx, open_file_cache",
        }
    }

    fn contender(self) -> Contender {
        match self {
            Self::Sigma => Contender::Sigma { routes: 1 },
            Self::Nginx { .. } => Contender::Nginx { keepalive: 512 },
        }
    }

    /// Everything that precedes the start between a free port and `origin`; nothing is kept from earlier runs.
    ///
    /// `None` if the gateway is not there or not requested.
    fn prepare(self, bench: &Bench<'_>, origin: u16) -> anyhow::Result<Option<Launch>> {
        let Bench { options, folders, programs } = bench;
        let program = programs.path(self.contender());
        let Some(program) = program.filter(|_| options.wants(self.contender())) else { return Ok(None) };
        let port = free_port()?;
        if matches!(self, Self::Sigma) {
            return Launch::sigma(programs, &folders.work, "cache", port, &sigma(port, origin))
                .map(|launch| Some(Launch { label: self.label().to_owned(), ..launch }));
        }
        let place = Workplace::new(&folders.work, &format!("{} cache", self.label()))?;
        forget_files(&place)?;
        let keeps_open = matches!(self, Self::Nginx { keeps_open: true });
        let config = place.write("nginx.conf", &nginx(port, origin, keeps_open))?;
        let prefix = place.folder.display().to_string();
        let command = [&program.display().to_string(), "-p", &prefix, "-c", &config, "-e", "stderr"];
        let command = command.map(str::to_owned).to_vec();
        Ok(Some(Launch { label: self.label().to_owned(), command, log: place.folder.join("log"), port }))
    }
}

/// Removes what nginx has kept in `place`.
fn forget_files(place: &Workplace) -> anyhow::Result<()> {
    match fs::remove_dir_all(place.folder.join("kept")) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(error).with_context(|| format!("cannot empty {}", place.folder.display()))
        }
        _ => Ok(()),
    }
}

fn sigma(port: u16, origin: u16) -> String {
    format!(
        "workers: 1\n\
         listeners: [ {{ address: \"127.0.0.1:{port}\" }} ]\n\
         limits: {{ keepalive_requests: 100000000 }}\n\
         access_log: \"off\"\n\
         cache: {{ memory_bytes: 536870912 }}\n\
         upstreams: [ {{ id: \"1\", type: roundrobin, nodes: {{ \"127.0.0.1:{origin}\": 1 }} }} ]\n\
         routes:\n  \
         - {{ id: \"1\", uri: \"/*\", upstream_id: \"1\", cache: {{ valid: [{{ statuses: [200], seconds: 3600 }}] }} }}\n"
    )
}

fn nginx(port: u16, origin: u16, keeps_open: bool) -> String {
    let open_files =
        if keeps_open { "open_file_cache max=1000 inactive=1h; open_file_cache_valid 1h;" } else { "" };
    format!(
        "daemon off;
worker_processes 1;
error_log stderr error;
pid nginx.pid;
events {{ worker_connections 19000; }}
http {{
  access_log off;
  sendfile on;
  tcp_nopush on;
  {open_files}
  client_body_temp_path body;
  proxy_temp_path proxy;
  fastcgi_temp_path fastcgi;
  uwsgi_temp_path uwsgi;
  scgi_temp_path scgi;
  keepalive_timeout 300s;
  keepalive_requests 100000000;
  proxy_cache_path kept levels=1:2 keys_zone=kept:64m max_size=8g inactive=1h use_temp_path=off;
  upstream origin {{
    server 127.0.0.1:{origin};
    keepalive 512;
    keepalive_requests 100000000;
  }}
  server {{
    listen 127.0.0.1:{port} backlog=4096;
    location / {{
      proxy_pass http://origin;
      proxy_http_version 1.1;
      proxy_set_header Connection \"\";
      proxy_set_header Host $host;
      proxy_cache kept;
      proxy_cache_valid 200 1h;
    }}
  }}
}}
"
    )
}

/// Has `gateway` keep the response to `path`, whose body has `length` bytes.
fn keep(client: &mut Client, path: &str, length: usize) -> anyhow::Result<()> {
    let answer = client.get(path)?;
    let got = answer.body.len();
    ensure!(answer.status == 200 && got == length, "{path}: status {}, {got} bytes", answer.status);
    Ok(())
}

fn hits(bench: &Bench<'_>, trial: &str, title: &str, load: &Load, length: usize) -> anyhow::Result<Outcome> {
    eprintln!("{trial}: {title}");
    let Bench { options, folders, programs } = bench;
    let origin = process::origin(programs, &folders.work)?;
    let mut running = Vec::new();
    for keeper in KEEPERS {
        let Some(launch) = keeper.prepare(bench, origin.port)? else { continue };
        let gateway = launch.start_listening()?;
        keep(&mut Client::connect(gateway.port)?, load.path, length)
            .with_context(|| format!("read {}", launch.log.display()))?;
        let target = Target {
            label: launch.label,
            scheme: "http",
            path: load.path.into(),
            keys: 0,
            authorization: String::new(),
        };
        running.push((target, gateway));
    }
    // The load generator has a Host of its own, and with it keys.
    for (target, gateway) in &running {
        trial::load(load, target, gateway, folders, 1)?;
    }
    drop(origin);
    let (rounds, seconds) = (options.rounds(), options.seconds());
    let mut results =
        Results { shape: trial.into(), title: title.into(), rounds, seconds, contenders: Vec::new() };
    for _ in 0..rounds {
        for (target, gateway) in &running {
            results.add(&target.label, Measure::Load(trial::load(load, target, gateway, folders, seconds)?));
        }
    }
    let text = format!(
        "\n### {title}\n\n{}\n`bench cache --only {trial}`: {rounds} rounds of {seconds} s.\n",
        report::load_table("gateway", &results)
    );
    kept(bench, SUITE.name, trial, text, results.errors_of_sigma())
}

/// Memory of a gateway with one response, and with [`ENTRIES`] more, in KiB.
struct Growth {
    label: String,
    before_kib: u64,
    after_kib: u64,
    /// Whether the bodies are in it.
    has_bodies: bool,
}

impl Growth {
    fn row(&self) -> String {
        let grown = self.after_kib.saturating_sub(self.before_kib) as f64 * KIBIBYTE as f64;
        let each = grown / f64::from(ENTRIES);
        let beside = if self.has_bodies { each - KIBIBYTE as f64 } else { each };
        let (before, after) = (report::memory(self.before_kib as f64), report::memory(self.after_kib as f64));
        format!("| {} | {before} | {after} | {each:.0} | {beside:.0} |\n", self.label)
    }
}

fn memory(bench: &Bench<'_>) -> anyhow::Result<Outcome> {
    eprintln!("memory: {ENTRIES} answers of 1 KiB");
    let mut text = format!(
        "\n### memory of {ENTRIES} answers of 1 KiB\n\n\
         | gateway | memory before | memory with them | bytes for each | beside the body |\n|---|--:|--:|--:|--:|\n"
    );
    for keeper in [Keeper::Sigma, Keeper::Nginx { keeps_open: false }] {
        // Each has its own origin, which ends.
        let origin = process::origin(&bench.programs, &bench.folders.work)?;
        let Some(launch) = keeper.prepare(bench, origin.port)? else { continue };
        let gateway = launch.start_listening()?;
        let growth =
            grow(keeper, &gateway, origin).with_context(|| format!("read {}", launch.log.display()))?;
        let _ = write!(text, "{}", growth.row());
        drop(gateway);
        if matches!(keeper, Keeper::Nginx { .. }) {
            forget_files(&Workplace::new(&bench.folders.work, &format!("{} cache", keeper.label()))?)?;
        }
    }
    text.push_str("\nnginx has the bodies in files. `bench cache --only memory`: one round.\n");
    kept(bench, SUITE.name, "memory", text, 0)
}

fn grow(keeper: Keeper, gateway: &Running, origin: Running) -> anyhow::Result<Growth> {
    let mut client = Client::connect(gateway.port)?;
    keep(&mut client, "/1k?before", KIBIBYTE)?;
    let before_kib = gateway.process.memory_kib();
    for entry in 0..ENTRIES {
        keep(&mut client, &format!("/1k?{entry}"), KIBIBYTE)?;
    }
    // The last one is put away when the connection is answered again.
    keep(&mut client, "/1k?before", KIBIBYTE)?;
    let after_kib = gateway.process.memory_kib();
    drop(origin);
    for entry in (0..ENTRIES).step_by(PROBED) {
        keep(&mut client, &format!("/1k?{entry}"), KIBIBYTE).context("an answer was not kept")?;
    }
    let has_bodies = matches!(keeper, Keeper::Sigma);
    Ok(Growth { label: keeper.label().to_owned(), before_kib, after_kib, has_bodies })
}

/// Puts the tables that were kept into `docs/performance.md`.
fn publish(folders: &Folders) -> anyhow::Result<()> {
    let text = kept_sections(folders, SUITE.name, &TRIALS)?;
    report::fill_between(&folders.root.join("docs/performance.md"), MARKS, &format!("{text}\n"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_configuration_is_well_formed() {
        let text = sigma(1, 2);
        let document = sigma_schema::document::Document::parse(&text, 1 << 20).expect(&text);
        assert_eq!(document.value["routes"][0]["cache"]["valid"][0]["seconds"], 3600, "{text}");
    }

    #[test]
    fn rows_show_the_overhead_of_an_answer() {
        let growth =
            |has_bodies| Growth { label: "Sigma".into(), before_kib: 1024, after_kib: 201_024, has_bodies };
        assert_eq!(growth(true).row(), "| Sigma | 1.0 MiB | 196.3 MiB | 2048 | 1024 |\n");
        assert_eq!(growth(false).row(), "| Sigma | 1.0 MiB | 196.3 MiB | 2048 | 2048 |\n");
    }
}
