//! The modules of the files in one Lua state.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;

use mlua::{Function, MultiValue, Table, Value};

use super::bundle::Bundle;
use super::reading;
use crate::engine::arguments::{Results, one, type_name};
use crate::engine::host::Host;
use crate::engine::modules::known_module;
use crate::engine::place::ScriptPosition;
use crate::engine::{Engine, Generation, message_of};

/// The modules of one bundle in one Lua state. Each has globals of its own.
pub(crate) struct Library {
    shared: Rc<Shared>,
    /// Plugins whose `init` has run, with its error if it failed.
    begun: RefCell<BTreeMap<Box<str>, Result<(), String>>>,
}

/// The part that `require` uses.
struct Shared {
    bundle: Arc<Bundle>,
    /// None while a module is loaded.
    loaded: RefCell<BTreeMap<Box<str>, Option<Value>>>,
    /// `require` of the files, and what else their globals have.
    additions: Table,
}

impl Library {
    /// The library of a bundle in a state; the first call makes it, and ends the plugins of an older bundle.
    ///
    /// # Errors
    /// Returns an error message if the state has no memory for it.
    pub(crate) fn of(engine: &Rc<Engine>, bundle: &Arc<Bundle>) -> Result<Rc<Library>, String> {
        let mut is_new = false;
        let library = engine.loaded::<Library>(&bundle.token, || {
            is_new = true;
            Library::new(engine, bundle).map_err(|error| message_of(&error))
        })?;
        if is_new && engine.host().worker().is_some() {
            engine.succeed(Rc::<Library>::clone(&library));
        }
        Ok(library)
    }

    fn new(engine: &Engine, bundle: &Arc<Bundle>) -> mlua::Result<Library> {
        let (lua, host) = (engine.lua(), engine.host());
        let additions = lua.create_table()?;
        let shared = Rc::new(Shared {
            bundle: Arc::clone(bundle),
            loaded: RefCell::default(),
            additions: additions.clone(),
        });
        // The state owns the function, and this library with it.
        let weak = Rc::downgrade(&shared);
        host.function(lua, &additions, "require", move |host, arguments| {
            let name = arguments.text(1)?.to_string_lossy();
            if let Some(module) = known_module(arguments.lua(), &name) {
                return one(arguments.lua(), module);
            }
            match weak.upgrade() {
                Some(shared) => shared.require(host, &name),
                None => Err(format!("module '{name}' not found: its version of the files has ended")),
            }
        })?;
        if !bundle.readable.is_empty() {
            let environment = engine.new_environment()?;
            reading::register(engine, environment, &additions, &bundle.readable)?;
        }
        Ok(Library { shared, begun: RefCell::default() })
    }

    /// The table of a module that defines a plugin.
    ///
    /// # Errors
    /// Returns a message with file and line if the module cannot be loaded.
    pub(super) fn module(&self, engine: &Engine, name: &str) -> Result<Table, String> {
        let known = self.shared.loaded.borrow().get(name).cloned().flatten();
        let module = match known {
            Some(module) => module,
            None => {
                let place = self.place(engine, name, "module");
                self.shared.load(engine, name, |chunk| engine.define_with(&place, chunk, name))?
            }
        };
        match module {
            Value::Table(module) => Ok(module),
            other => {
                let path = self.shared.bundle.file(name).map(|file| file.path.display().to_string());
                let path = path.unwrap_or_default();
                Err(format!("{path}: the file returns a {}, not the table of a plugin", type_name(&other)))
            }
        }
    }

    /// Returns the position of a function of a module. It counts for the plugin of the module.
    fn place(&self, engine: &Engine, module: &str, function: &str) -> Rc<ScriptPosition> {
        let plugin = module.rsplit('.').next().unwrap_or_default();
        engine.place(&format!("{plugin} {function}"), &[self.shared.bundle.number])
    }

