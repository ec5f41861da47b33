//! Certificates, TLS options and client certificates.

use std::collections::HashSet;

use serde_json::{Map, Value, json};

use super::super::decision::{Certificate, Host, Plan};
use super::super::source::SourceLine;
use super::super::tree::Tree;
use super::entries::EntryPoint;
use super::fields::{at, field, text, texts};
use super::model::{Located, Model, Named};
use super::routers::Router;
use super::services::pem;

/// Sets the TLS of listeners and returns the routers that have to be closed.
pub(super) fn certificates(
    model: &mut Model<'_>,
    routers: &[Router],
    points: &mut [EntryPoint],
    plan: &mut Plan,
) -> Vec<(SourceLine, String)> {
    let resolver = acme(model, plan);
    let asks = |router: &&Router| {
        field(&router.named.tree, "tls").is_some_and(|tls| text(tls, "certresolver").is_some())
    };
    let entry_asks = model.statics.iter().any(|located| {
        let points = field(&located.tree, "entrypoints").map(Tree::members).unwrap_or_default();
        points.iter().any(|point| at(&point.value, &["http", "tls", "certresolver"]).is_some())
    });
    let is_automatic = resolver && (entry_asks || routers.iter().any(|router| asks(&router)));
    let files: Vec<Value> =
        model.certificates.iter().map(|(_, cert, key)| json!({"cert": cert, "key": key})).collect();
    let default = Model::find(&model.tls_options, "default", "").cloned();
    for point in points.iter_mut().filter(|point| point.has_tls) {
        let mut tls = Map::new();
        if !files.is_empty() {
            tls.insert("certificates".to_owned(), Value::Array(files.clone()));
        }
        if is_automatic {
            tls.insert("auto".to_owned(), true.into());
        }
        let options =
            point.tls_options.as_deref().and_then(|name| Model::find(&model.tls_options, name, "file"));
        if let Some(options) = options.cloned().or_else(|| default.clone()) {
            versions(model, &options, &mut tls);
        }
        point.fields.insert("tls".to_owned(), if tls.is_empty() { true.into() } else { Value::Object(tls) });
    }
    let mut closed = Vec::new();
    let mut done = HashSet::new();
    for router in routers.iter().filter(|router| router.has_tls) {
        let entry = router.points.iter().find_map(|index| points[*index].tls_options.clone());
        let name = router.tls_options.clone().or(entry).unwrap_or_else(|| "default".to_owned());
        let provider = if router.tls_options.is_some() { router.named.provider } else { "" };
        let Some(options) = Model::find(&model.tls_options, &name, provider).cloned() else {
            if name != "default" {
                let place = router.named.field(&router.named.tree, "tls");
                model
                    .remarks
                    .closed(place, format!("The TLS options `{name}` are not in the files; it is closed."));
                closed.push((router.named.place, format!("the TLS options {name} are missing")));
            }
            continue;
        };
        if let Err(reason) = client_auth(model, router, &options, plan, &mut done) {
            model.remarks.closed(options.place, format!("{reason} Its routers are closed."));
            closed.push((router.named.place, reason));
        }
    }
    closed
}

/// The settings of ACME; returns whether there are any.
fn acme(model: &mut Model<'_>, plan: &mut Plan) -> bool {
    for Located { file, tree } in model.statics.clone() {
        let resolvers = field(&tree, "certificatesresolvers").map(Tree::members).unwrap_or_default();
        for resolver in resolvers {
            let Some(conf) = field(&resolver.value, "acme") else { continue };
            let place = SourceLine { file, line: resolver.line };
            let mut acme = json!({"terms_agreed": true});
            for (source, target) in [("email", "email"), ("caserver", "directory")] {
                if let Some(value) = text(conf, source) {
                    acme[target] = value.into();
                }
            }
            if field(conf, "tlschallenge").is_some() {
                acme["challenge"] = "tls-alpn-01".into();
            }
            if let Some(dns) = field(conf, "dnschallenge") {
                let text = "Sigma completes the challenge with `acme.dns`: dynamic updates, a provider's API, or your own program.";
                model.remarks.gap(SourceLine { file, line: dns.line }, text);
            }
            let text = "Check `acme`: Sigma orders certificates again and stores them in `acme.storage`.";
            model.remarks.differs(place, text);
            plan.settings.insert("acme".to_owned(), acme);
            return true;
        }
    }
    false
}

