//! Limits of the process.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::sync::atomic::{AtomicI32, AtomicU32, Ordering};

use rustix::io::Errno;

/// How the descriptors of this process are divided. Each share is a bound on numbers: the system always
/// gives the lowest number that is free, so a number at the bound says that all below are taken, by
/// whatever it may be. Nothing has to be counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Descriptors {
    /// All of them: RLIMIT_NOFILE.
    pub limit: u64,
    /// Connections of clients get numbers below this. Half of what traffic may have: every one of
    /// them may need a connection to a node.
    pub clients: u64,
    /// Sockets of sessions over UDP are no more than this, a quarter of what clients may have. They are
    /// counted, and may have any number that connections to nodes may have: whoever floods one share
    /// leaves the other.
    pub datagrams: u64,
    /// Connections to nodes get numbers below this. The numbers above are left for operators, health
    /// checks, the store and logs: an eighth of all, at most 1,024.
    pub nodes: u64,
}

impl Descriptors {
    fn of(limit: u64) -> Descriptors {
        let reserve = (limit / 8).min(1_024);
        let nodes = limit - reserve;
        let clients = nodes / 2;
        Descriptors { limit, clients, datagrams: clients / 4, nodes }
    }
}

/// The first numbers that clients and nodes do not get; set once at the start, before any worker.
static CLIENTS_END: AtomicI32 = AtomicI32::new(RawFd::MAX);
static NODES_END: AtomicI32 = AtomicI32::new(RawFd::MAX);

/// Sockets that sessions over UDP may have; set once as well.
static DATAGRAMS: AtomicU32 = AtomicU32::new(u32::MAX);

/// Raises the number of files this process may open to the most it is allowed to, and divides them
/// from now on. None if the system sets no limit.
pub fn divide_descriptors() -> Option<Descriptors> {
    let shares = Descriptors::of(raise_open_files()?);
    let bound = |number: u64| RawFd::try_from(number).unwrap_or(RawFd::MAX);
    CLIENTS_END.store(bound(shares.clients), Ordering::Relaxed);
    NODES_END.store(bound(shares.nodes), Ordering::Relaxed);
    DATAGRAMS.store(u32::try_from(shares.datagrams).unwrap_or(u32::MAX), Ordering::Relaxed);
    Some(shares)
}

/// Whether a connection of a client has the last descriptor that clients get.
pub fn is_last_for_clients(connection: BorrowedFd<'_>) -> bool {
    connection.as_raw_fd().saturating_add(1) >= CLIENTS_END.load(Ordering::Relaxed)
}

/// Whether there is a descriptor for another client; `any` is any open one.
pub(crate) fn has_room_for_client(any: BorrowedFd<'_>) -> bool {
    // The copy has the number that a connection would get.
    let copy = rustix::io::fcntl_dupfd_cloexec(any, 0);
    copy.is_ok_and(|copy| !is_last_for_clients(copy.as_fd()))
}

/// How much of the descriptors that connections may have is in use, in percent, as whoever has just opened `newest`
/// sees it: the system gives the lowest number that is free.
pub fn descriptors_in_use(newest: BorrowedFd<'_>) -> u32 {
    let (number, end) = (i64::from(newest.as_raw_fd()), i64::from(NODES_END.load(Ordering::Relaxed)));
    u32::try_from(number * 100 / end.max(1)).unwrap_or(0)
}

/// Refuses a connection to a node that would take a descriptor of the reserve.
pub(crate) fn leave_reserve(connection: &impl AsFd) -> io::Result<()> {
    match connection.as_fd().as_raw_fd() < NODES_END.load(Ordering::Relaxed) {
        true => Ok(()),
        false => Err(Errno::MFILE.into()),
    }
}

/// Sockets that the sessions over UDP of one worker may have, of so many workers; at least one.
pub fn datagram_share(workers: usize) -> u32 {
    let workers = u32::try_from(workers).unwrap_or(u32::MAX).max(1);
    (DATAGRAMS.load(Ordering::Relaxed) / workers).max(1)
}

/// Whether an error says that this process or machine lacks something, and nothing about the peer:
/// descriptors, local ports, buffers, memory.
pub fn is_own_lack(error: &io::Error) -> bool {
    let own = [Errno::MFILE, Errno::NFILE, Errno::ADDRNOTAVAIL, Errno::NOBUFS, Errno::NOMEM];
    own.iter().any(|errno| error.raw_os_error() == Some(errno.raw_os_error()))
}

fn raise_open_files() -> Option<u64> {
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
/// Returns the error of the operating system.
pub fn pin_thread(cpu: usize) -> io::Result<()> {
    let mut set = rustix::thread::CpuSet::new();
    set.set(cpu);
    Ok(rustix::thread::sched_setaffinity(None, &set)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_leave_a_reserve() {
        for (limit, clients, datagrams, nodes) in [
            (0, 0, 0, 0),
            (160, 70, 17, 140),
            (1_024, 448, 112, 896),
            (1_048_576, 523_776, 130_944, 1_047_552),
        ] {
            assert_eq!(Descriptors::of(limit), Descriptors { limit, clients, datagrams, nodes });
        }
    }

    #[test]
    fn what_is_our_own_lack() {
        for (errno, own) in [(Errno::MFILE, true), (Errno::ADDRNOTAVAIL, true), (Errno::CONNREFUSED, false)] {
            assert_eq!(is_own_lack(&errno.into()), own, "{errno}");
        }
        assert!(!is_own_lack(&io::ErrorKind::TimedOut.into()));
    }
}
