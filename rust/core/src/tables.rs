//! Hash tables that shrink with their contents.

use hashbrown::HashMap;

/// Frees memory of a table that once held many more entries. Amortised O(1) per removal.
pub(crate) fn shrink<K: Eq + std::hash::Hash, V>(map: &mut HashMap<K, V>) {
    if map.capacity() > 4 * map.len().max(4) {
        map.shrink_to(map.len() * 2);
    }
}
