//! Data and queues that all instances of a `vm_id` share, in all workers.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use tokio::sync::Notify;
use wasmtime::Linker;

use super::guest::{Place, Span};
use super::{Guest, Outcome, Status, function};
use crate::state::State;

/// The longest key, and the longest name of a queue.
const NAME_BYTES: u32 = 4096;

/// The cost of an entry besides its bytes.
const ENTRY_BYTES: usize = 64;

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Nothing panics while it is held.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The data of all `vm_id`s; a part of the node.
#[derive(Default)]
pub(crate) struct SharedData(Mutex<HashMap<Box<str>, Weak<Table>>>);

/// The data of one `vm_id`.
#[derive(Default)]
pub(crate) struct Table(Mutex<Entries>);

#[derive(Default)]
struct Entries {
    values: HashMap<Vec<u8>, Entry>,
    bytes: usize,
    last_version: u32,
}

struct Entry {
    value: Vec<u8>,
    version: u32,
}

impl SharedData {
    /// Returns the data of a `vm_id`. They live as long as an instance of it.
    pub(crate) fn table(&self, vm_id: &str) -> Arc<Table> {
        let mut all = lock(&self.0);
        if let Some(known) = all.get(vm_id).and_then(Weak::upgrade) {
            return known;
        }
        let made = Arc::new(Table::default());
        all.retain(|_, table| table.strong_count() > 0);
        all.insert(vm_id.into(), Arc::downgrade(&made));
        made
    }
}

impl Table {
    fn get(&self, key: &[u8]) -> Option<(Vec<u8>, u32)> {
        let entries = lock(&self.0);
        entries.values.get(key).map(|entry| (entry.value.clone(), entry.version))
    }

    /// Sets a value. With a version, only if it is the present one.
    fn set(&self, key: Vec<u8>, value: Vec<u8>, version: u32, limit: usize) -> Result<(), Status> {
        let mut entries = lock(&self.0);
        let known = entries.values.get(&key);
        if version != 0 && known.is_none_or(|entry| entry.version != version) {
            return Err(Status::CasMismatch);
        }
        let before = known.map_or(0, |entry| ENTRY_BYTES + key.len() + entry.value.len());
        let bytes = entries.bytes - before + ENTRY_BYTES + key.len() + value.len();
        if bytes > limit {
            return Err(Status::InternalFailure);
        }
        entries.bytes = bytes;
        // 0 means any version.
        entries.last_version = entries.last_version.checked_add(1).unwrap_or(1);
        let entry = Entry { value, version: entries.last_version };
        entries.values.insert(key, entry);
        Ok(())
    }
}

/// The receiver of an instance that registers queues.
#[derive(Default)]
pub(crate) struct Listener {
    pub(crate) notify: Notify,
    ready: Mutex<Vec<u32>>,
}

impl Listener {
    fn add(&self, queue: u32) {
        let mut ready = lock(&self.ready);
        // One callback for several items: the module takes them all, as from any queue.
        if !ready.contains(&queue) {
            ready.push(queue);
        }
        drop(ready);
        self.notify.notify_one();
    }

    /// Takes the queues that have new items.
    pub(crate) fn take(&self) -> Vec<u32> {
        std::mem::take(&mut *lock(&self.ready))
    }
}

/// All queues; a part of the node.
#[derive(Default)]
pub(crate) struct Queues(Mutex<Registered>);

#[derive(Default)]
struct Registered {
    last: u32,
    by_id: HashMap<u32, Queue>,
}

struct Queue {
    vm_id: Box<str>,
    name: Vec<u8>,
    items: VecDeque<Vec<u8>>,
    bytes: usize,
    listener: Weak<Listener>,
}

impl Queues {
    fn find(&self, vm_id: &str, name: &[u8]) -> Option<u32> {
        let all = lock(&self.0);
        let is_same = |queue: &Queue| *queue.vm_id == *vm_id && queue.name == name;
        all.by_id.iter().find(|(_, queue)| is_same(queue)).map(|(id, _)| *id)
    }

    fn register(&self, vm_id: &str, name: &[u8], listener: &Arc<Listener>, most: usize) -> Option<u32> {
        let known = self.find(vm_id, name);
        let mut all = lock(&self.0);
        if let Some(queue) = known.and_then(|id| all.by_id.get_mut(&id)) {
            // The newest instance gets the items.
            queue.listener = Arc::downgrade(listener);
            return known;
        }
        if all.by_id.len() >= most {
            all.by_id.retain(|_, queue| queue.listener.strong_count() > 0);
        }
        if all.by_id.len() >= most {
            return None;
        }
        all.last = all.last.checked_add(1)?;
        let id = all.last;
        let queue = Queue {
            vm_id: vm_id.into(),
            name: name.to_vec(),
            items: VecDeque::new(),
            bytes: 0,
            listener: Arc::downgrade(listener),
        };
        all.by_id.insert(id, queue);
        Some(id)
    }

