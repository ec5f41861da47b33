//! A profile of the CPU by threads, whose samples the kernel takes.

use std::collections::HashMap;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use axum::http::StatusCode;
use sigma_net::sampling::{Sample, Sampler};

use super::modules::Modules;
use super::unwind::Unwinder;
use super::{Form, KERNEL, MOST_SECONDS, READING, RefusedCall, Report, Stack, number};

/// The highest rate. Each sample copies 16 KiB of a stack, and rings have room for the time between two readings.
const MOST_HZ: u32 = 250;
/// Time between two looks for new threads.
const THREADS: Duration = Duration::from_secs(1);
/// Most distinct stacks; some 10 MiB.
const MOST_STACKS: usize = 20_000;

/// Returns the system's error, with a remedy.
pub(super) fn refused(error: io::Error) -> RefusedCall {
    let remedy = match error.kind() {
        io::ErrorKind::PermissionDenied => {
            "the kernel does not allow this process to profile itself: set the sysctl `kernel.perf_event_paranoid` to 2 or less, or give the process CAP_PERFMON; in a container, its seccomp profile must allow `perf_event_open`"
        }
        io::ErrorKind::OutOfMemory => {
            "too little locked memory: raise `LimitMEMLOCK` or the sysctl `kernel.perf_event_mlock_kb`"
        }
        _ => "this system does not support `perf_event_open`",
    };
    RefusedCall::new(StatusCode::SERVICE_UNAVAILABLE, format!("{remedy}: {error}"))
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct CpuProfileRequest {
    seconds: u32,
    hz: u32,
    pub(super) form: Form,
}

impl CpuProfileRequest {
    pub(super) fn read(arguments: &[(String, String)]) -> Result<CpuProfileRequest, String> {
        let mut wish = CpuProfileRequest { seconds: 10, hz: 99, form: Form::Pprof };
        for (name, value) in arguments {
            match name.as_str() {
                "seconds" => wish.seconds = number(name, value, 1..=MOST_SECONDS)?,
                "hz" => wish.hz = number(name, value, 1..=MOST_HZ)?,
                "format" => {
                    wish.form = Form::named(value).ok_or_else(|| {
                        format!("invalid argument format: {value} is not pprof, folded or svg")
                    })?;
                }
                _ => return Err(format!("unknown argument {name}: write seconds, hz or format")),
            }
        }
        Ok(wish)
    }
}

/// Takes a profile, on a dedicated thread.
pub(super) fn take(wish: CpuProfileRequest, goes_on: &AtomicBool) -> io::Result<Vec<u8>> {
    let modules = Modules::of_this_process()?;
    let mut sampler = Sampler::start(wish.hz)?;
    let mut stacks = Stacks { with_kernel: sampler.with_kernel(), ..Stacks::default() };
    let mut unwinder = Unwinder::default();
    let (begun, time) = (Instant::now(), Duration::from_secs(wish.seconds.into()));
    let mut looked = begun;
    while goes_on.load(Ordering::Relaxed) && begun.elapsed() < time {
        std::thread::sleep(READING.min(time.saturating_sub(begun.elapsed())));
        if looked.elapsed() >= THREADS {
            looked = Instant::now();
            sampler.follow()?;
        }
        sampler.read(|sample| stacks.add(&modules, &mut unwinder, &sample));
    }
    stacks.lost = sampler.lost();
    drop(sampler);
    Ok(stacks.report(wish, begun.elapsed()).render(&modules, wish.form))
}

/// How often each thread was seen in which calls.
#[derive(Default)]
struct Stacks {
    /// By thread and calls, the innermost first.
    seen: HashMap<(u32, Box<[u64]>), u64>,
    threads: HashMap<u32, String>,
    calls: Vec<u64>,
    with_kernel: bool,
    lost: u64,
    /// Samples of stacks beyond the limit.
    untold: u64,
}

impl Stacks {
    fn add(&mut self, modules: &Modules, unwinder: &mut Unwinder, sample: &Sample<'_>) {
        unwinder.calls(modules, sample, &mut self.calls);
        // Within the call, not behind it.
        self.calls.iter_mut().skip(1).for_each(|call| *call -= 1);
        if sample.in_kernel {
            self.calls.insert(0, KERNEL);
        }
        self.threads.entry(sample.thread).or_insert_with(|| thread_name(sample.thread));
        let key = (sample.thread, self.calls[..].into());
        if self.seen.len() >= MOST_STACKS && !self.seen.contains_key(&key) {
            self.untold += 1;
            return;
        }
        *self.seen.entry(key).or_default() += 1;
    }

    fn report(&self, wish: CpuProfileRequest, took: Duration) -> Report {
        let period = 1_000_000_000 / i64::from(wish.hz);
        let stack = |((thread, calls), count): (&(u32, Box<[u64]>), &u64)| {
            let count = i64::try_from(*count).unwrap_or(i64::MAX);
            Stack {
                thread: self.threads.get(thread).cloned(),
                calls: calls.to_vec(),
                values: vec![count, count.saturating_mul(period)],
            }
        };
        Report {
            counted: &[("samples", "count"), ("cpu", "nanoseconds")],
            first: 1,
            told: 0,
            unit: "samples",
            period_of: ("cpu", "nanoseconds"),
            period,
            took,
            title: format!("{} seconds at {} Hz", took.as_secs(), wish.hz),
            notes: self.notes(),
            stacks: self.seen.iter().map(stack).collect(),
        }
    }

    /// Returns notes on the numbers.
    fn notes(&self) -> Vec<String> {
        let mut notes = Vec::new();
        if !self.with_kernel {
            notes.push("time in the kernel is missing: the process has no permission to see it".to_owned());
        }
        if self.lost > 0 {
            notes.push(format!("{} samples are missing: they were not read in time", self.lost));
        }
        if self.untold > 0 {
            notes.push(format!(
                "{} samples are missing: there were more than {MOST_STACKS} stacks",
                self.untold
            ));
        }
        notes
    }
}

/// The name of a thread of this process.
fn thread_name(thread: u32) -> String {
    let name = std::fs::read_to_string(format!("/proc/self/task/{thread}/comm")).unwrap_or_default();
    match name.trim_end() {
        "" => format!("thread {thread}"),
        name => name.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::arguments;
    use super::*;

    #[test]
    fn a_wish_is_read_within_its_bounds() {
        let check = |query: &str, expected: Result<(u32, u32, Form), &str>| {
            let read =
                CpuProfileRequest::read(&arguments(query)).map(|wish| (wish.seconds, wish.hz, wish.form));
            assert_eq!(read, expected.map_err(str::to_owned), "{query}");
        };
        check("", Ok((10, 99, Form::Pprof)));
        check("seconds=120&hz=250&format=svg", Ok((120, 250, Form::Svg)));
        check("format=folded", Ok((10, 99, Form::Folded)));
        check("seconds=0", Err("invalid argument seconds: 0 is not a number from 1 to 120"));
        check("seconds=121", Err("invalid argument seconds: 121 is not a number from 1 to 120"));
        check("hz=251", Err("invalid argument hz: 251 is not a number from 1 to 250"));
        check("hz=x", Err("invalid argument hz: x is not a number from 1 to 250"));
        check("format=html", Err("invalid argument format: html is not pprof, folded or svg"));
        check("second=1", Err("unknown argument second: write seconds, hz or format"));
    }

    #[test]
    fn missing_samples_are_noted() {
        let stacks = Stacks { with_kernel: false, lost: 2, untold: 3, ..Stacks::default() };
        assert_eq!(stacks.notes().len(), 3);
        let modules = Modules::of_this_process().unwrap();
        let wish = CpuProfileRequest { seconds: 1, hz: 99, form: Form::Svg };
        let picture =
            String::from_utf8(stacks.report(wish, Duration::from_secs(1)).render(&modules, wish.form))
                .unwrap();
        assert!(
            picture.contains("2 samples are missing") && picture.contains("time in the kernel is missing")
        );
        let whole = Stacks { with_kernel: true, ..Stacks::default() };
        assert!(whole.notes().is_empty());
        assert_eq!(whole.report(wish, Duration::ZERO).render(&modules, Form::Folded), b"");
    }

    #[test]
    fn refusals_of_the_system_have_a_remedy() {
        let check = |kind: io::ErrorKind, expected: &str| {
            let RefusedCall { status, message } = refused(kind.into());
            assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE);
            assert!(message.contains(expected), "{message}");
        };
        check(io::ErrorKind::PermissionDenied, "kernel.perf_event_paranoid");
        check(io::ErrorKind::OutOfMemory, "LimitMEMLOCK");
        check(io::ErrorKind::Unsupported, "perf_event_open");
    }
}
