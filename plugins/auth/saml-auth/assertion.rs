//! The assertion of a provider about a user, and the checks that it is for this gateway, for now, and a response to
//! its request.

use roxmltree::{Document, Node};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::document::{ASSERTION, PROTOCOL, SIGNATURE, attribute, characters, child, children, is_named};
use super::instant::seconds;
use super::keys::ProviderKeys;
use super::signature::{Signed, verified};

/// Seconds by which the clocks of both sides may differ.
pub(super) const SKEW_S: u64 = 60;

const SUCCESS: &str = "urn:oasis:names:tc:SAML:2.0:status:Success";
const BEARER: &str = "urn:oasis:names:tc:SAML:2.0:cm:bearer";

/// Why a message is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Refusal {
    /// The status of the response, which has no body.
    pub(super) status: u16,
    /// A text for the log.
    pub(super) why: &'static str,
}

impl Refusal {
    /// It cannot be parsed, or its author is unknown.
    pub(super) const fn broken(why: &'static str) -> Refusal {
        Refusal { status: 400, why }
    }

    /// It is good, but not for this gateway, or not for this login.
    pub(super) const fn foreign(why: &'static str) -> Refusal {
        Refusal { status: 401, why }
    }

    /// The provider's response cannot be used.
    pub(super) const fn useless(why: &'static str) -> Refusal {
        Refusal { status: 500, why }
    }

    /// The provider denied the login.
    pub(super) const fn denied(why: &'static str) -> Refusal {
        Refusal { status: 403, why }
    }
}

/// A response to a request for a login whose assertion the provider has signed.
pub(super) struct SamlResponse<'a, 'd> {
    /// The element around the assertion. It may be forged: its content may refuse, and proves nothing.
    response: Node<'a, 'd>,
    assertion: Signed<'a, 'd>,
}

/// The expected parties and times of an assertion.
pub(super) struct Expected<'e> {
    /// The gateway's name.
    pub(super) audience: &'e str,
    /// The provider's name, if it is known.
    pub(super) issuer: Option<&'e str>,
    /// The address of the callback.
    pub(super) recipient: &'e str,
    /// The ID of the request that it responds.
    pub(super) request: &'e str,
    /// Seconds since 1970.
    pub(super) now: u64,
}

/// A logged-in user.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct User {
    pub(super) name: NameId,
    /// The provider's name of the session.
    pub(super) session_index: Option<String>,
    /// Attributes by their names: a text, or a list of texts where there are several.
    pub(super) attrs: Map<String, Value>,
    pub(super) issuer: String,
}

/// The provider's name of a user: it is sent again at the logout.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct NameId {
    pub(super) text: String,
    pub(super) format: Option<String>,
    pub(super) qualifier: Option<String>,
    pub(super) own_qualifier: Option<String>,
}

/// The result of an assertion.
#[derive(Debug)]
pub(super) struct Accepted {
    pub(super) user: User,
    /// When the provider wants the session to end.
    pub(super) ends: Option<u64>,
    /// The assertion.
    pub(super) id: String,
    /// When the assertion is taken no longer.
    pub(super) stale: u64,
}

/// The message itself, if all of it is signed: by its text, or by a signature within.
pub(super) fn signed_root<'a, 'd>(
    document: &'a Document<'d>,
    is_signed: bool,
    keys: &ProviderKeys,
) -> Result<Option<Signed<'a, 'd>>, Refusal> {
    let own = verified(document.root_element(), keys).map_err(Refusal::broken)?;
    Ok(own.or_else(|| is_signed.then(|| Signed::whole(document))))
}

/// Whether the status of a message is success.
pub(super) fn is_success(message: Node<'_, '_>) -> Result<bool, &'static str> {
    let status = child(message, PROTOCOL, "Status")?.ok_or("the message has no status")?;
    let code = child(status, PROTOCOL, "StatusCode")?.ok_or("the message has no status")?;
    Ok(attribute(code, "Value") == Some(SUCCESS))
}

/// The text of an element below another.
pub(super) fn text<'a>(
    within: Node<'a, '_>,
    namespace: &str,
    name: &str,
) -> Result<Option<&'a str>, &'static str> {
    let Some(found) = child(within, namespace, name)? else { return Ok(None) };
    characters(found).map(Some).ok_or("an element of the message contains more than text")
}

impl<'a, 'd> SamlResponse<'a, 'd> {
    /// The response in a document. `is_signed`: the provider has signed its text.
    ///
    /// # Errors
    /// Returns an error if it is not a response, if the provider has not signed its assertion, or if it
    /// denies the login.
    pub(super) fn read(
        document: &'a Document<'d>,
        is_signed: bool,
        keys: &ProviderKeys,
    ) -> Result<SamlResponse<'a, 'd>, Refusal> {
        let response = document.root_element();
        if !is_named(response, PROTOCOL, "Response") || attribute(response, "Version") != Some("2.0") {
            return Err(Refusal::broken("the message is not a SAML 2.0 response"));
        }
        let assertion = only_assertion(response).map_err(Refusal::broken)?;
        let whole = signed_root(document, is_signed, keys)?;
        let own = assertion.map_or(Ok(None), |assertion| verified(assertion, keys));
        let own = own.map_err(Refusal::broken)?;
        let signed = own.or_else(|| whole?.within(assertion?));
        if whole.is_none() && signed.is_none() {
            return Err(Refusal::broken("the response and its assertion are not signed"));
        }
        if !is_success(response).map_err(Refusal::broken)? {
            return Err(Refusal::denied("the provider denied the login"));
        }
        let assertion = signed.ok_or(Refusal::broken("the response has no assertion"))?;
        Ok(SamlResponse { response, assertion })
    }

