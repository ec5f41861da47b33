//! The Admin API conforms to its own OpenAPI document: schemathesis makes requests from the document, and compares the
//! responses of a real listener with it.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use sigma_config::crypt::{DEFAULT_KEYRING, Keyring};
use sigma_config::settings::{Admin, AdminKey, AdminRole};
use sigma_control::admin::{self, AdminState};
use sigma_control::store::memory::Memory;
use sigma_schema::plugins::NoPlugins;

/// Requests for each of about eighty operations.
const EXAMPLES: &str = "8";
/// The same requests in every run.
const SEED: &str = "1";
/// Checks that the document cannot bear out: rules between members of a resource are refused
/// though its schema allows them, and an unknown verb is 404 as in APISIX.
const NOT_CHECKED: &str = "positive_data_acceptance,unsupported_method,missing_required_header";

const KEY: &str = "a key for this test";

#[tokio::test]
async fn answers_are_as_the_document_says() {
    let tool = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/venv/bin/schemathesis");
    assert!(tool.exists(), "schemathesis is not installed: run `make tools`");
    let address = serve().await;
    let run = move || {
        let mut command = Command::new(tool);
        command.arg("run").arg(format!("http://{address}/openapi.json"));
        command.arg("--header").arg(format!("X-API-KEY: {KEY}"));
        command.args(["--phases", "fuzzing", "--max-examples", EXAMPLES, "--seed", SEED]);
        command.args(["--exclude-checks", NOT_CHECKED, "--no-color"]);
        // It stores its findings in its folder.
        let folder = tempfile::tempdir().expect("a folder");
        command.current_dir(folder.path()).output().expect("schemathesis starts")
    };
    let output = tokio::task::spawn_blocking(run).await.expect("it ends");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
}

async fn serve() -> SocketAddr {
    let key = AdminKey { name: None, key: KEY.to_owned(), role: AdminRole::Admin };
    let settings = Admin { keys: vec![key], ..Admin::default() };
    let keyring = Keyring::new(&DEFAULT_KEYRING.map(str::to_owned)).expect("the default keyring");
    let state = AdminState::new(Arc::new(Memory::default()), Arc::new(NoPlugins), keyring, settings);
    let service = admin::router(state).into_make_service_with_connect_info::<SocketAddr>();
    let listener = tokio::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.expect("a free port");
    let address = listener.local_addr().expect("its address");
    tokio::spawn(async move { axum::serve(listener, service).await });
    address
}
