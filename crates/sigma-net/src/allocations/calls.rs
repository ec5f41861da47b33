//! Which calls a thread is in, by itself.
//!
//! The unwinder is the one that panics use, and that every program has: `_Unwind_Backtrace` of the C++ ABI walks the tables
//! that compilers write for it (`.eh_frame`). The profile of the CPU unwinds copies of stacks on another thread, since the
//! kernel stops threads anywhere; here a thread stands at a call of its own, and a copy of 16 KiB would take longer than
//! its addresses, and hold whatever else is there. The crate `backtrace` would call the same two functions, under a lock,
//! and bring a reader of debugging information with it.

use std::ffi::{c_int, c_void};

/// Calls that are looked at, from the innermost on.
pub(super) const MOST_CALLS: usize = 128;

// SAFETY: the two functions are declared as the ABI of the unwinder has them (Itanium C++ ABI, level I), and every
// program of Rust that unwinds is linked with them.
#[expect(unsafe_code)]
unsafe extern "C" {
    fn _Unwind_Backtrace(visit: Visit, argument: *mut c_void) -> c_int;
    fn _Unwind_GetIP(context: *mut c_void) -> usize;
}

type Visit = extern "C" fn(*mut c_void, *mut c_void) -> c_int;

/// `_URC_NO_REASON`, which goes on, and `_URC_NORMAL_STOP`.
const GO_ON: c_int = 0;
const STOP: c_int = 4;

/// Writes the addresses of the calls to `room`, the innermost first, each behind the instruction that called, and
/// returns those that are there. Allocates nothing of this program's allocator.
#[expect(unsafe_code)]
#[inline(never)]
pub(super) fn of_this_thread(room: &mut [u64; MOST_CALLS]) -> &[u64] {
    let mut found = Found { room, count: 0 };
    // SAFETY: `visit` is called before this returns and not afterwards, with the pointer to `found`, which nothing else
    // uses meanwhile.
    unsafe { _Unwind_Backtrace(visit, (&raw mut found).cast()) };
    let Found { room, count } = found;
    room.get(..count).unwrap_or_default()
}

struct Found<'r> {
    room: &'r mut [u64; MOST_CALLS],
    count: usize,
}

#[expect(unsafe_code)]
extern "C" fn visit(context: *mut c_void, found: *mut c_void) -> c_int {
    // SAFETY: it is the pointer that `of_this_thread` gave, to a value that lives and that nobody else uses.
    let found = unsafe { &mut *found.cast::<Found<'_>>() };
    // SAFETY: the context is the unwinder's, which has called with it.
    let address = unsafe { _Unwind_GetIP(context) };
    let Some(place) = found.room.get_mut(found.count).filter(|_| address != 0) else { return STOP };
    *place = address as u64;
    found.count += 1;
    GO_ON
}

#[cfg(test)]
mod tests {
    use super::*;

    #[inline(never)]
    fn depth(more: usize, room: &mut [u64; MOST_CALLS]) -> usize {
        let found = if more == 0 { of_this_thread(room).len() } else { depth(more - 1, room) };
        std::hint::black_box(found)
    }

    #[test]
    fn a_thread_finds_its_calls() {
        let mut room = [0; MOST_CALLS];
        let above = depth(0, &mut room);
        assert!(above >= 2, "{above}");
        let (mut room, inside) = ([0; MOST_CALLS], of_this_thread as fn(&mut _) -> &[u64] as usize as u64);
        let calls = of_this_thread(&mut room);
        assert!(calls[0] > inside && calls[0] - inside < 4096, "{calls:x?} {inside:x}");
        // As many as there is room for, and the innermost ones.
        let mut room = [0; MOST_CALLS];
        assert_eq!(depth(MOST_CALLS * 2, &mut room), MOST_CALLS);
        let repeated = room.windows(2).filter(|pair| pair[0] == pair[1]).count();
        assert!(repeated > MOST_CALLS / 2, "{repeated}");
    }
}
