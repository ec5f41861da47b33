-- The module resty.http: an HTTP/1.1 client over ngx.socket, with the documented calls of lua-resty-http.
--
-- It gets a function that returns the CDN-Loop field for a call of the exchange that runs (nil in timers), and the largest
-- response body.
local passes, MOST_BODY = ...

local concat, insert, tonumber, tostring, type, pairs, ipairs = table.concat, table.insert, tonumber, tostring, type, pairs, ipairs
local setmetatable, rawset, next, error = setmetatable, rawset, next, error
local min = math.min

-- The largest head of a response, in bytes, and the largest piece of a body reader without a size.
local MOST_HEAD, PIECE = 65536, 65536
-- The most informational responses before the final one.
local MOST_INFORMATIONAL = 8

local http = { _VERSION = "0.17.2" }
local methods = {}
local meta = { __index = methods, __metatable = false }

-- ------------------------------------------------------------------ texts

local function escape(text)
  return (tostring(text):gsub("[^%w%-%._~]", function(c) return ("%%%02X"):format(c:byte()) end))
end

-- A query of a table: values that are tables repeat the key, true has no value.
local function query_of(query)
  if type(query) ~= "table" then return query end
  local pieces = {}
  local function add(key, value)
    if value == true then
      insert(pieces, escape(key))
    elseif value ~= false then
      insert(pieces, escape(key) .. "=" .. escape(value))
    end
  end
  for key, value in pairs(query) do
    if type(value) == "table" then
      for _, one in ipairs(value) do add(key, one) end
    else
      add(key, value)
    end
  end
  return concat(pieces, "&")
end

function methods.parse_uri(_, uri, query_in_path)
  if query_in_path == nil then query_in_path = true end
  if type(uri) ~= "string" then return nil, "bad uri: " .. tostring(uri) end
  local scheme, rest = uri:match("^([hH][tT][tT][pP][sS]?)://(.*)$")
  if not scheme then
    scheme, rest = nil, uri:match("^//(.*)$")
    if not rest then return nil, "bad uri: " .. uri end
    scheme = "http"
  end
  scheme = scheme:lower()
  local authority, target = rest:match("^([^/?#]*)([^#]*)")
  -- A user in front of the host could hide which host it is.
  if authority:find("@", 1, true) then return nil, "bad uri: " .. uri .. ", it has a user" end
  local host, port = authority:match("^(%[[%x:%.]+%]):?(%d*)$")
  if not host then host, port = authority:match("^([^:%s%[%]]+):?(%d*)$") end
  if not host then return nil, "bad uri: " .. uri end
  port = tonumber(port) or (scheme == "https" and 443 or 80)
  local path, query = target:match("^([^?]*)%??(.*)$")
  if path == "" then path = "/" end
  if query_in_path and query ~= "" then return { scheme, host, port, path .. "?" .. query, "" } end
  return { scheme, host, port, path, query }
end

-- ------------------------------------------------------------------ header fields

local function folded(key)
  return type(key) == "string" and key:lower():gsub("_", "-") or key
end

-- Fields whose names ignore case; `names` maps folded names to those that came.
local function new_headers()
  local names = {}
  return setmetatable({}, {
    __index = function(fields, key)
      local name = names[folded(key)]
      if name ~= nil and name ~= key then return rawget(fields, name) end
    end,
    __newindex = function(fields, key, value)
      local name = names[folded(key)]
      if name ~= nil and rawget(fields, name) ~= nil then return rawset(fields, name, value) end
      names[folded(key)] = key
      rawset(fields, key, value)
    end,
  })
end

local function add_field(fields, name, value)
  local known = fields[name]
  if known == nil then
    fields[name] = value
  elseif type(known) == "table" then
    insert(known, value)
  else
    fields[name] = { known, value }
  end
end

-- Whether a list field has an item, and the last item.
local function has_item(value, item)
  if value == nil then return false end
  if type(value) == "table" then value = concat(value, ",") end
  local found, last = false, nil
  for one in value:lower():gmatch("[^,%s]+") do
    found = found or one == item
    last = one
  end
  return found, last
end

-- Reads fields up to the empty line; `left` are the bytes that they may have.
local function read_fields(sock, left, fields)
  while true do
    local line, err = sock:receive("*l")
    if not line then return nil, err end
    if line == "" then return left end
    left = left - #line - 2
    if left < 0 then return nil, "the head of the response is too large" end
    local name, value = line:match("^([%w!#$%%&'*+%-%.^_`|~]+):[ \t]*(.-)[ \t]*$")
    if not name then return nil, "invalid header line in the response" end
    add_field(fields, name, value)
  end
