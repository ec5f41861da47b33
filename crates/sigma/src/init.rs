//! `sigma init`: a configuration to start from.

use std::fs::OpenOptions;
use std::io::{ErrorKind, Write};
use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context, Result, anyhow};

use crate::args::{DEFAULT_FILE, Init};

const HEAD: &str = r#"# A configuration of Sigma to start from.
#
#   sigma check      names every problem of this file
#   sigma run        serves it; with `--with-demo-origin 127.0.0.1:9000` there is a node to answer
#   sigma reload     applies what was changed in it
#   sigma stop       finishes open requests and ends
#
# Lines that begin with `# ` and a key are examples: remove the `# ` to use them.
"#;

const HTTPS: &str = r#"
# A certificate to try it with:
#   openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 30 \
#     -subj /CN=localhost -addext subjectAltName=DNS:localhost,IP:127.0.0.1 \
#     -keyout server.key -out server.crt
"#;

const PROFILE: &str = r#"
# Defaults for a gateway that the Internet reaches: docs/edge-profile.md lists them with their prices.
profile: edge
"#;

const LISTENER: &str = r#"
# Where clients connect.
listeners:
  - address: ":9080"
"#;

const HTTPS_LISTENER: &str = r#"  - address: ":9443"
    tls:
      certificates:
        - { cert: server.crt, key: server.key }
"#;

const PROCESS: &str = r#"
# Names the process for `sigma reload` and `sigma stop`.
pid_file: sigma.pid

# Proxies in front of this gateway, whose X-Forwarded-* fields are believed.
# trusted_addresses: [10.0.0.0/8]

# Health, counters and readiness of this process. Keep it from clients: it asks for no password.
status:
  address: "127.0.0.1:9092"
"#;

const ADMIN: &str = r#"
# The Admin API of Apache APISIX. Its key is made at the first start: data/admin.key.
#   curl -X PUT -H "X-API-KEY: $(cat data/admin.key)" http://127.0.0.1:9180/apisix/admin/routes/1 \
#     -d '{"uri": "/*", "upstream": {"nodes": {"127.0.0.1:9000": 1}}}'
admin:
  address: "127.0.0.1:9180"

# Where routes, upstreams and all other resources are kept. They have no place in this file then.
store: { kind: embedded, path: data }
"#;

const RESOURCES: &str = r#"
# Which requests go where. Of the routes that fit, the one with the longest path serves a request.
routes:
  - id: all
    uri: /*
    # plugins:                       # `sigma plugins` lists them, `sigma plugins NAME` explains one
    #   limit-count: { count: 100, time_window: 60, rejected_code: 429 }
    upstream_id: app

# The nodes behind the gateway, each with its weight.
upstreams:
  - id: app
    nodes:
      "127.0.0.1:9000": 1
    retries: 1                       # further attempts, where a request may be sent twice
    timeout: { connect: 1, send: 10, read: 10 }
"#;

/// The text of the file.
fn text(https: bool, admin: bool) -> String {
    let resources = if admin { ADMIN } else { RESOURCES };
    let (certificate, listener) = if https { (HTTPS, HTTPS_LISTENER) } else { ("", "") };
    [HEAD, PROFILE, certificate, LISTENER, listener, PROCESS, resources].concat()
}

/// Writes the file, unless there is one.
pub(crate) fn execute(args: Init) -> Result<ExitCode> {
    let path = args.file.unwrap_or_else(|| DEFAULT_FILE.into());
    write_new(&path, &text(args.https, args.admin), "sigma init FILE")
}

/// Writes a configuration to a file that there is not yet; `command` is how another file is named.
pub(crate) fn write_new(path: &Path, text: &str, command: &str) -> Result<ExitCode> {
    let name = path.display();
    create(path, text, command)?;
    println!("wrote {name}; check it with `sigma check {name}`, serve it with `sigma run {name}`");
    Ok(ExitCode::SUCCESS)
}

/// Creates a file; one that is there already is left as it is.
pub(crate) fn create(path: &Path, text: &str, command: &str) -> Result<()> {
    let name = path.display();
    let mut file =
        OpenOptions::new().write(true).create_new(true).open(path).map_err(|error| match error.kind() {
            ErrorKind::AlreadyExists => {
                anyhow!("{name} exists and was not changed; name another file: `{command}`")
            }
            _ => anyhow!("cannot write {name}: {error}"),
        })?;
    file.write_all(text.as_bytes()).with_context(|| format!("cannot write {name}"))
}
