//! Signals that work even if all threads of the process are busy.

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::time::{ClockId, clock_gettime};

/// A signal counts as a second one only after this time: programs that stop others (`timeout`) send the same signal
/// to the process and to its group.
const APART_MS: u64 = 1_000;

/// The time of the first one; 0 before.
static FIRST_MS: AtomicU64 = AtomicU64::new(0);

/// Leaves the first SIGTERM or SIGINT to its listeners; another one at least a second later ends the process at once,
/// with the status 128 + signal. So an operator can always force the end.
///
/// # Errors
/// Returns the error of the operating system.
#[expect(unsafe_code)]
pub fn end_at_the_second() -> io::Result<()> {
    for signal in [libc::SIGTERM, libc::SIGINT] {
        let on_signal = move || {
            if is_repeated(now_ms()) {
                // SAFETY: `_exit` takes no pointers and is safe in a signal handler.
                unsafe { libc::_exit(128 + signal) }
            }
        };
        // SAFETY: the handler reads a clock and an atomic and may call `_exit`: nothing that allocates, locks or
        // panics.
        unsafe { signal_hook_registry::register(signal, on_signal) }?;
    }
    Ok(())
}

/// Signals of operators.
const OF_OPERATORS: [libc::c_int; 5] =
    [libc::SIGHUP, libc::SIGTERM, libc::SIGINT, libc::SIGUSR1, libc::SIGUSR2];

/// Blocks the signals of operators in the calling thread, and in threads that it starts: such a signal stays pending,
/// even across a re-exec.
///
/// # Errors
/// Returns the error of the operating system.
pub fn hold_back() -> io::Result<()> {
    mask(libc::SIG_BLOCK)
}

/// Unblocks these signals in the calling thread; pending ones are delivered.
///
/// # Errors
/// Returns the error of the operating system.
pub fn let_through() -> io::Result<()> {
    mask(libc::SIG_UNBLOCK)
}

#[expect(unsafe_code)]
fn mask(how: libc::c_int) -> io::Result<()> {
    let mut signals = std::mem::MaybeUninit::uninit();
    // SAFETY: `sigemptyset` makes the set, and all calls get a pointer to it that lives until after them.
    let result = unsafe {
        libc::sigemptyset(signals.as_mut_ptr());
        for signal in OF_OPERATORS {
            libc::sigaddset(signals.as_mut_ptr(), signal);
        }
        libc::pthread_sigmask(how, signals.as_ptr(), std::ptr::null_mut())
    };
    if result == 0 { Ok(()) } else { Err(io::Error::from_raw_os_error(result)) }
}

fn now_ms() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    (now.tv_sec.cast_unsigned() * 1_000 + now.tv_nsec.cast_unsigned() / 1_000_000).max(1)
}

fn is_repeated(now_ms: u64) -> bool {
    match FIRST_MS.compare_exchange(0, now_ms, Ordering::Relaxed, Ordering::Relaxed) {
        Ok(_) => false,
        Err(first) => now_ms.saturating_sub(first) >= APART_MS,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signals_are_blocked_in_a_thread() {
        let blocked = || {
            let status = std::fs::read_to_string("/proc/thread-self/status").unwrap();
            let line =
                status.lines().find_map(|line| line.strip_prefix("SigBlk:")).unwrap().trim().to_owned();
            u64::from_str_radix(&line, 16).unwrap()
        };
        let all = OF_OPERATORS.iter().fold(0, |bits, signal| bits | 1 << (signal - 1));
        let before = blocked();
        assert_eq!(before & all, 0);
        hold_back().unwrap();
        assert_eq!(blocked(), before | all);
        assert_eq!(std::thread::spawn(blocked).join().unwrap() & all, all);
        let_through().unwrap();
        assert_eq!(blocked(), before);
    }

    #[test]
    fn only_a_later_signal_counts_again() {
        for (now_ms, expected) in [(5_000, false), (5_010, false), (5_999, false), (6_000, true)] {
            assert_eq!(is_repeated(now_ms), expected, "{now_ms}");
        }
    }
}
