-- Runs once when a state is made. It gets the libraries that scripts may use and the functions of the gateway, and
-- returns what the gateway calls.
--
-- A function of the gateway returns nil, or the text of an error, and then its results: so errors are texts with the
-- place of the script, as those of C functions are. A function that waits returns true where it has to wait; then the
-- coroutine yields WISH, and is resumed with the results.
local libraries, WISH, is_spent, note_shown = ...
local error, getfenv, setfenv, setmetatable, type, xpcall = error, getfenv, setfenv, setmetatable, type, xpcall
local pcall, find, gsub = pcall, string.find, string.gsub
local traceback, rawset, next, tostring = libraries.debug.traceback, rawset, next, tostring
local co_create, co_resume, co_yield = coroutine.create, coroutine.resume, coroutine.yield
local co_running, co_status = coroutine.running, coroutine.status

local function finish(message, ...)
  if message ~= nil then error(message, 2) end
  return ...
end

local function finish_wait(message, waits, ...)
  if message ~= nil then error(message, 2) end
  if waits then return finish(co_yield(WISH)) end
  return ...
end

local gateway = {}

function gateway.checked(f)
  return function(...) return finish(f(...)) end
end

function gateway.waiting(f)
  return function(...) return finish_wait(f(...)) end
end

-- As waiting, for a function that need not wait: callbacks of C functions cannot yield.
local isyieldable = coroutine.isyieldable
local function finish_writing(message, waits, ...)
  if waits and not isyieldable() then return 1 end
  return finish_wait(message, waits, ...)
end

function gateway.writing(f)
  return function(...) return finish_writing(f(...)) end
end

-- Tables that all scripts share. Functions that write without regard to metatables refuse them.
local shared = setmetatable({}, { __mode = "k" })
gateway.shared = shared

local function share(t)
  shared[t] = true
  return t
end
gateway.share = share

function libraries.rawset(t, key, value)
  if shared[t] then error("attempt to change a table that all scripts share", 2) end
  return rawset(t, key, value)
end

-- A table that scripts can read and not change.
local function readonly(real, name)
  return share(setmetatable({}, {
    __index = real,
    __newindex = function(_, key) error("attempt to change `" .. name .. "." .. tostring(key) .. "`, which all scripts share", 2) end,
    __metatable = false,
  }))
end
gateway.readonly = readonly

-- A table of functions: `get(key)` and `set(key, value)`, each with an error first.
function gateway.proxy(get, set)
  return share(setmetatable({}, {
    __index = function(_, key) return finish(get(key)) end,
    __newindex = function(_, key, value) return finish(set(key, value)) end,
    __metatable = false,
  }))
end

-- A table with constants and functions, besides members that are computed.
function gateway.object(real, get, set)
  setmetatable(real, { __index = function(_, key) return finish(get(key)) end })
  return share(setmetatable({}, {
    __index = real,
    __newindex = function(_, key, value) return finish(set(key, value)) end,
    __metatable = false,
  }))
end

-- C functions that call functions of scripts, and coroutines, take room on the stack of the thread, which has no other
-- limit: so calls within each other are counted. `depth` is right after errors too, since they pass `bounded`.
local MOST_NESTED, depth = 50, 0

local function bounded(name, ok, ...)
  depth = depth - 1
  if ok then return ... end
  local problem = ...
  if type(problem) == "string" and find(problem, "bad argument", 1, true) == 1 then
    error((gsub(problem, "to '%?'", "to '" .. name .. "'", 1)), 2)
  end
  error(problem, 0)
end

local function bounding(library, name)
  local f = library[name]
  library[name] = function(...)
    if depth >= MOST_NESTED then error("stack overflow: too many callbacks within each other", 2) end
    depth = depth + 1
    return bounded(name, pcall(f, ...))
  end
end

for name, members in next, { string = { "format", "gsub" }, table = { "sort" } } do
  for at = 1, #members do
    bounding(getfenv()[name], members[at])
    libraries[name][members[at]] = getfenv()[name][members[at]]
  end
end

local function resumed(...)
  depth = depth - 1
  return ...
end

