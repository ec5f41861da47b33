//! The messages that the gateway itself writes, and those that end a session.

use std::fmt::Write;

use roxmltree::Document;
use sigma_plugin::system::System;

use super::assertion::{NameId, Refusal, SKEW_S, is_success, signed_root, text, time};
use super::binding::Kind;
use super::config::Binding;
use super::document::{ASSERTION, PROTOCOL, SIGNATURE, attribute, is_named};
use super::instant;
use super::keys::ProviderKeys;

/// The common head of the gateway's messages.
pub(super) struct Head<'h> {
    pub(super) id: &'h str,
    /// Seconds since 1970.
    pub(super) now: u64,
    /// Where it is sent.
    pub(super) destination: &'h str,
    /// The gateway's name.
    pub(super) issuer: &'h str,
}

/// Returns a random ID, in the form of XML IDs.
pub(super) fn new_id(machine: &dyn System) -> Result<String, String> {
    let mut bytes = [0; 16];
    machine.fill_random(&mut bytes)?;
    Ok(format!("_{:032x}", u128::from_be_bytes(bytes)))
}

/// A text within an element or an attribute.
fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

impl Head<'_> {
    /// Returns a message of this name, with these attributes and elements in addition to the common ones.
    fn message(&self, name: &str, attributes: &[(&str, &str)], content: &str) -> String {
        let Head { id, now, destination, issuer } = self;
        let attributes: String =
            attributes.iter().map(|(name, value)| format!(" {name}=\"{}\"", escaped(value))).collect();
        format!(
            "<samlp:{name} xmlns:samlp=\"{PROTOCOL}\" xmlns:saml=\"{ASSERTION}\" ID=\"{id}\" Version=\"2.0\" \
            IssueInstant=\"{}\" Destination=\"{}\"{attributes}><saml:Issuer>{}</saml:Issuer>{content}</samlp:{name}>",
            instant::text(*now),
            escaped(destination),
            escaped(issuer),
        )
    }

    /// Requests a login, whose response is to be brought here.
    pub(super) fn authn_request(&self, binding: Binding, answer_to: &str) -> String {
        let attributes = [("ProtocolBinding", binding.urn()), ("AssertionConsumerServiceURL", answer_to)];
        self.message("AuthnRequest", &attributes, "")
    }

    /// Requests the end of a session.
    pub(super) fn logout_request(&self, name: &NameId, session_index: Option<&str>) -> String {
        let said = [
            ("Format", &name.format),
            ("NameQualifier", &name.qualifier),
            ("SPNameQualifier", &name.own_qualifier),
        ];
        let mut content = "<saml:NameID".to_owned();
        for (attribute, value) in said {
            if let Some(value) = value {
                // Writing to a string does not fail.
                let _ = write!(content, " {attribute}=\"{}\"", escaped(value));
            }
        }
        let _ = write!(content, ">{}</saml:NameID>", escaped(&name.text));
        if let Some(index) = session_index {
            let _ = write!(content, "<samlp:SessionIndex>{}</samlp:SessionIndex>", escaped(index));
        }
        self.message("LogoutRequest", &[], &content)
    }

    /// Says that a session has ended.
    pub(super) fn logout_response(&self, request: &str) -> String {
        let content = "<samlp:Status><samlp:StatusCode \
            Value=\"urn:oasis:names:tc:SAML:2.0:status:Success\"/></samlp:Status>";
        self.message("LogoutResponse", &[("InResponseTo", request)], content)
    }
}

/// The provider's message about the end of a session.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Logout<'a> {
    /// The session is to end.
    Request { id: &'a str, issuer: Option<&'a str>, name: Option<&'a str> },
    /// It has ended, as the gateway has asked.
    Response { in_response_to: Option<&'a str> },
}

impl<'a> Logout<'a> {
    /// A message that was signed as a whole: by its text (`is_signed`), or by a signature within.
    ///
    /// # Errors
    /// Returns an error if it is not a message, if the provider has not signed it, or if it is for another
    /// place or time.
    pub(super) fn read(
        document: &'a Document<'_>,
        kind: Kind,
        is_signed: bool,
        keys: &ProviderKeys,
        destination: &str,
        now: u64,
    ) -> Result<Logout<'a>, Refusal> {
        let broken = Refusal::broken;
        let root = document.root_element();
        let name = match kind {
            Kind::Request => "LogoutRequest",
            Kind::Response => "LogoutResponse",
        };
        if !is_named(root, PROTOCOL, name) || attribute(root, "Version") != Some("2.0") {
            return Err(broken("the message is not a LogoutRequest or LogoutResponse"));
        }
        let mut signatures = root.descendants().filter(|node| is_named(*node, SIGNATURE, "Signature"));
        if !signatures.all(|signature| signature.parent() == Some(root)) {
            return Err(broken("a signature is not a child of the message"));
        }
        let root = signed_root(document, is_signed, keys)?;
        let root = root.ok_or(broken("the message is not signed"))?.node();
        if attribute(root, "Destination").is_some_and(|written| written != destination) {
            return Err(Refusal::foreign("the message is for another destination"));
        }
        if time(root, "NotOnOrAfter")?.is_some_and(|ends| now >= ends.saturating_add(SKEW_S)) {
            return Err(Refusal::foreign("the message has expired"));
        }
        match kind {
            Kind::Request => Ok(Logout::Request {
                id: attribute(root, "ID").ok_or(broken("the message has no ID"))?,
                issuer: text(root, ASSERTION, "Issuer").map_err(broken)?,
                name: text(root, ASSERTION, "NameID").map_err(broken)?,
            }),
            Kind::Response if is_success(root).map_err(broken)? => {
                Ok(Logout::Response { in_response_to: attribute(root, "InResponseTo") })
            }
            Kind::Response => Err(Refusal::useless("the provider did not end the session")),
        }
    }
}
