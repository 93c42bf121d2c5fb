//! The index in lines of text, without bytes: what must be equal on all ranks.

use std::fmt::Write as _;

use crate::ids::{NodeId, TreeId};
use crate::index::PrefixIndex;

impl PrefixIndex {
    /// One line a node, trees by namespace, children by first key; then the LRU order. Two indexes
    /// to which the same was done have the same lines, whatever bytes they hold. O(everything).
    pub fn outline(&self) -> Vec<String> {
        let mut lines = Vec::new();
        let mut names: Vec<&str> = self.trees.forest.namespaces().collect();
        names.sort_unstable();
        for name in names {
            for (at, tree) in self.trees.forest.of(name).iter().enumerate() {
                self.outline_tree(name, at, *tree, &mut lines);
            }
        }
        let order = self.trees.lru.iter(&self.trees.arena);
        lines.extend(order.map(|id| format!("unit: {}", self.outline_node(id))));
        lines
    }

    fn outline_tree(&self, name: &str, at: usize, tree: TreeId, lines: &mut Vec<String>) {
        let arena = &self.trees.arena;
        let mut stack = vec![self.trees.forest.get(tree).root];
        while let Some(id) = stack.pop() {
            let mut children: Vec<(u32, NodeId)> = arena[id].children.iter().collect();
            children.sort_unstable_by_key(|(key, _)| std::cmp::Reverse(*key));
            stack.extend(children.into_iter().map(|(_, child)| child));
            if !arena[id].is_root() {
                lines.push(format!("namespace {name:?}, layout {at}: {}", self.outline_node(id)));
            }
        }
    }

    fn outline_node(&self, id: NodeId) -> String {
        let node = &self.trees.arena[id];
        // FNV-1a: equal on every machine and in every build.
        let hash = node.keys.iter().fold(0xcbf2_9ce4_8422_2325_u64, |hash, key| {
            (hash ^ u64::from(*key)).wrapping_mul(0x0100_0000_01b3)
        });
        let mut line = format!("tokens {}..{} ({hash:016x}), {} leases", node.start(), node.end, node.leases);
        if let Some(checkpoint) = &node.checkpoint {
            let kind = if checkpoint.trimmable { "trimmable checkpoint" } else { "checkpoint" };
            let _ = write!(line, ", {kind} with {} leases", checkpoint.leases);
        }
        line
    }
}
