//! Profiles of this process, taken while an operator waits: which functions run, and what memory there is.
//!
//! | file | question |
//! |---|---|
//! | `modules` | what runs here: programs, libraries, functions and their names |
//! | `unwind` | which calls a thread was in |
//! | `pprof`, `flame` | how a profile is told |
//!
//! The kernel takes the samples (`sigma_net::sampling`): workers run no code for them, and nothing of this exists between two
//! profiles. What a stack holds beside addresses is looked at here and told to nobody.

mod flame;
mod modules;
mod pprof;
mod unwind;

use std::collections::HashMap;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use axum::http::{HeaderName, StatusCode, header};
use prost::Message as _;
use serde_json::{Value, json};
use sigma_net::memory;
use sigma_net::sampling::{Sample, Sampler};
use tokio::sync::Semaphore;

use self::modules::Modules;
use self::unwind::Unwinder;

/// The longest profile, in seconds: somebody waits for it.
const MOST_SECONDS: u32 = 120;
/// The highest rate. Each sample copies 16 KiB of a stack, and rings have room for the time between two readings.
const MOST_HZ: u32 = 250;
/// Time between two readings of the rings.
const READING: Duration = Duration::from_millis(20);
/// Time between two looks for new threads.
const THREADS: Duration = Duration::from_secs(1);
/// Stacks that are told apart; some 10 MiB.
const MOST_STACKS: usize = 20_000;

/// Takes profiles, one at a time.
pub(crate) struct Profiling(Arc<Semaphore>);

impl Default for Profiling {
    fn default() -> Profiling {
        Profiling(Arc::new(Semaphore::new(1)))
    }
}

/// A status and a sentence.
pub(crate) type Refused = (StatusCode, String);

/// The fields of an answer that is a profile.
pub(crate) fn fields(kind: &'static str) -> [(HeaderName, &'static str); 3] {
    // A picture that a browser shows has nothing to fetch and nothing to run.
    let policy = "default-src 'none'; style-src 'unsafe-inline'";
    [
        (header::CONTENT_TYPE, kind),
        (header::CACHE_CONTROL, "no-store"),
        (header::CONTENT_SECURITY_POLICY, policy),
    ]
}

impl Profiling {
    /// A profile of what the threads do from now on: its media type and its text. Ends early, for nobody, if it is no
    /// longer waited for.
    ///
    /// # Errors
    /// Returns an error if an argument is no good, another profile is being taken, or the system does not allow it.
    pub(crate) async fn cpu(
        &self,
        arguments: &[(String, String)],
    ) -> Result<(&'static str, Vec<u8>), Refused> {
        let wish = Wish::read(arguments).map_err(|message| (StatusCode::BAD_REQUEST, message))?;
        let Ok(place) = Arc::clone(&self.0).try_acquire_owned() else {
            let message = "a profile is being taken, and there is one at a time: ask again when it is done";
            return Err((StatusCode::CONFLICT, message.to_owned()));
        };
        tracing::info!(?wish, "an operator takes a profile");
        let waited_for = WaitedFor::default();
        let goes_on = Arc::clone(&waited_for.0);
        let taken = tokio::task::spawn_blocking(move || {
            let told = take(wish, &goes_on);
            drop(place);
            told
        });
        let told = taken.await.map_err(|error| (StatusCode::INTERNAL_SERVER_ERROR, error.to_string()))?;
        Ok((wish.form.media_type(), told.map_err(refused)?))
    }
}

/// Whether somebody waits for a profile: until this is dropped.
struct WaitedFor(Arc<AtomicBool>);

impl Default for WaitedFor {
    fn default() -> WaitedFor {
        WaitedFor(Arc::new(AtomicBool::new(true)))
    }
}

impl Drop for WaitedFor {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Relaxed);
    }
}

/// What the system says, and what helps.
fn refused(error: io::Error) -> Refused {
    let remedy = match error.kind() {
        io::ErrorKind::PermissionDenied => {
            "the kernel does not let this process look at itself: set the sysctl `kernel.perf_event_paranoid` to 2 or less, or \
             give the process CAP_PERFMON; in a container its seccomp profile has to allow `perf_event_open`"
        }
        io::ErrorKind::OutOfMemory => {
            "there is no room: raise the limit on locked memory (`LimitMEMLOCK`) or the sysctl `kernel.perf_event_mlock_kb`"
        }
        _ => "this system has no samples to give (`perf_event_open`)",
    };
    (StatusCode::SERVICE_UNAVAILABLE, format!("{remedy}: {error}"))
}

