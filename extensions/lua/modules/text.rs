//! The library of texts: its searches have a limit of steps, unlike LuaJIT's own.

mod matcher;

use std::ops::Range;
use std::rc::Rc;

use mlua::{Lua, MultiValue, Table, Value};

use crate::engine::arguments::{Arguments, Results, several};
use crate::engine::host::Host;
use matcher::{Captured, Matcher};

/// The longest text that a replacement makes.
const MOST_BYTES: usize = 32 << 20;

/// Replaces functions of `string` in the libraries of scripts.
pub(crate) fn register(lua: &Lua, host: &Rc<Host>, libraries: &Table) -> mlua::Result<()> {
    let text: Table = libraries.raw_get("string")?;
    host.function(lua, &text, "find", |host, arguments| search(host, &arguments, true))?;
    host.function(lua, &text, "match", |host, arguments| search(host, &arguments, false))?;
    let step = host.raw(lua, "gsub", |host, arguments| step(host, &arguments))?;
    let replace = host.raw(lua, "gsub", |host, arguments| replaced(host, &arguments))?;
    let check = host.raw(lua, "gsub", |_, arguments| {
        let (subject, pattern) = (arguments.text(1)?, arguments.text(2)?);
        let most = arguments.optional_number(3)?.unwrap_or(f64::INFINITY);
        several(arguments.lua(), (subject, pattern, most))
    })?;
    let prelude = lua.load(include_str!("text/text.lua")).set_name("=string");
    prelude.into_function()?.call::<()>((text, step, replace, check))
}

/// Whether a pattern has anything else than a text to look for.
fn has_pattern(pattern: &[u8]) -> bool {
    pattern.iter().any(|byte| b"^$*+?.([%-".contains(byte))
}

/// `string.find` and `string.match`.
fn search(host: &Host, arguments: &Arguments<'_>, is_find: bool) -> Results {
    let lua = arguments.lua();
    let (subject, pattern) = (arguments.text(1)?, arguments.text(2)?);
    let (subject, pattern) = (subject.as_bytes(), pattern.as_bytes());
    let start = arguments.optional_integer(3)?.unwrap_or(1);
    let length = i64::try_from(subject.len()).unwrap_or(i64::MAX);
    let start = if start < 0 { start.saturating_add(length) } else { start - 1 };
    let start = usize::try_from(start.clamp(0, length)).unwrap_or_default();
    if is_find && (arguments.is_true(4) || !has_pattern(&pattern)) {
        let place = memchr::memmem::find(&subject[start..], &pattern);
        return match place {
            Some(place) => several(lua, (start + place + 1, start + place + pattern.len())),
            None => several(lua, Value::Nil),
        };
    }
    let is_anchored = pattern.first() == Some(&b'^');
    let mut matcher = Matcher::new(host, &subject, &pattern);
    let Some((from, to)) = matcher.find(start, is_anchored, usize::from(is_anchored))? else {
        return several(lua, Value::Nil);
    };
    let mut results = captures(lua, &matcher, &subject, from..to, matcher.count(!is_find))?;
    if is_find {
        results.push_front(number(to));
        results.push_front(number(from + 1));
    }
    Ok(results)
}

fn number(place: usize) -> Value {
    Value::Integer(i64::try_from(place).unwrap_or(i64::MAX))
}

/// The first captures of the last match, which is at these bytes.
fn captures(lua: &Lua, matcher: &Matcher<'_>, subject: &[u8], whole: Range<usize>, count: usize) -> Results {
    (0..count)
        .map(|index| match matcher.capture(index, whole.start, whole.end)? {
            Captured::Position(place) => Ok(number(place)),
            Captured::Text { from, to } => {
                let text = lua.create_string(&subject[from..to]).map_err(|error| error.to_string())?;
                Ok(Value::String(text))
            }
        })
        .collect()
}

/// One search of the functions in `text.lua`: subject, pattern, the bytes before the search, whether `^` anchors, and
/// whether the first capture is enough.
fn step(host: &Host, arguments: &Arguments<'_>) -> Results {
    let (subject, pattern) = (arguments.text(1)?, arguments.text(2)?);
    let (subject, pattern) = (subject.as_bytes(), pattern.as_bytes());
    let place = usize::try_from(arguments.integer(3)?).unwrap_or_default();
    let is_anchored = arguments.is_true(4) && pattern.first() == Some(&b'^');
    let mut matcher = Matcher::new(host, &subject, &pattern);
    let Some((from, to)) = matcher.find(place, is_anchored, usize::from(is_anchored))? else {
        return Ok(MultiValue::new());
    };
    let count = if arguments.is_true(5) { 1 } else { matcher.count(true) };
    let mut results = captures(arguments.lua(), &matcher, &subject, from..to, count)?;
    results.push_front(number(to));
    results.push_front(number(from));
    Ok(results)
}

/// `string.gsub` with a text as replacement.
fn replaced(host: &Host, arguments: &Arguments<'_>) -> Results {
    let (subject, pattern) = (arguments.text(1)?, arguments.text(2)?);
    let (subject, pattern) = (subject.as_bytes(), pattern.as_bytes());
    let most = arguments.optional_number(4)?.unwrap_or(f64::INFINITY);
    let (Value::String(_) | Value::Integer(_) | Value::Number(_)) = arguments.value(3) else {
        return Err(arguments.bad(3, "string/function/table expected"));
    };
    let replacement = arguments.text(3)?;
    let replacement = replacement.as_bytes();
    let is_anchored = pattern.first() == Some(&b'^');
    let mut matcher = Matcher::new(host, &subject, &pattern);
    let (mut result, mut count, mut copied, mut place) = (Vec::new(), 0_u64, 0, 0);
    while (count as f64) < most && place <= subject.len() {
        if count.is_multiple_of(1024) && count > 0 {
            host.check_time()?;
        }
        let Some((from, to)) = matcher.find(place, is_anchored, usize::from(is_anchored))? else { break };
        count += 1;
        result.extend_from_slice(&subject[copied..from]);
        add(&matcher, &replacement, &subject, from, to, &mut result)?;
        if result.len() > MOST_BYTES {
            return Err("not enough memory".to_owned());
        }
        copied = to;
        place = if from == to { to + 1 } else { to };
        if is_anchored {
            break;
        }
    }
    result.extend_from_slice(&subject[copied..]);
    let result = arguments.lua().create_string(result).map_err(|error| error.to_string())?;
    several(arguments.lua(), (result, count))
}

/// Appends a replacement, in which `%0` to `%9` are captures.
fn add(
    matcher: &Matcher<'_>,
    replacement: &[u8],
    subject: &[u8],
    from: usize,
    to: usize,
    result: &mut Vec<u8>,
) -> Result<(), String> {
    let mut bytes = replacement.iter().copied();
    while let Some(byte) = bytes.next() {
        if byte != b'%' {
            result.push(byte);
            continue;
        }
        match bytes.next().unwrap_or_default() {
            b'0' => result.extend_from_slice(&subject[from..to]),
            digit @ b'1'..=b'9' => match matcher.capture(usize::from(digit - b'1'), from, to)? {
                Captured::Position(place) => result.extend_from_slice(place.to_string().as_bytes()),
                Captured::Text { from, to } => result.extend_from_slice(&subject[from..to]),
            },
            other => result.push(other),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests;
