-- Functions of tables that OpenResty's LuaJIT has besides those of Lua, and checks of the time for those that work long
-- outside the interpreter.
local tables, texts, late, shared = ...
local next, type, select, error, floor = next, type, select, error, math.floor

function tables.isempty(t)
  if type(t) ~= "table" then error("bad argument #1 to 'isempty' (table expected, got " .. type(t) .. ")", 2) end
  return next(t) == nil
end

function tables.nkeys(t)
  if type(t) ~= "table" then error("bad argument #1 to 'nkeys' (table expected, got " .. type(t) .. ")", 2) end
  local count = 0
  for _ in next, t do count = count + 1 end
  return count
end

function tables.clone(t)
  if type(t) ~= "table" then error("bad argument #1 to 'clone' (table expected, got " .. type(t) .. ")", 2) end
  local made = {}
  for key, value in next, t do made[key] = value end
  return made
end

function tables.isarray(t)
  if type(t) ~= "table" then error("bad argument #1 to 'isarray' (table expected, got " .. type(t) .. ")", 2) end
  for key in next, t do
    if type(key) ~= "number" or key < 1 or key ~= floor(key) then return false end
  end
  return true
end

-- Elements or bytes from which on a call looks at the clock.
local MANY, LONG = 1000, 65536

local function guard(library, name, is_long)
  local native = library[name]
  library[name] = function(...)
    if is_long(...) then
      local message = late()
      if message then error(message, 2) end
    end
    return native(...)
  end
end

local function moves_many(t, place)
  return type(t) == "table" and type(place) == "number" and #t - place > MANY
end

guard(tables, "insert", function(t, place, ...) return select("#", ...) > 0 and moves_many(t, place) end)
local insert = tables.insert
function tables.insert(t, ...)
  -- It writes without regard to metatables.
  if shared[t] then error("attempt to change a table that all scripts share", 2) end
  return insert(t, ...)
end
guard(tables, "remove", moves_many)
guard(tables, "concat", function(t) return type(t) == "table" and #t > MANY end)
for _, name in next, { "lower", "upper", "reverse" } do
  guard(texts, name, function(text) return type(text) == "string" and #text > LONG end)
end
guard(texts, "rep", function(text, count)
  return type(text) == "string" and type(count) == "number" and #text * count > LONG
end)

-- Without a function, the interpreter does not count the comparisons.
local sort = tables.sort
local function is_less(left, right) return left < right end
function tables.sort(...)
  local t, compare = ...
  if compare == nil and type(t) == "table" and #t > MANY then return sort(t, is_less) end
  return sort(...)
end
