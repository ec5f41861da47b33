-- socket.url and net.url: parts of addresses.
local add = ...
local ipairs, pairs, setmetatable, tonumber, tostring, type = ipairs, pairs, setmetatable, tonumber, tostring, type
local byte, char, find, format, gmatch, gsub = string.byte, string.char, string.find, string.format, string.gmatch, string.gsub
local lower, match, sub = string.lower, string.match, string.sub
local concat, sort = table.concat, table.sort

local function escaped(text)
  return (gsub(text, "[^A-Za-z0-9_]", function(c) return format("%%%02x", byte(c)) end))
end

local function unescaped(text)
  return (gsub(text, "%%(%x%x)", function(digits) return char(tonumber(digits, 16)) end))
end

-- Takes a part out of a text: the rest, and the part.
local function taken(text, pattern)
  local part
  text = gsub(text, pattern, function(found)
    part = found
    return ""
  end, 1)
  return text, part
end

-- A path without `.` and `..` (RFC 3986, 5.2.4).
local function resolved_path(path)
  local segments, is_folder = {}, false
  for segment in gmatch(path, "[^/]*/?") do
    local name = match(segment, "^[^/]*")
    if segment ~= "" then is_folder = name == "." or name == ".." or sub(segment, -1) == "/" end
    if name == ".." then
      segments[#segments] = nil
    elseif name ~= "." and segment ~= "" and not (name == "" and #segments == 0) then
      segments[#segments + 1] = name
    end
  end
  local whole = concat(segments, "/")
  if sub(path, 1, 1) == "/" then whole = "/" .. whole end
  return is_folder and #segments > 0 and whole .. "/" or whole
end

-- A relative path as seen from another one.
local function joined_path(base, path)
  if sub(path, 1, 1) == "/" then return resolved_path(path) end
  return resolved_path((gsub(base, "[^/]*$", "")) .. path)
end

-- ---------------------------------------------------------------- socket.url

local url = { _VERSION = "URL 1.0.3", escape = escaped, unescape = unescaped }

function url.parse(text, default)
  if not text or text == "" then return nil, "invalid url" end
  local parsed = {}
  for name, value in pairs(default or {}) do parsed[name] = value end
  local function take(name, pattern)
    local rest, part = taken(text, pattern)
    text = rest
    if part then parsed[name] = part end
  end
  take("scheme", "^([%w][%w%+%-%.]*)%:")
  take("authority", "^//([^/%?#]*)")
  take("fragment", "#(.*)$")
  take("query", "%?(.*)")
  take("params", "%;(.*)")
  if text ~= "" then parsed.path = text end
  if not parsed.authority then return parsed end
  text = parsed.authority
  take("userinfo", "^([^@]*)@")
  take("port", ":([^:%]]*)$")
  if text ~= "" then parsed.host = match(text, "^%[(.+)%]$") or text end
  if parsed.userinfo then
    text = parsed.userinfo
    take("password", ":([^:]*)$")
    parsed.user = text
  end
  return parsed
end

function url.build(parsed)
  local text = parsed.path or ""
  if parsed.params then text = text .. ";" .. parsed.params end
  if parsed.query then text = text .. "?" .. parsed.query end
  local authority = parsed.authority
  if parsed.host then
    authority = find(parsed.host, ":", 1, true) and "[" .. parsed.host .. "]" or parsed.host
    if parsed.port then authority = authority .. ":" .. parsed.port end
    local userinfo = parsed.userinfo
    if parsed.user then userinfo = parsed.password and parsed.user .. ":" .. parsed.password or parsed.user end
    if userinfo then authority = userinfo .. "@" .. authority end
  end
  if authority then text = "//" .. authority .. text end
  if parsed.scheme then text = parsed.scheme .. ":" .. text end
  if parsed.fragment then text = text .. "#" .. parsed.fragment end
  return text
end

function url.absolute(base, relative)
  local from = type(base) == "table" and base or url.parse(base)
  local to = url.parse(relative)
  if not to then return url.build(from) end
  if not from or to.scheme then return relative end
  to.scheme = from.scheme
  if not to.authority then
    to.authority = from.authority
    if not to.path then
      to.path = from.path
      if not to.params then
        to.params = from.params
        to.query = to.query or from.query
      end
    else
      to.path = joined_path(from.path or "/", to.path)
    end
  end
  return url.build(to)
end

function url.parse_path(path)
  local parsed = {}
  for segment in gmatch(path or "", "[^/]+") do parsed[#parsed + 1] = unescaped(segment) end
  if sub(path or "", 1, 1) == "/" then parsed.is_absolute = 1 end
  if sub(path or "", -1) == "/" then parsed.is_directory = 1 end
  return parsed
end

function url.build_path(parsed, is_escaped)
  local segments = {}
  for place, segment in ipairs(parsed) do segments[place] = is_escaped and segment or escaped(segment) end
  local path = concat(segments, "/")
  if parsed.is_directory and #segments > 0 then path = path .. "/" end
  if parsed.is_absolute then path = "/" .. path end
  return path
end

add("socket.url", url)

-- ---------------------------------------------------------------- net.url

local net = { version = "1.1.0" }
local methods, of_query = {}, {}
local of_url = { __index = methods, __metatable = false }

local function encoded(text)
  return (gsub(tostring(text), "[^%w%-%._~]", function(c) return c == " " and "+" or format("%%%02X", byte(c)) end))
end

local function names_of(t)
  local names = {}
  for name in pairs(t) do names[#names + 1] = name end
  sort(names, function(left, right)
    if type(left) == type(right) then return left < right end
    return type(left) == "number"
  end)
  return names
end

function net.buildQuery(query, separator, key)
  local pieces = {}
  for _, name in ipairs(names_of(query)) do
    local value, shown = query[name], encoded(name)
    if key then shown = key .. "[" .. shown .. "]" end
    if type(value) == "table" then
      pieces[#pieces + 1] = net.buildQuery(value, separator, shown)
    elseif tostring(value) ~= "" then
      pieces[#pieces + 1] = shown .. "=" .. encoded(value)
    else
      pieces[#pieces + 1] = shown
    end
  end
  return concat(pieces, separator or "&")
end
of_query.__tostring = function(query) return net.buildQuery(query) end
of_query.__metatable = false

-- The key of a member: an empty one is the next place.
local function key_in(t, member)
  return member == "" and #t + 1 or tonumber(member) or member
end

function net.parseQuery(text, separator)
  local query = {}
  for pair in gmatch(text, "[^" .. (separator or "&") .. "]+") do
    local key, value = match(pair, "^([^=]*)=?(.*)$")
    key, value = unescaped((gsub(key, "+", " "))), unescaped((gsub(value, "+", " ")))
    local name, inner = match(key, "^([^%[]+)(%[.*%])$")
    if not name then
      local known = query[key]
      if known == nil then
        query[key] = value
      elseif type(known) == "table" then
        known[#known + 1] = value
      else
        query[key] = { known, value }
      end
    else
      local place, names = query, { name }
      for member in gmatch(inner, "%[([^%]]*)%]") do names[#names + 1] = member end
      for at = 1, #names - 1 do
        local member = key_in(place, names[at])
        if type(place[member]) ~= "table" then place[member] = {} end
        place = place[member]
      end
      place[key_in(place, names[#names])] = value
    end
  end
  return setmetatable(query, of_query)
end

function net.parse(text)
  local made = setmetatable({}, of_url)
  text = tostring(text or "")
  local rest, part = taken(text, "#(.*)$")
  made.fragment = part
  rest, part = taken(rest, "^([%w][%w%+%-%.]*)%:")
  made.scheme = part and lower(part)
  rest, part = taken(rest, "%?(.*)")
  made.query = net.parseQuery(part or "")
  rest, part = taken(rest, "^//([^/]*)")
  if part then methods.setAuthority(made, part) end
  made.path = unescaped(rest)
  return made
end

function methods:setAuthority(authority)
  self.authority, self.userinfo, self.user, self.password, self.host, self.port = authority, nil, nil, nil, nil, nil
  local rest, part = taken(authority, "^([^@]*)@")
  self.userinfo = part
  rest, part = taken(rest, ":(%d+)$")
  self.port = tonumber(part)
  if rest ~= "" then self.host = lower(rest) end
  if self.userinfo then self.user, self.password = match(self.userinfo, "^([^:]*):?(.*)$") end
  if self.password == "" then self.password = nil end
  return authority
end

function methods:setQuery(query)
  self.query = type(query) == "table" and setmetatable({}, of_query) or net.parseQuery(query)
  if type(query) == "table" then
    for name, value in pairs(query) do self.query[name] = value end
  end
  return query
end

function methods:addSegment(segment)
  if type(segment) == "string" then self.path = gsub(self.path or "", "/$", "") .. "/" .. gsub(segment, "^/+", "") end
  return self
end

function methods:build()
  local text = gsub(self.path or "", "[^%w%-%._~!$&'()*+,;=:@/]", function(c) return format("%%%02X", byte(c)) end)
  local query = self.query and tostring(self.query) or ""
  if query ~= "" then text = text .. "?" .. query end
  local authority = self.host
  if authority then
    if self.port then authority = authority .. ":" .. self.port end
    local userinfo = self.user and (self.password and self.user .. ":" .. self.password or self.user)
    if userinfo and userinfo ~= "" then authority = userinfo .. "@" .. authority end
    if text ~= "" and sub(text, 1, 1) ~= "/" and sub(text, 1, 1) ~= "?" then text = "/" .. text end
    text = "//" .. authority .. text
  end
  if self.scheme then text = self.scheme .. ":" .. text end
  if self.fragment then text = text .. "#" .. self.fragment end
  return text
end
of_url.__tostring = methods.build
of_url.__div = function(self, segment)
  return net.parse(self:build()):addSegment(segment)
end

local PORTS = { http = 80, https = 443, ftp = 21, ws = 80, wss = 443 }

function methods:normalize()
  if self.port and self.port == PORTS[self.scheme] then self.port = nil end
  self.path = resolved_path(self.path or "")
  if self.host and self.path == "" then self.path = "/" end
  return self
end

function methods:resolve(other)
  return net.parse(url.absolute(self:build(), tostring(other)))
end

for _, name in ipairs({ "build", "normalize", "resolve", "setAuthority", "setQuery", "addSegment" }) do
  net[name] = methods[name]
end
net.removeDotSegments = resolved_path

add("net.url", net)
