//! Lua for filters of response fields that no plugin has.

use super::super::words::lua_text;

/// Rules of CORS for some paths.
#[derive(Debug, Clone, Default)]
pub(super) struct Cors {
    /// A regular expression on the path.
    pub path: String,
    /// Whether all origins are allowed.
    pub any: bool,
    /// A regular expression on the origin.
    pub origins: String,
    pub methods: Vec<String>,
    pub headers: Vec<String>,
    pub exposed: String,
    pub credentials: bool,
    /// Seconds for which browsers keep the result of a preflight.
    pub age: Option<u64>,
}

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

/// AddResponseHeader.
pub(super) fn add(name: &str, value: &str) -> String {
    format!(
        "  local old = ngx.header[{name}]
  if type(old) ~= \"table\" then old = {{ old }} end
  old[#old + 1] = {value}
  ngx.header[{name}] = old
",
        name = lua_text(name),
        value = lua_text(value),
    )
}

/// A field that is set if the node has not set it.
pub(super) fn absent(name: &str, value: &str) -> String {
    format!("  if not ngx.header[{0}] then ngx.header[{0}] = {1} end\n", lua_text(name), lua_text(value))
}

/// Remembers the host of the client before it is replaced.
pub(super) const HOST: &str = "return function(conf, ctx)\n  ngx.ctx.client_host = ngx.var.http_host\nend\n";

/// RewriteRequestParameter: a parameter that is there goes to the end with its new value.
pub(super) fn argument(name: &str, value: &str) -> String {
    format!(
        "return function(conf, ctx)
  local kept, found = {{}}, false
  for part in string.gmatch(ngx.var.args or \"\", \"[^&]+\") do
    if string.match(part, \"^[^=]*\") == {name} then found = true else kept[#kept + 1] = part end
  end
  if found then
    kept[#kept + 1] = {name} .. \"=\" .. ngx.escape_uri({value})
    ngx.req.set_uri_args(table.concat(kept, \"&\"))
  end
end
",
        name = lua_text(name),
        value = lua_text(value),
    )
}

/// The test of an origin, for one set of rules.
fn cors_allows(rules: &Cors) -> String {
    let mut tests = Vec::new();
    if rules.any {
        tests.push("true".to_owned());
    }
    if !rules.origins.is_empty() {
        tests.push(format!("ngx.re.find(origin, {}, \"jo\") ~= nil", lua_text(&rules.origins)));
    }
    if tests.is_empty() { "false".to_owned() } else { tests.join(" or ") }
}

/// The value of `Access-Control-Allow-Origin`.
fn cors_origin(rules: &Cors) -> &'static str {
    if rules.any && !rules.credentials { "\"*\"" } else { "origin" }
}

/// CORS before the node: refusals and responses to preflights.
pub(super) fn cors_request(all: &[Cors]) -> String {
    let mut out = "return function(conf, ctx)
  local origin = ngx.var.http_origin
  if not origin or origin == ngx.var.scheme .. \"://\" .. (ngx.var.http_host or \"\") then return end
  local method = ngx.var.http_access_control_request_method
  local is_preflight = ngx.req.get_method() == \"OPTIONS\" and method ~= nil
  ngx.header[\"Vary\"] = { \"Origin\", \"Access-Control-Request-Method\", \"Access-Control-Request-Headers\" }
"
    .to_owned();
    for rules in all {
        let methods: Vec<String> =
            rules.methods.iter().map(|name| format!("[{}] = true", lua_text(name))).collect();
        let any_method = rules.methods.iter().any(|name| name == "*");
        let (test, shown) = match any_method {
            true => ("true".to_owned(), "method".to_owned()),
            false => (
                format!("({{ {} }})[is_preflight and method or ngx.req.get_method()]", methods.join(", ")),
                lua_text(&rules.methods.join(",")),
            ),
        };
        out.push_str(&format!(
            "  if ngx.re.find(ngx.var.uri, {}, \"jo\") then
    if not ({}) or not {test} then
      ngx.status = 403
      ngx.print(\"Invalid CORS request\")
      return ngx.exit(403)
    end
    if not is_preflight then
      ngx.ctx.cors_origin = {}
      ngx.header[\"Vary\"] = nil
      return
    end
    ngx.header[\"Access-Control-Allow-Origin\"] = {}
    ngx.header[\"Access-Control-Allow-Methods\"] = {shown}
",
            lua_text(&rules.path),
            cors_allows(rules),
            cors_origin(rules),
            cors_origin(rules),
        ));
        if !rules.headers.is_empty() {
            out.push_str("    ngx.header[\"Access-Control-Allow-Headers\"] = ngx.var.http_access_control_request_headers\n");
        }
        if rules.credentials {
            out.push_str("    ngx.header[\"Access-Control-Allow-Credentials\"] = \"true\"\n");
        }
        if let Some(age) = rules.age {
            out.push_str(&format!("    ngx.header[\"Access-Control-Max-Age\"] = \"{age}\"\n"));
        }
        out.push_str("    return ngx.exit(200)\n  end\n");
    }
    out.push_str("  ngx.header[\"Vary\"] = nil\nend\n");
    out
}

/// The response to a preflight has no body, and so no media type.
pub(super) const PREFLIGHT: &str = "return function(conf, ctx)
  if not ngx.var.upstream_status and ngx.req.get_method() == \"OPTIONS\" and ngx.status == 200 then
    ngx.header[\"Content-Type\"] = nil
  end
end
";

/// CORS on responses of nodes.
pub(super) fn cors_response(all: &[Cors]) -> String {
    let mut out = String::new();
    if !all.is_empty() {
        // Responses to all paths name the fields that they depend on.
        out.push_str(
            "  local vary = ngx.header[\"Vary\"]
  if type(vary) ~= \"table\" then vary = { vary } end
  for _, name in ipairs({ \"Origin\", \"Access-Control-Request-Method\", \"Access-Control-Request-Headers\" }) do
    vary[#vary + 1] = name
  end
  ngx.header[\"Vary\"] = vary
",
        );
    }
    for (at, rules) in all.iter().enumerate() {
        let word = if at == 0 { "if" } else { "elseif" };
        out.push_str(&format!(
            "  {word} ngx.re.find(ngx.var.uri, {}, \"jo\") then
    if ngx.ctx.cors_origin then
      ngx.header[\"Access-Control-Allow-Origin\"] = ngx.ctx.cors_origin
",
            lua_text(&rules.path)
        ));
        if !rules.exposed.is_empty() {
            out.push_str(&format!(
                "      ngx.header[\"Access-Control-Expose-Headers\"] = {}\n",
                lua_text(&rules.exposed)
            ));
        }
        if rules.credentials {
            out.push_str("      ngx.header[\"Access-Control-Allow-Credentials\"] = \"true\"\n");
        }
        out.push_str("    end\n");
    }
    if !all.is_empty() {
        out.push_str("  end\n");
    }
    out
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

/// RewriteLocationResponseHeader: the host of the request, and no version if the request has no version.
pub(super) fn location(name: &str, mode: &str, host: &str, protocols: &str) -> String {
    let host = if host.is_empty() { "ngx.ctx.client_host".to_owned() } else { lua_text(host) };
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
