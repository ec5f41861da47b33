//! Amazon Route 53: XML, signed with Signature Version 4. The key needs `route53:ListHostedZonesByName`,
//! `route53:ListResourceRecordSets` and `route53:ChangeResourceRecordSets`.
//!
//! A set of records is replaced as a whole, so its other values are read first.

use reqwest::{Method, Url};
use sigma_config::acme::Route53 as Settings;
use sigma_plugin_kit::sigv4::{Account, Paths, Request, sha256};
use sigma_plugin_kit::utc;
use sigma_schema::Confidential;

use super::api::{Api, Call, Response, escaped};
use super::{Record, Zones};
use crate::serving::clock::unix_seconds;

const BASE: &str = "https://route53.amazonaws.com";

/// The service has one region for all.
const REGION: &str = "us-east-1";

const VERSION: &str = "/2013-04-01";

pub(in super::super) struct Route53 {
    api: Api,
    host: String,
    access_key_id: String,
    secret_access_key: Confidential,
    session_token: Option<Confidential>,
    ttl: u32,
}

/// A change of a set of records.
#[derive(Clone, Copy)]
enum Change {
    Upsert,
    Delete,
}

impl Route53 {
    pub(super) fn new(settings: &Settings) -> Result<Route53, String> {
        let api = Api::new(settings.endpoint.as_deref().unwrap_or(BASE))?;
        let url = Url::parse(api.base()).map_err(|error| error.to_string())?;
        let host = match (url.host_str().unwrap_or_default(), url.port()) {
            (host, Some(port)) => format!("{host}:{port}"),
            (host, None) => host.to_owned(),
        };
        Ok(Route53 {
            api,
            host,
            access_key_id: settings.access_key_id.clone(),
            secret_access_key: settings.secret_access_key.clone(),
            session_token: settings.session_token.clone(),
            ttl: settings.ttl,
        })
    }

    /// Calls the service. `query` has its parameters in the order of their names, each escaped.
    async fn call(&self, method: Method, path: &str, query: &str, body: String) -> Result<Response, String> {
        let time = utc::compact(unix_seconds().unsigned_abs());
        let token = self.session_token.as_ref().map(Confidential::reveal);
        let mut fields = vec![("host", &*self.host), ("x-amz-date", &*time)];
        fields.extend(token.map(|token| ("x-amz-security-token", token)));
        let target = if query.is_empty() { path.to_owned() } else { format!("{path}?{query}") };
        let signer = Account {
            access_key_id: &self.access_key_id,
            secret_access_key: &self.secret_access_key,
            region: REGION,
            service: "route53",
        };
        let signed = Request {
            method: method.as_str().as_bytes(),
            target: target.as_bytes(),
            paths: Paths::Normal,
            fields: fields.iter().map(|(name, value)| ((*name).to_owned(), (*value).into())).collect(),
            payload: &sha256(body.as_bytes()),
        };
        let authorization = signer.authorization(&signed, &time);
        // The client sends `host` itself.
        fields.retain(|(name, _)| *name != "host");
        fields.extend([("authorization", &*authorization), ("content-type", "text/xml")]);
        self.api.call(Call { method, target: &target, fields: &fields, body }).await
    }

    /// Returns the quoted values of the TXT records of a name.
    async fn values(&self, id: &str, name: &str) -> Result<Vec<String>, String> {
        let query = format!("maxitems=1&name={}&type=TXT", query_escaped(name));
        let path = format!("{VERSION}/hostedzone/{id}/rrset");
        let found = self.call(Method::GET, &path, &query, String::new()).await?;
        found.done("the search for a record")?;
        let text = text_of(&found)?;
        let document = parsed(&text)?;
        let mut sets = document.descendants().filter(|node| node.has_tag_name_any("ResourceRecordSet"));
        // Without a set of this name the search returns the next one.
        let Some(set) = sets.find(|set| is_named(*set, name) && child(*set, "Type") == Some("TXT")) else {
            return Ok(Vec::new());
        };
        let values = set.descendants().filter(|node| node.has_tag_name_any("Value"));
        Ok(values.filter_map(|value| value.text()).map(str::to_owned).collect())
    }

