//! A filter of system calls (seccomp) for threads that read bytes of peers: it allows calls for sockets, memory,
//! threads and reading files. Every other call fails with EPERM, and the kernel's audit log names it.
//!
//! An error instead of a kill is chosen for availability: a call missing here, for example in a new version of the C
//! library, costs one request and not all connections.

use std::collections::BTreeMap;
use std::io;

use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter, SeccompRule,
};

/// Calls with any arguments.
const ALLOWED: &[libc::c_long] = &[
    // Bytes.
    libc::SYS_read,
    libc::SYS_readv,
    libc::SYS_pread64,
    libc::SYS_preadv,
    libc::SYS_write,
    libc::SYS_writev,
    libc::SYS_close,
    libc::SYS_lseek,
    libc::SYS_dup,
    libc::SYS_pipe2,
    libc::SYS_splice,
    libc::SYS_sendfile,
    // Files, within the bounds of Landlock; `openat` is below.
    libc::SYS_openat2,
    libc::SYS_fstat,
    libc::SYS_statx,
    libc::SYS_readlinkat,
    libc::SYS_getdents64,
    libc::SYS_fadvise64,
    libc::SYS_newfstatat,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_readlink,
    // Sockets; `socket` is below.
    libc::SYS_socketpair,
    libc::SYS_bind,
    libc::SYS_listen,
    libc::SYS_accept,
    libc::SYS_accept4,
    libc::SYS_connect,
    libc::SYS_getsockname,
    libc::SYS_getpeername,
    libc::SYS_getsockopt,
    libc::SYS_setsockopt,
    libc::SYS_sendto,
    libc::SYS_recvfrom,
    libc::SYS_sendmsg,
    libc::SYS_recvmsg,
    libc::SYS_sendmmsg,
    libc::SYS_recvmmsg,
    libc::SYS_shutdown,
    // Readiness. A ring is set up before the filter, and restricted to the needs of streams.
    libc::SYS_epoll_create1,
    libc::SYS_epoll_ctl,
    libc::SYS_epoll_pwait,
    libc::SYS_epoll_pwait2,
    libc::SYS_eventfd2,
    libc::SYS_ppoll,
    libc::SYS_io_uring_enter,
    libc::SYS_io_uring_register,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_epoll_wait,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_poll,
    // Memory; executable memory is below.
    libc::SYS_munmap,
    libc::SYS_mremap,
    libc::SYS_madvise,
    libc::SYS_brk,
    libc::SYS_mincore,
    // Threads; their start is below.
    libc::SYS_futex,
    libc::SYS_set_robust_list,
    libc::SYS_rseq,
    libc::SYS_sched_yield,
    libc::SYS_sched_getaffinity,
    libc::SYS_getcpu,
    libc::SYS_gettid,
    libc::SYS_getpid,
    libc::SYS_setpriority,
    libc::SYS_getpriority,
    libc::SYS_membarrier,
    libc::SYS_exit,
    libc::SYS_exit_group,
    // Handled signals; `tgkill` is below.
    libc::SYS_rt_sigreturn,
    libc::SYS_rt_sigprocmask,
    libc::SYS_rt_sigaction,
    libc::SYS_sigaltstack,
    libc::SYS_restart_syscall,
    // Clocks and random bytes.
    libc::SYS_clock_gettime,
    libc::SYS_clock_getres,
    libc::SYS_clock_nanosleep,
    libc::SYS_nanosleep,
    libc::SYS_gettimeofday,
    libc::SYS_getrandom,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_time,
    // Facts about the process and the system.
    libc::SYS_getuid,
    libc::SYS_geteuid,
    libc::SYS_getgid,
    libc::SYS_getegid,
    libc::SYS_getrusage,
    libc::SYS_uname,
    libc::SYS_sysinfo,
    // Rejected with ENOSYS by the filter below: a filter cannot see its flags.
    libc::SYS_clone3,
];

/// Request numbers of `ioctl`: waiting bytes, blocking, and whether a stream is a terminal.
const IOCTLS: [u64; 4] = [libc::FIONREAD, libc::FIONBIO, libc::TIOCOUTQ, libc::TCGETS];

/// Commands of `fcntl`. None of them requests signals.
const FCNTLS: [libc::c_int; 7] = [
    libc::F_DUPFD_CLOEXEC,
    libc::F_GETFD,
    libc::F_SETFD,
    libc::F_GETFL,
    libc::F_SETFL,
    libc::F_SETPIPE_SZ,
    libc::F_GETPIPE_SZ,
];

/// Operations of `prctl`: the names of threads and of memory.
const PRCTLS: [libc::c_int; 3] = [libc::PR_SET_NAME, libc::PR_GET_NAME, libc::PR_SET_VMA];

