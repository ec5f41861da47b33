//! Worker threads: one single-threaded runtime each, with tasks that never leave their thread.

use std::future::{Future, poll_fn};
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use std::task::Poll;
use std::thread::JoinHandle;
use std::time::Duration;

use tokio::runtime::{Builder, LocalOptions};

use crate::sandbox::calls;
use crate::uring::{self, Sizes};

/// Events handled between two looks at the timer and at what other threads tell.
const EVENTS_PER_TURN: usize = 256;

/// Threads beside a worker for what blocks, such as reading files and rendering pages. Clients decide
/// how many such calls come at once; tokio would start 512 threads for each worker. Calls beyond
/// these wait their turn, and a disk is hardly faster with more.
const BLOCKING_THREADS: usize = 16;

/// What moves bytes between a worker and its connections.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Io {
    /// The stream itself, when epoll says that its socket is ready.
    Epoll,
    /// The kernel, by a ring of these sizes; as [`Io::Epoll`] where that is not to be had, which is logged.
    Auto(Sizes),
    /// As [`Io::Auto`], but nobody expects it not to be had: what is logged is a warning.
    Uring(Sizes),
}

/// Starts a worker thread that runs the future `main` makes, on a runtime of its own. Connections that
/// it accepts and dials go by `io`. With `is_filtered`, the thread gives up system calls that a worker does not need
/// ([`calls`]) before it runs the future.
///
/// # Errors
/// Returns the error of the operating system if the thread cannot be started.
pub fn spawn<F>(
    name: String,
    cpu: Option<usize>,
    io: Io,
    is_filtered: bool,
    main: impl FnOnce() -> F + Send + 'static,
) -> io::Result<JoinHandle<()>>
where
    F: Future<Output = ()> + 'static,
{
    std::thread::Builder::new().name(name).spawn(move || {
        if let Some(cpu) = cpu
            && let Err(error) = crate::limits::pin_thread(cpu)
        {
            tracing::warn!(cpu, %error, "cannot pin a worker to its CPU");
        }
        crate::deadline::is_told_of_wakes();
        let runtime = Builder::new_current_thread()
            .enable_all()
            .on_thread_unpark(crate::deadline::woken)
            .max_io_events_per_tick(EVENTS_PER_TURN)
            .max_blocking_threads(BLOCKING_THREADS)
            .build_local(LocalOptions::default());
        match runtime {
            Ok(runtime) => runtime.block_on(run(io, is_filtered, main)),
            Err(error) => tracing::error!(%error, "cannot start a worker's runtime"),
        }
    })
}

async fn run<F: Future<Output = ()>>(io: Io, is_filtered: bool, main: impl FnOnce() -> F) {
    const NOT_HAD: &str =
        "io_uring is not to be had here: using epoll (Linux 6.1 has it; a container may forbid it)";
    if let Io::Auto(sizes) | Io::Uring(sizes) = io {
        match uring::start(sizes) {
            Ok(()) => drop(tokio::task::spawn_local(kept_up("io_uring", move || uring::run(sizes)))),
            Err(error) if io == Io::Auto(sizes) => tracing::info!(%error, "{NOT_HAD}"),
            Err(error) => tracing::warn!(%error, "{NOT_HAD}"),
        }
    }
    if is_filtered && let Err(error) = calls::filter() {
        tracing::warn!(%error, "`process.sandbox`: the system has no filters of system calls; a worker goes without");
    }
    main().await;
    uring::settle().await;
}

/// Pause before what panicked is started anew: it may do so again at once.
const PAUSE: Duration = Duration::from_millis(100);

/// Runs the future that `make` makes. Whenever it panics, says so, makes it anew and goes on: what a
/// worker cannot do without must not end unseen. The panic itself is told by the panic hook.
pub async fn kept_up<F: Future>(name: &'static str, mut make: impl FnMut() -> F) -> F::Output {
    loop {
        let mut running = pin!(make());
        let ended = poll_fn(|cx| {
            // It shares with others only cells that are whole between two borrows.
            match catch_unwind(AssertUnwindSafe(|| running.as_mut().poll(cx))) {
                Ok(Poll::Pending) => Poll::Pending,
                Ok(Poll::Ready(output)) => Poll::Ready(Some(output)),
                Err(_) => Poll::Ready(None),
            }
        });
        if let Some(output) = ended.await {
            return output;
        }
        tracing::error!(name, "a part of a worker has panicked and is started anew");
        tokio::time::sleep(PAUSE).await;
    }
}

/// How far the threads that do not serve requests stand back from those that do: where they share a
/// CPU, a quarter of it is left for them.
const STEP_BACK: i32 = 5;

/// Lets the worker threads that run already go first, before the calling thread and those that it
/// starts from now on. A large configuration or a page of metrics costs time that traffic would
/// miss on a machine with few CPUs.
pub fn yield_to_workers() {
    let this = rustix::thread::gettid();
    if let Err(error) = rustix::process::setpriority_process(Some(this), STEP_BACK) {
        tracing::debug!(%error, "the control thread keeps its priority");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn what_panics_is_started_anew() {
        let mut starts = 0;
        let output = kept_up("a test", || {
            starts += 1;
            let start = starts;
            async move {
                tokio::task::yield_now().await;
                assert!(start == 3, "panics the first two times");
                start
            }
        })
        .await;
        assert_eq!((output, starts), (3, 3));
    }

    #[test]
    fn a_worker_without_io_uring_serves_by_epoll() {
        // No kernel sets up a ring of no entries.
        let sizes = Sizes { entries: 0, buffers: 1, buffer_bytes: 512, is_restricted: false };
        for io in [Io::Auto(sizes), Io::Uring(sizes), Io::Epoll] {
            let thread = spawn("test".into(), None, io, false, async || assert!(!uring::is_active()));
            thread.expect("a thread").join().expect("it serves");
        }
    }
}
