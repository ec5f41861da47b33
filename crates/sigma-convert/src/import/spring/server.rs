//! Settings of the whole application: the address, TLS, CORS, logins and security headers.

use serde_json::{Map, Value, json};

use super::super::decision::{Certificate, Listener, Plan};
use super::super::nodes::Node;
use super::super::source::SourceLine;
use super::actions::Actions;
use super::code::Cors;
use super::definition::Definition;
use super::settings::{Settings, find_in, relaxed};
use super::values::{Outcome, seconds};

/// A remark on a line of the settings.
pub(super) struct Note {
    pub place: SourceLine,
    pub text: String,
    /// Whether it guards access and is not possible.
    pub guards: bool,
}

/// Plugins of all routes, and why all routes are closed.
#[derive(Default)]
pub(super) struct Common {
    pub plugins: Map<String, Value>,
    pub cors: Vec<Cors>,
    pub closed: Option<String>,
    pub notes: Vec<Note>,
}

impl Common {
    fn note(&mut self, place: SourceLine, text: impl Into<String>) {
        self.notes.push(Note { place, text: text.into(), guards: false });
    }

    /// Closes all routes.
    fn close(&mut self, place: SourceLine, text: &str) {
        self.notes.push(Note { place, text: text.to_owned(), guards: true });
        self.closed.get_or_insert_with(|| text.to_owned());
    }
}

/// Reads the settings of the server into the plan.
pub(super) fn read(settings: &Settings<'_>, plan: &mut Plan) -> Common {
    let mut common = Common::default();
    listener(settings, plan, &mut common);
    cors(settings, &mut common);
    login(settings, plan, &mut common);
    if let Some(node) =
        settings.first(&["server.max-http-request-header-size", "server.max-http-header-size"])
        && let Some(bytes) = settings.text(node).and_then(|text| super::values::bytes(&text))
    {
        plan.settings.insert("limits".to_owned(), json!({"request_head_bytes": bytes}));
    }
    if let Some(node) = settings.first(&["spring.webflux.base-path", "server.servlet.context-path"])
        && settings.text(node).is_some_and(|text| !matches!(text.as_str(), "" | "/"))
    {
        common
            .close(node.place, "A path in front of all routes is not converted: write it into each `Path`.");
    }
    common
}

fn listener(settings: &Settings<'_>, plan: &mut Plan, common: &mut Common) {
    let port_node = settings.find("server.port");
    let port =
        port_node.and_then(|node| settings.text(node)).map_or(Some(8080), |text| text.trim().parse().ok());
    let port = port.filter(|port| *port > 0).unwrap_or_else(|| {
        common.note(
            port_node.map_or(SourceLine::default(), |node| node.place),
            "The port is unknown: 8080 is used.",
        );
        8080
    });
    let host = settings.text_at("server.address").unwrap_or_default();
    let address = if host.contains(':') && !host.starts_with('[') {
        format!("[{host}]:{port}")
    } else {
        format!("{host}:{port}")
    };
    let mut listener = Listener { address, port, ..Listener::default() };
    if let Some(ssl) = settings.find("server.ssl")
        && find_in(ssl, "enabled").and_then(Node::boolean) != Some(false)
    {
        tls(ssl, settings, plan, &mut listener, common);
    }
    plan.listeners.push(listener);
}

fn tls(ssl: &Node, settings: &Settings<'_>, plan: &mut Plan, listener: &mut Listener, common: &mut Common) {
    let text = |name: &str| find_in(ssl, name).and_then(|node| settings.text(node));
    let bundle = text("bundle").and_then(|name| {
        let store = settings.find(&format!("spring.ssl.bundle.pem.{name}.keystore"))?;
        let file = |name: &str| find_in(store, name).and_then(|node| settings.text(node));
        Some((file("certificate")?, file("private-key")?))
    });
    let files = bundle.or_else(|| text("certificate").zip(text("certificate-private-key")));
    let (cert, key) = match files {
        Some((cert, key)) => (file_path(&cert), file_path(&key)),
        None => {
            let store = file_path(&text("key-store").unwrap_or_else(|| "keystore.p12".to_owned()));
            let base = store.rsplit_once('.').map_or(store.as_str(), |(base, _)| base);
            common.note(
                ssl.place,
                format!(
                    "Sigma reads PEM files: make them by `openssl pkcs12 -in {store} -out {base}.crt -nokeys` and \
                     `openssl pkcs12 -in {store} -out {base}.key -nocerts -nodes`."
                ),
            );
            (format!("{base}.crt"), format!("{base}.key"))
        }
    };
    listener.fields.insert("tls".to_owned(), json!({"certificates": [{"cert": cert, "key": key}]}));
    match text("client-auth").map(|text| text.to_ascii_lowercase()).as_deref() {
        None | Some("none") => {}
        Some(_) => {
            let place = find_in(ssl, "client-auth").map_or(ssl.place, |node| node.place);
            match text("trust-certificate").filter(|path| !path.contains("classpath:")) {
                Some(ca) => {
                    let mut fields = Map::new();
                    fields.insert("client".to_owned(), json!({"ca_file": file_path(&ca)}));
                    plan.certificates.push(Certificate {
                        names: vec!["*".to_owned()],
                        cert_file: cert,
                        key_file: key,
                        fields,
                    });
                    common.close(
                        place,
                        "Client certificates need `client: { ca: … }` of an ssl with the text of the CA: set it and open the routes.",
                    );
                    plan.certificates.clear();
                }
                None => common.close(
                    place,
                    "Client certificates need the CA in PEM, in `client` of an ssl; export it from the trust store.",
                ),
            }
        }
    }
}

