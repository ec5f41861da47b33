//! `sigma ctl certificates`: what gateways show, and when it expires.

use std::process::ExitCode;

use anyhow::Result;
use serde_json::{Value, json};

use super::client::Client;
use super::output::{self, Form};

/// Exit status when a certificate is of no use any more; 1 and 2 stand for failures.
const EXPIRED: u8 = 3;

/// Lists the certificates of gateways, the first to expire first.
pub(super) async fn list(clients: &[Client], form: Form) -> Result<ExitCode> {
    let mut rows = Vec::new();
    let mut all_answered = true;
    for client in clients {
        match client.certificates().await {
            Ok(found) => rows.extend(found.as_array().into_iter().flatten().cloned().map(|mut one| {
                one["node"] = client.base().into();
                one
            })),
            Err(error) => {
                all_answered = false;
                rows.push(json!({"node": client.base(), "error": format!("{error:#}")}));
            }
        }
    }
    // Certificates without a date are first: they have a problem.
    rows.sort_by_key(|one| one["chain_validity_end"].as_i64());
    output::print_certificates(form, &rows)?;
    Ok(match all_answered {
        false => ExitCode::FAILURE,
        true if rows.iter().any(is_over) => ExitCode::from(EXPIRED),
        true => ExitCode::SUCCESS,
    })
}

fn is_over(one: &Value) -> bool {
    matches!(one["status"].as_str(), Some("expired" | "unreadable"))
}
