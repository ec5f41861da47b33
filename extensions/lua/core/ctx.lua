-- Makes `ctx` for one exchange. `parts` are functions of the gateway.
local parts = ...
local read, write, keep, member = parts.read, parts.write, parts.keep, parts.member
local is_settable, may_wait, read_body = parts.is_settable, parts.may_wait, parts.read_body
local choose = parts.choose
local error, rawget, rawset, setmetatable, type = error, rawget, rawset, setmetatable, type
local find, next = string.find, next

-- Variables of scripts: functions by name, and those whose value is not kept.
local getters, volatile = {}, {}

local function key_of(name)
  if type(name) ~= "string" then error("invalid argument, expect string value", 3) end
  return name
end

local of_var = { __metatable = false }

function of_var.__index(var, name)
  key_of(name)
  local values = rawget(var, "_cache")
  local value = values[name]
  if value ~= nil then return value end
  local getter = getters[name]
  if getter then
    value = getter(rawget(var, "_ctx"))
    if value ~= nil and not volatile[name] then
      values[name] = value
      keep(name, value)
    end
    return value
  end
  -- A value that a script has removed is not that of a template.
  if rawget(var, "_removed")[name] then return nil end
  if (find(name, "post_arg", 1, true) == 1 or find(name, "graphql_", 1, true) == 1) and may_wait() then read_body() end
  return read(name)
end

function of_var.__newindex(var, name, value)
  key_of(name)
  if is_settable(name) then
    write(name, value)
  else
    local removed = rawget(var, "_removed")
    if value ~= nil then
      removed[name] = nil
      keep(name, value)
    elseif keep(name, value) then
      removed[name] = true
    end
  end
  rawget(var, "_cache")[name] = value
end

local of_ctx = { __metatable = false }

function of_ctx.__index(ctx, name)
  if name == "var" then
    local var = setmetatable({ _cache = {}, _removed = {}, _ctx = ctx }, of_var)
    rawset(ctx, "var", var)
    return var
  end
  local value, is_kept = member(name)
  if is_kept and value ~= nil then rawset(ctx, name, value) end
  return value
end

-- As in APISIX, a script chooses the upstream by its id.
function of_ctx.__newindex(ctx, name, value)
  if name == "upstream_id" then choose(value) end
  rawset(ctx, name, value)
end

local made = {}

function made.new_ctx()
  return setmetatable({}, of_ctx)
end

function made.register_var(name, getter, options)
  if type(getter) ~= "function" then error("the getter of registered var should be a function", 2) end
  if getters[name] == nil then
    local count = 0
    for _ in next, getters do count = count + 1 end
    if count >= 1000 then error("scripts may register 1000 variables at most", 2) end
  end
  getters[name] = getter
  volatile[name] = type(options) == "table" and options.no_cacheable and true or nil
end

-- Drops the functions of scripts.
function made.forget() getters, volatile = {}, {} end

return made
