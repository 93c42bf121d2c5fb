//! Lookups: what they match, lease and take.

use kvcache_core::{CheckpointId, LeaseId, Match, Scope, SegmentId};

use super::{Driver, Outcome, check_equal, valid};
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
        let actual = valid("lookup", self.index.lookup(namespace, prompt, limit, touch))?;
        matched(&actual, &expected)
    }

    pub(super) fn acquire(&mut self, namespace: &str, prompt: &Prompt, short: usize) -> Outcome {
        let limit = prompt.len().saturating_sub(short);
        let (actual, scope) = valid("acquire", self.index.acquire(namespace, prompt, limit))?;
        let (expected, parts) = self.oracle.acquire(namespace, prompt, limit, scope.lease);
        matched(&actual, &expected)?;
        check_equal("leased", &scope.lease.is_some(), &parts.leased)?;
        self.scope(&scope, &parts.pieces, parts.checkpoint)
    }

    pub(super) fn scope(
        &mut self,
        scope: &Scope,
        pieces: &[(Option<SegmentId>, usize)],
        checkpoint: Option<(CheckpointId, usize)>,
    ) -> Outcome {
        let actual: Vec<_> = scope.pieces.iter().map(|piece| (Some(piece.segment), piece.tokens)).collect();
        check_equal("pieces", &&actual[..], &pieces)?;
        check_equal("checkpoint", &scope.checkpoint, &checkpoint)?;
        if let Some(lease) = scope.lease {
            self.issue(lease.0)?;
            self.leases.push(lease);
        }
        Ok(())
    }

    pub(super) fn take(&mut self, namespace: &str, prompt: &Prompt, short: usize) -> Outcome {
        let limit = prompt.len().saturating_sub(short);
        let (actual, taken) = valid("take", self.index.take(namespace, prompt, limit))?;
        let (expected, parts, removed) = self.oracle.take(namespace, prompt, limit, taken.scope.lease);
        matched(&actual, &expected)?;
        check_equal("leased", &taken.scope.lease.is_some(), &parts.leased)?;
        self.scope(&taken.scope, &parts.pieces, parts.checkpoint)?;
        self.dropped("take", taken.dropped, removed)
    }

    pub(super) fn release(&mut self, lease: LeaseId) -> Outcome {
        let removed = self.oracle.release(lease, self.clock);
        let actual = self.index.release(lease, self.clock);
        self.dropped("release", actual, removed)
    }
}

fn matched(actual: &Match, expected: &Match) -> Outcome {
    check_equal("match", &Match { visited: 0, compared: 0, ..*actual }, expected)
}
