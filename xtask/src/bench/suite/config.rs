//! The cost of changes of the configuration: writes through the Admin API, until every worker serves them.

use std::fmt::Write as _;
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};

use super::{Outcome, Suite, kept, kept_sections};
use crate::bench::client::Client;
use crate::bench::launch::{Launch, Running, Workplace};
use crate::bench::process::{self, free_port};
use crate::bench::shape::SMALL;
use crate::bench::trial::{self, LoadMeasure, Target};
use crate::bench::{Bench, Folders, report};

pub(super) const SUITE: Suite = Suite {
    name: "config",
    peers: &[],
    tools: &["wrk"],
    trials,
    measure,
    report: whole_report,
    publish: report::write,
};

/// New routes put into 10,000 and into 100,000 routes, and changes under traffic.
const TRIALS: [&str; 3] = ["put-10000", "put-100000", "changes"];

fn trials() -> Vec<&'static str> {
    TRIALS.to_vec()
}

fn measure(bench: &Bench<'_>, trial: &str) -> anyhow::Result<Outcome> {
    match trial {
        "put-10000" => puts(bench, trial, 10_000),
        "put-100000" => puts(bench, trial, 100_000),
        _ => changes(bench),
    }
}

fn whole_report(folders: &Folders) -> anyhow::Result<String> {
    kept_sections(folders, SUITE.name, &TRIALS)
}

/// The callers' key: 32 characters, as in every example of the Admin API.
const KEY: &str = "0123456789abcdef0123456789abcdef";

/// Workers of the gateway: with one, "every worker" would say nothing.
const WORKERS: u32 = 2;

/// Fresh connections that must be answered in a row before a route counts as served by every worker. The
/// status listener does not report the configuration of a worker, and the kernel spreads connections: that
/// all of them reach the same of two workers has a chance of 1 in 32,768.
const STREAK: u32 = 16;

/// How long a written route may take until it is served before the run is given up.
const SERVED_LIMIT: Duration = Duration::from_secs(120);

/// Time for freed memory to be given back before it is read.
const SETTLE: Duration = Duration::from_secs(2);

/// Sigma with the Admin API, its configuration in its own embedded store.
struct Administered {
    gateway: Running,
    admin: Client,
    fields: String,
}

impl Administered {
    fn start(bench: &Bench<'_>, label: &str) -> anyhow::Result<Self> {
        let (port, admin_port) = (free_port()?, free_port()?);
        let place = Workplace::new(&bench.folders.work, &format!("Sigma {label}"))?;
        let store = place.folder.join("store");
        if store.exists() {
            std::fs::remove_dir_all(&store).with_context(|| format!("cannot empty {}", store.display()))?;
        }
        let text = format!(
            "workers: {WORKERS}\n\
             listeners: [ {{ address: \"127.0.0.1:{port}\" }} ]\n\
             access_log: \"off\"\n\
             admin: {{ address: \"127.0.0.1:{admin_port}\", keys: [ {{ key: \"{KEY}\", role: admin }} ] }}\n\
             store: {{ kind: embedded, path: \"{}\" }}\n",
            store.display()
        );
        let launch = Launch::sigma(&bench.programs, &bench.folders.work, label, port, &text)
            .context("the suite `config` measures the Admin API and a store that this build does not have")?;
        let mut process = launch.start_process()?;
        let fields = format!("X-API-KEY: {KEY}\r\nContent-Type: application/json\r\n");
        let begin = Instant::now();
        let admin = loop {
            process.expect_alive().with_context(|| format!("read {}", launch.log.display()))?;
            match Client::connect(admin_port) {
                Ok(client) => break client,
                Err(error) if begin.elapsed() > SERVED_LIMIT => {
                    return Err(error.context(format!("no Admin API: read {}", launch.log.display())));
                }
                Err(_) => std::thread::sleep(Duration::from_millis(5)),
            }
        };
        Ok(Self { gateway: Running { process, port }, admin, fields })
    }

    /// Writes one object; anything but success is an error.
    fn put(&mut self, path: &str, body: &str) -> anyhow::Result<()> {
        self.write("PUT", path, body)
    }

    fn write(&mut self, method: &str, path: &str, body: &str) -> anyhow::Result<()> {
        let target = format!("/apisix/admin/{path}");
        let answer = self.admin.ask(method, &target, &self.fields, body.as_bytes())?;
        let success = (200..300).contains(&answer.status);
        ensure!(success, "{method} {target} is answered {}: {}", answer.status, answer.text());
        Ok(())
    }

