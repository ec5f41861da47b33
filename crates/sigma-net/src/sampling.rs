//! CPU samples of this process: the kernel stops its threads at a rate and records their positions.
//!
//! The kernel does it by itself (`perf_event_open(2)`): registers and the top of the stack of a thread go to a ring,
//! which another thread reads. No signal is sent and no code runs in the sampled thread, so its locks and state do
//! not matter. A waiting thread is not stopped at all. Without a [`Sampler`] none of this exists in the process.

use std::collections::HashMap;
use std::fs::{self, File};
use std::io;
use std::os::fd::AsFd;
use std::os::fd::FromRawFd;
use std::ptr;
use std::sync::atomic::{AtomicU64, Ordering, fence};

use crate::pages::Pages;

/// The largest part of a stack in a sample in bytes, from its top. Deeper frames are missing.
const STACK_BYTES: u32 = 16 * 1024;
/// The size of a thread's ring in bytes, after the page with its positions: about fifteen samples.
const RING_BYTES: usize = 256 * 1024;
/// The limit of sampled threads: their rings cannot be swapped.
const MOST_THREADS: usize = 256;

/// The registers for unwinding by their DWARF numbers: as bits of the kernel's mask, and in the order in which the
/// kernel writes them.
#[cfg(target_arch = "x86_64")]
mod architecture {
    /// All but flags and segments.
    pub(super) const MASK: u64 = 0xff_01ff;
    /// ax, bx, cx, dx, si, di, bp, sp, ip, r8 … r15; 16 is DWARF's column of the return address.
    pub(super) const ORDER: [u16; 17] = [0, 3, 2, 1, 4, 5, 6, 7, 16, 8, 9, 10, 11, 12, 13, 14, 15];
}
#[cfg(target_arch = "aarch64")]
mod architecture {
    /// x0 … x30, sp, pc.
    pub(super) const MASK: u64 = 0x1_ffff_ffff;
    /// DWARF has no number for pc: 32 is its column for ELR, which nothing else uses here.
    pub(super) const ORDER: [u16; 33] = {
        let mut order = [0; 33];
        let mut at = 0;
        while at < 33 {
            order[at as usize] = at;
            at += 1;
        }
        order
    };
}
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
mod architecture {
    pub(super) const MASK: u64 = 0;
    pub(super) const ORDER: [u16; 1] = [0];
}

/// The number of registers in a sample, by DWARF's numbers.
pub const REGISTERS: usize = architecture::ORDER.len();

/// A thread at one moment.
#[derive(Debug, Clone, Copy)]
pub struct Sample<'r> {
    /// The thread's number.
    pub thread: u32,
    /// It was in the kernel: the registers are from its entry.
    pub in_kernel: bool,
    /// Its registers by DWARF's numbers; on x86-64 the instruction's address is number 16, on AArch64 number 32.
    pub registers: [u64; REGISTERS],
    /// The copied part of its stack, from the stack pointer on. It may contain secrets.
    pub stack: &'r [u8],
}

/// Samples all threads of this process, until it is dropped.
#[derive(Debug)]
pub struct Sampler {
    hz: u32,
    with_kernel: bool,
    rings: HashMap<u32, Ring>,
    copy: Vec<u8>,
    lost: u64,
}

impl Sampler {
    /// Starts with `hz` samples for each second of a thread's run time.
    ///
    /// # Errors
    /// Returns an error if the system does not allow it ([`io::ErrorKind::PermissionDenied`]), has no memory for it
    /// ([`io::ErrorKind::OutOfMemory`]) or does not support it.
    pub fn start(hz: u32) -> io::Result<Sampler> {
        if architecture::MASK == 0 {
            return Err(io::ErrorKind::Unsupported.into());
        }
        let mut sampler = Sampler { hz, with_kernel: true, rings: HashMap::new(), copy: Vec::new(), lost: 0 };
        match sampler.follow() {
            // Kernel time is more than an ordinary user may see.
            Err(error) if matches!(error.kind(), io::ErrorKind::PermissionDenied) => {
                sampler.with_kernel = false;
                sampler.follow()?;
            }
            other => other?,
        }
        Ok(sampler)
    }

    /// Returns true if threads are also sampled in the kernel.
    pub fn with_kernel(&self) -> bool {
        self.with_kernel
    }

    /// Returns the number of samples lost because the ring was full.
    pub fn lost(&self) -> u64 {
        self.lost
    }

