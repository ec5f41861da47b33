//! Data and queues that all instances of a `vm_id` share, in all workers.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use tokio::sync::Notify;

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
    pub(crate) fn get(&self, key: &[u8]) -> Option<(Vec<u8>, u32)> {
        let entries = lock(&self.0);
        entries.values.get(key).map(|entry| (entry.value.clone(), entry.version))
    }

    /// Sets a value. With a version, only if it is the present one.
    pub(crate) fn set(
        &self,
        key: Vec<u8>,
        value: Vec<u8>,
        version: u32,
        limit: usize,
    ) -> Result<(), Refusal> {
        let mut entries = lock(&self.0);
        let known = entries.values.get(&key);
        if version != 0 && known.is_none_or(|entry| entry.version != version) {
            return Err(Refusal::Changed);
        }
        let before = known.map_or(0, |entry| ENTRY_BYTES + key.len() + entry.value.len());
        let bytes = entries.bytes - before + ENTRY_BYTES + key.len() + value.len();
        if bytes > limit {
            return Err(Refusal::Full);
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
    pub(crate) fn find(&self, vm_id: &str, name: &[u8]) -> Option<u32> {
        let all = lock(&self.0);
        let is_same = |queue: &Queue| *queue.vm_id == *vm_id && queue.name == name;
        all.by_id.iter().find(|(_, queue)| is_same(queue)).map(|(id, _)| *id)
    }

    pub(crate) fn register(
        &self,
        vm_id: &str,
        name: &[u8],
        listener: &Arc<Listener>,
        most: usize,
    ) -> Option<u32> {
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

    pub(crate) fn push(&self, id: u32, item: Vec<u8>, items: usize, bytes: usize) -> Result<(), Refusal> {
        let mut all = lock(&self.0);
        let queue = all.by_id.get_mut(&id).ok_or(Refusal::NotFound)?;
        if queue.items.len() >= items || queue.bytes + item.len() > bytes {
            return Err(Refusal::Full);
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

    pub(crate) fn pop(&self, id: u32) -> Result<Vec<u8>, Refusal> {
        let mut all = lock(&self.0);
        let queue = all.by_id.get_mut(&id).ok_or(Refusal::NotFound)?;
        let item = queue.items.pop_front().ok_or(Refusal::Empty)?;
        queue.bytes -= item.len();
        Ok(item)
    }
}

/// The reason that an operation is not done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Refusal {
    NotFound,
    Empty,
    /// Another version is present
    Changed,
    /// A limit is reached
    Full,
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
        set("a", 5, Err(Refusal::Changed));
        set("b", 0, Ok(()));
        set("c", 1, Ok(()));
        set("d", 1, Err(Refusal::Changed));
        assert_eq!(table.get(b"k"), Some((b"c".to_vec(), 2)));
        assert_eq!(table.get(b"x"), None);
        // Replacing a value frees its bytes.
        for _ in 0..10 {
            assert_eq!(table.set(b"k".to_vec(), vec![0; 100], 0, 200), Ok(()));
        }
        assert_eq!(table.set(b"l".to_vec(), vec![0; 100], 0, 200), Err(Refusal::Full));
    }

    #[test]
    fn queues_are_bounded() {
        let (queues, listener) = (Queues::default(), Arc::new(Listener::default()));
        let id = queues.register("vm", b"q", &listener, 1).unwrap();
        assert_eq!(queues.register("vm", b"q", &listener, 1), Some(id));
        assert_eq!(queues.register("vm", b"r", &listener, 1), None);
        assert_eq!((queues.find("vm", b"q"), queues.find("other", b"q")), (Some(id), None));
        assert_eq!(queues.push(id, vec![1], 2, 3), Ok(()));
        assert_eq!(queues.push(id, vec![2, 2, 2], 2, 3), Err(Refusal::Full));
        assert_eq!(queues.push(id, vec![2], 2, 3), Ok(()));
        assert_eq!(queues.push(id, vec![3], 2, 3), Err(Refusal::Full));
        assert_eq!(queues.push(99, vec![3], 2, 3), Err(Refusal::NotFound));
        assert_eq!((listener.take(), listener.take()), (vec![id], vec![]));
        assert_eq!((queues.pop(id), queues.pop(id)), (Ok(vec![1]), Ok(vec![2])));
        assert_eq!(queues.pop(id), Err(Refusal::Empty));
        // A queue without an instance gives way.
        drop(listener);
        assert!(queues.register("vm", b"r", &Arc::new(Listener::default()), 1).is_some());
    }
}
