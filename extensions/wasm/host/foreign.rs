//! Functions of Envoy that modules call by name.

use std::io::Read;

use flate2::Compression;
use flate2::read::{ZlibDecoder, ZlibEncoder};
use wasmtime::Linker;

use super::guest::{GuestPointers, Span};
use super::{Guest, Outcome, Status, function};
use crate::state::State;

/// The longest name.
const NAME_BYTES: u32 = 256;

/// Reads at most `limit` bytes.
fn bounded(mut source: impl Read, limit: usize) -> Result<Vec<u8>, Status> {
    let mut out = Vec::new();
    source.by_ref().take(limit as u64 + 1).read_to_end(&mut out).map_err(|_| Status::SerializationFailure)?;
    if out.len() > limit { Err(Status::BadArgument) } else { Ok(out) }
}

fn call(guest: &mut Guest<'_>, name: Span, arguments: Span, place: GuestPointers) -> Outcome {
    let limit = guest.state().vm.settings.body_bytes;
    if name.length > NAME_BYTES || arguments.length as usize > limit {
        return Err(Status::BadArgument.into());
    }
    let (name, arguments) = (guest.read(name)?, guest.read(arguments)?);
    let result = match &name[..] {
        // Bytes that do not shrink become longer.
        b"compress" => {
            bounded(ZlibEncoder::new(&arguments[..], Compression::default()), limit + (limit >> 8) + 64)?
        }
        b"uncompress" => bounded(ZlibDecoder::new(&arguments[..]), limit)?,
        _ => return Err(Status::NotFound.into()),
    };
    guest.give(&result, place)
}

pub(super) fn register(linker: &mut Linker<State>) -> wasmtime::Result<()> {
    function!(
        linker,
        "proxy_call_foreign_function",
        |guest, name: u32, n: u32, at: u32, length: u32, data: u32, size: u32| {
            call(guest, Span { at: name, length: n }, Span { at, length }, GuestPointers { data, size })
        }
    );
    Ok(())
}
