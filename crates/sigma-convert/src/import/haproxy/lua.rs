//! Lua for rules that no plugin can say: helpers, texts and whole functions.

pub(super) use super::super::words::lua_text as text;

/// Helpers by name: a function is written only if the code uses it.
const HELPERS: [(&str, &str); 19] = [
    ("header", "local function header(name)
  local value = ngx.header[name]
  if type(value) == \"table\" then value = table.concat(value, \", \") end
  return value
end
"),
    ("argument", "local function argument(name)
  local value = ngx.req.get_uri_args()[name]
  if type(value) == \"table\" then value = value[1] end
  if value == true then value = nil end
  return value
end
"),
    (
        "last",
        "local function last(text)
  if not text then return nil end
  return (string.match(text, \"([^,]-)%s*$\"):gsub(\"^%s+\", \"\"))
end
",
    ),
    ("lower", "local function lower(text) return text and string.lower(text) end\n"),
    ("upper", "local function upper(text) return text and string.upper(text) end\n"),
    ("length", "local function length(text) return text and #text end\n"),
    ("field", "local function field(text, number, separators)
  if not text then return nil end
  local list = {}
  local start = 1
  for at = 1, #text do
    if string.find(separators, string.sub(text, at, at), 1, true) then
      list[#list + 1] = string.sub(text, start, at - 1)
      start = at + 1
    end
  end
  list[#list + 1] = string.sub(text, start)
  if number < 0 then number = #list + number + 1 end
  return list[number]
end
"),
    ("word", "local function word(text, number, separators)
  if not text then return nil end
  local list = {}
  local start = 1
  for at = 1, #text + 1 do
    if at > #text or string.find(separators, string.sub(text, at, at), 1, true) then
      if at > start then list[#list + 1] = string.sub(text, start, at - 1) end
      start = at + 1
    end
  end
  if number < 0 then number = #list + number + 1 end
  return list[number]
end
"),
    ("replace", "local function replace(text, how, regex, by, flags)
  return text and (ngx.re[how](text, regex, by, flags)) or text
end
"),
    ("base64", "local function base64(text) return text and ngx.encode_base64(text) end\n"),
    ("unbase64", "local function unbase64(text) return text and ngx.decode_base64(text) end\n"),
    ("unescape", "local function unescape(text) return text and ngx.unescape_uri(text) end\n"),
    ("escape", "local function escape(text) return text and ngx.escape_uri(text) end\n"),
    ("trim_left", "local function trim_left(text, set)
  while text and #text > 0 and string.find(set, string.sub(text, 1, 1), 1, true) do text = string.sub(text, 2) end
  return text
end
"),
    ("trim_right", "local function trim_right(text, set)
  while text and #text > 0 and string.find(set, string.sub(text, -1), 1, true) do text = string.sub(text, 1, -2) end
  return text
end
"),
    ("bytes", "local function bytes(text, first, count)
  return text and string.sub(text, first + 1, count and first + count or nil)
end
"),
    ("count", "local function count(text)
  local number = 0
  for _ in string.gmatch(text or \"\", \"[^,]+\") do number = number + 1 end
  return number
end
"),
    ("concat", "local function concat(text, before, after) return text and text .. before .. after end\n"),
    ("matches", "local function matches(text, regex, flags)
  return text ~= nil and ngx.re.find(text, regex, flags) ~= nil
end
"),
];

/// The test of an address, which needs a module.
const IN_NETWORKS: &str = "local ipmatcher = require(\"resty.ipmatcher\")
local function within(address, networks)
  local list = ipmatcher.new(networks)
  return address ~= nil and list ~= nil and list:match(address) == true
end
";

/// A replacement of HAProxy (`\1`) as one of nginx (`$1`).
pub(super) fn replacement(text: &str) -> String {
    let mut out = String::new();
    let mut chars = text.chars().peekable();
    while let Some(char) = chars.next() {
        match char {
            '\\' => match chars.next() {
                Some(digit) if digit.is_ascii_digit() => out.push_str(&format!("${{{digit}}}")),
                Some(other) => out.push(other),
                None => {}
            },
            '$' => out.push_str("$$"),
            other => out.push(other),
        }
    }
    out
}

/// A function of a phase with the helpers that its code uses.
pub(super) fn function(code: &str) -> String {
    let mut out = String::new();
    if code.contains("within(") {
        out.push_str(IN_NETWORKS);
    }
    for (name, helper) in HELPERS {
        if uses(code, name) {
            out.push_str(helper);
        }
    }
    out.push_str("return function(conf, ctx)\n");
    out.push_str(code);
    out.push_str("end\n");
    out
}

/// A condition of a route, which returns whether the expression holds.
pub(super) fn condition(expression: &str) -> String {
    let mut out = "function(vars)\n".to_owned();
    if expression.contains("within(") {
        out.push_str(IN_NETWORKS);
    }
    for (name, helper) in HELPERS {
        if uses(expression, name) {
            out.push_str(helper);
        }
    }
    // Before a route is chosen, variables are in the argument only.
    out.push_str(&format!("return {}\nend", expression.replace("ngx.var.", "vars.")));
    out
}

/// Whether code calls a function of this name.
fn uses(code: &str, name: &str) -> bool {
    let call = format!("{name}(");
    code.match_indices(&call).any(|(at, _)| {
        let before = code[..at].chars().next_back();
        before.is_none_or(|char| !(char.is_ascii_alphanumeric() || matches!(char, '_' | '.' | ':')))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn code_has_only_the_functions_that_it_calls() {
        let code = function("  ngx.req.set_header(\"a\", lower(field(ngx.var.host, 1, \":\")))\n");
        assert!(
            code.contains("function lower")
                && code.contains("function field")
                && !code.contains("function upper")
        );
        assert_eq!(replacement("/a\\1$\\.b"), "/a${1}$$.b");
    }
}
