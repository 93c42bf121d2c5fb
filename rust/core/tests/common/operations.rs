//! Random operations: how to generate and shrink them.
//!
//! Few tokens, short segments and tight limits, so that prompts constantly share prefixes, split nodes and
//! run out of room.

use kvcache_core::{CheckpointSpec, Limits, Need};
use proptest::collection::vec;
use proptest::prelude::*;

use super::index::Store;
use super::prompt::{Part, Prompt};

/// The namespace for `insert`, which returns no ids. Nothing else is stored in it.
pub(crate) const BARE: &str = "bare";

/// A prompt to look up: `prompt` itself, or a continuation of one of the latest stores.
#[derive(Clone, Debug)]
pub(crate) struct Target {
    pub(crate) after: Option<usize>,
    pub(crate) namespace: String,
    pub(crate) prompt: Prompt,
}

/// A store, likewise.
#[derive(Clone, Debug)]
pub(crate) struct Request {
    pub(crate) after: Option<usize>,
    pub(crate) store: Store,
}

#[derive(Clone, Debug)]
pub(crate) enum Operation {
    /// Plan and commit.
    Store(Request),
    Plan(Request),
    /// The steps of a plan one by one.
    Draft(Request),
    /// All but `short` tokens; with `evict`, evicts the excess at once.
    Settle {
        which: usize,
        short: usize,
        recopy: bool,
        evict: bool,
    },
    Promise(usize),
    AbortDraft(usize),
    /// Which open plan, or with `ended`, which ended one.
    Commit {
        which: usize,
        ended: bool,
    },
    Abort {
        which: usize,
        ended: bool,
    },
    Insert {
        prompt: Prompt,
        bytes_per_token: u64,
    },
    Lookup {
        target: Target,
        short: usize,
        touch: bool,
    },
    Acquire {
        target: Target,
        short: usize,
    },
    Take {
        target: Target,
        short: usize,
    },
    Release {
        which: usize,
        ended: bool,
    },
    Evict(Need),
    /// The minimum time since the last use.
    EvictIdle(u64),
    MakeRoom {
        nbytes: u64,
        buffers: u64,
    },
    /// Any segment, on the lease's path or not.
    Compact {
        which: usize,
        segment: usize,
        parts: u32,
    },
    ReserveBytes {
        nbytes: u64,
        buffers: u64,
    },
    UnreserveBytes(usize),
    Drop(String),
    Clear,
    /// An invalid token, in a lookup and in a store.
    Invalid {
        store: Store,
        at: usize,
        key: u32,
    },
}

#[derive(Clone, Debug)]
pub(crate) struct Step {
    pub(crate) operation: Operation,
    /// Time since the previous step.
    pub(crate) wait: u64,
}

/// Limits and steps.
#[derive(Clone, Debug)]
pub(crate) struct Script {
    pub(crate) limits: Limits,
    pub(crate) steps: Vec<Step>,
}

/// Common beginnings of prompts.
fn stem(which: usize) -> Vec<Part> {
    let text = |tokens: &[u32]| Prompt::text(tokens.iter().copied()).0;
    let media = |digest, length| Prompt::media(digest, length).0;
    match which {
        0 => text(&[0, 1, 0, 0, 1, 1, 0, 1, 0, 1, 1, 0]),
        1 => [text(&[0, 1, 0]), media(0, 3), text(&[1, 1, 0]), media(1, 2), text(&[1])].concat(),
        2 => [media(0, 2), text(&[0, 1]), media(0, 2), media(0, 2), text(&[0])].concat(),
        _ => text(&[1; 10]),
    }
}

fn part() -> impl Strategy<Value = Part> {
    prop_oneof![
        8 => (0_u32..3).prop_map(Part::Text),
        1 => (0_u8..2, 1_usize..4).prop_map(|(digest, length)| Part::Media(digest, length)),
    ]
}

