-- `resty.template`: texts with expressions and code. A view is a text; there are no files.
local error, load, ngx, setmetatable, tostring, type = error, load, ngx, setmetatable, tostring, type
local concat, find, format, gsub, sub = table.concat, string.find, string.format, string.gsub, string.sub

local template = {}

-- Names that views have besides their values. The libraries are read only.
local globals = {
  ipairs = ipairs, next = next, pairs = pairs, select = select, tonumber = tonumber, tostring = tostring,
  type = type, math = math, string = string, table = table, os = os,
}

local ESCAPED = { ["&"] = "&amp;", ["<"] = "&lt;", [">"] = "&gt;", ['"'] = "&quot;", ["'"] = "&#39;", ["/"] = "&#47;" }

local function output(value)
  if value == nil or value == ngx.null then return "" end
  if type(value) == "function" then return output(value()) end
  return tostring(value)
end

local function escape(value)
  return (gsub(output(value), "[&<>\"'/]", ESCAPED))
end

template.escape, template.output = escape, output

-- The parts of a view: for each tag its end and what it becomes.
local TAGS = {
  ["{"] = { "}}", "_out[#_out+1]=_escape(%s) " },
  ["*"] = { "*}", "_out[#_out+1]=_output(%s) " },
  ["%"] = { "%}", "%s " },
  ["["] = { "]}", "_out[#_out+1]=_include(%s) " },
}

-- A line break behind code and comments is theirs.
local function behind(view, at)
  if sub(view, at, at) == "\n" then return at + 1 end
  return at
end

local function literal(code, text)
  if text ~= "" then code[#code + 1] = format("_out[#_out+1]=%q ", text) end
end

-- A view as a text of Lua.
function template.parse(view)
  local code, from, at = { "local _out,_escape,_output,_include=... " }, 1, 1
  while true do
    local open = find(view, "{", at, true)
    if not open then break end
    local sign = sub(view, open + 1, open + 1)
    local tag = TAGS[sign]
    if tag then
      local close = find(view, tag[1], open + 2, true)
      if not close then error("the view has no `" .. tag[1] .. "` after `{" .. sign .. "`", 0) end
      literal(code, sub(view, from, open - 1))
      code[#code + 1] = (gsub(tag[2], "%%s", function() return sub(view, open + 2, close - 1) end))
      at = close + 2
      if sign == "%" then at = behind(view, at) end
      from = at
    elseif sign == "#" then
      local close = find(view, "#}", open + 2, true)
      if not close then error("the view has no `#}` after `{#`", 0) end
      literal(code, sub(view, from, open - 1))
      at = behind(view, close + 2)
      from = at
    elseif find(view, "^{%-[%w]+%-}", open) then
      local _, last, name = find(view, "^{%-([%w]+)%-}", open)
      local close, ended = find(view, "{-" .. name .. "-}", last + 1, true)
      if not close then error("the view has no second `{-" .. name .. "-}`", 0) end
      literal(code, sub(view, from, open - 1))
      literal(code, sub(view, last + 1, close - 1))
      at = ended + 1
      from = at
    else
      at = open + 1
    end
  end
  literal(code, sub(view, from))
  return concat(code)
end

local function compiled(view)
  local text = template.parse(view)
  return function(context)
    context = context or {}
    local environment = setmetatable({ context = context }, {
      __index = function(_, name)
        local value = context[name]
        if value == nil then value = globals[name] end
        return value
      end,
    })
    local chunk, problem = load(text, "=template", "t", environment)
    if not chunk then error(problem, 2) end
    local out = {}
    chunk(out, escape, output, function(inner, values) return compiled(inner)(values or context) end)
    return concat(out)
  end
end

function template.compile(view)
  return compiled(view)
end

template.compile_string = template.compile

function template.process(view, context)
  return compiled(view)(context)
end

template.process_string = template.process

function template.render(view, context)
  ngx.print(compiled(view)(context))
end

template.render_string = template.render

function template.new(view)
  if type(view) ~= "string" then
    local made = {}
    for name, value in next, template do made[name] = value end
    return made
  end
  local values = {}
  values.render = function(self, context) template.render(view, context or self) end
  values.process = function(self, context) return template.process(view, context or self) end
  return setmetatable(values, { __tostring = function(self) return template.process(view, self) end })
end

function template.caching()
  return false
end

for _, name in ipairs({ "compile_file", "process_file", "render_file", "load" }) do
  template[name] = function() error("resty.template." .. name .. ": views are texts; there are no files", 2) end
end

return template
