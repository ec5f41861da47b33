//! From the registers and the stack of a thread to the calls that it was in.
//!
//! Compilers record for every instruction where a function keeps its return address (`.eh_frame`, which
//! panics need as well). So neither frame pointers nor the thread's help are needed, in Rust, C and assembly
//! alike.

use gimli::{
    BaseAddresses, CfaRule, EhFrame, EndianSlice, LittleEndian, Register, RegisterRule, UnwindContext,
    UnwindSection, UnwindTableRow,
};
use sigma_net::sampling::{REGISTERS, Sample};

use super::modules::{Modules, Unwinding};

/// Calls that are looked at, from the innermost on.
const MOST_CALLS: usize = 256;

/// DWARF's numbers of the stack pointer and of the register that holds the return address at a call's beginning, and
/// the one under which a sample has the address of its instruction.
#[cfg(target_arch = "x86_64")]
const NUMBERS: (u16, u16, u16) = (7, 16, 16);
#[cfg(not(target_arch = "x86_64"))]
const NUMBERS: (u16, u16, u16) = (31, 30, 32);
const STACK_POINTER: u16 = NUMBERS.0;
const RETURN_ADDRESS: u16 = NUMBERS.1;
const INSTRUCTION: u16 = NUMBERS.2;

/// Reusable state of unwinding.
#[derive(Default)]
pub(super) struct Unwinder(UnwindContext<usize>);

impl Unwinder {
    /// Writes the addresses of the calls to `calls`, the innermost first. Each but the first is behind the
    /// instruction that called. Where the unwinding ends early, the calls found so far stay.
    pub(super) fn calls(&mut self, modules: &Modules, sample: &Sample<'_>, calls: &mut Vec<u64>) {
        let mut registers = sample.registers;
        let stack = Stack { start: registers[usize::from(STACK_POINTER)], bytes: sample.stack };
        let mut address = registers[usize::from(INSTRUCTION)];
        calls.clear();
        while calls.len() < MOST_CALLS && address != 0 {
            calls.push(address);
            // Behind a call that never returns there may be another function.
            let is_innermost = calls.len() == 1;
            let inside = if is_innermost { address } else { address - 1 };
            match self.caller(modules, inside, is_innermost, &mut registers, &stack) {
                Some(caller) => address = caller,
                None => return,
            }
        }
    }

    /// The address that a call returns to; `registers` are set to their values there. None at the end of the
    /// way.
    fn caller(
        &mut self,
        modules: &Modules,
        address: u64,
        is_innermost: bool,
        registers: &mut [u64; REGISTERS],
        stack: &Stack<'_>,
    ) -> Option<u64> {
        let (unwinding, address) = modules.unwinding(address)?;
        let row = row(&mut self.0, unwinding, address)?;
        let CfaRule::RegisterAndOffset { register, offset } = row.cfa() else { return None };
        let frame = registers.get(usize::from(register.0))?.wrapping_add_signed(*offset);
        // The stack grows down: who called is above. Else this would never end.
        let below = registers[usize::from(STACK_POINTER)];
        if frame < below || (frame == below && !is_innermost) {
            return None;
        }
        match row.register(Register(RETURN_ADDRESS)) {
            // Where a thread begins.
            Some(RegisterRule::Undefined) => return None,
            // In a function that calls nothing, a register still has it.
            None if RETURN_ADDRESS == INSTRUCTION || !is_innermost => return None,
            _ => {}
        }
        let before = *registers;
        for (number, value) in (0..).zip(registers.iter_mut()) {
            *value = match row.register(Register(number)) {
                // An unspecified register keeps its value, by the calling convention.
                None | Some(RegisterRule::Undefined | RegisterRule::SameValue) => *value,
                // A value that the rest does not need may be out of reach.
                Some(RegisterRule::Offset(at)) => stack.word(frame.wrapping_add_signed(at)).unwrap_or(0),
                Some(RegisterRule::ValOffset(at)) => frame.wrapping_add_signed(at),
                Some(RegisterRule::Register(other)) => *before.get(usize::from(other.0))?,
                _ => return None,
            };
        }
        registers[usize::from(STACK_POINTER)] = frame;
        let caller = registers[usize::from(RETURN_ADDRESS)];
        registers[usize::from(INSTRUCTION)] = caller;
        Some(caller)
    }
}

