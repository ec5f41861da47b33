//! Authorization by policies: locations of clients, rules, and authorisers.

mod chaitin_waf;
mod ext_authz;

use sigma_testkit::{Gateway, GeoDatabase, Message, Origin, until};

use crate::{PATIENCE, SIGMA};

/// A field of the request as an origin that echoes it has seen it; empty if it was missing.
pub(crate) fn seen(answer: &Message, name: &str) -> String {
    let told = answer.json().unwrap();
    let fields = told["headers"].as_array().into_iter().flatten();
    let mut values = fields.filter(|field| field[0].as_str().is_some_and(|n| n.eq_ignore_ascii_case(name)));
    values.next().and_then(|field| field[1].as_str()).unwrap_or_default().to_owned()
}

/// A database that says of this machine's addresses that they are in `country`.
fn country(country: &str) -> Vec<u8> {
    let database = GeoDatabase::new("Test-City").city("127.0.0.0/8", ["EU", country, "", "", "", "Bärlin"]);
    database.city("192.0.2.0/24", ["AS", "JP", "Japan", "13", "Tokyo", "Tokyo"]).content()
}

/// The location of a client is a variable of routes, plugins and logs, and follows the file.
#[test]
fn places_of_clients_decide_and_follow_the_file() {
    let (origin, dir) = (Origin::echo("a").unwrap(), tempfile::tempdir().unwrap());
    let path = dir.path().join("city.mmdb");
    let put = |content: &[u8]| {
        let new = dir.path().join("new");
        std::fs::write(&new, content).unwrap();
        std::fs::rename(&new, &path).unwrap();
    };
    put(&country("DE"));
    let config = format!(
        r#"
workers: 2
listeners: ["{{listen}}"]
geoip: {{ databases: ["{}"] }}
access_log: {{ path: "{{dir}}/access.log", format: "$geoip_country_code $geoip_city $geoip_asn" }}
routes:
  - uri: /german
    vars: [[geoip_country_code, ==, DE]]
    upstream: http://127.0.0.1:{port}
  - uri: /not-russian
    vars: [[geoip_country_code, "~=", RU]]
    upstream: http://127.0.0.1:{port}
  - uri: /told
    plugins:
      real-ip: {{ source: http_x_from, trusted_addresses: [127.0.0.0/8] }}
      proxy-rewrite: {{ headers: {{ set: {{ X-Place: "$geoip_country_code/$geoip_region/$geoip_city" }} }} }}
    upstream: http://127.0.0.1:{port}
"#,
        path.display(),
        port = origin.port()
    );
    let gateway = Gateway::start(SIGMA, &config).unwrap();
    let status = |path: &str| gateway.connect().unwrap().get(path).unwrap().status();
    let place = |from: &str| {
        let request = format!("GET /told HTTP/1.1\r\nHost: h\r\nX-Place: claimed\r\nX-From: {from}\r\n\r\n");
        let answer = gateway.connect().unwrap().ask(request).unwrap();
        seen(&answer, "x-place")
    };
    assert_eq!((status("/german"), status("/not-russian")), (200, 200));
    let log = gateway.dir().join("access.log");
    let logged = || std::fs::read_to_string(&log).unwrap_or_default();
    assert!(until(PATIENCE, || logged().contains("DE B\\xC3\\xA4rlin -")), "{}", logged());
    // Of the address that real-ip found, not of the peer.
    assert_eq!((place("192.0.2.9"), place("203.0.113.1")), ("JP/13/Tokyo".to_owned(), "//".to_owned()));

    put(&country("FR"));
    assert!(until(PATIENCE, || status("/german") == 404), "the file is not read again: {}", gateway.stderr());
    assert_eq!(status("/not-russian"), 200);
    // A damaged file is logged, and changes nothing.
    put(&country("DE")[..200]);
    gateway.await_log("a changed database is invalid");
    assert_eq!((status("/german"), status("/not-russian")), (404, 200));
    // A client without a location is neither in a country nor outside of one.
    put(&GeoDatabase::new("Test-City").city("192.0.2.0/24", ["AS", "JP", "", "", "", ""]).content());
    assert!(until(PATIENCE, || status("/not-russian") == 404), "{}", gateway.stderr());
    put(&country("DE"));
    assert!(until(PATIENCE, || status("/german") == 200), "{}", gateway.stderr());
}

/// Without the file that it names a gateway does not start.
#[test]
fn a_missing_database_refuses_the_start() {
    let dir = tempfile::tempdir().unwrap();
    let config = "listeners: [\"127.0.0.1:0\"]\ngeoip: { databases: [none.mmdb] }\nroutes: []\n";
    std::fs::write(dir.path().join("sigma.yaml"), config).unwrap();
    for command in ["check", "run"] {
        let mut sigma = std::process::Command::new(SIGMA);
        let output = sigma.args([command, "sigma.yaml"]).current_dir(dir.path()).output().unwrap();
        let told = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success(), "{command}: {told}");
        assert!(told.contains("geoip.databases[0]: cannot use none.mmdb"), "{command}: {told}");
    }
}
