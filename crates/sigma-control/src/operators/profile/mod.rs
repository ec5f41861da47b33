//! Profiles of this process, taken while an operator waits: which functions run, and what memory there is.
//!
//! | file | question |
//! |---|---|
//! | `cpu`, `heap` | the profiles, and the requests for them |
//! | `modules` | what runs here: programs, libraries, functions and their names |
//! | `unwind` | which calls a thread was in that the kernel has stopped |
//! | `pprof`, `flame` | the forms of a profile |
//!
//! The kernel takes the samples of the CPU (`sigma_net::sampling`): workers run no code for them. Samples of
//! allocations are taken by the threads that allocate (`sigma_net::allocations`). Nothing of this exists
//! between two profiles, but for a branch in front of the allocator. Other content of a stack than addresses
//! is read here and shown to no caller.

mod cpu;
mod flame;
mod heap;
mod modules;
mod pprof;
mod unwind;

use std::collections::HashMap;
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use axum::http::StatusCode;
use prost::Message as _;
use tokio::sync::Semaphore;

use self::modules::Modules;
use super::refused_call::RefusedCall;

/// The longest profile, in seconds: the caller waits for it.
const MOST_SECONDS: u32 = 120;
/// Time between two checks for the caller, and between two reads of the kernel's samples.
const READING: Duration = Duration::from_millis(20);

/// Takes profiles, one at a time.
pub(crate) struct Profiling(Arc<Semaphore>);

impl Default for Profiling {
    fn default() -> Profiling {
        Profiling(Arc::new(Semaphore::new(1)))
    }
}

/// The media type of a profile, and its text.
pub(crate) type Profile = (&'static str, Vec<u8>);

impl Profiling {
    /// Takes a profile of the threads from now on, and returns its media type and its text. Ends early if the
    /// caller has left.
    ///
    /// # Errors
    /// Returns an error if an argument is no good, another profile is being taken, or the system does not allow it.
    pub(crate) async fn cpu(&self, arguments: &[(String, String)]) -> Result<Profile, RefusedCall> {
        let wish = cpu::CpuProfileRequest::read(arguments).map_err(RefusedCall::bad)?;
        tracing::info!(?wish, "an operator requested a profile");
        let told = self.taken(move |goes_on| cpu::take(wish, goes_on)).await?;
        Ok((wish.form.media_type(), told.map_err(cpu::refused)?))
    }

    /// Takes a profile of allocations from now on. None if the figures of the allocator are requested, by name or by
    /// default.
    ///
    /// # Errors
    /// Returns an error as [`Profiling::cpu`] does.
    pub(crate) async fn heap(&self, arguments: &[(String, String)]) -> Result<Option<Profile>, RefusedCall> {
        let wish = heap::HeapProfileRequest::read(arguments).map_err(RefusedCall::bad)?;
        let Some(wish) = wish else { return Ok(None) };
        tracing::info!(?wish, "an operator requested a profile");
        let told = self.taken(move |goes_on| heap::take(wish, goes_on)).await?;
        Ok(Some((wish.form.media_type(), told.map_err(heap::refused)?)))
    }

    /// Takes a profile, on a dedicated thread, while no other one is being taken.
    async fn taken<T: Send + 'static>(
        &self,
        take: impl FnOnce(&AtomicBool) -> T + Send + 'static,
    ) -> Result<T, RefusedCall> {
        let Ok(place) = Arc::clone(&self.0).try_acquire_owned() else {
            let message = "another profile is running, and only one can run at a time: repeat the call when it has ended";
            return Err(RefusedCall::new(StatusCode::CONFLICT, message));
        };
        let waited_for = WaitedFor::default();
        let goes_on = Arc::clone(&waited_for.0);
        let taken = tokio::task::spawn_blocking(move || {
            let told = take(&goes_on);
            drop(place);
            told
        });
        taken.await.map_err(|error| RefusedCall::new(StatusCode::INTERNAL_SERVER_ERROR, error.to_string()))
    }
}

/// Whether a caller waits for a profile: until this is dropped.
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

/// The form of a profile.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Form {
    Pprof,
    Folded,
    Svg,
}

