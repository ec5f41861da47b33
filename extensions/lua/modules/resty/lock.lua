-- `resty.lock`: locks that all workers share, in a dictionary of `ngx.shared`.
local ngx, setmetatable, tonumber, type = ngx, setmetatable, tonumber, type
local min = math.min

local lock = {}
lock.__index = lock
lock.__metatable = false

-- Times are in seconds.
local function option(options, name, default)
  local value = tonumber(options and options[name])
  return value and value >= 0 and value or default
end

local module = {}

function module.new(_, name, options)
  local dictionary = type(name) == "table" and name or ngx.shared[name]
  if not dictionary then return nil, "dictionary not found" end
  return setmetatable({
    dictionary = dictionary,
    exptime = option(options, "exptime", 30),
    timeout = option(options, "timeout", 5),
    step = option(options, "step", 0.001),
    ratio = option(options, "ratio", 2),
    max_step = option(options, "max_step", 0.5),
  }, lock)
end

-- Waits for the lock of a key. Returns the seconds of the wait.
function lock:lock(key)
  if key == nil then return nil, "nil key" end
  if self.key ~= nil then return nil, "locked" end
  local waited, step = 0, self.step
  while true do
    local added, problem = self.dictionary:add(key, true, self.exptime)
    if added then
      self.key = key
      return waited
    end
    if problem ~= "exists" then return nil, problem end
    if waited >= self.timeout then return nil, "timeout" end
    -- A step of 0 would never let time pass.
    step = min(step > 0 and step or 0.001, self.timeout - waited, self.max_step)
    ngx.sleep(step)
    waited = waited + step
    step = step * self.ratio
  end
end

function lock:unlock()
  local key = self.key
  if key == nil then return nil, "unlocked" end
  self.key = nil
  local ok, problem = self.dictionary:delete(key)
  if not ok then return nil, problem end
  return 1
end

-- Sets the time after which the lock ends by itself.
function lock:expire(time)
  if self.key == nil then return nil, "unlocked" end
  local ok, problem = self.dictionary:replace(self.key, true, time or self.exptime)
  if not ok then
    if problem ~= "not found" then return nil, problem end
    self.key = nil
    return nil, problem
  end
  return true
end

return module
