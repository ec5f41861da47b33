-- resty.sha1 and its relatives, resty.hmac, resty.openssl.digest and hmac, resty.string, resty.random, resty.aes: texts
-- are kept until the end, where the gateway digests them.
local native, add = ...
local setmetatable, type, concat, select, tonumber, tostring = setmetatable, type, table.concat, select, tonumber, tostring
local digest, hmac, to_hex = native.digest, native.hmac, native.to_hex

-- An object that collects texts; `finish` makes the result of them.
local function collector(finish)
  local methods = {}
  function methods:update(...)
    for place = 1, select("#", ...) do
      self[#self + 1] = tostring((select(place, ...)))
    end
    return true
  end
  function methods:reset()
    for place = #self, 1, -1 do self[place] = nil end
    return true
  end
  function methods:final(text, as_hex)
    if text ~= nil then self[#self + 1] = tostring(text) end
    local result = finish(self, concat(self))
    if as_hex then return to_hex(result) end
    return result
  end
  return { __index = methods, __metatable = false }
end

for _, name in ipairs({ "md5", "sha1", "sha224", "sha256", "sha384", "sha512" }) do
  local metatable = collector(function(_, text) return digest(name, text) end)
  add("resty." .. name, { new = function() return setmetatable({}, metatable) end })
end

local algorithms = { MD5 = "md5", SHA1 = "sha1", SHA256 = "sha256", SHA384 = "sha384", SHA512 = "sha512" }
local with_key = collector(function(self, text) return hmac(self.algorithm, self.key, text) end)
add("resty.hmac", {
  ALGOS = native.readonly(algorithms, "ALGOS"),
  new = function(_, key, algorithm)
    algorithm = algorithm or "md5"
    if type(key) ~= "string" or not hmac(algorithm, key, "") then return nil end
    return setmetatable({ key = key, algorithm = algorithm }, with_key)
  end,
})

local without_key = collector(function(self, text) return digest(self.algorithm, text) end)
add("resty.openssl.digest", {
  new = function(algorithm)
    algorithm = algorithm or "sha1"
    if not digest(algorithm, "") then return nil, 'digest.new: invalid digest type "' .. tostring(algorithm) .. '"' end
    return setmetatable({ algorithm = algorithm }, without_key)
  end,
})
add("resty.openssl.hmac", {
  new = function(key, algorithm)
    algorithm = algorithm or "sha1"
    if type(key) ~= "string" then return nil, "expect a string at #1" end
    if not hmac(algorithm, key, "") then return nil, 'hmac.new: invalid digest type "' .. tostring(algorithm) .. '"' end
    return setmetatable({ key = key, algorithm = algorithm }, with_key)
  end,
})

add("resty.string", {
  to_hex = to_hex,
  atoi = function(text)
    text = tostring(text)
    return text:find("^%d+$") and #text <= 18 and tonumber(text) or -1
  end,
})
add("resty.random", { bytes = function(length) return native.random(length) end })

local aes = { hash = native.readonly({ md5 = "md5", sha1 = "sha1", sha224 = "sha224", sha256 = "sha256", sha384 = "sha384", sha512 = "sha512" }, "hash") }
local ciphers = { cbc = true, ecb = true }
local cipher_methods = {}
local cipher_metatable = { __index = cipher_methods, __metatable = false }

function aes.cipher(size, mode)
  size, mode = size or 128, mode or "cbc"
  if not ciphers[mode] or (size ~= 128 and size ~= 192 and size ~= 256) then return nil end
  return { size = size, cipher = mode }
end

-- A key and a vector from a password, as OpenSSL makes them (EVP_BytesToKey).
local function derived(password, salt, hash, rounds, length)
  local made, last = "", ""
  while #made < length + 16 do
    last = digest(hash, last .. password .. (salt or ""))
    for _ = 2, rounds do last = digest(hash, last) end
    made = made .. last
  end
  return made:sub(1, length), made:sub(length + 1, length + 16)
end

function aes:new(key, salt, cipher, hash, rounds)
  cipher, hash, rounds = cipher or aes.cipher(), hash or "md5", rounds or 1
  local length = cipher.size / 8
  if salt and #salt ~= 8 then return nil, "salt must be 8 characters or nil" end
  if type(hash) ~= "table" then
    local made, vector = derived(key, salt, hash, rounds, length)
    return setmetatable({ key = made, vector = vector, mode = cipher.cipher }, cipher_metatable)
  end
  if type(hash.iv) ~= "string" or #hash.iv ~= 16 then return nil, "bad iv" end
  if hash.method then key = hash.method(key) end
  if #key ~= length then return nil, "bad key length" end
  return setmetatable({ key = key, vector = hash.iv, mode = cipher.cipher }, cipher_metatable)
end

function cipher_methods:encrypt(text, no_padding)
  return native.encrypt(self.mode, self.key, self.vector, text, no_padding)
end

function cipher_methods:decrypt(text, no_padding)
  return native.decrypt(self.mode, self.key, self.vector, text, no_padding)
end

add("resty.aes", aes)
