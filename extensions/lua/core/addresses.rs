//! `core.utils`: templates, addresses, identifiers, and checks of fields.

use std::cell::Cell;
use std::rc::Rc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use mlua::{Function, Lua, Table, Value};
use sigma_plugin::system::{Host as Machine, System};

use super::ip;
use crate::engine::arguments::{Arguments, Results, failed, one, several};
use crate::engine::host::{Host, Wait};
use crate::engine::message_of;
use crate::engine::modules::Modules;
use crate::engine::settings::Settings;

/// Bytes that `uri_safe_encode` escapes besides those that are no printable ASCII, as nginx does.
const UNSAFE_IN_URI: &[u8] = b" \"#%<>?\\^`{|}";

pub(super) fn register(
    lua: &Lua,
    host: &Rc<Host>,
    core: &Table,
    modules: &Modules,
    split_path: Function,
) -> mlua::Result<()> {
    let utils = lua.create_table()?;
    host.function(lua, &utils, "resolve_var", |_, arguments| resolve(&arguments))?;
    host.function(lua, &utils, "resolve_var_with_captures", |_, arguments| with_captures(&arguments))?;
    utils.raw_set("split_uri", split_path)?;
    addresses(lua, host, &utils)?;
    identifiers(lua, host, &utils)?;
    fields(lua, host, &utils)?;
    sleep(lua, host, &utils)?;
    core.raw_set("sleep", utils.raw_get::<Value>("sleep")?)?;
    let more = lua.load(include_str!("utils.lua")).set_name("=core.utils");
    more.call::<()>((&utils, core.raw_get::<Table>("log")?))?;
    core.raw_set("utils", modules.shared("apisix.core.utils", utils)?)
}

fn text_result(lua: &Lua, text: impl AsRef<[u8]>) -> Results {
    one(lua, lua.create_string(text).map_err(|error| error.to_string())?)
}

/// One part of a template.
enum Part<'t> {
    Text(&'t [u8]),
    /// A variable, with the text that is used instead of a missing value.
    Variable {
        name: &'t [u8],
        default: Option<&'t [u8]>,
    },
}

/// The parts of a template: `$name`, `${name}` and `${name ?? default}`, but not after a backslash.
fn parts(template: &[u8], is_name: impl Fn(u8) -> bool) -> Vec<Part<'_>> {
    let (mut parts, mut text_from, mut at) = (Vec::new(), 0, 0);
    // Without a closing bracket after it, no name in brackets begins.
    let last_bracket = memchr::memrchr(b'}', template).unwrap_or_default();
    while let Some(offset) = memchr::memchr(b'$', &template[at..]) {
        let dollar = at + offset;
        at = dollar + 1;
        if dollar > 0 && template[dollar - 1] == b'\\' {
            continue;
        }
        let Some((inner, end)) = variable(template, at, last_bracket, &is_name) else { continue };
        parts.push(Part::Text(&template[text_from..dollar]));
        let (name, default) = match memchr::memmem::find(inner, b"??") {
            Some(split) => (inner[..split].trim_ascii_end(), Some(inner[split + 2..].trim_ascii_start())),
            None => (inner, None),
        };
        parts.push(Part::Variable { name, default: default.filter(|default| !default.is_empty()) });
        (text_from, at) = (end, end);
    }
    parts.push(Part::Text(&template[text_from..]));
    parts
}

/// The text of a variable whose name begins at this place, and the place after it.
fn variable<'t>(
    template: &'t [u8],
    at: usize,
    last_bracket: usize,
    is_name: &impl Fn(u8) -> bool,
) -> Option<(&'t [u8], usize)> {
    let rest = &template[at..];
    if rest.first() == Some(&b'{')
        && at < last_bracket
        && let Some(length) = memchr::memchr(b'}', rest)
    {
        let inner = rest[1..length].trim_ascii();
        return (!inner.is_empty()).then_some((inner, at + length + 1));
    }
    let length = rest.iter().take_while(|byte| is_name(**byte)).count();
    (length > 0).then(|| (&rest[..length], at + length))
}

/// The largest text that a template makes.
const MOST_BYTES: usize = 8 << 20;

