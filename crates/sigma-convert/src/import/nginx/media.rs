//! Media types and charsets of files.

use serde_json::{Map, Value, json};

use super::content::BUILT_IN;
use super::level::Level;
use super::parse::Directive;

/// Number of types above which a list is taken as the stock file, whose types are Sigma's own.
const STOCK_TYPES: usize = 40;

/// The settings of files that do not depend on the path.
pub(super) fn settings(level: &Level<'_>, is_part: bool, files: &mut Map<String, Value>) {
    files.insert("hidden".to_owned(), true.into());
    if level.text("disable_symlinks").is_none_or(|text| text == "off") {
        files.insert("symlinks".to_owned(), "follow".into());
    }
    let charset = charset(level).unwrap_or_default();
    files.insert("charset".to_owned(), charset.into());
    let kind = level.text("default_type").unwrap_or("text/plain");
    if kind != "application/octet-stream" {
        let is_text = !charset.is_empty() && kind.starts_with("text/");
        let kind = if is_text { format!("{kind}; charset={charset}") } else { kind.to_owned() };
        files.insert("default_type".to_owned(), kind.into());
    }
    let since = level.text("if_modified_since").filter(|since| matches!(*since, "off" | "before"));
    if since != Some("before") {
        files.insert("if_modified_since".to_owned(), since.unwrap_or("exact").into());
    }
    if let Some(types) = types(level, is_part) {
        files.insert("types".to_owned(), types);
        files.insert("only_types".to_owned(), true.into());
    }
    if level.is_on("autoindex") {
        files.insert("listing".to_owned(), true.into());
    }
    if level.is_on("gzip_static") {
        files.insert("precompressed".to_owned(), json!(["gzip"]));
    }
}

/// The charset that is added to types of texts.
pub(super) fn charset<'a>(level: &Level<'a>) -> Option<&'a str> {
    let is_name = |text: &str| text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_".contains(&byte));
    level.text("charset").filter(|charset| *charset != "off" && is_name(charset))
}

/// The types that get a charset.
fn charset_types<'a>(level: &Level<'a>) -> Vec<&'a str> {
    let listed = level.all(&["charset_types"]);
    let mut types = vec!["text/html"];
    match listed.is_empty() {
        true => types.extend([
            "text/xml",
            "text/plain",
            "text/vnd.wap.wml",
            "application/javascript",
            "application/rss+xml",
        ]),
        false => types.extend(listed.iter().flat_map(|line| &line.args).map(String::as_str)),
    }
    types
}

/// Returns the function that adds the charset to types of nodes without one.
pub(super) fn charset_function(level: &Level<'_>) -> Option<String> {
    let charset = charset(level)?;
    let types: Vec<String> = charset_types(level).iter().map(|kind| format!("[\"{kind}\"] = true")).collect();
    Some(format!(
        "local types = {{ {} }}\nreturn function(conf, ctx)\n  local kind = ngx.header[\"Content-Type\"]\n  \
         if ctx.var.upstream_status and type(kind) == \"string\" and types[string.lower(kind)] then\n    \
         ngx.header[\"Content-Type\"] = kind .. \"; charset={charset}\"\n  end\nend\n",
        types.join(", ")
    ))
}

/// Media types by extension, if the file lists its own or nginx's few built-in ones hold.
fn types(level: &Level<'_>, is_part: bool) -> Option<Value> {
    let blocks = level.all(&["types"]);
    let entries: Vec<&Directive> = blocks.iter().flat_map(|block| block.children()).collect();
    if entries.len() >= STOCK_TYPES || blocks.is_empty() && (is_part || includes_stock(level)) {
        return None;
    }
    let mut types = Map::new();
    for entry in &entries {
        for extension in &entry.args {
            types.insert(extension.clone(), entry.name.clone().into());
        }
    }
    if blocks.is_empty() {
        types.extend(BUILT_IN.iter().map(|(extension, kind)| ((*extension).to_owned(), (*kind).into())));
    }
    if let Some(charset) = charset(level) {
        let with_charset = charset_types(level);
        for value in types.values_mut() {
            let kind = value.as_str().unwrap_or_default();
            if with_charset.contains(&kind) {
                *value = format!("{kind}; charset={charset}").into();
            }
        }
    }
    Some(Value::Object(types))
}

/// Whether the stock list of types is included.
fn includes_stock(level: &Level<'_>) -> bool {
    let is_stock = |line: &&Directive| line.arg(0).ends_with("mime.types");
    level.own_all(&["include"]).iter().any(is_stock) || level.parent.as_deref().is_some_and(includes_stock)
}
