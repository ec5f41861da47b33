//! Patterns of PCRE: `ngx.re` and the module of that name.

mod pattern;
mod template;

use std::cell::RefCell;
use std::rc::Rc;

use mlua::{Function, Lua, MultiValue, Table, Value};
use pcre2::bytes::CaptureLocations;

use self::pattern::{Cache, Failure, Pattern};
use self::template::Template;
use super::codec::{any_text, bytes};
use crate::engine::arguments::{Arguments, Results, failed, one, several, type_name};
use crate::engine::host::Host;
use crate::engine::modules::Modules;
use crate::engine::sandbox::check_own;

/// The longest text that a replacement makes.
const MOST_BYTES: usize = 16 << 20;

/// The compiled patterns of a worker.
type Patterns = Rc<RefCell<Cache>>;

pub(super) fn register(lua: &Lua, host: &Rc<Host>, ngx: &Table, modules: &Modules) -> mlua::Result<()> {
    let patterns: Patterns = Rc::default();
    let re = lua.create_table()?;
    let known = Rc::clone(&patterns);
    host.function(lua, &re, "match", move |host, arguments| matched(host, &known, &arguments))?;
    let known = Rc::clone(&patterns);
    host.function(lua, &re, "find", move |host, arguments| found(host, &known, &arguments))?;
    let known = Rc::clone(&patterns);
    let compile = host.raw(lua, "compile", move |_, arguments| match pattern(&known, &arguments, 1)? {
        Ok(_) => one(arguments.lua(), Value::Nil),
        Err(Failure(problem)) => one(arguments.lua(), problem),
    })?;
    let known = Rc::clone(&patterns);
    let step = host.raw(lua, "step", move |host, arguments| step(host, &known, &arguments))?;
    let replace = host.raw(lua, "gsub", move |host, arguments| replaced(host, &patterns, &arguments))?;
    let module = lua.create_table()?;
    let text = lua.load(include_str!("re.lua")).set_name("=ngx.re");
    text.into_function()?.call::<()>((&re, &module, compile, step, replace, text_of(lua, host)?))?;
    ngx.raw_set("re", modules.readonly(re, "ngx.re")?)?;
    modules.add("ngx.re", module)
}

/// `tostring`, as the functions of the gateway use it.
fn text_of(lua: &Lua, host: &Rc<Host>) -> mlua::Result<Function> {
    host.raw(lua, "tostring", |_, arguments| {
        bytes(arguments.lua(), &any_text(arguments.lua(), &arguments.value(1))?)
    })
}

/// The pattern and the flags at these places of the arguments.
fn pattern(
    patterns: &Patterns,
    arguments: &Arguments<'_>,
    place: usize,
) -> Result<Result<Rc<Pattern>, Failure>, String> {
    let text = arguments.text(place)?;
    let flags = match arguments.value(place + 1) {
        Value::Nil | Value::Boolean(false) => None,
        _ => Some(arguments.text(place + 1)?),
    };
    let flags = flags.map(|flags| flags.as_bytes().to_vec()).unwrap_or_default();
    patterns.borrow_mut().get(&text.as_bytes(), &flags)
}

/// `ctx` of a call: the place where the search begins, and where it ended.
struct Search {
    ctx: Option<Table>,
    from: usize,
}

impl Search {
    fn of(arguments: &Arguments<'_>, place: usize) -> Result<Search, String> {
        let ctx = match arguments.value(place) {
            Value::Nil | Value::Boolean(false) => return Ok(Search { ctx: None, from: 0 }),
            Value::Table(ctx) => ctx,
            _ => return Err(arguments.wrong(place, "table")),
        };
        check_own(arguments.lua(), &ctx)?;
        let from = match ctx.raw_get::<Value>("pos").map_err(|error| error.to_string())? {
            Value::Nil => 0,
            // Places below 1 mean the beginning.
            Value::Integer(place) => usize::try_from(place - 1).unwrap_or(0),
            Value::Number(place) => (place - 1.0).max(0.0) as usize,
            value => return Err(format!("attempt to compare {} with number", type_name(&value))),
        };
        Ok(Search { ctx: Some(ctx), from })
    }

    fn set(&self, end: usize) -> Result<(), String> {
        match &self.ctx {
            Some(ctx) => ctx.raw_set("pos", end + 1).map_err(|error| error.to_string()),
            None => Ok(()),
        }
    }
}

/// `ngx.re.match`.
fn matched(host: &Host, patterns: &Patterns, arguments: &Arguments<'_>) -> Results {
    let lua = arguments.lua();
    let subject = any_text(lua, &arguments.value(1))?;
    let pattern = match pattern(patterns, arguments, 2)? {
        Ok(pattern) => pattern,
        Err(Failure(problem)) => return failed(lua, problem),
    };
    let search = Search::of(arguments, 4)?;
    let captures = match pattern.run(host, &subject, search.from)? {
        Ok(Some(captures)) => captures,
        Ok(None) => return one(lua, Value::Nil),
        Err(Failure(problem)) => return failed(lua, problem),
    };
    search.set(captures.get(0).map_or(0, |whole| whole.1))?;
    let result = match arguments.value(5) {
        Value::Table(result) => {
            check_own(lua, &result)?;
            result
        }
        _ => lua.create_table().map_err(|error| error.to_string())?,
    };
    fill(lua, &pattern, &captures, &subject, &result).map_err(|error| error.to_string())?;
    one(lua, result)
}

