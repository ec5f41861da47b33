//! The call stack of a thread, found by the thread itself.
//!
//! It uses the unwinder of panics, which every program has: `_Unwind_Backtrace` of the C++ ABI walks the tables that
//! compilers write for it (`.eh_frame`). The CPU profile unwinds copies of stacks on another thread, since the kernel
//! stops threads anywhere. Here the thread is in its own call: a copy of 16 KiB would take longer than the
//! addresses, and would contain other data too. The crate `backtrace` would call the same two functions, under a
//! lock, and add a reader of debugging information.

use std::ffi::{c_int, c_void};

/// The number of calls to record, from the innermost on.
pub(super) const MOST_CALLS: usize = 128;

// SAFETY: the declarations match the ABI of the unwinder (Itanium C++ ABI, level I), and every Rust program that
// unwinds is linked with it.
#[expect(unsafe_code)]
unsafe extern "C" {
    fn _Unwind_Backtrace(visit: Visit, argument: *mut c_void) -> c_int;
    fn _Unwind_GetIP(context: *mut c_void) -> usize;
}

type Visit = extern "C" fn(*mut c_void, *mut c_void) -> c_int;

/// `_URC_NO_REASON`, which continues, and `_URC_NORMAL_STOP`.
const GO_ON: c_int = 0;
const STOP: c_int = 4;

/// Writes the addresses of the calls to `room`, the innermost first, each after the calling instruction, and returns
/// them. It does not use this program's allocator.
#[expect(unsafe_code)]
#[inline(never)]
pub(super) fn of_this_thread(room: &mut [u64; MOST_CALLS]) -> &[u64] {
    let mut found = Found { room, count: 0 };
    // SAFETY: `visit` is called only before this returns, with the pointer to `found`, which no other code uses
    // meanwhile.
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
    // SAFETY: it is the pointer from `of_this_thread`, to a live value without other users.
    let found = unsafe { &mut *found.cast::<Found<'_>>() };
    // SAFETY: the context comes from the unwinder, which made this call.
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
        // As many as fit, and the innermost ones.
        let mut room = [0; MOST_CALLS];
        assert_eq!(depth(MOST_CALLS * 2, &mut room), MOST_CALLS);
        let repeated = room.windows(2).filter(|pair| pair[0] == pair[1]).count();
        assert!(repeated > MOST_CALLS / 2, "{repeated}");
    }
}
