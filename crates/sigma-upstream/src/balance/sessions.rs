//! Session affinity: a request that names the node of its session, or a session with a known node, goes there.
//!
//! A token names a node: it is a keyed hash of the node's name and address. A token is only compared with tokens of
//! the upstream's own nodes. A client's token leads nowhere else, and without the key it reveals nothing about the
//! node. With the same key it is the same on every gateway.

use std::collections::HashMap;

use aws_lc_rs::hmac;
use sigma_config::resources::{OnGone, Upstream};
use sigma_schema::Confidential;

use super::kept::PerNode;
use crate::endpoint::{Endpoint, EndpointSet};
use crate::identity::EndpointId;

/// The name of a session's node, for clients.
pub type Token = u128;

/// The rule of an upstream.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct SessionRule {
    /// None: tokens stay within the process, in a [`StickTable`](super::StickTable).
    secret: Option<Confidential>,
    /// A session without its node is rejected instead of moved.
    rejects: bool,
}

impl SessionRule {
    /// Returns None without session affinity.
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
    /// The used bits of tokens.
    mask: Token,
    rejects: bool,
    nodes: PerNode<Node>,
    slot_of: HashMap<Token, usize>,
}

#[derive(Debug, Default)]
struct Node {
    /// None until it is first needed.
    token: Option<Token>,
    /// Position in the set.
    index: usize,
}

impl Sessions {
    pub(super) fn new(rule: &SessionRule) -> Sessions {
        let secret = rule.secret.as_ref().map(Confidential::reveal).unwrap_or_default();
        let key = hmac::Key::new(hmac::HMAC_SHA256, secret.as_bytes());
        let mask = if rule.secret.is_some() { Token::MAX } else { u64::MAX.into() };
        Sessions { key, mask, rejects: rule.rejects, nodes: PerNode::default(), slot_of: HashMap::new() }
    }

    /// Takes a set; tokens are computed only for new nodes.
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

    /// Returns the position of the node with a token.
    pub(super) fn find(&self, token: Token) -> Option<usize> {
        Some(self.nodes.at(*self.slot_of.get(&token)?).index)
    }

    /// Returns the token of a node of the set.
    pub(super) fn token_of(&mut self, id: EndpointId) -> Option<Token> {
        self.nodes.of(id)?.token
    }

    /// Returns true if a session keeps to its node even if the node is gone.
    pub(super) fn rejects(&self) -> bool {
        self.rejects
    }
}

fn token(key: &hmac::Key, endpoint: &Endpoint) -> Token {
    // A name may have several addresses, which may belong to other names too.
    let text = format!("{}\n{}", endpoint.name(), endpoint.addr);
    let tag = hmac::sign(key, text.as_bytes());
    tag.as_ref().iter().take(size_of::<Token>()).fold(0, |token, byte| token << 8 | Token::from(*byte))
}
