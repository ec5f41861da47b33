-- resty.ipmatcher, resty.jit-uuid, resty.cookie.
local native, add, gateway = ...
local type, error, ipairs, pairs, tonumber, tostring, setmetatable = type, error, ipairs, pairs, tonumber, tostring, setmetatable
local floor, sub, byte, char, sort = math.floor, string.sub, string.byte, string.char, table.sort
local band, bor, lshift, tohex = bit.band, bit.bor, bit.lshift, bit.tohex
local parse_ip, ngx = native.parse_ip, nil

-- ---------------------------------------------------------------- addresses

-- The first bits of an address, as a key.
local function prefix(address, bits)
  local whole = floor(bits / 8)
  local rest = bits - whole * 8
  if rest == 0 then return sub(address, 1, whole) end
  return sub(address, 1, whole) .. char(band(byte(address, whole + 1), lshift(0xff, 8 - rest), 0xff))
end

local matcher_methods = {}
local matcher = { __index = matcher_methods, __metatable = false }

local function new_matcher(addresses, has_values)
  if type(addresses) ~= "table" then error("missing valid ip argument", 3) end
  local made = setmetatable({ [4] = {}, [16] = {} }, matcher)
  local seen = { [4] = {}, [16] = {} }
  for key, value in (has_values and pairs or ipairs)(addresses) do
    local text = has_values and key or value
    local address, bits = tostring(text):match("^([^/]*)/(.*)$")
    address = address or tostring(text)
    local parsed = parse_ip(address)
    if not parsed then return nil, "invalid ip address: " .. address end
    bits = bits and tonumber(bits) or #parsed * 8
    if bits < 0 or bits > #parsed * 8 or bits ~= floor(bits) then return nil, "invalid ip address: " .. tostring(text) end
    local group = seen[#parsed][bits]
    if not group then
      group = { bits = bits, values = {} }
      seen[#parsed][bits] = group
      local groups = made[#parsed]
      groups[#groups + 1] = group
    end
    if has_values then group.values[prefix(parsed, bits)] = value else group.values[prefix(parsed, bits)] = true end
  end
  -- The longest prefix first.
  for _, length in ipairs({ 4, 16 }) do
    sort(made[length], function(left, right) return left.bits > right.bits end)
  end
  return made
end

local function match(self, address)
  if not address then return false, "invalid ip address, not ipv4 and ipv6" end
  for _, group in ipairs(self[#address]) do
    local value = group.values[prefix(address, group.bits)]
    if value ~= nil then return value end
  end
  return false
end

function matcher_methods:match(text)
  return match(self, type(text) == "string" and parse_ip(text))
end

function matcher_methods:match_bin(bytes)
  return match(self, type(bytes) == "string" and (#bytes == 4 or #bytes == 16) and bytes)
end

local function word(bytes, place)
  local a, b, c, d = byte(bytes, place, place + 3)
  return ((a * 256 + b) * 256 + c) * 256 + d
end

add("resty.ipmatcher", {
  _VERSION = 0.3,
  new = function(addresses) return new_matcher(addresses, false) end,
  new_with_value = function(addresses) return new_matcher(addresses, true) end,
  parse_ipv4 = function(text)
    local parsed = type(text) == "string" and parse_ip(text)
    return parsed and #parsed == 4 and word(parsed, 1) or false
  end,
  parse_ipv6 = function(text)
    local parsed = type(text) == "string" and parse_ip(text)
    if not parsed or #parsed ~= 16 then return false end
    return { word(parsed, 1), word(parsed, 5), word(parsed, 9), word(parsed, 13) }
  end,
  split_ip = function(text)
    local address, bits = text:match("^([^/]*)/(.*)$")
    if address then return address, tonumber(bits) end
    return text
  end,
})

-- ---------------------------------------------------------------- identifiers

local uuid = { _VERSION = "0.0.7" }

-- The text of 16 bytes, as a version of identifiers.
local function identifier(bytes, version)
  local digits = native.to_hex(bytes)
  return ("%s-%s-%x%s-%s%s-%s"):format(sub(digits, 1, 8), sub(digits, 9, 12), version, sub(digits, 14, 16),
    tohex(bor(band(byte(bytes, 9), 0x3f), 0x80), 2), sub(digits, 19, 20), sub(digits, 21, 32))
end

function uuid.is_valid(text)
  return type(text) == "string" and #text == 36
    and text:find("^%x%x%x%x%x%x%x%x%-%x%x%x%x%-%x%x%x%x%-[89abAB]%x%x%x%-%x%x%x%x%x%x%x%x%x%x%x%x$") ~= nil
end

function uuid.seed() end

function uuid.generate_v4() return identifier(native.random(16), 4) end

local function factory(algorithm, version)
  return function(namespace)
    if not uuid.is_valid(namespace) then return nil, "namespace must be a valid UUID" end
    local start = namespace:gsub("-", ""):gsub("%x%x", function(digits) return char(tonumber(digits, 16)) end)
    return function(name)
      if type(name) ~= "string" then return nil, "name must be a string" end
      return identifier(native.digest(algorithm, start .. name), version)
    end
  end
end

local function generate(make)
  return function(namespace, name)
    local made, problem = make(namespace)
    if not made then return nil, problem end
    return made(name)
  end
end

uuid.factory_v3, uuid.factory_v5 = factory("md5", 3), factory("sha1", 5)
uuid.generate_v3, uuid.generate_v5 = generate(uuid.factory_v3), generate(uuid.factory_v5)

-- The module itself makes one too.
native.add_value("resty.jit-uuid", gateway.share(setmetatable({}, {
  __index = uuid,
  __newindex = function() error("attempt to change `resty.jit-uuid`, which all scripts share", 2) end,
  __call = function() return uuid.generate_v4() end,
  __metatable = false,
})))

-- ---------------------------------------------------------------- cookies

local cookie_methods = {}
local cookie_metatable = { __index = cookie_methods, __metatable = false }

local function cookies_of(text)
  local cookies = {}
  for piece in text:gmatch("[^;]+") do
    local name, value = piece:match("^[ \t]*([^=]+)=(.-)[ \t]*$")
    if name then cookies[name] = value end
  end
  return cookies
end

function cookie_methods:get_all()
  if not self.text then return nil, "no cookie found in the current request" end
  self.cookies = self.cookies or cookies_of(self.text)
  return self.cookies
end

function cookie_methods:get(name)
  local cookies, problem = cookie_methods.get_all(self)
  if not cookies then return nil, problem end
  return cookies[name]
end

local attributes = {
  { "expires", "Expires" }, { "max_age", "Max-Age" }, { "domain", "Domain" }, { "path", "Path" },
  { "secure", "Secure" }, { "httponly", "HttpOnly" }, { "samesite", "SameSite" }, { "extension" },
}
local same_sites = { Strict = true, Lax = true, None = true }

function cookie_methods.set(_, cookie)
  if not cookie.key or not cookie.value then return nil, 'missing cookie field "key" or "value"' end
  local text = cookie.key .. "=" .. cookie.value
  for _, attribute in ipairs(attributes) do
    local key, name = attribute[1], attribute[2]
    local value = cookie[key]
    if key == "max_age" then value = cookie["max-age"] or value end
    if key == "samesite" and not same_sites[value] then value = nil end
    if value then
      if key == "secure" or key == "httponly" then
        text = text .. "; " .. name
      else
        text = text .. "; " .. (name and name .. "=" or "") .. value
      end
    end
  end
  ngx = ngx or gateway.base.ngx
  local all = ngx.header["Set-Cookie"]
  if type(all) ~= "table" then all = { all } end
  for _, known in ipairs(all) do
    if known == text then return true end
  end
  all[#all + 1] = text
  ngx.header["Set-Cookie"] = all
  return true
end

add("resty.cookie", {
  new = function()
    ngx = ngx or gateway.base.ngx
    return setmetatable({ text = ngx.var.http_cookie }, cookie_metatable)
  end,
})
