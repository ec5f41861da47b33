//! `cargo xtask test`: runs the test programs of the workspace.
//!
//! Compared with `cargo test`: every program runs, whatever happened before; a test that hangs or a crash costs only
//! the tests that were running; the log ends with all failures and their panic messages; times are reported. No test
//! runs twice. Documentation tests are not run: `tidy` refuses them.
//!
//! libtest reports its events as JSON to a program with `RUSTC_BOOTSTRAP`. Only the test programs get this variable,
//! with a value that allows rustc and cargo nothing. A test that starts cargo removes it, as build scripts would run
//! again otherwise.

mod event;
mod group;
mod program;
mod report;
mod suite;

use std::num::NonZero;
use std::path::Path;
use std::sync::Mutex;
use std::time::Duration;

use anyhow::ensure;

use report::Report;

#[derive(clap::Args)]
pub(crate) struct Options {
    /// Only tests whose full name, as in `sigma::feature::admin::…`, contains this; repeat it for more of them
    #[arg(long, value_name = "NAME")]
    filter: Vec<String>,
    /// Not the tests whose full name contains this; repeat it for more of them
    #[arg(long, value_name = "NAME")]
    skip: Vec<String>,
    /// Compile and run only this program of a `tests/` folder
    #[arg(long, value_name = "PROGRAM", conflicts_with = "without")]
    target: Option<String>,
    /// Do not compile or run this program of a `tests/` folder
    #[arg(long, value_name = "PROGRAM")]
    without: Option<String>,
    /// How many tests of a program run at a time; by default one more than there are cores, as tests mostly wait
    #[arg(long, value_parser = clap::value_parser!(u16).range(1..=1_024))]
    threads: Option<u16>,
    /// How many programs run at a time
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=64))]
    programs: u16,
    /// Seconds after which a test counts as failed, and its program is killed
    #[arg(long, default_value_t = 600, value_parser = clap::value_parser!(u64).range(1..=86_400))]
    timeout: u64,
}

impl Options {
    fn threads(&self) -> u16 {
        let cores = std::thread::available_parallelism().map_or(1, NonZero::get);
        self.threads.unwrap_or(u16::try_from(cores + 1).unwrap_or(u16::MAX))
    }

    fn timeout(&self) -> Duration {
        Duration::from_secs(self.timeout)
    }

    /// Returns true if a test with this full name is to run.
    fn selects(&self, name: &str) -> bool {
        let has = |parts: &[String]| parts.iter().any(|part| name.contains(part));
        (self.filter.is_empty() || has(&self.filter)) && !has(&self.skip)
    }
}

/// Programs that take minutes, and so begin first.
const LONG: [&str; 2] = ["feature", "wire"];

/// Compiles and runs the tests; fails if one of them does, or if the options select none.
pub(crate) fn run(root: &Path, options: &Options) -> anyhow::Result<()> {
    let mut programs = program::compile(root, options)?;
    programs.sort_by_key(|program| (!LONG.contains(&program.target.as_str()), program.name()));
    let report = Report::default();
    let queue = Mutex::new(programs.iter());
    let next = || queue.lock().ok().and_then(|mut queue| queue.next());
    std::thread::scope(|scope| {
        for _ in 0..options.programs {
            scope.spawn(|| {
                while let Some(program) = next() {
                    suite::run(program, options, &report);
                }
            });
        }
    });
    let counts = report.print_end();
    if counts.failed > 0 {
        // An error would be printed below the failures, with a backtrace.
        std::process::exit(1);
    }
    ensure!(counts.passed > 0, "no test has such a name");
    Ok(())
}
