//! Servers that answer as the providers do, over one zone `example.com`, and check credentials.

use std::sync::{Arc, Mutex};

use axum::http::{HeaderMap, Method, StatusCode, Uri};
use hickory_proto::rr::Name;
use serde_json::{Value, json};
use sigma_config::acme::AcmeDns;

use super::{Action, Provider};

/// The TXT records of the zone: id, whole name, value.
type Records = Arc<Mutex<Vec<(u64, String, String)>>>;

/// A request that a server received.
struct Asked {
    method: Method,
    path: String,
    query: String,
    headers: HeaderMap,
    body: String,
}

impl Asked {
    fn header(&self, name: &str) -> &str {
        self.headers.get(name).map_or("", |value| value.to_str().unwrap())
    }

    fn argument(&self, name: &str) -> String {
        let mut pairs = form_urlencoded::parse(self.query.as_bytes());
        pairs.find(|(key, _)| key == name).map(|(_, value)| value.into_owned()).unwrap_or_default()
    }

    fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap()
    }
}

type Reply = (u16, String);

/// Starts a server over the records and returns its address.
async fn serve(records: &Records, reply: fn(&Asked, &Records) -> Reply) -> String {
    let records = Arc::clone(records);
    let handler = move |method: Method, uri: Uri, headers: HeaderMap, body: String| {
        let (path, query) = (uri.path().to_owned(), uri.query().unwrap_or_default().to_owned());
        let (status, text) = reply(&Asked { method, path, query, headers, body }, &records);
        async move { (StatusCode::from_u16(status).unwrap(), text) }
    };
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = format!("http://{}", listener.local_addr().unwrap());
    let router = axum::Router::new().fallback(handler);
    tokio::spawn(async move { axum::serve(listener, router).await });
    address
}

fn add(records: &Records, name: &str, value: &str) {
    let mut records = records.lock().unwrap();
    let id = records.iter().map(|(id, ..)| id + 1).max().unwrap_or(1);
    records.push((id, name.to_owned(), value.to_owned()));
}

fn remove(records: &Records, id: &str) {
    records.lock().unwrap().retain(|record| record.0.to_string() != id);
}

fn named(records: &Records, name: &str) -> Vec<(u64, String)> {
    let records = records.lock().unwrap();
    records.iter().filter(|(_, own, _)| own == name).map(|(id, _, value)| (*id, value.clone())).collect()
}

fn last(path: &str) -> &str {
    path.rsplit('/').next().unwrap()
}

