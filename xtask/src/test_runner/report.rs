//! The log of a run.

use std::fmt::Write as _;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::program::Program;

/// The number of slow tests that are listed.
const SLOWEST: usize = 20;

/// Lines of a panic message in the list of failures; the whole output is above.
const MESSAGE_LINES: usize = 15;

/// The result of a test.
pub(super) struct Test {
    pub(super) name: String,
    pub(super) outcome: Outcome,
    pub(super) time: Duration,
}

pub(super) enum Outcome {
    Passed,
    Ignored,
    /// With the whole output.
    Failed(String),
}

/// The numbers of a run.
#[derive(Debug, Default, Clone, Copy)]
pub(super) struct Counts {
    pub(super) passed: usize,
    pub(super) failed: usize,
    pub(super) ignored: usize,
}

#[derive(Default)]
struct Results {
    counts: Counts,
    times: Vec<(Duration, String)>,
    programs: Vec<(Duration, String)>,
    /// The names, messages and commands of the failures.
    failures: Vec<String>,
}

/// Prints the results as they come, and their summary.
pub(super) struct Report {
    begin: Instant,
    results: Mutex<Results>,
}

impl Default for Report {
    fn default() -> Report {
        Report { begin: Instant::now(), results: Mutex::default() }
    }
}

impl Report {
    fn results(&self) -> MutexGuard<'_, Results> {
        self.results.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn note(&self, text: &str) {
        println!("{}", text.trim_end());
    }

    /// Adds the result of a test. A failure is printed whole.
    pub(super) fn add(&self, program: &Program, test: &Test) {
        let name = program.full_name(&test.name);
        let mut results = self.results();
        match &test.outcome {
            Outcome::Passed => results.counts.passed += 1,
            Outcome::Ignored => results.counts.ignored += 1,
            Outcome::Failed(output) => {
                let alone = program.alone(&test.name);
                println!(
                    "--- FAILED {name} in {}\n{}\n--- alone: {alone}",
                    program.path.display(),
                    output.trim_end()
                );
                results.counts.failed += 1;
                results.failures.push(format!("{name}\n{}  alone: {alone}", message(output)));
            }
        }
        results.times.push((test.time, name));
    }

    pub(super) fn end_program(&self, program: &Program, time: Duration) {
        let mut results = self.results();
        println!("{:7.1} s  {}", time.as_secs_f64(), program.name());
        results.programs.push((time, program.name()));
    }

    /// Prints times, counts and, last, all failures.
    pub(super) fn print_end(&self) -> Counts {
        let mut results = self.results();
        let mut text = String::new();
        let lists = &mut *results;
        for (title, list, most) in [
            ("time of each program", &mut lists.programs, usize::MAX),
            ("slowest tests", &mut lists.times, SLOWEST),
        ] {
            list.sort_by(|a, b| b.cmp(a));
            let _ = writeln!(text, "\n{title}:");
            for (time, name) in list.iter().take(most) {
                let _ = writeln!(text, "{:7.1} s  {name}", time.as_secs_f64());
            }
        }
        let Counts { passed, failed, ignored } = results.counts;
        let seconds = self.begin.elapsed().as_secs();
        let _ = writeln!(text, "\n{passed} passed, {failed} failed, {ignored} ignored in {seconds} s");
        for failure in &results.failures {
            let _ = writeln!(text, "\nFAILED {failure}");
        }
        print!("{text}");
        results.counts
    }
}

/// Returns the panic message in the output of a test, or else the beginning, indented.
fn message(output: &str) -> String {
    let lines: Vec<&str> = output.lines().collect();
    let start = lines.iter().position(|line| line.contains("panicked at ")).unwrap_or_default();
    let is_end =
        |line: &str| line.starts_with("note: run with `RUST_BACKTRACE") || line == "stack backtrace:";
    let lines = lines[start..].iter().take_while(|line| !is_end(line));
    lines.take(MESSAGE_LINES).fold(String::new(), |text, line| text + "  " + line + "\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_message_begins_at_the_panic() {
        let check = |output: &str, expected: &str| assert_eq!(message(output), expected, "{output}");
        let output =
            "log\nthread 'a' (7) panicked at src/a.rs:1:2:\nleft: 1\n\nnote: run with `RUST_BACKTRACE=1`\nx";
        check(output, "  thread 'a' (7) panicked at src/a.rs:1:2:\n  left: 1\n  \n");
        check("no result\n--- output", "  no result\n  --- output\n");
        check("", "");
        assert_eq!(message(&"line\n".repeat(100)).lines().count(), MESSAGE_LINES);
    }
}
