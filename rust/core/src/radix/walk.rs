//! Follows a query down a tree. Read-only.

use crate::error::Error;
use crate::ids::NodeId;
use crate::keys::query::Query;
use crate::keys::token::{MEDIA_BIT, check_tokens, common_prefix};
use crate::radix::arena::Arena;

/// Where a walk ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Walk {
    /// Tokens matched.
    pub(crate) matched: usize,
    /// The deepest node with at least one matching key; the root if there is none.
    pub(crate) node: NodeId,
    /// Nodes compared with the query, for tests that measure work instead of time.
    pub(crate) visited: usize,
    /// Upper bound on the keys compared, likewise.
    pub(crate) compared: usize,
    /// The first key in the tree past the match belongs to a media span.
    pub(crate) media: bool,
}

impl Walk {
    /// Keys of `node` that matched: fewer than it has if the query diverges inside it.
    pub(crate) fn inside(&self, arena: &Arena) -> usize {
        self.matched - arena[self.node].start()
    }
}

/// Matches `query` from `root` down, and checks on the way that its keys are tokens. O(len(query)), with
/// one child lookup per node.
pub(crate) fn walk(arena: &Arena, root: NodeId, query: &Query<'_>) -> Result<Walk, Error> {
    let mut reached = Walk { matched: 0, node: root, visited: 0, compared: 0, media: false };
    while let Some(&next) = query.keys.get(reached.matched) {
        let Some(child) = arena[reached.node].children.get(next) else { break };
        let node = &arena[child];
        let rest = &query.keys[reached.matched..];
        if node.media && !query.checked {
            // A stored media key may equal an invalid token.
            check_tokens(&rest[..rest.len().min(node.len())], reached.matched)?;
        }
        let (common, compared) = common_prefix(&node.keys, rest);
        reached.visited += 1;
        reached.compared += compared;
        reached.matched += common;
        reached.node = child;
        if common < node.len() {
            reached.media = common < rest.len() && node.keys[common] & MEDIA_BIT != 0;
            break;
        }
    }
    if !query.checked {
        check_tokens(&query.keys[reached.matched..], reached.matched)?;
    }
    if let Some(only) = arena[reached.node].children.only()
        && reached.matched < query.len()
        && reached.matched == arena[reached.node].end as usize
    {
        reached.media = arena[only].keys[0] & MEDIA_BIT != 0;
    }
    Ok(reached)
}

/// The nodes from `node` up to, and excluding, the root.
pub(crate) fn upward(arena: &Arena, node: NodeId) -> impl Iterator<Item = NodeId> + '_ {
    let mut at = node;
    std::iter::from_fn(move || {
        let parent = arena[at].parent;
        if parent.is_none() {
            return None;
        }
        Some(std::mem::replace(&mut at, parent))
    })
}
