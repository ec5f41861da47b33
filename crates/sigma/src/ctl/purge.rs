//! `sigma ctl purge`: has caches forget answers.

use anyhow::Result;
use clap::Args;
use serde_json::{Value, json};

use super::client::{Client, Method};
use super::output::{self, Form};

/// The answers to purge. Each may be given several times.
#[derive(Debug, Args)]
#[group(required = true, multiple = true, args = ["url", "prefix", "tag", "cache_key", "all"])]
pub(super) struct Purge {
    /// Answers to requests for this URL, with its query; scheme and port do not count
    #[arg(long, value_name = "URL")]
    url: Vec<String>,
    /// Answers to requests for what begins so, such as shop.example/images/
    #[arg(long, value_name = "URL")]
    prefix: Vec<String>,
    /// Answers that their node gave this tag: by `Surrogate-Key`, `Cache-Tag` or `xkey`
    #[arg(long, value_name = "TAG")]
    tag: Vec<String>,
    /// Answers under keys whose last parts have these values: a list in JSON, such as '["shop.example", "/a"]'
    #[arg(long, value_name = "JSON", value_parser = values)]
    cache_key: Vec<Value>,
    /// All answers
    #[arg(long)]
    all: bool,
    /// Only in this zone
    #[arg(long, value_name = "NAME")]
    zone: Option<String>,
}

/// The values of the parts of a key.
fn values(text: &str) -> Result<Value, String> {
    let values: Vec<String> = serde_json::from_str(text)
        .map_err(|_| "write a list of texts in JSON, such as [\"shop.example\", \"/a\"]".to_owned())?;
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
    let answers = if count == 1 { "answer" } else { "answers" };
    match done["gateways"] == "all" {
        true => format!("forgot {count} {answers} here; the other gateways of the store are notified"),
        false => format!("forgot {count} {answers} on this gateway"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_result_is_printed() {
        assert_eq!(
            result_text(&json!({"forgotten": 1, "gateways": "this"})),
            "forgot 1 answer on this gateway"
        );
        let all = result_text(&json!({"forgotten": 2, "gateways": "all"}));
        assert_eq!(all, "forgot 2 answers here; the other gateways of the store are notified");
        assert_eq!(values(r#"["a", "/b"]"#), Ok(json!(["a", "/b"])));
        assert!(values("a").is_err() && values("[1]").is_err());
    }
}