const FAMILIES: [libc::c_int; 3] = [libc::AF_INET, libc::AF_INET6, libc::AF_UNIX];

/// Modes of `openat` that create, change or truncate a file.
const CHANGES: libc::c_int = libc::O_ACCMODE | libc::O_CREAT | libc::O_TRUNC;

/// Filters the calls of the calling thread, and of the threads that it starts from now on. It cannot be undone.
///
/// # Errors
/// Returns the reason if the system has no such filters; then nothing is filtered.
pub fn filter() -> io::Result<()> {
    // Without `clone3` the C library starts threads by `clone`, whose flags a filter can see.
    let hidden = BTreeMap::from([(libc::SYS_clone3, Vec::new())]);
    let unknown = SeccompAction::Errno(errno(libc::ENOSYS));
    let hidden = compiled(hidden, SeccompAction::Allow, unknown)?;
    let denied = SeccompAction::Errno(errno(libc::EPERM));
    let allowed = compiled(rules()?, denied, SeccompAction::Allow)?;
    install(&hidden, 0)?;
    install(&allowed, libc::SECCOMP_FILTER_FLAG_LOG)
}

fn errno(number: libc::c_int) -> u32 {
    number.unsigned_abs()
}

fn compiled(
    rules: BTreeMap<i64, Vec<SeccompRule>>,
    otherwise: SeccompAction,
    matching: SeccompAction,
) -> io::Result<BpfProgram> {
    let of_this_machine = std::env::consts::ARCH.try_into().map_err(io::Error::other)?;
    let filter = SeccompFilter::new(rules, otherwise, matching, of_this_machine);
    filter.and_then(BpfProgram::try_from).map_err(io::Error::other)
}

fn rules() -> io::Result<BTreeMap<i64, Vec<SeccompRule>>> {
    let mut rules: BTreeMap<i64, Vec<SeccompRule>> = ALLOWED.iter().map(|call| (*call, Vec::new())).collect();
    let one_of = |argument, values: &mut dyn Iterator<Item = u64>| {
        values.map(|value| all(&[(argument, SeccompCmpOp::Eq, value)])).collect::<io::Result<Vec<_>>>()
    };
    let numbers = |values: &'static [libc::c_int]| values.iter().map(|value| u64::from(value.unsigned_abs()));
    let without = |argument, bits: libc::c_int| {
        all(&[(argument, SeccompCmpOp::MaskedEq(u64::from(bits.unsigned_abs())), 0)])
    };
    rules.insert(libc::SYS_ioctl, one_of(1, &mut IOCTLS.into_iter())?);
    rules.insert(libc::SYS_fcntl, one_of(1, &mut numbers(&FCNTLS))?);
    rules.insert(libc::SYS_prctl, one_of(0, &mut numbers(&PRCTLS))?);
    rules.insert(libc::SYS_socket, one_of(0, &mut numbers(&FAMILIES))?);
    rules.insert(libc::SYS_openat, vec![without(2, CHANGES)?]);
    #[cfg(target_arch = "x86_64")]
    rules.insert(libc::SYS_open, vec![without(1, CHANGES)?]);
    rules.insert(libc::SYS_mmap, vec![without(2, libc::PROT_EXEC)?]);
    rules.insert(libc::SYS_mprotect, vec![without(2, libc::PROT_EXEC)?]);
    let thread = u64::from(libc::CLONE_THREAD.unsigned_abs());
    rules.insert(libc::SYS_clone, vec![all(&[(0, SeccompCmpOp::MaskedEq(thread), thread)])?]);
    // For `abort`.
    let own = u64::from(std::process::id());
    rules.insert(libc::SYS_tgkill, vec![all(&[(0, SeccompCmpOp::Eq, own)])?]);
    // Limits may be read, not set.
    rules.insert(libc::SYS_prlimit64, vec![all(&[(0, SeccompCmpOp::Eq, 0), (2, SeccompCmpOp::Eq, 0)])?]);
    Ok(rules)
}

/// Returns a rule that matches if all these arguments compare as given.
fn all(conditions: &[(u8, SeccompCmpOp, u64)]) -> io::Result<SeccompRule> {
    let conditions = conditions
        .iter()
        .map(|(argument, op, value)| {
            // The kernel reads 32 bits of numbers and flags; pointers and sizes are only compared with 0.
            let width = if *value == 0 { SeccompCmpArgLen::Qword } else { SeccompCmpArgLen::Dword };
            SeccompCondition::new(*argument, width, op.clone(), *value)
        })
        .collect::<Result<Vec<_>, _>>();
    conditions.and_then(SeccompRule::new).map_err(io::Error::other)
}

