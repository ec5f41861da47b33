-- resty.jwt: tokens that are signed, not those that are encrypted.
local native, json = ...
local type, error, pcall, ipairs, pairs = type, error, pcall, ipairs, pairs
local tostring, select, setmetatable = tostring, select, setmetatable
local encode64, decode64, hmac = native.encode64, native.decode64, native.hmac
local now, http_time = native.now, native.http_time
local jwt = { _VERSION = "0.2.3" }

local shared = { HS256 = "sha256", HS384 = "sha384", HS512 = "sha512" }
local public = { RS256 = 1, RS384 = 1, RS512 = 1, PS256 = 1, PS384 = 1, PS512 = 1, ES256 = 1, ES384 = 1, ES512 = 1, EdDSA = 1 }

function jwt.jwt_decode(_, text, is_json)
  local decoded = decode64(text)
  if decoded and is_json then return (json.decode(decoded)) end
  return decoded
end

function jwt.jwt_encode(_, value)
  if type(value) == "table" then value = json.encode(value) end
  return encode64(value)
end

local function invalid(reason)
  return { valid = false, verified = false, reason = reason }
end

function jwt.load_jwt(self, text)
  if type(text) ~= "string" then return invalid("invalid jwt string") end
  local header, payload, signature = text:match("^([^.]+)%.([^.]+)%.([^.]+)$")
  if not header then return invalid("invalid jwt string") end
  local token = { raw_header = header, raw_payload = payload, signature = signature, typ = "JWT", valid = true, verified = false }
  token.header = jwt.jwt_decode(self, header, true)
  if not token.header then return invalid("invalid header: " .. header) end
  token.payload = jwt.jwt_decode(self, payload, true)
  if token.payload == nil then return invalid("invalid payload: " .. payload) end
  return token
end

local function secret_of(secret, header)
  if type(secret) ~= "function" then return secret end
  if type(header.kid) ~= "string" then return nil, "secret function specified without kid in header" end
  local made = secret(header.kid)
  if type(made) ~= "string" then return nil, "function returned nil for kid: " .. header.kid end
  return made
end

-- Why a signature is wrong; nil if it is right.
local function wrong_signature(self, secret, token)
  local algorithm = token.header.alg
  if algorithm == nil then return "No algorithm supplied" end
  if type(algorithm) ~= "string" then return "invalid alg: must be a string" end
  if self.alg_whitelist and self.alg_whitelist[algorithm] == nil then return "whitelist unsupported alg: " .. algorithm end
  local message = token.raw_header .. "." .. token.raw_payload
  local signature = decode64(token.signature)
  if shared[algorithm] then
    local key, problem = secret_of(secret, token.header)
    if problem then return problem end
    if type(key) ~= "string" then return "invalid secret type (must be string or function)" end
    -- A public key is no secret: with it anybody could sign.
    if key:find("-----BEGIN", 1, true) then
      return "invalid secret for " .. algorithm .. ": PEM key material cannot be used as an HMAC secret"
    end
    if not signature or not native.same(signature, hmac(shared[algorithm], key, message)) then
      return "signature mismatch: " .. tostring(token.signature)
    end
    return nil
  end
  if not public[algorithm] then return "Unsupported algorithm " .. algorithm end
  if secret == nil then return "No trusted certs loaded" end
  if type(secret) ~= "string" then return "Decode secret is not a valid cert/public key" end
  if not signature then return "Wrongly encoded signature" end
  local _, problem = native.verify(algorithm, secret, message, signature)
  return problem
end

-- Times of a token, and issuers: what the options of older versions check.
local function wrong_claims(payload, options)
  local claims = type(payload) == "table" and payload or {}
  local leeway = options.lifetime_grace_period or 0
  local issuers = options.valid_issuers
  if issuers then
    local is_known = false
    for _, issuer in pairs(issuers) do is_known = is_known or issuer == claims.iss end
    if not is_known then return "Claim 'iss' ('" .. tostring(claims.iss) .. "') returned failure" end
  end
  for _, name in ipairs({ "nbf", "exp" }) do
    local time, is_required = claims[name], options["require_" .. name .. "_claim"]
    if time == nil then
      if is_required then return "'" .. name .. "' claim is required." end
    elseif type(time) ~= "number" then
      return "'" .. name .. "' is malformed.  Expected to be a positive numeric value."
    elseif name == "nbf" and time > now() + leeway then
      return "'nbf' claim not valid until " .. http_time(time)
    elseif name == "exp" and time <= now() - leeway then
      return "'exp' claim expired at " .. http_time(time)
    end
  end
end

local of_options = { valid_issuers = 1, lifetime_grace_period = 1, require_nbf_claim = 1, require_exp_claim = 1 }

local function wrong_by(token, specification)
  if type(specification) ~= "table" then
    error("Claim spec must be a table - see jwt-validators.lua for helper functions", 0)
  end
  local has_options = false
  for name in pairs(specification) do has_options = has_options or of_options[name] ~= nil end
  if has_options then return wrong_claims(token.payload, specification) end
  for claim, check in pairs(specification) do
    if type(check) ~= "function" then
      error("Claim spec value must be a function - see jwt-validators.lua for helper functions", 0)
    end
    local value
    if claim == "__jwt" then value = token elseif type(token.payload) == "table" then value = token.payload[claim] end
    local ok, result = pcall(check, value, claim, json.encode(token))
    if not ok then
      if type(result) == "table" and result.reason ~= nil then return tostring(result.reason) end
      if type(result) == "string" then return (result:gsub("^.-:%d-: ", "")) end
      return "Claim '" .. tostring(claim) .. "' validation failed"
    end
    if result == false then
      return "Claim '" .. tostring(claim) .. "' ('" .. tostring(value) .. "') returned failure"
    end
  end
end

function jwt.verify_jwt_obj(self, secret, token, ...)
  if not token.valid then return token end
  token.verified = false
  if type(token.header) ~= "table" then
    token.reason = "invalid header"
    return token
  end
  token.reason = wrong_signature(self, secret, token)
  -- The claims count once the signature is right.
  if not token.reason then
    local count = select("#", ...)
    if count == 0 then token.reason = wrong_claims(token.payload, {}) end
    for place = 1, count do
      token.reason = token.reason or wrong_by(token, (select(place, ...)))
    end
  end
  if not token.reason then
    token.verified, token.reason = true, "everything is awesome~ :p"
  end
  return token
end

function jwt.verify(self, secret, text, ...)
  local token = jwt.load_jwt(self, text)
  if not token.valid then return { verified = false, reason = token.reason } end
  return jwt.verify_jwt_obj(self, secret, token, ...)
end

function jwt.sign(_, secret, token)
  local algorithm = token.header.alg
  if not shared[algorithm] then error({ reason = "unsupported alg: " .. tostring(algorithm) }) end
  local key, problem = secret_of(secret, token.header)
  if type(key) ~= "string" then error({ reason = problem or "invalid secret type (must be string or function)" }) end
  local header = token.raw_header or jwt.jwt_encode(nil, token.header)
  local payload = token.raw_payload or jwt.jwt_encode(nil, token.payload)
  local message = header .. "." .. payload
  return message .. "." .. encode64(hmac(shared[algorithm], key, message))
end

-- An object of one's own: what is set on it holds for no other script.
function jwt.new()
  local object = setmetatable({}, { __index = jwt, __metatable = false })
  function object.set_alg_whitelist(self, algorithms) self.alg_whitelist = algorithms end
  return object
end

function jwt.set_alg_whitelist()
  error("set_alg_whitelist of the module would hold for all scripts; call it on require('resty.jwt').new()", 2)
end

return jwt
