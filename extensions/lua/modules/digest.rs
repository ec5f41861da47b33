//! Modules that digest, sign and encrypt, and others that are written in Lua.

use std::net::IpAddr;
use std::rc::Rc;

use aes::cipher::block_padding::NoPadding;
use aes::cipher::{BlockModeDecrypt, BlockModeEncrypt, KeyIvInit};
use aws_lc_rs::constant_time::verify_slices_are_equal;
use aws_lc_rs::{digest, hmac};
use md5::Md5;
use mlua::{Lua, Table, Value};
use sha1::Digest;
use sigma_plugin::system::{self, System};

use super::{jwt, keys};
use crate::engine::arguments::{Arguments, Results, nothing, one};
use crate::engine::host::Host;
use crate::engine::modules::Modules;
use crate::ngx::codec::{bytes, decoded_for_urls, encoded_for_urls, hex};
use crate::ngx::time::{http_time, now};

/// The most random bytes of one call.
const RANDOM_BYTES: usize = 65536;

/// Registers the modules.
pub(crate) fn register(
    lua: &Lua,
    host: &Rc<Host>,
    gateway: &Table,
    modules: &Rc<Modules>,
) -> mlua::Result<()> {
    let native = lua.create_table()?;
    register_primitives(lua, host, &native)?;
    register_ciphers(lua, host, &native)?;
    jwt::register(lua, host, &native)?;
    keys::register(lua, host, &native)?;
    native.raw_set("readonly", &modules.readonly)?;
    let known = Rc::clone(modules);
    let add = lua.create_function(move |_, (name, module): (String, Table)| known.add(&name, module))?;
    let known = Rc::clone(modules);
    let add_value = lua.create_function(move |_, (name, module): (String, Value)| {
        known.add_value(&name, module);
        Ok(())
    })?;
    native.raw_set("add_value", add_value)?;
    let run = |name: &str, text: &str| lua.load(text).set_name(format!("={name}")).into_function();
    let lrucache: Table = run("resty.lrucache", include_str!("lua/lrucache.lua"))?.call(native.clone())?;
    modules.add("resty.lrucache", lrucache.clone())?;
    modules.add("resty.lrucache.pureffi", lrucache)?;
    let json = modules.get("cjson.safe");
    let tokens: Table = run("resty.jwt", include_str!("lua/jwt.lua"))?.call((native.clone(), json))?;
    modules.add("resty.jwt", tokens)?;
    run("resty", include_str!("lua/digests.lua"))?.call::<()>((&native, &add))?;
    run("url", include_str!("lua/urls.lua"))?.call::<()>(&add)?;
    run("resty", include_str!("lua/others.lua"))?.call::<()>((&native, &add, gateway))?;
    register_facts(lua, host, modules)
}

