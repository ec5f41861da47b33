-- Members of `core.table`. It gets the library `table` and the gateway's `has_prefix`, and returns a table of functions.
local library, has_prefix = ...
local error, getmetatable, ipairs, next, pairs, rawset = error, getmetatable, ipairs, next, pairs, rawset
local select, setmetatable, tostring, type = select, setmetatable, tostring, type
local concat, sub, find, floor = library.concat, string.sub, string.find, math.floor
local null

local members = setmetatable({}, { __index = library })
members.insert, members.concat, members.sort = library.insert, library.concat, library.sort

local function check(value, name)
  if type(value) ~= "table" then
    error("bad argument #1 to '" .. name .. "' (table expected, got " .. type(value) .. ")", 3)
  end
end

function members.set_null(value)
  null = value
end

-- Room is not reserved: the tables of a script grow as they are filled.
function members.new()
  return {}
end

function members.clear(t)
  check(t, "clear")
  for key in next, t do rawset(t, key, nil) end
end

function members.nkeys(t)
  check(t, "nkeys")
  local count = 0
  for _ in next, t do count = count + 1 end
  return count
end

function members.clone(t)
  check(t, "clone")
  local copy = {}
  for key, value in next, t do copy[key] = value end
  return copy
end

local function isarray(t)
  check(t, "isarray")
  for key in next, t do
    if type(key) ~= "number" or key < 1 or floor(key) ~= key then return false end
  end
  return true
end
members.isarray = isarray

function members.isempty(t)
  check(t, "isempty")
  return next(t) == nil
end

function members.insert_tail(t, ...)
  local length = #t
  local count = select("#", ...)
  for place = 1, count do t[length + place] = (select(place, ...)) end
  return length + count
end

function members.set(t, ...)
  for place = 1, select("#", ...) do t[place] = (select(place, ...)) end
end

function members.try_read_attr(t, ...)
  for place = 1, select("#", ...) do
    if type(t) ~= "table" then return nil end
    t = t[(select(place, ...))]
  end
  return t
end

local function array_find(t, wanted)
  if type(t) ~= "table" then return nil end
  for place, value in ipairs(t) do
    if value == wanted then return place end
  end
  return nil
end
members.array_find = array_find

-- Whether a path is the prefix itself or lies below it.
local function lies_under(path, prefix)
  return has_prefix(path, prefix) and (#path == #prefix or sub(path, #prefix + 1, #prefix + 1) == ".")
end

local function is_shallow(options, parent, path)
  if not options then return false end
  if array_find(options.shallows, path) then return true end
  return options.shallow_prefix ~= nil and lies_under(parent, options.shallow_prefix)
end

local function copied(t, known, path, options)
  local copy = {}
  known[t] = copy
  for key, value in pairs(t) do
    local below = path .. "." .. tostring(key)
    if type(value) ~= "table" or is_shallow(options, path, below) then
      copy[key] = value
    else
      copy[key] = known[value] or copied(value, known, below, options)
    end
  end
  local metatable = getmetatable(t)
  -- Tables of the gateway hide their metatables.
  if type(metatable) == "table" then setmetatable(copy, metatable) end
  return copy
end

function members.deepcopy(value, options)
  if type(value) ~= "table" then return value end
  return copied(value, {}, "self", options)
end

local function merge(into, from)
  for key, value in pairs(from) do
    local known = into[key]
    if value == null then
      into[key] = nil
    elseif type(value) == "table" and type(known) == "table" and not isarray(known) and not isarray(value) then
      merge(known, value)
    else
      into[key] = value
    end
  end
  return into
end
members.merge = merge

-- The texts between slashes.
local function split_path(path)
  local parts, from = {}, 1
  if path == "" then return parts end
  -- A slash that is the last character after another one is a part of its own, as `ngx.re.split` has it.
  while from <= #path do
    local at = find(path, "/", from, true)
    if not at then break end
    parts[#parts + 1] = sub(path, from, at - 1)
    from = at + 1
    if from >= #path then break end
  end
  parts[#parts + 1] = sub(path, from)
  return parts
end
members.split_path = split_path

function members.patch(node, path, value)
  local parts, inner = split_path(path), node
  for place = 1, #parts - 1 do
    local name = parts[place]
    if inner[name] == nil then inner[name] = {} end
    inner = inner[name]
    if type(inner) ~= "table" then return 400, "invalid sub-path: /" .. concat(parts, "/", 1, place) end
  end
  if type(inner) ~= "table" then return 400, "invalid sub-path: /" .. path end
  local last = parts[#parts]
  if last == nil or last == "" then return nil, nil, value end
  inner[last] = value
  return nil, nil, node
end

function members.set_eq(a, b)
  if members.nkeys(a) ~= members.nkeys(b) then return false end
  for key in pairs(a) do
    if b[key] == nil then return false end
  end
  return true
end

local function deep_eq(a, b)
  if type(a) ~= "table" or type(b) ~= "table" then return a == b end
  if members.nkeys(a) ~= members.nkeys(b) then return false end
  for key, value in pairs(a) do
    if not deep_eq(value, b[key]) then return false end
  end
  return true
end
members.deep_eq = deep_eq

function members.pick(t, wanted)
  local picked = {}
  for key, value in pairs(t) do
    if wanted[key] ~= nil then picked[key] = value end
  end
  return picked
end

function members.reverse(t)
  local last = #t
  for place = 1, floor(last / 2) do
    t[place], t[last - place + 1] = t[last - place + 1], t[place]
  end
  return t
end

return members
