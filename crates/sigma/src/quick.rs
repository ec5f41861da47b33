//! Gateways of one command, without a file: `sigma serve FOLDER` and `sigma proxy --to URL`.

use anyhow::{Context, Result, bail};
use serde_json::{Value, json};

use crate::args::{Proxy, Secure, Serve};

/// Returns the configuration of `sigma serve`, as JSON.
///
/// # Errors
/// Returns an error if the folder does not exist.
pub(crate) fn serve(args: &Serve) -> Result<String> {
    let folder = std::fs::canonicalize(&args.folder)
        .with_context(|| format!("cannot serve {}", args.folder.display()))?;
    if !folder.is_dir() {
        bail!("{} is not a folder", folder.display());
    }
    let Some(root) = folder.to_str() else { bail!("{} is not UTF-8", folder.display()) };
    let mut files = json!({ "root": root, "listing": args.listing });
    if args.spa {
        files["fallback"] = "/index.html".into();
    }
    whole(args.listen.as_deref(), &args.secure, json!({ "static-files": files }), None)
}

/// Returns the configuration of `sigma proxy`, as JSON.
///
/// # Errors
/// Returns an error for options that exclude each other.
pub(crate) fn proxy(args: &Proxy) -> Result<String> {
    whole(args.listen.as_deref(), &args.secure, json!({}), Some(&args.to))
}

fn whole(listen: Option<&str>, secure: &Secure, plugins: Value, upstream: Option<&str>) -> Result<String> {
    let mut route = json!({ "id": "all", "uri": "/*", "plugins": plugins });
    if let Some(upstream) = upstream {
        route["upstream"] = upstream.into();
        route["enable_websocket"] = true.into();
    }
    let mut config = json!({ "listeners": [listen.unwrap_or("127.0.0.1:9080")] });
    if let Some(name) = &secure.https {
        if listen.is_some() {
            bail!("`--https` listens on ports 80 and 443; remove `--listen`");
        }
        if !secure.agree_to_terms {
            bail!(
                "`--https` orders a certificate from Let's Encrypt: add `--agree-to-terms` if you agree to its terms of service"
            );
        }
        config["listeners"] = json!([{ "address": ":80" }, { "address": ":443", "tls": "auto" }]);
        config["acme"] = json!({ "terms_agreed": true });
        if let Some(email) = &secure.email {
            config["acme"]["email"] = email.as_str().into();
        }
        route["host"] = name.as_str().into();
        route["plugins"]["redirect"] = json!({ "http_to_https": true });
    }
    config["routes"] = json!([route]);
    Ok(format!("{config:#}\n"))
}

#[cfg(test)]
mod tests {
    use clap::Parser;
    use sigma_config::{ParseOptions, parse};

    use super::*;
    use crate::args::{Cli, Command};

    fn config(line: &str) -> Result<Value> {
        let cli = Cli::try_parse_from(line.split(' '))?;
        let text = match cli.command {
            Command::Serve(args) => serve(&args)?,
            Command::Proxy(args) => proxy(&args)?,
            _ => bail!("another command"),
        };
        let roster = crate::roster::roster();
        let options = ParseOptions { plugins: &*roster, ..ParseOptions::default() };
        let checked = parse(&text, &options).map_err(|problems| anyhow::anyhow!("{problems:?}"))?;
        Ok(checked.normalized())
    }

    #[test]
    fn commands_make_valid_configurations() {
        let files = config("sigma serve / --spa --listing").unwrap();
        assert_eq!(files["listeners"][0]["address"], "127.0.0.1:9080");
        let plugin = &files["routes"][0]["plugins"]["static-files"];
        assert_eq!(
            (&plugin["root"], &plugin["fallback"], &plugin["listing"]),
            (&json!("/"), &json!("/index.html"), &json!(true))
        );
        let proxy = config("sigma proxy --to http://127.0.0.1:9000 --listen :8080").unwrap();
        assert_eq!(proxy["routes"][0]["upstream"]["nodes"][0]["port"], 9000);
        let secure = "sigma proxy --to http://127.0.0.1:9000 --https www.example.com";
        assert!(config(secure).unwrap_err().to_string().contains("--agree-to-terms"));
        let secure = config(&format!("{secure} --agree-to-terms")).unwrap();
        assert_eq!(secure["routes"][0]["host"], "www.example.com");
        assert!(config("sigma serve /no/such/folder").is_err());
    }
}
