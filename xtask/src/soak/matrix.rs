//! From one connection to many, from one stream to many.

use std::process::Command;

use anyhow::{Context, ensure};

use super::PATHS;
use super::chain::Chain;

const CONNECTIONS: [u32; 4] = [1, 10, 100, 500];
const STREAMS: [u32; 3] = [1, 10, 100];
/// Over HTTP/1 every request at a time has a connection to the node: more exceed files and ports.
const MOST_OVER_HTTP1: u32 = 10_000;

/// Runs every pair on every path, with `each` requests or as many as are open at a time.
pub(super) fn run(chain: &Chain, each: u32) -> anyhow::Result<()> {
    for path in PATHS {
        for (connections, streams) in CONNECTIONS.iter().flat_map(|c| STREAMS.map(|s| (*c, s))) {
            if path == "/h1" && connections * streams > MOST_OVER_HTTP1 {
                continue;
            }
            let url = format!("http://127.0.0.1:{}{path}", chain.first.port);
            // A connection without a request is refused by h2load.
            let requests = each.max(connections * streams);
            let output = Command::new("h2load")
                .args([format!("-c{connections}"), format!("-m{streams}"), format!("-n{requests}"), url])
                .output()
                .context("cannot run h2load: install nghttp2-client")?;
            let text = String::from_utf8_lossy(&output.stdout);
            let line = text.lines().find_map(|line| line.strip_prefix("requests: ")).unwrap_or_default();
            let all = format!("{requests} done, {requests} succeeded, 0 failed, 0 errored, 0 timeout");
            ensure!(line.ends_with(&all), "{path}, {connections} connections of {streams} streams:\n{text}");
            let rate = text.lines().find(|line| line.starts_with("finished in")).unwrap_or_default();
            println!("{path}: {connections} x {streams}: all answered, {rate}");
        }
    }
    Ok(())
}