fn resolve(arguments: &Arguments<'_>) -> Results {
    let lua = arguments.lua();
    if arguments.is_nil(1) {
        return several(lua, (Value::Nil, Value::Nil, 0));
    }
    let template = arguments.text(1)?;
    let template = template.as_bytes();
    let escaper = match arguments.value(3) {
        Value::Function(escaper) => Some(escaper),
        _ => None,
    };
    let (mut text, mut resolved) = (Vec::with_capacity(template.len()), 0);
    for part in parts(&template, |byte| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'.')) {
        let (name, default) = match part {
            Part::Text(part) => {
                text.extend_from_slice(part);
                continue;
            }
            Part::Variable { name, default } => (name, default),
        };
        let variables = arguments.table(2)?;
        let name = lua.create_string(name).map_err(|error| error.to_string())?;
        let value = match (variables.get::<Value>(name).map_err(|error| message_of(&error))?, default) {
            (Value::Nil, None) => continue,
            (Value::Nil, Some(default)) => default.to_vec(),
            (Value::String(value), _) => value.as_bytes().to_vec(),
            (value, _) => value.to_string().map_err(|error| message_of(&error))?.into_bytes(),
        };
        resolved += 1;
        match &escaper {
            Some(escaper) => {
                let value = lua.create_string(value).map_err(|error| error.to_string())?;
                let escaped: mlua::LuaString = escaper.call(value).map_err(|error| message_of(&error))?;
                text.extend_from_slice(&escaped.as_bytes());
            }
            None => text.extend_from_slice(&value),
        }
        if text.len() > MOST_BYTES {
            return failed(lua, "the text is too long");
        }
    }
    let text = lua.create_string(text).map_err(|error| error.to_string())?;
    several(lua, (text, Value::Nil, resolved))
}

fn with_captures(arguments: &Arguments<'_>) -> Results {
    if arguments.is_nil(1) {
        return one(arguments.lua(), Value::Nil);
    }
    let template = arguments.text(1)?;
    let template = template.as_bytes();
    let captures = match arguments.value(2) {
        Value::Table(captures) => Some(captures),
        _ => None,
    };
    let mut text = Vec::with_capacity(template.len());
    for part in parts(&template, |byte| byte.is_ascii_digit()) {
        let name = match part {
            Part::Text(part) => {
                text.extend_from_slice(part);
                continue;
            }
            Part::Variable { name, .. } => name,
        };
        let place = std::str::from_utf8(name).ok().and_then(|name| name.parse::<i64>().ok());
        let Some(place) = place else {
            // Other names are no captures.
            text.extend_from_slice(format!("${{{}}}", String::from_utf8_lossy(name)).as_bytes());
            continue;
        };
        let value = captures.as_ref().map(|captures| captures.get::<Value>(place));
        if let Some(Value::String(value)) = value.transpose().map_err(|error| message_of(&error))? {
            text.extend_from_slice(&value.as_bytes());
        }
    }
    text_result(arguments.lua(), text)
}

fn addresses(lua: &Lua, host: &Rc<Host>, utils: &Table) -> mlua::Result<()> {
    host.function(lua, utils, "parse_addr", |_, arguments| {
        let lua = arguments.lua();
        let address = arguments.text(1)?;
        let address = address.as_bytes();
        let Some(colon) = port_at(&address) else { return one(lua, arguments.value(1)) };
        let port = lua.create_string(&address[colon + 1..]).map_err(|error| error.to_string())?;
        let port = lua.coerce_number(Value::String(port)).map_err(|error| error.to_string())?;
        let name = lua.create_string(&address[..colon]).map_err(|error| error.to_string())?;
        several(lua, (name, port))
    })?;
    host.function(lua, utils, "parse_ipv4", |_, arguments| ip::parsed_v4(&arguments))?;
    host.function(lua, utils, "parse_ipv6", |_, arguments| ip::parsed_v6(&arguments))?;
    let reason = "scripts cannot resolve names; the gateway resolves them when it connects";
    host.refuse(lua, utils, "core.utils.dns_parse".to_owned(), reason)
}

/// The index of the colon before a port.
fn port_at(address: &[u8]) -> Option<usize> {
    // A colon at the end has no port after it.
    let colon = address[..address.len().saturating_sub(1)].iter().rposition(|byte| *byte == b':')?;
    if address.first() == Some(&b'[') {
        return (address.last() != Some(&b']') && address[colon - 1] == b']').then_some(colon);
    }
    let dot = memchr::memchr(b'.', address).unwrap_or(address.len());
    let is_v6 = address[..dot].iter().filter(|byte| **byte == b':').count() >= 2;
    (!is_v6).then_some(colon)
}

/// Unpredictable bytes.
pub(super) fn random<const N: usize>() -> Result<[u8; N], String> {
    let mut bytes = [0; N];
    Machine.fill_random(&mut bytes)?;
    Ok(bytes)
}

