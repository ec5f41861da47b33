-- `core.request`, made of the functions of `ngx`. `decode` makes a table of JSON, or returns nil and a message.
local ngx, decode = ...
local req, var, log = ngx.req, ngx.var, ngx.log
local error, type, tonumber, tostring = error, type, tonumber, tostring
local find, format, lower = string.find, string.format, string.lower

local request = {}

local function ctx_of(ctx)
  if ctx ~= nil then return ctx end
  return ngx.ctx.api_ctx
end

function request.headers(ctx)
  return (req.get_headers())
end

function request.header(ctx, name)
  local value = req.get_headers(0)[name]
  if type(value) == "table" then return value[1] end
  return value
end

local function change(word, set, ctx, name, value)
  if type(ctx) == "string" then
    log(ngx.WARN, "DEPRECATED: use " .. word .. "(ctx, header_name, header_value) instead")
    ctx, name, value = nil, ctx, name
  end
  if type(name) ~= "string" then
    error(format("invalid header name %q: got %s, expected string", tostring(name), type(name)), 3)
  end
  set(name, value)
  -- A value that a script has set under this name is that of the earlier field.
  if type(ctx) == "table" and ctx.var then ctx.var["http_" .. lower(name)] = nil end
end

function request.set_header(ctx, name, value) change("set_header", req.set_header, ctx, name, value) end
function request.add_header(ctx, name, value) change("add_header", req.add_header, ctx, name, value) end

function request.get_ip(ctx)
  local vars = ctx_of(ctx).var
  return vars.realip_remote_addr or vars.remote_addr or ""
end

function request.get_remote_client_ip(ctx) return ctx_of(ctx).var.remote_addr or "" end
function request.get_remote_client_port(ctx) return tonumber(ctx_of(ctx).var.remote_port) end
function request.get_scheme(ctx) return ctx_of(ctx).var.scheme or "" end
function request.get_host(ctx) return ctx_of(ctx).var.host or "" end
function request.get_port(ctx) return tonumber(ctx_of(ctx).var.server_port) end
request.get_http_version = req.http_version
request.get_method = req.get_method

function request.get_uri_args(ctx)
  ctx = ctx_of(ctx)
  local args = ctx.req_uri_args
  if args == nil then
    args = req.get_uri_args(0)
    ctx.req_uri_args = args
  end
  return args
end

function request.set_uri_args(ctx, args)
  ctx_of(ctx).req_uri_args = nil
  return req.set_uri_args(args)
end

function request.get_post_args(ctx, most)
  ctx = ctx_of(ctx)
  local args = ctx.req_post_args
  if args == nil then
    req.read_body()
    args = req.get_post_args(most or 100)
    ctx.req_post_args = args
  end
  return args
end

local function too_large(size, most)
  return "request size " .. size .. " is greater than the maximum size " .. most .. " allowed"
end

function request.get_body(most, ctx)
  if most then
    local length = tonumber(var.http_content_length)
    if length and length > most then
      -- The client need not send it then.
      if lower(var.http_expect or "") == "100-continue" then req.clear_header("Expect") end
      return nil, too_large(length, most)
    end
  end
  req.read_body()
  local body = req.get_body_data()
  if body and most and #body > most then return nil, too_large(#body, most) end
  return body
end

function request.get_json_request_body_table(most)
  local ctx = ngx.ctx.api_ctx
  if ctx._request_body_table ~= nil then return ctx._request_body_table end
  local body, problem = request.get_body(type(most) == "number" and most or nil, ctx)
  if not body then return nil, { message = "could not get body: " .. (problem or "request body is empty") } end
  local value
  value, problem = decode(body)
  if value == nil then return nil, { message = "could not parse JSON request body: " .. problem } end
  ctx._request_body_table = value
  return value
end

return request
