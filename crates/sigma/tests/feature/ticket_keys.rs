//! Sessions that continue at another gateway, or after a restart.

use std::path::Path;
use std::process::Command;

use serde_json::{Value, json};
use sigma_testkit::{EtcdServer, Gateway, Origin, until};

use crate::docs::{paste, text_of};
use crate::managed::etcd;
use crate::tls::{Authority, Issued, ask, config, run, shake, status, to_origin};
use crate::{PATIENCE, SIGMA};

const KEYRING: &str = "[0123456789abcdef]";

/// A gateway on an etcd whose certificate is in files.
fn shared(server: &EtcdServer, files: &Value, keyring: &str) -> Gateway {
    let text = format!(
        "{}listeners: [{{ address: \"{{listen}}\", tls: {{ certificates: [{files}] }} }}]\n\
         tls: {{ ticket_keys: store }}\ndata_encryption: {{ keyring: {keyring} }}\n",
        etcd(server.port())
    );
    Gateway::start(SIGMA, &text).unwrap()
}

/// Runs `openssl s_client` with a request, after which the ticket has come; returns its text about the
/// handshake.
fn openssl(gateway: &Gateway, dir: &Path, options: &str) -> String {
    let port = gateway.address().port().unwrap();
    let command = format!(
        "printf 'GET / HTTP/1.1\\r\\nHost: a.test\\r\\nConnection: close\\r\\n\\r\\n' \
         | openssl s_client -connect 127.0.0.1:{port} -servername a.test -ign_eof {options}"
    );
    text_of(&paste(dir, &command, &[]))
}

/// Whether the session of one gateway continues at another one.
fn goes_on(from: &Gateway, to: &Gateway, dir: &Path, version: &str) -> bool {
    let first = openssl(from, dir, &format!("{version} -sess_out session.pem"));
    assert!(first.contains("New, TLSv1."), "{first}");
    goes_on_from_file(to, dir, version)
}

fn goes_on_from_file(to: &Gateway, dir: &Path, version: &str) -> bool {
    openssl(to, dir, &format!("{version} -sess_in session.pem")).contains("Reused, TLSv1.")
}

#[test]
fn gateways_of_one_etcd_go_on_with_each_others_sessions() {
    let (root, dir) = (Authority::new("Root"), tempfile::tempdir().unwrap());
    let files = root.issue("a.test").files(dir.path(), "own");
    let server = EtcdServer::start().unwrap();
    let [mut first, second] = [0, 1].map(|_| shared(&server, &files, KEYRING));
    let dir = dir.path();
    for version in ["-tls1_3", "-tls1_2"] {
        for (from, to) in [(&first, &second), (&second, &first)] {
            assert!(until(PATIENCE, || goes_on(from, to, dir, version)), "{}", to.stderr());
        }
    }
    // It is one record, which says nothing to who cannot open it, and stays as it is.
    assert_eq!(server.count("/apisix/data_plane/ticket_keys").unwrap(), 1);
    let stranger = shared(&server, &files, "[fedcba9876543210]");
    let said = "no key of `data_encryption.keyring` decrypts";
    stranger.await_log(said);
    assert!(!goes_on(&first, &stranger, dir, "-tls1_3"));
    // A keyring that is being changed opens by any of its keys.
    let changing = shared(&server, &files, "[fedcba9876543210, 0123456789abcdef]");
    assert!(until(PATIENCE, || goes_on(&first, &changing, dir, "-tls1_3")), "{}", changing.stderr());
    // The keys outlive their gateways.
    openssl(&first, dir, "-tls1_3 -sess_out session.pem");
    first.kill().unwrap();
    first.start_again().unwrap();
    assert!(until(PATIENCE, || goes_on_from_file(&first, dir, "-tls1_3")), "{}", first.stderr());
    assert!(until(PATIENCE, || goes_on(&first, &second, dir, "-tls1_3")));
}

fn kept(root: &Authority, origin: &Origin, client: Value, more: Value) -> String {
    let mut ssl = root.issue("a.test").ssl(json!({ "id": "1", "sni": "a.test" }));
    if !client.is_null() {
        ssl["client"] = client;
    }
    let mut rest = json!({
        "ssls": [ssl],
        "tls": { "ticket_keys": "file", "storage": "{dir}/tls" },
        "data_encryption": { "keyring": ["0123456789abcdef"] },
    });
    rest.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    config(json!({ "alpn": ["http/1.1"] }), to_origin(origin), rest)
}

