//! The trees: one per namespace and layout.
//!
//! Stores with and without checkpoints under one layout go into two trees, so that no tree ever
//! holds both kinds, whatever a caller does.

use hashbrown::{Equivalent, HashMap};

use crate::ids::{LayoutId, NodeId, TreeId};
use crate::ledger::Amount;
use crate::radix::arena::Arena;
use crate::radix::node::Node;

/// One tree and its share of the ledger.
#[derive(Debug)]
pub(crate) struct Tree {
    pub(crate) namespace: Box<str>,
    pub(crate) layout: LayoutId,
    pub(crate) root: NodeId,
    /// Window or state layers: usable at checkpoints only. Otherwise usable at every token.
    pub(crate) checkpointed: bool,
    pub(crate) held: Amount,
    pub(crate) nodes: u64,
    pub(crate) sequences: u64,
}

/// Trees by namespace; within one, in the order in which they came to be.
#[derive(Debug, Default)]
pub(crate) struct Forest {
    trees: Vec<Option<Tree>>,
    free: Vec<TreeId>,
    names: HashMap<Box<str>, Vec<TreeId>>,
}

/// A namespace as it is looked up. The default one is the empty string, and comparing zero bytes
/// at the dangling address of an empty box makes AVX-512 versions of memcmp trap into microcode:
/// 130 ns, most of a short lookup.
#[derive(Hash)]
struct Sought<'a>(&'a str);

impl Equivalent<Box<str>> for Sought<'_> {
    fn equivalent(&self, name: &Box<str>) -> bool {
        self.0.len() == name.len() && (name.is_empty() || *self.0 == **name)
    }
}

impl Forest {
    pub(crate) fn get(&self, id: TreeId) -> &Tree {
        self.trees[id.0 as usize].as_ref().unwrap_or_else(|| unreachable!("tree {} is gone", id.0))
    }

    pub(crate) fn get_mut(&mut self, id: TreeId) -> &mut Tree {
        self.trees[id.0 as usize].as_mut().unwrap_or_else(|| unreachable!("tree {} is gone", id.0))
    }

    /// The trees of a namespace, oldest first. O(1).
    pub(crate) fn of(&self, namespace: &str) -> &[TreeId] {
        self.names.get(&Sought(namespace)).map_or(&[], Vec::as_slice)
    }

    pub(crate) fn find(&self, namespace: &str, layout: LayoutId, checkpointed: bool) -> Option<TreeId> {
        let fits = |tree: &Tree| tree.layout == layout && tree.checkpointed == checkpointed;
        self.of(namespace).iter().copied().find(|id| fits(self.get(*id)))
    }

    pub(crate) fn find_or_add(
        &mut self,
        arena: &mut Arena,
        namespace: &str,
        layout: LayoutId,
        checkpointed: bool,
    ) -> TreeId {
        if let Some(id) = self.find(namespace, layout, checkpointed) {
            return id;
        }
        let id = self.free.pop().unwrap_or_else(|| {
            self.trees.push(None);
            TreeId(self.trees.len() as u32 - 1)
        });
        let root = arena.add(Node::new(id, NodeId::NONE, 0, Box::default()));
        self.trees[id.0 as usize] = Some(Tree {
            namespace: namespace.into(),
            layout,
            root,
            checkpointed,
            held: Amount::default(),
            nodes: 0,
            sequences: 0,
        });
        self.names.entry(namespace.into()).or_default().push(id);
        id
    }

    /// Removes a tree whose root has no child left.
    pub(crate) fn remove(&mut self, arena: &mut Arena, id: TreeId) {
        let Some(tree) = self.trees[id.0 as usize].take() else { return };
        arena.remove(tree.root);
        self.free.push(id);
        if let Some(of) = self.names.get_mut(&Sought(&tree.namespace)) {
            of.retain(|other| *other != id);
            if of.is_empty() {
                self.names.remove(&Sought(&tree.namespace));
            }
        }
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (TreeId, &Tree)> {
        let id = |at| TreeId(at as u32);
        self.trees.iter().enumerate().filter_map(move |(at, tree)| Some((id(at), tree.as_ref()?)))
    }

    pub(crate) fn namespaces(&self) -> impl Iterator<Item = &str> {
        self.names.keys().map(|name| &**name)
    }

    /// Bytes on the heap; the trees' nodes are the arena's.
    pub(crate) fn bytes(&self) -> usize {
        let names = self.names.iter().map(|(name, of)| name.len() + of.capacity() * size_of::<TreeId>());
        let trees = self.trees.iter().flatten().map(|tree| tree.namespace.len());
        self.trees.capacity() * size_of::<Option<Tree>>()
            + self.free.capacity() * size_of::<TreeId>()
            + self.names.allocation_size()
            + names.sum::<usize>()
            + trees.sum::<usize>()
    }
}