fn versions(model: &mut Model<'_>, options: &Named, tls: &mut Map<String, Value>) {
    let known = [
        "minversion",
        "maxversion",
        "ciphersuites",
        "curvepreferences",
        "clientauth",
        "snistrict",
        "alpnprotocols",
        "disablesessiontickets",
        "preferserverciphersuites",
    ];
    model.unknown(options.place.file, &options.tree, &known);
    let (minimum, maximum) = (text(&options.tree, "minversion"), text(&options.tree, "maxversion"));
    if minimum == Some("VersionTLS13") {
        tls.insert("protocols".to_owned(), json!(["TLSv1.3"]));
    } else if maximum == Some("VersionTLS12") {
        tls.insert("protocols".to_owned(), json!(["TLSv1.2"]));
    }
    if matches!(minimum, Some("VersionTLS10" | "VersionTLS11")) {
        model
            .remarks
            .differs(options.field(&options.tree, "minversion"), "Sigma offers TLS 1.2 and 1.3 only.");
    }
    for name in ["ciphersuites", "curvepreferences"] {
        if field(&options.tree, name).is_some() {
            let text = "Sigma's own list applies: set `ciphers` and `curves` of the listener.";
            model.remarks.differs(options.field(&options.tree, name), text);
        }
    }
    let alpn = texts(&options.tree, "alpnprotocols");
    let alpn: Vec<String> = alpn.into_iter().filter(|name| name == "h2" || name == "http/1.1").collect();
    if !alpn.is_empty() {
        tls.insert("alpn".to_owned(), json!(alpn));
    }
    if field(&options.tree, "snistrict").and_then(Tree::boolean) == Some(true) {
        let text = "Clients without a known server name get the first certificate.";
        model.remarks.differs(options.field(&options.tree, "snistrict"), text);
    }
}

/// Client certificates for the hosts of a router.
fn client_auth(
    model: &mut Model<'_>,
    router: &Router,
    options: &Named,
    plan: &mut Plan,
    done: &mut HashSet<String>,
) -> Result<(), String> {
    let Some(conf) = field(&options.tree, "clientauth") else { return Ok(()) };
    let kind = text(conf, "clientauthtype").unwrap_or("NoClientCert");
    match kind {
        "NoClientCert" | "RequestClientCert" => return Ok(()),
        "RequireAndVerifyClientCert" | "VerifyClientCertIfGiven" => {}
        _ => return Err(format!("`{kind}` accepts certificates of every client, which Sigma does not.")),
    }
    if kind == "VerifyClientCertIfGiven" {
        let text = "Sigma requires the certificate; Traefik verifies it only if the client sends one.";
        model.remarks.guard_differs(options.field(conf, "clientauthtype"), text);
    }
    let authorities = pem(model, &texts(conf, "cafiles"))?;
    let mut names = Vec::new();
    for matching in &router.matches {
        if matching.hosts.is_empty() {
            return Err("A client certificate is for server names, and a router names no host.".to_owned());
        }
        for host in &matching.hosts {
            match host {
                Host::Exact(name) => names.push(name.clone()),
                _ => {
                    return Err(
                        "A client certificate is for server names, not for a pattern of hosts.".to_owned()
                    );
                }
            }
        }
    }
    names.retain(|name| done.insert(name.clone()));
    if names.is_empty() {
        return Ok(());
    }
    let fits = |cert: &str| names.iter().any(|name| cert.contains(name.as_str()));
    let certificates = &model.certificates;
    let certificate = match certificates.as_slice() {
        [one] => Some(one),
        all => all.iter().find(|(_, cert, _)| fits(cert)),
    };
    let Some((_, cert, key)) = certificate.cloned() else {
        return Err("No certificate file is known for these hosts: add an ssl with `client`.".to_owned());
    };
    let fields = Map::from_iter([("client".to_owned(), json!({"ca": authorities}))]);
    plan.certificates.push(Certificate { names, cert_file: cert, key_file: key, fields });
    Ok(())
}
