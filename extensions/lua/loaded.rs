//! What workers keep of instances, and the state that checks texts.

use std::any::Any;
use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;
use std::sync::{Arc, Weak};

use sigma_plugin::Node;

use crate::engine::Engine;

/// Uses the state of the worker of this thread; on other threads, the one that checks texts.
///
/// # Errors
/// Returns the error of `run`, or a message if there is no state.
pub(crate) fn here<R>(run: impl FnOnce(&Rc<Engine>) -> Result<R, String>) -> Result<R, String> {
    match HERE.with_borrow(Clone::clone) {
        Some(engine) => run(&engine),
        None => with_checker(run),
    }
}

/// Notes the state of the worker of this thread.
pub(crate) fn set_here(engine: &Rc<Engine>) {
    HERE.set(Some(Rc::clone(engine)));
}

/// The identity of an instance of a plugin. When it is dropped, workers forget what they keep for it.
#[derive(Debug)]
pub(crate) struct Token(Arc<()>);

impl Token {
    pub(crate) fn new() -> Token {
        Token(Arc::new(()))
    }
}

/// What one worker keeps for instances, by their identity.
#[derive(Default)]
pub(crate) struct Loaded {
    entries: RefCell<HashMap<usize, Entry>>,
    /// The number of entries at which those of dropped instances are looked for.
    sweep_at: std::cell::Cell<usize>,
}

struct Entry {
    token: Weak<()>,
    value: Rc<dyn Any>,
}

/// The fewest entries among which dropped ones are looked for.
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

    /// Forgets dropped instances, each time that the number of entries has doubled.
    fn sweep(&self) {
        let mut entries = self.entries.borrow_mut();
        if entries.len() >= self.sweep_at.get().max(FEW) {
            entries.retain(|_, entry| entry.token.strong_count() > 0);
            self.sweep_at.set(entries.len() * 2);
        }
    }
}

thread_local! {
    /// The state of the worker of this thread.
    static HERE: RefCell<Option<Rc<Engine>>> = const { RefCell::new(None) };
    /// The state that checks texts on this thread; made anew after an error.
    static CHECKER: RefCell<Option<Rc<Engine>>> = const { RefCell::new(None) };
}

/// Uses the state of this thread that checks texts.
///
/// # Errors
/// Returns the error of `check`, or a message if there is no state.
pub(crate) fn with_checker<R>(check: impl FnOnce(&Rc<Engine>) -> Result<R, String>) -> Result<R, String> {
    let known = CHECKER.with_borrow(Clone::clone);
    let engine = match known {
        Some(engine) => engine,
        None => {
            let engine = Engine::made(&Node::default())?;
            CHECKER.set(Some(Rc::clone(&engine)));
            engine
        }
    };
    check(&engine)
}