    fn push(&self, id: u32, item: Vec<u8>, items: usize, bytes: usize) -> Result<(), Status> {
        let mut all = lock(&self.0);
        let queue = all.by_id.get_mut(&id).ok_or(Status::NotFound)?;
        if queue.items.len() >= items || queue.bytes + item.len() > bytes {
            return Err(Status::InternalFailure);
        }
        queue.bytes += item.len();
        queue.items.push_back(item);
        let listener = queue.listener.upgrade();
        drop(all);
        if let Some(listener) = listener {
            listener.add(id);
        }
        Ok(())
    }

    fn pop(&self, id: u32) -> Result<Vec<u8>, Status> {
        let mut all = lock(&self.0);
        let queue = all.by_id.get_mut(&id).ok_or(Status::NotFound)?;
        let item = queue.items.pop_front().ok_or(Status::Empty)?;
        queue.bytes -= item.len();
        Ok(item)
    }
}

fn get(guest: &mut Guest<'_>, key: Span, place: Place, version: u32) -> Outcome {
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
    let id = vm.queues.register(&vm.vm_id, &name, &state.listener, vm.settings.queues);
    guest.write_u32(out, id.ok_or(Status::InternalFailure)?)
}

fn resolve_queue(guest: &mut Guest<'_>, vm_id: Span, name: Span, out: u32) -> Outcome {
    if vm_id.length > NAME_BYTES || name.length > NAME_BYTES {
        return Err(Status::BadArgument.into());
    }
    let (vm_id, name) = (guest.read(vm_id)?, guest.read(name)?);
    let vm = &guest.state().vm;
    let id = std::str::from_utf8(&vm_id).ok().and_then(|vm_id| vm.queues.find(vm_id, &name));
    guest.write_u32(out, id.ok_or(Status::NotFound)?)
}

pub(super) fn register(linker: &mut Linker<State>) -> wasmtime::Result<()> {
    function!(
        linker,
        "proxy_get_shared_data",
        |guest, at: u32, length: u32, data: u32, size: u32, version: u32| {
            get(guest, Span { at, length }, Place { data, size }, version)
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
        guest.give(&item, Place { data, size })
    });
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_guard_shared_data() {
        let table = Table::default();
        let set = |value: &str, version, expected| {
            let got = table.set(b"k".to_vec(), value.into(), version, 200);
            assert_eq!(got, expected, "{value} {version}");
        };
        set("a", 5, Err(Status::CasMismatch));
        set("b", 0, Ok(()));
        set("c", 1, Ok(()));
        set("d", 1, Err(Status::CasMismatch));
        assert_eq!(table.get(b"k"), Some((b"c".to_vec(), 2)));
        assert_eq!(table.get(b"x"), None);
        // Replacing a value frees its bytes.
        for _ in 0..10 {
            assert_eq!(table.set(b"k".to_vec(), vec![0; 100], 0, 200), Ok(()));
        }
        assert_eq!(table.set(b"l".to_vec(), vec![0; 100], 0, 200), Err(Status::InternalFailure));
    }

    #[test]
    fn queues_are_bounded() {
        let (queues, listener) = (Queues::default(), Arc::new(Listener::default()));
        let id = queues.register("vm", b"q", &listener, 1).unwrap();
        assert_eq!(queues.register("vm", b"q", &listener, 1), Some(id));
        assert_eq!(queues.register("vm", b"r", &listener, 1), None);
        assert_eq!((queues.find("vm", b"q"), queues.find("other", b"q")), (Some(id), None));
        assert_eq!(queues.push(id, vec![1], 2, 3), Ok(()));
        assert_eq!(queues.push(id, vec![2, 2, 2], 2, 3), Err(Status::InternalFailure));
        assert_eq!(queues.push(id, vec![2], 2, 3), Ok(()));
        assert_eq!(queues.push(id, vec![3], 2, 3), Err(Status::InternalFailure));
        assert_eq!(queues.push(99, vec![3], 2, 3), Err(Status::NotFound));
        assert_eq!((listener.take(), listener.take()), (vec![id], vec![]));
        assert_eq!((queues.pop(id), queues.pop(id)), (Ok(vec![1]), Ok(vec![2])));
        assert_eq!(queues.pop(id), Err(Status::Empty));
        // A queue without an instance gives way.
        drop(listener);
        assert!(queues.register("vm", b"r", &Arc::new(Listener::default()), 1).is_some());
    }
}
