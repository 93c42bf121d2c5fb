//! The request and result types of stores.

use kvcache_core as core;
use pyo3::prelude::*;

use crate::tickets::{Abandonments, Announced, Plan};
use crate::tokens::SpanArgument;
use crate::types::dropped::{Dropped, Evicted};

/// (bytes, buffers, trimmable)
type Checkpoint = (u64, u32, bool);

/// A request to store a prompt, without its tokens.
#[pyclass(frozen, module = "kvcache._core")]
pub(crate) struct StoreRequest {
    namespace: String,
    pub(crate) media: Vec<SpanArgument>,
    layout: u64,
    bytes_per_token: u64,
    segment_buffers: u32,
    checkpoint: Option<core::CheckpointSpec>,
    label: u16,
    prompt: Option<usize>,
}

#[pymethods]
impl StoreRequest {
    /// `checkpoint` is (bytes, buffers, trimmable). The answer begins after `prompt_length` tokens.
    #[new]
    #[pyo3(signature = (*, namespace, layout, bytes_per_token, segment_buffers, media = Vec::new(), checkpoint = None, label = 0, prompt_length = None))]
    #[allow(clippy::too_many_arguments)]
    fn new(
        namespace: String,
        layout: u64,
        bytes_per_token: u64,
        segment_buffers: u32,
        media: Vec<SpanArgument>,
        checkpoint: Option<Checkpoint>,
        label: u16,
        prompt_length: Option<usize>,
    ) -> Self {
        let checkpoint = checkpoint.map(|(nbytes, buffers, trimmable)| core::CheckpointSpec {
            nbytes,
            buffers,
            trimmable,
        });
        let prompt = prompt_length;
        Self { namespace, media, layout, bytes_per_token, segment_buffers, checkpoint, label, prompt }
    }
}

impl StoreRequest {
    pub(crate) fn store<'a>(&'a self, query: &core::Query<'a>) -> core::StoreRequest<'a> {
        core::StoreRequest {
            namespace: &self.namespace,
            layout: core::LayoutId(self.layout),
            query: *query,
            bytes_per_token: self.bytes_per_token,
            segment_buffers: self.segment_buffers,
            checkpoint: self.checkpoint,
            label: self.label,
            prompt: self.prompt,
        }
    }
}

/// A segment to copy: the tokens from `start` to `end`.
#[pyclass(frozen, get_all, module = "kvcache._core")]
#[derive(Clone)]
pub(crate) struct NewSegment {
    segment: u64,
    start: usize,
    end: usize,
}

impl From<&core::NewSegment> for NewSegment {
    fn from(new: &core::NewSegment) -> Self {
        Self { segment: new.id.0, start: new.start, end: new.end }
    }
}

/// A segment to replace by copies of its two halves.
#[pyclass(frozen, get_all, module = "kvcache._core")]
#[derive(Clone)]
pub(crate) struct Split {
    old: u64,
    upper: u64,
    lower: u64,
    /// Tokens of the upper half.
    at: usize,
}

impl From<core::Split> for Split {
    fn from(split: core::Split) -> Self {
        Self { old: split.old.0, upper: split.upper.0, lower: split.lower.0, at: split.at }
    }
}

/// The eviction that a settled draft still needs.
#[pyclass(frozen, get_all, module = "kvcache._core")]
pub(crate) struct Settled {
    /// Bytes over the limit.
    nbytes: u64,
    /// Arrays over the limit.
    buffers: u64,
    /// What `recopy` dropped.
    given_up: Py<Dropped>,
}

impl Settled {
    pub(crate) fn new(py: Python<'_>, over: core::Need, given_up: Dropped) -> PyResult<Self> {
        Ok(Self { nbytes: over.nbytes, buffers: over.buffers, given_up: Py::new(py, given_up)? })
    }
}

/// The outcome of planning a store.
#[pyclass(frozen, get_all, module = "kvcache._core")]
pub(crate) struct Planned {
    /// `ready`, `already`, `too_large` or `inside_media`.
    outcome: &'static str,
    plan: Option<Py<Plan>>,
    length: usize,
    matched: usize,
    segments: Vec<NewSegment>,
    split: Option<Split>,
    checkpoint: Option<u64>,
    evicted: Py<Dropped>,
}

impl Planned {
    pub(crate) fn new(
        py: Python<'_>,
        planned: core::Planned,
        evicted: Dropped,
        abandonments: &Abandonments,
    ) -> PyResult<Self> {
        let evicted = Py::new(py, evicted)?;
        let outcome = match &planned {
            core::Planned::Ready(_) => "ready",
            core::Planned::Already(_) => "already",
            core::Planned::TooLarge => "too_large",
            core::Planned::InsideMedia => "inside_media",
        };
        let core::Planned::Ready(plan) = planned else {
            return Ok(Self {
                outcome,
                plan: None,
                length: 0,
                matched: 0,
                segments: Vec::new(),
                split: None,
                checkpoint: None,
                evicted,
            });
        };
        let halves = plan.split.iter().flat_map(|split| [split.upper.0, split.lower.0]);
        let announced = Announced {
            segments: plan.segments.iter().map(|new| new.id.0).chain(halves).collect(),
            checkpoint: plan.checkpoint.map(|id| id.0),
        };
        let ticket = Plan::new(plan.id.0, announced, abandonments);
        Ok(Self {
            outcome,
            plan: Some(Py::new(py, ticket)?),
            length: plan.length,
            matched: plan.matched,
            segments: plan.segments.iter().map(NewSegment::from).collect(),
            split: plan.split.map(Split::from),
            checkpoint: plan.checkpoint.map(|id| id.0),
            evicted,
        })
    }
}

/// The outcome of drafting a store.
#[pyclass(frozen, get_all, module = "kvcache._core")]
pub(crate) struct Drafted {
    /// `open`, `already` or `inside_media`.
    outcome: &'static str,
    draft: Option<Py<Plan>>,
    /// Tokens already held.
    matched: usize,
    /// Tokens that fit; 0 if none do.
    length: usize,
    /// Tokens that fit if the node in which the key diverges is dropped.
    length_recopied: usize,
}

impl Drafted {
    pub(crate) fn new(py: Python<'_>, outcome: core::Outcome, abandonments: &Abandonments) -> PyResult<Self> {
        let closed = |outcome| Self { outcome, draft: None, matched: 0, length: 0, length_recopied: 0 };
        Ok(match outcome {
            core::Outcome::Already(_) => closed("already"),
            core::Outcome::InsideMedia => closed("inside_media"),
            core::Outcome::Open(drafted) => Self {
                outcome: "open",
                draft: Some(Py::new(py, Plan::new(drafted.id.0, Announced::default(), abandonments))?),
                matched: drafted.matched,
                length: drafted.length,
                length_recopied: drafted.length_recopied,
            },
        })
    }
}

/// What an insert into a `PrefixIndex` did.
#[pyclass(frozen, get_all, module = "kvcache._core")]
pub(crate) struct Inserted {
    length: usize,
    new_tokens: usize,
    evicted: Py<Evicted>,
}

#[pymethods]
impl Inserted {
    fn __repr__(&self) -> String {
        format!("Inserted(length={}, new_tokens={})", self.length, self.new_tokens)
    }
}

impl Inserted {
    pub(crate) fn new(py: Python<'_>, inserted: core::Inserted) -> PyResult<Self> {
        Ok(Self {
            length: inserted.length,
            new_tokens: inserted.new_tokens,
            evicted: Py::new(py, Evicted::from(inserted.evicted))?,
        })
    }
}
