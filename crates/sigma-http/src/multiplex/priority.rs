//! Priorities of RFC 9218.

/// The urgency of a response, and whether it is useful in pieces.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Priority {
    /// 0 to 7; lower is more urgent.
    pub urgency: u8,
    /// It shares the connection with others of its urgency, instead of going one after another.
    pub incremental: bool,
}

/// The number of urgency levels.
pub(crate) const LEVELS: usize = 8;

impl Default for Priority {
    /// RFC 9218 §4
    fn default() -> Priority {
        Priority { urgency: 3, incremental: false }
    }
}

impl Priority {
    /// Parses the value of a Priority field, or of a PRIORITY_UPDATE frame: a dictionary of structured fields with
    /// the members `u` and `i`. Invalid members leave the default (RFC 9218 §4.1, §4.2).
    pub fn parse(value: &[u8]) -> Priority {
        Priority::default().updated(value)
    }

    /// Applies the priority of a server's response, which overrides the client's (RFC 9218 §8).
    pub fn updated(self, value: &[u8]) -> Priority {
        let mut priority = self;
        for member in value.split(|byte| *byte == b',') {
            let member = member.trim_ascii();
            // Parameters of a member are ignored.
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
    fn priority_values_are_parsed() {
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
