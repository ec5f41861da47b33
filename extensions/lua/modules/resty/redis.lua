-- The module resty.redis: a client of Redis over ngx.socket, with the documented calls of lua-resty-redis.
local _, MOST_BYTES = ...

local concat, insert, tonumber, tostring, type, pairs, ipairs = table.concat, table.insert, tonumber, tostring, type, pairs, ipairs
local setmetatable, select, rawget = setmetatable, select, rawget
local null = ngx.null

-- The deepest nesting of arrays in a reply, and the most elements of one.
local DEPTH, MOST_ELEMENTS = 32, 1000000

local redis = { _VERSION = "0.30" }
local methods = {}

-- ------------------------------------------------------------------ replies

-- Reads one reply: its value; false and a text for an error of Redis; nil and a text if the connection is broken.
local function read_reply(sock, depth)
  local line, err = sock:receive("*l")
  if not line then
    if err == "timeout" then sock:close() end
    return nil, err
  end
  local kind, rest = line:sub(1, 1), line:sub(2)
  if kind == "+" then return rest end
  if kind == "-" then return false, rest end
  local number = tonumber(rest)
  if not number or number ~= number then return nil, "invalid reply of Redis" end
  if kind == ":" then return number end
  if number < 0 and (kind == "$" or kind == "*") then return null end
  if kind == "$" then
    if number > MOST_BYTES then return nil, "the reply of Redis is larger than " .. MOST_BYTES .. " bytes" end
    local data, ending
    data, err = sock:receive(number)
    if not data then
      if err == "timeout" then sock:close() end
      return nil, err
    end
    ending, err = sock:receive(2)
    if not ending then return nil, err end
    if ending ~= "\r\n" then return nil, "invalid reply of Redis" end
    return data
  end
  if kind == "*" then
    if depth == 0 or number > MOST_ELEMENTS then return nil, "the reply of Redis is too large" end
    local elements = {}
    for index = 1, number do
      local value
      value, err = read_reply(sock, depth - 1)
      if value == nil then return nil, err end
      -- An error within an array is a pair of its own.
      elements[index] = value == false and { false, err } or value
    end
    return elements
  end
  return nil, "invalid reply of Redis"
end

-- ------------------------------------------------------------------ connections

function methods.set_timeout(self, ms)
  self._sock:settimeout(ms)
end

function methods.set_timeouts(self, connect, send, read)
  self._sock:settimeouts(connect, send, read)
end

function methods.connect(self, host, port, options)
  if type(port) == "table" then port, options = nil, port end
  options = options or {}
  self._subscribed, self._pipeline = nil, nil
  local sock = self._sock
  local ok, err = sock:connect(host, port or 6379, {
    pool = options.pool,
    pool_size = options.pool_size,
  })
  if not ok then return nil, err end
  if options.ssl then
    ok, err = sock:sslhandshake(false, options.server_name or host, options.ssl_verify)
    if not ok then
      sock:close()
      return nil, "failed to do ssl handshake: " .. tostring(err)
    end
  end
  return 1
end

function methods.set_keepalive(self, ...)
  if self._subscribed then return nil, "subscribed state" end
  return self._sock:setkeepalive(...)
end

function methods.get_reused_times(self)
  return self._sock:getreusedtimes()
end

function methods.close(self)
  return self._sock:close()
end

-- ------------------------------------------------------------------ commands

local function request_of(name, ...)
  local count = select("#", ...)
  local pieces = { "*" .. (count + 1) .. "\r\n$" .. #name .. "\r\n" .. name .. "\r\n" }
  for index = 1, count do
    local argument = tostring((select(index, ...)))
    insert(pieces, "$" .. #argument .. "\r\n")
    insert(pieces, argument)
    insert(pieces, "\r\n")
  end
  return concat(pieces)
end

local function command(self, name, ...)
  local request = request_of(name, ...)
  if self._pipeline then
    insert(self._pipeline, request)
    return
  end
  local ok, err = self._sock:send(request)
  if not ok then return nil, err end
  return read_reply(self._sock, DEPTH)
end

for _, name in ipairs({ "subscribe", "psubscribe" }) do
  methods[name] = function(self, ...)
    self._subscribed = true
    return command(self, name, ...)
  end
end

for _, name in ipairs({ "unsubscribe", "punsubscribe" }) do
  methods[name] = function(self, ...)
    local reply, err = command(self, name, ...)
    if type(reply) == "table" and reply[3] == 0 then self._subscribed = nil end
    return reply, err
  end
end

function methods.read_reply(self)
  if not self._subscribed then return nil, "not subscribed" end
  return read_reply(self._sock, DEPTH)
end

-- hmset(key, {field = value}) or hmset(key, field, value, ...).
function methods.hmset(self, key, first, ...)
  if select("#", ...) > 0 or type(first) ~= "table" then return command(self, "hmset", key, first, ...) end
  local flat = {}
  for field, value in pairs(first) do
    insert(flat, field)
    insert(flat, value)
  end
  return command(self, "hmset", key, unpack(flat))
end

function methods.init_pipeline(self)
  self._pipeline = {}
end

function methods.cancel_pipeline(self)
  self._pipeline = nil
end

function methods.commit_pipeline(self)
  local requests = self._pipeline
  if not requests then return nil, "no pipeline" end
  self._pipeline = nil
  local ok, err = self._sock:send(requests)
  if not ok then return nil, err end
  local replies = {}
  for index = 1, #requests do
    local reply
    reply, err = read_reply(self._sock, DEPTH)
    if reply == nil then
      if err == "timeout" then self._sock:close() end
      return nil, err
    end
    replies[index] = reply == false and { false, err } or reply
  end
  return replies
end

function methods.array_to_hash(_, array)
  local hash = {}
  for index = 1, #array, 2 do hash[array[index]] = array[index + 1] end
  return hash
end

-- Every other name is a command of Redis.
local of_client = {
  __metatable = false,
  __index = function(_, name)
    local known = rawget(methods, name)
    if known then return known end
    if type(name) ~= "string" or name:sub(1, 1) == "_" then return nil end
    return function(self, ...) return command(self, name, ...) end
  end,
}

function redis.new()
  local sock, err = ngx.socket.tcp()
  if not sock then return nil, err end
  return setmetatable({ _sock = sock }, of_client)
end

-- Names of further commands need not be registered.
function redis.add_commands() end

return redis
