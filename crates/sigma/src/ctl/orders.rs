//! `sigma ctl acme`: the certificates that gateways order by ACME.

use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use clap::Subcommand;
use serde_json::{Value, json};

use super::client::Client;
use super::output::{self, Form};

/// Actions other than listing them.
#[derive(Debug, Subcommand)]
pub(super) enum Act {
    /// Order a certificate now, even if it is not due: for example because its key was stolen
    Order {
        /// The id of its ssl, or one of its server names
        #[arg(value_name = "NAME")]
        name: String,
    },
}

/// Lists the orders of gateways.
pub(super) async fn list(clients: &[Client], form: Form) -> Result<ExitCode> {
    let mut rows = Vec::new();
    let mut all_answered = true;
    for client in clients {
        match client.orders().await {
            Ok(found) => rows.extend(found.as_array().into_iter().flatten().cloned().map(|mut one| {
                one["node"] = client.base().into();
                one
            })),
            Err(error) => {
                all_answered = false;
                rows.push(json!({"node": client.base(), "last_error": format!("{error:#}")}));
            }
        }
    }
    output::print_orders(form, &rows)?;
    Ok(if all_answered { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Has one ordered.
pub(super) async fn order(client: &Client, name: &str) -> Result<()> {
    let base = client.base();
    let known = client.orders().await.with_context(|| base.to_owned())?;
    let meant: Vec<&str> = meant(&known, name);
    if meant.is_empty() {
        bail!("{base}: the gateway orders no certificate for `{name}`; `sigma ctl acme` lists the names");
    }
    for ssl in meant {
        client.order_now(ssl).await.with_context(|| base.to_owned())?;
        println!("{base}: ssls/{ssl}: ordering");
    }
    Ok(())
}

/// The ssls with this id, or else those for this name.
fn meant<'k>(known: &'k Value, name: &str) -> Vec<&'k str> {
    let all = || known.as_array().into_iter().flatten();
    let is_for = |one: &&Value| {
        let names = one["names"].as_array().into_iter().flatten().filter_map(Value::as_str);
        names.into_iter().any(|known| known.eq_ignore_ascii_case(name))
    };
    match all().find(|one| one["ssl"] == name) {
        Some(one) => one["ssl"].as_str().into_iter().collect(),
        None => all().filter(is_for).filter_map(|one| one["ssl"].as_str()).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_ssl_is_meant_by_its_id_or_a_name() {
        let known = json!([
            {"ssl": "1", "names": ["a.test", "b.test"]},
            {"ssl": "2", "names": ["a.test"]},
            {"ssl": "b.test", "names": ["c.test"]},
        ]);
        let check = |name: &str, expected: &[&str]| assert_eq!(meant(&known, name), expected, "{name}");
        check("1", &["1"]);
        check("A.test", &["1", "2"]);
        check("b.test", &["b.test"]);
        check("d.test", &[]);
    }
}
