//! The real ClickHouse takes entries of `clickhouse-logger` into a table.

use super::*;

const USERS: &str = r#"<yandex>
  <profiles><default/></profiles>
  <quotas><default/></quotas>
  <users>
    <default><password/><networks><ip>::1</ip><ip>127.0.0.1</ip></networks><profile>default</profile><quota>default</quota></default>
    <logger><password>s3cret-of-logger</password><networks><ip>::1</ip><ip>127.0.0.1</ip></networks><profile>default</profile><quota>default</quota></logger>
  </users>
</yandex>"#;

/// A server on this port, with its data in `dir`.
fn clickhouse(dir: &Path, port: u16) -> Running {
    let (place, tcp) = (dir.display(), free_port());
    std::fs::write(dir.join("users.xml"), USERS).unwrap();
    let settings = format!(
        "<yandex>\n  <logger><level>warning</level><console>1</console></logger>\n  <http_port>{port}</http_port>\n  \
         <tcp_port>{tcp}</tcp_port>\n  <listen_host>127.0.0.1</listen_host>\n  <path>{place}/data/</path>\n  \
         <tmp_path>{place}/tmp/</tmp_path>\n  <users_config>{place}/users.xml</users_config>\n  \
         <default_profile>default</default_profile>\n  <default_database>default</default_database>\n  \
         <mark_cache_size>5368709120</mark_cache_size>\n</yandex>"
    );
    std::fs::write(dir.join("config.xml"), settings).unwrap();
    // `make test-servers` installs it.
    let mut command = Command::new("clickhouse-server");
    command.arg(format!("--config-file={}", dir.join("config.xml").display())).current_dir(dir);
    let running = Running::start(&mut command, &dir.join("log"));
    let is_up = || try_ask(port, "GET /ping", "", "").is_some_and(|answer| answer.status() == 200);
    let log = || std::fs::read_to_string(dir.join("log")).unwrap_or_default();
    assert!(until(PATIENCE, is_up), "the server does not answer: {}", log());
    running
}

/// Returns the server's response to a statement.
fn query(port: u16, statement: &str) -> String {
    let answer = ask(port, "POST /", "", statement);
    assert_eq!(answer.status(), 200, "{statement}: {}", answer.text());
    answer.text()
}

#[test]
fn clickhouse_logger_fills_a_table() {
    let (dir, port, origin) = (tempfile::tempdir().unwrap(), free_port(), Origin::echo("a").unwrap());
    let _server = clickhouse(dir.path(), port);
    query(port, "CREATE TABLE logs (uri String, status UInt16, route_id String) ENGINE = Memory");
    let config = json!({
        "listeners": [{"address": "{listen}"}],
        "routes": [{
            "id": "r", "uri": "/*",
            "upstream": {"nodes": {origin.address().to_string(): 1}},
            "plugins": {"clickhouse-logger": {
                "endpoint_addrs": [format!("http://127.0.0.1:{port}")], "user": "logger",
                "password": "s3cret-of-logger", "database": "default", "logtable": "logs",
                "log_format": {"uri": "$request_uri", "status": "$status"}, "batch_max_size": 3
            }}
        }]
    });
    let gateway = Gateway::start(SIGMA, &config.to_string()).unwrap();
    let mut client = gateway.connect().unwrap();
    for target in ["/1", "/2?x='); DROP TABLE logs; --", "/3?\"}{"] {
        let target = target.replace(' ', "%20").replace(['"', '{', '}'], "%22");
        assert_eq!(client.get(&target).unwrap().status(), 200, "{target}");
    }
    let stored = || query(port, "SELECT uri, status, route_id FROM logs ORDER BY uri");
    assert!(until(PATIENCE, || stored().lines().count() == 3), "{}\n{}", stored(), gateway.stderr());
    let expected = "/1\t200\tr\n/2?x=\\');%20DROP%20TABLE%20logs;%20--\t200\tr\n/3?%22%22%22\t200\tr\n";
    assert_eq!(stored(), expected);
}
