//! Limits of the process.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicI32, AtomicU32, Ordering};

use rustix::io::Errno;

/// The division of this process's descriptors. Each share is a bound on descriptor numbers: the system always assigns
/// the lowest free number. So a number at the bound means that all lower ones are taken. No counter is needed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Descriptors {
    /// The total: RLIMIT_NOFILE.
    pub limit: u64,
    /// Client connections get numbers below this. It is half of the share of traffic: each of them may need a
    /// connection to a node. One client of HTTP/2 may need many, so connections to nodes leave the upper half of these
    /// numbers free: otherwise they would lock out all other clients.
    pub clients: u64,
    /// The limit of UDP session sockets, a quarter of the share of clients. They are counted, and may have any number
    /// that connections to nodes may have, so that a flood of one share leaves the other intact.
    pub datagrams: u64,
    /// Connections to nodes get numbers below this. The numbers above are reserved for operators, health checks, the
    /// store and logs: an eighth of all, at most 1,024.
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

/// The first numbers above the shares of clients and nodes; set once at the start, before any worker.
static CLIENTS_END: AtomicI32 = AtomicI32::new(RawFd::MAX);
static NODES_END: AtomicI32 = AtomicI32::new(RawFd::MAX);

/// The limit of UDP session sockets; also set once.
static DATAGRAMS: AtomicU32 = AtomicU32::new(u32::MAX);

/// Raises the limit of open files to its maximum, and divides the descriptors from now on. Returns None without a
/// limit.
pub fn divide_descriptors() -> Option<Descriptors> {
    let shares = Descriptors::of(raise_open_files()?);
    let bound = |number: u64| RawFd::try_from(number).unwrap_or(RawFd::MAX);
    CLIENTS_END.store(bound(shares.clients), Ordering::Relaxed);
    NODES_END.store(bound(shares.nodes), Ordering::Relaxed);
    DATAGRAMS.store(u32::try_from(shares.datagrams).unwrap_or(u32::MAX), Ordering::Relaxed);
    Some(shares)
}

/// Returns true if a client connection has the last descriptor of the clients' share.
pub fn is_last_for_clients(connection: BorrowedFd<'_>) -> bool {
    connection.as_raw_fd().saturating_add(1) >= CLIENTS_END.load(Ordering::Relaxed)
}

/// Returns true if there is a descriptor for another client; `any` is any open one.
pub(crate) fn has_room_for_client(any: BorrowedFd<'_>) -> bool {
    // The copy gets the number that a connection would get.
    let copy = rustix::io::fcntl_dupfd_cloexec(any, 0);
    copy.is_ok_and(|copy| !is_last_for_clients(copy.as_fd()))
}

/// Returns the used percentage of the descriptors for connections, measured by `newest`, which was just opened: the
/// system assigns the lowest free number.
pub fn descriptors_in_use(newest: BorrowedFd<'_>) -> u32 {
    let (number, end) = (i64::from(newest.as_raw_fd()), i64::from(NODES_END.load(Ordering::Relaxed)));
    u32::try_from(number * 100 / end.max(1)).unwrap_or(0)
}

/// Returns the descriptor of a connection to a node, with a number that is neither for clients alone nor in the reserve.
///
/// # Errors
/// Returns an error for too many open files if there is no such number.
pub(crate) fn of_node(connection: OwnedFd) -> io::Result<OwnedFd> {
    let moved = match above_clients(connection.as_raw_fd(), CLIENTS_END.load(Ordering::Relaxed)) {
        Some(from) => rustix::io::fcntl_dupfd_cloexec(&connection, from)?,
        None => connection,
    };
    leave_reserve(&moved)?;
    Ok(moved)
}

/// Returns true if the number of a connection is one that connections to nodes leave free.
pub(crate) fn is_for_clients_alone(connection: &impl AsFd) -> bool {
    above_clients(connection.as_fd().as_raw_fd(), CLIENTS_END.load(Ordering::Relaxed)).is_some()
}

/// Returns the first number for connections to nodes instead of `number`, if that is for clients alone.
fn above_clients(number: RawFd, clients_end: RawFd) -> Option<RawFd> {
    (clients_end / 2..clients_end).contains(&number).then_some(clients_end)
}

/// Rejects a connection to a node with a descriptor of the reserve.
pub(crate) fn leave_reserve(connection: &impl AsFd) -> io::Result<()> {
    match connection.as_fd().as_raw_fd() < NODES_END.load(Ordering::Relaxed) {
        true => Ok(()),
        false => Err(Errno::MFILE.into()),
    }
}

/// Returns the UDP session sockets of one worker among `workers`; at least one.
pub fn datagram_share(workers: usize) -> u32 {
    let workers = u32::try_from(workers).unwrap_or(u32::MAX).max(1);
    (DATAGRAMS.load(Ordering::Relaxed) / workers).max(1)
}

/// Returns true if an error means a lack of this process or machine, not of the peer: descriptors, local ports,
/// buffers, memory.
pub fn is_own_lack(error: &io::Error) -> bool {
    let own = [Errno::MFILE, Errno::NFILE, Errno::ADDRNOTAVAIL, Errno::NOBUFS, Errno::NOMEM];
    own.iter().any(|errno| error.raw_os_error() == Some(errno.raw_os_error()))
}

fn raise_open_files() -> Option<u64> {
    use rustix::process::{Resource, getrlimit, setrlimit};
    let mut limit = getrlimit(Resource::Nofile);
    if limit.current < limit.maximum || limit.maximum.is_none() {
        limit.current = limit.maximum;
        // Not fatal: the gateway runs with its present limit.
        if let Err(error) = setrlimit(Resource::Nofile, limit) {
            tracing::warn!(%error, "cannot raise the limit of open files");
        }
    }
    getrlimit(Resource::Nofile).current
}

/// Keeps memory in ordinary pages. If the system uses huge pages by default, they would back the allocator's arenas,
/// and a gateway with little traffic would hold megabytes that it never touched.
pub fn prefer_small_pages() {
    // Not fatal: the gateway only uses more memory.
    if let Err(error) = rustix::thread::disable_transparent_huge_pages(true) {
        tracing::debug!(%error, "cannot disable huge pages");
    }
}

/// Returns the CPUs that this process may run on, in order.
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
    fn connections_to_nodes_leave_numbers_to_clients() {
        for (number, moved) in
            [(0, None), (49, None), (50, Some(100)), (99, Some(100)), (100, None), (175, None)]
        {
            assert_eq!(above_clients(number, 100), moved, "{number}");
        }
        // Without a division, and with a very low limit.
        assert_eq!((above_clients(50, RawFd::MAX), above_clients(50, 0)), (None, None));
    }

    #[test]
    fn local_shortages_are_recognized() {
        for (errno, own) in [(Errno::MFILE, true), (Errno::ADDRNOTAVAIL, true), (Errno::CONNREFUSED, false)] {
            assert_eq!(is_own_lack(&errno.into()), own, "{errno}");
        }
        assert!(!is_own_lack(&io::ErrorKind::TimedOut.into()));
    }
}