fn prompt() -> impl Strategy<Value = Prompt> {
    (0_usize..4, 0_usize..13, vec(part(), 0..4)).prop_map(|(which, keep, tail)| {
        let mut parts = stem(which);
        parts.truncate(keep);
        parts.extend(tail);
        Prompt(parts)
    })
}

fn text() -> impl Strategy<Value = Prompt> {
    (prop_oneof![Just(0_usize), Just(3)], 0_usize..13, vec(0_u32..3, 0..4)).prop_map(|(which, keep, tail)| {
        let mut parts = stem(which);
        parts.truncate(keep);
        Prompt(parts).then(&Prompt::text(tail))
    })
}

fn namespace() -> impl Strategy<Value = String> {
    prop_oneof![3 => Just("a"), 1 => Just("b")].prop_map(str::to_owned)
}

/// Layouts 0 and 1 have only full-attention layers, 2 and 3 have checkpoints, and 3 is a recurrent model.
/// Layout 0 is sometimes stored with checkpoints too, which no sane caller does.
fn store() -> impl Strategy<Value = Store> {
    let checkpoint = (0_u64..6, 0_u32..3, any::<bool>())
        .prop_map(|(nbytes, buffers, trimmable)| CheckpointSpec { nbytes, buffers, trimmable });
    let layout = prop_oneof![
        6 => Just((0, false)),
        2 => Just((1, false)),
        6 => Just((2, true)),
        1 => Just((3, true)),
        1 => Just((0, true)),
    ];
    // Sometimes another size than the layout's.
    let unusual_size = prop_oneof![15 => Just(None), 1 => (0_u64..4).prop_map(Some)];
    let length = prop_oneof![1 => Just(None), 1 => (0_usize..16).prop_map(Some)];
    (namespace(), layout, prompt(), checkpoint, unusual_size, 0_u16..3, length).prop_map(
        |(namespace, (layout, checkpointed), prompt, checkpoint, unusual_size, label, prompt_length)| Store {
            namespace,
            layout,
            prompt,
            bytes_per_token: unusual_size.unwrap_or([1, 3, 2, 0][layout as usize]),
            buffers: [1, 2, 1, 0][layout as usize],
            checkpoint: checkpointed.then_some(checkpoint),
            label,
            prompt_length,
        },
    )
}

/// The end of a prompt that continues one of the latest stores.
fn tail() -> impl Strategy<Value = Prompt> {
    vec(part(), 0..3).prop_map(Prompt)
}

fn request() -> impl Strategy<Value = Request> {
    let after = |after, prompt, store| Request { after: Some(after), store: Store { prompt, ..store } };
    prop_oneof![
        1 => store().prop_map(|store| Request { after: None, store }),
        1 => (prop_oneof![3 => Just(0_usize), 1 => 1_usize..4], tail(), store()).prop_map(move |(latest, tail, store)| after(latest, tail, store)),
    ]
}

fn target() -> impl Strategy<Value = Target> {
    let after = prop_oneof![Just(None), (0_usize..4).prop_map(Some)];
    (after, namespace(), prompt(), tail()).prop_map(|(after, namespace, prompt, tail)| {
        let prompt = if after.is_some() { tail } else { prompt };
        Target { after, namespace, prompt }
    })
}

fn bare() -> impl Strategy<Value = Target> {
    prompt().prop_map(|prompt| Target { after: None, namespace: BARE.to_owned(), prompt })
}

fn need() -> impl Strategy<Value = Need> {
    let none = Need::default();
    prop_oneof![
        4 => (0_u64..20).prop_map(move |nbytes| Need { nbytes, ..none }),
        3 => (0_u64..5).prop_map(move |units| Need { units, ..none }),
        1 => (0_u64..6).prop_map(move |buffers| Need { buffers, ..none }),
        1 => (0_u64..9).prop_map(move |tokens| Need { tokens, ..none }),
        1 => (0_u64..3).prop_map(move |sequences| Need { sequences, ..none }),
        2 => (0_u64..4).prop_map(move |entries| Need { entries, ..none }),
        1 => (0_u64..9, 0_u64..3).prop_map(move |(nbytes, units)| Need { nbytes, units, ..none }),
    ]
}

