//! `core.ip`: matchers of addresses.

use std::net::{IpAddr, Ipv6Addr};
use std::rc::Rc;

use mlua::{Lua, Table, Value};
use sigma_schema::cidr::{Cidr, CidrSet};

use crate::engine::arguments::{Arguments, Results, failed, one};
use crate::engine::host::Host;
use crate::engine::modules::Modules;

pub(super) fn register(lua: &Lua, host: &Rc<Host>, core: &Table, modules: &Modules) -> mlua::Result<()> {
    let ip = lua.create_table()?;
    let of_matchers = Rc::clone(host);
    host.function(lua, &ip, "create_ip_matcher", move |_, arguments| {
        match matcher(arguments.lua(), &of_matchers, &arguments.table(1)?) {
            Ok(matcher) => one(arguments.lua(), matcher),
            Err(message) => {
                crate::ngx::log::write(4, format!("failed to create ip matcher: {message}").as_bytes());
                one(arguments.lua(), Value::Nil)
            }
        }
    })?;
    host.function(lua, &ip, "validate_cidr_or_ip", |_, arguments| {
        let text = arguments.text(1)?.to_string_lossy();
        one(arguments.lua(), text.parse::<Cidr>().is_ok())
    })?;
    core.raw_set("ip", modules.shared("apisix.core.ip", ip)?)
}

/// An object with the method `match`.
///
/// # Errors
/// Returns a message that names the text that is no address.
pub(crate) fn matcher(lua: &Lua, host: &Rc<Host>, list: &Table) -> Result<Table, String> {
    let mut networks = Vec::new();
    for text in list.sequence_values::<Value>() {
        let text = text.and_then(|text| text.to_string()).map_err(|error| error.to_string())?;
        networks.push(text.parse::<Cidr>().map_err(|_| format!("invalid ip address: {text}"))?);
    }
    let networks: CidrSet = networks.into_iter().collect();
    let made = || {
        let object = lua.create_table()?;
        host.function(lua, &object, "match", move |_, arguments| match address(&arguments, 2) {
            Some(address) => one(arguments.lua(), networks.contains(address)),
            None => {
                let mut results = failed(arguments.lua(), "invalid ip address")?;
                results.pop_front();
                results.push_front(Value::Boolean(false));
                Ok(results)
            }
        })?;
        Ok(object)
    };
    made().map_err(|error: mlua::Error| error.to_string())
}

fn address(arguments: &Arguments<'_>, place: usize) -> Option<IpAddr> {
    match arguments.value(place) {
        Value::String(text) => text.to_str().ok()?.parse().ok(),
        _ => None,
    }
}

/// An IPv4 address as a number; false for other values.
pub(crate) fn parsed_v4(arguments: &Arguments<'_>) -> Results {
    match address(arguments, 1) {
        Some(IpAddr::V4(address)) => one(arguments.lua(), f64::from(u32::from(address))),
        _ => one(arguments.lua(), false),
    }
}

/// An IPv6 address as four numbers; false for other values.
pub(crate) fn parsed_v6(arguments: &Arguments<'_>) -> Results {
    let text = arguments.value(1).as_string().map(|text| text.to_string_lossy()).unwrap_or_default();
    let bare = text.strip_prefix('[').and_then(|text| text.strip_suffix(']')).unwrap_or(&text);
    let Ok(address) = bare.parse::<Ipv6Addr>() else { return one(arguments.lua(), false) };
    let words = address.octets();
    let words = words.chunks(4).map(|word| word.iter().fold(0.0, |sum, byte| sum * 256.0 + f64::from(*byte)));
    let words = arguments.lua().create_sequence_from(words).map_err(|error| error.to_string())?;
    one(arguments.lua(), words)
}

#[cfg(test)]
mod tests {
    use crate::snippets::output_of;

    #[test]
    fn networks_match_addresses() {
        for (value, expected) in [
            ("m:match('10.1.2.3'), m:match('11.0.0.1'), m:match('::1')", "truefalsetrue"),
            ("m:match('x')", "falseinvalid ip address"),
            ("ip.create_ip_matcher({'10.0.0.0/33'})", "nil"),
            (
                "ip.validate_cidr_or_ip('10.0.0.0/8'), ip.validate_cidr_or_ip('::1'), ip.validate_cidr_or_ip('a')",
                "truetruefalse",
            ),
        ] {
            let body = format!(
                "local ip = require('apisix.core').ip local m = ip.create_ip_matcher({{'10.0.0.0/8', '::1'}}) ngx.print({value})"
            );
            assert_eq!(output_of(&body), expected, "{value}");
        }
    }
}