    /// Returns the logged-in user.
    ///
    /// # Errors
    /// Returns an error if the assertion is not for this gateway and this login, or not now.
    pub(super) fn accept(&self, expected: &Expected<'_>) -> Result<Accepted, Refusal> {
        let assertion = self.assertion.node();
        self.check_response(expected)?;
        let id = attribute(assertion, "ID").filter(|id| !id.is_empty());
        let id = id.ok_or(Refusal::broken("the assertion has no ID"))?;
        if attribute(assertion, "Version") != Some("2.0") {
            return Err(Refusal::broken("the assertion does not have version 2.0"));
        }
        let issuer = issuer(assertion)?.ok_or(Refusal::broken("the assertion has no issuer"))?;
        if expected.issuer.is_some_and(|expected| expected != issuer) {
            return Err(Refusal::foreign("the assertion is from another issuer"));
        }
        check_conditions(assertion, expected)?;
        let subject = child(assertion, ASSERTION, "Subject").map_err(Refusal::broken)?;
        let subject = subject.ok_or(Refusal::broken("the assertion has no subject"))?;
        let stale = confirmed(subject, expected)?.saturating_add(SKEW_S);
        let (session_index, ends) = session(assertion, expected.now)?;
        let user = User {
            name: name_id(subject)?,
            session_index,
            attrs: attributes(assertion).map_err(Refusal::broken)?,
            issuer: issuer.to_owned(),
        };
        Ok(Accepted { user, ends, id: id.to_owned(), stale })
    }

    /// Checks the element around the assertion against it.
    fn check_response(&self, expected: &Expected<'_>) -> Result<(), Refusal> {
        let other = |name: &str, expected: &str| {
            attribute(self.response, name).is_some_and(|written| written != expected)
        };
        if other("Destination", expected.recipient) {
            return Err(Refusal::foreign("the response is for another destination"));
        }
        if other("InResponseTo", expected.request) {
            return Err(Refusal::foreign("the response is to another request"));
        }
        match issuer(self.response)? {
            around if around.is_some() && around != issuer(self.assertion.node())? => {
                Err(Refusal::foreign("the response and its assertion have different issuers"))
            }
            _ => Ok(()),
        }
    }
}

/// The assertion of a response. The message has exactly one, at its place, and signatures only in it and in
/// the response: the parsed element is the verified one.
fn only_assertion<'a, 'd>(response: Node<'a, 'd>) -> Result<Option<Node<'a, 'd>>, &'static str> {
    let mut found = None;
    for node in response.descendants() {
        if is_named(node, ASSERTION, "EncryptedAssertion") {
            return Err(
                "the assertion is encrypted, which is not supported: configure the provider to sign it only",
            );
        }
        if !is_named(node, ASSERTION, "Assertion") {
            continue;
        }
        if node.parent() != Some(response) || found.replace(node).is_some() {
            return Err("the response has several assertions, or a misplaced one");
        }
    }
    let is_place = |place: Option<Node<'_, '_>>| place == Some(response) || place.is_some() && place == found;
    let mut signatures = response.descendants().filter(|node| is_named(*node, SIGNATURE, "Signature"));
    if !signatures.all(|signature| is_place(signature.parent())) {
        return Err("a signature is not a child of the message or its assertion");
    }
    Ok(found)
}

fn issuer<'a>(message: Node<'a, '_>) -> Result<Option<&'a str>, Refusal> {
    text(message, ASSERTION, "Issuer").map_err(Refusal::broken)
}

/// A time of an element; None if it does not have it.
pub(super) fn time(node: Node<'_, '_>, name: &str) -> Result<Option<u64>, Refusal> {
    let Some(written) = attribute(node, name) else { return Ok(None) };
    seconds(written).map(Some).ok_or(Refusal::broken("a time of the message is malformed"))
}

/// Whether it is between the times of an element.
fn check_times(node: Node<'_, '_>, now: u64) -> Result<(), Refusal> {
    if time(node, "NotBefore")?.is_some_and(|begins| now.saturating_add(SKEW_S) < begins) {
        return Err(Refusal::foreign("the assertion is not valid yet"));
    }
    if time(node, "NotOnOrAfter")?.is_some_and(|ends| now >= ends.saturating_add(SKEW_S)) {
        return Err(Refusal::foreign("the assertion has expired"));
    }
    Ok(())
}