    /// The same after `init`, which runs once.
    ///
    /// # Errors
    /// Returns the error of the file or of `init`.
    pub(super) fn begun(
        &self,
        engine: &Engine,
        place: &Rc<ScriptPosition>,
        module: &str,
    ) -> Result<Table, String> {
        let table = self.module(engine, module)?;
        let known = self.begun.borrow().get(module).cloned();
        let result = match known {
            Some(result) => result,
            None => {
                // First: a hook that runs within must not begin it again.
                self.begun.borrow_mut().insert(module.into(), Ok(()));
                // Its own position: its result is kept, so no other function may get it refused.
                let place = match &place.plugin {
                    Some(own) => {
                        let text = format!("{} init", own.name);
                        engine.place_in_file(&text, self.shared.bundle.number, &serde_json::Value::Null, own)
                    }
                    None => self.place(engine, module, "init"),
                };
                let result = call_if_present(engine, &place, &table, "init");
                self.begun.borrow_mut().insert(module.into(), result.clone());
                result
            }
        };
        result.map(|()| table).map_err(|error| format!("init of {module}: {error}"))
    }
}

impl Generation for Library {
    fn number(&self) -> u64 {
        self.shared.bundle.number
    }

    // It calls `destroy`.
    fn end(&self, engine: &Engine) {
        for module in std::mem::take(&mut *self.begun.borrow_mut()).into_keys() {
            let place = self.place(engine, &module, "destroy");
            let ended = self
                .module(engine, &module)
                .and_then(|table| call_if_present(engine, &place, &table, "destroy"));
            if let Err(error) = ended {
                tracing::error!("destroy of {module}: a Lua function failed: runtime error: {error}");
            }
        }
    }
}

/// Calls a function of a module without arguments, if the module has it.
fn call_if_present(
    engine: &Engine,
    place: &Rc<ScriptPosition>,
    module: &Table,
    name: &str,
) -> Result<(), String> {
    match module.raw_get::<Value>(name).map_err(|error| message_of(&error))? {
        Value::Function(function) => engine.call_at(place, &function, MultiValue::new()).map(drop),
        _ => Ok(()),
    }
}

impl Shared {
    /// `require` of a script.
    fn require(&self, host: &Host, name: &str) -> Results {
        let Some(engine) = host.engine().upgrade() else { return Err("the worker ended".to_owned()) };
        let known = self.loaded.borrow().get(name).cloned();
        let module = match known {
            Some(Some(module)) => module,
            Some(None) => return Err(format!("loop or previous error loading module '{name}'")),
            None => self
                .load(&engine, name, |chunk| chunk.call::<Value>(name).map_err(|error| message_of(&error)))
                .map_err(|error| format!("error loading module '{name}': {error}"))?,
        };
        one(engine.lua(), module)
    }

    /// Loads a module by running its chunk.
    fn load(
        &self,
        engine: &Engine,
        name: &str,
        run: impl FnOnce(&Function) -> Result<Value, String>,
    ) -> Result<Value, String> {
        let Some(file) = self.bundle.file(name) else {
            return Err(format!("module '{name}' not found: neither the gateway nor `lua.path` has it"));
        };
        self.loaded.borrow_mut().insert(name.into(), None);
        let short = format!("{}.lua", name.replace('.', "/"));
        let made = engine
            .compile_file(&file.text, &short, &self.additions)
            .and_then(|chunk| run(&chunk))
            .map(|value| if value.is_nil() { Value::Boolean(true) } else { value });
        match made {
            Ok(module) => {
                self.loaded.borrow_mut().insert(name.into(), Some(module.clone()));
                Ok(module)
            }
            Err(error) => {
                self.loaded.borrow_mut().remove(name);
                // The first line has the place, and a stack follows.
                let error = error.lines().next().unwrap_or_default();
                let path = file.path.display();
                Err(match error.strip_prefix(&*short) {
                    Some(rest) => format!("{path}{rest}"),
                    None => format!("{path}: {error}"),
                })
            }
        }
    }
}
