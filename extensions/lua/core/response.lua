-- `core.response`, made of the functions of `ngx`. `encode` makes JSON, or returns nil and a message.
local ngx, encode = ...
local arg, header, print = ngx.arg, ngx.header, ngx.print
local add = ngx.resp.add_header
local error, pairs, select, tonumber, type = error, pairs, select, tonumber, type
local concat, match, sub = table.concat, string.match, string.sub

local response = {}

local function text_of(value)
  if type(value) ~= "table" then return value end
  local text, problem = encode(value)
  if not text then error("failed to encode data: " .. problem, 0) end
  return text .. "\n"
end

local function finish(code)
  if not code then return end
  local ctx = ngx.ctx.api_ctx
  if ctx and not ctx._resp_source then ctx._resp_source = "apisix" end
  return ngx.exit(code)
end

-- Functions of the exchange that change its responses, each followed by its argument.
local function changed(callbacks, code, body)
  local fields = {}
  for place = 1, callbacks.n, 2 do
    code, body, fields = callbacks[place](code, body, fields, callbacks[place + 1])
  end
  if code then ngx.status = code end
  for name, value in pairs(fields or {}) do header[name] = value end
  if body ~= nil then print(text_of(body)) end
  return finish(code)
end

function response.exit(code, ...)
  local pieces, count = {}, 0
  if code and type(code) ~= "number" then
    pieces[1], count, code = code, 1, nil
  end
  local callbacks = ngx.ctx.apisix_exit_callback_funcs
  if callbacks then
    local body
    for place = 1, select("#", ...) do
      body = select(place, ...)
      if body ~= nil then break end
    end
    if body == nil then body = pieces[1] end
    return changed(callbacks, code, body)
  end
  if code then ngx.status = code end
  for place = 1, select("#", ...) do
    local value = select(place, ...)
    if value ~= nil then
      count = count + 1
      pieces[count] = text_of(value)
    end
  end
  if count > 0 then print(pieces) end
  return finish(code)
end

function response.say(...) response.exit(nil, ...) end

function response.exit_insert_callback(callback, argument)
  local ctx = ngx.ctx
  local callbacks = ctx.apisix_exit_callback_funcs or { n = 0 }
  local count = callbacks.n
  callbacks[count + 1], callbacks[count + 2], callbacks.n = callback, argument, count + 2
  ctx.apisix_exit_callback_funcs = callbacks
end

local function set(put, first, ...)
  if ngx.headers_sent then error("headers have already been sent", 3) end
  local count = select("#", ...)
  if type(first) == "table" and count == 0 then
    for name, value in pairs(first) do put(name, value) end
    return
  end
  put(first, (...))
  for place = 2, count, 2 do
    put(select(place, ...), (select(place + 1, ...)))
  end
end

local function replace(name, value) header[name] = value end

function response.set_header(...) set(replace, ...) end
function response.add_header(...) set(add, ...) end

function response.get_upstream_status(ctx)
  -- The status of the last node counts.
  return tonumber(sub(ctx.var.upstream_status or "", -3))
end

function response.set_response_source(ctx, source)
  if ctx then ctx._resp_source = source end
end

function response.get_response_source(ctx)
  if not ctx then return "apisix" end
  if ctx._resp_source then return ctx._resp_source end
  return ctx.var.response_source or "apisix"
end

function response.get_last_upstream_token(text)
  return text and match(text, "([^%s,]+)[%s,]*$")
end

function response.clear_header_as_body_modified()
  for _, name in pairs { "content_length", "content_encoding", "last_modified", "etag" } do header[name] = nil end
end

function response.hold_body_chunk(ctx, holds_copy, most, key)
  local chunk, is_last = arg[1], arg[2]
  key = key or ctx._plugin_name or ""
  local held = ctx._body_buffer
  if not held then
    held = {}
    ctx._body_buffer = held
  end
  local pieces = held[key]
  if chunk ~= "" then
    if not pieces then
      pieces = { n = 0, bytes = 0 }
      held[key] = pieces
    end
    pieces.n, pieces.bytes = pieces.n + 1, pieces.bytes + #chunk
    pieces[pieces.n] = chunk
    if most and pieces.bytes >= most then
      if pieces.is_given then return nil end
      pieces.is_given = true
      return sub(concat(pieces, "", 1, pieces.n), 1, most)
    end
  end
  if is_last then
    held[key] = nil
    if not pieces then return chunk end
    if pieces.is_given then return nil end
    return concat(pieces, "", 1, pieces.n)
  end
  if not holds_copy then arg[1] = nil end
  return nil
end

return response
