//! `sigma ctl purge`: purges stored responses from caches.

use anyhow::Result;
use clap::{ArgGroup, Args};
use serde_json::{Value, json};

use super::client::{Client, Method};
use super::output::{self, Form};

/// The responses to purge. Each option may be given several times.
#[derive(Debug, Args)]
#[group(skip)]
#[command(group = ArgGroup::new("responses").required(true).multiple(true).args(["url", "prefix", "tag", "cache_key", "all"]))]
pub(super) struct Purge {
    /// Responses for this URL, with its query. Scheme and port are ignored
    #[arg(long, value_name = "URL")]
    url: Vec<String>,
    /// Responses for URLs with this prefix, such as shop.example/images/
    #[arg(long, value_name = "URL")]
    prefix: Vec<String>,
    /// Responses with this tag in `Surrogate-Key`, `Cache-Tag` or `xkey`
    #[arg(long, value_name = "TAG")]
    tag: Vec<String>,
    /// Responses whose cache key ends with these values: a list in JSON, such as '["shop.example", "/a"]'
    #[arg(long, value_name = "JSON", value_parser = values)]
    cache_key: Vec<Value>,
    /// All responses
    #[arg(long)]
    all: bool,
    /// Only in this zone; with --all, all its responses
    #[arg(long, value_name = "NAME")]
    zone: Option<String>,
}

/// The values of the parts of a key.
fn values(text: &str) -> Result<Value, String> {
    let values: Vec<String> = serde_json::from_str(text)
        .map_err(|_| "write a JSON array of strings, such as [\"shop.example\", \"/a\"]".to_owned())?;
    Ok(json!(values))
}

impl Purge {
    pub(super) async fn order(self, client: &Client, form: Option<Form>) -> Result<()> {
        let order = json!({
            "urls": self.url, "prefixes": self.prefix, "tags": self.tag, "keys": self.cache_key, "all": self.all,
            "zone": self.zone,
        });
        let done = client.call(Method::Post, "cache/purge", Some(&order)).await?;
        match form {
            Some(form) => output::print(form, &done)?,
            None => println!("{}", result_text(&done)),
        }
        Ok(())
    }
}

/// Returns the result, as a sentence.
fn result_text(done: &Value) -> String {
    let count = done["forgotten"].as_u64().unwrap_or_default();
    let responses = if count == 1 { "response" } else { "responses" };
    match done["gateways"] == "all" {
        true => format!(
            "purged {count} {responses} on this gateway; the other gateways of the store are notified"
        ),
        false => format!("purged {count} {responses} on this gateway"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_zone_alone_names_no_responses() {
        use clap::Parser;

        let parses = |arguments: &[&str]| {
            let line = [&["sigma", "ctl", "purge"], arguments].concat();
            crate::args::Cli::try_parse_from(line).is_ok()
        };
        assert!(parses(&["--all", "--zone", "z"]));
        assert!(parses(&["--url", "a.test/b", "--cache-key", "[\"a\"]", "--zone", "z"]));
        assert!(!parses(&["--zone", "z"]));
        assert!(!parses(&[]));
    }

    #[test]
    fn the_result_is_printed() {
        assert_eq!(
            result_text(&json!({"forgotten": 1, "gateways": "this"})),
            "purged 1 response on this gateway"
        );
        let all = result_text(&json!({"forgotten": 2, "gateways": "all"}));
        assert_eq!(all, "purged 2 responses on this gateway; the other gateways of the store are notified");
        assert_eq!(values(r#"["a", "/b"]"#), Ok(json!(["a", "/b"])));
        assert!(values("a").is_err() && values("[1]").is_err());
    }
}