/// A path of a resource.
fn file_path(text: &str) -> String {
    let path = ["file:", "classpath:"].iter().find_map(|prefix| text.strip_prefix(prefix)).unwrap_or(text);
    path.to_owned()
}

/// Reads the rules of CORS: the first pattern that matches a path counts.
fn cors(settings: &Settings<'_>, common: &mut Common) {
    let Some(node) = settings.first(&[
        "spring.cloud.gateway.server.webflux.globalcors.cors-configurations",
        "spring.cloud.gateway.globalcors.cors-configurations",
    ]) else {
        return;
    };
    for (pattern, rules) in node.members() {
        let pattern = pattern.trim_matches(['[', ']', '\'', '"']);
        match super::pattern::paths(pattern, true) {
            Ok(paths) => common.cors.push(cors_rules(rules, settings, &path_regex(&paths))),
            Err(reason) => common.note(rules.place, reason),
        }
    }
}

fn path_regex(paths: &[super::super::decision::Path]) -> String {
    use super::super::decision::Path;
    let regexes: Vec<String> = paths
        .iter()
        .map(|path| match path {
            Path::Exact(text) => format!("^{}$", regex::escape(text)),
            Path::Prefix(text) => format!("^{}", regex::escape(text)),
            Path::Segments(text) => format!("^{}(?:/|$)", regex::escape(text)),
            Path::Regex { pattern, .. } => pattern.clone(),
        })
        .collect();
    regexes.join("|")
}

/// The rules of CORS for the paths of a regular expression.
pub(super) fn cors_rules(rules: &Node, settings: &Settings<'_>, path: &str) -> Cors {
    let list = |name: &str| find_in(rules, name).map(|node| settings.texts(node)).unwrap_or_default();
    let text = |name: &str| find_in(rules, name).and_then(|node| settings.text(node));
    let mut regexes: Vec<String> =
        list("allowed-origin-patterns").iter().map(|it| origin_regex(it)).collect();
    let origins = list("allowed-origins");
    let credentials = text("allow-credentials").is_some_and(|text| text == "true");
    let any = origins.iter().any(|origin| origin == "*");
    regexes.extend(
        origins
            .iter()
            .filter(|it| *it != "*")
            .map(|it| format!("^{}/?$", regex::escape(it.trim_end_matches('/')))),
    );
    let mut methods = list("allowed-methods");
    if methods.is_empty() {
        methods = vec!["GET".to_owned(), "HEAD".to_owned()];
    }
    // The number of this field is seconds.
    let age = text("max-age").and_then(|text| text.trim().parse().ok().or_else(|| seconds(&text)));
    Cors {
        path: path.to_owned(),
        any,
        origins: regexes.join("|"),
        methods,
        headers: list("allowed-headers"),
        exposed: list("exposed-headers").join(", "),
        credentials,
        age: age.map(|age: f64| age as u64),
    }
}

/// An origin pattern such as `https://*.example.com:[8080,8081]`.
fn origin_regex(pattern: &str) -> String {
    let (base, ports) = match pattern.split_once(":[") {
        Some((base, ports)) => (base, Some(ports.trim_end_matches(']'))),
        None => (pattern, None),
    };
    let mut regex = format!("^{}", regex::escape(base).replace("\\*", ".*"));
    if let Some(ports) = ports {
        match ports {
            "*" => regex.push_str("(?::[0-9]+)?"),
            ports => regex
                .push_str(&format!(":(?:{})", ports.split(',').map(str::trim).collect::<Vec<_>>().join("|"))),
        }
    }
    regex.push('$');
    regex
}

