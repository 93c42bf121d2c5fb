//! The trees: one per namespace and layout.
//!
//! A layout stored both with and without checkpoints gets two trees, so that no tree ever mixes the
//! two kinds, whatever the caller does.

use hashbrown::{Equivalent, HashMap};

use crate::ids::{LayoutId, LeaseId, NodeId, TreeId};
use crate::ledger::{Amount, Sequences};
use crate::radix::arena::Arena;
use crate::radix::node::Node;
use crate::radix::slab::Slab;
use crate::tables::shrink;
use crate::work::visit;

/// One tree and its share of the ledger.
#[derive(Debug)]
pub(crate) struct Tree {
    pub(crate) namespace: Box<str>,
    pub(crate) layout: LayoutId,
    pub(crate) root: NodeId,
    /// Some layer is sliding-window or recurrent, so prefixes are usable only at checkpoints. Otherwise
    /// they are usable at every token.
    pub(crate) checkpointed: bool,
    pub(crate) held: Amount,
    pub(crate) nodes: u64,
    pub(crate) sequences: Sequences,
    /// The newest lease in this tree: the head of the tree's list of leases.
    pub(crate) lease: Option<LeaseId>,
}

/// Trees by namespace, in order of creation within each.
#[derive(Debug, Default)]
pub(crate) struct Forest {
    trees: Slab<Tree>,
    names: HashMap<Box<str>, Vec<TreeId>>,
    /// Heap bytes held by names and trees.
    heap_bytes: usize,
}

/// A namespace used as a lookup key. The default namespace is the empty string, and comparing zero
/// bytes at the dangling address of an empty box makes AVX-512 versions of memcmp trap into microcode:
/// 130 ns, most of a short lookup.
#[derive(Hash)]
struct NamespaceKey<'a>(&'a str);

impl Equivalent<Box<str>> for NamespaceKey<'_> {
    fn equivalent(&self, name: &Box<str>) -> bool {
        self.0.len() == name.len() && (name.is_empty() || *self.0 == **name)
    }
}

impl Forest {
    pub(crate) fn get(&self, id: TreeId) -> &Tree {
        self.trees.get(id.0).unwrap_or_else(|| unreachable!("tree {} is not live", id.0))
    }

    pub(crate) fn get_mut(&mut self, id: TreeId) -> &mut Tree {
        self.trees.get_mut(id.0).unwrap_or_else(|| unreachable!("tree {} is not live", id.0))
    }

    /// The trees of a namespace, oldest first. O(1).
    pub(crate) fn of(&self, namespace: &str) -> &[TreeId] {
        self.names.get(&NamespaceKey(namespace)).map_or(&[], Vec::as_slice)
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
        let id = TreeId(self.trees.add(Tree {
            namespace: namespace.into(),
            layout,
            root: NodeId::NONE,
            checkpointed,
            held: Amount::default(),
            nodes: 0,
            sequences: Sequences::default(),
            lease: None,
        }));
        self.get_mut(id).root = arena.add(Node::new(id, NodeId::NONE, 0, Box::default()));
        let of = self.names.entry(namespace.into()).or_insert_with(|| {
            self.heap_bytes += namespace.len();
            Vec::new()
        });
        let before = of.capacity();
        of.push(id);
        self.heap_bytes += namespace.len() + (of.capacity() - before) * size_of::<TreeId>();
        id
    }

    /// Removes a tree whose root has no children.
    pub(crate) fn remove(&mut self, arena: &mut Arena, id: TreeId) {
        let tree = self.trees.remove(id.0);
        arena.remove(tree.root);
        self.heap_bytes -= tree.namespace.len();
        if let Some(of) = self.names.get_mut(&NamespaceKey(&tree.namespace)) {
            of.retain(|other| *other != id);
            if of.is_empty() {
                self.heap_bytes -= tree.namespace.len() + of.capacity() * size_of::<TreeId>();
                self.names.remove(&NamespaceKey(&tree.namespace));
                shrink(&mut self.names);
            }
        }
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (TreeId, &Tree)> {
        self.trees.iter().map(|(id, tree)| (TreeId(id), tree))
    }

    /// Number of trees.
    pub(crate) fn len(&self) -> usize {
        self.trees.len()
    }

    pub(crate) fn namespaces(&self) -> impl Iterator<Item = &str> {
        self.names.keys().map(|name| {
            visit();
            &**name
        })
    }

    /// Number of namespaces with at least one tree.
    pub(crate) fn names(&self) -> usize {
        self.names.len()
    }

    /// Bytes on the heap, without the nodes, which the arena counts. O(1).
    pub(crate) fn bytes(&self) -> usize {
        self.trees.bytes() + self.names.allocation_size() + self.heap_bytes
    }
}
