//! The memory of a module, as a function of the host uses it. All pointers and lengths are the module's: each one is
//! checked.

use wasmtime::{AsContextMut, Caller, Extern, Memory};

use super::{Failure, Outcome, Status};
use crate::state::State;

/// The most bytes that one function reads from a module, or returns to it. The largest value is a body.
const VALUE_BYTES: usize = 64 << 20;

/// The caller of a function of the host.
pub(crate) struct Guest<'c>(Caller<'c, State>);

/// A place in the module's memory for a pointer, and one for a length.
#[derive(Debug, Clone, Copy)]
pub(crate) struct GuestPointers {
    pub(crate) data: u32,
    pub(crate) size: u32,
}

/// Bytes in the module's memory.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Span {
    pub(crate) at: u32,
    pub(crate) length: u32,
}

impl<'c> Guest<'c> {
    pub(crate) fn new(caller: Caller<'c, State>) -> Guest<'c> {
        Guest(caller)
    }

    pub(crate) fn state(&mut self) -> &mut State {
        self.0.data_mut()
    }

    /// Returns the memory of the module. During its start it is not in the state yet.
    fn memory(&mut self) -> Outcome<Memory> {
        if let Some(memory) = self.0.data().memory {
            return Ok(memory);
        }
        match self.0.get_export("memory") {
            Some(Extern::Memory(memory)) => Ok(memory),
            _ => Err(Status::InvalidMemoryAccess.into()),
        }
    }

    /// Returns bytes of the module with its state.
    fn bytes(&mut self) -> Outcome<(&mut [u8], &mut State)> {
        let memory = self.memory()?;
        Ok(memory.data_and_store_mut(&mut self.0))
    }

    /// Copies bytes of the module.
    pub(crate) fn read(&mut self, span: Span) -> Outcome<Vec<u8>> {
        self.with(span, <[u8]>::to_vec)
    }

    /// Uses bytes of the module.
    pub(crate) fn with<R>(&mut self, span: Span, run: impl FnOnce(&[u8]) -> R) -> Outcome<R> {
        let Span { at, length } = span;
        if length as usize > VALUE_BYTES {
            return Err(Status::BadArgument.into());
        }
        let (bytes, _) = self.bytes()?;
        let range = at as usize..at as usize + length as usize;
        bytes.get(range).map(run).ok_or_else(|| Status::InvalidMemoryAccess.into())
    }

    /// Copies bytes to the module.
    pub(crate) fn write(&mut self, at: u32, value: &[u8]) -> Outcome {
        let (bytes, _) = self.bytes()?;
        let range = at as usize..at as usize + value.len();
        let place = bytes.get_mut(range).ok_or(Status::InvalidMemoryAccess)?;
        place.copy_from_slice(value);
        Ok(())
    }

    pub(crate) fn write_u32(&mut self, at: u32, value: u32) -> Outcome {
        self.write(at, &value.to_le_bytes())
    }

    pub(crate) fn write_u64(&mut self, at: u32, value: u64) -> Outcome {
        self.write(at, &value.to_le_bytes())
    }

    /// Returns a value to the module, in memory that the module allocates.
    pub(crate) fn give(&mut self, value: &[u8], place: GuestPointers) -> Outcome {
        let at = if value.is_empty() { 0 } else { self.allocate(value.len())? };
        self.write(at, value)?;
        self.write_u32(place.data, at)?;
        self.write_u32(place.size, u32::try_from(value.len()).unwrap_or_default())
    }

    fn allocate(&mut self, bytes: usize) -> Outcome<u32> {
        let size = u32::try_from(bytes).ok().filter(|_| bytes <= VALUE_BYTES).ok_or(Status::BadArgument)?;
        let allocate = self.0.data().allocate.clone();
        let allocate = allocate.ok_or_else(|| {
            Failure::Trap(wasmtime::Error::msg("it exports no proxy_on_memory_allocate and no malloc"))
        })?;
        self.0.data_mut().is_allocating = true;
        let at = allocate.call(self.0.as_context_mut(), size);
        self.0.data_mut().is_allocating = false;
        match at.map_err(Failure::Trap)? {
            0 => Err(Status::InternalFailure.into()),
            at => Ok(at),
        }
    }
}
