//! How long things of a script live: sockets end with the exchange or the timer that made them.

use std::cell::RefCell;
use std::rc::{Rc, Weak};

use mlua::Table;

/// Something that ends with an exchange or a timer.
pub(crate) trait Ends {
    /// Ends it.
    fn end(&self);
}

/// The lifetime of one exchange or timer.
#[derive(Default)]
pub(crate) struct Lifetime(RefCell<Vec<Weak<dyn Ends>>>);

impl Lifetime {
    /// Ends this with the lifetime.
    pub(crate) fn add(&self, thing: &Rc<impl Ends + 'static>) {
        let thing: Weak<dyn Ends> = Rc::downgrade(thing) as Weak<dyn Ends>;
        let mut things = self.0.borrow_mut();
        things.retain(|known| known.strong_count() > 0 && !known.ptr_eq(&thing));
        things.push(thing);
    }
}

impl Drop for Lifetime {
    fn drop(&mut self) {
        self.0.borrow_mut().drain(..).filter_map(|thing| thing.upgrade()).for_each(|thing| thing.end());
    }
}

/// The surroundings of a run without an exchange.
pub(crate) struct Alone {
    pub(crate) lifetime: Rc<Lifetime>,
    /// `ngx.ctx`.
    pub(crate) ngx_ctx: RefCell<Table>,
}
