//! Properties of any messages of a directory.

use super::ber;
use super::message::{self, Search};
use super::name::escaped;

/// A message is read or rejected, its length does not depend on how much of it is there, and a client's text stays
/// one value in a request.
pub fn ldap(input: &[u8]) {
    let header = ber::header(input, input.len());
    for cut in 0..input.len().min(8) {
        match ber::header(&input[..cut], input.len()) {
            // Not enough yet: the rest decides.
            Ok(None) => {}
            early => assert_eq!(early, header, "cut at {cut}"),
        }
    }
    if let Some((_, contents, rest)) = ber::first(input) {
        assert!(contents.len() + rest.len() < input.len());
        assert!(input.ends_with(rest));
    }
    let _ = message::read(input);
    let search =
        Search { base: "dc=b", attribute: "cn", value: input, size_limit: 0, time_limit: 0, wanted: None };
    for request in [search.request(7), message::bind(7, input, input)] {
        let Some((_, contents, rest)) = ber::first(&request) else { panic!("a request is not a message") };
        assert!(
            rest.is_empty() && contents.windows(input.len().max(1)).any(|part| part == input)
                || input.is_empty()
        );
    }
    if let Ok(text) = std::str::from_utf8(input) {
        let name = escaped(text);
        let mut characters = name.chars();
        while let Some(character) = characters.next() {
            match character {
                '\\' => assert!(characters.next().is_some(), "{name:?} ends within an escape"),
                other => assert!(!"\",+<>;=\0".contains(other), "{name:?} is more than a value"),
            }
        }
    }
}
