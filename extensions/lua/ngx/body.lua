-- Functions that read the request body before they use it. `parts` are functions of the gateway.
local read, parts = ...
local check, drop, slice = parts.check, parts.drop, parts.slice
local setmetatable, error = setmetatable, error

local methods = {}
local places = setmetatable({}, { __mode = "k" })
local of_socket = { __index = methods, __newindex = function() error("the request's socket has no fields", 2) end, __metatable = false }

local function advance(socket, text, problem, partial, place)
  places[socket] = place
  if text ~= nil then return text end
  return nil, problem, partial
end

function methods.receive(socket, pattern)
  read()
  return advance(socket, slice(places[socket], pattern))
end

function methods.settimeout() end
methods.settimeouts = methods.settimeout

local made = {}

function made.socket(raw)
  if raw then error("the connection of the client is no socket of scripts", 2) end
  local ok, problem = check()
  if not ok then return nil, problem end
  local socket = setmetatable({}, of_socket)
  places[socket] = 0
  return socket
end

function made.discard_body()
  read()
  drop()
end

return made