    /// Writes `routes` routes and their upstream, in one transaction where the build has one; gives the time until
    /// every worker serves the last.
    fn fill(&mut self, routes: u32, origin: u16) -> anyhow::Result<Duration> {
        let begin = Instant::now();
        let mut whole = format!("{{\"upstreams\":[{}],\"routes\":[", upstream(origin));
        for number in 0..routes {
            let comma = if number == 0 { "" } else { "," };
            // Writing to a String cannot fail.
            let _ = write!(whole, "{comma}{}", route(&number.to_string(), &format!("/r/{number}/*"), ""));
        }
        whole.push_str("]}");
        let fields = format!("{}X-Digest: bench-{routes}\r\n", self.fields);
        let answer = self.admin.ask("PUT", "/apisix/admin/configs", &fields, whole.as_bytes())?;
        match answer.status {
            200..300 => {}
            404 | 405 => self.fill_one_by_one(routes, origin)?,
            status => bail!("PUT /apisix/admin/configs is answered {status}: {}", answer.text()),
        }
        await_served(self.gateway.port, &format!("/r/{}/x", routes - 1))?;
        Ok(begin.elapsed())
    }

    fn fill_one_by_one(&mut self, routes: u32, origin: u16) -> anyhow::Result<()> {
        eprintln!("this build has no /apisix/admin/configs: {routes} routes are put one by one");
        self.put("upstreams/1", &upstream(origin))?;
        for number in 0..routes {
            let body = route(&number.to_string(), &format!("/r/{number}/*"), "");
            self.put(&format!("routes/{number}"), &body)?;
        }
        Ok(())
    }
}

