-- The functions of ngx.re that call functions of scripts or keep a place between calls. They are Lua, so that a script
-- may wait in a replacement function.
--
-- `compile`, `step` and `replace` return nil or the text of an error to raise, and then their results.
local re, module, compile, step, replace, text_of = ...
local error, type, concat = error, type, table.concat
local sub = string.sub

-- The text of any value.
local function as_text(value)
  if type(value) == "string" then return value end
  local message, text = text_of(value)
  if message then error(message, 3) end
  return text
end

function re.gmatch(subject, regex, flags)
  subject = as_text(subject)
  local message, problem = compile(regex, flags)
  if message then error(message, 2) end
  if problem then return nil, problem end
  local place = 0
  return function()
    if not place then return nil end
    local message, from, to, captures, following = step(subject, regex, flags, place, true)
    if message then error(message, 2) end
    if not from then
      place = nil
      return nil, to
    end
    place = following
    if place > #subject and from == to then place = nil end
    return captures
  end
end

local function replace_by_function(subject, regex, replacement, flags, is_global)
  local pieces, count, copied, place = {}, 0, 0, 0
  while place <= #subject do
    local message, from, to, captures, following = step(subject, regex, flags, place, true)
    if message then return message end
    if not from then
      if to then return nil, nil, nil, to end
      break
    end
    count = count + 1
    local message, piece = text_of(replacement(captures))
    if message then return message end
    pieces[#pieces + 1] = sub(subject, copied + 1, from)
    pieces[#pieces + 1] = piece
    copied, place = to, following
    if not is_global then break end
  end
  pieces[#pieces + 1] = sub(subject, copied + 1)
  return nil, concat(pieces), count
end

local function finish(message, ...)
  if message then error(message, 2) end
  return ...
end

local function substitute(is_global)
  return function(subject, regex, replacement, flags)
    if type(replacement) ~= "function" then
      return finish(replace(subject, regex, replacement, flags, is_global))
    end
    local message, problem = compile(regex, flags)
    if message then error(message, 2) end
    if problem then return nil, nil, problem end
    return finish(replace_by_function(as_text(subject), regex, replacement, flags, is_global))
  end
end

re.sub = substitute(false)
re.gsub = substitute(true)

-- Pieces between matches. Empty matches split between characters; without a limit, empty pieces at the end are left out.
function module.split(subject, regex, flags, ctx, most, result)
  subject = as_text(subject)
  local start = ctx and ctx.pos or 1
  most, result = most or 0, result or {}
  if type(result) ~= "table" then error("res is not a table", 2) end
  if start > #subject then
    result[1] = nil
    return result
  end
  local message, problem = compile(regex, flags)
  if message then error(message, 2) end
  if problem then return nil, problem end
  local count, length, place, empty = 1, 0, start - 1, nil
  while most <= 0 or count < most do
    local message, from, to, capture, following = step(subject, regex, flags, place, false)
    if message then error(message, 2) end
    if not from then
      if to then return nil, to end
      break
    end
    place = following
    if empty then start = empty end
    if from == to then empty = from + 1 end
    if from + 1 > start or not empty then
      count = count + 1
      length = length + 1
      result[length] = sub(subject, start, from)
      if capture then
        length = length + 1
        result[length] = capture
      end
      start = to + 1
      if start > #subject then break end
    end
  end
  if ctx then ctx.pos = place end
  if most <= 0 and start > #subject then
    while length > 0 and result[length] == "" do
      result[length] = nil
      length = length - 1
    end
  else
    length = length + 1
    result[length] = sub(subject, start)
  end
  result[length + 1] = nil
  return result
end

-- Patterns are not compiled to machine code, so the one option changes nothing.
function module.opt(name)
  if name ~= "jit_stack_size" then error("unrecognized option name", 2) end
end
