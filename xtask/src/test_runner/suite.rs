//! The run of one test program.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read};
use std::process::{Child, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};

use super::event::{Event, split};
use super::program::Program;
use super::report::{Outcome, Report, Test};
use super::{Options, group};

/// How long the pipes of a program that has ended may stay open: a process outside its group may have them.
const PIPES_CLOSE: Duration = Duration::from_secs(2);

/// How often the progress of a program is reported.
const PROGRESS: Duration = Duration::from_secs(60);

/// How much of the output that belongs to no test is stored, in bytes; the older half is dropped then.
const TEXT_BYTES: usize = 256 << 10;

/// Runs a program until each of its selected tests has a result.
pub(super) fn run(program: &Program, options: &Options, report: &Report) {
    let begin = Instant::now();
    let result = run_all(program, options, report);
    if let Err(error) = &result {
        let name = format!("{} (the program)", program.name());
        report.add(
            program,
            &Test { name, outcome: Outcome::Failed(format!("{error:#}")), time: begin.elapsed() },
        );
    }
    if result.unwrap_or(1) > 0 {
        report.end_program(program, begin.elapsed());
    }
}

/// Returns the number of selected tests, which have run.
///
/// # Errors
/// Returns an error if the program fails in another way than by its tests.
fn run_all(program: &Program, options: &Options, report: &Report) -> anyhow::Result<usize> {
    let mut left = list(program)?;
    left.retain(|test| options.selects(&program.full_name(test)));
    let count = left.len();
    while !left.is_empty() {
        let mut run = Run::new(program, report);
        let status = run.pass(&left, options)?;
        left.retain(|name| !run.finished.contains(name));
        let is_explained = status.success() || run.failures > 0;
        ensure!(is_explained && !run.finished.is_empty(), "it ended with {status}\n{}", run.text);
        // A crash and a hang end the process; the tests that have not started run in another one.
        if !left.is_empty() {
            report.note(&format!("{}: continues with {} tests", program.name(), left.len()));
        }
    }
    Ok(count)
}

/// Returns the names of the program's tests.
fn list(program: &Program) -> anyhow::Result<Vec<String>> {
    let output =
        program.command().args(["--list", "--format", "terse"]).output().context("cannot run setpriv")?;
    ensure!(output.status.success(), "cannot list the tests: {}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8_lossy(&output.stdout);
    Ok(text.lines().filter_map(|line| line.strip_suffix(": test")).map(str::to_owned).collect())
}

/// A sign of a process.
enum Sign {
    Line(String),
    Ended(std::io::Result<ExitStatus>),
}

/// One process of a program.
struct Run<'a> {
    program: &'a Program,
    report: &'a Report,
    /// The tests that are running, and since when.
    running: BTreeMap<String, Instant>,
    finished: Vec<String>,
    failures: usize,
    /// The output that belongs to no test: of children, and of threads that libtest does not capture.
    text: String,
}

