//! Worker threads: one single-threaded runtime each, with tasks that never leave their thread.

use std::future::Future;
use std::io;
use std::thread::JoinHandle;

use tokio::runtime::{Builder, LocalOptions};

/// Events handled between two looks at the timer and the mailbox.
const EVENTS_PER_TURN: usize = 256;

/// Starts a worker thread that runs the future `main` makes, on a runtime of its own.
///
/// # Errors
/// The operating system's, when the thread cannot be started.
pub fn spawn<F>(
    name: String,
    cpu: Option<usize>,
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
        let runtime = Builder::new_current_thread()
            .enable_all()
            .max_io_events_per_tick(EVENTS_PER_TURN)
            .build_local(LocalOptions::default());
        match runtime {
            Ok(runtime) => runtime.block_on(main()),
            Err(error) => tracing::error!(%error, "cannot start a worker's runtime"),
        }
    })
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
