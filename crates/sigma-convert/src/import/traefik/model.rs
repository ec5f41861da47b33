//! The content of all files together: static settings, and named routers, services and middlewares of each provider.

use super::super::remarks::Remarks;
use super::super::source::{Files, SourceLine};
use super::super::tree::{Content, Member, Tree};
use super::fields;

/// A tree with its file.
#[derive(Debug, Clone)]
pub(super) struct Located {
    pub(super) file: u16,
    pub(super) tree: Tree,
}

/// A named element of a provider.
#[derive(Debug, Clone)]
pub(super) struct Named {
    pub(super) name: String,
    /// `file` or `docker`.
    pub(super) provider: &'static str,
    pub(super) place: SourceLine,
    pub(super) tree: Tree,
}

impl Named {
    /// Returns where a part of the element is.
    pub(super) fn at(&self, tree: &Tree) -> SourceLine {
        SourceLine { file: self.place.file, line: tree.line }
    }

    /// Returns where a field is, or the element.
    pub(super) fn field(&self, tree: &Tree, name: &str) -> SourceLine {
        fields::member(tree, name)
            .map_or(self.place, |member| SourceLine { file: self.place.file, line: member.line })
    }
}

/// Everything that the files say.
pub(super) struct Model<'a> {
    pub(super) remarks: Remarks,
    pub(super) access: &'a dyn Files,
    pub(super) statics: Vec<Located>,
    pub(super) dynamics: Vec<Located>,
    pub(super) http: ProtocolElements,
    pub(super) transports: Vec<Named>,
    pub(super) tcp: ProtocolElements,
    /// Without middlewares: UDP has none.
    pub(super) udp: ProtocolElements,
    pub(super) tls_options: Vec<Named>,
    /// Certificates: certificate and key files.
    pub(super) certificates: Vec<(SourceLine, String, String)>,
    /// Whether rules have the syntax of Traefik 2.
    pub(super) is_old: bool,
}

/// The named elements of a protocol.
#[derive(Default)]
pub(super) struct ProtocolElements {
    pub(super) routers: Vec<Named>,
    pub(super) services: Vec<Named>,
    pub(super) middlewares: Vec<Named>,
}

