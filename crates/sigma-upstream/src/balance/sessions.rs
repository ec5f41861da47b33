//! Session affinity: a request that names the node of its session, or a session whose node is known, goes
//! there.
//!
//! A node is named by a token, which is a keyed hash of its name and address. A token is only ever
//! compared with those of the upstream's own nodes: it leads nowhere else, whatever a client writes,
//! and without the key it tells nothing about the node. With the same key it is the same on every
//! gateway.

use std::collections::HashMap;

use aws_lc_rs::hmac;
use sigma_config::resources::{Confidential, OnGone, Upstream};

use super::kept::Kept;
use crate::endpoint::{Endpoint, EndpointSet};
use crate::identity::EndpointId;

/// Names the node of a session to clients.
pub type Token = u128;

/// The rule of an upstream.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct SessionRule {
    /// None: tokens stay within the process, in a [`StickTable`](super::StickTable).
    secret: Option<Confidential>,
    /// A session whose node is gone is not given another one.
    rejects: bool,
}

impl SessionRule {
    /// None if sessions do not keep to nodes.
    pub(super) fn of(config: &Upstream) -> Option<SessionRule> {
        let affinity = config.session_affinity.as_deref().map(|it| (Some(it.secret.clone()), it.on_gone));
        let learnt = || Some((None, config.stick_table.as_deref()?.on_gone));
        let (secret, on_gone) = affinity.or_else(learnt)?;
        Some(SessionRule { secret, rejects: on_gone == OnGone::Reject })
    }
}

/// The tokens of the nodes of an upstream.
#[derive(Debug)]
pub(super) struct Sessions {
    key: hmac::Key,
    /// The bits of tokens that are used.
    mask: Token,
    rejects: bool,
    nodes: Kept<Node>,
    slot_of: HashMap<Token, usize>,
}

#[derive(Debug, Default)]
struct Node {
    /// Unset until it is needed first.
    token: Option<Token>,
    /// Position in the set.
    index: usize,
}

impl Sessions {
    pub(super) fn new(rule: &SessionRule) -> Sessions {
        let secret = rule.secret.as_ref().map(Confidential::reveal).unwrap_or_default();
        let key = hmac::Key::new(hmac::HMAC_SHA256, secret.as_bytes());
        let mask = if rule.secret.is_some() { Token::MAX } else { u64::MAX.into() };
        Sessions { key, mask, rejects: rule.rejects, nodes: Kept::default(), slot_of: HashMap::new() }
    }

    /// Takes over a set; tokens are made for the nodes that are new only.
    pub(super) fn rebuild(&mut self, set: &EndpointSet) {
        self.nodes.begin();
        for (index, endpoint) in set.endpoints.iter().enumerate() {
            let slot = self.nodes.stay(endpoint.id());
            let node = self.nodes.at_mut(slot);
            node.index = index;
            if node.token.is_none() {
                let token = token(&self.key, endpoint) & self.mask;
                node.token = Some(token);
                self.slot_of.insert(token, slot);
            }
        }
        let slot_of = &mut self.slot_of;
        self.nodes.forget(
            |_| false,
            |gone| {
                if let Some(token) = gone.token {
                    slot_of.remove(&token);
                }
            },
        );
    }

    /// Where the node is that a token names.
    pub(super) fn find(&self, token: Token) -> Option<usize> {
        Some(self.nodes.at(*self.slot_of.get(&token)?).index)
    }

    /// The token of a node of the set.
    pub(super) fn token_of(&mut self, id: EndpointId) -> Option<Token> {
        self.nodes.of(id)?.token
    }

    /// Whether a session keeps to its node even if that is gone.
    pub(super) fn rejects(&self) -> bool {
        self.rejects
    }
}

fn token(key: &hmac::Key, endpoint: &Endpoint) -> Token {
    // A name may have several addresses, and other names the same.
    let text = format!("{}\n{}", endpoint.name(), endpoint.addr);
    let tag = hmac::sign(key, text.as_bytes());
    tag.as_ref().iter().take(size_of::<Token>()).fold(0, |token, byte| token << 8 | Token::from(*byte))
}