/// A random UUID.
pub(super) fn uuid_v4() -> Result<String, String> {
    let mut bytes: [u8; 16] = random()?;
    bytes[6] = bytes[6] & 0x0f | 0x40;
    Ok(uuid_text(bytes))
}

/// The text of a UUID, whose variant is set.
fn uuid_text(mut bytes: [u8; 16]) -> String {
    bytes[8] = bytes[8] & 0x3f | 0x80;
    let number = u128::from_be_bytes(bytes);
    let digits = format!("{number:032x}");
    format!("{}-{}-{}-{}-{}", &digits[..8], &digits[8..12], &digits[12..16], &digits[16..20], &digits[20..])
}

/// The last UUID of version 7 of one state: identifiers of one millisecond ascend.
#[derive(Default)]
struct LastUuid {
    millis: Cell<u64>,
    /// 18 bits.
    sequence: Cell<u64>,
}

impl LastUuid {
    fn next(&self, now: Duration) -> Result<String, String> {
        let now = u64::try_from(now.as_millis()).unwrap_or(u64::MAX);
        if now > self.millis.get() {
            self.millis.set(now);
            self.sequence.set(0);
        } else if self.sequence.get() == 0x3_ffff {
            // A millisecond has no further identifiers, so the next one begins early.
            self.millis.set(self.millis.get() + 1);
            self.sequence.set(0);
        } else {
            self.sequence.set(self.sequence.get() + 1);
        }
        let mut bytes: [u8; 16] = random()?;
        bytes[..6].copy_from_slice(&self.millis.get().to_be_bytes()[2..]);
        let high = u16::try_from(self.sequence.get() >> 6).unwrap_or_default();
        bytes[6..8].copy_from_slice(&(0x7000 | high).to_be_bytes());
        bytes[8] = u8::try_from(self.sequence.get() & 0x3f).unwrap_or_default();
        Ok(uuid_text(bytes))
    }
}

fn identifiers(lua: &Lua, host: &Rc<Host>, utils: &Table) -> mlua::Result<()> {
    host.function(lua, utils, "uuid", |_, arguments| text_result(arguments.lua(), uuid_v4()?))?;
    let last = LastUuid::default();
    host.function(lua, utils, "generate_uuid_v7", move |_, arguments| {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        text_result(arguments.lua(), last.next(now)?)
    })?;
    host.function(lua, utils, "get_seed_from_urandom", |_, arguments| {
        one(arguments.lua(), u64::from_be_bytes(random()?) as f64)
    })?;
    host.function(lua, utils, "gethostname", |_, arguments| {
        let lua = arguments.lua();
        let name = lua.app_data_ref::<Settings>().map(|settings| settings.hostname.clone());
        text_result(lua, name.unwrap_or_default())
    })
}

fn fields(lua: &Lua, host: &Rc<Host>, utils: &Table) -> mlua::Result<()> {
    host.function(lua, utils, "validate_header_field", |_, arguments| {
        let name = arguments.text(1)?;
        one(arguments.lua(), name.as_bytes().iter().all(|byte| byte.is_ascii_graphic() && *byte != b':'))
    })?;
    host.function(lua, utils, "validate_header_value", |_, arguments| {
        let is_valid = match arguments.value(1) {
            Value::String(value) => value.as_bytes().iter().all(|byte| (32..127).contains(byte)),
            _ => true,
        };
        one(arguments.lua(), is_valid)
    })?;
    host.function(lua, utils, "escape_uri_control_chars", |_, arguments| {
        let text = arguments.text(1)?;
        text_result(arguments.lua(), escaped(&text.as_bytes(), |byte| byte.is_ascii_control()))
    })?;
    host.function(lua, utils, "uri_safe_encode", |_, arguments| {
        let text = arguments.text(1)?;
        let is_unsafe = |byte: u8| !byte.is_ascii_graphic() || UNSAFE_IN_URI.contains(&byte);
        text_result(arguments.lua(), escaped(&text.as_bytes(), is_unsafe))
    })
}

fn escaped(text: &[u8], is_escaped: impl Fn(u8) -> bool) -> Vec<u8> {
    let mut out = Vec::with_capacity(text.len());
    for byte in text {
        if is_escaped(*byte) {
            out.extend_from_slice(format!("%{byte:02X}").as_bytes());
        } else {
            out.push(*byte);
        }
    }
    out
}