/// As `seccompiler::apply_filter`, with flags. The thread gives up the right to gain privileges now, if it has not
/// done so before.
#[expect(unsafe_code)]
fn install(program: &BpfProgram, flags: libc::c_ulong) -> io::Result<()> {
    rustix::thread::set_no_new_privs(true)?;
    let length = libc::c_ushort::try_from(program.len()).map_err(io::Error::other)?;
    let filter = program.as_ptr().cast::<libc::sock_filter>().cast_mut();
    let program = libc::sock_fprog { len: length, filter };
    // SAFETY: the kernel copies `len` instructions of the borrowed program; `seccompiler::sock_filter` has the layout
    // of `struct sock_filter`. Nothing is written, and the result is checked.
    let result =
        unsafe { libc::syscall(libc::SYS_seccomp, libc::SECCOMP_SET_MODE_FILTER, flags, &raw const program) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

#[cfg(test)]
mod tests {
    use std::fs::{self, File};
    use std::io::{ErrorKind, Read, Write};
    use std::net::{TcpListener, TcpStream};
    use std::process::Command;

    use super::*;

    /// Runs in a separate thread, which has the filter for its whole life.
    fn filtered(check: impl FnOnce() + Send) {
        std::thread::scope(|scope| {
            let run = scope.spawn(|| {
                filter().unwrap();
                check();
            });
            run.join().unwrap();
        });
    }

    #[track_caller]
    fn denied<T>(result: io::Result<T>) {
        assert_eq!(result.map(drop).unwrap_err().kind(), ErrorKind::PermissionDenied);
    }

    #[test]
    fn programs_and_changes_of_files_are_denied() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        fs::write(&path, "x").unwrap();
        filtered(|| {
            denied(Command::new("/bin/true").status());
            denied(fs::write(&path, "y"));
            denied(File::create_new(dir.path().join("new")));
            denied(File::options().append(true).open(&path));
            denied(fs::remove_file(&path));
            denied(fs::rename(&path, dir.path().join("new")));
            denied(fs::create_dir(dir.path().join("folder")));
            denied(fs::set_permissions(&path, fs::metadata(&path).unwrap().permissions()));
            denied(rustix::process::chdir("/").map_err(io::Error::from));
            denied(
                rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::CONT)
                    .map_err(io::Error::from),
            );
            denied(
                rustix::net::socket(rustix::net::AddressFamily::NETLINK, rustix::net::SocketType::RAW, None)
                    .map_err(io::Error::from),
            );
            denied(rustix::fs::memfd_create("x", rustix::fs::MemfdFlags::CLOEXEC).map_err(io::Error::from));
        });
        assert_eq!(fs::read(&path).unwrap(), b"x");
        assert!(Command::new("/bin/true").status().unwrap().success(), "other threads keep their calls");
    }

    #[test]
    #[expect(unsafe_code)]
    fn executable_memory_is_denied() {
        filtered(|| {
            let map = |protection| {
                // SAFETY: a new mapping, which is used only after its creation.
                let at = unsafe {
                    libc::mmap(
                        std::ptr::null_mut(),
                        4096,
                        protection,
                        libc::MAP_PRIVATE | libc::MAP_ANON,
                        -1,
                        0,
                    )
                };
                if at == libc::MAP_FAILED { Err(io::Error::last_os_error()) } else { Ok(at) }
            };
            let at = map(libc::PROT_READ | libc::PROT_WRITE).unwrap();
            // SAFETY: the mapping belongs to this test.
            let made = unsafe { libc::mprotect(at, 4096, libc::PROT_READ | libc::PROT_EXEC) };
            assert_eq!((made, io::Error::last_os_error().kind()), (-1, ErrorKind::PermissionDenied));
            denied(map(libc::PROT_READ | libc::PROT_EXEC));
        });
    }

    #[test]
    fn reading_sockets_and_threads_continue() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        fs::write(&path, "x").unwrap();
        filtered(|| {
            assert_eq!(fs::read(&path).unwrap(), b"x");
            assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            let mut client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            let (mut server, _) = listener.accept().unwrap();
            client.write_all(b"hello").unwrap();
            let mut read = [0; 5];
            server.read_exact(&mut read).unwrap();
            assert_eq!(&read, b"hello");
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            let read = runtime.block_on(async { tokio::task::spawn_blocking(move || fs::read(path)).await });
            assert_eq!(read.unwrap().unwrap(), b"x");
            // The C library tries `clone3` first.
            let child = std::thread::spawn(|| Command::new("/bin/true").status());
            denied(child.join().unwrap());
            assert!(std::panic::catch_unwind(|| panic!("on purpose")).is_err(), "panics are caught");
        });
    }
}
