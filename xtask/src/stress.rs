//! `cargo xtask stress`: runs tests many times under load, to find tests that depend on time.

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use serde_json::Value;

#[derive(clap::Args)]
pub(crate) struct Options {
    /// The tests: each whose name contains this
    name: String,
    /// The crate of the tests
    #[arg(short, long, default_value = "sigma")]
    package: String,
    /// The program of the tests, or `lib` for the unit tests of the crate
    #[arg(long, default_value = "feature")]
    target: String,
    /// How often they run
    #[arg(long, default_value_t = 200, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    times: u32,
    /// How many of the runs there are at a time
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u16).range(1..=64))]
    jobs: u16,
    /// Threads that compute all the while
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u16).range(0..=64))]
    load: u16,
}

/// The common state of the runs.
struct Runs<'o> {
    options: &'o Options,
    program: PathBuf,
    /// The folder of the crate, where its tests run.
    folder: PathBuf,
    next: AtomicU32,
    failures: Mutex<Vec<Failure>>,
    slowest: Mutex<Duration>,
}

struct Failure {
    number: u32,
    output: Output,
}

/// Runs the tests; fails if one of the runs does.
pub(crate) fn run(root: &Path, options: &Options) -> anyhow::Result<()> {
    let runs = Runs {
        options,
        program: build(root, options)?,
        folder: root.join("crates").join(&options.package),
        next: AtomicU32::new(1),
        failures: Mutex::default(),
        slowest: Mutex::default(),
    };
    runs.has_tests()?;
    let (begin, is_over) = (Instant::now(), AtomicBool::new(false));
    std::thread::scope(|scope| {
        for _ in 0..options.load {
            let is_over = &is_over;
            scope.spawn(move || {
                while !is_over.load(Ordering::Relaxed) {
                    std::hint::spin_loop();
                }
            });
        }
        let jobs: Vec<_> = (0..options.jobs).map(|_| scope.spawn(|| runs.work())).collect();
        let results: Vec<_> = jobs.into_iter().map(|job| job.join()).collect();
        is_over.store(true, Ordering::Relaxed);
        results.into_iter().try_for_each(|result| result.unwrap_or_else(|_| bail!("a job has panicked")))
    })?;
    let failures = runs.failures.into_inner().unwrap_or_default();
    for Failure { number, output } in &failures {
        println!("--- run {number} failed ({})", output.status);
        println!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    }
    println!(
        "{} runs of `{}` in {} s, {} at a time next to {} computing threads; the slowest took {:.1} s; {} failed",
        options.times,
        options.name,
        begin.elapsed().as_secs(),
        options.jobs,
        options.load,
        runs.slowest.into_inner().unwrap_or_default().as_secs_f64(),
        failures.len()
    );
    ensure!(failures.is_empty(), "{} of {} runs failed", failures.len(), options.times);
    Ok(())
}

impl Runs<'_> {
    fn command(&self) -> Command {
        let mut command = Command::new(&self.program);
        command.arg(&self.options.name).current_dir(&self.folder).stdin(Stdio::null());
        command
    }

    /// A name without a test would pass any number of times.
    fn has_tests(&self) -> anyhow::Result<()> {
        let output = self.command().arg("--list").output().context("cannot list the tests")?;
        let text = String::from_utf8_lossy(&output.stdout);
        let count = text.lines().filter(|line| line.ends_with(": test")).count();
        ensure!(count > 0, "no test of {} has `{}` in its name", self.program.display(), self.options.name);
        println!("{count} tests, {} times", self.options.times);
        Ok(())
    }

    /// Takes one run after the other, until none is left.
    fn work(&self) -> anyhow::Result<()> {
        loop {
            let number = self.next.fetch_add(1, Ordering::Relaxed);
            if number > self.options.times {
                return Ok(());
            }
            let begin = Instant::now();
            let output = self.command().output().context("cannot run the tests")?;
            if let Ok(mut slowest) = self.slowest.lock() {
                *slowest = begin.elapsed().max(*slowest);
            }
            if !output.status.success()
                && let Ok(mut failures) = self.failures.lock()
            {
                println!("run {number} failed");
                failures.push(Failure { number, output });
            }
        }
    }
}

/// Compiles the program of the tests.
fn build(root: &Path, options: &Options) -> anyhow::Result<PathBuf> {
    let mut cargo = Command::new("cargo");
    cargo.current_dir(root).args(["test", "--no-run", "--message-format", "json", "--package"]);
    cargo.arg(&options.package);
    match options.target.as_str() {
        "lib" => cargo.arg("--lib"),
        target => cargo.args(["--test", target]),
    };
    let output = cargo.stderr(Stdio::inherit()).output().context("cannot run cargo")?;
    ensure!(output.status.success(), "the tests do not compile");
    let text = String::from_utf8_lossy(&output.stdout);
    let messages = text.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let is_test = |message: &Value| message["profile"]["test"] == true;
    let found =
        messages.filter(is_test).find_map(|message| message["executable"].as_str().map(PathBuf::from));
    found.context("cargo names no program of tests")
}