impl Form {
    fn named(name: &str) -> Option<Form> {
        match name {
            "pprof" => Some(Form::Pprof),
            "folded" => Some(Form::Folded),
            "svg" => Some(Form::Svg),
            _ => None,
        }
    }

    fn media_type(self) -> &'static str {
        match self {
            Form::Pprof => "application/octet-stream",
            Form::Folded => "text/plain; charset=utf-8",
            Form::Svg => "image/svg+xml",
        }
    }
}

/// An argument that is a number.
fn number(name: &str, value: &str, range: RangeInclusive<u32>) -> Result<u32, String> {
    let number = value.parse().ok().filter(|number| range.contains(number));
    let (least, most) = range.into_inner();
    number.ok_or_else(|| format!("invalid argument {name}: {value} is not a number from {least} to {most}"))
}

/// Replaces an address where a thread was in the kernel.
const KERNEL: u64 = u64::MAX;

/// The result of any profile.
struct Report {
    /// The counted values of each stack, in pprof's words: kinds and units.
    counted: &'static [(&'static str, &'static str)],
    /// Which of them viewers show first.
    first: usize,
    /// Which of them lines and pictures tell, and what those call it.
    told: usize,
    unit: &'static str,
    /// The sampling period: kind and unit, and the number.
    period_of: (&'static str, &'static str),
    period: i64,
    took: Duration,
    /// The title of a picture.
    title: String,
    /// Notes on the numbers.
    notes: Vec<String>,
    stacks: Vec<Stack>,
}

/// Calls, and the numbers that belong to them.
struct Stack {
    /// The name of the thread, where that is looked at.
    thread: Option<String>,
    /// Addresses within the calls, the innermost first.
    calls: Vec<u64>,
    /// One for each kind of value.
    values: Vec<i64>,
}

impl Report {
    fn render(&self, modules: &Modules, form: Form) -> Vec<u8> {
        if form == Form::Pprof {
            return pprof::Profile::of(self, modules).encode_to_vec();
        }
        let mut names: HashMap<u64, String> = HashMap::new();
        let mut stacks: HashMap<Vec<String>, u64> = HashMap::new();
        for stack in &self.stacks {
            let count = stack.values.get(self.told).map_or(0, |count| count.unsigned_abs());
            if count == 0 {
                continue;
            }
            let calls = stack.calls.iter().rev();
            let calls = calls.map(|call| names.entry(*call).or_insert_with(|| name(modules, *call)).clone());
            *stacks.entry(stack.thread.clone().into_iter().chain(calls).collect()).or_default() += count;
        }
        let mut stacks: Vec<(Vec<String>, u64)> = stacks.into_iter().collect();
        stacks.sort_unstable();
        if form == Form::Svg {
            let title = format!("{}. {}", self.title, self.notes.join("; "));
            return flame::picture(title.trim_end_matches(". "), self.unit, &stacks).into_bytes();
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

/// The function of a call; its module and address where it has no name.
fn name(modules: &Modules, call: u64) -> String {
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

#[cfg(test)]
mod tests {
    use super::*;

    pub(super) fn arguments(text: &str) -> Vec<(String, String)> {
        form_urlencoded::parse(text.as_bytes()).into_owned().collect()
    }

    /// One at a time; an abandoned one makes room.
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
            assert_eq!(first.await.unwrap().unwrap_err().status, StatusCode::SERVICE_UNAVAILABLE);
            return;
        }
        assert_eq!(profiling.cpu(&[]).await.unwrap_err().status, StatusCode::CONFLICT);
        // Nor one of another kind; figures are no profile.
        let of_heap = profiling.heap(&arguments("seconds=1")).await;
        assert!(matches!(of_heap, Err(RefusedCall { status: StatusCode::CONFLICT, .. })));
        assert_eq!(profiling.heap(&[]).await, Ok(None));
        first.abort();
        let (kind, profile) = loop {
            match profiling.cpu(&arguments("seconds=1")).await {
                Err(RefusedCall { status: StatusCode::CONFLICT, .. }) => tokio::task::yield_now().await,
                other => break other.unwrap(),
            }
        };
        assert_eq!(kind, "application/octet-stream");
        assert!(pprof::Profile::decode(&profile[..]).is_ok());
    }
}