/// What the allocator and the system tell of this process's memory. By stack it cannot be told: for that, each
/// allocation would have to be looked at all the time.
pub(crate) fn heap() -> Option<Value> {
    let allocator: Value = serde_json::from_str(&memory::allocator_figures()?).ok()?;
    let status = std::fs::File::open("/proc/self/status");
    let own = status.and_then(|mut status| memory::own_bytes(&mut status)).ok();
    Some(json!({"own_bytes": own, "limit_bytes": memory::cgroup_limit(), "allocator": allocator}))
}

/// How a profile is told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Form {
    Pprof,
    Folded,
    Svg,
}

impl Form {
    fn media_type(self) -> &'static str {
        match self {
            Form::Pprof => "application/octet-stream",
            Form::Folded => "text/plain; charset=utf-8",
            Form::Svg => "image/svg+xml",
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Wish {
    seconds: u32,
    hz: u32,
    form: Form,
}

impl Wish {
    fn read(arguments: &[(String, String)]) -> Result<Wish, String> {
        let mut wish = Wish { seconds: 10, hz: 99, form: Form::Pprof };
        for (name, value) in arguments {
            let within = |most: u32| {
                let number = value.parse().ok().filter(|number| (1..=most).contains(number));
                number
                    .ok_or_else(|| format!("invalid argument {name}: {value} is no number from 1 to {most}"))
            };
            match (name.as_str(), value.as_str()) {
                ("seconds", _) => wish.seconds = within(MOST_SECONDS)?,
                ("hz", _) => wish.hz = within(MOST_HZ)?,
                ("format", "pprof") => wish.form = Form::Pprof,
                ("format", "folded") => wish.form = Form::Folded,
                ("format", "svg") => wish.form = Form::Svg,
                ("format", _) => {
                    return Err(format!("invalid argument format: {value} is not pprof, folded or svg"));
                }
                _ => return Err(format!("unknown argument {name}: write seconds, hz or format")),
            }
        }
        Ok(wish)
    }
}

/// Takes a profile, on a thread that nobody else needs.
fn take(wish: Wish, goes_on: &AtomicBool) -> io::Result<Vec<u8>> {
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
    Ok(stacks.told(&modules, wish, begun.elapsed()))
}

/// Stands in the place of an address where a thread was in the kernel.
const KERNEL: u64 = u64::MAX;

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

    /// Thread, calls and count of each stack.
    fn all(&self) -> impl Iterator<Item = (&str, &[u64], u64)> {
        self.seen.iter().map(|((thread, calls), count)| {
            (self.threads.get(thread).map_or("", String::as_str), &**calls, *count)
        })
    }

    /// The function of a call; its module and address where it has no name.
    fn name(&self, modules: &Modules, call: u64) -> String {
        if call == KERNEL {
            return "[kernel]".to_owned();
        }
        match (modules.name(call), modules.position(call)) {
            (Some(name), _) => format!("{:#}", rustc_demangle::demangle(&name)),
            (None, Some(at)) => {
                let module = &modules.all()[at];
                let file = module.path.rsplit('/').next().unwrap_or_default();
                format!("{file}+{:#x}", call - module.start + module.offset)
            }
            (None, None) => "[unknown]".to_owned(),
        }
    }

    /// What should be known beside the numbers.
    fn notes(&self) -> Vec<String> {
        let mut notes = Vec::new();
        if !self.with_kernel {
            notes.push("time in the kernel is missing: the process may not see it".to_owned());
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

    fn told(&self, modules: &Modules, wish: Wish, took: Duration) -> Vec<u8> {
        if wish.form == Form::Pprof {
            return pprof::Profile::of(self, modules, wish.hz, took).encode_to_vec();
        }
        let mut names: HashMap<u64, String> = HashMap::new();
        let mut stacks: HashMap<Vec<String>, u64> = HashMap::new();
        for (thread, calls, count) in self.all() {
            let calls = calls.iter().rev();
            let calls =
                calls.map(|call| names.entry(*call).or_insert_with(|| self.name(modules, *call)).clone());
            *stacks.entry(std::iter::once(thread.to_owned()).chain(calls).collect()).or_default() += count;
        }
        let mut stacks: Vec<(Vec<String>, u64)> = stacks.into_iter().collect();
        stacks.sort_unstable();
        if wish.form == Form::Svg {
            let notes = self.notes().join("; ");
            let title = format!("{} seconds at {} Hz. {notes}", took.as_secs(), wish.hz);
            return flame::picture(title.trim_end_matches(". "), &stacks).into_bytes();
        }
        let line = |(calls, count): &(Vec<String>, u64)| {
            // A `;` divides, and a space is before the number.
            let calls: Vec<String> =
                calls.iter().map(|call| call.replace(';', ":").replace('\n', " ")).collect();
            format!("{} {count}\n", calls.join(";"))
        };
        stacks.iter().map(line).collect::<String>().into_bytes()
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
    use super::*;

    fn arguments(text: &str) -> Vec<(String, String)> {
        form_urlencoded::parse(text.as_bytes()).into_owned().collect()
    }

    #[test]
    fn a_wish_is_read_within_its_bounds() {
        let check = |query: &str, expected: Result<(u32, u32, Form), &str>| {
            let read = Wish::read(&arguments(query)).map(|wish| (wish.seconds, wish.hz, wish.form));
            assert_eq!(read, expected.map_err(str::to_owned), "{query}");
        };
        check("", Ok((10, 99, Form::Pprof)));
        check("seconds=120&hz=250&format=svg", Ok((120, 250, Form::Svg)));
        check("format=folded", Ok((10, 99, Form::Folded)));
        check("seconds=0", Err("invalid argument seconds: 0 is no number from 1 to 120"));
        check("seconds=121", Err("invalid argument seconds: 121 is no number from 1 to 120"));
        check("hz=251", Err("invalid argument hz: 251 is no number from 1 to 250"));
        check("hz=x", Err("invalid argument hz: x is no number from 1 to 250"));
        check("format=html", Err("invalid argument format: html is not pprof, folded or svg"));
        check("second=1", Err("unknown argument second: write seconds, hz or format"));
    }

    #[test]
    fn what_is_missing_is_said() {
        let stacks = Stacks { with_kernel: false, lost: 2, untold: 3, ..Stacks::default() };
        assert_eq!(stacks.notes().len(), 3);
        let modules = Modules::of_this_process().unwrap();
        let wish = Wish { seconds: 1, hz: 99, form: Form::Svg };
        let picture = String::from_utf8(stacks.told(&modules, wish, Duration::from_secs(1))).unwrap();
        assert!(
            picture.contains("2 samples are missing") && picture.contains("time in the kernel is missing")
        );
        let whole = Stacks { with_kernel: true, ..Stacks::default() };
        assert!(whole.notes().is_empty());
        assert_eq!(whole.told(&modules, Wish { form: Form::Folded, ..wish }, Duration::ZERO), b"");
    }

    #[test]
    fn what_the_system_refuses_has_a_remedy() {
        let check = |kind: io::ErrorKind, expected: &str| {
            let (status, message) = refused(kind.into());
            assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE);
            assert!(message.contains(expected), "{message}");
        };
        check(io::ErrorKind::PermissionDenied, "kernel.perf_event_paranoid");
        check(io::ErrorKind::OutOfMemory, "LimitMEMLOCK");
        check(io::ErrorKind::Unsupported, "perf_event_open");
    }

    /// One at a time; one that nobody waits for makes room.
    #[tokio::test]
    async fn there_is_one_profile_at_a_time() {
        let profiling = Arc::new(Profiling::default());
        let first = tokio::spawn({
            let profiling = Arc::clone(&profiling);
            async move { profiling.cpu(&arguments("seconds=120")).await }
        });
        while profiling.0.available_permits() > 0 && !first.is_finished() {
            tokio::task::yield_now().await;
        }
        if first.is_finished() {
            // Where the system forbids it.
            assert_eq!(first.await.unwrap().unwrap_err().0, StatusCode::SERVICE_UNAVAILABLE);
            return;
        }
        assert_eq!(profiling.cpu(&[]).await.unwrap_err().0, StatusCode::CONFLICT);
        first.abort();
        let (kind, profile) = loop {
            match profiling.cpu(&arguments("seconds=1")).await {
                Err((StatusCode::CONFLICT, _)) => tokio::task::yield_now().await,
                other => break other.unwrap(),
            }
        };
        assert_eq!(kind, "application/octet-stream");
        assert!(pprof::Profile::decode(&profile[..]).is_ok());
    }

    #[test]
    fn memory_is_told_in_figures() {
        let figures = heap().unwrap();
        assert!(
            figures["own_bytes"].as_u64() > Some(1 << 20) && figures["allocator"].is_object(),
            "{figures}"
        );
    }
}
