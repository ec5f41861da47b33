//! Lua for filters of response fields that no plugin has.

use super::super::words::lua_text;

/// DedupeResponseHeader: `pick` is the list of the values that stay.
pub(super) fn dedupe(names: &[&str], pick: &str) -> String {
    let list: Vec<String> = names.iter().map(|name| lua_text(name)).collect();
    format!(
        "  local function unique(values)
    local known, list = {{}}, {{}}
    for _, value in ipairs(values) do
      if not known[value] then
        known[value] = true
        list[#list + 1] = value
      end
    end
    return list
  end
  for _, name in ipairs({{ {} }}) do
    local values = ngx.header[name]
    if type(values) == \"table\" and #values > 1 then
      ngx.header[name] = {pick}
    end
  end
",
        list.join(", ")
    )
}

/// RewriteResponseHeader.
pub(super) fn rewrite(name: &str, regex: &str, replacement: &str) -> String {
    format!(
        "  local values = ngx.header[{name}]
  if values then
    if type(values) ~= \"table\" then values = {{ values }} end
    local list = {{}}
    for at, value in ipairs(values) do
      list[at] = ngx.re.gsub(value, {regex}, {replacement}, \"jo\") or value
    end
    ngx.header[{name}] = #list == 1 and list[1] or list
  end
",
        name = lua_text(name),
        regex = lua_text(regex),
        replacement = lua_text(replacement),
    )
}

/// RewriteLocationResponseHeader: the host of the request, and no version where the request has none.
pub(super) fn location(name: &str, mode: &str, host: &str, protocols: &str) -> String {
    let host = if host.is_empty() { "ngx.var.http_host".to_owned() } else { lua_text(host) };
    let strips = match mode.trim() {
        "ALWAYS_STRIP" => "true",
        "NEVER_STRIP" => "false",
        _ => "not ngx.re.find(ngx.var.uri, \"^/v[0-9]+/\", \"jo\")",
    };
    format!(
        "  local value = ngx.header[{name}]
  if type(value) == \"string\" then
    local found = ngx.re.match(value, {regex}, \"jo\")
    if found then
      local path = found[2] or \"\"
      if {strips} then
        path = ngx.re.sub(path, \"^/v[0-9]+(/.*)$\", \"$1\", \"jo\")
      end
      ngx.header[{name}] = found[1] .. \"://\" .. ({host} or \"\") .. path
    end
  end
",
        name = lua_text(name),
        regex = lua_text(&format!("^((?:{protocols}))://[^/]+(/.*)?$")),
    )
}
