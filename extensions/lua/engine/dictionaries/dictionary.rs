//! One dictionary: entries with a time to live, of a bounded size. The least recently used ones go first.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

/// The bytes that an entry takes besides key and value.
const ENTRY_BYTES: usize = 128;

/// The bytes that an item of a list takes besides its value.
const ITEM_BYTES: usize = 32;

/// Memory is given out in pages.
const PAGE: usize = 4096;

/// The most entries that one operation evicts.
const MOST_EVICTED: usize = 30;

/// The text of an error that a method returns.
#[derive(Debug, PartialEq)]
pub(crate) struct Failure(pub(crate) &'static str);

/// A value.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Item {
    Text(Vec<u8>),
    Number(f64),
    Boolean(bool),
}

impl Item {
    fn bytes(&self) -> usize {
        match self {
            Item::Text(text) => text.len(),
            Item::Number(_) => 8,
            Item::Boolean(_) => 1,
        }
    }
}

#[derive(Debug)]
enum Content {
    Item(Item),
    List(VecDeque<Item>),
}

impl Content {
    fn bytes(&self) -> usize {
        match self {
            Content::Item(item) => item.bytes(),
            Content::List(items) => items.iter().map(|item| item.bytes() + ITEM_BYTES).sum(),
        }
    }
}

#[derive(Debug)]
struct Entry {
    content: Content,
    flags: i32,
    /// Time since 1970; None means forever.
    expires: Option<Duration>,
    /// The place in the order of use.
    used: u64,
    /// The bytes that it takes.
    bytes: usize,
}

impl Entry {
    fn is_expired(&self, now: Duration) -> bool {
        self.expires.is_some_and(|expires| expires <= now)
    }
}

/// The condition under which an operation stores.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum StoreMode {
    Set,
    Add,
    Replace,
}

/// The options of an operation that stores.
#[derive(Debug)]
pub(crate) struct Store {
    pub(crate) mode: StoreMode,
    pub(crate) may_evict: bool,
    pub(crate) lifetime: Option<Duration>,
    pub(crate) flags: i32,
}

/// The result of an operation that stores.
#[derive(Debug, PartialEq)]
pub(crate) struct Stored {
    pub(crate) result: Result<(), Failure>,
    /// Entries that had not expired were evicted.
    pub(crate) has_evicted: bool,
}

/// A value that was found.
#[derive(Debug, PartialEq)]
pub(crate) struct DictionaryValue {
    pub(crate) item: Item,
    pub(crate) flags: i32,
    pub(crate) is_expired: bool,
}

#[derive(Debug)]
pub(crate) struct Dictionary {
    capacity: usize,
    entries: HashMap<Arc<[u8]>, Entry>,
    /// Keys in the order of use, the oldest first.
    order: BTreeMap<u64, Arc<[u8]>>,
    next_use: u64,
    /// The bytes that all entries take.
    bytes: usize,
}

/// The bytes that are taken for this many: pages, or for small ones a part of a page.
fn rounded(bytes: usize) -> usize {
    if bytes > PAGE / 2 { bytes.div_ceil(PAGE) * PAGE } else { bytes.next_power_of_two() }
}

impl Dictionary {
    pub(crate) fn new(capacity: usize) -> Dictionary {
        Dictionary { capacity, entries: HashMap::new(), order: BTreeMap::new(), next_use: 0, bytes: 0 }
    }

    pub(crate) fn capacity(&self) -> usize {
        self.capacity
    }

    /// The bytes for entries: a part of the memory is for its own management.
    fn usable(&self) -> usize {
        self.capacity - self.capacity / 128 - PAGE.min(self.capacity / 4)
    }

    /// Whole pages that are free.
    pub(crate) fn free_space(&self) -> usize {
        self.usable().saturating_sub(self.bytes) / PAGE * PAGE
    }

    /// Makes a key the most recently used one.
    fn touch(&mut self, key: &[u8]) {
        if let Some(entry) = self.entries.get_mut(key)
            && let Some(key) = self.order.remove(&entry.used)
        {
            entry.used = self.next_use;
            self.order.insert(self.next_use, key);
            self.next_use += 1;
        }
    }

    fn remove(&mut self, key: &[u8]) {
        if let Some(entry) = self.entries.remove(key) {
            self.order.remove(&entry.used);
            self.bytes -= entry.bytes;
        }
    }

    /// Removes the least recently used entry; whether it had not expired.
    fn evict(&mut self, now: Duration) -> Option<bool> {
        let key = self.order.first_key_value().map(|(_, key)| Arc::clone(key))?;
        let is_alive = self.entries.get(&key).is_some_and(|entry| !entry.is_expired(now));
        self.remove(&key);
        Some(is_alive)
    }

