-- `apisix.consumer` for plugins in files that authenticate consumers. `parts` are functions of the gateway, which return
-- nil or the text of an error first.
local parts = ...
local find, list, has, attach, anonymous = parts.find, parts.list, parts.has, parts.attach, parts.anonymous
local error, rawget, rawset, setmetatable, type = error, rawget, rawset, setmetatable, type

local function finish(message, ...)
  if message ~= nil then error(message, 3) end
  return ...
end

local consumer = {}
local version = 0

-- The consumers of a plugin. Its version is always new: values that plugins keep for a version are never outdated.
function consumer.plugin(name)
  if not finish(has(name)) then return nil end
  version = version + 1
  return setmetatable({ conf_version = version, _plugin = name }, {
    __index = function(conf, key)
      if key ~= "nodes" then return nil end
      local nodes = finish(list(name))
      rawset(conf, key, nodes)
      return nodes
    end,
  })
end

-- The consumers by a field of their configuration.
function consumer.consumers_kv(name, _, field)
  return setmetatable({}, {
    __index = function(_, key)
      if type(key) ~= "string" then return nil end
      return (finish(find(name, field, key)))
    end,
    __metatable = false,
  })
end

function consumer.find_consumer(name, field, key)
  if type(key) ~= "string" or not finish(has(name)) then return nil, nil, "Missing related consumer" end
  local found = finish(find(name, field, key))
  if not found then return nil, nil, "failed to find consumer" end
  return found, { conf_version = found.modifiedIndex, _plugin = name }
end

function consumer.get_anonymous_consumer(name)
  local found = finish(anonymous(name))
  if not found then return nil, nil, "failed to get anonymous consumer " .. name end
  return found, {}
end

function consumer.attach_consumer(_, found)
  if type(found) ~= "table" then error("bad argument #2 to 'attach_consumer' (table expected)", 2) end
  finish(attach(rawget(found, "_key"), rawget(found, "_anonymous")))
end

return consumer
