//! The allocator of the program: mimalloc.
//!
//! The usual binding asks for an alignment with each allocation. Unless the size is a power of two, mimalloc then takes
//! a larger block, aligns within it, and takes a slower path at its end: so for most sizes, each time. All blocks have
//! the alignment that nearly all types need; so the alignment is named only where it is greater.

use std::alloc::{GlobalAlloc, Layout};

use libmimalloc_sys as mimalloc;

/// The alignment of all blocks of at least this size, in bytes: `MI_MAX_ALIGN_SIZE`. Smaller blocks are aligned to their
/// size.
const NATURAL: usize = 16;

/// mimalloc, as the allocator of a program.
#[derive(Debug)]
pub struct Mimalloc;

/// Returns true if each block of this size has the alignment.
#[inline]
fn is_natural(size: usize, align: usize) -> bool {
    align <= NATURAL && align <= size
}

// SAFETY: blocks are of the size and alignment that the caller asks for, come from one allocator, and go back to it. It
// never unwinds.
#[expect(unsafe_code)]
unsafe impl GlobalAlloc for Mimalloc {
    #[inline]
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let (size, align) = (layout.size(), layout.align());
        // SAFETY: the size is not zero, as the caller guarantees, and the alignment is a power of two.
        unsafe {
            match is_natural(size, align) {
                true => mimalloc::mi_malloc(size).cast(),
                false => mimalloc::mi_malloc_aligned(size, align).cast(),
            }
        }
    }

    // SAFETY: the caller keeps the contract of `GlobalAlloc::alloc_zeroed`.
    #[inline]
    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        let (size, align) = (layout.size(), layout.align());
        // SAFETY: as above.
        unsafe {
            match is_natural(size, align) {
                true => mimalloc::mi_zalloc(size).cast(),
                false => mimalloc::mi_zalloc_aligned(size, align).cast(),
            }
        }
    }

    // SAFETY: the caller keeps the contract of `GlobalAlloc::dealloc`.
    #[inline]
    unsafe fn dealloc(&self, at: *mut u8, _: Layout) {
        // SAFETY: the block is this allocator's, as the caller guarantees.
        unsafe { mimalloc::mi_free(at.cast()) }
    }

    // SAFETY: the caller keeps the contract of `GlobalAlloc::realloc`.
    #[inline]
    unsafe fn realloc(&self, at: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        let align = layout.align();
        // SAFETY: the block is this allocator's, and the size is not zero, as the caller guarantees.
        unsafe {
            match is_natural(size, align) {
                true => mimalloc::mi_realloc(at.cast(), size).cast(),
                false => mimalloc::mi_realloc_aligned(at.cast(), size, align).cast(),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    #![expect(unsafe_code)]

    use super::*;

    /// The alignment of blocks is mimalloc's promise, not its interface's.
    #[test]
    fn blocks_are_aligned() {
        for size in (1..600).chain([1000, 1024, 1032, 4100, 70_000, 1 << 20]) {
            for align in [1, 2, 4, 8, 16, 32, 64, 4096] {
                let layout = Layout::from_size_align(size, align).unwrap();
                // More than one, since the first block of a page is aligned to much more.
                // SAFETY: each block is freed once, with its layout.
                let blocks: Vec<*mut u8> = (0..5).map(|_| unsafe { Mimalloc.alloc(layout) }).collect();
                for block in blocks {
                    assert!(!block.is_null() && block.addr() % align == 0, "{layout:?}");
                    // SAFETY: the block is live, and the new size is not zero.
                    let grown = unsafe { Mimalloc.realloc(block, layout, size + 24) };
                    assert!(!grown.is_null() && grown.addr() % align == 0, "{layout:?}");
                    let layout = Layout::from_size_align(size + 24, align).unwrap();
                    // SAFETY: the block is live and was made with this layout.
                    unsafe { Mimalloc.dealloc(grown, layout) };
                    // SAFETY: the size is not zero.
                    let zeroed = unsafe { Mimalloc.alloc_zeroed(layout) };
                    assert!(!zeroed.is_null() && zeroed.addr() % align == 0, "{layout:?}");
                    // SAFETY: the block is live and has this size.
                    let bytes = unsafe { std::slice::from_raw_parts(zeroed, size + 24) };
                    assert!(bytes.iter().all(|byte| *byte == 0));
                    // SAFETY: the block is live and was made with this layout.
                    unsafe { Mimalloc.dealloc(zeroed, layout) };
                }
            }
        }
    }
}
