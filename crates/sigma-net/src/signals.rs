//! Signals that work whatever the threads of the process are busy with.

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::time::{ClockId, clock_gettime};

/// A signal counts as another one only after this long: programs that stop others (`timeout`) send the
/// same one to the process and to its group.
const APART_MS: u64 = 1_000;

/// When the first one came, 0 before.
static FIRST_MS: AtomicU64 = AtomicU64::new(0);

/// From now on the first SIGTERM or SIGINT is left to those who listen for it, and another one a second
/// later or more ends the process at once, with the status 128 + signal. An operator need not ask what
/// it still waits for.
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
        // SAFETY: what runs in the handler reads a clock and an atomic and may call `_exit`: nothing
        // that allocates, locks or panics.
        unsafe { signal_hook_registry::register(signal, on_signal) }?;
    }
    Ok(())
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
    fn only_a_later_signal_counts_again() {
        for (now_ms, expected) in [(5_000, false), (5_010, false), (5_999, false), (6_000, true)] {
            assert_eq!(is_repeated(now_ms), expected, "{now_ms}");
        }
    }
}
