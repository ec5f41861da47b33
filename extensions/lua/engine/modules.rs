//! The modules that scripts require, by name.

use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap};
use std::rc::Rc;

use mlua::{Function, Lua, Table, Value};

use super::arguments::one;
use super::host::Host;

/// The modules of one state, by name.
pub(crate) struct Modules {
    known: Rc<RefCell<HashMap<String, Value>>>,
    /// `readonly` of the prelude.
    pub(crate) readonly: Function,
}

impl Modules {
    pub(crate) fn new(gateway: &Table) -> mlua::Result<Rc<Modules>> {
        Ok(Rc::new(Modules { known: Rc::default(), readonly: gateway.get("readonly")? }))
    }

    /// A table that scripts can read and not change.
    pub(crate) fn readonly(&self, table: Table, name: &str) -> mlua::Result<Value> {
        self.readonly.call((table, name))
    }

    /// Adds a module: a table that scripts can read and not change.
    pub(crate) fn add(&self, name: &str, module: Table) -> mlua::Result<()> {
        let module = self.readonly(module, name)?;
        self.known.borrow_mut().insert(name.to_owned(), module);
        Ok(())
    }

    /// Adds a module that is also a member of another one; returns it as scripts see it.
    pub(crate) fn shared(&self, name: &str, module: Table) -> mlua::Result<Value> {
        self.add(name, module)?;
        Ok(self.known.borrow().get(name).cloned().unwrap_or(Value::Nil))
    }

    /// A module; nil if it is not known.
    pub(crate) fn get(&self, name: &str) -> Value {
        self.known.borrow().get(name).cloned().unwrap_or(Value::Nil)
    }

    /// Adds a value as a module, unchanged.
    pub(crate) fn add_value(&self, name: &str, module: impl Into<Value>) {
        self.known.borrow_mut().insert(name.to_owned(), module.into());
    }

    /// Registers `require`.
    pub(crate) fn register(&self, lua: &Lua, host: &Rc<Host>, base: &Table) -> mlua::Result<()> {
        lua.set_app_data(StateModules(Rc::clone(&self.known)));
        for name in ["bit", "coroutine", "math", "os", "string", "table"] {
            self.add_value(name, base.raw_get::<Value>(name)?);
        }
        let known = Rc::clone(&self.known);
        host.function(lua, base, "require", move |_, arguments| {
            let name = arguments.text(1)?.to_string_lossy();
            match known.borrow().get(&name) {
                Some(module) => one(arguments.lua(), module),
                None => Err(format!("module '{name}' not found: this gateway has no such module")),
            }
        })
    }
}

/// The modules of a state, for files of plugins.
struct StateModules(Rc<RefCell<HashMap<String, Value>>>);

/// The modules of the gateway in a state, by name.
pub(crate) fn known_modules(lua: &Lua) -> BTreeMap<String, Value> {
    let Some(known) = lua.app_data_ref::<StateModules>() else { return BTreeMap::new() };
    known.0.borrow().iter().map(|(name, module)| (name.clone(), module.clone())).collect()
}

/// A module of the gateway in a state; None if there is no such module.
pub(crate) fn known_module(lua: &Lua, name: &str) -> Option<Value> {
    lua.app_data_ref::<StateModules>()?.0.borrow().get(name).cloned()
}
