//! Limits of the process.

/// Raises the number of files this process may open to the most it is allowed to; returns it.
pub fn raise_open_files() -> Option<u64> {
    use rustix::process::{Resource, getrlimit, setrlimit};
    let mut limit = getrlimit(Resource::Nofile);
    if limit.current < limit.maximum || limit.maximum.is_none() {
        limit.current = limit.maximum;
        // Not fatal: the gateway runs with what it has.
        if let Err(error) = setrlimit(Resource::Nofile, limit) {
            tracing::warn!(%error, "cannot raise the limit of open files");
        }
    }
    getrlimit(Resource::Nofile).current
}

/// Keeps memory in ordinary pages. The allocator's arenas would be backed by huge pages where
/// the system gives them by default, and a gateway of little traffic would hold megabytes that
/// it never touched.
pub fn prefer_small_pages() {
    // Not fatal: the gateway only takes more memory.
    if let Err(error) = rustix::thread::disable_transparent_huge_pages(true) {
        tracing::debug!(%error, "cannot disable huge pages");
    }
}

/// CPUs that this process may run on, in order.
pub fn usable_cpus() -> Vec<usize> {
    rustix::thread::sched_getaffinity(None)
        .map(|set| (0..rustix::thread::CpuSet::MAX_CPU).filter(|cpu| set.is_set(*cpu)).collect())
        .unwrap_or_else(|_| vec![0])
}

/// Pins the calling thread to one CPU.
///
/// # Errors
/// The operating system's.
pub fn pin_thread(cpu: usize) -> std::io::Result<()> {
    let mut set = rustix::thread::CpuSet::new();
    set.set(cpu);
    Ok(rustix::thread::sched_setaffinity(None, &set)?)
}
