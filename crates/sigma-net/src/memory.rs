//! The memory that the allocator holds.

/// Gives the system back what was freed and what the allocator keeps for its next use, in the pages
/// of this thread and in those that no thread uses.
///
/// The allocator does so by itself only while it works. A control thread that has read a large
/// configuration and then waits for the next one would keep several times what it needs. Takes a
/// system call for each stretch of memory: for a thread that no request waits for.
#[expect(unsafe_code)]
pub fn give_back() {
    // SAFETY: it takes no pointers and works on the calling thread's own heap. In a program with
    // another allocator that heap is empty.
    unsafe { libmimalloc_sys::mi_collect(true) }
}

#[cfg(test)]
mod tests {
    #[test]
    fn can_be_called_with_any_allocator() {
        let held = vec![1_u8; 1 << 20];
        super::give_back();
        assert!(held.iter().all(|byte| *byte == 1));
    }
}
