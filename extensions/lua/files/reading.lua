-- The library `io` for folders that the node's configuration names. `read` is a function of the gateway.
local read = ...
local error, find, sub, tonumber = error, string.find, string.sub, tonumber
local select, setmetatable, type = select, setmetatable, type

local file = {}
file.__index = file
file.__metatable = false

local function line(self, keep)
  if self.at > #self.text then return nil end
  local from, to = find(self.text, "\n", self.at, true)
  local text = sub(self.text, self.at, from and (keep and to or from - 1) or #self.text)
  self.at = (to or #self.text) + 1
  return text
end

local function part(self, format)
  if self.text == nil then error("attempt to use a closed file", 3) end
  if type(format) == "number" then
    if self.at > #self.text and format > 0 then return nil end
    local text = sub(self.text, self.at, self.at + format - 1)
    self.at = self.at + #text
    return text
  end
  format = format or "*l"
  local word = sub(format, 1, 1) == "*" and sub(format, 2, 2) or sub(format, 1, 1)
  if word == "a" then
    local text = sub(self.text, self.at)
    self.at = #self.text + 1
    return text
  elseif word == "l" then return line(self)
  elseif word == "L" then return line(self, true)
  elseif word == "n" then
    local from, to = find(self.text, "^%s*[%+%-]?[%w%.]+", self.at)
    if not from then return nil end
    self.at = to + 1
    return tonumber(sub(self.text, from, to))
  end
  error("bad argument #1 to 'read' (invalid format)", 3)
end

function file:read(...)
  local first, second = ...
  if second == nil then return part(self, first) end
  return part(self, first), file.read(self, select(2, ...))
end

function file:lines()
  return function() return part(self, "*l") end
end

function file:seek(whence, offset)
  local base = whence == "set" and 0 or whence == "end" and #self.text or self.at - 1
  self.at = base + (offset or 0) + 1
  return self.at - 1
end

function file:close()
  self.text = nil
  return true
end

local io = {}

function io.open(path, mode)
  if mode ~= nil and mode ~= "r" and mode ~= "rb" then
    return nil, path .. ": scripts may only read files", 13
  end
  local text, problem = read(path)
  if not text then return nil, problem, 2 end
  return setmetatable({ text = text, at = 1 }, file)
end

function io.lines(path)
  local opened, problem = io.open(path)
  if not opened then error(problem, 2) end
  return opened:lines()
end

return io