impl<'a> Model<'a> {
    pub(super) fn new(access: &'a dyn Files) -> Model<'a> {
        Model {
            remarks: Remarks::default(),
            access,
            statics: Vec::new(),
            dynamics: Vec::new(),
            http: ProtocolElements::default(),
            transports: Vec::new(),
            tcp: ProtocolElements::default(),
            udp: ProtocolElements::default(),
            tls_options: Vec::new(),
            certificates: Vec::new(),
            is_old: false,
        }
    }

    /// Takes the elements of a dynamic configuration.
    pub(super) fn dynamic(&mut self, file: u16, provider: &'static str, tree: Tree) {
        let parts: [(&[&str], &mut Vec<Named>); 10] = [
            (&["http", "routers"], &mut self.http.routers),
            (&["http", "services"], &mut self.http.services),
            (&["http", "middlewares"], &mut self.http.middlewares),
            (&["http", "serverstransports"], &mut self.transports),
            (&["tcp", "routers"], &mut self.tcp.routers),
            (&["tcp", "services"], &mut self.tcp.services),
            (&["tcp", "middlewares"], &mut self.tcp.middlewares),
            (&["udp", "routers"], &mut self.udp.routers),
            (&["udp", "services"], &mut self.udp.services),
            (&["tls", "options"], &mut self.tls_options),
        ];
        for (path, list) in parts {
            let Some(found) = fields::at(&tree, path) else { continue };
            for Member { key, line, value } in found.members() {
                let place = SourceLine { file, line: *line };
                let twice = list.iter().any(|other| other.name == *key && other.provider == provider);
                if twice {
                    self.remarks.differs(place, "This name exists twice; the first one is used.");
                    continue;
                }
                list.push(Named { name: key.clone(), provider, place, tree: value.clone() });
            }
        }
        if let Some(list) = fields::at(&tree, &["tls", "certificates"]) {
            self.take_certificates(file, list);
        }
        self.check_sections(file, &tree);
        self.dynamics.push(Located { file, tree });
    }

    fn take_certificates(&mut self, file: u16, list: &Tree) {
        for item in list.items() {
            let place = SourceLine { file, line: item.line };
            match (fields::text(item, "certfile"), fields::text(item, "keyfile")) {
                (Some(cert), Some(key)) if !cert.contains("-----BEGIN") => {
                    self.certificates.push((place, cert.to_owned(), key.to_owned()));
                }
                _ => {
                    self.remarks.gap(place, "Write certificate and key into files, and name them in `ssls`.")
                }
            }
        }
    }

    /// Says which sections of a dynamic configuration are unknown.
    fn check_sections(&mut self, file: u16, tree: &Tree) {
        let known: [(&[&str], &[&str]); 5] = [
            (&[], &["http", "tcp", "udp", "tls"]),
            (&["http"], &["routers", "services", "middlewares", "serverstransports", "models"]),
            (&["tcp"], &["routers", "services", "middlewares", "serverstransports", "models"]),
            (&["udp"], &["routers", "services"]),
            (&["tls"], &["certificates", "options", "stores"]),
        ];
        for (path, names) in known {
            if let Some(section) = fields::at(tree, path) {
                self.unknown(file, section, names);
            }
        }
        if let Some(stores) = fields::at(tree, &["tls", "stores"]) {
            for store in stores.members() {
                self.default_certificate(file, &store.value);
            }
        }
    }

    fn default_certificate(&mut self, file: u16, store: &Tree) {
        if let Some(default) = fields::field(store, "defaultcertificate") {
            self.take_certificates(file, default);
        }
        if let Some(generated) = fields::member(store, "defaultgeneratedcert") {
            let place = SourceLine { file, line: generated.line };
            self.remarks.gap(place, "Name a certificate in `ssls`, or use `tls: auto` with `acme`.");
        }
    }

    /// Adds a remark on each member whose name is not known, and returns whether there is one.
    pub(super) fn unknown(&mut self, file: u16, tree: &Tree, known: &[&str]) -> bool {
        let mut found = false;
        for member in tree.members() {
            if !known.iter().any(|name| member.key.eq_ignore_ascii_case(name)) {
                let place = SourceLine { file, line: member.line };
                self.remarks
                    .gap(place, format!("The importer does not know `{}`; look it up by hand.", member.key));
                found = true;
            }
        }
        found
    }

    /// Finds a named element: `name@provider`, or a name of the same provider.
    pub(super) fn find<'n>(list: &'n [Named], name: &str, provider: &str) -> Option<&'n Named> {
        let (name, provider) = name.split_once('@').unwrap_or((name, provider));
        list.iter().find(|other| other.name == name && (other.provider == provider || provider.is_empty()))
    }

    /// Says of all lines without a remark that they have the same effect.
    pub(super) fn mark_rest(&mut self) {
        for Located { file, tree } in self.statics.iter().chain(&self.dynamics) {
            self.remarks.rest(*file, tree);
        }
    }
}

/// Returns a copy of a tree whose lists in texts (`a,b`) are lists: labels have no other form.
pub(super) fn split_lists(tree: &mut Tree) {
    const LISTS: [&str; 33] = [
        "entrypoints",
        "middlewares",
        "prefixes",
        "sourcerange",
        "excludedips",
        "users",
        "authresponseheaders",
        "authrequestheaders",
        "accesscontrolallowheaders",
        "accesscontrolallowmethods",
        "accesscontrolalloworiginlist",
        "accesscontrolalloworiginlistregex",
        "accesscontrolexposeheaders",
        "allowedhosts",
        "hostsproxyheaders",
        "status",
        "excludedcontenttypes",
        "includedcontenttypes",
        "encodings",
        "alloworigins",
        "sans",
        "addauthcookiestoresponse",
        "trustedips",
        "regex",
        "errorrequestheaders",
        "caserver",
        "ciphersuites",
        "curvepreferences",
        "rootcas",
        "serverscas",
        "endpoints",
        "connection",
        "parentrefs",
    ];
    if let Content::Map(members) = &mut tree.content {
        for member in members {
            // The pattern of redirectRegex and replacePathRegex is one text.
            let is_list =
                LISTS.iter().any(|name| member.key.eq_ignore_ascii_case(name)) && member.key != "regex";
            match (&member.value.content, is_list) {
                (Content::Scalar { text, .. }, true) => {
                    let line = member.value.line;
                    let items = text.split(',').map(|item| Tree::scalar(line, item.trim())).collect();
                    member.value.content = Content::List(items);
                }
                _ => split_lists(&mut member.value),
            }
        }
    }
}