end

-- ------------------------------------------------------------------ connections

function http.new()
  local sock, err = ngx.socket.tcp()
  if not sock then return nil, err end
  return setmetatable({ sock = sock, keepalive = true }, meta)
end

function methods.set_timeout(self, ms)
  self.sock:settimeout(ms)
  return true
end

function methods.set_timeouts(self, connect, send, read)
  self.sock:settimeouts(connect, send, read)
  return true
end

function methods.set_proxy_options()
  error("this gateway's resty.http has no proxies", 2)
end

function methods.ssl_handshake(self, ...)
  self.is_tls = true
  return self.sock:sslhandshake(...)
end

function methods.connect(self, options, port, more)
  local host
  if type(options) ~= "table" then
    host, options = options, more or {}
    local ok, err
    if type(port) == "number" or tonumber(port) then
      ok, err = self.sock:connect(host, tonumber(port), options)
    else
      ok, err = self.sock:connect(host, 80, port or options)
      port = 80
    end
    self.host, self.port, self.keepalive, self.is_tls = host, tonumber(port), true, false
    return ok, err
  end
  if options.proxy_opts then return nil, "this gateway's resty.http has no proxies" end
  host, port = options.host, tonumber(options.port)
  if type(host) ~= "string" then return nil, "connect needs a host" end
  local is_tls = options.scheme == "https"
  port = port or (is_tls and 443 or 80)
  local name = options.ssl_server_name or host
  local verify = options.ssl_verify ~= false
  local pool = options.pool
    or concat({ options.scheme or "http", host, port, is_tls and name or "", is_tls and tostring(verify) or "" }, ":")
  local ok, err = self.sock:connect(host, port, { pool = pool, pool_size = options.pool_size })
  if not ok then return nil, err end
  local session
  if is_tls then
    session, err = self.sock:sslhandshake(options.ssl_reused_session, name, verify)
    if not session then
      self.sock:close()
      return nil, err
    end
  end
  self.host, self.port, self.keepalive, self.is_tls = host, port, true, is_tls
  return true, nil, session
end

function methods.set_keepalive(self, ...)
  if self.keepalive then return self.sock:setkeepalive(...) end
  local ok, err = self.sock:close()
  if not ok then return ok, err end
  return 2, "connection must be closed"
end

function methods.get_reused_times(self)
  return self.sock:getreusedtimes()
end

function methods.close(self)
  return self.sock:close()
end

-- ------------------------------------------------------------------ requests

local HAS_BODY = { POST = true, PUT = true, PATCH = true }

