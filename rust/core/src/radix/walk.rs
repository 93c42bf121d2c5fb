//! Following a query down a tree. Reads only.

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
    /// The deepest node of which at least one key matched; the root if none did.
    pub(crate) node: NodeId,
    /// Nodes compared with the query, for tests that count work instead of time.
    pub(crate) visited: usize,
    /// Keys compared, at most; likewise.
    pub(crate) compared: usize,
    /// The walk ended at a key of a media span in the tree.
    pub(crate) media: bool,
}

impl Walk {
    /// Keys of `node` that matched: less than its length where the query diverges inside it.
    pub(crate) fn inside(&self, arena: &Arena) -> usize {
        self.matched - arena[self.node].start()
    }
}

/// Matches `query` from `root` down. O(len(query)): one comparison of each key, one child look-up
/// a node. Checks that the query's keys are tokens on the way.
pub(crate) fn walk(arena: &Arena, root: NodeId, query: &Query<'_>) -> Result<Walk, Error> {
    let mut found = Walk { matched: 0, node: root, visited: 0, compared: 0, media: false };
    while let Some(&next) = query.keys.get(found.matched) {
        let Some(child) = arena[found.node].children.get(next) else { break };
        let node = &arena[child];
        let rest = &query.keys[found.matched..];
        if node.media && !query.checked {
            // A stored media key may equal an invalid token.
            check_tokens(&rest[..rest.len().min(node.len())], found.matched)?;
        }
        let (common, compared) = common_prefix(&node.keys, rest);
        found.visited += 1;
        found.compared += compared;
        found.matched += common;
        found.node = child;
        if common < node.len() {
            found.media = common < rest.len() && node.keys[common] & MEDIA_BIT != 0;
            break;
        }
    }
    if !query.checked {
        check_tokens(&query.keys[found.matched..], found.matched)?;
    }
    if let Some(only) = arena[found.node].children.only()
        && found.matched < query.len()
        && found.matched == arena[found.node].end as usize
    {
        found.media = arena[only].keys[0] & MEDIA_BIT != 0;
    }
    Ok(found)
}

/// The nodes from `node` up to, and without, the root.
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
