//! The user of an exchange whose response must stay private, as plugins know it.

use crate::Context;

/// The marks of plugins for the user of a request; see [`Context::mark_personal`].
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Personal {
    /// Providers and names, each followed by its length.
    names: Vec<u8>,
    is_marked: bool,
    is_unnamed: bool,
    passed_unknown: bool,
    /// The fields that scripts have set for the node, or a digest of them; empty if they have set none.
    fields: Vec<u8>,
}

impl Personal {
    /// Removes all, keeping its memory.
    pub(crate) fn clear(&mut self) {
        self.names.clear();
        self.fields.clear();
        (self.is_marked, self.is_unnamed, self.passed_unknown) = (false, false, false);
    }

    /// Returns providers and names in a form that is unique to each user; empty if no user was named.
    pub fn names(&self) -> &[u8] {
        &self.names
    }

    /// Returns true if a plugin has admitted the request for a user.
    pub fn is_marked(&self) -> bool {
        self.is_marked
    }

    /// Returns true if a plugin has admitted it for a user without a name.
    pub fn is_unnamed(&self) -> bool {
        self.is_unnamed
    }

    /// Returns true if a plugin has admitted it without a user.
    pub fn passed_unknown(&self) -> bool {
        self.passed_unknown
    }

    /// Returns bytes that are equal only for the same fields set by scripts; empty if no script has set any.
    pub fn fields(&self) -> &[u8] {
        &self.fields
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
    /// Marks the request as one of a user: the response may be private. Caches separate such responses by the names
    /// of all marked users. Without a name they store only responses that are marked as public.
    ///
    /// `provider` separates the names of one plugin, or of one service that it calls, from other names. A name should
    /// be the same for each request of a user, and not a secret: pass a digest of a credential.
    pub fn mark_personal(&mut self, provider: &str, name: Option<&[u8]>) {
        self.personal.mark(provider, name);
    }

    /// Returns the record of all fields that scripts have set for the node, to be extended. A script can put the user
    /// of a cookie into such a field, so caches separate responses by the record. The caller keeps it short.
    pub fn fields_record(&mut self) -> &mut Vec<u8> {
        &mut self.personal.fields
    }

    /// Records that a plugin that identifies users admits the request without one, as its operator has configured.
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
    fn users_have_distinct_bytes() {
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