fn upstream(origin: u16) -> String {
    format!(r#"{{"id":"1","type":"roundrobin","nodes":{{"127.0.0.1:{origin}":1}}}}"#)
}

/// A route; `desc` tells one version of it from another.
fn route(id: &str, uri: &str, desc: &str) -> String {
    format!(r#"{{"id":"{id}","uri":"{uri}","upstream_id":"1","desc":"{desc}"}}"#)
}

/// Asks on fresh connections until [`STREAK`] in a row get 200; gives when the first of these was.
fn await_served(port: u16, path: &str) -> anyhow::Result<Instant> {
    let begin = Instant::now();
    let (mut streak, mut since) = (0, begin);
    while streak < STREAK {
        ensure!(begin.elapsed() < SERVED_LIMIT, "{path} is not served after {SERVED_LIMIT:?}");
        match Client::connect(port)?.get(path)?.status {
            200 if streak > 0 => streak += 1,
            200 => (streak, since) = (1, Instant::now()),
            404 => streak = 0,
            status => bail!("{path} is answered {status}"),
        }
    }
    Ok(since)
}

/// Microseconds at the place `percent` of the sorted times.
fn percentile(times: &mut [f64], percent: usize) -> f64 {
    times.sort_by(f64::total_cmp);
    let last = times.len().saturating_sub(1);
    times.get((times.len() * percent / 100).min(last)).copied().unwrap_or(0.0)
}

fn puts(bench: &Bench<'_>, trial: &str, routes: u32) -> anyhow::Result<Outcome> {
    let count = if bench.options.quick { 20 } else { 500 };
    let origin = process::origin(&bench.programs, &bench.folders.work)?;
    let mut sigma = Administered::start(bench, trial)?;
    sigma.put("upstreams/1", &upstream(origin.port))?;
    let empty_kib = sigma.gateway.process.memory_kib();
    let filled = sigma.fill(routes, origin.port)?;
    std::thread::sleep(SETTLE);
    let full_kib = sigma.gateway.process.memory_kib();
    let (mut answered, mut served) = (Vec::new(), Vec::new());
    for number in 0..count {
        let body = route(&format!("new-{number}"), &format!("/new/{number}/*"), "");
        let begin = Instant::now();
        sigma.put(&format!("routes/new-{number}"), &body)?;
        answered.push(begin.elapsed().as_secs_f64() * 1e6);
        let since = await_served(sigma.gateway.port, &format!("/new/{number}/x"))?;
        served.push((since - begin).as_secs_f64() * 1e6);
    }
    let each_kib = (full_kib as f64 - empty_kib as f64) / f64::from(routes);
    let text = format!(
        "\n## a new route among {routes}\n\nSigma with {WORKERS} workers and an embedded store; {count} routes are put \
         one after the other. *served*: from sending the PUT until {STREAK} fresh connections in a row get the route.\n\n\
         | | p50 | p99 |\n|---|--:|--:|\n\
         | PUT answered | {} | {} |\n\
         | served by every worker | {} | {} |\n\n\
         All {routes} routes are written and served within {:.1} s. Memory: {} without them, {} with them, \
         {each_kib:.2} KiB a route.\n\n`bench config --only {trial}`\n",
        report::duration(percentile(&mut answered, 50)),
        report::duration(percentile(&mut answered, 99)),
        report::duration(percentile(&mut served, 50)),
        report::duration(percentile(&mut served, 99)),
        filled.as_secs_f64(),
        report::memory(empty_kib as f64),
        report::memory(full_kib as f64),
    );
    kept(bench, SUITE.name, trial, text, 0)
}

/// Routes that are there before the first change.
const CHANGED_AMONG: u32 = 10_000;
/// Changes a second.
const CHANGE_RATE: u32 = 100;

fn changes(bench: &Bench<'_>) -> anyhow::Result<Outcome> {
    let seconds = if bench.options.quick { 2 } else { 20 };
    let count = seconds * CHANGE_RATE;
    let origin = process::origin(&bench.programs, &bench.folders.work)?;
    let mut sigma = Administered::start(bench, "changes")?;
    sigma.fill(CHANGED_AMONG, origin.port)?;
    let target = Target {
        label: "changes".into(),
        scheme: "http",
        path: format!("/r/{}/x", CHANGED_AMONG - 1),
        keys: 0,
        authorization: String::new(),
    };
    let port = sigma.gateway.port;
    trial::load(&SMALL, &target, &sigma.gateway, bench.folders, 1)?;
    let quiet = trial::load(&SMALL, &target, &sigma.gateway, bench.folders, seconds)?;
    let Administered { gateway, admin, fields } = sigma;
    let (changing, took) = std::thread::scope(|scope| {
        let load = scope.spawn(|| trial::load(&SMALL, &target, &gateway, bench.folders, seconds));
        let mut writer = Writer { admin, fields: &fields };
        let took = writer.change(count);
        let load = load.join().map_err(|_| anyhow::anyhow!("the load generator's thread panicked"))?;
        anyhow::Ok((load?, took?))
    })?;
    // The last change came through as well.
    await_served(port, &target.path)?;
    let row = |label: &str, load: &LoadMeasure| {
        format!(
            "| {label} | {:.0} | {} | {} | {} |\n",
            load.per_second,
            report::duration(load.p50_micros as f64),
            report::duration(load.p99_micros as f64),
            load.errors
        )
    };
    let mut text = format!(
        "\n## {count} changes under traffic\n\nSigma with {WORKERS} workers and {CHANGED_AMONG} routes, small GET on 100 \
         kept connections; a route is made, changed or deleted {CHANGE_RATE} times a second.\n\n\
         | traffic | requests/s | p50 | p99 | errors |\n|---|--:|--:|--:|--:|\n"
    );
    text.push_str(&row("quiet", &quiet));
    text.push_str(&row("under changes", &changing));
    let _ = writeln!(
        text,
        "\np99 under changes is {:.2} × the quiet one; the changes took {:.1} s.\n\n`bench config --only changes`",
        changing.p99_micros as f64 / quiet.p99_micros.max(1) as f64,
        took.as_secs_f64(),
    );
    kept(bench, SUITE.name, "changes", text, quiet.errors + changing.errors)
}

/// The Admin API while the gateway is under load.
struct Writer<'a> {
    admin: Client,
    fields: &'a str,
}

impl Writer<'_> {
    /// Makes `count` changes at [`CHANGE_RATE`]; gives how long they took.
    fn change(&mut self, count: u32) -> anyhow::Result<Duration> {
        let begin = Instant::now();
        for number in 0..count {
            let due = begin + Duration::from_secs(1) * number / CHANGE_RATE;
            std::thread::sleep(due.saturating_duration_since(Instant::now()));
            let turn = number / 3;
            let (made, kept) = (format!("change-{turn}"), (turn % CHANGED_AMONG).to_string());
            let (method, id, body) = match number % 3 {
                0 => ("PUT", &made, route(&made, &format!("/change/{turn}/*"), "")),
                1 => ("PUT", &kept, route(&kept, &format!("/r/{kept}/*"), &format!("change {number}"))),
                _ => ("DELETE", &made, String::new()),
            };
            let target = format!("/apisix/admin/routes/{id}");
            let answer = self.admin.ask(method, &target, self.fields, body.as_bytes())?;
            let success = (200..300).contains(&answer.status);
            ensure!(success, "{method} {target} is answered {}: {}", answer.status, answer.text());
        }
        Ok(begin.elapsed())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_times_that_were_measured() {
        let check = |times: &[f64], percent, expected: f64| {
            assert!(
                (percentile(&mut times.to_vec(), percent) - expected).abs() < 1e-9,
                "{times:?} {percent}"
            );
        };
        check(&[], 99, 0.0);
        check(&[5.0], 50, 5.0);
        check(&[3.0, 1.0, 2.0], 50, 2.0);
        check(&[3.0, 1.0, 2.0], 99, 3.0);
        let hundred: Vec<f64> = (1..=100).map(f64::from).collect();
        check(&hundred, 99, 100.0);
    }

    #[test]
    fn bodies_are_json() {
        for text in [upstream(1), route("a", "/a/*", "changed")] {
            assert!(serde_json::from_str::<serde_json::Value>(&text).is_ok(), "{text}");
        }
    }
}