    /// Adds threads that were started since the last call.
    ///
    /// # Errors
    /// Returns an error in the same cases as [`Sampler::start`].
    pub fn follow(&mut self) -> io::Result<()> {
        for entry in fs::read_dir("/proc/self/task")? {
            let Some(thread) = entry?.file_name().to_str().and_then(|name| name.parse().ok()) else {
                continue;
            };
            if self.rings.len() >= MOST_THREADS {
                break;
            }
            if self.rings.contains_key(&thread) {
                continue;
            }
            match Ring::open(thread, self.hz, self.with_kernel) {
                Ok(ring) => drop(self.rings.insert(thread, ring)),
                // It has ended.
                Err(error) if error.raw_os_error() == Some(libc::ESRCH) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Passes the samples since the last call to `take`.
    pub fn read(&mut self, mut take: impl FnMut(Sample<'_>)) {
        for ring in self.rings.values() {
            self.copy.clear();
            ring.drain(&mut self.copy);
            let mut rest = &self.copy[..];
            while let Some((record, behind)) = Record::first(rest) {
                match record {
                    Record::Sample(sample) => take(sample),
                    Record::Lost(count) => self.lost += count,
                    Record::Other => {}
                }
                rest = behind;
            }
        }
    }
}

/// A record of a ring.
enum Record<'r> {
    Sample(Sample<'r>),
    Lost(u64),
    Other,
}

impl<'r> Record<'r> {
    /// Returns the first record, and the bytes after it; None without a whole one.
    fn first(bytes: &'r [u8]) -> Option<(Record<'r>, &'r [u8])> {
        /// `PERF_RECORD_LOST` and `PERF_RECORD_SAMPLE`.
        const LOST: u32 = 2;
        const SAMPLE: u32 = 9;
        let (mut head, _) = bytes.split_at_checked(8)?;
        let (kind, how, size) = (word32(&mut head)?, word16(&mut head)?, word16(&mut head)?);
        let (record, behind) = bytes.split_at_checked(usize::from(size).max(8))?;
        let mut body = &record[8..];
        let record = match kind {
            LOST => {
                let _id = word64(&mut body)?;
                Record::Lost(word64(&mut body)?)
            }
            SAMPLE => Record::sample(how, body).map_or(Record::Other, Record::Sample),
            _ => Record::Other,
        };
        Some((record, behind))
    }

    fn sample(how: u16, mut body: &'r [u8]) -> Option<Sample<'r>> {
        /// The bits of the mode, and the kernel's value.
        const MODE: u16 = 7;
        const KERNEL: u16 = 1;
        let (_process, thread) = (word32(&mut body)?, word32(&mut body)?);
        // Without registers there is no stack either: a thread of the kernel.
        if word64(&mut body)? == 0 {
            return None;
        }
        let mut registers = [0; REGISTERS];
        for number in architecture::ORDER {
            registers[usize::from(number)] = word64(&mut body)?;
        }
        let room = usize::try_from(word64(&mut body)?).ok()?;
        let (stack, mut behind) = body.split_at_checked(room)?;
        let copied = if room == 0 { 0 } else { usize::try_from(word64(&mut behind)?).ok()? };
        Some(Sample { thread, in_kernel: how & MODE == KERNEL, registers, stack: stack.get(..copied)? })
    }
}

fn word16(bytes: &mut &[u8]) -> Option<u16> {
    bytes.split_off(..2).and_then(|word| word.try_into().ok()).map(u16::from_ne_bytes)
}

fn word32(bytes: &mut &[u8]) -> Option<u32> {
    bytes.split_off(..4).and_then(|word| word.try_into().ok()).map(u32::from_ne_bytes)
}

fn word64(bytes: &mut &[u8]) -> Option<u64> {
    bytes.split_off(..8).and_then(|word| word.try_into().ok()).map(u64::from_ne_bytes)
}

/// `struct perf_event_attr` up to its version 5, which Linux 4.1 has.
#[repr(C)]
#[derive(Default)]
struct Attributes {
    kind: u32,
    size: u32,
    config: u64,
    frequency: u64,
    sample_type: u64,
    read_format: u64,
    flags: u64,
    wakeup: u32,
    breakpoint: u32,
    config1: u64,
    config2: u64,
    branches: u64,
    registers: u64,
    stack: u32,
    clock: i32,
    registers_in_kernel: u64,
    aux_watermark: u32,
    max_stack: u16,
    reserved: u16,
}

/// The ring of one thread.
#[derive(Debug)]
struct Ring {
    /// The event; it ends with its descriptor.
    _event: File,
    /// The page with the positions, and the ring after it.
    pages: Pages,
    page: usize,
}

impl Ring {
    #[expect(unsafe_code)]
    fn open(thread: u32, hz: u32, with_kernel: bool) -> io::Result<Ring> {
        /// `PERF_TYPE_SOFTWARE`, whose event 0 is the CPU clock: it needs no hardware counters.
        const SOFTWARE: u32 = 1;
        /// `PERF_SAMPLE_TID`, `…_REGS_USER`, `…_STACK_USER`.
        const SAMPLE: u64 = 1 << 1 | 1 << 12 | 1 << 13;
        const EXCLUDE_KERNEL: u64 = 1 << 5;
        const EXCLUDE_HYPERVISOR: u64 = 1 << 6;
        /// `frequency` is a rate, not a period.
        const FREQUENCY: u64 = 1 << 10;
        const CLOSE_ON_EXEC: libc::c_long = 1 << 3;
        /// On any CPU, without a group of events.
        const ANY: libc::c_long = -1;
        let attributes = Attributes {
            kind: SOFTWARE,
            size: size_of::<Attributes>() as u32,
            frequency: hz.into(),
            sample_type: SAMPLE,
            flags: FREQUENCY | EXCLUDE_HYPERVISOR | if with_kernel { 0 } else { EXCLUDE_KERNEL },
            registers: architecture::MASK,
            stack: STACK_BYTES,
            ..Attributes::default()
        };
        // SAFETY: the attributes have the size they state, and live through the call, which only reads them.
        let event = unsafe {
            let thread = libc::c_long::from(thread);
            libc::syscall(libc::SYS_perf_event_open, &raw const attributes, thread, ANY, ANY, CLOSE_ON_EXEC)
        };
        let Some(event) = i32::try_from(event).ok().filter(|event| *event >= 0) else {
            return Err(io::Error::last_os_error());
        };
        // SAFETY: the call has just opened the descriptor, which has no other owner.
        let event = unsafe { File::from_raw_fd(event) };
        // SAFETY: it takes and returns numbers only.
        let page = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
        let page =
            usize::try_from(page).ok().filter(|page| *page >= 4096).ok_or(io::ErrorKind::Unsupported)?;
        let pages = Pages::shared(event.as_fd(), page + RING_BYTES).map_err(|error| {
            let reason = format!("a ring of {RING_BYTES} bytes of locked memory for each thread: {error}");
            io::Error::new(io::ErrorKind::OutOfMemory, reason)
        })?;
        Ok(Ring { _event: event, pages, page })
    }

    /// Returns a number in the first page: the position of the kernel (`data_head`) or of the reader (`data_tail`).
    #[expect(unsafe_code)]
    fn place(&self, offset: usize) -> &AtomicU64 {
        assert!(offset.is_multiple_of(8) && offset + 8 <= self.page);
        // SAFETY: the eight bytes are within the mapping's first page, as just checked, and aligned like it; they
        // live as long as `self`. The kernel reads and writes them atomically, too.
        unsafe { AtomicU64::from_ptr(self.pages.start().as_ptr().add(offset).cast()) }
    }

    /// Moves the content of the ring to the end of `to`.
    fn drain(&self, to: &mut Vec<u8>) {
        const HEAD: usize = 1024;
        const TAIL: usize = 1032;
        let (head, tail) =
            (self.place(HEAD).load(Ordering::Acquire), self.place(TAIL).load(Ordering::Relaxed));
        // Data after the tail stay unchanged until the tail moves.
        let length =
            usize::try_from(head.wrapping_sub(tail)).map_or(RING_BYTES, |length| length.min(RING_BYTES));
        let from = (tail % RING_BYTES as u64) as usize;
        let first = length.min(RING_BYTES - from);
        self.copy(from, first, to);
        self.copy(0, length - first, to);
        fence(Ordering::Release);
        self.place(TAIL).store(head, Ordering::Release);
    }

    #[expect(unsafe_code)]
    fn copy(&self, from: usize, length: usize, to: &mut Vec<u8>) {
        assert!(from <= RING_BYTES && length <= RING_BYTES - from);
        to.reserve(length);
        // SAFETY: the source is within the ring, as just checked, and the kernel does not write there before the tail
        // has moved. The room after the vector's end was just reserved, does not overlap the mapping, and is written
        // before the length is set.
        unsafe {
            let source = self.pages.start().as_ptr().add(self.page + from);
            ptr::copy_nonoverlapping(source, to.as_mut_ptr().add(to.len()), length);
            to.set_len(to.len() + length);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicBool;
    use std::time::Duration;

    use super::*;

    #[test]
    fn attributes_have_the_size_that_the_kernel_knows() {
        assert_eq!(size_of::<Attributes>(), 112);
        assert_eq!(architecture::MASK.count_ones() as usize, REGISTERS);
    }

    /// A ring with any content is read to its end.
    #[test]
    fn records_are_read_whole_or_not_at_all() {
        let record = |kind: u32, how: u16, body: &[u8]| {
            let size = 8 + body.len() as u16;
            [&kind.to_ne_bytes()[..], &how.to_ne_bytes(), &size.to_ne_bytes(), body].concat()
        };
        let mut body = [7_u32.to_ne_bytes(), 8_u32.to_ne_bytes()].concat();
        body.extend(2_u64.to_ne_bytes());
        (0..REGISTERS as u64).for_each(|value| body.extend((100 + value).to_ne_bytes()));
        body.extend(16_u64.to_ne_bytes());
        body.extend([5; 16]);
        let sized = |copied: u64| [&body[..], &copied.to_ne_bytes()].concat();
        let all =
            [record(2, 0, &[0_u64.to_ne_bytes(), 3_u64.to_ne_bytes()].concat()), record(9, 1, &sized(9))];
        let all = [&all.concat()[..], &record(99, 0, b"12345678"), &record(9, 2, &sized(17))].concat();
        let (Record::Lost(3), rest) = Record::first(&all).unwrap() else { panic!("lost ones") };
        let (Record::Sample(sample), rest) = Record::first(rest).unwrap() else { panic!("a sample") };
        assert_eq!((sample.thread, sample.in_kernel, sample.stack), (8, true, &[5; 9][..]));
        assert_eq!(sample.registers[usize::from(architecture::ORDER[1])], 101);
        let (Record::Other, rest) = Record::first(rest).unwrap() else { panic!("something else") };
        let (Record::Other, rest) = Record::first(rest).unwrap() else { panic!("more than there is") };
        assert!(rest.is_empty() && Record::first(rest).is_none());
        for cut in 0..all.len() {
            let mut rest = &all[..cut];
            while let Some((_, behind)) = Record::first(rest) {
                rest = behind;
            }
        }
        // A size of zero is not an endless loop.
        assert_eq!(Record::first(&[0; 12]).map(|(_, behind)| behind.len()), Some(4));
    }

    #[inline(never)]
    fn busy(until: &AtomicBool) -> u64 {
        let mut number = 1_u64;
        while !until.load(Ordering::Relaxed) {
            number = std::hint::black_box(number.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1));
        }
        number
    }

    /// A computing thread is seen; a waiting one is not.
    #[test]
    fn running_threads_are_seen() {
        let is_over = AtomicBool::new(false);
        let (tell, told) = std::sync::mpsc::channel();
        let (end, is_ended) = std::sync::mpsc::channel::<()>();
        std::thread::scope(|scope| {
            let (told_of, until) = (tell.clone(), &is_over);
            scope.spawn(move || {
                told_of.send(rustix::thread::gettid()).unwrap();
                busy(until)
            });
            scope.spawn(move || {
                tell.send(rustix::thread::gettid()).unwrap();
                // Ends with the other half.
                let _ = is_ended.recv();
            });
            let threads = [told.recv().unwrap(), told.recv().unwrap()];
            let numbers = threads.map(|thread| thread.as_raw_nonzero().get() as u32);
            let mut seen: HashMap<u32, usize> = HashMap::new();
            // If the system forbids it, the error says so.
            let is_allowed = match Sampler::start(200) {
                Ok(mut sampler) => {
                    sigma_testkit::until(Duration::from_secs(30), || {
                        sampler.read(|sample| {
                            assert!(sample.registers.iter().any(|value| *value != 0));
                            assert!(sample.stack.len() <= STACK_BYTES as usize);
                            *seen.entry(sample.thread).or_default() += 1;
                        });
                        seen.values().max() >= Some(&20)
                    });
                    sampler.follow().unwrap();
                    true
                }
                Err(error) => {
                    assert_eq!(error.kind(), io::ErrorKind::PermissionDenied, "{error}");
                    false
                }
            };
            is_over.store(true, Ordering::Relaxed);
            drop(end);
            let mut counts = numbers.map(|number| seen.get(&number).copied().unwrap_or_default());
            counts.sort_unstable();
            let [waits, runs] = counts;
            assert!(!is_allowed || (runs >= 10 && waits < runs / 2), "{counts:?}");
        });
    }
}
