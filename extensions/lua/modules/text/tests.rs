//! Tests of the library of texts: against LuaJIT's own, and against patterns without end.

use std::rc::Rc;

use mlua::{Function, Lua, LuaString, Table};

use crate::engine::Engine;
use crate::snippets::{check, check_ended};

/// A state with LuaJIT's own libraries, and a state of the gateway.
fn both() -> (Lua, Rc<Engine>) {
    (Lua::new(), crate::state::new(&sigma_plugin::Node::default()).unwrap())
}

/// Runs a library on pseudo-random patterns; returns a line for each.
const DUMP: &str = r##"
local seed, count, library = ...
local state = seed
local function random(n)
  state = (state * 16807) % 2147483647
  return state % n + 1
end
local items = {"a", "b", "c", ".", "%a", "%d", "%s", "%w", "%%", "[ab]", "[^a]", "[a-c]", "[%d_]", "[]]", "[^]]",
  "(", ")", "()", "%1", "%2", "%b()", "%bab", "%f[%w]", "%f[^a]", "$", "^", "*", "+", "-", "?", "%g", "%z", "%x", "%p",
  "%U", "[%w-]", "[a-]", "[-a]", "%", "[", "1", " ", "\0", "%f", "%b", "[%]]"}
local bytes = {"a", "b", "c", "ab", "1", " ", "_", "(", ")", "]", "-", "\0", "\255", "A", "%"}
local function text(from, most)
  local made = {}
  for i = 1, random(most) - 1 do made[i] = from[random(#from)] end
  return table.concat(made)
end
local function show(...)
  local shown = {}
  for i = 1, select("#", ...) do
    local value = select(i, ...)
    shown[i] = type(value) .. ":" .. tostring(value):gsub("^[^\n]-:%d+: ", "")
  end
  return table.concat(shown, ",")
end
local result = {}
for i = 1, count do
  local subject, pattern, start = text(bytes, 12), text(items, 7), random(16) - 6
  local pieces = {show(pcall(library.find, subject, pattern, start)), show(pcall(library.match, subject, pattern, start)),
    show(pcall(library.gsub, subject, pattern, text({"x", "%0", "%1", "%%", "%2"}, 4), start > 0 and start or nil)),
    show(pcall(library.gsub, subject, pattern, function(...) return show(...) end)),
    show(pcall(library.gsub, subject, pattern, {a = "A", b = false, ab = 7}))}
  local ok, problem = pcall(function()
    for first, second in library.gmatch(subject, pattern) do pieces[#pieces + 1] = show(first, second) end
  end)
  pieces[#pieces + 1] = show(ok, problem)
  result[i] = string.format("%q %q %d", subject, pattern, start) .. " -> " .. table.concat(pieces, " | ")
end
return result
"##;

#[test]
fn patterns_match_as_in_luajit() {
    let (native, engine) = both();
    let chunk: Function = engine.compile(DUMP).unwrap();
    for seed in [7, 20_261_129] {
        let count = 2000;
        let library: Table = native.globals().get("string").unwrap();
        let expected: Vec<LuaString> = native.load(DUMP).call((seed, count, library)).unwrap();
        let library: mlua::Value = chunk.environment().unwrap().get("string").unwrap();
        let actual: Vec<LuaString> = chunk.call((seed, count, library)).unwrap();
        assert_eq!(expected.len(), actual.len());
        for (expected, actual) in expected.iter().zip(&actual) {
            assert_eq!(actual.to_string_lossy(), expected.to_string_lossy());
        }
    }
}

#[test]
fn searches_end() {
    check_ended(&[
        // Each would take minutes.
        "local s = ('a'):rep(30) ngx.say(s:find(('a?'):rep(30) .. ('a'):rep(31)))",
        "local s = ('a'):rep(3000) ngx.say(s:find(('.*'):rep(5) .. 'b'))",
        "local s = ('a'):rep(3000) s:gsub(('.-'):rep(5) .. 'b', '')",
        "local s = ('('):rep(200000) ngx.say(s:match('%b()'))",
        "while true do pcall(string.find, ('a'):rep(3000), ('.*'):rep(5) .. 'b') end",
    ]);
    check(&[
        (
            "local ok, e = pcall(string.find, ('a'):rep(300), ('a?'):rep(300)) ngx.say(e)",
            "pattern too complex\n",
        ),
        // A plain search is linear.
        ("ngx.say((('a'):rep(200000)):find(('a'):rep(100000) .. 'b', 1, true))", "nil\n"),
    ]);
}

#[test]
fn texts_have_the_functions_as_methods() {
    check(&[
        ("ngx.say(('hello'):find('(h)(e)'))", "12he\n"),
        ("ngx.say(('$a $b'):gsub('%$(%w)', {a = '1', b = false}))", "1 $b2\n"),
        ("ngx.say(('abc'):gsub('%w', function(c) if c == 'b' then return 'X' end end))", "aXc3\n"),
        ("ngx.say(pcall(string.gsub, 'abc', 'b', '%2'))", "falseinvalid capture index\n"),
        ("ngx.say(pcall(string.gsub, 'abc', '(', 'x'))", "truexaxbxcx4\n"),
        (
            "ngx.say(pcall(string.gsub, 'abc', 'a', function() return {} end))",
            "falseinvalid replacement value (a table)\n",
        ),
        (
            "ngx.say(pcall(string.gsub, 'abc', 'a'))",
            "falsebad argument #3 to 'gsub' (string/function/table expected)\n",
        ),
        ("local ok, e = pcall(string.gsub, 'a', 'a', function() error({1}) end) ngx.say(type(e))", "table\n"),
        ("for k, v in ('a=1, b=2'):gmatch('(%w+)=(%w+)') do ngx.print(k, v) end", "a1b2"),
        ("ngx.say(tostring(('abc').upper == string.upper), type(string.gmatch))", "truefunction\n"),
    ]);
}