    /// Removes up to two expired entries at the end of the order.
    fn sweep(&mut self, now: Duration) {
        for _ in 0..2 {
            let oldest = self.order.first_key_value().map(|(_, key)| Arc::clone(key));
            match oldest {
                Some(key) if self.entries.get(&key).is_some_and(|entry| entry.is_expired(now)) => {
                    self.remove(&key);
                }
                _ => break,
            }
        }
    }

    /// Makes space; whether others were evicted for it.
    fn make_space(&mut self, bytes: usize, may_evict: bool, now: Duration) -> Stored {
        let mut has_evicted = false;
        let mut count = 0;
        while self.bytes + bytes > self.usable() {
            if !may_evict || count >= MOST_EVICTED {
                return Stored { result: Err(Failure("no memory")), has_evicted };
            }
            count += 1;
            match self.evict(now) {
                Some(is_alive) => has_evicted |= is_alive,
                None => return Stored { result: Err(Failure("no memory")), has_evicted },
            }
        }
        Stored { result: Ok(()), has_evicted }
    }

    fn insert(&mut self, key: &[u8], content: Content, what: &Store, now: Duration) -> Stored {
        let bytes = rounded(ENTRY_BYTES + key.len() + content.bytes());
        let stored = self.make_space(bytes, what.may_evict, now);
        if stored.result.is_ok() {
            let key: Arc<[u8]> = Arc::from(key);
            let used = self.next_use;
            self.next_use += 1;
            self.order.insert(used, Arc::clone(&key));
            self.bytes += bytes;
            let expires = what.lifetime.map(|lifetime| now + lifetime);
            self.entries.insert(key, Entry { content, flags: what.flags, expires, used, bytes });
        }
        stored
    }

    /// Stores a value; None removes the key.
    pub(crate) fn store(&mut self, key: &[u8], item: Option<Item>, what: &Store, now: Duration) -> Stored {
        let refused = |reason| Stored { result: Err(Failure(reason)), has_evicted: false };
        if item.is_none() && what.mode != StoreMode::Set {
            return refused("attempt to add or replace nil values");
        }
        self.sweep(now);
        let is_there = self.entries.get(key).is_some_and(|entry| !entry.is_expired(now));
        match what.mode {
            StoreMode::Replace if !is_there => return refused("not found"),
            StoreMode::Add if is_there => return refused("exists"),
            _ => {}
        }
        self.remove(key);
        match item {
            Some(item) => self.insert(key, Content::Item(item), what, now),
            None => Stored { result: Ok(()), has_evicted: false },
        }
    }

    /// A value. Expired ones are found where the caller takes them.
    pub(crate) fn get(
        &mut self,
        key: &[u8],
        now: Duration,
        is_stale_right: bool,
    ) -> Result<Option<DictionaryValue>, Failure> {
        let Some(entry) = self.entries.get(key) else { return Ok(None) };
        let is_expired = entry.is_expired(now);
        if is_expired && !is_stale_right {
            return Ok(None);
        }
        let Content::Item(item) = &entry.content else { return Err(Failure("value is a list")) };
        let found = DictionaryValue { item: item.clone(), flags: entry.flags, is_expired };
        self.touch(key);
        Ok(Some(found))
    }

    /// Adds to a number. Returns it, and whether others were evicted.
    pub(crate) fn incr(
        &mut self,
        key: &[u8],
        by: f64,
        init: Option<f64>,
        lifetime: Option<Duration>,
        now: Duration,
    ) -> Result<(f64, bool), Failure> {
        self.sweep(now);
        if let Some(entry) = self.entries.get_mut(key)
            && !entry.is_expired(now)
        {
            let Content::Item(Item::Number(number)) = &mut entry.content else {
                return Err(Failure("not a number"));
            };
            *number += by;
            let number = *number;
            self.touch(key);
            return Ok((number, false));
        }
        let Some(init) = init else { return Err(Failure("not found")) };
        self.remove(key);
        let what = Store { mode: StoreMode::Set, may_evict: true, lifetime, flags: 0 };
        let number = init + by;
        let stored = self.insert(key, Content::Item(Item::Number(number)), &what, now);
        stored.result.map(|()| (number, stored.has_evicted))
    }

