-- Shapes one wrk run by its arguments and prints its result on one line:
--   wrk ... -s report.lua URL -- METHOD BODY_BYTES CONNECTION
-- METHOD is the request's method, BODY_BYTES the length of its body, CONNECTION is "keep" or "close".

function init(args)
  wrk.method = args[1] or "GET"
  local body = tonumber(args[2] or "0")
  if body > 0 then wrk.body = string.rep("x", body) end
  if args[3] == "close" then wrk.headers["Connection"] = "close" end
end

function done(summary, latency, requests)
  local e = summary.errors
  print(string.format("result requests=%d micros=%d bytes=%d status=%d socket=%d timeout=%d p50=%d p99=%d",
    summary.requests, summary.duration, summary.bytes, e.status,
    e.connect + e.read + e.write, e.timeout, latency:percentile(50), latency:percentile(99)))
end
