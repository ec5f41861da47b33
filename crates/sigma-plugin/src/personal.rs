//! The person whose response an exchange gets, as far as plugins know.

use crate::Context;

/// What plugins have said of the person behind a request; see [`Context::mark_personal`].
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Personal {
    /// Providers and names, each with its length behind it.
    names: Vec<u8>,
    is_marked: bool,
    is_unnamed: bool,
    passed_unknown: bool,
}

impl Personal {
    /// Forgets all, keeping its memory.
    pub(crate) fn clear(&mut self) {
        self.names.clear();
        (self.is_marked, self.is_unnamed, self.passed_unknown) = (false, false, false);
    }

    /// Providers and names, so that no two persons have the same bytes; empty if nobody was named.
    pub fn names(&self) -> &[u8] {
        &self.names
    }

    /// Whether a plugin has let the request in for a person.
    pub fn is_marked(&self) -> bool {
        self.is_marked
    }

    /// Whether a plugin has let it in for a person without a name.
    pub fn is_unnamed(&self) -> bool {
        self.is_unnamed
    }

    /// Whether a plugin has let it in although it knows no person.
    pub fn passed_unknown(&self) -> bool {
        self.passed_unknown
    }

    fn mark(&mut self, provider: &str, name: Option<&[u8]>) {
        self.is_marked = true;
        match name {
            None | Some([]) => self.is_unnamed = true,
            Some(name) => {
                for part in [provider.as_bytes(), name] {
                    self.names.extend_from_slice(part);
                    self.names.extend_from_slice(&(part.len() as u64).to_le_bytes());
                }
            }
        }
    }
}

impl Context {
    /// The request is a person's: what the node answers may be for that person alone. Caches keep such responses apart
    /// by the names of all persons that are marked; without a name they store only what says that it is for all.
    ///
    /// `provider` tells the names of one plugin, or of one party that it asks, from those of others. A name should be
    /// the same for each request of a person, and no secret: pass a digest of a credential.
    pub fn mark_personal(&mut self, provider: &str, name: Option<&[u8]>) {
        self.personal.mark(provider, name);
    }

    /// A plugin that identifies persons lets the request pass without one, as its operator has chosen.
    pub fn mark_unknown(&mut self) {
        self.personal.passed_unknown = true;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(marks: &[(&str, &str)]) -> Vec<u8> {
        let mut ctx = Context::default();
        marks.iter().for_each(|(provider, name)| ctx.mark_personal(provider, Some(name.as_bytes())));
        ctx.personal.names().to_vec()
    }

    #[test]
    fn no_two_persons_have_the_same_bytes() {
        let all = [
            names(&[("a", "jack")]),
            names(&[("b", "jack")]),
            names(&[("a", "jill")]),
            names(&[("aj", "ack")]),
            names(&[("a", "jack"), ("b", "jack")]),
            names(&[]),
        ];
        for (at, one) in all.iter().enumerate() {
            assert!(all.iter().skip(at + 1).all(|other| one != other), "{at}");
        }
    }

    #[test]
    fn empty_name_is_no_name() {
        let mut ctx = Context::default();
        ctx.mark_personal("a", Some(b""));
        assert!(ctx.personal.is_marked() && ctx.personal.is_unnamed() && ctx.personal.names().is_empty());
        ctx.begin();
        assert_eq!(ctx.personal, Personal::default());
    }
}