local resume = co_resume
local function co_resume(co, ...)
  if depth >= MOST_NESTED then return false, "stack overflow: too many coroutines within each other" end
  depth = depth + 1
  return resumed(resume(co, ...))
end

-- Coroutines of scripts: a wait of one is a wait of the whole script.
local coroutines = {}

-- The handler runs where the error is raised. After the end of the budget that is within the hook, where no further hook
-- would end it, so it does not run then.
function libraries.xpcall(f, handler, ...)
  return xpcall(f, function(problem)
    if is_spent() then return problem end
    return handler(problem)
  end, ...)
end

local function pass(co, ok, ...)
  if ok and (...) == WISH then return pass(co, co_resume(co, co_yield(WISH))) end
  return ok, ...
end

local function unwrap(ok, ...)
  if not ok then error((...), 0) end
  return ...
end

coroutines.status, coroutines.yield = co_status, co_yield

-- A coroutine of the gateway that a script has seen runs nothing else later: the script could resume it.
function coroutines.running()
  note_shown()
  return co_running()
end

-- The words of OpenResty.
local NO_FUNCTION = "bad argument #1 to '?' (Lua function expected)"

function coroutines.create(f)
  if type(f) ~= "function" then error(NO_FUNCTION, 2) end
  return co_create(f)
end

function coroutines.resume(co, ...)
  return pass(co, co_resume(co, ...))
end

function coroutines.wrap(f)
  if type(f) ~= "function" then error(NO_FUNCTION, 2) end
  local co = co_create(f)
  return function(...) return unwrap(pass(co, co_resume(co, ...))) end
end

libraries.coroutine = coroutines

-- After the end of the budget the hook stops `bounded` and `resumed` before they count down.
function gateway.reset()
  depth = 0
end

-- Environments belong to scripts. Functions of the gateway have environments that all scripts would share: scripts get
-- an empty table instead, and cannot set another one.
local of_gateway = setmetatable({ [getfenv()] = true }, { __mode = "k" })
function gateway.environment_of_gateway()
  local environment = gateway.environment()
  of_gateway[environment] = true
  return environment
end

local function shown(environment)
  return of_gateway[environment] and readonly({}, "the gateway") or environment
end

local function environment_of(f)
  if type(f) == "function" then return getfenv(f) end
  local level = f == nil and 1 or f
  if type(level) ~= "number" or level < 1 then error("getfenv takes a function or a level from 1 on", 3) end
  return getfenv(level + 2)
end

function libraries.getfenv(f)
  return shown((environment_of(f)))
end

function libraries.setfenv(f, environment)
  local target = f
  if type(f) == "number" then
    if f < 1 then error("setfenv takes a function or a level from 1 on", 2) end
    target = f + 1
  end
  if of_gateway[getfenv(target)] then error("'setfenv' cannot change environment of given object", 2) end
  return setfenv(target, environment)
end

local base = {}
for name, library in next, libraries do
  base[name] = type(library) == "table" and readonly(library, name) or library
end
gateway.base = base

-- The globals of one script: a forgotten `local` is no channel to another script.
local of_base = { __index = base, __metatable = false }
function gateway.environment()
  local environment = setmetatable({}, of_base)
  rawset(environment, "_G", environment)
  return environment
end

local function text_of(problem)
  if type(problem) == "string" or type(problem) == "number" then return traceback(problem, 2) end
  if type(problem) == "userdata" then return tostring(problem) end
  return "unknown reason"
end

-- Runs a function to its end: true and its results, or false and the text of the error.
function gateway.run(f, ...)
  return xpcall(f, text_of, ...)
end

local function with_problem(kept, ok, ...)
  if ok then return ok, ... end
  return false, (...), kept[1]
end

-- As run, for a light thread: after a failure also the value of the error, which `ngx.thread.wait` returns.
function gateway.run_thread(f, ...)
  local kept = {}
  return with_problem(kept, xpcall(f, function(problem)
    kept[1] = problem
    return text_of(problem)
  end, ...))
end

-- Runs functions in order until one returns something.
function gateway.run_all(functions, ...)
  for index = 1, #functions do
    local code, body = functions[index](...)
    if code ~= nil or body ~= nil then return code, body end
  end
end

return gateway
