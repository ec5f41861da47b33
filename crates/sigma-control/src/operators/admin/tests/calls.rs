//! Unusual calls: the first inputs of the fuzz target `admin_call`, with random changes. Each gets a response, and
//! nothing is stored that the check refuses.

use std::path::Path;

use sigma_config::kind::ResourceKey;
use sigma_config::stored;
use sigma_schema::document::is_deeper;
use sigma_schema::plugins::NoPlugins;

use super::*;
use crate::operators::admin::decode::RESOURCE_DEPTH;

/// Inputs that are made of the first ones; the numbers in them are always the same.
const ROUNDS: u64 = 400;

/// Calls with a line of `---` between them: method and target, fields, an empty line, the body.
fn requests(text: &str) -> Vec<Request> {
    let request = |call: &str| {
        let (head, body) = call.split_once("\n\n").unwrap_or((call, ""));
        let mut lines = head.lines();
        let (method, target) = lines.next()?.split_once(' ')?;
        let mut request = Request::builder().method(method).uri(target);
        for (name, value) in lines.filter_map(|line| line.split_once(": ")) {
            request = request.header(name, value);
        }
        // None where the listener would refuse the request itself.
        request.body(Body::from(body.to_owned())).ok()
    };
    text.split("\n---\n").filter_map(request).collect()
}

async fn check(text: &str) {
    let plugins = Arc::new(NoPlugins);
    let settings = Admin { key_required: false, body_bytes: 65_536, ..Admin::default() };
    let state = AdminState::new(Arc::new(Memory::default()), plugins, keyring(), settings);
    for request in requests(text) {
        let asked = format!("{} {}", request.method(), request.uri());
        let (head, body) = answer(&state, ([127, 0, 0, 1], 1).into(), request).await.into_parts();
        let body = body.collect().await.expect("a body").to_bytes();
        assert_ne!(head.status, 500, "{asked}: {body:?}");
        if head.headers["content-type"] == "application/json" && !body.is_empty() {
            let read = serde_json::from_slice::<Value>(&body);
            assert!(read.is_ok(), "{asked}: {body:?}");
        }
    }
    for record in state.store.load().await.expect("a store").records {
        let Some(key) = ResourceKey::parse(&record.key) else { continue };
        let mut value: Value = serde_json::from_slice(&record.value).expect("JSON");
        assert!(!is_deeper(&value, RESOURCE_DEPTH), "{key} is too deep");
        state.open(key.kind, &mut value);
        let name = (key.kind == Kind::PluginMetadata).then_some(key.id.as_str());
        assert_eq!(
            stored::check(key.kind, name, &value, &NoPlugins, UnknownFields::Refuse),
            Ok(()),
            "{key}: {value} of {text}"
        );
        assert!(
            stored::read(&key, &value, &NoPlugins, UnknownFields::Refuse).is_ok(),
            "{key}: {value} of {text}"
        );
    }
}

fn seeds() -> Vec<String> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/seeds/admin_call");
    let mut files: Vec<_> =
        std::fs::read_dir(folder).expect("seeds").map(|entry| entry.expect("a file").path()).collect();
    files.sort();
    files.iter().map(|file| std::fs::read_to_string(file).expect("a text")).collect()
}

/// Takes pieces of other seeds in, leaves some out, and doubles some.
fn changed(seeds: &[String], chance: &mut fastrand::Rng) -> String {
    const ODD: [&str; 14] = [
        "null",
        "{}",
        "[]",
        "-1",
        "1e999",
        "\\u0000",
        "%2F",
        "..",
        "\n",
        "\"",
        "PATCH ",
        "/id",
        "?dry_run=true",
        "***",
    ];
    let mut text = seeds[chance.usize(..seeds.len())].clone().into_bytes();
    for _ in 0..chance.usize(1..6) {
        let at = chance.usize(..=text.len());
        let end = at + chance.usize(..=(text.len() - at).min(24));
        let piece = match chance.u8(..3) {
            0 => ODD[chance.usize(..ODD.len())].as_bytes().to_vec(),
            1 => {
                let other = seeds[chance.usize(..seeds.len())].as_bytes();
                let from = chance.usize(..other.len());
                other[from..(from + 40).min(other.len())].to_vec()
            }
            _ => text[at..end].repeat(chance.usize(..3)),
        };
        text.splice(at..end, piece);
    }
    String::from_utf8_lossy(&text).into_owned()
}

#[tokio::test]
async fn every_call_is_answered() {
    let seeds = seeds();
    assert!(!seeds.is_empty());
    for seed in &seeds {
        check(seed).await;
    }
    let rounds = std::env::var("SIGMA_CALLS").ok().and_then(|rounds| rounds.parse().ok()).unwrap_or(ROUNDS);
    for round in 0..rounds {
        let mut chance = fastrand::Rng::with_seed(round);
        check(&changed(&seeds, &mut chance)).await;
    }
}
