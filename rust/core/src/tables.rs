//! Hash tables that follow what is in them.

use hashbrown::HashMap;

/// Gives back what a table holds that once had many more entries. Amortised O(1) a removal.
pub(crate) fn shrink<K: Eq + std::hash::Hash, V>(map: &mut HashMap<K, V>) {
    if map.capacity() > 4 * map.len().max(4) {
        map.shrink_to(map.len() * 2);
    }
}