/// Conditions (SAML Core §2.5): each has to hold, and one that is not known does not.
fn check_conditions(assertion: Node<'_, '_>, expected: &Expected<'_>) -> Result<(), Refusal> {
    let conditions = child(assertion, ASSERTION, "Conditions").map_err(Refusal::broken)?;
    let conditions = conditions.ok_or(Refusal::foreign("the assertion has no audience"))?;
    check_times(conditions, expected.now)?;
    let mut is_restricted = false;
    for condition in children(conditions) {
        if is_named(condition, ASSERTION, "AudienceRestriction") {
            let is_ours = |audience: Node<'_, '_>| {
                is_named(audience, ASSERTION, "Audience") && characters(audience) == Some(expected.audience)
            };
            if !children(condition).any(is_ours) {
                return Err(Refusal::foreign("the assertion is for another audience"));
            }
            is_restricted = true;
        } else if !["OneTimeUse", "ProxyRestriction"].iter().any(|name| is_named(condition, ASSERTION, name))
        {
            return Err(Refusal::foreign("the assertion has an unknown condition"));
        }
    }
    if is_restricted { Ok(()) } else { Err(Refusal::foreign("the assertion has no audience")) }
}

/// Returns the time until which the assertion may be presented (SAML Profiles §4.1.4.2).
fn confirmed(subject: Node<'_, '_>, expected: &Expected<'_>) -> Result<u64, Refusal> {
    let mut fault = Refusal::foreign("the assertion has no valid subject confirmation");
    for confirmation in children(subject) {
        let is_bearer = is_named(confirmation, ASSERTION, "SubjectConfirmation")
            && attribute(confirmation, "Method") == Some(BEARER);
        if !is_bearer {
            continue;
        }
        let data = child(confirmation, ASSERTION, "SubjectConfirmationData").map_err(Refusal::broken)?;
        let Some(data) = data else { continue };
        match confirms(data, expected) {
            Ok(until) => return Ok(until),
            Err(refusal) => fault = refusal,
        }
    }
    Err(fault)
}

fn confirms(data: Node<'_, '_>, expected: &Expected<'_>) -> Result<u64, Refusal> {
    if attribute(data, "Recipient") != Some(expected.recipient) {
        return Err(Refusal::foreign("the assertion is for another recipient"));
    }
    if attribute(data, "InResponseTo") != Some(expected.request) {
        return Err(Refusal::foreign("the assertion answers another request, or none"));
    }
    check_times(data, expected.now)?;
    time(data, "NotOnOrAfter")?.ok_or(Refusal::foreign("the assertion has no end of validity"))
}

/// The provider's name of the session, and when it ends.
fn session(assertion: Node<'_, '_>, now: u64) -> Result<(Option<String>, Option<u64>), Refusal> {
    let statement = children(assertion).find(|node| is_named(*node, ASSERTION, "AuthnStatement"));
    let statement = statement.ok_or(Refusal::foreign("the assertion has no authentication statement"))?;
    let ends = match attribute(statement, "SessionNotOnOrAfter").map(seconds) {
        Some(None) => return Err(Refusal::useless("SessionNotOnOrAfter is malformed")),
        ends => ends.flatten(),
    };
    if ends.is_some_and(|ends| now >= ends) {
        return Err(Refusal::foreign("the session has ended"));
    }
    Ok((attribute(statement, "SessionIndex").map(str::to_owned), ends))
}

fn name_id(subject: Node<'_, '_>) -> Result<NameId, Refusal> {
    let name = child(subject, ASSERTION, "NameID").map_err(Refusal::broken)?;
    let name = name.ok_or(Refusal::useless("the assertion has no NameID, or one that is encrypted"))?;
    let text = characters(name).filter(|text| !text.trim().is_empty());
    let text = text.ok_or(Refusal::broken("the NameID is empty, or contains more than text"))?;
    let said = |attribute_name: &str| attribute(name, attribute_name).map(str::to_owned);
    Ok(NameId {
        text: text.to_owned(),
        format: said("Format"),
        qualifier: said("NameQualifier"),
        own_qualifier: said("SPNameQualifier"),
    })
}

/// Attributes whose values are texts.
fn attributes(assertion: Node<'_, '_>) -> Result<Map<String, Value>, &'static str> {
    let mut found: Map<String, Value> = Map::new();
    let statements = children(assertion).filter(|node| is_named(*node, ASSERTION, "AttributeStatement"));
    let all = statements.flat_map(children).filter(|node| is_named(*node, ASSERTION, "Attribute"));
    for one in all {
        let name = attribute(one, "Name").ok_or("an attribute has no name")?;
        let values = children(one).filter(|node| is_named(*node, ASSERTION, "AttributeValue"));
        for value in values.filter_map(characters) {
            let value = Value::from(value);
            match found.get_mut(name) {
                None => drop(found.insert(name.to_owned(), value)),
                Some(Value::Array(values)) => values.push(value),
                Some(first) => *first = Value::Array(vec![first.take(), value]),
            }
        }
    }
    Ok(found)
}
