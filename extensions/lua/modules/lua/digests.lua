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

-- ---------------------------------------------------------------- resty.openssl

add("resty.openssl.rand", { bytes = function(length) return native.random(length) end })

-- Ciphers of AES in the modes of resty.aes.
local openssl_cipher = {}
local openssl_cipher_metatable = { __index = openssl_cipher, __metatable = false }

local function ciphering(work)
  return function(self, key, iv, text, no_padding)
    if type(key) ~= "string" or #key ~= self.key_bytes then return nil, "cipher:init: incorrect key size, expect " .. self.key_bytes end
    if self.mode == "cbc" and (type(iv) ~= "string" or #iv ~= 16) then return nil, "cipher:init: incorrect iv size, expect 16" end
    local result = work(self.mode, key, iv or "", text, no_padding)
    if not result then return nil, "cipher:final: wrong final block length or padding" end
    return result
  end
end
openssl_cipher.encrypt, openssl_cipher.decrypt = ciphering(native.encrypt), ciphering(native.decrypt)

add("resty.openssl.cipher", {
  new = function(name)
    local bits, mode = tostring(name):lower():match("^aes%-(%d+)%-(%a+)$")
    if not bits or not ciphers[mode] or (bits ~= "128" and bits ~= "192" and bits ~= "256") then
      return nil, 'cipher.new: invalid cipher type "' .. tostring(name) .. '"; this gateway has aes-128, aes-192 and aes-256 with cbc and ecb'
    end
    return setmetatable({ key_bytes = tonumber(bits) / 8, mode = mode }, openssl_cipher_metatable)
  end,
})

local key_methods = {}
local key_metatable = { __index = key_methods, __metatable = false }
local PSS = 6

-- The text and the digest of a signature: of a digest object, or of a text and a name.
local function message_of(data, name)
  if type(data) == "table" and data.algorithm and not data.key then return concat(data), data.algorithm end
  if type(data) ~= "string" then return nil, nil, "expect a string or a digest instance at #1" end
  if type(name) == "table" then name = name.algorithm end
  return data, tostring(name or "sha256"):lower():gsub("%-", ""), nil
end

function key_methods:sign(data, name, padding, options)
  local text, algorithm, problem = message_of(data, name)
  if not text then return nil, "pkey:sign: " .. problem end
  return native.key_sign(self.key, text, algorithm, padding == PSS, options and options.ecdsa_use_raw)
end

function key_methods:verify(signature, data, name, padding, options)
  if type(signature) ~= "string" then return nil, "pkey:verify: expect a string at #1" end
  local text, algorithm, problem = message_of(data, name)
  if not text then return nil, "pkey:verify: " .. problem end
  return native.key_verify(self.key, text, signature, algorithm, padding == PSS, options and options.ecdsa_use_raw)
end

function key_methods:is_private() return self.has_private end
function key_methods:get_key_type() return { sn = self.kind, ln = self.kind } end

add("resty.openssl.pkey", {
  PADDINGS = native.readonly({ RSA_PKCS1_PADDING = 1, RSA_PKCS1_PSS_PADDING = PSS }, "PADDINGS"),
  new = function(text)
    if type(text) ~= "string" then return nil, "pkey.new: this gateway makes no keys for scripts; expect a key in PEM" end
    local key, kind, has_private = native.key(text)
    if not key then return nil, kind end
    return setmetatable({ key = key, kind = kind, has_private = has_private }, key_metatable)
  end,
})
