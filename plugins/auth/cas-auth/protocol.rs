//! The texts of the CAS protocol.
//!
//! Two facts are read of two documents whose form is fixed but for the prefix of their names: the user of a good ticket,
//! and the ticket of a session that is over. Parts that could contradict them (declarations, comments, CDATA, a second
//! such element) are refused, so that no XML parser is needed, nor its entities.

use crate::shared::form::fields;

/// Most characters of a ticket.
const TICKET_CHARS: usize = 256;

/// A ticket as the server makes them; None for a text that could mean something else in a URL or a document.
pub(super) fn ticket(text: &[u8]) -> Option<String> {
    let is_sound = (1..=TICKET_CHARS).contains(&text.len())
        && text.iter().all(|byte| byte.is_ascii_alphanumeric() || b"-._~".contains(byte));
    is_sound.then(|| String::from_utf8_lossy(text).into_owned())
}

/// An element without attributes.
struct Element<'t> {
    /// The prefix of its name with the colon; empty in the default namespace.
    prefix: &'t str,
    inner: &'t str,
    /// The document after it.
    rest: &'t str,
}

impl<'t> Element<'t> {
    /// Finds the first element with this local name; None if it is not the only one.
    fn only(document: &'t str, name: &str) -> Option<Element<'t>> {
        let (before, after) = document.split_once(&format!("{name}>"))?;
        let prefix = &before[before.rfind('<')? + 1..];
        let is_prefix = |prefix: &str| {
            prefix.starts_with(|first: char| first.is_ascii_alphabetic() || first == '_')
                && prefix.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"_.-".contains(&byte))
        };
        if !prefix.is_empty() && !prefix.strip_suffix(':').is_some_and(is_prefix) {
            return None;
        }
        let (inner, rest) = after.split_once(&format!("</{prefix}{name}>"))?;
        (!inner.contains(&format!("{name}>")) && !rest.contains(&format!("{name}>"))).then_some(Element {
            prefix,
            inner,
            rest,
        })
    }
}

/// Whether a document has parts whose content is not parsed as elements.
fn hides_something(document: &str) -> bool {
    document.contains("<!")
}

/// The user that the server names for a good ticket; None if it does not say that the ticket is good.
pub(super) fn user(answer: &[u8]) -> Option<&str> {
    let document = str::from_utf8(answer).ok()?;
    if hides_something(document) || document.contains("authenticationFailure") {
        return None;
    }
    let Element { prefix, inner, rest } = Element::only(document, "authenticationSuccess")?;
    // It is the first element there (CAS Protocol 3.0 §2.5.2); an attribute may have the same name.
    let user = inner.trim_start().strip_prefix(&format!("<{prefix}user>"))?;
    let user = user.split_once(&format!("</{prefix}user>"))?.0.trim();
    // A document that was cut off says less than the server.
    let is_whole = !document.contains("serviceResponse")
        || rest
            .trim_end()
            .strip_suffix('>')
            .is_some_and(|end| end.ends_with(&format!("</{prefix}serviceResponse")));
    (!user.is_empty() && !user.contains('<') && is_whole).then_some(user)
}