/// Returns the unwinding rules of an address.
fn row<'c>(
    context: &'c mut UnwindContext<usize>,
    unwinding: &Unwinding,
    address: u64,
) -> Option<&'c UnwindTableRow<usize>> {
    let slice = |bytes| EndianSlice::new(bytes, LittleEndian);
    let bases = BaseAddresses::default()
        .set_eh_frame_hdr(unwinding.index_at)
        .set_eh_frame(unwinding.frames_at)
        .set_text(unwinding.text_at);
    let frames = EhFrame::from(slice(&unwinding.frames));
    let index = gimli::EhFrameHdr::from(slice(&unwinding.index)).parse(&bases, 8).ok()?;
    let by = index.table()?;
    by.unwind_info_for_address(&frames, &bases, context, address, EhFrame::cie_from_offset).ok()
}

/// The part of a stack that was copied.
struct Stack<'s> {
    start: u64,
    bytes: &'s [u8],
}

impl Stack<'_> {
    fn word(&self, address: u64) -> Option<u64> {
        let at = usize::try_from(address.checked_sub(self.start)?).ok()?;
        let word = self.bytes.get(at..at.checked_add(8)?)?;
        word.try_into().ok().map(u64::from_ne_bytes)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::time::Duration;

    use sigma_net::sampling::Sampler;

    use super::*;

    #[inline(never)]
    fn innermost(is_over: &AtomicBool) -> u64 {
        let mut number = 1_u64;
        while !is_over.load(Ordering::Relaxed) {
            number = std::hint::black_box(number.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1));
        }
        number
    }

    /// With a part of the stack of unknown size.
    #[inline(never)]
    fn in_between(is_over: &AtomicBool, room: usize) -> u64 {
        let held = std::hint::black_box([room as u8; 700]);
        innermost(is_over) + u64::from(held[room % 700])
    }

    /// The whole way is found from where a thread is to where it began.
    #[test]
    fn stacks_lead_from_a_loop_to_the_start_of_its_thread() {
        let is_over = AtomicBool::new(false);
        let modules = Modules::of_this_process().unwrap();
        std::thread::scope(|scope| {
            scope.spawn(|| in_between(&is_over, 5));
            let mut found = Vec::new();
            match Sampler::start(200) {
                Ok(mut sampler) => {
                    let (mut unwinder, mut calls) = (Unwinder::default(), Vec::new());
                    sigma_testkit::until(Duration::from_secs(30), || {
                        sampler.read(|sample| {
                            unwinder.calls(&modules, &sample, &mut calls);
                            let names = calls.iter().map(|call| modules.name(call - 1).unwrap_or_default());
                            let names: Vec<String> = names.collect();
                            if names.iter().any(|name| name.contains("in_between")) {
                                found = names;
                            }
                        });
                        !found.is_empty()
                    });
                }
                // Where the system forbids it there is nothing to unwind.
                Err(error) => {
                    assert_eq!(error.kind(), std::io::ErrorKind::PermissionDenied, "{error}");
                    is_over.store(true, Ordering::Relaxed);
                    return;
                }
            }
            is_over.store(true, Ordering::Relaxed);
            let at = |name: &str| found.iter().position(|one| one.contains(name));
            let places = [at("innermost"), at("in_between"), at("thread_start")];
            assert!(places.iter().all(Option::is_some) && places.is_sorted(), "{found:#?}");
        });
    }

    /// With any registers and stack, unwinding ends.
    #[test]
    fn no_sample_leads_round_in_circles() {
        let modules = Modules::of_this_process().unwrap();
        let (mut unwinder, mut calls) = (Unwinder::default(), Vec::new());
        let inside = innermost as fn(&AtomicBool) -> u64 as usize as u64;
        let mut seed = 7_u64;
        let mut random = || {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            seed >> 20
        };
        for _ in 0..300 {
            let mut registers = std::array::from_fn(|_| random());
            let mut stack: Vec<u8> = (0..4096).map(|_| random() as u8).collect();
            // Addresses of code, so that it continues.
            stack.chunks_exact_mut(24).for_each(|part| {
                part[..8].copy_from_slice(&(inside + random() % 64).to_ne_bytes());
            });
            registers[usize::from(INSTRUCTION)] = inside + random() % 64;
            let sample = Sample { thread: 1, in_kernel: false, registers, stack: &stack };
            unwinder.calls(&modules, &sample, &mut calls);
            assert!((1..=MOST_CALLS).contains(&calls.len()));
        }
    }
}
