-- resty.lrucache: the entries of a cache are a ring in the order of use. The entry `head` of the ring holds nothing.
local native = ...
local now, setmetatable, type, error = native.now, setmetatable, type, error
local methods = {}
local metatable = { __index = methods, __metatable = false }

local function unlink(entry)
  entry.before.after, entry.after.before = entry.after, entry.before
end

local function link_first(head, entry)
  entry.before, entry.after = head, head.after
  head.after.before = entry
  head.after = entry
end

local function new(size)
  if type(size) ~= "number" then error("size must be a number", 2) end
  if size < 1 then return nil, "size too small" end
  local head = {}
  head.before, head.after = head, head
  return setmetatable({ entries = {}, head = head, most = size, length = 0 }, metatable)
end

function methods:get(key)
  local entry = self.entries[key]
  if not entry then return nil end
  unlink(entry)
  link_first(self.head, entry)
  if entry.expires and entry.expires < now() then return nil, entry.value, entry.flags end
  return entry.value, nil, entry.flags
end

function methods:delete(key)
  local entry = self.entries[key]
  if not entry then return false end
  self.entries[key] = nil
  self.length = self.length - 1
  unlink(entry)
  return true
end

function methods:set(key, value, ttl, flags)
  local entry = self.entries[key]
  if entry then
    unlink(entry)
  else
    if self.length >= self.most then methods.delete(self, self.head.before.key) end
    entry = { key = key }
    self.entries[key] = entry
    self.length = self.length + 1
  end
  entry.value, entry.expires = value, ttl and now() + ttl
  entry.flags = type(flags) == "number" and flags >= 0 and flags or 0
  link_first(self.head, entry)
end

function methods:count() return self.length end
function methods:capacity() return self.most end

function methods:get_keys(most, result)
  result = result or {}
  local length, entry = 0, self.head.after
  while entry ~= self.head and (not most or most == 0 or length < most) do
    length = length + 1
    result[length] = entry.key
    entry = entry.after
  end
  result[length + 1] = nil
  return result
end

function methods:flush_all()
  local head = self.head
  self.entries, self.length = {}, 0
  head.before, head.after = head, head
end

return { new = new }
