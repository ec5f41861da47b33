//! Converters of samples.

use super::lua;
use super::value::{Call, Kind, Sample};

/// Applies a converter.
///
/// # Errors
/// Returns a sentence if it has no counterpart.
pub(super) fn apply(sample: Sample, call: &Call) -> Result<Sample, String> {
    let arg = |at: usize| call.args.get(at).map_or("", String::as_str);
    let code = |function: &str, args: &[String]| {
        let mut list = vec![sample.lua.clone()];
        list.extend(args.iter().cloned());
        Sample {
            variable: None,
            text: None,
            lua: format!("{function}({})", list.join(", ")),
            lowered: sample.lowered,
            kind: Kind::Text,
        }
    };
    let quoted = |at: usize| lua::text(arg(at));
    Ok(match call.name.as_str() {
        "lower" => Sample {
            lowered: true,
            // The value itself keeps its letters; only comparisons ignore them.
            text: None,
            lua: format!("lower({})", sample.lua),
            ..sample
        },
        "upper" => Sample { text: None, lua: format!("upper({})", sample.lua), variable: None, ..sample },
        "host_only" => host(&sample)?,
        "field" if arg(0) == "1" && arg(1) == ":" && is_host(&sample) => host(&sample)?,
        "field" => code("field", &[number(arg(0))?, quoted(1)]),
        "word" => code("word", &[number(arg(0))?, quoted(1)]),
        "regsub" => {
            let replacement = lua::replacement(arg(1));
            let flags = if arg(2).contains('i') { "joi" } else { "jo" };
            let all = if arg(2).contains('g') { "gsub" } else { "sub" };
            code("replace", &[lua::text(all), quoted(0), lua::text(&replacement), lua::text(flags)])
        }
        "base64" => code("base64", &[]),
        "b64dec" => code("unbase64", &[]),
        "url_dec" => code("unescape", &[]),
        "url_enc" => code("escape", &[]),
        "length" => Sample { kind: Kind::Number, ..code("length", &[]) },
        "ltrim" => code("trim_left", &[quoted(0)]),
        "rtrim" => code("trim_right", &[quoted(0)]),
        "bytes" => code(
            "bytes",
            &[number(arg(0))?, if arg(1).is_empty() { "nil".to_owned() } else { number(arg(1))? }],
        ),
        "concat" => code("concat", &[quoted(0), quoted(2)]),
        "ipmask" | "json_query" | "jwt_header_query" | "jwt_payload_query" | "in_table" => {
            return Err(format!("The converter `{}` has no counterpart.", call.name));
        }
        "map" | "map_str" | "map_beg" | "map_end" | "map_sub" | "map_dom" | "map_reg" | "map_dir" => {
            return Err("Maps are converted only in `use_backend` and in redirects.".to_owned());
        }
        name => return Err(format!("The converter `{name}` has no counterpart.")),
    })
}

fn is_host(sample: &Sample) -> bool {
    sample.variable.as_deref() == Some("http_host")
}

/// The host of a request without its port.
fn host(sample: &Sample) -> Result<Sample, String> {
    if !is_host(sample) {
        return Err("`host_only` works for the field Host only.".to_owned());
    }
    let lua = if sample.lowered { "lower(ngx.var.host)" } else { "ngx.var.host" };
    Ok(Sample {
        variable: Some("host".to_owned()),
        text: (!sample.lowered).then(|| "${host}".to_owned()),
        lua: lua.to_owned(),
        lowered: sample.lowered,
        kind: Kind::Text,
    })
}

fn number(text: &str) -> Result<String, String> {
    text.parse::<i64>().map(|number| number.to_string()).map_err(|_| format!("`{text}` is not a number."))
}
