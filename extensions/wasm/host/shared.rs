//! Functions of shared data and queues.

use wasmtime::Linker;

use super::guest::{GuestPointers, Span};
use super::{Guest, Outcome, Status, function};
use crate::state::State;

/// The longest key, and the longest name of a queue.
const NAME_BYTES: u32 = 4096;

fn get(guest: &mut Guest<'_>, key: Span, place: GuestPointers, version: u32) -> Outcome {
    if key.length > NAME_BYTES {
        return Err(Status::BadArgument.into());
    }
    let key = guest.read(key)?;
    let (value, current) = guest.state().vm.table.get(&key).ok_or(Status::NotFound)?;
    guest.give(&value, place)?;
    guest.write_u32(version, current)
}

fn set(guest: &mut Guest<'_>, key: Span, value: Span, version: u32) -> Outcome {
    let limit = guest.state().vm.settings.shared_bytes;
    if key.length > NAME_BYTES || value.length as usize > limit {
        return Err(Status::BadArgument.into());
    }
    let (key, value) = (guest.read(key)?, guest.read(value)?);
    Ok(guest.state().vm.table.set(key, value, version, limit)?)
}

fn register_queue(guest: &mut Guest<'_>, name: Span, out: u32) -> Outcome {
    if name.length > NAME_BYTES {
        return Err(Status::BadArgument.into());
    }
    let name = guest.read(name)?;
    let state = guest.state();
    let vm = &state.vm;
    let id = vm.queues.register(&vm.scope, &name, &state.listener, vm.settings.queues);
    guest.write_u32(out, id.ok_or(Status::InternalFailure)?)
}

fn resolve_queue(guest: &mut Guest<'_>, vm_id: Span, name: Span, out: u32) -> Outcome {
    if vm_id.length > NAME_BYTES || name.length > NAME_BYTES {
        return Err(Status::BadArgument.into());
    }
    let (vm_id, name) = (guest.read(vm_id)?, guest.read(name)?);
    let vm = &guest.state().vm;
    let scope = if *vm_id == *vm.vm_id.as_bytes() { Ok(&*vm.scope) } else { std::str::from_utf8(&vm_id) };
    let id = scope.ok().filter(|_| !vm_id.contains(&0)).and_then(|scope| vm.queues.find(scope, &name));
    guest.write_u32(out, id.ok_or(Status::NotFound)?)
}

pub(super) fn register(linker: &mut Linker<State>) -> wasmtime::Result<()> {
    function!(
        linker,
        "proxy_get_shared_data",
        |guest, at: u32, length: u32, data: u32, size: u32, version: u32| {
            get(guest, Span { at, length }, GuestPointers { data, size }, version)
        }
    );
    function!(
        linker,
        "proxy_set_shared_data",
        |guest, at: u32, length: u32, value: u32, n: u32, version: u32| {
            set(guest, Span { at, length }, Span { at: value, length: n }, version)
        }
    );
    function!(linker, "proxy_register_shared_queue", |guest, at: u32, length: u32, out: u32| {
        register_queue(guest, Span { at, length }, out)
    });
    function!(
        linker,
        "proxy_resolve_shared_queue",
        |guest, vm_id: u32, v: u32, name: u32, n: u32, out: u32| {
            resolve_queue(guest, Span { at: vm_id, length: v }, Span { at: name, length: n }, out)
        }
    );
    function!(linker, "proxy_enqueue_shared_queue", |guest, id: u32, at: u32, length: u32| {
        let settings = guest.state().vm.settings.clone();
        if length as usize > settings.queue_bytes {
            return Err(Status::BadArgument.into());
        }
        let item = guest.read(Span { at, length })?;
        Ok(guest.state().vm.queues.push(id, item, settings.queue_items, settings.queue_bytes)?)
    });
    function!(linker, "proxy_dequeue_shared_queue", |guest, id: u32, data: u32, size: u32| {
        let item = guest.state().vm.queues.pop(id)?;
        guest.give(&item, GuestPointers { data, size })
    });
    Ok(())
}
