//! Words that several formats share: networks, names of variables, and texts of Lua.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Returns an address or a network without host bits. None for another text.
pub(super) fn network(text: &str) -> Option<String> {
    let (address, bits) = match text.trim().split_once('/') {
        Some((address, bits)) => (address.parse().ok()?, Some(bits)),
        None => (text.trim().parse().ok()?, None),
    };
    let Some(bits) = bits else { return Some(IpAddr::to_string(&address)) };
    match address {
        IpAddr::V4(address) => {
            let bits = match bits.parse::<Ipv4Addr>() {
                // A mask such as 255.255.0.0.
                Ok(mask) => u32::from(mask).leading_ones(),
                Err(_) => bits.parse().ok().filter(|bits| *bits <= 32)?,
            };
            let mask = u32::MAX.checked_shl(32 - bits).unwrap_or(0);
            Some(format!("{}/{bits}", Ipv4Addr::from(u32::from(address) & mask)))
        }
        IpAddr::V6(address) => {
            let bits: u32 = bits.parse().ok().filter(|bits| *bits <= 128)?;
            let mask = u128::MAX.checked_shl(128 - bits).unwrap_or(0);
            Some(format!("{}/{bits}", Ipv6Addr::from(u128::from(address) & mask)))
        }
    }
}

/// Returns the variable of a request field.
///
/// # Errors
/// Returns a sentence if no variable can have the name.
pub(super) fn header_variable(name: &str) -> Result<String, String> {
    let spelled = name.trim().to_ascii_lowercase().replace('-', "_");
    let is_word =
        !spelled.is_empty() && spelled.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_');
    if is_word {
        Ok(format!("http_{spelled}"))
    } else {
        Err(format!("The field `{name}` cannot be a variable."))
    }
}

/// Returns a text as a literal of Lua.
pub(super) fn lua_text(text: &str) -> String {
    let mut out = "\"".to_owned();
    for char in text.chars() {
        match char {
            '"' | '\\' => {
                out.push('\\');
                out.push(char);
            }
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\0' => out.push_str("\\0"),
            other => out.push(other),
        }
    }
    out.push('"');
    out
}

/// Returns the names of variables of the configuration in a text, without their prefix.
pub(super) fn variables(text: &str) -> impl Iterator<Item = &str> {
    text.match_indices("var_").map(|(at, prefix)| {
        let rest = &text[at + prefix.len()..];
        let end = rest.find(|char: char| !char.is_ascii_alphanumeric() && char != '_').unwrap_or(rest.len());
        &rest[..end]
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn networks_lose_their_host_bits() {
        assert_eq!(network("127.0.0.9/30").as_deref(), Some("127.0.0.8/30"));
        assert_eq!(network("10.1.2.3/255.255.0.0").as_deref(), Some("10.1.0.0/16"));
        assert_eq!(network("10.0.0.1").as_deref(), Some("10.0.0.1"));
        assert_eq!(network("::1/64").as_deref(), Some("::/64"));
        assert_eq!(network("10.0.0.0/33"), None);
        assert_eq!(network("10.0.0.0/0").as_deref(), Some("0.0.0.0/0"));
    }

    #[test]
    fn texts_of_lua_are_escaped() {
        assert_eq!(lua_text("a\"\\\n"), "\"a\\\"\\\\\\n\"");
    }
}