fn register_primitives(lua: &Lua, host: &Rc<Host>, native: &Table) -> mlua::Result<()> {
    host.function(lua, native, "digest", |_, arguments| {
        let (name, text) = (arguments.text(1)?, arguments.text(2)?);
        match digested(&name.as_bytes(), &text.as_bytes()) {
            Some(digest) => bytes(arguments.lua(), &digest),
            None => one(arguments.lua(), Value::Nil),
        }
    })?;
    host.function(lua, native, "hmac", |_, arguments| {
        let (name, key, text) = (arguments.text(1)?, arguments.text(2)?, arguments.text(3)?);
        match signed(&name.as_bytes(), &key.as_bytes(), &text.as_bytes()) {
            Some(signature) => bytes(arguments.lua(), &signature),
            None => one(arguments.lua(), Value::Nil),
        }
    })?;
    host.function(lua, native, "random", |_, arguments| {
        let length = usize::try_from(arguments.integer(1)?).unwrap_or_default();
        if length > RANDOM_BYTES {
            return Err(arguments.bad(1, &format!("a script gets {RANDOM_BYTES} random bytes at most")));
        }
        let mut random = vec![0; length];
        system::Host.fill_random(&mut random)?;
        bytes(arguments.lua(), &random)
    })?;
    host.function(lua, native, "to_hex", |_, arguments| {
        one(arguments.lua(), hex(&arguments.text(1)?.as_bytes()))
    })?;
    host.function(lua, native, "same", |_, arguments| {
        let (left, right) = (arguments.text(1)?, arguments.text(2)?);
        one(arguments.lua(), verify_slices_are_equal(&left.as_bytes(), &right.as_bytes()).is_ok())
    })?;
    host.function(lua, native, "encode64", |_, arguments| {
        one(arguments.lua(), encoded_for_urls(&arguments.text(1)?.as_bytes()))
    })?;
    host.function(lua, native, "decode64", |_, arguments| {
        match decoded_for_urls(&arguments.text(1)?.as_bytes()) {
            Some(decoded) => bytes(arguments.lua(), &decoded),
            None => one(arguments.lua(), Value::Nil),
        }
    })?;
    host.function(lua, native, "now", |host, arguments| {
        one(arguments.lua(), now(host).as_millis() as f64 / 1000.0)
    })?;
    host.function(lua, native, "http_time", |_, arguments| {
        one(arguments.lua(), http_time(arguments.number(1)?))
    })?;
    host.function(lua, native, "parse_ip", |_, arguments| {
        let text = arguments.text(1)?.to_string_lossy();
        let inner = text.strip_prefix('[').and_then(|text| text.strip_suffix(']'));
        match inner.unwrap_or(&text).parse() {
            Ok(IpAddr::V4(address)) if inner.is_none() => bytes(arguments.lua(), &address.octets()),
            Ok(IpAddr::V6(address)) => bytes(arguments.lua(), &address.octets()),
            _ => one(arguments.lua(), Value::Nil),
        }
    })
}

fn digested(name: &[u8], text: &[u8]) -> Option<Vec<u8>> {
    let algorithm = match name.to_ascii_lowercase().as_slice() {
        b"md5" => return Some(Md5::digest(text).to_vec()),
        b"sha1" => &digest::SHA1_FOR_LEGACY_USE_ONLY,
        b"sha224" => &digest::SHA224,
        b"sha256" => &digest::SHA256,
        b"sha384" => &digest::SHA384,
        b"sha512" => &digest::SHA512,
        _ => return None,
    };
    Some(digest::digest(algorithm, text).as_ref().to_vec())
}

fn signed(name: &[u8], key: &[u8], text: &[u8]) -> Option<Vec<u8>> {
    let algorithm = match name.to_ascii_lowercase().as_slice() {
        b"md5" => return Some(signed_by_md5(key, text)),
        b"sha1" => hmac::HMAC_SHA1_FOR_LEGACY_USE_ONLY,
        b"sha224" => hmac::HMAC_SHA224,
        b"sha256" => hmac::HMAC_SHA256,
        b"sha384" => hmac::HMAC_SHA384,
        b"sha512" => hmac::HMAC_SHA512,
        _ => return None,
    };
    Some(hmac::sign(&hmac::Key::new(algorithm, key), text).as_ref().to_vec())
}

/// HMAC (RFC 2104) with MD5, which the library of the gateway does not have.
fn signed_by_md5(key: &[u8], text: &[u8]) -> Vec<u8> {
    let mut block = [0; 64];
    let short = if key.len() > block.len() { Md5::digest(key).to_vec() } else { key.to_vec() };
    block[..short.len()].copy_from_slice(&short);
    let inner = Md5::new().chain_update(block.map(|byte| byte ^ 0x36)).chain_update(text).finalize();
    Md5::new().chain_update(block.map(|byte| byte ^ 0x5c)).chain_update(inner).finalize().to_vec()
}

fn register_ciphers(lua: &Lua, host: &Rc<Host>, native: &Table) -> mlua::Result<()> {
    host.function(lua, native, "encrypt", |_, arguments| ciphered(&arguments, true))?;
    host.function(lua, native, "decrypt", |_, arguments| ciphered(&arguments, false))
}