    /// Adds an item to a list. Returns its length.
    pub(crate) fn push(
        &mut self,
        key: &[u8],
        item: Item,
        is_left: bool,
        now: Duration,
    ) -> Result<usize, Failure> {
        self.sweep(now);
        if self.entries.get(key).is_some_and(|entry| entry.is_expired(now)) {
            self.remove(key);
        }
        let (mut items, flags, expires) = match self.entries.get_mut(key) {
            Some(Entry { content: Content::List(items), flags, expires, .. }) => {
                (std::mem::take(items), *flags, *expires)
            }
            Some(_) => return Err(Failure("value not a list")),
            None => (VecDeque::new(), 0, None),
        };
        let bytes = rounded(item.bytes() + ITEM_BYTES);
        if let Some(entry) = self.entries.get_mut(key) {
            if self.bytes + bytes > self.capacity - self.capacity / 128 {
                entry.content = Content::List(items);
                return Err(Failure("no memory"));
            }
            if is_left {
                items.push_front(item)
            } else {
                items.push_back(item)
            }
            let length = items.len();
            entry.content = Content::List(items);
            entry.bytes += bytes;
            self.bytes += bytes;
            self.touch(key);
            return Ok(length);
        }
        items.push_back(item);
        let what = Store { mode: StoreMode::Set, may_evict: false, lifetime: None, flags };
        self.insert(key, Content::List(items), &what, now).result?;
        if let Some(entry) = self.entries.get_mut(key) {
            entry.expires = expires;
        }
        Ok(1)
    }

    /// Takes an item of a list. A list without items is gone.
    pub(crate) fn pop(&mut self, key: &[u8], is_left: bool, now: Duration) -> Result<Option<Item>, Failure> {
        let Some(entry) = self.entries.get_mut(key) else { return Ok(None) };
        if entry.is_expired(now) {
            return Ok(None);
        }
        let Content::List(items) = &mut entry.content else { return Err(Failure("value not a list")) };
        let item = if is_left { items.pop_front() } else { items.pop_back() };
        if items.is_empty() {
            self.remove(key);
        } else {
            if let Some(item) = &item {
                let bytes = rounded(item.bytes() + ITEM_BYTES).min(entry.bytes);
                entry.bytes -= bytes;
                self.bytes -= bytes;
            }
            self.touch(key);
        }
        Ok(item)
    }

    /// The length of a list; 0 if it is missing.
    pub(crate) fn length(&self, key: &[u8], now: Duration) -> Result<usize, Failure> {
        match self.entries.get(key) {
            Some(entry) if !entry.is_expired(now) => match &entry.content {
                Content::List(items) => Ok(items.len()),
                Content::Item(_) => Err(Failure("value not a list")),
            },
            _ => Ok(0),
        }
    }

    /// The milliseconds that an entry has left; 0 means forever.
    pub(crate) fn time_left(&self, key: &[u8], now: Duration) -> Option<i64> {
        let entry = self.entries.get(key).filter(|entry| !entry.is_expired(now))?;
        let left = entry.expires.map_or(Duration::ZERO, |expires| expires.saturating_sub(now));
        Some(i64::try_from(left.as_millis()).unwrap_or(i64::MAX))
    }

    /// Sets the time to live; whether there is such an entry.
    pub(crate) fn set_lifetime(&mut self, key: &[u8], lifetime: Option<Duration>, now: Duration) -> bool {
        match self.entries.get_mut(key).filter(|entry| !entry.is_expired(now)) {
            Some(entry) => {
                entry.expires = lifetime.map(|lifetime| now + lifetime);
                true
            }
            None => false,
        }
    }

    /// Lets all entries expire. Their memory is free when it is needed.
    pub(crate) fn flush_all(&mut self) {
        for entry in self.entries.values_mut() {
            entry.expires = Some(Duration::from_millis(1));
        }
    }

    /// Removes expired entries, the oldest first; 0 removes all. Returns their number.
    pub(crate) fn flush_expired(&mut self, now: Duration, most: usize) -> usize {
        let most = if most == 0 { usize::MAX } else { most };
        let is_expired = |key: &&Arc<[u8]>| self.entries.get(*key).is_some_and(|entry| entry.is_expired(now));
        let expired: Vec<Arc<[u8]>> = self.order.values().filter(is_expired).take(most).cloned().collect();
        for key in &expired {
            self.remove(key);
        }
        expired.len()
    }

    /// Keys of entries, the least recently used first.
    pub(crate) fn keys(&self, now: Duration, most: usize) -> Vec<Arc<[u8]>> {
        let is_alive = |key: &&Arc<[u8]>| self.entries.get(*key).is_some_and(|entry| !entry.is_expired(now));
        self.order.values().filter(is_alive).take(most).cloned().collect()
    }
}