    async fn change(&self, id: &str, name: &str, change: Change, values: &[String]) -> Result<(), String> {
        let action = match change {
            Change::Upsert => "UPSERT",
            Change::Delete => "DELETE",
        };
        let record = |value: &String| {
            format!("<ResourceRecord><Value>{}</Value></ResourceRecord>", xml_escaped(value))
        };
        let records: String = values.iter().map(record).collect();
        let (ttl, name) = (self.ttl, xml_escaped(name));
        let body = format!(
            "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\
             <ChangeResourceRecordSetsRequest xmlns=\"https://route53.amazonaws.com/doc/2013-04-01/\">\
             <ChangeBatch><Changes><Change><Action>{action}</Action><ResourceRecordSet><Name>{name}.</Name>\
             <Type>TXT</Type><TTL>{ttl}</TTL><ResourceRecords>{records}</ResourceRecords></ResourceRecordSet>\
             </Change></Changes></ChangeBatch></ChangeResourceRecordSetsRequest>"
        );
        let path = format!("{VERSION}/hostedzone/{id}/rrset/");
        self.call(Method::POST, &path, "", body).await?.done("the change of a record")
    }
}

impl Zones for Route53 {
    async fn find(&self, zone: &str) -> Result<Option<String>, String> {
        let query = format!("dnsname={}&maxitems=5", query_escaped(zone));
        let path = format!("{VERSION}/hostedzonesbyname");
        let found = self.call(Method::GET, &path, &query, String::new()).await?;
        found.done("the search for a zone")?;
        let text = text_of(&found)?;
        let document = parsed(&text)?;
        let zones = document.descendants().filter(|node| node.has_tag_name_any("HostedZone"));
        // An authority does not see a private zone of the same name.
        let is_public = |node: &roxmltree::Node<'_, '_>| {
            !node
                .descendants()
                .any(|node| node.has_tag_name_any("PrivateZone") && node.text() == Some("true"))
        };
        let id =
            zones.filter(is_public).find(|node| is_named(*node, zone)).and_then(|node| child(node, "Id"));
        Ok(id.map(|id| id.trim_start_matches("/hostedzone/").to_owned()).filter(|id| is_id(id)))
    }

    async fn add(&self, id: &str, record: &Record) -> Result<(), String> {
        let mut values = self.values(id, &record.name).await?;
        let value = quoted(&record.value);
        if !values.contains(&value) {
            values.push(value);
        }
        self.change(id, &record.name, Change::Upsert, &values).await
    }

    async fn remove(&self, id: &str, record: &Record) -> Result<(), String> {
        let mut values = self.values(id, &record.name).await?;
        let value = quoted(&record.value);
        if !values.contains(&value) {
            return Ok(());
        }
        if values.len() == 1 {
            return self.change(id, &record.name, Change::Delete, &values).await;
        }
        values.retain(|other| *other != value);
        self.change(id, &record.name, Change::Upsert, &values).await
    }
}

/// Finds elements by their local name: the service's namespace is not requested.
trait Named {
    fn has_tag_name_any(&self, name: &str) -> bool;
}

impl Named for roxmltree::Node<'_, '_> {
    fn has_tag_name_any(&self, name: &str) -> bool {
        self.is_element() && self.tag_name().name() == name
    }
}

fn text_of(response: &Response) -> Result<String, String> {
    String::from_utf8(response.body.clone()).map_err(|_| "a response is not UTF-8".to_owned())
}

fn parsed(text: &str) -> Result<roxmltree::Document<'_>, String> {
    roxmltree::Document::parse(text).map_err(|error| format!("a response is not XML: {error}"))
}

fn child<'t>(node: roxmltree::Node<'t, '_>, name: &str) -> Option<&'t str> {
    node.children().find(|node| node.has_tag_name_any(name))?.text()
}

fn is_named(node: roxmltree::Node<'_, '_>, name: &str) -> bool {
    child(node, "Name").is_some_and(|text| text.trim_end_matches('.').eq_ignore_ascii_case(name))
}

/// An id becomes part of a path.
fn is_id(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_alphanumeric())
}

fn quoted(value: &str) -> String {
    format!("\"{value}\"")
}

/// Escapes as signatures demand it: letters, digits, `-`, `.`, `_` and `~` stay.
fn query_escaped(text: &str) -> String {
    escaped(text).replace("%2D", "-").replace("%2E", ".").replace("%5F", "_").replace("%7E", "~")
}

fn xml_escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}
