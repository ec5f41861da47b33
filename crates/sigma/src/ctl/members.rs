//! `sigma ctl members`: the gateways of one store.

use anyhow::Result;
use clap::Args;
use serde_json::Value;

use super::client::Client;
use super::output::{self, Form, moment, table, text};

/// Which gateway is queried.
#[derive(Debug, Args)]
pub(super) struct Members {
    /// Call this Control API, which needs no key
    #[arg(long, value_name = "URL")]
    control: Option<String>,
}

impl Members {
    pub(super) async fn list(self, client: &Client, form: Option<Form>) -> Result<()> {
        let found = client.ask(self.control.as_deref(), "members").await?;
        match form.unwrap_or(Form::Table) {
            Form::Table => print!("{}", listed(&found)),
            form => output::print(form, &found)?,
        }
        Ok(())
    }
}

/// A row for each gateway; the one that was asked has a star.
fn listed(found: &Value) -> String {
    let row = |one: &Value| {
        let state = match (one.get("problem"), one["behind"] == true) {
            (Some(problem), _) => text(problem),
            (None, true) => "behind".to_owned(),
            (None, false) => "ok".to_owned(),
        };
        vec![
            format!("{}{}", text(&one["id"]), if one["this"] == true { "*" } else { "" }),
            text(&one["hostname"]),
            text(&one["version"]),
            moment(&one["boot_time"]),
            text(&one["listeners"]),
            text(&one["revision"]),
            state,
            text(&one["quarantined"]),
        ]
    };
    let rows = found["members"].as_array().into_iter().flatten().map(row).collect();
    table(&["ID", "HOSTNAME", "VERSION", "SINCE", "LISTENERS", "SERVES", "STATE", "QUARANTINED"], rows)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn gateways_are_rows() {
        let found = json!({"members": [
            {"id": "a", "hostname": "one", "version": "1.0.0", "boot_time": 1_798_761_599, "listeners": ["[::]:80", "[::]:443"],
             "revision": 7, "behind": true, "quarantined": 2},
            {"id": "b", "this": true, "hostname": "two\u{7}", "version": "1.0.0", "boot_time": 1_798_761_600, "listeners": [],
             "revision": 9, "behind": false, "quarantined": 0},
            {"id": "c", "problem": "cannot be read"},
        ]});
        let expected = "\
ID  HOSTNAME  VERSION  SINCE                LISTENERS        SERVES  STATE   QUARANTINED
a   one       1.0.0    2026-12-31T23:59:59  [::]:80,[::]:443  7       behind  2
b*  two       1.0.0    2027-01-01T00:00:00                    9       ok      0
c   cannot be read
";
        let squeezed = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
        assert_eq!(squeezed(&listed(&found)), squeezed(expected));
        assert_eq!(listed(&json!({"members": []})).lines().count(), 1);
    }
}