/// The length of a block of AES.
const BLOCK: usize = 16;

/// Encrypts or decrypts: mode, key, vector, text, and whether the text has no padding. nil if the lengths are wrong.
fn ciphered(arguments: &Arguments<'_>, encrypts: bool) -> Results {
    let (mode, key, vector, text) =
        (arguments.text(1)?, arguments.text(2)?, arguments.text(3)?, arguments.text(4)?);
    let is_padded = !arguments.is_true(5);
    let mut text = text.as_bytes().to_vec();
    if encrypts && is_padded {
        let missing = BLOCK - text.len() % BLOCK;
        text.resize(text.len() + missing, u8::try_from(missing).unwrap_or_default());
    }
    let whole = text.len().is_multiple_of(BLOCK);
    let result = match &*mode.as_bytes() {
        _ if !whole => None,
        b"cbc" => blocks(&key.as_bytes(), &vector.as_bytes(), &text, encrypts),
        // Each block for itself.
        _ => text.chunks(BLOCK).try_fold(Vec::new(), |mut all, block| {
            all.extend(blocks(&key.as_bytes(), &[0; BLOCK], block, encrypts)?);
            Some(all)
        }),
    };
    let result =
        result.and_then(|text| if !encrypts && is_padded { without_padding(text) } else { Some(text) });
    match result {
        Some(result) => bytes(arguments.lua(), &result),
        None => one(arguments.lua(), Value::Nil),
    }
}

/// Encrypts or decrypts whole blocks, chained.
fn blocks(key: &[u8], vector: &[u8], text: &[u8], encrypts: bool) -> Option<Vec<u8>> {
    macro_rules! chained {
        ($cipher:ty) => {
            if encrypts {
                let cipher = cbc::Encryptor::<$cipher>::new_from_slices(key, vector).ok()?;
                Some(cipher.encrypt_padded_vec::<NoPadding>(text))
            } else {
                let cipher = cbc::Decryptor::<$cipher>::new_from_slices(key, vector).ok()?;
                cipher.decrypt_padded_vec::<NoPadding>(text).ok()
            }
        };
    }
    match key.len() {
        16 => chained!(aes::Aes128),
        24 => chained!(aes::Aes192),
        32 => chained!(aes::Aes256),
        _ => None,
    }
}

/// A text without its padding (PKCS #7); None if that is wrong.
fn without_padding(mut text: Vec<u8>) -> Option<Vec<u8>> {
    let length = usize::from(*text.last()?);
    let start = text.len().checked_sub(length).filter(|_| (1..=BLOCK).contains(&length))?;
    let is_right = text[start..].iter().all(|byte| usize::from(*byte) == length);
    text.truncate(start);
    is_right.then_some(text)
}

/// Registers `ngx.errlog` and `ngx.process`.
fn register_facts(lua: &Lua, host: &Rc<Host>, modules: &Modules) -> mlua::Result<()> {
    let log = lua.create_table()?;
    host.function(lua, &log, "raw_log", |_, arguments| {
        let Value::String(line) = arguments.value(2) else {
            return Err(arguments.wrong(2, "string"));
        };
        crate::ngx::log::write(arguments.integer(1)?, &line.as_bytes());
        nothing()
    })?;
    // The level of `info`: the gateway's own log filters lines behind it.
    host.function(lua, &log, "get_sys_filter_level", |_, arguments| one(arguments.lua(), 7))?;
    modules.add("ngx.errlog", log)?;
    let process = lua.create_table()?;
    host.function(lua, &process, "type", |_, arguments| one(arguments.lua(), "worker"))?;
    host.function(lua, &process, "get_master_pid", |_, arguments| one(arguments.lua(), std::process::id()))?;
    modules.add("ngx.process", process)
}

#[cfg(test)]
mod tests;
