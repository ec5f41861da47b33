//! `cargo xtask chaos`: nodes that hang, reset, return 500, slow down and come back at random, under many connections.
//!
//! A GET may be sent again by the retry policy, so that each has to be responded with its own body: one that is not is
//! lost, unless the retry budget refused its attempt. A POST may not, so that failures are its client's; they are
//! counted. A body of another request is wrong, and ends the run with an error as a lost GET does.

mod client;
mod node;

use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};

use client::Tally;
use node::{Mood, Node};

use crate::soak::{self, gateway::Gateway};

/// How long and how much.
#[derive(clap::Args)]
pub(crate) struct Options {
    /// Seconds
    #[arg(long, default_value_t = 600)]
    seconds: u64,
    /// Nodes of the upstream
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u32).range(2..=200))]
    nodes: u32,
    /// Nodes that fail at a time, at most
    #[arg(long, default_value_t = 6)]
    failing: u32,
    /// Connections of clients
    #[arg(long, default_value_t = 200, value_parser = clap::value_parser!(u32).range(1..=1000))]
    connections: u32,
    /// A Sigma binary to use instead of building one with the profile `release`
    #[arg(long, value_name = "FILE")]
    sigma: Option<PathBuf>,
    /// Where the random numbers begin
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

/// Shares of requests that may be in a further attempt, in percent.
const BUDGET_PERCENT: u32 = 20;

/// Runs it and prints the counts; fails if a request is lost or wrong.
pub(crate) fn run(root: &Path, options: &Options) -> anyhow::Result<()> {
    ensure!(options.failing < options.nodes, "--failing has to be less than --nodes");
    let sigma = match &options.sigma {
        Some(path) => path.canonicalize().with_context(|| format!("no Sigma at {}", path.display()))?,
        None => soak::build(root)?,
    };
    let work = root.join("target/chaos");
    std::fs::create_dir_all(&work).with_context(|| format!("cannot create {}", work.display()))?;
    let nodes: Vec<Node> = (0..options.nodes).map(|_| Node::start()).collect::<Result<_, _>>()?;
    let status = free_port()?;
    let gateway = Gateway::start(&sigma, &work, "chaos", &config(&nodes, options, status))?;
    let (tally, begin) = (Tally::default(), Instant::now());
    let end = begin + Duration::from_secs(options.seconds);
    std::thread::scope(|scope| {
        let clients: Vec<_> = (0..options.connections)
            .map(|number| (number, &tally, gateway.port))
            .map(|(number, tally, port)| scope.spawn(move || client::run(port, number, end, tally)))
            .collect();
        disturb(&nodes, options, end);
        nodes.iter().for_each(|node| node.set(Mood::Good));
        for client in clients {
            if client.join().is_err() {
                bail!("a client panicked: see its message above");
            }
        }
        Ok(())
    })?;
    let counter = |name: &str| client::counter(status, name);
    report(&tally, begin.elapsed(), counter("upstream_retries")?, counter("upstream_retries_over_budget")?)
}

fn free_port() -> anyhow::Result<u16> {
    Ok(std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?.port())
}

/// All rules that have to do with nodes that fail.
fn config(nodes: &[Node], options: &Options, status: u16) -> String {
    let nodes: Vec<String> = nodes.iter().map(|node| format!("\"127.0.0.1:{}\": 1", node.port)).collect();
    format!(
        "workers: 2\nstatus: {{ address: \"127.0.0.1:{status}\" }}\nupstreams:\n  - id: u\n    nodes: {{ {} }}\n    \
         retries: {}\n    retry_policy:\n      retry_on: [connect-failure, reset, 5xx]\n      per_try_timeout: 0.5\n      \
         budget: {{ percent: {BUDGET_PERCENT}, min_concurrency: 20 }}\n    outlier_detection: {{ interval: 1, \
         base_ejection_time: 0.5, consecutive_5xx: 3, max_ejection_percent: 50 }}\n    timeout: {{ connect: 0.5, send: 5, read: 5 }}\n\
         routes:\n  - {{ id: all, uri: \"/*\", upstream_id: u }}\n",
        nodes.join(", "),
        options.failing + 2,
    )
}

/// Puts nodes into other moods until the end, never more than may fail at a time.
fn disturb(nodes: &[Node], options: &Options, end: Instant) {
    let random = client::Random::new(options.seed);
    while Instant::now() < end {
        let failing = nodes.iter().filter(|node| node.mood() != Mood::Good).count();
        let node = &nodes[random.below(nodes.len() as u64) as usize];
        if node.mood() != Mood::Good {
            node.set(Mood::Good);
        } else if failing < options.failing as usize {
            node.set(Mood::BAD[random.below(Mood::BAD.len() as u64) as usize]);
        }
        std::thread::sleep(Duration::from_millis(20 + random.below(180)));
    }
}

fn report(tally: &Tally, time: Duration, retries: u64, over_budget: u64) -> anyhow::Result<()> {
    let count = |counter: &std::sync::atomic::AtomicU64| counter.load(Ordering::Relaxed);
    let (gets, posts) = (count(&tally.gets), count(&tally.posts));
    let (failed, wrong) = (count(&tally.gets_failed), count(&tally.wrong));
    println!(
        "{} requests in {:.0} s: {gets} GETs, {failed} of them failed; {posts} POSTs, {} of them failed",
        gets + posts,
        time.as_secs_f64(),
        count(&tally.posts_failed),
    );
    println!(
        "{retries} attempts after a first, {over_budget} that the budget refused; {wrong} wrong answers"
    );
    ensure!(wrong == 0, "{wrong} answers were of other requests");
    ensure!(failed <= over_budget, "{} GETs were lost that the policy retries", failed - over_budget);
    Ok(())
}