fn operation() -> impl Strategy<Value = Operation> {
    use Operation as Op;
    // An engine looks up all but the last token, ranks fewer, a pin all.
    let short = || prop_oneof![6 => Just(1_usize), 1 => Just(0), 2 => 2_usize..6];
    let ended = || prop_oneof![9 => Just(false), 1 => Just(true)];
    let which = || 0_usize..8;
    prop_oneof![
        20 => request().prop_map(Op::Store),
        8 => request().prop_map(Op::Plan),
        4 => request().prop_map(Op::Draft),
        4 => (which(), short(), any::<bool>(), any::<bool>()).prop_map(|(which, short, recopy, evict)| {
            Op::Settle { which, short: short.saturating_sub(1), recopy, evict }
        }),
        3 => which().prop_map(Op::Promise),
        1 => which().prop_map(Op::AbortDraft),
        6 => (which(), ended()).prop_map(|(which, ended)| Op::Commit { which, ended }),
        2 => (which(), ended()).prop_map(|(which, ended)| Op::Abort { which, ended }),
        3 => (text(), 0_u64..3).prop_map(|(prompt, bytes_per_token)| Op::Insert { prompt, bytes_per_token }),
        10 => (prop_oneof![6 => target(), 1 => bare()], short(), any::<bool>())
            .prop_map(|(target, short, touch)| Op::Lookup { target, short, touch }),
        8 => (target(), short()).prop_map(|(target, short)| Op::Acquire { target, short }),
        3 => (target(), short()).prop_map(|(target, short)| Op::Take { target, short }),
        8 => (which(), ended()).prop_map(|(which, ended)| Op::Release { which, ended }),
        6 => need().prop_map(Op::Evict),
        2 => (0_u64..20).prop_map(Op::EvictIdle),
        2 => (0_u64..40, 0_u64..6).prop_map(|(nbytes, buffers)| Op::MakeRoom { nbytes, buffers }),
        3 => (which(), 0_usize..64, 0_u32..3)
            .prop_map(|(which, segment, parts)| Op::Compact { which, segment, parts }),
        1 => (0_u64..20, 0_u64..3).prop_map(|(nbytes, buffers)| Op::ReserveBytes { nbytes, buffers }),
        1 => which().prop_map(Op::UnreserveBytes),
        1 => namespace().prop_map(Op::Drop),
        1 => Just(Op::Clear),
        1 => (store(), 0_usize..9, 0_u32..3)
            .prop_map(|(store, at, low)| Op::Invalid { store, at, key: 1 << 31 | low }),
    ]
}

fn limits() -> impl Strategy<Value = Limits> {
    let unlimited = Limits::default();
    let nbytes = prop_oneof![1 => Just(unlimited.max_bytes), 4 => 10_u64..120];
    let buffers = prop_oneof![2 => Just(unlimited.max_buffers), 1 => 3_u64..30];
    (nbytes, buffers, 1_usize..6, 1_usize..5).prop_map(
        move |(max_bytes, max_buffers, segment_tokens, max_checkpoints)| Limits {
            max_bytes,
            max_buffers,
            segment_tokens,
            max_checkpoints,
            ..unlimited
        },
    )
}

pub(crate) fn script(steps: usize) -> impl Strategy<Value = Script> {
    let step = (operation(), 0_u64..4).prop_map(|(operation, wait)| Step { operation, wait });
    (limits(), vec(step, 1..steps)).prop_map(|(limits, steps)| Script { limits, steps })
}

/// Runs `cases` cases, unless `PROPTEST_CASES` is set. A failure prints the shrunk script and writes no file.
pub(crate) fn config(cases: u32) -> ProptestConfig {
    let default = ProptestConfig::default();
    let cases = if std::env::var_os("PROPTEST_CASES").is_some() { default.cases } else { cases };
    ProptestConfig { cases, failure_persistence: None, max_shrink_iters: 100_000, ..default }
}