/// `ngx.re.find`.
fn found(host: &Host, patterns: &Patterns, arguments: &Arguments<'_>) -> Results {
    let lua = arguments.lua();
    let subject = any_text(lua, &arguments.value(1))?;
    let pattern = match pattern(patterns, arguments, 2)? {
        Ok(pattern) => pattern,
        Err(Failure(problem)) => return several(lua, (Value::Nil, Value::Nil, problem)),
    };
    let search = Search::of(arguments, 4)?;
    let captures = match pattern.run(host, &subject, search.from)? {
        Ok(Some(captures)) => captures,
        Ok(None) => return one(lua, Value::Nil),
        Err(Failure(problem)) => return several(lua, (Value::Nil, Value::Nil, problem)),
    };
    search.set(captures.get(0).map_or(0, |whole| whole.1))?;
    let group = usize::try_from(arguments.optional_integer(5)?.unwrap_or_default()).unwrap_or_default();
    if group > pattern.groups() {
        return several(lua, (Value::Nil, Value::Nil, "nth out of bound"));
    }
    match captures.get(group) {
        Some((from, to)) => several(lua, (from + 1, to)),
        None => several(lua, (Value::Nil, Value::Nil)),
    }
}

/// One search of the functions in `re.lua`: subject, pattern, flags, the bytes before the search, and whether all captures
/// are wanted. Returns nil; or nil and an error; or from, to and the captures.
fn step(host: &Host, patterns: &Patterns, arguments: &Arguments<'_>) -> Results {
    let lua = arguments.lua();
    let subject = arguments.text(1)?;
    let subject = subject.as_bytes();
    let pattern = match pattern(patterns, arguments, 2)? {
        Ok(pattern) => pattern,
        Err(Failure(problem)) => return failed(lua, problem),
    };
    let from = usize::try_from(arguments.integer(4)?).unwrap_or_default();
    let captures = match pattern.run(host, &subject, from)? {
        Ok(Some(captures)) => captures,
        Ok(None) => return one(lua, Value::Nil),
        Err(Failure(problem)) => return failed(lua, problem),
    };
    let (from, to) = captures.get(0).unwrap_or_default();
    let next = if from == to { pattern.after(&subject, to) } else { to };
    let made = || -> mlua::Result<Value> {
        if arguments.is_true(5) {
            let result = lua.create_table()?;
            fill(lua, &pattern, &captures, &subject, &result)?;
            return Ok(Value::Table(result));
        }
        match captures.get(1) {
            Some((from, to)) if pattern.groups() > 0 => {
                lua.create_string(&subject[from..to]).map(Value::String)
            }
            _ => Ok(Value::Nil),
        }
    };
    several(lua, (from, to, made().map_err(|error| error.to_string())?, next))
}

/// Puts the captures into a table. Other members of the table stay.
fn fill(
    lua: &Lua,
    pattern: &Pattern,
    captures: &CaptureLocations,
    subject: &[u8],
    result: &Table,
) -> mlua::Result<()> {
    let text = |group: usize| -> mlua::Result<Value> {
        match captures.get(group) {
            Some((from, to)) => lua.create_string(&subject[from..to]).map(Value::String),
            None => Ok(Value::Boolean(false)),
        }
    };
    for group in 0..=pattern.groups() {
        result.raw_set(group, text(group)?)?;
    }
    for (group, name) in pattern.names() {
        let value = text(group)?;
        if !pattern.repeats_names() {
            result.raw_set(name, value)?;
            continue;
        }
        if value.is_string() {
            match result.raw_get::<Value>(name)? {
                Value::Table(values) => values.raw_push(value)?,
                _ => result.raw_set(name, lua.create_sequence_from([value])?)?,
            }
        }
    }
    Ok(())
}

/// `ngx.re.sub` and `gsub` with a text as replacement: subject, pattern, replacement, flags, and whether all matches are
/// replaced.
fn replaced(host: &Host, patterns: &Patterns, arguments: &Arguments<'_>) -> Results {
    let lua = arguments.lua();
    let problem = |problem: &str| several(lua, (Value::Nil, Value::Nil, problem));
    let subject = any_text(lua, &arguments.value(1))?;
    let replacement = any_text(lua, &arguments.value(3))?;
    let order = MultiValue::from_iter([arguments.value(2), arguments.value(4)]);
    let pattern = match pattern(patterns, &Arguments::new(lua, "gsub", order), 1)? {
        Ok(pattern) => pattern,
        Err(Failure(text)) => return problem(&text),
    };
    let Some(template) = Template::parse(&replacement) else {
        return problem("failed to compile the replacement template");
    };
    let is_global = arguments.is_true(5);
    let (mut result, mut count, mut copied, mut from) = (Vec::new(), 0_u64, 0, 0);
    while from <= subject.len() {
        let captures = match pattern.run(host, &subject, from)? {
            Ok(Some(captures)) => captures,
            Ok(None) => break,
            Err(Failure(text)) => return problem(&text),
        };
        let (start, end) = captures.get(0).unwrap_or_default();
        count += 1;
        // A look-behind with \K may begin before the last match.
        result.extend_from_slice(subject.get(copied..start).unwrap_or_default());
        template.write(&captures, &subject, &mut result);
        if result.len() > MOST_BYTES {
            return Err(format!("the result is longer than {MOST_BYTES} bytes"));
        }
        copied = end.max(copied);
        from = if start >= end { pattern.after(&subject, end) } else { end };
        if !is_global {
            break;
        }
    }
    result.extend_from_slice(&subject[copied..]);
    several(lua, (lua.create_string(result).map_err(|error| error.to_string())?, count))
}

#[cfg(test)]
mod tests;
