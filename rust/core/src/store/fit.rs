//! What a store costs, and how much of it fits.

use crate::evict::Room;
use crate::index::PrefixIndex;
use crate::ledger::Amount;
use crate::store::in_flight::{Draft, Place};
use crate::store::request::CheckpointSpec;
use crate::trees::grow::SegmentShape;

/// Cuts new tokens `from..to` into segments. They end at multiples of the grain, so that two machines
/// cut at the same positions.
pub(super) fn blocks(from: usize, to: usize, grain: usize) -> impl Iterator<Item = (usize, usize)> {
    let mut start = from;
    std::iter::from_fn(move || {
        let end = to.min((start / grain + 1) * grain);
        (start < to).then(|| (std::mem::replace(&mut start, end), end))
    })
}

impl PrefixIndex {
    /// What a store at `place` adds until its commit: new segments, both halves of a split, and a
    /// checkpoint.
    pub(super) fn cost(
        &self,
        shape: SegmentShape,
        checkpoint: Option<CheckpointSpec>,
        place: &Place,
    ) -> Amount {
        let tokens = place.length.saturating_sub(place.from) as u64;
        // Counts what `blocks` yields, in O(1).
        let grain = self.segment_tokens;
        let segments = if tokens > 0 { place.length.div_ceil(grain) - place.from / grain } else { 0 } as u64;
        let mut cost = Amount {
            // Saturates: a product that overflows exceeds every limit anyway.
            nbytes: tokens.saturating_mul(shape.bytes_per_token),
            buffers: segments * u64::from(shape.buffers),
            tokens,
            segments,
            checkpoints: 0,
        };
        if place.cut.is_some() {
            let node = &self.trees.arena[place.node];
            cost.nbytes = cost.nbytes.saturating_add(node.nbytes());
            cost.buffers += 2 * u64::from(node.buffers);
            cost.segments += 2;
        }
        if let Some(checkpoint) = checkpoint {
            cost.nbytes = cost.nbytes.saturating_add(checkpoint.nbytes);
            cost.buffers += u64::from(checkpoint.buffers);
            cost.checkpoints += 1;
        }
        cost
    }

    /// The most tokens that a store at `place` can hold in `room`; `None` if it would add nothing.
    pub(super) fn fitting(&self, draft: &Draft, place: &Place, room: Room) -> Option<usize> {
        let whole = self.cost(draft.shape, draft.checkpoint, place);
        if room.holds(whole.nbytes, whole.buffers) {
            return Some(place.length);
        }
        if draft.checkpoint.is_some() {
            return None;
        }
        let fixed = self.cost(draft.shape, draft.checkpoint, &Place { length: place.from, ..*place });
        let nbytes = room.nbytes.checked_sub(fixed.nbytes)?;
        let buffers = room.buffers.checked_sub(fixed.buffers)?;
        let by_bytes = nbytes.checked_div(draft.shape.bytes_per_token).unwrap_or(u64::MAX);
        let grain = self.segment_tokens as u64;
        let by_buffers = buffers.checked_div(u64::from(draft.shape.buffers)).map_or(u64::MAX, |segments| {
            let ends = (place.from as u64 / grain).saturating_add(segments);
            ends.saturating_mul(grain).saturating_sub(place.from as u64)
        });
        let more = by_bytes.min(by_buffers).min((place.length - place.from) as u64) as usize;
        let length = draft.cuts.back(place.from + more);
        (length > place.from).then_some(length)
    }

    /// The place without the node that the draft splits, if only the draft itself leases that node: the
    /// node is dropped, and its matched tokens are copied again.
    pub(super) fn fitting_recopied(&self, draft: &Draft) -> Option<Place> {
        draft.place.cut?;
        let node = &self.trees.arena[draft.place.node];
        if node.leases > 1 {
            return None;
        }
        let mut room = self.room();
        let amount = node.amount();
        room.nbytes += amount.nbytes;
        room.buffers += amount.buffers;
        let place = Place { from: node.start(), node: node.parent, cut: None, length: draft.keys.len() };
        let length = self.fitting(draft, &place, room)?;
        // Without a checkpoint to add, only tokens beyond those already held are a gain.
        let held = if draft.checkpoint.is_some() { 0 } else { draft.place.from };
        (length > held).then_some(Place { length, ..place })
    }
}
