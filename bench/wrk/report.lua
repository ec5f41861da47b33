-- Shapes one wrk run by its arguments and prints its result on one line:
--   wrk ... -s report.lua URL -- METHOD BODY_BYTES CONNECTION [KEYS [AUTHORIZATION]]
-- METHOD is the request's method, BODY_BYTES the length of its body, CONNECTION is "keep" or "close".
-- With KEYS other than 0, requests take turns with the values key-0 to key-(KEYS-1) of the field apikey; with
-- AUTHORIZATION they all have this value of that field.

function init(args)
  wrk.method = args[1] or "GET"
  local body = tonumber(args[2] or "0")
  if body > 0 then wrk.body = string.rep("x", body) end
  if args[3] == "close" then wrk.headers["Connection"] = "close" end
  if args[5] then wrk.headers["Authorization"] = args[5] end
  local keys = tonumber(args[4] or "0")
  if keys > 0 then take_turns(keys) end
end

-- The requests are made before the first one is sent: the load generator must cost the same with many keys.
function take_turns(keys)
  local requests = {}
  for i = 1, keys do
    wrk.headers["apikey"] = "key-" .. (i - 1)
    requests[i] = wrk.format()
  end
  local next = 0
  request = function()
    next = next % keys + 1
    return requests[next]
  end
end

function done(summary, latency, requests)
  local e = summary.errors
  print(string.format("result requests=%d micros=%d bytes=%d status=%d socket=%d timeout=%d p50=%d p99=%d",
    summary.requests, summary.duration, summary.bytes, e.status,
    e.connect + e.read + e.write, e.timeout, latency:percentile(50), latency:percentile(99)))
end
