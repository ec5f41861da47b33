//! Priorities of RFC 9218.

/// How urgent an answer is, and whether it is of use in pieces.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Priority {
    /// 0 to 7; the lower the sooner.
    pub urgency: u8,
    /// Whether it shares the connection with others of its urgency, rather than going one after another.
    pub incremental: bool,
}

/// Most levels of urgency.
pub(super) const LEVELS: usize = 8;

impl Default for Priority {
    /// RFC 9218 §4
    fn default() -> Priority {
        Priority { urgency: 3, incremental: false }
    }
}

impl Priority {
    /// Reads the value of a Priority field, or of a PRIORITY_UPDATE frame: a dictionary of structured
    /// fields, of which `u` and `i` mean something. What is not understood leaves the default, as it
    /// should (RFC 9218 §4.1, §4.2).
    pub fn parse(value: &[u8]) -> Priority {
        Priority::default().updated(value)
    }

    /// With what a server says in its answer, which stands before what the client asked for (RFC 9218 §8).
    pub fn updated(self, value: &[u8]) -> Priority {
        let mut priority = self;
        for member in value.split(|byte| *byte == b',') {
            let member = member.trim_ascii();
            // Parameters of a member mean nothing here.
            let member = member.split(|byte| *byte == b';').next().unwrap_or_default().trim_ascii();
            match member {
                [b'u', b'=', digit @ b'0'..=b'7'] => priority.urgency = digit - b'0',
                b"i" | b"i=?1" => priority.incremental = true,
                b"i=?0" => priority.incremental = false,
                _ => {}
            }
        }
        priority
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_of_the_field() {
        for (value, urgency, incremental) in [
            ("", 3, false),
            ("u=0", 0, false),
            ("u=7, i", 7, true),
            ("i,u=1", 1, true),
            ("i=?0", 3, false),
            ("i;x=1 , u=2;y", 2, true),
            ("u=8", 3, false),
            ("u=-1", 3, false),
            ("u=\"1\"", 3, false),
            ("u=1, u=5", 5, false),
            ("\u{ff},,=", 3, false),
        ] {
            assert_eq!(Priority::parse(value.as_bytes()), Priority { urgency, incremental }, "{value}");
        }
        let asked = Priority { urgency: 5, incremental: true };
        assert_eq!(asked.updated(b"u=1"), Priority { urgency: 1, incremental: true });
    }
}
