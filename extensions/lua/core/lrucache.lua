-- `core.lrucache`: values by key and version, for a while. It gets a clock, and the limit of entries of one cache.
local clock, MOST = ...
local error, floor, tostring, type = error, math.floor, tostring, type

-- The least recently used entry is `newest.newer`: the list is a ring around a head.
local function unlink(entry)
  entry.older.newer, entry.newer.older = entry.newer, entry.older
end

local function put_newest(ring, entry)
  entry.older, entry.newer = ring.older, ring
  ring.older.newer, ring.older = entry, entry
end

local function new_ring(count)
  local ring = { count = 0, most = count, entries = {} }
  ring.older, ring.newer = ring, ring
  return ring
end

local function lookup(ring, key)
  local entry = ring.entries[key]
  if entry then
    unlink(entry)
    put_newest(ring, entry)
  end
  return entry
end

local function store(ring, key, value, version, ttl)
  local entry = ring.entries[key]
  if entry then
    unlink(entry)
  else
    entry = { key = key }
    ring.entries[key] = entry
    ring.count = ring.count + 1
  end
  entry.value, entry.version, entry.expires = value, version, ttl and ttl > 0 and clock() + ttl or nil
  put_newest(ring, entry)
  while ring.count > ring.most do
    local oldest = ring.newer
    unlink(oldest)
    ring.entries[oldest.key] = nil
    ring.count = ring.count - 1
  end
end

local function is_fresh(entry)
  return not entry.expires or clock() < entry.expires
end

local function number(value, default, name)
  if value == nil then return default end
  if type(value) ~= "number" then error("core.lrucache.new: `" .. name .. "` is a number", 3) end
  return value
end

local members = {}

function members.new(options)
  options = options or {}
  local is_of_plugin = options.type == "plugin"
  local count = number(options.count, is_of_plugin and 8 or 1024, "count")
  local ttl = number(options.ttl, is_of_plugin and 300 or 3600, "ttl")
  if count < 1 or count > MOST then error("core.lrucache.new: `count` is between 1 and " .. MOST, 2) end
  local ring, failures = new_ring(floor(count)), nil
  if options.neg_ttl and options.neg_count then failures = new_ring(options.neg_count) end

  return function(key, version, create, ...)
    if failures then
      local failure = lookup(failures, key)
      if failure and failure.version == version and is_fresh(failure) then return nil, failure.value end
    end
    local entry = lookup(ring, key)
    if entry and entry.version == version then
      if is_fresh(entry) then return entry.value end
      if not options.invalid_stale then
        -- The version says that it is right: an old value is used again.
        store(ring, key, entry.value, version, ttl)
        return entry.value
      end
    end
    local value, err = create(...)
    if value ~= nil then
      store(ring, key, value, version, ttl)
    elseif failures then
      store(failures, key, err, version, options.neg_ttl)
    end
    return value, err
  end
end

local function key_of(ctx, extra)
  local key = tostring(ctx.conf_type) .. "#" .. tostring(ctx.conf_id)
  if extra then key = key .. "#" .. extra end
  return key, ctx.conf_version
end

function members.plugin_ctx(cache, ctx, extra, create, ...)
  local key, version = key_of(ctx, extra)
  return cache(key, version, create, ...)
end

function members.plugin_ctx_id(ctx, extra)
  local key, version = key_of(ctx, extra)
  return key .. "#" .. tostring(version)
end

-- The cache of all scripts.
local shared = members.new()
function members.global(...) return shared(...) end

return members, function() shared = members.new() end
