//! The clocks for users' code, which is measured more finely than requests.

use std::time::{Duration, Instant};

/// Returns the processor time of this thread, which other threads and a busy machine do not change. It is a system call
/// of up to a microsecond.
///
/// By the C library: rustix searches the process for the kernel's clocks at the first call, which ends a gateway under
/// valgrind.
#[expect(unsafe_code)]
pub fn thread_time() -> Duration {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: it writes one `timespec`, which is there.
    let outcome = unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &raw mut time) };
    debug_assert_eq!(outcome, 0, "every Linux has this clock");
    Duration::new(time.tv_sec.unsigned_abs(), u32::try_from(time.tv_nsec).unwrap_or(0))
}

/// Returns the time of the machine now. It is no system call, and costs some 50 ns.
pub fn machine_time() -> Instant {
    Instant::now()
}