/// Logins that properties switch on.
fn login(settings: &Settings<'_>, plan: &mut Plan, common: &mut Common) {
    if let Some(node) = settings.find("spring.security.user") {
        let text = |name: &str| find_in(node, name).and_then(|node| settings.text(node));
        let user = text("name").unwrap_or_else(|| "user".to_owned());
        match text("password") {
            Some(password) if !password.starts_with('{') || password.starts_with("{noop}") => {
                let password = password.strip_prefix("{noop}").unwrap_or(&password);
                plan.consumers
                    .push(json!({"username": super::super::build::id(&user).replace(['-', '.'], "_"),
                    "plugins": {"basic-auth": {"username": user, "password": password}}}));
                common.plugins.insert("basic-auth".to_owned(), json!({"hide_credentials": false}));
                common.note(node.place, "All routes ask for these credentials by Basic; the application may have permitted some paths in code.");
            }
            Some(password) if password.starts_with("{bcrypt}") => {
                let hash = password.trim_start_matches("{bcrypt}");
                common.plugins.insert("basic-auth".to_owned(), json!({"users": [format!("{user}:{hash}")]}));
                common.note(node.place, "All routes ask for these credentials by Basic; the application may have permitted some paths in code.");
            }
            _ => common.close(
                node.place,
                "The application generates the password at its start; configure basic-auth.",
            ),
        }
    }
    if let Some(node) = settings.find("spring.security.oauth2.resourceserver") {
        let text = |name: &str| find_in(node, name).and_then(|node| settings.text(node));
        match text("jwt.issuer-uri") {
            Some(issuer) => {
                let discovery = format!("{}/.well-known/openid-configuration", issuer.trim_end_matches('/'));
                common.plugins.insert(
                    "openid-connect".to_owned(),
                    json!({"client_id": "gateway", "discovery": discovery, "bearer_only": true, "use_jwks": true,
                        "set_access_token_header": false, "set_id_token_header": false, "set_userinfo_header": false}),
                );
                common.note(node.place, "All routes need a valid token; rules of the application's code, such as paths without a login and roles, are not in this file.");
            }
            None => common.close(
                node.place,
                "Without `issuer-uri`, the login cannot be converted: use jwt-auth with `jwks_uri`, or openid-connect.",
            ),
        }
    }
}

/// TokenRelay: the login of a client registration, whose access token the node gets.
pub(super) fn token_relay(it: &Definition, settings: &Settings<'_>, actions: &mut Actions) -> Outcome {
    let missing = "The login is code of the application: configure openid-connect for this route.";
    let Some(registrations) = settings.find("spring.security.oauth2.client.registration") else {
        return Outcome::Guard(missing.to_owned());
    };
    let wanted = it.one("clientRegistrationId").or_else(|| it.one("name"));
    let found = registrations
        .members()
        .iter()
        .find(|(key, _)| wanted.is_none_or(|name| relaxed(key) == relaxed(name)));
    let Some((id, node)) = found else { return Outcome::Guard(missing.to_owned()) };
    let text = |name: &str| find_in(node, name).and_then(|node| settings.text(node));
    let provider = text("provider").unwrap_or_else(|| id.clone());
    let issuer = settings.text_at(&format!("spring.security.oauth2.client.provider.{provider}.issuer-uri"));
    let (Some(issuer), Some(client), Some(secret)) = (issuer, text("client-id"), text("client-secret"))
    else {
        return Outcome::Guard(
            "The provider has no `issuer-uri`, or the client has no id and secret: configure openid-connect."
                .to_owned(),
        );
    };
    let scopes = find_in(node, "scope").map(|node| settings.texts(node)).unwrap_or_default();
    let discovery = format!("{}/.well-known/openid-configuration", issuer.trim_end_matches('/'));
    let mut plugin = json!({"client_id": client, "client_secret": secret, "discovery": discovery, "use_jwks": true,
        "access_token_in_authorization_header": true, "set_id_token_header": false, "set_userinfo_header": false,
        "session": {"secret": "${{SESSION_SECRET}}"}});
    if !scopes.is_empty() {
        plugin["scope"] = scopes.join(" ").into();
    }
    actions.plugins.insert("openid-connect".to_owned(), plugin);
    Outcome::Differs("Set the environment variable SESSION_SECRET, and the callback URI of openid-connect at the provider.".to_owned())
}

/// SecureHeaders: its eight fields, as Lua, because fields of the node stay.
pub(super) fn secure_headers(it: &Definition, settings: &Settings<'_>) -> String {
    let mut code = String::new();
    {
        let base = "spring.cloud.gateway.filter.secure-headers";
        let fields = [
            ("X-Xss-Protection", "xss-protection-header", "1 ; mode=block"),
            ("Strict-Transport-Security", "strict-transport-security", "max-age=631138519"),
            ("X-Frame-Options", "frame-options", "DENY"),
            ("X-Content-Type-Options", "content-type-options", "nosniff"),
            ("Referrer-Policy", "referrer-policy", "no-referrer"),
            (
                "Content-Security-Policy",
                "content-security-policy",
                "default-src 'self' https:; font-src 'self' https: data:; img-src 'self' https: data:; object-src 'none'; \
             script-src https:; style-src 'self' https: 'unsafe-inline'",
            ),
            ("X-Download-Options", "download-options", "noopen"),
            ("X-Permitted-Cross-Domain-Policies", "permitted-cross-domain-policies", "none"),
        ];
        let mut disabled: Vec<String> =
            settings.find(&format!("{base}.disable")).map(|node| settings.texts(node)).unwrap_or_default();
        disabled.extend(it.many("disable"));
        for (name, property, default) in fields {
            let is_off = disabled
                .iter()
                .any(|word| relaxed(word) == relaxed(name) || relaxed(word) == relaxed(property));
            if !is_off {
                let own = it.one(property).map(str::to_owned);
                let value = own.or_else(|| settings.text_at(&format!("{base}.{property}")));
                let value = value.unwrap_or_else(|| default.to_owned());
                code.push_str(&super::code::absent(name, &value));
            }
        }
    }
    code
}
