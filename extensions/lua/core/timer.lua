-- `core.timer`: a function that runs again and again, one run at a time.
local ngx, log = ...
local pcall = pcall

local timer = {}

local function run(self)
  self.start_time = ngx.now()
  repeat
    local ok, problem = pcall(self.callback_fun)
    local pause = self.sleep_succ
    if not ok then
      log.error("failed to run the timer: ", self.name, " err: ", problem)
      pause = self.sleep_fail
    end
    if pause > 0 then ngx.sleep(pause) end
    ngx.update_time()
  until self.each_ttl <= 0 or ngx.now() >= self.start_time + self.each_ttl
end

local function due(premature, self)
  if self.running or premature then return end
  self.running = true
  local ok, problem = pcall(run, self)
  if not ok then log.error("failed to run timer[", self.name, "] err: ", problem) end
  self.running = false
end

function timer.new(name, callback, options)
  if not name then return nil, "missing argument: name" end
  if not callback then return nil, "missing argument: callback_fun" end
  options = options or {}
  local made = {
    name = name,
    each_ttl = options.each_ttl or 1,
    sleep_succ = options.sleep_succ or 1,
    sleep_fail = options.sleep_fail or 5,
    start_time = 0,
    callback_fun = callback,
    running = false,
  }
  local ok, problem = ngx.timer.every(options.check_interval or 1, due, made)
  if not ok then return nil, problem end
  ok, problem = ngx.timer.at(0, due, made)
  if not ok then return nil, problem end
  return made
end

return timer
