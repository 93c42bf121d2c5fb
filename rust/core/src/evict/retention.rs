//! Which checkpoints along an unbranched path to keep.
//!
//! The newest stays, and so does the one at the end of the prompt: regenerating, editing, and chat
//! templates that strip thinking all return to exactly that position. If no store has given it, the
//! checkpoint before the newest takes its place. The rest are thinned evenly: while there are too many,
//! drop the one whose removal leaves the smallest gap. When checkpoints arrive at regular intervals, gaps
//! differ by at most a factor of two.

use crate::dropped::Dropped;
use crate::ids::NodeId;
use crate::index::PrefixIndex;
use crate::radix::walk::upward;

impl PrefixIndex {
    /// Thins out the unbranched path through `node`, whose checkpoint is the newest.
    /// O(nodes on that path).
    pub(crate) fn retain_checkpoints(&mut self, node: NodeId, dropped: &mut Dropped) {
        let (start, mut path) = self.unbranched(node);
        // A limit of one keeps only the newest.
        let prompt = if self.max_checkpoints > 1 { self.prompt_end(&path, node) } else { None };
        while path.len() > self.max_checkpoints {
            let positions: Vec<u32> = path.iter().map(|id| self.trees.arena[*id].end).collect();
            let removable = |at: &usize| {
                let (id, checkpoint) = (path[*at], self.trees.arena[path[*at]].checkpoint.as_ref());
                id != node
                    && Some(id) != prompt
                    && checkpoint.is_some_and(|checkpoint| checkpoint.leases == 0)
            };
            let Some(victim) = thinnest(start, &positions, removable) else { return };
            let id = path.remove(victim);
            self.trees.remove_checkpoint(id, dropped);
            // The victim may be the deepest: its store can be older than one that ended further up.
            self.trees.prune(id, dropped);
        }
    }

    /// The checkpoint on `path` most recently marked as the end of a prompt; if none is, the one before
    /// `newest`.
    fn prompt_end(&self, path: &[NodeId], newest: NodeId) -> Option<NodeId> {
        let marked =
            |id: &NodeId| self.trees.arena[*id].checkpoint.as_ref().map_or(0, |checkpoint| checkpoint.prompt);
        let latest = path.iter().copied().max_by_key(marked).filter(|id| marked(id) > 0);
        latest.or_else(|| path.iter().copied().take_while(|id| *id != newest).last())
    }

    /// Marks the deepest checkpoint at or before `prompt` tokens as the end of a prompt; `node` is where
    /// the store ends. O(nodes on the path).
    pub(crate) fn mark_prompt(&mut self, node: NodeId, prompt: Option<usize>) {
        let Some(prompt) = prompt else { return };
        let arena = &self.trees.arena;
        let at = upward(arena, node)
            .find(|id| arena[*id].end as usize <= prompt && arena[*id].checkpoint.is_some());
        if let Some(checkpoint) = at.and_then(|id| self.trees.arena[id].checkpoint.as_mut()) {
            self.prompts += 1;
            checkpoint.prompt = self.prompts;
        }
    }

    /// The start of the unbranched path through `node`, and its checkpoints in order.
    fn unbranched(&self, node: NodeId) -> (u32, Vec<NodeId>) {
        let arena = &self.trees.arena;
        let mut top = node;
        while !arena[arena[top].parent].is_root() && arena[arena[top].parent].children.len() == 1 {
            top = arena[top].parent;
        }
        let start = arena[arena[top].parent].end;
        let mut path = Vec::new();
        let mut at = Some(top);
        while let Some(id) = at {
            if arena[id].checkpoint.is_some() {
                path.push(id);
            }
            at = arena[id].children.only();
        }
        (start, path)
    }
}

/// The removable position whose removal leaves the smallest gap. The deepest has no gap after it, so
/// it is chosen only if no other is removable.
fn thinnest(start: u32, positions: &[u32], removable: impl Fn(&usize) -> bool) -> Option<usize> {
    let gap = |at: usize| {
        let before = if at == 0 { start } else { positions[at - 1] };
        positions.get(at + 1).map_or(u32::MAX, |after| after - before)
    };
    (0..positions.len()).filter(removable).min_by_key(|at| gap(*at))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A 234K-token prompt with a checkpoint at every step keeps the newest, and no gap is more than
    /// twice that of even spacing.
    #[test]
    fn many_checkpoints_thin_out_evenly() {
        for keep in 2..12 {
            let mut kept: Vec<u32> = Vec::new();
            for step in 1..=113 {
                kept.push(step * 2048);
                if kept.len() > keep {
                    let newest = kept.len() - 1;
                    let victim = thinnest(0, &kept, |at| *at != newest).unwrap();
                    kept.remove(victim);
                }
                let edges = [&[0], &kept[..]].concat();
                let largest = edges.windows(2).map(|pair| pair[1] - pair[0]).max().unwrap();
                let even = step * 2048 / kept.len() as u32;
                assert_eq!(kept.last(), Some(&(step * 2048)));
                assert!(largest <= 2 * even.max(2048), "{keep}: {kept:?}");
            }
        }
    }
}
