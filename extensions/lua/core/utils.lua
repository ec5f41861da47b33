-- Functions of `core.utils` that need nothing of the gateway but its log.
local utils, log = ...
local ipairs, tostring, type = ipairs, tostring, type
local find, gmatch, reverse = string.find, string.gmatch, string.reverse

-- The value of a field, whose name may be a path with dots.
local function value_of(conf, field)
  for name in gmatch(field, "[^.]+") do
    if type(conf) ~= "table" then return nil end
    conf = conf[name]
  end
  return conf
end

-- Warns of addresses without TLS.
function utils.check_https(fields, conf, plugin)
  for _, field in ipairs(fields) do
    local value = value_of(conf, field)
    for _, uri in ipairs(type(value) == "table" and value or { value }) do
      if not find(tostring(uri), "^https") then
        log.warn("Using ", plugin, " ", field, " with no TLS is a security risk")
      end
    end
  end
end

-- Warns of checks that are turned off.
function utils.check_tls_bool(fields, conf, plugin)
  for _, field in ipairs(fields) do
    if value_of(conf, field) == false then
      log.warn("Keeping ", field, " disabled in ", plugin, " configuration is a security risk")
    end
  end
end

-- The place of the last match of a pattern that is its own reverse. Methods of texts have patterns with a limit of steps.
function utils.get_last_index(text, pattern)
  local _, place = reverse(text):find(pattern)
  return place and #text - place + 1
end