fn cloudflare(asked: &Asked, records: &Records) -> Reply {
    if asked.header("authorization") != "Bearer token" {
        return (403, r#"{"success":false,"errors":[{"message":"Invalid token"}]}"#.into());
    }
    let found = |result: Value| (200, json!({"success": true, "result": result}).to_string());
    match (asked.method.as_str(), asked.path.as_str()) {
        ("GET", "/zones") if asked.argument("name") == "example.com" => found(json!([{"id": "z1"}])),
        ("GET", "/zones") => found(json!([])),
        ("POST", "/zones/z1/dns_records") => {
            let body = asked.json();
            add(records, body["name"].as_str().unwrap(), body["content"].as_str().unwrap());
            found(json!({}))
        }
        ("GET", "/zones/z1/dns_records") => {
            let of_name = named(records, &asked.argument("name"));
            found(
                of_name
                    .iter()
                    .map(|(id, value)| json!({"id": id.to_string(), "content": format!("\"{value}\"")}))
                    .collect(),
            )
        }
        ("DELETE", path) => {
            remove(records, last(path));
            found(json!({}))
        }
        _ => (404, String::new()),
    }
}

fn digitalocean(asked: &Asked, records: &Records) -> Reply {
    if asked.header("authorization") != "Bearer token" {
        return (401, r#"{"id":"Unauthorized"}"#.into());
    }
    match (asked.method.as_str(), asked.path.as_str()) {
        ("GET", "/v2/domains/example%2Ecom") => (200, "{}".into()),
        ("POST", "/v2/domains/example%2Ecom/records") => {
            let body = asked.json();
            let name = format!("{}.example.com", body["name"].as_str().unwrap());
            add(records, &name, body["data"].as_str().unwrap());
            (201, "{}".into())
        }
        ("GET", "/v2/domains/example%2Ecom/records") => {
            let of_name = named(records, &asked.argument("name"));
            let all: Value = of_name.iter().map(|(id, value)| json!({"id": id, "data": value})).collect();
            (200, json!({ "domain_records": all }).to_string())
        }
        ("DELETE", path) => {
            remove(records, last(path));
            (204, String::new())
        }
        _ => (404, r#"{"id":"not_found"}"#.into()),
    }
}

fn ovh(asked: &Asked, records: &Records) -> Reply {
    let is_signed =
        asked.header("x-ovh-signature").starts_with("$1$") && !asked.header("x-ovh-timestamp").is_empty();
    if asked.header("x-ovh-application") != "app" || asked.header("x-ovh-consumer") != "token" || !is_signed {
        return (403, r#"{"message":"Invalid credential"}"#.into());
    }
    const RECORDS: &str = "/domain/zone/example%2Ecom/record";
    match (asked.method.as_str(), asked.path.as_str()) {
        ("GET", "/domain/zone/example%2Ecom") => (200, "{}".into()),
        ("POST", RECORDS) => {
            let body = asked.json();
            let name = format!("{}.example.com", body["subDomain"].as_str().unwrap());
            add(records, &name, body["target"].as_str().unwrap());
            (200, "{}".into())
        }
        ("POST", "/domain/zone/example%2Ecom/refresh") => (200, "null".into()),
        ("GET", RECORDS) => {
            let of_name = named(records, &format!("{}.example.com", asked.argument("subDomain")));
            (200, of_name.iter().map(|(id, _)| json!(id)).collect::<Value>().to_string())
        }
        ("GET", path) if path.starts_with(RECORDS) => {
            let records = records.lock().unwrap();
            let found = records.iter().find(|(id, ..)| id.to_string() == last(path)).unwrap();
            (200, json!({ "target": found.2 }).to_string())
        }
        ("DELETE", path) => {
            remove(records, last(path));
            (200, "null".into())
        }
        _ => (404, r#"{"message":"This service does not exist"}"#.into()),
    }
}

fn route53(asked: &Asked, records: &Records) -> Reply {
    let authorization = asked.header("authorization");
    if !authorization.starts_with("AWS4-HMAC-SHA256 Credential=app/")
        || !authorization.contains("/us-east-1/route53/")
    {
        return (
            403,
            "<ErrorResponse><Error><Code>SignatureDoesNotMatch</Code></Error></ErrorResponse>".into(),
        );
    }
    const SETS: &str = "/2013-04-01/hostedzone/Z1/rrset";
    match (asked.method.as_str(), asked.path.trim_end_matches('/')) {
        ("GET", "/2013-04-01/hostedzonesbyname") => {
            // The service lists from the name on: a private zone first, and zones of other names.
            let zone = |id: &str, name: &str, private: bool| {
                format!(
                    "<HostedZone><Id>/hostedzone/{id}</Id><Name>{name}.</Name>\
                     <Config><PrivateZone>{private}</PrivateZone></Config></HostedZone>"
                )
            };
            let zones = [
                zone("Z0", "example.com", true),
                zone("Z1", "example.com", false),
                zone("Z2", "other.test", false),
            ];
            let xmlns = "https://route53.amazonaws.com/doc/2013-04-01/";
            (
                200,
                format!(
                    "<?xml version=\"1.0\"?><R xmlns=\"{xmlns}\"><HostedZones>{}</HostedZones></R>",
                    zones.concat()
                ),
            )
        }
        ("GET", SETS) => {
            let name = asked.argument("name");
            let values: String = named(records, &name)
                .iter()
                .map(|(_, value)| {
                    format!("<ResourceRecord><Value>&quot;{value}&quot;</Value></ResourceRecord>")
                })
                .collect();
            let (name, values) = match values.is_empty() {
                // The next set of the zone.
                true => (
                    "www.example.com".to_owned(),
                    "<ResourceRecord><Value>192.0.2.1</Value></ResourceRecord>".to_owned(),
                ),
                false => (name, values),
            };
            let set = format!(
                "<ResourceRecordSet><Name>{name}.</Name><Type>TXT</Type>{values}</ResourceRecordSet>"
            );
            (200, format!("<R><ResourceRecordSets>{set}</ResourceRecordSets></R>"))
        }
        ("POST", SETS) => {
            let document = roxmltree::Document::parse(&asked.body).unwrap();
            let texts = |name: &str| -> Vec<String> {
                let nodes = document.descendants().filter(|node| node.tag_name().name() == name);
                nodes.map(|node| node.text().unwrap().to_owned()).collect()
            };
            let name = texts("Name")[0].trim_end_matches('.').to_owned();
            records.lock().unwrap().retain(|(_, own, _)| *own != name);
            if texts("Action") == ["UPSERT"] {
                texts("Value").iter().for_each(|value| add(records, &name, value.trim_matches('"')));
            }
            (200, "<R/>".into())
        }
        _ => (404, String::new()),
    }
}

/// The settings of a provider at an address, with a secret.
fn settings(provider: &str, endpoint: &str, secret: &str) -> AcmeDns {
    let own = match provider {
        "ovh" => {
            json!({"application_key": "app", "application_secret": "s", "consumer_key": secret, "endpoint": endpoint})
        }
        "route53" if secret == "token" => {
            json!({"access_key_id": "app", "secret_access_key": "s", "session_token": "t", "endpoint": endpoint})
        }
        "route53" => json!({"access_key_id": "other", "secret_access_key": "s", "endpoint": endpoint}),
        _ => json!({"api_token": secret, "endpoint": endpoint}),
    };
    serde_json::from_value(json!({ provider: own })).unwrap()
}

/// The responses of a provider.
type Provide = fn(&Asked, &Records) -> Reply;

const PROVIDERS: [(&str, Provide); 4] =
    [("cloudflare", cloudflare), ("digitalocean", digitalocean), ("ovh", ovh), ("route53", route53)];

#[tokio::test]
async fn records_are_added_to_others_and_removed() {
    for (name, reply) in PROVIDERS {
        let records = Records::default();
        let provider =
            Provider::new(&settings(name, &serve(&records, reply).await, "token")).unwrap().unwrap();
        let at = |text: &str| Name::from_ascii(text).unwrap();
        let place = at("_acme-challenge.a.b.example.com.");
        let values =
            || named(&records, "_acme-challenge.a.b.example.com").into_iter().map(|(_, value)| value);
        for value in ["one", "two"] {
            provider.act(Action::Present, &place, value).await.unwrap();
        }
        assert_eq!(values().collect::<Vec<_>>(), ["one", "two"], "{name}");
        provider.act(Action::Cleanup, &place, "one").await.unwrap();
        assert_eq!(values().collect::<Vec<_>>(), ["two"], "{name}");
        // Nothing is removed twice.
        provider.act(Action::Cleanup, &place, "one").await.unwrap();
        provider.act(Action::Cleanup, &place, "two").await.unwrap();
        assert_eq!(values().count(), 0, "{name}");
        let error = provider.act(Action::Present, &at("_acme-challenge.a.test."), "x").await.unwrap_err();
        assert!(error.contains("no zone for `_acme-challenge.a.test`"), "{error}");
    }
}

#[tokio::test]
async fn refusals_name_provider_and_status() {
    for (name, reply) in PROVIDERS {
        let records = Records::default();
        let provider =
            Provider::new(&settings(name, &serve(&records, reply).await, "wrong")).unwrap().unwrap();
        let place = Name::from_ascii("_acme-challenge.example.com.").unwrap();
        let error = provider.act(Action::Present, &place, "x").await.unwrap_err();
        assert!(error.starts_with(provider.name()) && error.contains("was refused with 40"), "{error}");
        assert!(!error.contains("wrong"), "{error}");
    }
}

#[test]
fn credentials_are_not_sent_in_cleartext() {
    for (name, _) in PROVIDERS {
        for endpoint in ["http://api.test", "ftp://127.0.0.1:1", "x"] {
            assert!(Provider::new(&settings(name, endpoint, "token")).is_err(), "{name} {endpoint}");
        }
        assert!(Provider::new(&settings(name, "http://127.0.0.1:1", "token")).is_ok());
    }
    assert!(Provider::new(&AcmeDns::default()).unwrap().is_none());
}