/// Whether a client continues with a session; an error if it is not served.
async fn resumed(gateway: &Gateway, client: &sigma_net::tls::ClientTls) -> Result<bool, String> {
    let mut stream = shake(gateway, client, "a.test").await?;
    let is_resumed = stream.tls().unwrap().is_resumed;
    let answer = ask(&mut stream, "a.test", "/", "").await.map_err(|error| error.to_string())?;
    if status(&answer) == 200 { Ok(is_resumed) } else { Err(answer) }
}

#[test]
fn sessions_go_on_after_a_restart_and_under_the_same_demands_only() {
    let (root, origin) = (Authority::new("Root"), Origin::echo("a").unwrap());
    let [clients, others] = ["Clients", "Others"].map(Authority::new);
    let issued: Issued = clients.issue("alice");
    let mut gateway =
        Gateway::start(SIGMA, &kept(&root, &origin, json!({ "ca": clients.pem }), json!({}))).unwrap();
    let (alice, nobody) = (root.client(Some(&issued)), root.client(None));
    run(async {
        assert_eq!(resumed(&gateway, &alice).await, Ok(false));
        assert_eq!(resumed(&gateway, &alice).await, Ok(true));
        gateway.kill().unwrap();
        gateway.start_again().unwrap();
        assert_eq!(resumed(&gateway, &alice).await, Ok(true));
        // Other requirements apply now: the session, which was good, is not accepted.
        gateway.kill().unwrap();
        gateway.rewrite(&kept(&root, &origin, json!({ "ca": others.pem }), json!({}))).unwrap();
        gateway.start_again().unwrap();
        resumed(&gateway, &alice).await.unwrap_err();
        // A session of a time without client certificates is invalid now.
        gateway.kill().unwrap();
        gateway.rewrite(&kept(&root, &origin, Value::Null, json!({}))).unwrap();
        gateway.start_again().unwrap();
        assert_eq!(resumed(&gateway, &nobody).await, Ok(false));
        assert_eq!(resumed(&gateway, &nobody).await, Ok(true));
        gateway.kill().unwrap();
        gateway.rewrite(&kept(&root, &origin, json!({ "ca": clients.pem }), json!({}))).unwrap();
        gateway.start_again().unwrap();
        resumed(&gateway, &nobody).await.unwrap_err();
    });
    let folder = gateway.dir().join("tls");
    let text = std::fs::read_to_string(folder.join("ticket_keys")).unwrap();
    assert!(!text.contains("keys"), "{text}");
}

#[test]
fn keys_are_not_kept_where_everybody_could_read_them() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("sigma.yaml");
    let own = "data_encryption: { keyring: [0123456789abcdef] }";
    let public = "data_encryption: { keyring: [qeddd145sfvddff3, 0123456789abcdef] }";
    for (text, said) in [
        ("tls: { ticket_keys: file }", "which is public (set `data_encryption.keyring`"),
        (&*format!("tls: {{ ticket_keys: file }}\n{public}"), "which is public"),
        (&*format!("tls: {{ ticket_keys: store }}\n{own}"), "set `store.kind: etcd`"),
        (
            &*format!(
                "tls: {{ ticket_keys: store }}\n{own}\nstore: {{ kind: etcd, endpoints: [\"http://127.0.0.1:1\"], access: read_only }}"
            ),
            "set `store.access: read_write`",
        ),
        (&*format!("tls: {{ ticket_keys: file, storage: off }}\n{own}"), "set `tls.storage` to a folder"),
        (&*format!("tls: {{ ticket_keys: file, resumption: off }}\n{own}"), "set `tls.resumption: tickets`"),
    ] {
        std::fs::write(&file, format!("listeners: [\"127.0.0.1:9080\"]\n{text}\n")).unwrap();
        let output = Command::new(SIGMA).arg("check").arg(&file).output().unwrap();
        let told = text_of(&output);
        assert!(
            !output.status.success() && told.contains("tls.ticket_keys: ") && told.contains(said),
            "{told}"
        );
    }
    std::fs::write(&file, format!("listeners: [\"127.0.0.1:9080\"]\ntls: {{ ticket_keys: file }}\n{own}\n"))
        .unwrap();
    let output = Command::new(SIGMA).arg("check").arg(&file).output().unwrap();
    assert!(output.status.success(), "{}", text_of(&output));
}
