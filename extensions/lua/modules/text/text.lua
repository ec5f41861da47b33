-- Functions of the library of texts that call functions of scripts, or keep a place between calls. They are Lua, so that
-- errors of scripts pass as they are.
--
-- `step` returns the text of an error to raise, the bytes before the match, those to its end, and its captures; and
-- `replace` and `check` return the text of an error, and then their results.
local text, step, replace, check = ...
local error, type, concat = error, type, table.concat
local sub = text.sub

local function finish(message, ...)
  if message then error(message, 2) end
  return ...
end

function text.gmatch(subject, pattern)
  local message
  message, subject, pattern = check(subject, pattern)
  if message then error(message, 2) end
  local place = 0
  local function found(message, from, to, ...)
    if message then error(message, 3) end
    if not from then
      place = #subject + 1
      return nil
    end
    place = from == to and to + 1 or to
    return ...
  end
  return function()
    if place > #subject then return nil end
    return found(step(subject, pattern, place, false))
  end
end

local function by_value(subject, pattern, replacement, most)
  local is_table = type(replacement) == "table"
  local pieces, length, count, copied, place = {}, 0, 0, 0, 0

  local function add(message, from, to, ...)
    if message or not from then return message end
    local value
    if is_table then value = replacement[(...)] else value = replacement(...) end
    if not value then
      value = sub(subject, from + 1, to)
    elseif type(value) ~= "string" and type(value) ~= "number" then
      return "invalid replacement value (a " .. type(value) .. ")"
    end
    pieces[length + 1] = sub(subject, copied + 1, from)
    pieces[length + 2] = value
    length = length + 2
    count = count + 1
    copied, place = to, from == to and to + 1 or to
    return nil, true
  end

  while count < most and place <= #subject do
    local message, is_found = add(step(subject, pattern, place, true, is_table))
    if message then return message end
    if not is_found or sub(pattern, 1, 1) == "^" then break end
  end
  pieces[length + 1] = sub(subject, copied + 1)
  return nil, concat(pieces), count
end

function text.gsub(subject, pattern, replacement, most)
  local kind = type(replacement)
  if kind ~= "function" and kind ~= "table" then
    return finish(replace(subject, pattern, replacement, most))
  end
  local message
  message, subject, pattern, most = check(subject, pattern, most)
  if message then error(message, 2) end
  return finish(by_value(subject, pattern, replacement, most))
end
