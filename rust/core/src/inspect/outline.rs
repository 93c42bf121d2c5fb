//! The index as lines of text, without byte counts: everything that must be equal on all ranks.

use std::fmt::Write as _;

use hashbrown::HashMap;

use crate::ids::{NodeId, TreeId};
use crate::index::PrefixIndex;
use crate::keys::hash::PathHash;

impl PrefixIndex {
    /// Lists the limits; then one line per node, trees by namespace and children by first key; then the
    /// eviction order. Two indexes that received the same calls have the same lines, however many bytes
    /// they hold. O(everything).
    pub fn outline(&self) -> Vec<String> {
        let (segment, checkpoints) = (self.segment_tokens, self.max_checkpoints);
        let mut lines =
            vec![format!("segments of at most {segment} tokens, {checkpoints} checkpoints along a path")];
        let mut hashes = HashMap::new();
        let mut names: Vec<&str> = self.trees.forest.namespaces().collect();
        names.sort_unstable();
        for name in names {
            for tree in self.trees.forest.of(name) {
                self.outline_tree(name, *tree, &mut hashes, &mut lines);
            }
        }
        let order = self.trees.order.iter(&self.trees.arena);
        lines.extend(order.map(|id| format!("unit: {}", self.outline_node(id, hashes[&id]))));
        lines
    }

    fn outline_tree(
        &self,
        name: &str,
        tree: TreeId,
        hashes: &mut HashMap<NodeId, PathHash>,
        lines: &mut Vec<String>,
    ) {
        let (arena, of) = (&self.trees.arena, self.trees.forest.get(tree));
        let kind = if of.checkpointed { " with checkpoints" } else { "" };
        let mut stack = vec![(of.root, self.trees.path_hasher(tree))];
        while let Some((id, mut hasher)) = stack.pop() {
            self.trees.extend_hash(&mut hasher, id);
            let mut children: Vec<(u32, NodeId)> =
                arena[id].children.iter().map(|(key, child)| (key, child.id)).collect();
            children.sort_unstable_by_key(|(key, _)| std::cmp::Reverse(*key));
            stack.extend(children.into_iter().map(|(_, child)| (child, hasher.clone())));
            if !arena[id].is_root() {
                hashes.insert(id, hasher.hash());
                let node = self.outline_node(id, hasher.hash());
                lines.push(format!("namespace {name:?}, layout {}{kind}: {node}", of.layout.0));
            }
        }
    }

    fn outline_node(&self, id: NodeId, hash: PathHash) -> String {
        let node = &self.trees.arena[id];
        let mut line = format!("tokens {}..{} ({hash}), {} leases", node.start(), node.end, node.leases);
        if let Some(checkpoint) = &node.checkpoint {
            let kind = if checkpoint.trimmable { "trimmable checkpoint" } else { "checkpoint" };
            let _ = write!(line, ", {kind} with {} leases, prompt {}", checkpoint.leases, checkpoint.prompt);
        }
        for end in node.ends() {
            let _ = write!(line, ", a store ends at {}", node.start() + end.at as usize);
        }
        line
    }
}

#[cfg(test)]
mod tests {
    use crate::index::{Limits, PrefixIndex};
    use crate::keys::query::Query;

    fn filled(bytes_per_token: u64) -> PrefixIndex {
        let mut index = PrefixIndex::new(Limits { segment_tokens: 3, ..Limits::default() });
        for keys in [&[1, 2, 3, 4, 5][..], &[1, 2, 9], &[7]] {
            index.insert("", &Query::tokens(keys), bytes_per_token, 0).unwrap();
        }
        index
    }

    /// Shows everything that must be equal on all ranks, and nothing that may differ.
    #[test]
    fn an_outline_shows_all_but_bytes() {
        let index = filled(1);
        assert_eq!(index.outline(), filled(1000).outline());

        let mut touched = filled(1);
        touched.match_prefix("", &Query::tokens(&[1, 2, 9]), 3, Some(1)).unwrap();
        assert_ne!(index.outline(), touched.outline());

        let mut ended = filled(1);
        ended.insert("", &Query::tokens(&[1, 2, 3, 4]), 1, 0).unwrap();
        let mut as_recent = filled(1);
        as_recent.match_prefix("", &Query::tokens(&[1, 2, 3, 4]), 4, Some(1)).unwrap();
        assert_ne!(ended.outline(), as_recent.outline());

        let coarse = PrefixIndex::new(Limits { segment_tokens: 4, ..Limits::default() });
        assert_ne!(PrefixIndex::new(Limits::default()).outline(), coarse.outline());
    }
}