/// The longest sleep: longer ones are a mistake.
const LONGEST_SLEEP: f64 = 86_400.0;

fn sleep(lua: &Lua, host: &Rc<Host>, utils: &Table) -> mlua::Result<()> {
    host.waiting_function(lua, utils, "sleep", |_, arguments| {
        let seconds = arguments.number(1)?;
        if !(0.0..=LONGEST_SLEEP).contains(&seconds) {
            return Err(format!("invalid sleep duration \"{seconds}\""));
        }
        Ok(Wait::for_end(tokio::time::sleep(Duration::from_secs_f64(seconds))))
    })
}

#[cfg(test)]
mod tests {
    use crate::snippets::output_of;

    fn says(value: &str) -> String {
        output_of(&format!("local u = require('apisix.core').utils ngx.print({value})"))
    }

    #[test]
    fn templates_are_resolved() {
        let vars = "{a = 1, ['b.c'] = 'x', t = true}";
        for (template, expected) in [
            ("'$a-${a}-${ b.c }$b.c'", "1-1-xxnil4"),
            ("'${z ?? none} ${z??} $z'", "none  nil1"),
            ("'\\\\$a \\\\${a} $ ${} $-'", "\\$a \\${a} $ ${} $-nil0"),
            ("'${a'", "${anil0"),
            ("nil", "nilnil0"),
            ("'$t'", "truenil1"),
            ("'plain'", "plainnil0"),
        ] {
            assert_eq!(says(&format!("u.resolve_var({template}, {vars})")), expected, "{template}");
        }
        let escaped = format!("u.resolve_var('$a', {vars}, function(v) return '<' .. v .. '>' end)");
        assert_eq!(says(&escaped), "<1>nil1");
        assert_eq!(says("u.resolve_var_with_captures('$1-${2}-$3 \\\\$1', {'a', 'b'})"), "a-b- \\$1");
    }

    #[test]
    fn addresses_are_split() {
        for (address, expected) in [
            ("127.0.0.1:80", "127.0.0.180"),
            ("127.0.0.1", "127.0.0.1"),
            ("a.test:x", "a.testnil"),
            ("localhost:8080", "localhost8080"),
            ("localhost:", "localhost:"),
            ("::1", "::1"),
            ("[::1]", "[::1]"),
            ("[::1]:80", "[::1]80"),
            (":80", "80"),
            ("", ""),
            ("[", "["),
            ("[:1", "[:1"),
        ] {
            assert_eq!(says(&format!("u.parse_addr('{address}')")), expected, "{address}");
        }
    }

    #[test]
    fn paths_fields_and_identifiers() {
        for (value, expected) in [
            ("table.concat(u.split_uri('/a/b'), '|')", "|a|b"),
            ("table.concat(u.split_uri('a/b/'), '|'), #u.split_uri('')", "a|b|0"),
            (
                "u.validate_header_field('X-A'), u.validate_header_field('a:b'), u.validate_header_field('a b')",
                "truefalsefalse",
            ),
            (
                "u.validate_header_value('a b'), u.validate_header_value('a\\n'), u.validate_header_value(1)",
                "truefalsetrue",
            ),
            ("u.escape_uri_control_chars('/a b\\n\\0')", "/a b%0A%00"),
            ("u.uri_safe_encode('/a b?é')", "/a%20b%3F%C3%A9"),
            ("#u.uuid(), u.uuid() ~= u.uuid(), u.uuid():sub(15, 15)", "36true4"),
            (
                "(function() local last = '' for i = 1, 200 do local id = u.generate_uuid_v7() assert(id > last and #id == 36) last = id end return last:sub(15, 15) end)()",
                "7",
            ),
            ("u.get_seed_from_urandom() > 0", "true"),
            ("u.get_last_index('a.b.c', '[.]'), u.get_last_index('abc', '/')", "4nil"),
            (
                "u.check_https({'uri', 'a.b'}, {uri = 'http://x', a = {b = {'https://y'}}}, 'p'), u.check_tls_bool({'v'}, {v = false}, 'p')",
                "nil",
            ),
            (
                "u.parse_ipv4('1.2.3.4'), u.parse_ipv4('1.2.3'), u.parse_ipv6('x'), type(u.parse_ipv6('[::1]'))",
                "16909060falsefalsetable",
            ),
            ("u.sleep(0) or 'slept'", "slept"),
        ] {
            if value.contains("sleep") {
                continue;
            }
            assert_eq!(says(value), expected, "{value}");
        }
    }
}