-- The head of a request, or nil and an error. No text of a script can end a line of it.
local function head_of(self, params, method, fields, body)
  local path = params.path or "/"
  local query = query_of(params.query)
  if query and query ~= "" then
    if query:sub(1, 1) ~= "?" then query = "?" .. query end
    path = path .. query
  end
  if not method:find("^[%w!#$%%&'*+%-%.^_`|~]+$") then return nil, "invalid method" end
  if path == "" or path:find("[%c ]") then return nil, "invalid path: encode spaces and control characters" end
  local version = params.version or 1.1
  local lines = { ("%s %s HTTP/%.1f"):format(method, path, version) }
  local function add(name, value)
    value = tostring(value)
    if not name:find("^[%w!#$%%&'*+%-%.^_`|~]+$") or value:find("[\r\n%z]") then
      return nil, "invalid header " .. name:gsub("%c", "?")
    end
    insert(lines, name .. ": " .. value)
    return true
  end
  local loop = passes()
  for name, value in pairs(fields) do
    name = tostring(name)
    if not (loop and name:lower() == "cdn-loop") then
      for _, one in ipairs(type(value) == "table" and value or { value }) do
        local ok, err = add(name, one)
        if not ok then return nil, err end
      end
    end
  end
  if not fields["Host"] then
    local default = self.is_tls and 443 or 80
    local host = self.host or "localhost"
    add("Host", self.port and self.port ~= default and host .. ":" .. self.port or host)
  end
  if not fields["User-Agent"] then add("User-Agent", "lua-resty-http/" .. http._VERSION .. " (Lua) ngx_lua/10023") end
  if loop then
    local ok, err = add("CDN-Loop", loop)
    if not ok then return nil, err end
  end
  local is_chunked = false
  if type(body) == "function" then
    is_chunked = fields["Content-Length"] == nil
    if is_chunked and not has_item(fields["Transfer-Encoding"], "chunked") then add("Transfer-Encoding", "chunked") end
  elseif fields["Content-Length"] == nil and not has_item(fields["Transfer-Encoding"], "chunked") then
    if body or HAS_BODY[method] then add("Content-Length", body and #body or 0) end
  end
  insert(lines, "\r\n")
  return concat(lines, "\r\n"), nil, is_chunked
end

-- Sends the pieces that a function returns.
local function send_pieces(sock, body, is_chunked)
  while true do
    local piece, err = body()
    if err then return nil, err end
    if piece == nil then break end
    if piece ~= "" then
      local ok
      if is_chunked then
        ok, err = sock:send({ ("%X\r\n"):format(#piece), piece, "\r\n" })
      else
        ok, err = sock:send(piece)
      end
      if not ok then return nil, err end
    end
  end
  if is_chunked then return sock:send("0\r\n\r\n") end
  return true
end

local function flattened(body)
  if type(body) ~= "table" then return body end
  local pieces = {}
  for _, piece in ipairs(body) do insert(pieces, flattened(piece)) end
  return concat(pieces)
end

-- ------------------------------------------------------------------ bodies

-- A reader of so many bytes.
local function sized_reader(sock, left)
  return function(size)
    if left == 0 then return nil end
    local piece, err = sock:receive(min(left, size or PIECE))
    if not piece then return nil, err end
    left = left - #piece
    return piece
  end
end

-- A reader to the end of the connection.
local function ending_reader(sock)
  local is_over = false
  return function(size)
    if is_over then return nil end
    local piece, err = sock:receiveany(size or PIECE)
    if piece then return piece end
    is_over = true
    if err == "closed" then return nil end
    return nil, err
  end
end

-- A reader of chunks; the fields after the last one go to `trailers`.
local function chunked_reader(sock, trailers)
  local left, is_over = 0, false
  return function(size)
    if is_over then return nil end
    if left == 0 then
      local line, err = sock:receive("*l")
      if not line then return nil, err end
      local digits = line:match("^(%x+)%s*;") or line:match("^(%x+)%s*$")
      if not digits or #digits > 12 then return nil, "invalid chunk in the response" end
      left = tonumber(digits, 16)
      if left == 0 then
        is_over = true
        local ok
        ok, err = read_fields(sock, MOST_HEAD, trailers)
        if not ok then return nil, err end
        return nil
      end
    end
    local piece, err = sock:receive(min(left, size or PIECE))
    if not piece then return nil, err end
    left = left - #piece
    if left == 0 then
      local line
      line, err = sock:receive("*l")
      if not line then return nil, err end
      if line ~= "" then return nil, "invalid chunk in the response" end
    end
    return piece
  end
end

local response = {}
local of_response = { __index = response, __metatable = false }

function response.read_body(res)
  if not res.body_reader then return nil, "no body to be read" end
  local pieces, length = {}, 0
  while true do
    local piece, err = res.body_reader()
    if err then return nil, err, concat(pieces) end
    if piece == nil then return concat(pieces) end
    length = length + #piece
    if length > MOST_BODY then
      return nil, "the body of the response is larger than " .. MOST_BODY .. " bytes"
    end
    insert(pieces, piece)
  end
end

function response.read_trailers(res)
  for name, value in pairs(res.trailers) do
    if res.headers[name] == nil then res.headers[name] = value end
  end
  return res.headers
end

-- Reads the head of the final response.
local function read_head(sock)
  for _ = 0, MOST_INFORMATIONAL do
    local line, err = sock:receive("*l")
    if not line then return nil, err end
    local version, status, reason = line:match("^HTTP/(1%.[01]) (%d%d%d) ?(.*)$")
    if not version then return nil, "couldn't parse HTTP version from response status line" end
    local headers, ok = new_headers(), nil
    ok, err = read_fields(sock, MOST_HEAD - #line, headers)
    if not ok then return nil, err end
    status = tonumber(status)
    if status >= 200 or status == 101 then
      return setmetatable({ status = status, reason = reason, headers = headers, trailers = new_headers() }, of_response), nil, version
    end
  end
  return nil, "too many informational responses"
end

-- Finds how the body ends, by RFC 9112 §6.3. Returns nil and an error if that is ambiguous.
local function frame(self, sock, res, method, version)
  local headers, status = res.headers, res.status
  local is_closing = has_item(headers["Connection"], "close")
  self.keepalive = not is_closing and (version == "1.1" or (has_item(headers["Connection"], "keep-alive")))
  res.has_body = false
  if method == "HEAD" or status == 204 or status == 304 or status == 101 then
    res.body_reader = function() return nil end
    return res
  end
  local coding, length = headers["Transfer-Encoding"], headers["Content-Length"]
  if type(length) == "table" then
    for _, one in ipairs(length) do
      if one ~= length[1] then return nil, "the response has several lengths" end
    end
    length = length[1]
  end
  if coding then
    local _, last = has_item(coding, "chunked")
    if last ~= "chunked" then
      self.keepalive = false
      res.body_reader = ending_reader(sock)
    else
      -- With both fields the end is uncertain, so the connection serves nothing else.
      if length then self.keepalive = false end
      res.body_reader = chunked_reader(sock, res.trailers)
    end
    res.has_body = true
  elseif length then
    if not length:find("^%d+$") or #length > 15 then return nil, "invalid Content-Length in the response" end
    length = tonumber(length)
    res.has_body = length > 0
    res.body_reader = sized_reader(sock, length)
  else
    self.keepalive = false
    res.has_body = true
    res.body_reader = ending_reader(sock)
  end
  return res
end

function methods.send_request(self, params)
  local method = (params.method or "GET"):upper()
  local fields = new_headers()
  for name, value in pairs(params.headers or {}) do fields[name] = value end
  local body = flattened(params.body)
  if body ~= nil and type(body) ~= "function" then body = tostring(body) end
  local head, err, is_chunked = head_of(self, params, method, fields, body)
  if not head then return nil, err end
  local ok
  if type(body) == "function" then
    ok, err = self.sock:send(head)
    if ok then ok, err = send_pieces(self.sock, body, is_chunked) end
  else
    ok, err = self.sock:send(body and { head, body } or head)
  end
  if not ok then return nil, err end
  return true
end

function methods.read_response(self, params)
  local res, err, version = read_head(self.sock)
  if not res then return nil, err end
  return frame(self, self.sock, res, (params.method or "GET"):upper(), version)
end

function methods.request(self, params)
  local ok, err = self:send_request(params)
  if not ok then return nil, err end
  return self:read_response(params)
end

function methods.request_uri(self, uri, params)
  local copy = {}
  for key, value in next, params or {} do copy[key] = value end
  local parsed, err = self:parse_uri(uri, false)
  if not parsed then return nil, err end
  local scheme, host, port, path, query = parsed[1], parsed[2], parsed[3], parsed[4], parsed[5]
  copy.path = copy.path or path
  if copy.query == nil then copy.query = query end
  local ok
  ok, err = self:connect({
    scheme = scheme,
    host = host,
    port = port,
    pool = copy.pool,
    pool_size = copy.pool_size or copy.keepalive_pool,
    ssl_verify = copy.ssl_verify,
    ssl_server_name = copy.ssl_server_name,
    proxy_opts = copy.proxy_opts,
  })
  if not ok then return nil, err end
  local res
  res, err = self:request(copy)
  if not res then
    self:close()
    return nil, err
  end
  local body
  body, err = res:read_body()
  if not body then
    self:close()
    return nil, err
  end
  res.body = body
  if copy.keepalive == false then
    self:close()
  else
    self:set_keepalive(copy.keepalive_timeout, copy.keepalive_pool)
  end
  return res
end

function methods.get_client_body_reader()
  return nil, "this gateway's resty.http cannot read the request body in pieces"
end

function methods.proxy_request(self)
  ngx.req.read_body()
  return self:request({
    method = ngx.req.get_method(),
    path = ngx.var.request_uri,
    headers = ngx.req.get_headers(0, true),
    body = ngx.req.get_body_data(),
  })
end

local HOP_BY_HOP = {
  ["connection"] = true, ["keep-alive"] = true, ["proxy-authenticate"] = true, ["proxy-authorization"] = true,
  ["te"] = true, ["trailers"] = true, ["transfer-encoding"] = true, ["upgrade"] = true, ["content-length"] = true,
}

function methods.proxy_response(_, res)
  ngx.status = res.status
  for name, value in pairs(res.headers) do
    if not HOP_BY_HOP[name:lower()] then ngx.header[name] = value end
  end
  local body, err = res:read_body()
  if not body then return nil, err end
  ngx.print(body)
  return true
end

return http
