//! The module `ngx.semaphore`: light threads of a worker wait for each other, across requests.

use std::cell::Cell;
use std::rc::Rc;

use mlua::{AnyUserData, Lua, Table, Value};
use tokio::sync::Semaphore;

use super::sleep::duration_of;
use crate::engine::arguments::{Arguments, failed, one, several};
use crate::engine::host::{Host, Wait};

/// The most resources of a semaphore.
const MOST: usize = 1 << 20;

/// A semaphore, and the number of its waits.
struct Counted {
    resources: Semaphore,
    waits: Cell<i64>,
}

/// A wait under way; dropped when it ends or its thread is killed.
struct Waiting(Rc<Counted>);

impl Drop for Waiting {
    fn drop(&mut self) {
        self.0.waits.set(self.0.waits.get() - 1);
    }
}

/// The members of the module.
pub(super) fn module(lua: &Lua, host: &Rc<Host>) -> mlua::Result<Table> {
    let methods = lua.create_table()?;
    let metatable = lua.create_table()?;
    metatable.raw_set("__index", &methods)?;
    metatable.raw_set("__metatable", false)?;
    host.function(lua, &methods, "post", |_, arguments| {
        let semaphore = semaphore_of(&arguments)?;
        let count = count_of(&arguments, 2, 1)?;
        if semaphore.resources.available_permits() + count > MOST {
            return failed(arguments.lua(), "too many resources");
        }
        semaphore.resources.add_permits(count);
        one(arguments.lua(), true)
    })?;
    host.function(lua, &methods, "count", |_, arguments| {
        let semaphore = semaphore_of(&arguments)?;
        let available = semaphore.resources.available_permits() as i64;
        one(arguments.lua(), available - semaphore.waits.get())
    })?;
    host.waiting_function(lua, &methods, "wait", |_, arguments| {
        let semaphore = semaphore_of(&arguments)?;
        let seconds = arguments.number(2)?;
        if seconds < 0.0 {
            return Err("bad argument #2 to 'wait' (value must be no less than 0)".to_owned());
        }
        if let Ok(resource) = semaphore.resources.try_acquire() {
            resource.forget();
            return one(arguments.lua(), true).map(Wait::Ready);
        }
        if seconds == 0.0 {
            return failed(arguments.lua(), "timeout").map(Wait::Ready);
        }
        semaphore.waits.set(semaphore.waits.get() + 1);
        let (waiting, time) = (Waiting(semaphore), duration_of(seconds * 1000.0));
        let acquired = async move {
            match tokio::time::timeout(time, waiting.0.resources.acquire()).await {
                Ok(Ok(resource)) => {
                    resource.forget();
                    true
                }
                _ => false,
            }
        };
        // As in OpenResty: nil without a wait, false after one.
        Ok(Wait::until(
            acquired,
            |lua, has| if has { one(lua, true) } else { several(lua, (false, "timeout")) },
        ))
    })?;
    let module = lua.create_table()?;
    host.function(lua, &module, "new", move |_, arguments| {
        let resources = Semaphore::new(count_of(&arguments, 1, 0)?);
        let lua = arguments.lua();
        let object = || {
            let object = lua.create_table()?;
            object
                .raw_set(1, lua.create_any_userdata(Rc::new(Counted { resources, waits: Cell::new(0) }))?)?;
            object.set_metatable(Some(metatable.clone()))?;
            Ok(object)
        };
        one(lua, object().map_err(|error: mlua::Error| error.to_string())?)
    })?;
    Ok(module)
}

fn semaphore_of(arguments: &Arguments<'_>) -> Result<Rc<Counted>, String> {
    let wrong = || arguments.wrong(1, "table");
    let Value::Table(object) = arguments.value(1) else { return Err(wrong()) };
    let data: AnyUserData = object.raw_get(1).map_err(|_| wrong())?;
    let semaphore = data.borrow::<Rc<Counted>>().map_err(|_| wrong())?;
    Ok(Rc::clone(&semaphore))
}

fn count_of(arguments: &Arguments<'_>, place: usize, least: usize) -> Result<usize, String> {
    let count = arguments.optional_integer(place)?.unwrap_or(least as i64);
    let count = usize::try_from(count).ok().filter(|count| (least..=MOST).contains(count));
    count.ok_or_else(|| arguments.bad(place, "bad number of resources"))
}

#[cfg(test)]
mod tests {
    use crate::snippets::check;

    #[test]
    fn semaphores() {
        let start = "local s = require('ngx.semaphore').new() ";
        let cases = [
            (
                "local t = ngx.thread.spawn(function() ngx.say(s:wait(5)) ngx.say('first') end) ngx.say(s:count()) \
                 s:post(2) ngx.thread.wait(t) ngx.say(s:count())",
                "-1\ntrue\nfirst\n1\n",
            ),
            ("ngx.say(s:wait(0.001)) ngx.say(s:wait(0)) ngx.say(s:count())", "falsetimeout\nniltimeout\n0\n"),
            (
                "local t = ngx.thread.spawn(function() s:wait(5) end) ngx.thread.kill(t) s:post() ngx.say(s:wait(1), s:count())",
                "true0\n",
            ),
            ("ngx.say((pcall(s.wait, {}, 1)), (pcall(s.post, s, -1)))", "falsefalse\n"),
        ];
        for (body, expected) in cases {
            check(&[(format!("{start}{body}").as_str(), expected)]);
        }
    }
}
