//! Lookups: what is found, leased and taken.

use kvcache_core::{CheckpointId, LeaseId, Match, Scope, SegmentId};

use super::{Driver, Outcome, same, valid};
use crate::common::index::Index;
use crate::common::prompt::Prompt;

impl<I: Index> Driver<I> {
    pub(super) fn lookup(
        &mut self,
        namespace: &str,
        prompt: &Prompt,
        short: usize,
        touch: Option<u64>,
    ) -> Outcome {
        let limit = prompt.len().saturating_sub(short);
        let expected = self.oracle.lookup(namespace, prompt, limit, touch);
        let found = valid("lookup", self.index.lookup(namespace, prompt, limit, touch))?;
        matched(&found, &expected)
    }

    pub(super) fn acquire(&mut self, namespace: &str, prompt: &Prompt, short: usize) -> Outcome {
        let limit = prompt.len().saturating_sub(short);
        let (found, scope) = valid("acquire", self.index.acquire(namespace, prompt, limit))?;
        let (expected, parts) = self.oracle.acquire(namespace, prompt, limit, scope.lease);
        matched(&found, &expected)?;
        same("leased", &scope.lease.is_some(), &parts.leased)?;
        self.scope(&scope, &parts.pieces, parts.checkpoint)
    }

    pub(super) fn scope(
        &mut self,
        scope: &Scope,
        pieces: &[(Option<SegmentId>, usize)],
        checkpoint: Option<(CheckpointId, usize)>,
    ) -> Outcome {
        let found: Vec<_> = scope.pieces.iter().map(|piece| (Some(piece.segment), piece.tokens)).collect();
        same("pieces", &&found[..], &pieces)?;
        same("checkpoint", &scope.checkpoint, &checkpoint)?;
        if let Some(lease) = scope.lease {
            self.give(lease.0)?;
            self.leases.push(lease);
        }
        Ok(())
    }

    pub(super) fn take(&mut self, namespace: &str, prompt: &Prompt, short: usize) -> Outcome {
        let limit = prompt.len().saturating_sub(short);
        let (found, taken) = valid("take", self.index.take(namespace, prompt, limit))?;
        let (expected, parts, gone) = self.oracle.take(namespace, prompt, limit, taken.scope.lease);
        matched(&found, &expected)?;
        same("leased", &taken.scope.lease.is_some(), &parts.leased)?;
        self.scope(&taken.scope, &parts.pieces, parts.checkpoint)?;
        self.dropped("take", taken.dropped, gone)
    }

    pub(super) fn release(&mut self, lease: LeaseId) -> Outcome {
        let gone = self.oracle.release(lease, self.clock);
        let found = self.index.release(lease, self.clock);
        self.dropped("release", found, gone)
    }
}

fn matched(found: &Match, expected: &Match) -> Outcome {
    same("match", &Match { visited: 0, compared: 0, ..*found }, expected)
}
