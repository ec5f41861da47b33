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

/// The number of events between two checks of the timer and of other threads.
const EVENTS_PER_TURN: usize = 256;

/// The number of blocking threads of a worker, for work such as reading files and rendering pages. Clients decide how
/// many such calls come at once; tokio would start 512 threads for each worker. Further calls wait, and a disk is
/// hardly faster with more threads.
const BLOCKING_THREADS: usize = 16;

/// The I/O method of a worker's connections.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Io {
    /// The stream itself, when epoll reports that its socket is ready.
    Epoll,
    /// The kernel, by a ring of these sizes, for connections that come while the worker has many; [`Io::Epoll`] for the
    /// others, and if a ring is unavailable.
    Auto(Sizes),
    /// The kernel, by a ring, for all connections; [`Io::Epoll`] if that is unavailable, with a warning.
    Uring(Sizes),
}

/// A started worker.
#[derive(Debug)]
pub struct Started(Kind);

#[derive(Debug)]
enum Kind {
    Thread(JoinHandle<()>),
    /// In a simulated network.
    #[cfg(feature = "simulation")]
    Task(tokio::task::JoinHandle<()>),
}

impl Started {
    /// Returns true if it has ended.
    pub fn is_finished(&self) -> bool {
        match &self.0 {
            Kind::Thread(thread) => thread.is_finished(),
            #[cfg(feature = "simulation")]
            Kind::Task(task) => task.is_finished(),
        }
    }
}

/// Starts a worker thread that runs the future of `main` on its own runtime. In a simulated network it is a task of the
/// calling thread. `io` is the method for connections that
/// it accepts and dials. With `is_filtered`, the thread gives up system calls that a worker does not need ([`calls`])
/// before it runs the future.
///
/// # Errors
/// Returns the error of the operating system if the thread cannot be started.
pub fn spawn<F>(
    name: String,
    cpu: Option<usize>,
    io: Io,
    is_filtered: bool,
    main: impl FnOnce() -> F + Send + 'static,
) -> io::Result<Started>
where
    F: Future<Output = ()> + 'static,
{
    #[cfg(feature = "simulation")]
    if crate::simulation::is_entered() {
        return Ok(Started(Kind::Task(tokio::task::spawn_local(async move { main().await }))));
    }
    let thread = std::thread::Builder::new().name(name).spawn(move || {
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
    })?;
    Ok(Started(Kind::Thread(thread)))
}

async fn run<F: Future<Output = ()>>(io: Io, is_filtered: bool, main: impl FnOnce() -> F) {
    const NOT_HAD: &str =
        "io_uring is not available: using epoll (io_uring needs Linux 6.1, and a container may forbid it)";
    if let Io::Auto(sizes) | Io::Uring(sizes) = io {
        if let Io::Auto(_) = io {
            uring::use_while_paying();
        }
        match uring::start(sizes) {
            Ok(()) => drop(tokio::task::spawn_local(kept_up("io_uring", move || uring::run(sizes)))),
            Err(error) if io == Io::Auto(sizes) => tracing::debug!(%error, "{NOT_HAD}"),
            Err(error) => tracing::warn!(%error, "{NOT_HAD}"),
        }
    }
    if is_filtered && let Err(error) = calls::filter() {
        tracing::warn!(%error, "`process.sandbox`: the system has no seccomp filters; a worker runs without one");
    }
    main().await;
    uring::settle().await;
}

/// The pause before a restart after a panic: it may panic again at once.
const PAUSE: Duration = Duration::from_millis(100);

/// Runs the future of `make`. After a panic it logs, makes a new one and continues: a necessary part of a worker must
/// not end unnoticed. The panic hook reports the panic itself.
pub async fn kept_up<F: Future>(name: &'static str, mut make: impl FnMut() -> F) -> F::Output {
    loop {
        let mut running = pin!(make());
        let ended = poll_fn(|cx| {
            // It shares with other code only cells that are valid between two borrows.
            match catch_unwind(AssertUnwindSafe(|| running.as_mut().poll(cx))) {
                Ok(Poll::Pending) => Poll::Pending,
                Ok(Poll::Ready(output)) => Poll::Ready(Some(output)),
                Err(_) => Poll::Ready(None),
            }
        });
        if let Some(output) = ended.await {
            return output;
        }
        tracing::error!(name, "a task of a worker panicked and is restarted");
        tokio::time::sleep(PAUSE).await;
    }
}

/// The nice value of threads that do not serve requests: on a shared CPU they get a quarter of it.
const STEP_BACK: i32 = 5;

/// Gives running worker threads priority over the calling thread and the threads that it starts from now on. On a
/// machine with few CPUs, a large configuration or a page of metrics would otherwise take time from traffic.
pub fn yield_to_workers() {
    #[cfg(feature = "simulation")]
    if crate::simulation::is_entered() {
        return;
    }
    let this = rustix::thread::gettid();
    if let Err(error) = rustix::process::setpriority_process(Some(this), STEP_BACK) {
        tracing::debug!(%error, "the control thread keeps its priority");
    }
}

#[cfg(test)]
impl Started {
    /// Waits for its end.
    pub(crate) fn join(self) -> std::thread::Result<()> {
        match self.0 {
            Kind::Thread(thread) => thread.join(),
            #[cfg(feature = "simulation")]
            Kind::Task(_) => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_panicked_part_is_restarted() {
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
    fn a_worker_without_io_uring_uses_epoll() {
        // No kernel supports a ring without entries.
        let sizes = Sizes { entries: 0, buffers: 1, buffer_bytes: 512, is_restricted: false };
        for io in [Io::Auto(sizes), Io::Uring(sizes), Io::Epoll] {
            let thread = spawn("test".into(), None, io, false, async || assert!(!uring::is_active()));
            thread.expect("a thread").join().expect("it serves");
        }
    }
}