impl<'a> Run<'a> {
    fn new(program: &'a Program, report: &'a Report) -> Run<'a> {
        Run {
            program,
            report,
            running: BTreeMap::new(),
            finished: Vec::new(),
            failures: 0,
            text: String::new(),
        }
    }

    /// Runs these tests in one process, until it ends or a test takes too long.
    fn pass(&mut self, names: &[String], options: &Options) -> anyhow::Result<ExitStatus> {
        let mut command = self.program.command();
        command.args(["-Z", "unstable-options", "--format", "json", "--report-time", "--exact"]);
        command.args(["--test-threads", &options.threads().to_string()]).args(names);
        // libtest needs any value; this one allows rustc and cargo nothing unstable.
        command.env("RUSTC_BOOTSTRAP", "-1").stdout(Stdio::piped()).stderr(Stdio::piped());
        let child = command.spawn().context("cannot run setpriv")?;
        let process = child.id();
        let signs = signs_of(child)?;
        let (mut status, mut has_hung, mut last, mut told) = (None, false, Instant::now(), Instant::now());
        loop {
            let is_over = status.is_some() || has_hung;
            let deadline =
                if is_over { last + PIPES_CLOSE } else { self.oldest().unwrap_or(last) + options.timeout() };
            match signs.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
                Ok(Sign::Line(line)) => self.read(&line),
                Ok(Sign::Ended(ended)) => {
                    status = Some(ended?);
                    group::kill(process);
                }
                Err(RecvTimeoutError::Timeout) if !is_over => {
                    has_hung = true;
                    self.report.note(&self.describe_hang(process));
                    group::kill(process);
                }
                Err(_) => break,
            }
            last = Instant::now();
            if told.elapsed() >= PROGRESS {
                told = last;
                let done = self.finished.len();
                self.report.note(&format!("{}: {done} of {} tests", self.program.name(), names.len()));
            }
        }
        let status = status.context("the program does not end after SIGKILL")?;
        self.fail_running(&match has_hung {
            true => format!("no result after {} s", options.timeout),
            false => format!("was running when the program ended with {status}"),
        });
        Ok(status)
    }

    /// Returns the start of the test that has been running longest.
    fn oldest(&self) -> Option<Instant> {
        self.running.values().min().copied()
    }

    fn read(&mut self, line: &str) {
        let (text, event) = split(line);
        if !text.is_empty() {
            self.text.push_str(text);
            self.text.push('\n');
            if self.text.len() > TEXT_BYTES {
                let half = TEXT_BYTES / 2;
                let line = self.text.bytes().skip(half).position(|byte| byte == b'\n').unwrap_or_default();
                self.text.drain(..=half + line);
            }
        }
        match event {
            Some(Event::Started(name)) => {
                self.running.insert(name, Instant::now());
            }
            Some(Event::Passed(name)) => self.finish(name, Outcome::Passed),
            Some(Event::Ignored(name)) => self.finish(name, Outcome::Ignored),
            Some(Event::Failed(name, output)) => self.finish(name, Outcome::Failed(output)),
            Some(Event::Slow(name)) => {
                self.report.note(&format!("{} has been running for a minute", self.program.full_name(&name)));
            }
            Some(Event::Suite) | None => {}
        }
    }

    fn finish(&mut self, name: String, outcome: Outcome) {
        let time = self.running.remove(&name).map_or(Duration::ZERO, |since| since.elapsed());
        self.failures += usize::from(matches!(outcome, Outcome::Failed(_)));
        self.finished.push(name.clone());
        self.report.add(self.program, &Test { name, outcome, time });
    }

    fn fail_running(&mut self, why: &str) {
        let output =
            if self.text.is_empty() { String::new() } else { format!("\n--- output\n{}", self.text) };
        while let Some((name, _)) = self.running.first_key_value() {
            self.finish(name.clone(), Outcome::Failed(format!("{why}{output}")));
        }
    }

    fn describe_hang(&self, process: u32) -> String {
        let running = self.running.iter().map(|(name, since)| {
            format!("  {:.1} s: {}\n", since.elapsed().as_secs_f64(), self.program.full_name(name))
        });
        format!(
            "--- {} takes too long and is killed; running:\n{}{}{}",
            self.program.name(),
            running.collect::<String>(),
            self.text,
            group::describe_children(process)
        )
    }
}

/// Starts threads that send the lines and the end of a process.
fn signs_of(mut child: Child) -> anyhow::Result<Receiver<Sign>> {
    let (sender, receiver) = channel();
    let outputs = (child.stdout.take(), child.stderr.take());
    send_lines(outputs.0.context("stdout is no pipe")?, sender.clone());
    send_lines(outputs.1.context("stderr is no pipe")?, sender.clone());
    std::thread::spawn(move || sender.send(Sign::Ended(child.wait())));
    Ok(receiver)
}

fn send_lines(pipe: impl Read + Send + 'static, sender: Sender<Sign>) {
    std::thread::spawn(move || {
        for line in BufReader::new(pipe).split(b'\n') {
            let Ok(line) = line else { return };
            if sender.send(Sign::Line(String::from_utf8_lossy(&line).into_owned())).is_err() {
                return;
            }
        }
    });
}
