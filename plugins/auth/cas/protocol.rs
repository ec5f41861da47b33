//! The texts of the CAS protocol.
//!
//! Two facts are read of two documents whose form is fixed: the user of a good ticket, and the ticket of a session
//! that has ended. Parts that could contradict them (declarations, comments, CDATA, a second such element) are
//! refused, so that no XML parser is needed, nor its entities.

use super::super::form::fields;

/// Most characters of a ticket.
const TICKET_CHARS: usize = 256;

/// A ticket as the server makes them; None for a text that could mean something else in a URL or a document.
pub(super) fn ticket(text: &[u8]) -> Option<String> {
    let is_sound = (1..=TICKET_CHARS).contains(&text.len())
        && text.iter().all(|byte| byte.is_ascii_alphanumeric() || b"-._~".contains(byte));
    is_sound.then(|| String::from_utf8_lossy(text).into_owned())
}

/// The text of an element without further elements in it, which must stand there once.
fn only_element<'t>(document: &'t str, name: &str) -> Option<&'t str> {
    let (open, close) = (format!("<{name}>"), format!("</{name}>"));
    let (_, rest) = document.split_once(&open)?;
    let (text, rest) = rest.split_once(&close)?;
    (!text.contains('<') && !rest.contains(&open)).then_some(text.trim())
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
    let (_, success) = document.split_once("<cas:authenticationSuccess>")?;
    let (success, rest) = success.split_once("</cas:authenticationSuccess>")?;
    // It is the first element there (CAS Protocol 3.0 §2.5.2); an attribute may have the same name.
    let user = success.trim_start().strip_prefix("<cas:user>")?.split_once("</cas:user>")?.0.trim();
    let is_sound = !user.is_empty() && !user.contains('<') && !rest.contains("<cas:authenticationSuccess>");
    is_sound.then_some(user)
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
    ticket(only_element(document, "samlp:SessionIndex")?.as_bytes())
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
        for wrong in [
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
        let form = super::super::super::form::Form::default().with("logoutRequest", LOGOUT).text();
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
