//! Compiled texts of plugin instances, in each worker.

use std::any::Any;
use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;
use std::sync::{Arc, Weak};

/// The identity of an instance of a plugin. When it is dropped, workers forget its values.
#[derive(Debug)]
pub(crate) struct Token(Arc<()>);

impl Token {
    pub(crate) fn new() -> Token {
        Token(Arc::new(()))
    }
}

/// The values of one worker for instances, by their identity.
#[derive(Default)]
pub(crate) struct Loaded {
    entries: RefCell<HashMap<usize, Entry>>,
    /// With this number of entries, entries of dropped instances are removed.
    sweep_at: std::cell::Cell<usize>,
}

struct Entry {
    token: Weak<()>,
    value: Rc<dyn Any>,
}

/// Fewer entries are not searched for dropped instances.
const FEW: usize = 64;

impl Loaded {
    /// The value of an instance; the first call makes it.
    ///
    /// # Errors
    /// Returns the error of `make`.
    pub(crate) fn get<T: 'static>(
        &self,
        token: &Token,
        make: impl FnOnce() -> Result<T, String>,
    ) -> Result<Rc<T>, String> {
        let key = Arc::as_ptr(&token.0).addr();
        let known = self
            .entries
            .borrow()
            .get(&key)
            .filter(|entry| entry.token.strong_count() > 0)
            .map(|entry| Rc::clone(&entry.value));
        if let Some(value) = known.and_then(|value| value.downcast::<T>().ok()) {
            return Ok(value);
        }
        let value = Rc::new(make()?);
        let kept: Rc<dyn Any> = Rc::<T>::clone(&value);
        self.sweep();
        self.entries.borrow_mut().insert(key, Entry { token: Arc::downgrade(&token.0), value: kept });
        Ok(value)
    }

    /// Forgets the values of all instances.
    pub(crate) fn clear(&self) {
        // Dropped after the borrow ends: the end of a value may look for others.
        drop(self.entries.take());
    }

    /// Forgets dropped instances, each time that the number of entries has doubled.
    fn sweep(&self) {
        let mut entries = self.entries.borrow_mut();
        if entries.len() >= self.sweep_at.get().max(FEW) {
            entries.retain(|_, entry| entry.token.strong_count() > 0);
            self.sweep_at.set(entries.len() * 2);
        }
    }
}