/// Returns the ticket whose session has ended, from the server's POST: the document, or a form with it.
pub(super) fn ended_session(body: &[u8]) -> Option<String> {
    let form = fields(body).and_then(|fields| Some(fields.get("logoutRequest")?.as_str()?.to_owned()));
    let document = match &form {
        Some(document) => document,
        None => str::from_utf8(body).ok()?,
    };
    if hides_something(document) {
        return None;
    }
    ticket(Element::only(document, "SessionIndex")?.inner.trim().as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As CAS 6.6 answers.
    const GOOD: &str = "<cas:serviceResponse xmlns:cas='http://www.yale.edu/tp/cas'>\n    <cas:authenticationSuccess>\n        \
        <cas:user>casuser</cas:user>\n        <cas:attributes>\n            <cas:user>root</cas:user>\n        \
        </cas:attributes>\n    </cas:authenticationSuccess>\n</cas:serviceResponse>\n";

    #[test]
    fn tickets_have_few_characters() {
        assert_eq!(ticket(b"ST-1-aBc.d~e-host").as_deref(), Some("ST-1-aBc.d~e-host"));
        for wrong in ["", "ST-1&service=x", "ST 1", "ST-1<", "ST-%0d", "ST-1;x", "ST-\u{fc}"] {
            assert_eq!(ticket(wrong.as_bytes()), None, "{wrong}");
        }
        assert_eq!(ticket(&[b'a'; 257]), None);
    }

    #[test]
    fn the_user_of_a_good_ticket() {
        assert_eq!(user(GOOD.as_bytes()), Some("casuser"));
        for (prefix, declared) in [("", "xmlns="), ("c:", "xmlns:c="), ("cas-2.0:", "xmlns:cas-2.0=")] {
            let other = GOOD.replace("xmlns:cas=", declared).replace("cas:", prefix);
            assert_eq!(user(other.as_bytes()), Some("casuser"), "{other}");
        }
        let declared = format!("\u{feff}<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n{GOOD}");
        assert_eq!(user(declared.as_bytes()), Some("casuser"));
        for cut in GOOD.find("</cas:authenticationSuccess>").unwrap()..GOOD.trim_end().len() {
            assert_eq!(user(&GOOD.as_bytes()[..cut]), None, "cut at {cut}");
        }
        for wrong in [
            "<a b=\"x<c:authenticationSuccess><c:user>a</c:user></d:authenticationSuccess>",
            "<x authenticationSuccess><x user>a</x user></x authenticationSuccess>",
            "<cas:authenticationSuccess><user>a</user></cas:authenticationSuccess>",
            "<cas:authenticationSuccess><cas:user>a</cas:user></cas:authenticationSuccess>\
             <b:authenticationSuccess><b:user>b</b:user></b:authenticationSuccess>",
            "",
            "yes\n\ncasuser\n",
            "<cas:authenticationSuccess></cas:authenticationSuccess>",
            "<cas:authenticationSuccess><cas:user></cas:user></cas:authenticationSuccess>",
            "<cas:authenticationSuccess><cas:user><b>a</b></cas:user></cas:authenticationSuccess>",
            "<cas:authenticationSuccess><cas:user>a</cas:user>",
            "<cas:authenticationSuccess><cas:proxies/><cas:user>a</cas:user></cas:authenticationSuccess>",
            "<cas:user>a</cas:user>",
            "<cas:authenticationFailure code='INVALID_TICKET'><cas:authenticationSuccess><cas:user>a</cas:user>\
             </cas:authenticationSuccess></cas:authenticationFailure>",
            "<!DOCTYPE x [<!ENTITY a 'b'>]><cas:authenticationSuccess><cas:user>a</cas:user></cas:authenticationSuccess>",
            "<!-- <cas:authenticationSuccess><cas:user>a</cas:user></cas:authenticationSuccess> -->",
        ] {
            assert_eq!(user(wrong.as_bytes()), None, "{wrong}");
        }
        assert_eq!(user(&[0xff]), None);
    }

    #[test]
    fn sessions_that_the_server_ends() {
        const LOGOUT: &str = "<samlp:LogoutRequest><saml:NameID>@NOT_USED@</saml:NameID><samlp:SessionIndex>ST-1\
            </samlp:SessionIndex></samlp:LogoutRequest>";
        assert_eq!(ended_session(LOGOUT.as_bytes()).as_deref(), Some("ST-1"));
        for prefix in ["", "saml2p:"] {
            assert_eq!(ended_session(LOGOUT.replace("samlp:", prefix).as_bytes()).as_deref(), Some("ST-1"));
        }
        let form = crate::shared::form::Form::default().with("logoutRequest", LOGOUT).text();
        assert_eq!(ended_session(form.as_bytes()).as_deref(), Some("ST-1"));
        for wrong in [
            "",
            "logoutRequest=",
            "<samlp:SessionIndex></samlp:SessionIndex>",
            "<samlp:SessionIndex>ST-1",
            "<samlp:SessionIndex>ST 1</samlp:SessionIndex>",
            "<samlp:SessionIndex>a</samlp:SessionIndex><samlp:SessionIndex>b</samlp:SessionIndex>",
            "<!--<samlp:SessionIndex>a</samlp:SessionIndex>-->",
        ] {
            assert_eq!(ended_session(wrong.as_bytes()), None, "{wrong}");
        }
    }
}
